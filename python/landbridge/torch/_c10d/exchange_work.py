"""The works that c10d's callers wait for: one for each collective under way."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from ... import errors
from ..._memory.host_limits import name_host_limits_on_threads
from ..._operations.finish_threads import hand_over_finish_thread, is_finish_thread
from ..._operations.waiting import Latch, check_not_waiting_after_fork
from .flat_tensors import FlatTensor, describe_flat_tensors


class ExchangeWork(Work):
    """A collective of c10d under way.

    Attributes:
        outputs: The tensors that get results.
    """

    def __init__(
        self,
        outputs: Sequence[FlatTensor],
        passed: Sequence[torch.Tensor] = (),
        told: str = "",
    ) -> None:
        """Makes a work.

        Args:
            outputs: The tensors that get results.
            passed: The tensors of the caller on which ranks agree.
            told: What these tensors are, where that is known.
        """
        super().__init__()
        self._passed, self._told = passed, told
        self.outputs = outputs
        self._owner = os.getpid()
        self._done = Latch()
        self._lock = threading.Lock()
        self._failure: Exception | None = None
        # The future that `finish` completes, and the one for callers that follows from it.
        self._plain: torch.futures.Future[Any] | None = None
        self._future: torch.futures.Future[Any] | None = None
        # The failure or nothing, apart from this object: the garbage collector does not see into
        # futures.
        self._outcome: list[Exception] = []
        # The functions to call at the end.
        self._followers: list[Callable[[], None]] = []

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the collective has ended. Returns ``True``.

        Raises:
            WaitTimeout: It has not ended in time. It continues.
            InCallback: The caller is a callback, and the system has no thread for other works.
            ForkedProcess: This process was forked from the one that started the collective.
            LandbridgeError: The collective failed.
        """
        check_not_waiting_after_fork(self._owner)
        if not self._done.is_open and is_finish_thread():
            text = "a callback must not wait for a work, since the system has no thread for others"
            raise errors.InCallback(f"{text}: {name_host_limits_on_threads()}")
        # No limit is zero in c10d.
        seconds = timeout.total_seconds() if timeout else 0.0
        if not self._done.wait(seconds if seconds > 0 else None):
            raise errors.WaitTimeout("a collective has not ended in the time of this wait")
        if self._failure is not None:
            raise self._failure
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """Returns a future of the list of result tensors.

        Raises:
            ForkedProcess: This process was forked, and nothing would complete the future.
        """
        check_not_waiting_after_fork(self._owner)
        with self._lock:
            if self._future is None:
                tensors = [output.tensor for output in self.outputs]
                devices = {tensor.device for tensor in tensors if not tensor.is_cpu}
                self._plain = torch.futures.Future(devices=list(devices) or None)
                value = functools.partial(_exchange_work_value, tensors, self._outcome)
                self._future = self._plain.then(value)
                # It is the first callback, so that no other one holds up the works that follow.
                self._future.add_done_callback(hand_over_finish_thread)
                if self._done.is_open:
                    self._plain.set_result(None)
            return self._future

    def is_completed(self) -> bool:
        """Returns whether the collective has ended. Raises ``ForkedProcess`` where the answer would
        never change."""
        check_not_waiting_after_fork(self._owner)
        return self._done.is_open

    def is_success(self) -> bool:
        """Returns whether the collective has ended without a failure. Raises as
        ``is_completed``."""
        check_not_waiting_after_fork(self._owner)
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
        """Copies the results to their tensors unless there is a failure, ends the collective, and
        runs callbacks. Only the first call counts."""
        self.end(failure)
        self.run_callbacks()

    def end(self, failure: Exception | None) -> None:
        """Ends the collective as ``finish``, but for callbacks. Nothing writes to the tensors after
        it."""
        with self._lock:
            if self._done.is_open:
                return
            if failure is None:
                failure = self._copy_results()
            else:
                self._note_passed_tensors(failure)
                self._await_copies_back()
            self._passed = ()
            self._failure = failure
            if failure is not None:
                self._outcome.append(failure)
            self._done.open()

    def take_piece(self, start_copy_back: Callable[[], None]) -> Exception | None:
        """Starts to copy a piece of a result to its tensor, unless the collective has ended.
        Returns a failure."""
        with self._lock:
            if not self._done.is_open:
                try:
                    start_copy_back()
                except Exception as error:
                    return error
        return None

    def run_callbacks(self) -> None:
        """Runs the callbacks of a collective that has ended, each of them once."""
        with self._lock:
            plain, self._plain = self._plain, None
            followers, self._followers = self._followers, []
        for follower in followers:
            follower()
        if plain is not None:
            plain.set_result(None)

    def finish_with(self, batch: Sequence[ExchangeWork]) -> None:
        """Ends this work with the last of a batch, as the first of it that failed."""
        left = len(batch)

        def note_end() -> None:
            """Counts the end of a work."""
            nonlocal left
            with self._lock:
                left -= 1
                is_last = left <= 0
            if is_last:
                self.finish(next(filter(None, (work.exception() for work in batch)), None))

        for work in batch:
            work.call_at_end(note_end)
        if not batch:
            note_end()

    def call_at_end(self, follower: Callable[[], None]) -> None:
        """Calls a function when the collective has ended, or now if it has."""
        with self._lock:
            if not self._done.is_open:
                self._followers.append(follower)
                return
        follower()

    def _note_passed_tensors(self, failure: Exception) -> None:
        """Adds the tensors of the caller to a disagreement: pieces of flat ones were posted, of
        which the caller knows nothing. The work ends even if they cannot be described."""
        if isinstance(failure, errors.RanksDisagree) and self._passed:
            try:
                tensors = describe_flat_tensors(self._passed)
                failure.here = f"{self._told}; {tensors}" if self._told else tensors
            except Exception as error:
                failure.here = f"the tensors of this rank cannot be described: {error}"

    def _copy_results(self) -> Exception | None:
        """Copies the results to their tensors. Returns a failure."""
        try:
            for output in self.outputs:
                output.copy_back()
        except Exception as error:
            return error
        return None

    def _await_copies_back(self) -> None:
        """Waits until nothing writes to the tensors. The failure that ended the collective is told,
        whatever the device says."""
        for output in self.outputs:
            with contextlib.suppress(RuntimeError):
                output.await_copies_back()


def exchange_breakage(error: Exception) -> errors.Closed:
    """Returns the error of calls after one that ended a thread of a process group."""
    text = f"the process group has failed: {type(error).__name__}: {error}"
    breakage = errors.Closed(f"{text}; destroy it on all ranks, and make it again")
    breakage.__cause__ = error
    return breakage


def _exchange_work_value(
    tensors: list[torch.Tensor], outcome: list[Exception], _: Any
) -> list[torch.Tensor]:
    """Returns the value of a work's future, as a callback. Raises a ``RuntimeError`` with the text
    of a failure, because PyTorch takes any other exception for a value."""
    if outcome:
        failure = outcome[0]
        raise RuntimeError(f"landbridge.{type(failure).__name__}: {failure}") from failure
    return tensors
