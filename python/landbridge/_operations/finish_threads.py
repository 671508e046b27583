"""The threads that end the works of a group, of which callbacks hold up none.

A callback of a future runs in the thread that ends its work, and may wait for another work. So the
leading thread hands its place to another one before callbacks run. At most one thread is idle, and
those that return from their callbacks end where another is idle already. So there are as many as
callbacks that wait, and two more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from .. import errors
from .._memory.host_limits import start_thread_within_host_limits


class FinishThreads:
    """Threads that call one function after the other, each in the order of the group."""

    def __init__(
        self, name: str, finish_next: Callable[[], bool], fail: Callable[[Exception], None]
    ) -> None:
        """Prepares the threads.

        Args:
            name: The name of the threads.
            finish_next: The function that waits for the next work and ends it. It returns whether
                more follow.
            fail: What is called once if that function raises, after which nothing follows.
        """
        self._name = name
        self._finish_next = finish_next
        self._fail = fail
        self._changed = threading.Condition()
        # The condition guards everything below.
        self._is_led = self._has_idle = self._is_over = False
        self._threads: set[threading.Thread] = set()

    def start(self) -> None:
        """Starts the first thread. Raises ``LimitReached``."""
        thread = threading.Thread(target=self._run_thread, name=self._name, daemon=True)
        with self._changed:
            self._threads.add(thread)
            try:
                start_thread_within_host_limits(thread)
            except errors.LimitReached:
                self._threads.discard(thread)
                raise

    def join(self) -> None:
        """Waits until all threads but the caller have ended."""
        while True:
            with self._changed:
                threads = self._threads - {threading.current_thread()}
            if not threads:
                return
            threads.pop().join()

    def hand_over(self) -> None:
        """Lets another thread lead in place of the caller. Where the system gives no thread the
        caller goes on to lead, and works refuse to be waited for in it."""
        with self._changed:
            is_alone = not self._has_idle
        if is_alone:
            try:
                self.start()
            except errors.LimitReached:
                return
        self._end_lead()

    def _run_thread(self) -> None:
        """Leads whenever no other thread does, until another one is idle too."""
        try:
            while self._take_lead():
                while _place.leading is self:
                    if not self._finish_or_fail():
                        self._end_lead(is_over=True)
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())

    def _take_lead(self) -> bool:
        """Waits until no other thread leads, unless another one waits for that already. Returns
        whether this thread leads now: not where another one waits, and not after the end."""
        with self._changed:
            if self._is_led and self._has_idle:
                return False
            while self._is_led and not self._is_over:
                self._has_idle = True
                self._changed.wait()
                self._has_idle = False
            if not self._is_over:
                self._is_led, _place.leading = True, self
            return not self._is_over

    def _end_lead(self, is_over: bool = False) -> None:
        """Lets another thread lead if this one does, or ends all once it ``is_over``."""
        with self._changed:
            self._is_over |= is_over
            if _place.leading is self:
                self._is_led, _place.leading = False, None
            self._changed.notify_all()

    def _finish_or_fail(self) -> bool:
        """Ends the next work. Returns whether more follow."""
        try:
            return self._finish_next()
        except Exception as error:
            self._fail(error)
            return False


class _FinishPlace(threading.local):
    """The work of each thread for groups."""

    #: The threads of which it is the leading one.
    leading: FinishThreads | None = None


_place = _FinishPlace()


def hand_over_finish_thread(_: object = None) -> None:
    """Lets another thread end the works that follow if this one does it until now. It comes before
    callbacks of users."""
    if _place.leading is not None:
        _place.leading.hand_over()


def is_finish_thread() -> bool:
    """Returns whether works wait for this thread, so that it must wait for none."""
    return _place.leading is not None


def finish_in_turn(name: str, ends: Sequence[Callable[[], None]]) -> None:
    """Calls functions that end works, each in a thread for which the next one does not wait. Where
    the system gives no thread, calls them in the caller's."""
    left = deque(ends)

    def finish_next() -> bool:
        """Calls the next function. Returns whether more follow."""
        if left:
            left.popleft()()
        return bool(left)

    try:
        FinishThreads(name, finish_next, lambda _: None).start()
    except errors.LimitReached:
        while finish_next():
            continue
