"""Commits under way, as ``Group`` returns them to the trainer."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from .. import errors
from .pending_operation import OperationReader, PendingOperation
from .waiting import Latch, check_not_waiting_after_fork, wait_in_event_loop


class Commit(PendingOperation):
    """A step that is being committed, returned by ``Group.commit_async``.

    Attributes:
        step: The trainer's number of the step.
    """

    def __init__(self, step: int, group: OperationReader | None) -> None:
        """Begins the commit of a step, which has not been sent."""
        super().__init__(group)
        self.step = step
        # The epoch whose collectives it covers.
        self._epoch = 0
        self._failure: errors.CollectiveFailed | None = None
        self._done = Latch()

    def wait(self, timeout: float | None = None) -> None:
        """Waits until every region has the collectives of the step.

        Args:
            timeout: How long to wait, in seconds; 0 only looks. The default waits for as long as
                it takes.

        Raises:
            WaitTimeout: The step is not known to be complete in time.
            CollectiveFailed: The step will not become known to be complete; see
                ``Group.committed_step``.
        """
        if not self._await_latch(self._done, timeout):
            raise errors.WaitTimeout(f"step {self.step} is not committed after {timeout} s")
        if self._failure is not None:
            raise self._failure

    def __await__(self) -> Generator[Any, None, None]:
        """Waits in a coroutine as ``wait`` does, while the event loop goes on."""
        check_not_waiting_after_fork(self._owner)
        yield from wait_in_event_loop(self._done)
        self.wait()

    def is_done(self) -> bool:
        """Returns whether ``wait`` would return or raise at once. Raises ``ForkedProcess`` in a
        forked process, where the answer would never change."""
        check_not_waiting_after_fork(self._owner)
        return self._done.is_open

    def _finish(self, failure: errors.CollectiveFailed | None) -> None:
        """Ends the commit; a failure means that the step is not known to be complete.
        ``GroupState`` calls it, and calls it again after an interruption, perhaps with another
        failure; the first one counts."""
        if not self._done.is_open:
            self._failure = failure
        self._done.open()
        self._group = None
