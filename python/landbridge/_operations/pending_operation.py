"""A request of a group that the gateway has not finished, and the wait for it."""

from __future__ import annotations

import os
import time
from typing import Protocol

from .._arguments import check_wait_argument
from .waiting import (
    Latch,
    check_not_waiting_after_fork,
    check_not_waiting_at_end,
    check_not_waiting_in_callback,
)


class OperationReader(Protocol):
    """The part of a group that a wait needs. A wait also keeps the group from being collected."""

    def _read_until(self, latch: Latch, timeout_s: float | None) -> None:
        """Reads messages of the gateway until ``latch`` opens or the timeout passes."""


class PendingOperation:
    """The base of ``Operation`` and ``Commit``: a request of a group that the gateway has not
    finished."""

    def __init__(self, group: OperationReader | None) -> None:
        """Notes the group whose messages are read during waits; ``None`` where there is none."""
        # This reference keeps a group alive that nobody else holds.
        self._group = group
        self._owner = os.getpid()

    def _await_latch(self, latch: Latch, timeout_s: float | None) -> bool:
        """Waits for at most ``timeout_s`` seconds until ``latch`` opens, and returns whether it is
        open. Reads from the gateway meanwhile. Raises ``ConfigError`` for a wrong timeout."""
        timeout_s = check_wait_argument(timeout_s)
        check_not_waiting_after_fork(self._owner)
        group = self._group
        if group is None or latch.is_open:
            return latch.wait(timeout_s)
        check_not_waiting_at_end()
        check_not_waiting_in_callback()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        group._read_until(latch, timeout_s)
        return latch.wait(None if deadline is None else deadline - time.monotonic())
