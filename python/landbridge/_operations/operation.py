"""Collectives under way, as ``Group`` returns them to the trainer.

The trainer's threads wait for them. ``GroupState`` settles and finishes them, in the thread that
reads from the gateway.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from .. import errors
from .._argument_errors import argument_error
from .._memory.arena import ArenaSlot, arena_ranges_overlap
from .._memory.arrays import ArrayAdapter
from .flight_recorder import RecordedCollective
from .pending_operation import OperationReader, PendingOperation
from .waiting import Latch, check_not_waiting_after_fork, thread_state, wait_in_event_loop

#: 1,800 s (30 min): how long a rank waits for the other ranks by default; then ``RanksTimedOut`` is
#: raised. The time is chosen: a region may take long to load its data or to start again.
DEFAULT_TIMEOUT_S = 30 * 60.0

log = logging.getLogger("landbridge")


class Timing(NamedTuple):
    """Instants of one collective, in nanoseconds of ``time.monotonic_ns``."""

    #: The last local rank posted.
    posted_ns: int
    #: The first segment was ready to be sent to another region.
    wan_begin_ns: int
    #: The last segment arrived from another region.
    wan_end_ns: int
    #: The result was in place on every local rank.
    ready_ns: int


class OperationDelivery:
    """The copy of a result from the arena to the array that the caller wants."""

    def __init__(
        self,
        like: ArrayAdapter,
        out: tuple[Any, ArrayAdapter] | None,
        slot: ArenaSlot | None,
        contribution: ArrayAdapter | None,
    ) -> None:
        """Prepares a delivery.

        Args:
            like: The contribution: a new result array has its kind, dtype and shape.
            out: The caller's array for the result, as given and adapted.
            slot: The result's slot, or ``None`` when the gateway writes into ``out`` itself.
            contribution: The contribution, if it lies in the arena.
        """
        self._like = like
        self._given: Any = out and out[0]
        self._out: ArrayAdapter | None = out and out[1]
        self._slot = slot
        #: Whether the delivery overwrites a contribution in the arena. It then waits until the
        #: contribution is free, since the gateway may still retransmit it.
        self.overwrites = (
            contribution is not None
            and slot is not None
            and self._out is not None
            and _operation_arrays_may_overlap(contribution, self._out)
        )

    def deliver_result(self) -> Any:
        """Returns the result as the array that the caller wants. It may be called again after an
        interruption."""
        if self._out is None:
            assert self._slot is not None, "a result has a slot or an array"
            return self._like.copy_to_new_array(self._slot)
        if self._slot is not None:
            self._out.copy_from_slot(self._slot)
        return self._given


class Operation(PendingOperation):
    """A collective under way, returned by ``Group.all_reduce_async`` and its siblings.

    Two events happen to it, in this order:

    1. The result is ready: ``wait`` returns it, and so does ``await`` in a coroutine of
       ``asyncio``, while the event loop goes on.
    2. The memory is free: ``wait_free`` returns. The gateway no longer reads the contribution or
       the result.

    Only arrays from ``Group.empty`` must wait for the second event before they are written again;
    other arrays were copied. A result that replaces a contribution from ``Group.empty`` is ready
    only when that contribution is free.

    Once the interpreter ends, a wait for what has not happened raises ``Closed``.

    After ``GatewayLost`` no event follows, so ``wait_free`` returns at once. A gateway that still
    runs may use the memory until the epoch ends. So leave arrays from ``Group.empty`` alone until
    ``Group.recover`` has returned.

    Attributes:
        epoch: The epoch of the collective.
        sequence: The number of the collective in its group.
        timing: A ``Timing`` once the result is ready, else ``None``.
    """

    def __init__(self, delivery: OperationDelivery | None, group: OperationReader | None) -> None:
        """Begins a collective that has not been posted. ``delivery`` is ``None`` where the rank
        gets no result."""
        super().__init__(group)
        self.epoch, self.sequence = -1, -1
        self.timing: Timing | None = None
        #: The record of the collective once it is posted.
        self.record: RecordedCollective | None = None
        # `None` where the rank gets no result, and once the result is delivered.
        self._delivery = delivery
        self._result: Any = None
        self._failure: errors.CollectiveFailed | None = None
        #: Whether the gateway uses the caller's own arrays until the memory is free.
        self.lies_in_arena = False
        self._ready = Latch()
        self._free = Latch()
        self._lock = threading.Lock()
        # Callbacks that have not run yet.
        self._callbacks: list[Callable[[Operation], None]] = []

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for the result.

        Args:
            timeout: How long to wait, in seconds; 0 only looks. The default waits for as long as
                it takes.

        Returns:
            The result. ``None`` for a barrier, and for a reduce on ranks other than its root.

        Raises:
            WaitTimeout: The result is not ready in time. The collective continues.
            CollectiveFailed: The collective failed. The contribution is intact.
            InCallback: The caller is a callback, or a signal handler that interrupts a wait.
            ConfigError: The timeout is negative or no number.
        """
        if not self._await_latch(self._ready, timeout):
            raise errors.WaitTimeout(f"collective {self.sequence} is not ready after {timeout} s")
        if self._failure is not None:
            raise self._failure
        with self._lock:
            if self._delivery is not None:
                self._result = self._delivery.deliver_result()
                # Last, so that the next wait repeats a delivery that was interrupted.
                self._delivery = None
        return self._result

    def wait_free(self, timeout: float | None = None) -> None:
        """Waits until contribution and result may be written again, after success or failure.

        Args:
            timeout: How long to wait, in seconds; 0 only looks. The default waits for as long as
                it takes.

        Raises:
            WaitTimeout: The memory is not free in time.
        """
        if not self._await_latch(self._free, timeout):
            text = f"collective {self.sequence} still uses its memory after {timeout} s"
            raise errors.WaitTimeout(text)

    def discard_result(self) -> None:
        """Delivers no result to the caller's array any more. ``wait`` then returns ``None``."""
        check_not_waiting_after_fork(self._owner)
        with self._lock:
            self._delivery = None

    def __await__(self) -> Generator[Any, None, Any]:
        """Waits in a coroutine as ``wait`` does. A coroutine that is cancelled leaves the
        collective under way."""
        check_not_waiting_after_fork(self._owner)
        yield from wait_in_event_loop(self._ready)
        return self.wait()

    def is_ready(self) -> bool:
        """Returns whether ``wait`` would return or raise at once. Raises ``ForkedProcess`` in a
        forked process, where the answer would never change."""
        check_not_waiting_after_fork(self._owner)
        return self._ready.is_open

    def is_free(self) -> bool:
        """Returns whether ``wait_free`` would return at once. Raises as ``is_ready``."""
        check_not_waiting_after_fork(self._owner)
        return self._free.is_open

    @property
    def failure(self) -> errors.CollectiveFailed | None:
        """The failure of the collective, or ``None``."""
        return self._failure

    def add_done_callback(self, callback: Callable[[Operation], None]) -> None:
        """Calls ``callback`` with this operation when it is ready or has failed.

        The callback runs in a thread of the package, in a thread that waits for a collective, or
        in the caller's thread if the operation is done already. It must neither post nor wait:
        ``InCallback``. An exception in it is logged.
        """
        check_not_waiting_after_fork(self._owner)
        if not callable(callback):
            raise argument_error("callback", callback, "a function of the operation")
        with self._lock:
            if not self._ready.is_open:
                self._callbacks.append(callback)
                return
        self._run_callback(callback)

    def _set_outcome(self, timing: Timing | None, failure: errors.CollectiveFailed | None) -> None:
        """Lets ``wait`` return the result or raise the failure; only the first call counts. A
        result that overwrites a contribution in the arena waits for ``_set_memory_free``.
        ``GroupState`` calls it, and calls it again after an interruption."""
        delivery = self._delivery
        if failure is None and delivery is not None and delivery.overwrites:
            self.timing = timing
        else:
            self._open_ready_latch(timing, failure)

    def _set_memory_free(self) -> None:
        """Lets ``wait_free`` return, because the gateway no longer uses the memory. ``GroupState``
        calls it, and calls it again after an interruption."""
        # `_open_ready_latch` waits for a thread that copies the result. It is skipped where it has
        # nothing to do, because this thread must read the next messages.
        if self.timing is not None and (not self._ready.is_open or self._callbacks):
            self._open_ready_latch(self.timing, None)
        self._free.open()
        self._group = None

    def _finish(self, failure: errors.CollectiveFailed | None) -> None:
        """Ends the operation with or without a failure, after which no message about it follows.
        ``GroupState`` calls it, and calls it again after an interruption."""
        if failure is not None:
            self._set_outcome(None, failure)
        self._set_memory_free()

    def _open_ready_latch(
        self, timing: Timing | None, failure: errors.CollectiveFailed | None
    ) -> None:
        """Lets ``wait`` return or raise, and runs the callbacks. Only the first call counts."""
        with self._lock:
            if not self._ready.is_open:
                self.timing, self._failure = timing, failure
                if self.record is not None:
                    self.record.note_end(failure)
                if failure is not None:
                    self._delivery = None
            self._ready.open()
        while self._callbacks:
            with contextlib.suppress(IndexError):  # Another thread may call them as well.
                self._run_callback(self._callbacks.pop(0))

    def _run_callback(self, callback: Callable[[Operation], None]) -> None:
        """Calls one callback of the trainer in this thread, and logs its exception, except Ctrl-C
        in the main thread, which is raised."""
        before, thread_state.in_callback = thread_state.in_callback, True
        try:
            callback(self)
        except BaseException as error:
            # Ctrl-C reaches only the main thread. In other threads nobody could handle it.
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and not isinstance(error, Exception):
                raise
            log.exception("a callback of collective %d raised", self.sequence)
        finally:
            thread_state.in_callback = before


def _operation_arrays_may_overlap(one: ArrayAdapter, other: ArrayAdapter) -> bool:
    """Returns whether two arrays of one size may share memory. An array that is not contiguous
    counts as sharing."""
    here, there = one.address(), other.address()
    if here is None or there is None:
        return True
    return arena_ranges_overlap((here, one.nbytes), (there, other.nbytes))
