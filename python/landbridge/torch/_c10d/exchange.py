"""The order of c10d's collectives on one group of ranks, and their works.

Two threads serve a group. ``landbridge-post`` posts collectives in the order in which they were
called. ``landbridge-finish`` waits for them in the same order, and copies results. So a call
returns at once, and a collective ends without anybody waiting for it. Two queues without a bound
connect caller and threads; the arena bounds the pieces between the threads.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch._C._distributed_c10d import Work

from ... import errors
from ..._group.subgroup import ParentGroup
from ..._memory.limits import start_thread_within_limits
from ..._operation import Operation
from ..._waiting import Latch
from .flat_tensors import FlatTensor

#: 1/8 of the arena: longest contribution or result of one piece, so that several are under way.
_PIECES_PER_ARENA = 8
#: 32 MiB: longest piece, enough that its own costs do not count.
_PIECE_BYTES_MAX = 32 << 20
#: Layout hash of the barrier by which a rank says that it could not post. No other post has it.
_GIVEN_UP_LAYOUT = 0x6769_7665_6E75_7021

#: Posts one collective when called, and returns the operation.
BeginPiece = Callable[[], Operation]
#: Posts all pieces of a collective, by handing each to the function that it gets.
Plan = Callable[[Callable[[BeginPiece], None]], None]


class ExchangeWork(Work):
    """A collective of c10d under way.

    Attributes:
        outputs: The tensors that get results.
    """

    def __init__(self, outputs: Sequence[FlatTensor], owners: Sequence[threading.Thread]) -> None:
        super().__init__()
        self.outputs = outputs
        self._owners = owners
        self._done = Latch()
        self._lock = threading.Lock()
        self._failure: Exception | None = None
        # The future that `finish` completes, and the one for callers that follows from it.
        self._plain: torch.futures.Future[Any] | None = None
        self._future: torch.futures.Future[Any] | None = None
        # The failure or nothing, apart from this object: the garbage collector does not see into
        # futures.
        self._outcome: list[Exception] = []

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the collective has ended. Returns ``True``.

        Raises:
            WaitTimeout: It has not ended in time. It continues.
            InCallback: The caller is a callback of a future.
            LandbridgeError: The collective failed.
        """
        if not self._done.is_open and threading.current_thread() in self._owners:
            text = "a callback of a future must not wait for another collective; use another thread"
            raise errors.InCallback(text)
        # No limit is zero in c10d.
        seconds = timeout.total_seconds() if timeout else 0.0
        if not self._done.wait(seconds if seconds > 0 else None):
            raise errors.WaitTimeout("a collective has not ended in the time of this wait")
        if self._failure is not None:
            raise self._failure
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """Returns a future of the list of result tensors."""
        with self._lock:
            if self._future is None:
                tensors = [output.tensor for output in self.outputs]
                devices = {tensor.device for tensor in tensors if not tensor.is_cpu}
                self._plain = torch.futures.Future(devices=list(devices) or None)
                value = functools.partial(_future_value, tensors, self._outcome)
                self._future = self._plain.then(value)
                if self._done.is_open:
                    self._plain.set_result(None)
            return self._future

    def is_completed(self) -> bool:
        """Returns whether the collective has ended."""
        return self._done.is_open

    def is_success(self) -> bool:
        """Returns whether the collective has ended without a failure."""
        return self._done.is_open and self._failure is None

    def exception(self) -> Exception | None:
        """Returns the failure, or ``None``."""
        return self._failure

    def synchronize(self) -> None:
        """Waits as ``wait`` does."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Returns the tensors that get results."""
        return [output.tensor for output in self.outputs]

    def finish(self, failure: Exception | None) -> None:
        """Ends the collective, in the thread that finishes."""
        with self._lock:
            self._failure = failure
            if failure is not None:
                self._outcome.append(failure)
            self._done.open()
            plain, self._plain = self._plain, None
        if plain is not None:
            plain.set_result(None)


class _Call(NamedTuple):
    """A collective that waits to be posted."""

    work: ExchangeWork
    plan: Plan
    #: Whether results are written to tensors that were made in inference mode.
    is_inference: bool


class _End(NamedTuple):
    """The end of a call whose pieces are all posted, or of which one could not be."""

    work: ExchangeWork
    failure: Exception | None


class Exchange:
    """The collectives of one group of ranks, in the order of their calls.

    Attributes:
        group: The ranks.
        piece_bytes: The longest contribution or result of a piece, the same on all ranks.
    """

    def __init__(self, group: ParentGroup, piece_bytes: int) -> None:
        self.group = group
        self.piece_bytes = piece_bytes
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        # Pieces that are under way, each followed by the others of its call and its end.
        self._posted: queue.SimpleQueue[Operation | _End | None] = queue.SimpleQueue()
        self._finished = threading.Condition()
        self._pieces_under_way = 0
        self._closing = threading.Lock()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=run, name=f"landbridge-{name}", daemon=True)
            for name, run in (("post", self._run_post_thread), ("finish", self._run_finish_thread))
        ]
        for thread in self._threads:
            start_thread_within_limits(thread)

    def start_call(self, outputs: Sequence[FlatTensor], plan: Plan) -> ExchangeWork:
        """Starts a collective, and returns its work before anything is posted.

        Args:
            outputs: The tensors that get results. They are copied back once all pieces have ended.
            plan: The function that posts the pieces.

        Raises:
            Closed: The process group was destroyed.
        """
        work = ExchangeWork(outputs, self._threads)
        is_inference = any(output.tensor.is_inference() for output in outputs)
        with self._closing:
            if self._is_closed:
                raise errors.Closed("the process group was destroyed")
            self._calls.put(_Call(work, plan, is_inference))
        return work

    def close(self) -> None:
        """Waits until all calls have ended, each within its timeout, and closes the group."""
        self._end_calls()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self.group.close()

    def abort(self) -> None:
        """Detaches the rank at once, if its group is the job. Everything under way fails with
        ``GatewayLost``."""
        self._end_calls()
        self.group.close()

    def _end_calls(self) -> None:
        """Takes no more calls, and lets the threads end after those that were made."""
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._calls.put(None)

    def _run_post_thread(self) -> None:
        """Posts the pieces of calls, until a ``None`` ends the thread."""
        while True:
            call = self._calls.get()
            if call is None:
                return self._posted.put(None)
            failure: Exception | None = None
            try:
                with torch.inference_mode(call.is_inference):
                    call.plan(self._post_piece)
            except Exception as error:
                failure = error
                self._tell_other_ranks(error)
            self._posted.put(_End(call.work, failure))
            del call, failure

    def _post_piece(self, begin: BeginPiece) -> None:
        """Posts one piece. Waits for earlier ones while the arena has no room."""
        while True:
            with self._finished:
                under_way = self._pieces_under_way
            try:
                operation = begin()
                break
            except errors.ArenaFull:
                # Results that were not copied yet hold the arena.
                if not under_way:
                    raise
            with self._finished:
                self._finished.wait_for(lambda: self._pieces_under_way < under_way)  # noqa: B023
        with self._finished:
            self._pieces_under_way += 1
        self._posted.put(operation)

    def _tell_other_ranks(self, failure: Exception) -> None:
        """Posts another collective than the one for which the others wait, so that they hear at
        once that this rank could not post it."""
        # After an end of the epoch they have heard already.
        if not isinstance(failure, errors.CollectiveFailed):
            with contextlib.suppress(errors.LandbridgeError):
                self.group.barrier_async(layout=_GIVEN_UP_LAYOUT)

    def _run_finish_thread(self) -> None:
        """Waits for pieces, and ends the work of each call, until a ``None`` ends the thread."""
        failure: Exception | None = None
        while True:
            posted = self._posted.get()
            if posted is None:
                return
            if isinstance(posted, _End):
                _finish_work(posted.work, failure or posted.failure)
                failure = None
            else:
                failure = _wait_for_piece(posted, failure)
                with self._finished:
                    self._pieces_under_way -= 1
                    self._finished.notify_all()
            # The memory of results is free once nothing refers to them.
            del posted


def choose_piece_bytes(arena_bytes: Sequence[int]) -> int:
    """Returns the longest piece, from the bytes of the arenas of all ranks."""
    return max(min(min(arena_bytes) // _PIECES_PER_ARENA, _PIECE_BYTES_MAX), 64)


def _wait_for_piece(operation: Operation, failure: Exception | None) -> Exception | None:
    """Waits for a piece, and copies its result. Returns the first failure of its call."""
    try:
        operation.wait()
        if operation.lies_in_arena:
            # The caller may write its tensors once the work has ended.
            operation.wait_free()
    except Exception as error:
        return failure or error
    return failure


def _finish_work(work: ExchangeWork, failure: Exception | None) -> None:
    """Copies the results of a call to its tensors, and ends its work."""
    if failure is None:
        try:
            for output in work.outputs:
                output.copy_back()
        except Exception as error:
            failure = error
    work.finish(failure)


def _future_value(
    tensors: list[torch.Tensor], outcome: list[Exception], _: Any
) -> list[torch.Tensor]:
    """Returns the value of a work's future, as a callback. Raises a ``RuntimeError`` with the text
    of a failure, because PyTorch takes any other exception for a value."""
    if outcome:
        failure = outcome[0]
        raise RuntimeError(f"landbridge.{type(failure).__name__}: {failure}") from failure
    return tensors
