"""The ranks of a job, seen from one of them."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

from .. import errors
from .._arguments import Terms, nanoseconds, terms, whole
from .._batch_split import BatchSplit, batch_shares
from .._config import region_file
from .._exchange import exchange
from .._memory import arrays
from .._memory.arena import Arena, Block, overlap
from .._operation import DEFAULT_TIMEOUT_S, Commit, Delivery, Operation, check_caller, check_process
from .._protocol import connection
from .._protocol.connection import Link
from .._protocol.descriptor import Dtype, Op
from .._protocol.descriptor import Operation as Kind
from .._protocol.wire import LOCAL_VERSION, Attach, Post, Request
from .._protocol.wire import Commit as CommitRequest
from .state import Entry, Slot, State

#: Collectives of one rank under way; docs/protocol.md section 5.
POSTS_MAX = 256


def connect(
    *,
    config: Union[str, Path],
    rank: int,
    gateway: Optional[str] = None,
    job: Optional[str] = None,
    arena: Union[int, str] = "256 MiB",
    timeout: float = DEFAULT_TIMEOUT_S,
) -> Group:
    """Attaches to the gateway on this host, and waits until all ranks have done so.

    ``config`` is the region's file, as for ``landbridge run``; ``gateway`` and ``job`` choose
    where it has several. ``arena`` is the memory that contributions and results lie in: twice
    the bytes that are under way at once, and what ``Group.empty`` hands out. All of it is
    touched here, so that no step waits for pages. ``timeout`` is in seconds; it holds, but for a
    moment, also where the gateway is stopped.

    Raises ``ConfigError``, ``AttachError``, ``ArenaFull``, and ``RanksTimedOut`` when some rank
    did not connect in time.
    """
    nanoseconds(timeout)  # or it is none
    place = region_file.load(config, gateway, job)
    if whole("rank", rank, 1 << 32) >= len(place.speeds):
        last = len(place.speeds) - 1
        raise errors.ConfigError(f"rank {rank}: the fabric has ranks 0 to {last}")
    group = Group(place, rank, Arena(region_file.parse_bytes(arena)))
    try:
        group._meet(time.monotonic() + timeout)
    except BaseException:
        group.close()
        raise
    return group


class Group:
    """The ranks of a job; from ``connect``. All ranks post the same collectives in the same
    order. May be used from several threads, whose order of posting then is the caller's care.

    After a failure ``recover`` returns when a step can be begun; ``agree`` says whether it is the
    same one on all ranks. Arrays and memory stay.
    A collective that failed alone, such as by ``RanksTimedOut``, leaves the group usable as it
    is. When an epoch ends, every post raises ``EpochEnded`` until ``recover`` is called.

    Everything that posts or waits raises ``InCallback`` in a callback of a collective, and
    ``ForkedProcess`` in a process that was forked. The handler of a signal must do neither: where
    it interrupts a wait it is told so by ``InCallback``, where it interrupts a post it may end the
    connection.
    """

    def __init__(self, place: region_file.Place, rank: int, arena: Arena) -> None:
        #: This trainer's number.
        self.rank = rank
        #: The fabric's name.
        self.fabric = ""
        self._place = place
        self._arena = arena
        self._owner = os.getpid()
        self._posting = threading.RLock()
        # What is being posted is waited for by who posts it.
        self._is_awaited = False
        self._was_attached = False
        self._state = State()
        _groups.add(self)
        # Also when nobody calls `close`.
        weakref.finalize(self, State.hang_up, self._state).atexit = False

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return len(self._place.speeds)

    @property
    def epoch(self) -> int:
        """The epoch under way, as far as it has been heard of."""
        return self._state.epoch

    def recover(
        self,
        failure: Optional[errors.LandbridgeError] = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """After a failed step: returns once every rank is ready to begin one. Which one they
        ``agree`` on next.

        All ranks call it, since all of them see a failure; one that was started anew calls
        ``connect``. Attaches anew where the gateway was lost, and ends the epoch where it has
        not ended, since ranks may have come to different places of the step: also without a
        ``failure``, where this rank gave up for a reason of its own, such as Ctrl-C. Raises
        ``failure`` itself when it is the caller's fault, so that another try would fail as
        well; otherwise what ``connect`` raises, and ``Closed``. ``timeout`` holds as there.
        """
        self._check_caller()
        nanoseconds(timeout)  # or it is none
        hopeless = (errors.RanksDisagree, errors.BadRequest)
        why = "the step was given up"
        if failure is not None:
            if isinstance(failure, hopeless) or not isinstance(failure, errors.CollectiveFailed):
                raise failure
            why = f"given up after: {failure}"
        deadline = time.monotonic() + timeout
        with self._posting:
            if self._state.is_agreed:
                self._state.end(self._state.link, why)
            self._meet(deadline)

    def agree(self, step: int, timeout: float = DEFAULT_TIMEOUT_S) -> int:
        """``step``, the steps that this rank has finished, if every rank has finished as many.

        All ranks call it before their first step and after each ``recover``. A failure may come
        to one rank before the end of a step and to another after it; if each went on from where
        it is, they would average gradients of different steps, and nothing would tell them.
        ``landbridge.torch.resume`` also gives ranks that are behind what they lack.

        Raises ``StepsDiffer`` on every rank, and what ``all_reduce`` raises.
        """
        step = whole("step", step, 1 << 63)
        (steps,) = exchange(self, [step], timeout=timeout)
        if len(set(steps)) > 1:
            raise errors.StepsDiffer(steps, self._place.regions)
        return step

    def _meet(self, deadline: float) -> None:
        """All ranks in one epoch, at the begin of a step."""
        while True:
            self._attach(deadline)
            try:
                return self._await_all(max(deadline - time.monotonic(), 0.001))
            except (errors.RanksDisagree, errors.BadRequest):
                raise
            except errors.CollectiveFailed as failure:
                # A gateway or a rank went away or came back, or another rank's patience ended
                # earlier. Where the epoch has not ended, our return ends it.
                if time.monotonic() + _MEET_AGAIN_S >= deadline:
                    raise
                time.sleep(_MEET_AGAIN_S)
                if self._state.is_agreed:
                    self._state.end(self._state.link, f"given up after: {failure}")

    def _await_all(self, timeout: float) -> None:
        """A barrier that ends in time also where the gateway is stopped."""
        link = self._state.link
        try:
            self.barrier_async(timeout).wait(timeout + _ANSWER_S)
        except errors.WaitTimeout as silence:
            text = "the gateway does not answer; is it stopped, or its host overloaded?"
            self._state.end(link, text)
            raise errors.NoGateway(f"{self._place.socket}: {text}") from silence

    def _attach(self, deadline: float) -> None:
        state = self._state
        if state.closed:
            raise errors.Closed("the group was closed")
        if state.ended is not None:
            self._attach_anew(deadline)
        # Failures of the last epoch may still be on their way.
        state.wait_until(
            lambda: (not state.is_over and not state.entries) or state.ended is not None, deadline
        )
        if state.ended is not None:
            raise errors.Refused(state.ended)
        if state.is_over or state.entries:
            raise errors.NoEpoch(
                "attached, but no epoch began in time: some gateway is missing; "
                "see `landbridge status`"
            )
        state.agree()

    def _attach_anew(self, deadline: float) -> None:
        place = self._place
        self._state.finish_end()
        attach = Attach(LOCAL_VERSION, self.rank, self._arena.nbytes, place.token, place.job)
        while True:
            try:
                link = connection.attach(place.socket, self._arena.fd, attach, deadline)
                break
            except errors.NoGateway:
                # It may be on its way up again.
                if not self._was_attached or time.monotonic() + _MEET_AGAIN_S >= deadline:
                    raise
                time.sleep(_MEET_AGAIN_S)
        theirs, ours = link.attached.world_size, self.world_size
        if theirs != ours:
            link.hang_up()
            text = f"{theirs} ranks at the gateway, {ours} in the config"
            raise errors.Refused(f"gateway and trainer have different fabrics: {text}")
        self.fabric, self._was_attached = link.attached.fabric, True
        try:
            self._state.begin(link)
        except BaseException:
            self._state.end(link, "attaching was interrupted")
            raise

    def close(self) -> None:
        """Detaches. What is under way fails here with ``GatewayLost``; elsewhere it goes on, so
        that the gateway may still read or write arrays from ``empty`` that take part. They stay
        valid."""
        self._state.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def empty(self, shape: arrays.Shape, dtype: Any) -> Any:
        """An array in the arena: contributed or reduced into without a copy.

        A torch dtype gives a tensor, one of the names ``f32 f64 f16 bf16 i32 i64 u8`` a
        memoryview, and what NumPy takes for a dtype an ndarray. Its bytes are those of an
        earlier use. Its room is free again when it and all its views are gone. What is made after
        ``GatewayLost`` must not be written until ``recover`` has returned: a gateway that still
        runs may be sending from there. Raises ``ArenaFull``, ``UnsupportedArray``.
        """
        self._check_caller()
        block = self._reserve(arrays.size_of(shape, dtype))
        return arrays.over(block, shape, dtype)

    def all_reduce(self, array: Any, op: str = "avg", **options: Any) -> Any:
        """``all_reduce_async`` and ``wait``: the result. Where ``array`` or ``out`` is from
        ``empty``, also ``wait_free``: both may be written again."""
        return self._at_once(self.all_reduce_async, array, op, **options)

    def all_reduce_async(
        self,
        array: Any,
        op: str = "avg",
        *,
        weight: float = 1.0,
        out: Any = None,
        dtype: Optional[str] = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Operation:
        """Starts combining the arrays of all ranks, element by element.

        ``op`` is ``avg``, ``sum``, ``min``, ``max`` or ``prod``; ``weight`` counts in an average.
        The result goes into ``out``, which may be ``array`` itself, or into a new array of the
        same kind. ``dtype="bf16"`` says that an array of 16-bit integers holds bf16. ``layout``
        is a hash of whatever else the ranks must agree on. ``timeout`` in seconds is how long
        to wait for the other ranks to post. ``array`` may be written again when this returns,
        unless it is from ``empty``.

        Raises ``UnsupportedArray``, ``ConfigError``, ``ArenaFull``, ``GatewayLost``,
        ``EpochEnded``, ``Closed``; what else goes wrong is raised by ``Operation.wait``.
        """
        given = None if dtype is None else Dtype.named(dtype)
        what = terms(Kind.ALL_REDUCE, 0, Op.named(op), weight, layout, timeout)
        return self._start(what, array, out, given)

    def reduce(self, array: Any, root: int = 0, op: str = "avg", **options: Any) -> Any:
        """``reduce_async``, waited for as by ``all_reduce``: the result on ``root``, ``None`` on
        other ranks."""
        return self._at_once(self.reduce_async, array, root, op, **options)

    def reduce_async(
        self,
        array: Any,
        root: int = 0,
        op: str = "avg",
        *,
        weight: float = 1.0,
        out: Any = None,
        dtype: Optional[str] = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Operation:
        """As ``all_reduce_async``, but only ``root`` has a result: other ranks' ``wait`` returns
        ``None``, once what they gave is on its way for good, and leaves their ``out`` alone."""
        given = None if dtype is None else Dtype.named(dtype)
        what = terms(Kind.REDUCE, root, Op.named(op), weight, layout, timeout)
        return self._start(what, array, out, given)

    def broadcast(self, array: Any, root: int = 0, **options: Any) -> Any:
        """``broadcast_async``, waited for as by ``all_reduce``: ``root``'s array, bit for bit, on
        every rank."""
        return self._at_once(self.broadcast_async, array, root, **options)

    def broadcast_async(
        self,
        array: Any,
        root: int = 0,
        *,
        out: Any = None,
        dtype: Optional[str] = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Operation:
        """Starts giving every rank what ``root``'s array holds. Other ranks' arrays say the
        kind, dtype and shape of it; what they hold is not read. The rest is as in
        ``all_reduce_async``; ``root`` may be done before others have begun."""
        given = None if dtype is None else Dtype.named(dtype)
        what = terms(Kind.BROADCAST, root, Op.SUM, 1.0, layout, timeout)
        return self._start(what, array, out, given)

    def barrier(self, timeout: float = DEFAULT_TIMEOUT_S, *, layout: int = 0) -> None:
        """``barrier_async`` and ``wait``: returns when every rank has called it."""
        self._at_once(self.barrier_async, timeout, layout=layout)

    def barrier_async(self, timeout: float = DEFAULT_TIMEOUT_S, *, layout: int = 0) -> Operation:
        """Starts waiting for every rank to do so too. Takes no memory of the arena. Ranks whose
        ``layout`` differs are told so by ``RanksDisagree``."""
        self._check_caller()
        what = terms(Kind.BARRIER, 0, Op.SUM, 1.0, layout, timeout)
        nothing = arrays.adapt(b"")
        with self._posting:
            operation = Operation(None, self)
            slots = (_NOWHERE, _NOWHERE)
            self._await_room(slots)
            self._post(Entry(operation, slots, ()), what, nothing)
        return operation

    def commit(self, step: int, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """``commit_async`` and ``wait``: returns when every region has the step."""
        self.commit_async(step, timeout=timeout).wait()

    def commit_async(self, step: int, *, timeout: float = DEFAULT_TIMEOUT_S) -> Commit:
        """Asks whether all that this rank posted since its last commit, on behalf of the
        caller's ``step``, is complete on every rank of every region: then no failure takes a
        region back behind the step. All ranks commit the same steps.

        Raises what ``all_reduce_async`` raises; what else goes wrong is raised by
        ``Commit.wait``.
        """
        self._check_caller()
        step, timeout_ns = whole("step", step, 1 << 64), nanoseconds(timeout)
        commit = Commit(step, self)

        def register() -> Tuple[Link, Request]:
            link, epoch = self._state.register_commit(commit)
            return link, CommitRequest(epoch, step, timeout_ns)

        with self._posting:
            self._send(register)
        return commit

    @property
    def committed_step(self) -> Optional[int]:
        """The last step known to be complete in every region; after ``recover`` what the
        gateways agree on, whatever ``Commit.wait`` raised. ``None`` when no step is known to
        be, as when the gateways were started anew."""
        return self._state.committed

    def batch_share(self, global_batch: int, limits: Optional[Sequence[int]] = None) -> int:
        """This rank's samples of a global batch; see ``batch_shares``."""
        return self.batch_shares(global_batch, limits)[self.rank]

    def batch_shares(self, global_batch: int, limits: Optional[Sequence[int]] = None) -> List[int]:
        """Every rank's samples of a global batch, by rank, in proportion to the fabric's
        ``speeds``; all ranks compute the same, and nothing is exchanged. ``limits`` are samples
        for each rank, such as what its memory holds. Raises ``ConfigError`` when the ranks
        cannot hold the batch."""
        return batch_shares(global_batch, self._place.speeds, limits)

    def batch_split(self, global_batch: int, limits: Optional[Sequence[int]] = None) -> BatchSplit:
        """As ``batch_shares`` at first, and then anew as speeds drift; all ranks make one alike.
        Raises what ``batch_shares`` raises."""
        return BatchSplit(self, global_batch, self._place.speeds, limits)

    def _at_once(self, begin: Callable[..., Operation], *given: Any, **options: Any) -> Any:
        """Begins a collective and waits for it, reading in this thread: nobody else is woken.
        Nobody gets the operation, so that what the caller may write next is waited for as well."""
        with self._posting:
            self._is_awaited = True
            try:
                operation = begin(*given, **options)
            finally:
                self._is_awaited = False
        result = operation.wait()
        if operation.lies_in_arena:
            operation.wait_free()
        return result

    def _start(self, what: Terms, array: Any, out: Any, given: Optional[Dtype]) -> Operation:
        self._check_caller()
        source = arrays.adapt(array, given)
        target = None if out is None else arrays.adapt(out, given)
        _check(source, target, what, self.world_size)
        at_root = self.rank == what.root
        # Every post names two slots; what is in one that nobody wants does not matter.
        gives = at_root or what.kind != Kind.BROADCAST
        gets = at_root or what.kind != Kind.REDUCE
        with self._posting:
            self._state.check_usable()
            contribution, held = self._contribution(source, gives)
            result, block = self._result(source, target if gets else None, contribution)
            slots = ((contribution, source.nbytes), (result, source.nbytes))
            self._await_room(slots)
            lies = None if isinstance(held[0], Block) else source
            wanted = None if target is None else (out, target)
            delivery = Delivery(source, wanted, block, lies) if gets else None
            operation = Operation(delivery, self)
            operation.lies_in_arena = lies is not None or block is None
            # As an entry's `held`, also what `out` is a view of.
            held = (*held, block, target and target.array)
            self._post(Entry(operation, slots, held), what, source)
        return operation

    def _contribution(self, source: arrays.Adapter, gives: bool) -> Tuple[int, Tuple[Any, ...]]:
        place = self._place_of(source)
        if place is not None:
            return place, (source.array,)
        block = self._reserve(source.nbytes)
        if gives:
            # Where the connection ended meanwhile, this may be what a gateway that still runs
            # sends from. No other begins before this thread has posted.
            self._state.check_usable()
            source.store(block)
        return block.offset, (block,)

    def _result(
        self, source: arrays.Adapter, target: Optional[arrays.Adapter], contribution: int
    ) -> Tuple[int, Optional[Block]]:
        place = None if target is None else self._place_of(target)
        if place is not None and not overlap((place, source.nbytes), (contribution, source.nbytes)):
            return place, None
        block = self._reserve(source.nbytes)
        return block.offset, block

    def _place_of(self, adapter: arrays.Adapter) -> Optional[int]:
        address = adapter.address() if adapter.nbytes else None
        return None if address is None else self._arena.place_of(address, adapter.nbytes)

    def _reserve(self, nbytes: int) -> Block:
        """A slot; waits for those of collectives under way."""
        block: List[Block] = []

        def found() -> bool:
            taken = self._arena.take(nbytes)
            if taken is not None:
                block.append(taken)
            return taken is not None or self._state.is_idle

        self._state.wait_until(found, None)
        if not block:
            # A failure's traceback and its frames hold each other, and arrays with them.
            gc.collect()
            self._state.wait_until(found, None)
        if not block:
            used, total = self._arena.used_bytes, self._arena.nbytes
            raise errors.ArenaFull(
                f"no room for {nbytes} bytes in the arena: {used} of {total} are in use by arrays "
                "and results not fetched; connect with a larger `arena`"
            )
        return block[0]

    def _await_room(self, slots: Tuple[Slot, Slot]) -> None:
        """Until the gateway takes another post with these slots."""
        entries = self._state.entries
        if not entries:
            return

        def room() -> bool:
            taken = (entry.slots for entry in entries.values())
            return len(entries) < POSTS_MAX and not any(_clash(theirs, slots) for theirs in taken)

        self._state.wait_until(room, None)

    def _post(self, entry: Entry, what: Terms, source: arrays.Adapter) -> None:
        def register() -> Tuple[Link, Request]:
            link, epoch, sequence = self._state.register(entry)
            return link, Post(
                epoch=epoch,
                sequence=sequence,
                op=what.op,
                dtype=source.dtype,
                elements=source.elements,
                layout_hash=what.layout,
                operation=what.kind,
                root=what.root,
                weight=what.weight,
                timeout_ns=what.timeout_ns,
                contribution_offset=entry.slots[0][0],
                result_offset=entry.slots[1][0],
            )

        self._send(register)

    def _send(self, register: Callable[[], Tuple[Link, Request]]) -> None:
        state = self._state
        link = state.link
        try:
            link, request = register()
            link.send(request)
            if not self._is_awaited:
                link.attend()
        except errors.LandbridgeError:
            raise  # nothing was registered; some of these are `OSError`s as well
        except OSError as error:
            # What was registered says so.
            state.end(link, f"connection to the gateway ended: {error}")
        except BaseException:
            # Half a message may be out, or a number without its post: no way to go on.
            state.end(link, "posting was interrupted")
            raise

    def _check_caller(self) -> None:
        check_caller()
        check_process(self._owner)
        self._state.check_handler()


def _check(
    source: arrays.Adapter, target: Optional[arrays.Adapter], what: Terms, world_size: int
) -> None:
    if what.root >= world_size:
        text = f"root {what.root}: the fabric has ranks 0 to {world_size - 1}"
        raise errors.ConfigError(text)
    if target is not None:
        target.check_writable()
        if (target.dtype, target.shape) != (source.dtype, source.shape):
            want = f"{source.dtype.label} of shape {tuple(source.shape)}"
            got = f"{target.dtype.label} of shape {tuple(target.shape)}"
            raise errors.UnsupportedArray(f"`out` is {got}, the array {want}")
    if what.op == Op.AVG and not source.dtype.is_float:
        text = f"there is no average of {source.dtype.label}; use sum, or floats"
        raise errors.UnsupportedArray(text)


def _clash(theirs: Tuple[Slot, Slot], slots: Tuple[Slot, Slot]) -> bool:
    """Whether one collective writes what the other reads or writes. Two may read the same."""
    (given, out), (contribution, result) = theirs, slots
    return overlap(out, contribution) or overlap(out, result) or overlap(given, result)


#: Between tries to meet: a gateway or a rank takes longer to come back.
_MEET_AGAIN_S = 0.1
#: Within which a gateway that runs says whom a timeout was too short for; docs/failures.md.
_ANSWER_S = 2.0
#: A slot of no bytes.
_NOWHERE = (0, 0)

_groups: weakref.WeakSet[Group] = weakref.WeakSet()


def chosen(group: Optional[Group]) -> Group:
    """``group``, or else the only one that this process has connected and not closed. Raises
    ``ConfigError`` where there is none, or several."""
    if group is not None:
        return group
    me = os.getpid()
    connected = [g for g in list(_groups) if g._owner == me and g._state.is_connected]
    if len(connected) != 1:
        count = len(connected) or "no"
        text = f"{count} groups are connected in this process, not one"
        raise errors.ConfigError(f"{text}: give the `group` that is meant, from `connect`")
    return connected[0]


def _after_fork() -> None:
    for group in list(_groups):
        group._posting = threading.RLock()
        group._arena.after_fork()
        group._state.after_fork()


os.register_at_fork(after_in_child=_after_fork)
