"""Requests to the store of a job under way."""

from __future__ import annotations

from typing import Any

from .. import errors
from .pending_operation import OperationReader, PendingOperation
from .waiting import Latch


class StoreOperation(PendingOperation):
    """A request to the store of the job under way.

    Attributes:
        may_wait: Whether its answer may wait for another request.
    """

    def __init__(self, group: OperationReader, may_wait: bool) -> None:
        """Begins a request to the store, which has not been sent."""
        super().__init__(group)
        self.may_wait = may_wait
        self._answer: Any = None
        self._failure: errors.LandbridgeError | None = None
        self._done = Latch()

    def wait(self, timeout: float) -> Any:
        """Waits for at most ``timeout`` seconds, and returns the answer.

        Raises:
            StoreTimeout: The gateway has not answered.
            StoreDisconnected: The connection ended.
        """
        if not self._await_latch(self._done, timeout):
            text = "the gateway does not answer; is it stopped, or its host overloaded?"
            raise errors.StoreTimeout(text, is_unconfirmed=True)
        if self._failure is not None:
            raise self._failure
        return self._answer

    def _set_answer(self, answer: Any) -> None:
        """Stores the answer, which ``wait`` returns once the call is finished."""
        self._answer = answer

    def _finish(self, failure: errors.LandbridgeError | None) -> None:
        """Ends the call; a failure means that no answer comes. ``GroupState`` calls it, and calls
        it again after an interruption; the first failure counts."""
        if not self._done.is_open:
            self._failure = failure
        self._done.open()
        self._group = None
