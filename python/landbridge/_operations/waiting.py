"""Waiting for the gateway: a latch to wait at, and the checks of who may wait.

``Operation`` and ``Commit`` own latches; the thread that reads from the gateway opens them.
Every wait goes through ``Latch.wait``, so that a signal such as Ctrl-C ends it at once.
"""

from __future__ import annotations

import _thread
import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any

from .. import errors


class _ThreadState(threading.local):
    """The state of each thread."""

    #: Whether the thread runs a callback of a collective.
    in_callback = False
    #: Whether the thread will itself wait for what it posts, so that no other need read for it.
    is_awaited = False


thread_state = _ThreadState()


def check_not_waiting_in_callback() -> None:
    """Raises ``InCallback`` when this thread runs a callback of a collective, where a wait might
    never end."""
    if thread_state.in_callback:
        raise errors.InCallback(
            "a callback of a collective must neither post nor wait: it runs in the thread that "
            "reads from the gateway, and ranks run their callbacks in different orders; use "
            "another thread"
        )


def check_not_waiting_after_fork(owner: int) -> None:
    """Raises ``ForkedProcess`` unless this process is ``owner``, the process id that connected."""
    if os.getpid() != owner:
        text = f"this process was forked from {owner}, which connected; connect in this process"
        raise errors.ForkedProcess(text)


def check_not_waiting_at_end() -> None:
    """Raises ``Closed`` once the interpreter ends, as in a ``__del__`` that runs then. Nothing can
    be imported then, and the thread that reads from the gateway has stopped, perhaps with a
    lock."""
    if sys.is_finalizing():
        text = "the interpreter is ending, and the group with it"
        raise errors.Closed(f"{text}; post and wait before, such as by `atexit.register`")


class Latch:
    """A place to wait at, which stays open after ``open``. Signals such as Ctrl-C interrupt a
    wait."""

    def __init__(self) -> None:
        """Makes a closed latch, at which nobody waits."""
        # Each waiting thread has a lock of its own, so that an interrupted one delays no other.
        self._waiting: list[_thread.LockType] = []
        # What is called once the latch is open.
        self._wakers: list[Callable[[], object]] = []
        self.is_open = False

    def open(self) -> None:
        """Lets every thread continue that waits at the latch. It may be called again after an
        interruption."""
        self.is_open = True
        for lock in list(self._waiting):
            with contextlib.suppress(RuntimeError):  # The lock is released already.
                lock.release()
        self._run_wakers()

    def call_when_open(self, waker: Callable[[], object]) -> None:
        """Calls ``waker`` once the latch is open, in whichever thread opens it. It must not raise,
        wait, or take long."""
        self._wakers.append(waker)
        # The check comes after the append: `open` reads the list after it sets the flag.
        if self.is_open:
            self._run_wakers()

    def forget_waker(self, waker: Callable[[], object]) -> None:
        """Calls ``waker`` no more, unless it is being called."""
        with contextlib.suppress(ValueError):
            self._wakers.remove(waker)

    def _run_wakers(self) -> None:
        """Calls each waker once."""
        while self._wakers:
            with contextlib.suppress(IndexError):  # Another thread may call them as well.
                self._wakers.pop(0)()

    def wait(self, timeout_s: float | None) -> bool:
        """Waits for at most ``timeout_s`` seconds. Returns whether the latch is open.

        Raises:
            InCallback: The latch is closed, and the caller is a callback.
            Closed: The latch is closed, and the interpreter is ending.
        """
        if self.is_open:
            return True
        check_not_waiting_at_end()
        check_not_waiting_in_callback()
        timeout = -1.0 if timeout_s is None else min(max(timeout_s, 0.0), threading.TIMEOUT_MAX)
        lock = _thread.allocate_lock()
        lock.acquire()
        try:
            self._waiting.append(lock)
            # The check comes after the append: `open` reads the list after it sets the flag.
            if not self.is_open:
                lock.acquire(True, timeout)
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(lock)
        return self.is_open


def wait_in_event_loop(latch: Latch) -> Generator[Any, None, None]:
    """Waits in a coroutine of ``asyncio`` until the latch is open, while the event loop goes on."""
    if latch.is_open:
        return
    check_not_waiting_in_callback()
    loop = importlib.import_module("asyncio").get_running_loop()
    opened = loop.create_future()

    def set_opened() -> None:
        """Lets the coroutine go on, unless it was cancelled."""
        if not opened.done():
            opened.set_result(None)

    def wake_loop() -> None:
        """Lets the event loop run ``set_opened``."""
        with contextlib.suppress(RuntimeError):  # The loop is closed, and nobody waits.
            loop.call_soon_threadsafe(set_opened)

    latch.call_when_open(wake_loop)
    try:
        yield from opened
    finally:
        # A coroutine that was cancelled leaves nothing behind.
        latch.forget_waker(wake_loop)
