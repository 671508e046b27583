"""Posting collectives: slots in the arena, numbers, and the order of posts.

``Group`` calls it in the trainer's threads. One lock keeps posts in order. Posts wait here, without
that lock, while the arena has no room or the gateway has enough collectives under way.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Optional, TypeVar, Union

from .. import errors
from .._arguments import CollectiveOptions, PassedArguments, check_collective_arguments
from .._memory.arena import Arena, ArenaSlot, arena_ranges_overlap
from .._memory.arrays import ArrayAdapter, adapt_array, check_reducible_array
from .._operations.operation import Operation, OperationDelivery
from .._operations.posted_collective import PostedCollective, SlotRange
from .._operations.waiting import (
    Latch,
    check_not_waiting_after_fork,
    check_not_waiting_at_end,
    check_not_waiting_in_callback,
    thread_state,
)
from .._protocol.collective_types import CollectiveKind, Dtype, Op
from .._protocol.connection import Connection
from .._protocol.wire import SHAPE_MAX_DIMENSIONS, LeaveGroup, Post, Request
from .._rounding import round_bytes
from .._signal_handlers import raise_if_from_signal_handler
from .group_state import GroupState

#: 256 collectives of one rank may be under way at a time (docs/protocol.md section 5). A further
#: post waits until one of them has ended.
POSTS_MAX = 256

#: 1 ms: the least timeout of a post that had to wait until just before its time was over. Then the
#: gateway tells all ranks.
_TIME_LEFT_MIN_NS = 1_000_000
#: Offset and length in bytes of the arena slots of a collective without data, such as a barrier.
_EMPTY_SLOT = (0, 0)

#: The type of memory in the arena: one slot, or that of a post.
_M = TypeVar("_M")

#: The memory that a post needs: its offset in the arena, or ``None`` for a slot to be allocated,
#: and its length in bytes.
WantedSlot = tuple[Optional[int], int]


class WantedPost(NamedTuple):
    """The needs of a post before it can be sent."""

    contribution: WantedSlot
    result: WantedSlot
    #: When its time is over, in seconds of ``time.monotonic``.
    deadline: float


class PlacedPost(NamedTuple):
    """A post that has its memory."""

    #: The slot of the contribution, unless the caller's array lies in the arena.
    contribution: ArenaSlot | None
    #: The slot of the result, unless the gateway writes into the caller's array.
    result: ArenaSlot | None
    #: Offset and length of both.
    slots: tuple[SlotRange, SlotRange]
    #: When its time is over, in seconds of ``time.monotonic``.
    deadline: float

    def timeout_ns(self) -> int:
        """Returns the time that is left, in nanoseconds; at least 1 ms."""
        return max(round((self.deadline - time.monotonic()) * 1e9), _TIME_LEFT_MIN_NS)


class PostObstacle(NamedTuple):
    """The reason why a post, or an array in the arena, must wait."""

    #: The length of a slot for which the arena has no room; ``None`` if posts under way are too
    #: many, or one of them uses the memory.
    lacking_bytes: int | None

    def timeout_error(self) -> errors.PostTimedOut:
        """Returns the error of a post that has waited until its deadline."""
        why = f"{POSTS_MAX} collectives, or one with the same memory, are under way"
        remedy = "wait for those under way"
        if self.lacking_bytes is not None:
            size = round_bytes(self.lacking_bytes)
            why = f"collectives under way leave no room for {size} in the arena"
            remedy = f"{remedy}, or connect with a larger `arena`"
        return errors.PostTimedOut(
            f"{why} until the timeout; nothing was posted, contribution and result are as they "
            f"were, and no other rank knows of the call; {remedy}, and call again"
        )


#: Memory in the arena, or the reason why there is none yet.
_Placed = Union[_M, PostObstacle]


class AgreedArray(NamedTuple):
    """The part of a post that describes an array, on which ranks must agree."""

    dtype: Dtype
    elements: int
    shape: tuple[int, ...]
    layout: int
    #: Lists of the elements of blocks; see ``Post``.
    counts: tuple[tuple[int, ...], ...]
    #: All of this as the caller passed it.
    passed: PassedArguments


class CollectivePoster:
    """The base of ``Group``: a rank that posts collectives from its arena."""

    # What lets this rank take part in steps while its state is on its way, or `None`. The averages
    # then leave its arrays out.
    _follower: Any = None

    def __init__(
        self, rank: int, world_size: int, arena: Arena, state: GroupState, posting: threading.RLock
    ) -> None:
        """Prepares posts.

        Args:
            rank: The number of this rank in the group.
            world_size: The number of ranks of the group.
            arena: The memory of all groups of this rank.
            state: The state of the group.
            posting: The lock that keeps the posts of all groups of this rank in order.
        """
        #: The number of this rank.
        self.rank = rank
        self._world_size = world_size
        self._arena = arena
        self._owner = os.getpid()
        self._posting = posting
        self._state = state
        # Each raises an error where this rank's last step is not the other ranks' step.
        self._step_checks: list[weakref.WeakMethod[Callable[[], None]]] = []

    def _add_step_check(self, check: Callable[[], None]) -> None:
        """Adds a method that ``commit`` and ``Group.finish`` call first, while its object lives."""
        alive = [known for known in self._step_checks if known() is not None]
        self._step_checks = [*alive, weakref.WeakMethod(check)]

    def _check_steps(self) -> None:
        """Raises the ``ConfigError`` of a step whose averages were never awaited."""
        for reference in self._step_checks:
            check = reference()
            if check is not None:
                check()

    @property
    def world_size(self) -> int:
        """The number of ranks of the group."""
        return self._world_size

    def _check_arguments(self, kind: CollectiveKind, **given: Any) -> CollectiveOptions:
        """Returns the arguments of a collective as ``check_collective_arguments``. Its root is a
        rank of this group. Raises as ``_check_may_wait`` too, before any array is looked at."""
        self._check_may_wait()
        options = check_collective_arguments(kind, ranks=self._world_size, **given)
        is_left_out = self._follower is not None and options.op == Op.AVG
        return options._replace(weight=0.0) if is_left_out else options

    def _start_and_wait(self, begin: Callable[[], Operation]) -> Any:
        """Starts a collective by calling ``begin``, and waits in this thread until its result is
        ready and its memory is free. Returns the result.

        The caller gets no operation to wait for free memory, so that is waited for as well.
        """
        # In a forked process a thread that does not exist may hold the lock of a subgroup.
        check_not_waiting_after_fork(self._owner)
        before, thread_state.is_awaited = thread_state.is_awaited, True
        try:
            operation = begin()
        finally:
            thread_state.is_awaited = before
        result = operation.wait()
        if operation.lies_in_arena:
            operation.wait_free()
        return result

    def _start_collective(
        self, options: CollectiveOptions, array: Any, out: Any, dtype: str | None
    ) -> Operation:
        """Posts a collective with data, and returns the operation to wait for.

        Args:
            options: Its arguments other than arrays.
            array: The contribution.
            out: The array for the result, or ``None`` for a new one.
            dtype: The element type of arrays whose library has no name for it.
        """
        named = None if dtype is None else Dtype.from_name(dtype)
        source = adapt_array(array, named)
        target = None if out is None else adapt_array(out, named)
        if target is not None:
            check_posted_result_array(target, source)
        check_posted_reduction(source, options)
        is_root = self.rank == options.root
        # A post always names two slots. The gateway ignores one that the collective does not use.
        contributes = is_root or options.kind != CollectiveKind.BROADCAST
        gets_result = is_root or options.kind != CollectiveKind.REDUCE
        wanted = None if target is None else (out, target)
        given = self._wanted_contribution(source)
        got = self._wanted_result(source, target if gets_result else None, given)
        needs = WantedPost(given, got, post_deadline(options))

        def post(placed: PlacedPost) -> Operation:
            """Posts the collective with its memory."""
            slot = placed.result
            held: tuple[Any, ...] = (source.array,)
            if placed.contribution is not None:
                held = (placed.contribution,)
                if contributes:
                    source.copy_to_slot(placed.contribution)
            in_arena = source if placed.contribution is None else None
            delivery = OperationDelivery(source, wanted, slot, in_arena) if gets_result else None
            operation = Operation(delivery, self)
            operation.lies_in_arena = in_arena is not None or slot is None
            # The entry also holds the array that `out` is a view of.
            held = (*held, slot, target and target.array)
            agreed = posted_agreed_array(source, options)
            self._post_collective(operation, placed, held, agreed)
            return operation

        return self._post_with_room(needs, post)

    def _start_barrier(self, options: CollectiveOptions) -> Operation:
        """Posts a collective without data, and returns the operation to wait for."""
        agreed = posted_agreed_array(adapt_array(b""), options)
        needs = WantedPost(_EMPTY_SLOT, _EMPTY_SLOT, post_deadline(options))

        def post(placed: PlacedPost) -> Operation:
            """Posts the collective."""
            operation = Operation(None, self)
            self._post_collective(operation, placed, (), agreed)
            return operation

        return self._post_with_room(needs, post)

    def _wanted_contribution(self, source: ArrayAdapter) -> WantedSlot:
        """Returns the memory for a contribution: where its array lies in the arena, or a slot."""
        return self._arena_offset_of(source), source.nbytes

    def _wanted_result(
        self, like: ArrayAdapter, target: ArrayAdapter | None, given: WantedSlot
    ) -> WantedSlot:
        """Returns the memory for a result: the caller's array in the arena, or a slot.

        Args:
            like: An array of the result's size.
            target: The caller's array for the result, if there is one.
            given: The memory of the contribution.
        """
        offset = None if target is None else self._arena_offset_of(target)
        if offset is None or given[0] is None:
            return offset, like.nbytes
        overlaps = arena_ranges_overlap((offset, like.nbytes), (given[0], given[1]))
        return None if overlaps else offset, like.nbytes

    def _arena_offset_of(self, adapter: ArrayAdapter) -> int | None:
        """Returns the offset of an array that lies in the arena and can serve as a slot, or
        ``None``."""
        address = adapter.address() if adapter.nbytes else None
        return None if address is None else self._arena.offset_of(address, adapter.nbytes)

    def _reserve_slot(self, nbytes: int) -> ArenaSlot:
        """Returns a slot of ``nbytes`` bytes. Waits for slots of collectives under way when the
        arena has no room.

        Raises:
            ArenaFull: The arena has no room, and no collective will free any.
        """
        state = self._state

        def place() -> _Placed[ArenaSlot]:
            """Allocates the slot if there is room."""
            slot = self._arena.allocate_slot(nbytes)
            return PostObstacle(nbytes) if slot is None else slot

        while True:
            placed = self._try_to_place(place)
            if not isinstance(placed, PostObstacle):
                return placed
            state.wait_until(lambda: state.is_idle or _has_place(place()), None)

    def _try_to_place(self, place: Callable[[], _Placed[_M]]) -> _Placed[_M]:
        """Returns the memory that ``place`` finds, or what it must wait for. The state's lock is
        held while ``place`` runs.

        Raises:
            ArenaFull: The arena has no room, and no collective will free any.
        """

        def look() -> tuple[_Placed[_M], bool]:
            """Returns what ``place`` finds, and whether nothing is under way."""
            return place(), self._state.is_idle

        placed, is_idle = self._state.look(look)
        if isinstance(placed, PostObstacle) and is_idle:
            # A failure's traceback and its frames form a cycle that may hold arrays.
            gc.collect()
            placed, is_idle = self._state.look(look)
            if isinstance(placed, PostObstacle) and is_idle and placed.lacking_bytes is not None:
                raise self._arena_full_error(placed.lacking_bytes)
        return placed

    def _arena_full_error(self, nbytes: int) -> errors.ArenaFull:
        """Returns the error of a slot of ``nbytes`` bytes for which the arena has no room."""
        used, total = self._arena.used_bytes, self._arena.nbytes
        return errors.ArenaFull(
            f"no room for {round_bytes(nbytes)} in the arena: {round_bytes(used)} of "
            f"{round_bytes(total)} are in use by arrays and results not fetched; connect with "
            "a larger `arena`"
        )

    def _post_with_room(
        self, wanted: WantedPost, post: Callable[[PlacedPost], Operation]
    ) -> Operation:
        """Calls ``post``, with the lock of posts held, once the arena has room and the gateway
        takes another post. Waits without that lock, so that other threads go on.

        Args:
            wanted: What the post needs, and until when it may wait.
            post: Posts the collective, and returns its operation.

        Raises:
            PostTimedOut: There was no room in time, and nothing was posted.
            ArenaFull: The arena has no room, and no collective will free any.
        """
        state = self._state

        def may_place() -> bool:
            """Returns whether there is room, or waiting for room is vain."""
            is_vain = state.is_idle or not state.is_usable_now
            return is_vain or _has_place(self._place_post(wanted))

        while True:
            with self._posting:
                state.check_usable()
                placed = self._try_to_place(lambda: self._place_post(wanted))
                if not isinstance(placed, PostObstacle):
                    # If the connection ended meanwhile, a gateway that still runs may be sending
                    # from this memory. No new connection begins before this thread has posted.
                    state.check_usable()
                    return post(placed)
            if not state.wait_until(may_place, wanted.deadline):
                raise placed.timeout_error()

    def _place_post(self, wanted: WantedPost) -> _Placed[PlacedPost]:
        """Returns the memory of a post, or what it must wait for: ``POSTS_MAX`` are under way, one
        uses the memory, or the arena is full. The caller holds the lock of the state."""
        taken = [entry.slots for entry in self._state.posted_collectives()]
        both = (wanted.contribution, wanted.result)
        known = tuple((offset or 0, 0 if offset is None else size) for offset, size in both)
        if len(taken) >= POSTS_MAX or any(
            _posted_slots_conflict(other, (known[0], known[1])) for other in taken
        ):
            return PostObstacle(None)
        slots: list[ArenaSlot | None] = []
        for offset, nbytes in both:
            slot = None if offset is not None else self._arena.allocate_slot(nbytes)
            if offset is None and slot is None:
                return PostObstacle(nbytes)
            slots.append(slot)
        ranges = tuple(
            (slot.offset if slot is not None else offset or 0, nbytes)
            for slot, (offset, nbytes) in zip(slots, both)
        )
        return PlacedPost(slots[0], slots[1], (ranges[0], ranges[1]), wanted.deadline)

    def _post_collective(
        self,
        operation: Operation,
        placed: PlacedPost,
        held: tuple[Any, ...],
        agreed: AgreedArray,
        series: int | None = None,
    ) -> None:
        """Numbers a collective, or a send of a series, and sends its post to the gateway, with the
        time that is left. ``held`` is what keeps the memory of its slots."""
        options = agreed.passed.options
        entry = PostedCollective(operation, placed.slots, held, agreed.passed)

        def register_post() -> tuple[Connection, Request]:
            """Registers the collective, and returns the connection and the post to send."""
            connection, epoch, sequence = self._state.register_collective(entry, series)
            return connection, Post(
                epoch=epoch,
                sequence=sequence,
                op=options.op,
                dtype=agreed.dtype,
                elements=agreed.elements,
                layout_hash=agreed.layout,
                operation=options.kind,
                root=options.root,
                shape=agreed.shape,
                weight=options.weight,
                timeout_ns=placed.timeout_ns(),
                contribution_offset=entry.slots[0][0],
                result_offset=entry.slots[1][0],
                counts=agreed.counts,
            )

        self._register_and_send(register_post)

    def _register_and_send(self, register: Callable[[], tuple[Connection, Request]]) -> None:
        """Calls ``register`` for a connection and a request, and sends the request. Ends the
        connection if sending fails or is interrupted."""
        state = self._state
        connection = state.connection
        try:
            connection, request = register()
            for number in state.take_departures():
                connection.send(LeaveGroup(number))
            connection.send(request, state.place)
            if not thread_state.is_awaited:
                connection.wake_reader()
        except errors.LandbridgeError:
            raise  # Nothing was registered. Some of these errors are an `OSError` as well.
        except OSError as error:
            # The operation or commit that was registered fails with this reason.
            state.lose_connection(connection, f"connection to the gateway ended: {error}")
            raise_if_from_signal_handler(error)
        except BaseException:
            # Half a message may be sent, or a number registered without its post.
            state.end_connection(connection, "a post was interrupted")
            raise

    def _read_until(self, latch: Latch, timeout_s: float | None) -> None:
        """Reads messages until ``latch`` opens; see ``_operation.OperationReader``."""
        self._state.read_until(latch, timeout_s)

    def _check_may_wait(self) -> None:
        """Raises ``InCallback``, ``ForkedProcess`` or ``Closed`` where the caller must not post or
        wait."""
        check_not_waiting_at_end()
        check_not_waiting_in_callback()
        check_not_waiting_after_fork(self._owner)
        self._state.check_not_in_signal_handler()

    def _reset_after_fork(self) -> None:
        """Makes the group unusable, but safe to drop, in a forked process."""
        self._posting = threading.RLock()
        self._arena.reset_lock_after_fork()
        self._state.reset_after_fork()


def post_deadline(options: CollectiveOptions) -> float:
    """Returns when the time of a post that begins now is over, in seconds of
    ``time.monotonic``."""
    return time.monotonic() + options.timeout_ns / 1e9


def _has_place(placed: _Placed[Any]) -> bool:
    """Returns whether there is memory in the arena, rather than a reason to wait."""
    return not isinstance(placed, PostObstacle)


def check_posted_result_array(target: ArrayAdapter, result: ArrayAdapter) -> None:
    """Raises ``UnsupportedArray`` unless an array can take a result."""
    target.check_writable()
    got, want = target.describe(), result.describe()
    if got != want:
        raise errors.UnsupportedArray(f"`out` is {got}, the result {want}; they must be alike")


def check_posted_reduction(source: ArrayAdapter, options: CollectiveOptions) -> None:
    """Raises ``UnsupportedArray`` when a reduction is not defined on the elements of an array."""
    if not options.kind.is_reduced:
        return
    check_reducible_array(source.element)
    if options.op == Op.AVG and not source.dtype.is_float:
        text = f"there is no average of {source.dtype.label}; use op='sum', or floats"
        raise errors.UnsupportedArray(text)
    if not options.op.accepts(source.dtype):
        text = f"{options.op.name.lower()} is not defined on {source.dtype.label}"
        raise errors.UnsupportedArray(f"{text}; use integers or bool")


def posted_agreed_array(source: ArrayAdapter, options: CollectiveOptions) -> AgreedArray:
    """Returns what ranks must agree on about an array. The shape is the number of elements where
    arrays count as flat. So it is for too many dimensions, whose sizes then become part of the
    layout hash."""
    shape, layout = source.agreed_shape, hash_posted_element(options.layout, source)
    element = source.element
    passed = PassedArguments(options, element.label, element.opaque_bytes, source.shape)
    elements = math.prod(shape)
    if options.flat:
        shape = (elements,)
    elif len(shape) > SHAPE_MAX_DIMENSIONS:
        layout, shape = hash_posted_layout(layout, shape), (elements,)
    return AgreedArray(source.dtype, elements, shape, layout, (), passed)


def hash_posted_element(layout: int, source: ArrayAdapter) -> int:
    """Returns a layout hash that stands for another one and for the type of elements that are only
    moved: they all travel as bytes. The hash stays as it is for types that the gateway knows."""
    element = source.element
    return hash_posted_layout(layout, element.label) if element.opaque_bytes else layout


def hash_posted_layout(layout: int, fact: tuple[int, ...] | str) -> int:
    """Returns the layout hash that ranks compare for a post. It combines the caller's layout hash
    with ``fact``: a shape, or the label of an element type."""
    digest = hashlib.blake2b(f"{layout} {fact}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _posted_slots_conflict(
    one: tuple[SlotRange, SlotRange], other: tuple[SlotRange, SlotRange]
) -> bool:
    """Returns whether one collective writes memory that the other reads or writes. Each has a slot
    for its contribution and one for its result; both may read."""
    (given, result), (contribution, out) = one, other
    return (
        arena_ranges_overlap(result, contribution)
        or arena_ranges_overlap(result, out)
        or arena_ranges_overlap(given, out)
    )
