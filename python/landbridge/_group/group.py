"""The ranks of a job, seen from one of them: attaching, recovering, and the store."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from .. import errors
from .._argument_errors import argument_error
from .._arguments import check_integer_argument, check_timeout_argument
from .._batch_split import BatchSplit, batch_split_shares
from .._config.region_file import RegionFileGateway
from .._exchange_integers import exchange_integers
from .._memory.arena import Arena
from .._memory.host_limits import named_host_limits
from .._operations.failure_dumps import DUMPS_VARIABLE, FailureDumps
from .._operations.flight_recorder import write_flight_dump
from .._operations.operation import DEFAULT_TIMEOUT_S
from .._operations.step_confirmations import (
    ExpectedConfirmation,
    StepConfirmation,
    find_latest_rank,
    list_overtaken_ranks,
    list_ranks_ahead,
)
from .._operations.store_operation import StoreOperation
from .._operations.torch_trace import encode_torch_trace
from .._protocol.connection import Connection
from .._protocol.store_encoding import store_request_may_wait
from .._protocol.wire import Request, StoreRequest
from .attachment import GatewayAttachment
from .group_state import STORE_CALLS_MAX, STORE_WAITS_MAX
from .job_state import JobState
from .store import STORE_ANSWER_DELAY_MAX_S, Store
from .subgroup import ParentGroup

_log = logging.getLogger("landbridge")
#: The type of the items of a list that has one item for each rank.
_T = TypeVar("_T")

#: 60 s: how long ``Group.finish`` waits by default, after a failure, for others to recover with;
#: then it takes them to have ended. The time is chosen: a gateway is started again within seconds.
_FINISH_TIMEOUT_S = 60.0


class Group(ParentGroup):
    """The ranks of a job, returned by ``connect``.

    All ranks post the same collectives in the same order. Several threads may use a group; the
    caller then keeps their posts in order. At most 256 collectives of a rank are under way. A post
    waits for room there and in the arena, which counts as part of its timeout, and then raises
    ``PostTimedOut``; other threads go on.

    A collective that fails alone, for example with ``RanksTimedOut``, leaves the group usable.
    After the end of an epoch every post raises ``EpochEnded`` until ``recover`` is called, or
    ``RanksDisagree`` where ranks posted different collectives. Arrays and the arena survive a
    failure.

    Methods that post or wait raise ``InCallback`` in a callback of a collective, and
    ``ForkedProcess`` in a forked process. A signal handler must neither post nor wait: it raises
    ``InCallback`` where it interrupts a wait, and may end the connection where it interrupts a
    post.

    Attributes:
        rank: The number of this rank. Where the job goes on without some regions, its ranks are numbered
            from 0 on; ``rank`` and ``world_size`` change in ``recover``.
    """

    _state: JobState

    def __init__(
        self, location: RegionFileGateway, rank: int, arena: Arena, dumps: Path | None = None
    ) -> None:
        """Makes the group of all ranks of a job, which ``connect`` then attaches. Failures are
        dumped into the folder ``dumps``, by default that in the environment."""
        super().__init__(rank, len(location.speeds), arena, JobState(), threading.RLock())
        self._attached_rank = rank
        #: The ranks that go on, by their numbers in the fabric, or ``None`` while all do.
        self._world: tuple[int, ...] | None = None
        # Ends the connection of a group that nobody closes.
        weakref.finalize(self, JobState.shut_down_connection, self._state).atexit = False
        recorder = self._state.recorder
        recorder.job, recorder.rank = location.job, rank
        folder = os.environ.get(DUMPS_VARIABLE) if dumps is None else os.fspath(dumps)
        if folder:
            self._state.dumps = FailureDumps(folder, recorder)
        self._location = location
        self._attachment = GatewayAttachment(location, rank, arena, self._state)
        _groups.add(self)

    @property
    def fabric(self) -> str:
        """The name of the fabric."""
        return self._attachment.fabric

    def recover(
        self, failure: errors.LandbridgeError | None = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Returns when every rank is ready to begin a step again, after a failed one.

        All ranks call it, since all of them see a failure; a rank that was started again calls
        ``connect`` instead. Then ``agree`` or ``landbridge.torch.resume`` tells which step to
        begin. The call attaches again if the connection was lost, and ends the epoch if it has
        not ended. It tries until its timeout whatever gateways do meanwhile, as ``connect``.

        Args:
            failure: The exception of the failed step. Leave it out when this rank gave up for
                another reason, such as Ctrl-C.
            timeout: How long to wait for the gateway and the other ranks, in seconds.

        Raises:
            LandbridgeError: ``failure`` itself, if the caller is at fault, so that another
                attempt would fail too.
            AttachError, LimitReached, RanksTimedOut: As ``connect``.
            Closed: The group was closed.
        """
        self._check_may_wait()
        check_timeout_argument(timeout)
        hopeless = errors.POSTS_AT_FAULT
        reason = "the step was given up"
        if failure is not None and not isinstance(failure, BaseException):
            raise argument_error("failure", failure, "the exception of the failed step, or None")
        if failure is not None:
            if isinstance(failure, hopeless) or not isinstance(failure, errors.CollectiveFailed):
                raise failure
            reason = f"given up after: {failure}"
        deadline = time.monotonic() + timeout
        with self._posting, named_host_limits():
            if self._state.is_epoch_agreed:
                self._state.end_connection(self._state.connection, reason)
            self._meet_all_ranks(deadline)

    def agree(self, step: int, timeout: float = DEFAULT_TIMEOUT_S) -> int:
        """Checks that every rank has finished the same number of steps.

        All ranks call it before their first step and after each ``recover``. A failure may reach
        one rank before the end of a step and another rank after it. Without this check they would
        average gradients of different steps. ``landbridge.torch.resume`` also brings ranks that
        are behind up to date.

        Args:
            step: The number of steps that this rank has finished.
            timeout: How long to wait for the other ranks, in seconds.

        Returns:
            ``step``.

        Raises:
            StepsDiffer: Ranks have finished different numbers of steps, or others have done the
                last step of a rank again without it. Every rank raises it, once, unless a
                collective fails before the next call: the state may not have come then.
            LandbridgeError: As ``all_reduce``.
        """
        step = check_integer_argument("step", step, 1 << 63)
        state = self._state
        expected, state.expected = state.expected, None
        if expected is not None and expected.epoch == state.epoch:
            # The state has come since.
            state.confirmation = expected.confirmation
        # A commit may be answered while the others are awaited, so it is read once.
        told = [step, *state.confirmation]
        steps, epochs, confirmed = exchange_integers(self, told, timeout=timeout)
        confirmations = list(map(StepConfirmation, epochs, confirmed))
        overtaken = list_overtaken_ranks(confirmations)
        if len(set(steps)) > 1 or overtaken:
            ahead = list_ranks_ahead(steps, confirmations)
            furthest = find_latest_rank(ahead, confirmations)
            if self.rank not in ahead:
                # This rank is to take the state of the one that is named.
                state.expected = ExpectedConfirmation(state.epoch, confirmations[furthest])
            regions = self._of_world(self._location.regions) or ["region unknown"] * len(steps)
            raise errors.StepsDiffer(steps, regions, overtaken, furthest)
        return step

    def finish(self, timeout: float = _FINISH_TIMEOUT_S, *, layout: int = 0) -> bool:
        """Ends the training together with all ranks. Returns whether this rank may end.

        All ranks call it once ``agree`` or ``landbridge.torch.resume`` has returned the last step,
        so that all have finished. ``False`` says that all have recovered from a failure: call
        ``agree`` or ``resume`` again, and then ``finish``. A failure may reach one rank when others
        have ended: the call returns ``True`` where they are not back within the timeout.

        Args:
            timeout: How long to wait for ranks that may have ended, in seconds.
            layout: A hash that the ranks must agree on, such as ``module_digest`` of the weights.

        Raises:
            RanksDisagree: A rank has another ``layout``, or posted something else.
            ConfigError: Weights were changed without ``landbridge.torch.FlatGrads.wait``, or as
                ``all_reduce``.
            Closed: As ``all_reduce``.
        """
        check_timeout_argument(timeout)
        self._check_steps()
        try:
            self.barrier(layout=layout)
            return True
        except errors.POSTS_AT_FAULT:
            raise
        except errors.CollectiveFailed as failure:
            cause = failure
        try:
            self.recover(cause, timeout)
        except errors.POSTS_AT_FAULT:
            raise
        except (errors.AttachError, errors.CollectiveFailed) as alone:
            text = "rank %d has finished, and others are not back: %s, after: %s"
            _log.info(text, self.rank, alone, cause)
            return True
        return False

    def close(self) -> None:
        """Detaches this rank. Its collectives and commits under way fail with ``GatewayLost``.

        On other ranks those collectives continue, so the gateway may still read or write arrays
        from ``empty`` that take part. The arrays stay valid.
        """
        if sys.is_finalizing():
            # The thread that reads has stopped, perhaps with a lock that an orderly end needs.
            self._state.closed = True
            return self._state.shut_down_connection()
        self._state.close()

    @property
    def store(self) -> Store:
        """The store of the job: keys, counters and queues that all ranks share."""
        return Store(self)

    def _call_store(self, request: bytes, timeout_ns: int) -> Any:
        """Sends a request to the store, and returns the answer. Raises as
        ``StoreOperation.wait``."""
        self._check_may_wait()
        state, may_wait = self._state, store_request_may_wait(request)
        call = StoreOperation(self, may_wait)
        deadline = time.monotonic() + timeout_ns / 1e9
        left_ns = timeout_ns

        def register_call() -> tuple[Connection, Request]:
            """Registers the call, and returns the connection and the request to send."""
            connection, number = self._state.register_store_call(call)
            return connection, StoreRequest(number, left_ns, request)

        while True:
            # Without the lock of posts, so that other threads go on.
            if not state.wait_until(lambda: state.has_store_room(may_wait), deadline):
                text = (
                    f"at most {STORE_CALLS_MAX} requests of this rank to the store are under way, "
                    f"and at most {STORE_WAITS_MAX} that wait for keys; none ended in time, and "
                    "nothing was sent"
                )
                raise errors.StoreTimeout(text, is_unconfirmed=False)
            with self._posting:
                # Another thread may have taken the place meanwhile.
                if state.has_store_room(may_wait):
                    left_ns = max(round((deadline - time.monotonic()) * 1e9), 1)
                    self._register_and_send(register_call)
                    break
        return call.wait(left_ns / 1e9 + STORE_ANSWER_DELAY_MAX_S)

    def batch_share(self, global_batch: int, limits: Sequence[int] | None = None) -> int:
        """Returns this rank's samples of a global batch; see ``batch_shares``."""
        return self.batch_shares(global_batch, limits)[self.rank]

    def batch_shares(self, global_batch: int, limits: Sequence[int] | None = None) -> list[int]:
        """Splits a global batch among the ranks, in proportion to the fabric's ``speeds``.

        All ranks compute the same, and nothing is exchanged.

        Args:
            global_batch: The number of samples of all ranks together.
            limits: The most samples of each rank, by rank, such as its memory holds.

        Returns:
            The samples of each rank, by rank.

        Raises:
            ConfigError: The ranks cannot hold the batch within their limits.
        """
        return batch_split_shares(global_batch, self._known_speeds(), limits)

    def batch_split(self, global_batch: int, limits: Sequence[int] | None = None) -> BatchSplit:
        """Returns a split that begins as ``batch_shares`` and follows speeds that drift.

        All ranks call it with the same arguments. Raises as ``batch_shares``.
        """
        return BatchSplit(self, global_batch, self._known_speeds(), limits)

    def _known_speeds(self) -> list[float]:
        """Returns the speeds of all ranks, which only the config has."""
        if not self._location.speeds:
            raise errors.ConfigError("the speeds of ranks are not known: `connect` with `config`")
        return self._of_world(self._location.speeds)

    def _meet_all_ranks(self, deadline: float) -> None:
        """Attaches this rank if needed, and waits for all ranks until ``deadline``, in seconds of
        ``time.monotonic``."""
        self._attachment.meet_all_ranks(deadline, self.barrier_async)
        before, self._world = self._world, self._state.world
        if self._world != before:
            # Ranks have other numbers now.
            self._close_pairs()
            self._pairs.clear()
        if self._world is None:
            self.rank, self._world_size = self._attached_rank, self._attachment.world_size
        else:
            self.rank, self._world_size = self._world.index(self._attached_rank), len(self._world)

    def _of_world(self, of_all: list[_T]) -> list[_T]:
        """Returns what belongs to the ranks that go on, of a list with all ranks of the fabric."""
        return of_all if self._world is None else [of_all[rank] for rank in self._world]

    def _rank_in_job(self, rank: int) -> int:
        """Returns the number in the fabric of a rank that goes on."""
        return rank if self._world is None else self._world[rank]


_groups: weakref.WeakSet[Group] = weakref.WeakSet()


def check_group_argument(group: Any, kind: type[ParentGroup] = Group) -> None:
    """Raises ``ConfigError`` unless the argument ``group`` is a group of that kind."""
    if not isinstance(group, kind):
        raise argument_error("group", group, "the group that `connect` returned")


def resolve_group(group: Group | None) -> Group:
    """Returns ``group``, or the only group that this process has connected and not closed.

    Raises:
        ConfigError: No group was given, and the process has none or several; or it is no group.
    """
    if group is not None:
        check_group_argument(group, ParentGroup)
        return group
    me = os.getpid()
    connected = [g for g in list(_groups) if g._owner == me and g._state.is_connected]
    if len(connected) != 1:
        count = len(connected) or "no"
        text = f"{count} groups are connected in this process, not one"
        raise errors.ConfigError(f"{text}: pass the `group` that `connect` returned")
    return connected[0]


def dump(path: str | os.PathLike[str], *, format: str = "json", group: Group | None = None) -> None:
    """Writes the flight recorder of this rank into a file: its last 512 collectives.

    It asks nobody and waits for nothing but the disk, so it also works while a collective hangs,
    in another thread, and after a failure. `landbridge explain` reads the JSON. The file holds no token, no key and no element of an
    array. Only the user of this process can read it.

    Args:
        path: The file. A file that is there is replaced.
        format: ``json``, or ``torch`` for PyTorch's ``torchfrtrace``. The latter has the job's
            collectives in its last epoch. That tool reads the files of all ranks, whose names end
            in the rank's number, so the number is appended to the path.
        group: The group that ``connect`` returned, if there are several.

    Raises:
        ConfigError: An argument cannot be used.
        OSError: The file cannot be written.
    """
    job = resolve_group(group)
    check_group_argument(job)
    recorder = job._state.recorder
    try:
        target = os.fsdecode(path)
    except TypeError:
        raise argument_error("path", path, "a path") from None
    if format == "torch":
        trace = encode_torch_trace(recorder.recorded_collectives(), job.world_size)
        write_flight_dump(f"{target}{job.rank}", trace)
    elif format == "json":
        write_flight_dump(target, recorder.encode())
    else:
        raise argument_error("format", format, "json, torch")


def _reset_groups_after_fork() -> None:
    """Makes every group unusable in a forked process. Python calls it after each fork."""
    for group in list(_groups):
        group._reset_after_fork()


os.register_at_fork(after_in_child=_reset_groups_after_fork)
