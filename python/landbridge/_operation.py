"""A collective under way."""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional, Tuple

from . import errors
from ._memory.arena import overlap

if TYPE_CHECKING:
    from ._group import Group
    from ._memory.arena import Block
    from ._memory.arrays import Adapter

#: How long a rank waits for the others to post, unless it says otherwise.
DEFAULT_TIMEOUT_S = 30 * 60.0

log = logging.getLogger("landbridge")


class Timing(NamedTuple):
    """When what happened to one collective: nanoseconds, as ``time.monotonic_ns`` counts."""

    #: The last local rank posted.
    posted_ns: int
    #: The first segment was ready to leave.
    wan_begin_ns: int
    #: The last segment arrived.
    wan_end_ns: int
    #: The result was in place on every local rank.
    ready_ns: int


class _ThreadIs(threading.local):
    """What each thread is about."""

    in_callback = False


_thread_is = _ThreadIs()


def check_caller() -> None:
    """Raises ``InCallback`` where nobody may wait: what it waits for may never come."""
    if _thread_is.in_callback:
        raise errors.InCallback(
            "a callback of a collective must not post, nor wait: the gateway's answers come to the "
            "thread that it holds up, and ranks' callbacks come in no common order; leave that to "
            "another thread"
        )


def check_process(owner: int) -> None:
    """Raises ``ForkedProcess`` where the gateway speaks to another process: ``owner``."""
    if os.getpid() != owner:
        text = f"this process was forked from {owner}, which connected; connect here"
        raise errors.ForkedProcess(text)


class Latch:
    """Opens once. Waiting ends at once on a signal such as Ctrl-C."""

    def __init__(self) -> None:
        # A lock of each thread that waits: who is interrupted holds up nobody else.
        self._waiting: List[_thread.LockType] = []
        self.is_open = False

    def open(self) -> None:
        """Lets everybody through. Where that is interrupted, it can be called again."""
        self.is_open = True
        for lock in list(self._waiting):
            with contextlib.suppress(RuntimeError):  # it has been let through
                lock.release()

    def wait(self, timeout_s: Optional[float]) -> bool:
        """Whether it is open within ``timeout_s``. Raises ``InCallback`` where it would wait."""
        if self.is_open:
            return True
        check_caller()
        timeout = -1.0 if timeout_s is None else min(max(timeout_s, 0.0), threading.TIMEOUT_MAX)
        lock = _thread.allocate_lock()
        lock.acquire()
        try:
            self._waiting.append(lock)
            # Not before: who opens it looks at those that wait after that.
            if not self.is_open:
                lock.acquire(True, timeout)
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(lock)
        return self.is_open


class Delivery:
    """What becomes of the result: where it is, and where it goes."""

    def __init__(
        self,
        like: Adapter,
        out: Optional[Tuple[Any, Adapter]],
        block: Optional[Block],
        contribution: Optional[Adapter],
    ) -> None:
        self._like = like
        # What the caller gave, for that is returned, and how it is written.
        self._given: Any = out and out[0]
        self._out: Optional[Adapter] = out and out[1]
        # `None` when the result is written in place.
        self._block = block
        #: Whether it writes over the contribution that lies in the arena, if one does: not before
        #: that is free, for until then the gateway may send it again.
        self.overwrites = (
            contribution is not None
            and block is not None
            and self._out is not None
            and _may_overlap(contribution, self._out)
        )

    def deliver(self) -> Any:
        """The result as the caller wants it; again where that was interrupted."""
        if self._out is None:
            assert self._block is not None, "a result has a place"
            return self._like.fresh(self._block)
        if self._block is not None:
            self._out.load(self._block)
        return self._given


class _UnderWay:
    """What a group has under way, and may be waited for."""

    def __init__(self, group: Group) -> None:
        # A group that nobody else holds must not go away under it.
        self._group: Optional[Group] = group
        self._owner = os.getpid()

    def _await(self, latch: Latch, timeout_s: Optional[float]) -> bool:
        """Whether ``latch`` is open within ``timeout_s``."""
        check_process(self._owner)
        group = self._group
        if group is None or latch.is_open:
            return latch.wait(timeout_s)
        check_caller()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        group._state.hear_until(latch, timeout_s)
        return latch.wait(None if deadline is None else deadline - time.monotonic())


class Operation(_UnderWay):
    """A collective under way; from ``Group.all_reduce_async`` and the like.

    Two things happen to it, in this order. *Result ready*: ``wait`` returns the result.
    *Contribution free*: ``wait_free`` returns; the gateway will not read the contribution nor
    the result any more. Only arrays made by ``Group.empty`` need to wait for the second, before
    they are written again; others were copied. A result that replaces a contribution made by
    ``Group.empty`` is ready when that is free, not before.

    Where the connection ended (``GatewayLost``) nothing will be heard of it any more, so that
    ``wait_free`` returns. A gateway that still runs, as after ``Group.close``, after a wait that
    was interrupted while it spoke, or before ``Group.recover`` returns, may use the memory until
    the epoch is over: leave arrays made by ``Group.empty`` alone until ``recover`` has returned.
    """

    def __init__(self, delivery: Optional[Delivery], group: Group) -> None:
        super().__init__(group)
        #: The epoch that it belongs to, and its number in the group.
        self.epoch, self.sequence = -1, -1
        #: When what happened, once the result is ready.
        self.timing: Optional[Timing] = None
        # `None` where there is no result, and once it was delivered.
        self._delivery = delivery
        self._result: Any = None
        self._failure: Optional[errors.CollectiveFailed] = None
        #: Whether the gateway uses arrays of the caller's, no copies, until *free*.
        self.lies_in_arena = False
        self._ready = Latch()
        self._free = Latch()
        self._lock = threading.Lock()
        # Those that have not been called.
        self._callbacks: List[Callable[[Operation], None]] = []

    def wait(self, timeout: Optional[float] = None) -> Any:
        """The result, as soon as it is ready; ``None`` of a barrier, and of a reduce to another
        rank. ``timeout`` is in seconds.

        Raises ``WaitTimeout`` when it is not ready in time: the collective goes on. Raises a
        ``CollectiveFailed`` when it failed: the contribution is intact. Raises ``InCallback``.
        """
        if not self._await(self._ready, timeout):
            raise errors.WaitTimeout(f"collective {self.sequence} is not ready after {timeout} s")
        if self._failure is not None:
            raise self._failure
        with self._lock:
            if self._delivery is not None:
                self._result = self._delivery.deliver()
                # And its slot. Not before: what is interrupted is delivered by the next wait.
                self._delivery = None
        return self._result

    def wait_free(self, timeout: Optional[float] = None) -> None:
        """Returns when contribution and result may be written again, after success or failure.

        Raises ``WaitTimeout`` when that is not so after ``timeout`` seconds.
        """
        if not self._await(self._free, timeout):
            text = f"collective {self.sequence} still needs its memory after {timeout} s"
            raise errors.WaitTimeout(text)

    def is_ready(self) -> bool:
        """Whether ``wait`` would return or raise at once."""
        return self._ready.is_open

    def is_free(self) -> bool:
        """Whether ``wait_free`` would return at once."""
        return self._free.is_open

    @property
    def failure(self) -> Optional[errors.CollectiveFailed]:
        """Why it failed, once it has."""
        return self._failure

    def add_done_callback(self, callback: Callable[[Operation], None]) -> None:
        """Calls ``callback`` with this operation when the result is ready or the collective
        failed: in a thread of the client's, in one that waits for a collective, or here and now
        when that is so already. There whatever posts or would wait raises ``InCallback``. What it
        raises is logged."""
        check_process(self._owner)
        with self._lock:
            if not self._ready.is_open:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def _settle(self, timing: Optional[Timing], failure: Optional[errors.CollectiveFailed]) -> None:
        """Result ready, or failed. Called by the group; only the first call counts, and goes on
        where it was interrupted."""
        delivery = self._delivery
        if failure is None and delivery is not None and delivery.overwrites:
            self.timing = timing
        else:
            self._open(timing, failure)

    def _release(self) -> None:
        """Contribution free. Called by the group, again where it was interrupted."""
        # `_open` waits for who copies the result: where nothing is left to do, not that, for it
        # would hold up what else the gateway says.
        if self.timing is not None and (not self._ready.is_open or self._callbacks):
            self._open(self.timing, None)
        self._free.open()
        self._group = None

    def _finish(self, failure: Optional[errors.CollectiveFailed]) -> None:
        """Nothing more will be heard of it. Called by the group, likewise."""
        if failure is not None:
            self._settle(None, failure)
        self._release()

    def _open(self, timing: Optional[Timing], failure: Optional[errors.CollectiveFailed]) -> None:
        """``wait`` returns or raises from here on. Only the first call counts."""
        with self._lock:
            if not self._ready.is_open:
                self.timing, self._failure = timing, failure
                if failure is not None:
                    self._delivery = None
            self._ready.open()
        while self._callbacks:
            with contextlib.suppress(IndexError):  # another thread calls them too
                self._call(self._callbacks.pop(0))

    def _call(self, callback: Callable[[Operation], None]) -> None:
        before, _thread_is.in_callback = _thread_is.in_callback, True
        try:
            callback(self)
        except BaseException as error:
            # Signals such as Ctrl-C come to the main thread; elsewhere nobody would be told.
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and not isinstance(error, Exception):
                raise
            log.exception("a callback of collective %d raised", self.sequence)
        finally:
            _thread_is.in_callback = before


class Commit(_UnderWay):
    """A step that is being committed; from ``Group.commit_async``."""

    def __init__(self, step: int, group: Group) -> None:
        super().__init__(group)
        #: The trainer's number of the step.
        self.step = step
        self._failure: Optional[errors.CollectiveFailed] = None
        self._done = Latch()

    def wait(self, timeout: Optional[float] = None) -> None:
        """Returns when every region has the step's collectives. ``timeout`` is in seconds.

        Raises ``WaitTimeout`` when that is not known in time, and a ``CollectiveFailed`` when
        it will not be known: see ``Group.committed_step``.
        """
        if not self._await(self._done, timeout):
            raise errors.WaitTimeout(f"step {self.step} is not committed after {timeout} s")
        if self._failure is not None:
            raise self._failure

    def is_done(self) -> bool:
        """Whether ``wait`` would return or raise at once."""
        return self._done.is_open

    def _finish(self, failure: Optional[errors.CollectiveFailed]) -> None:
        """Called by the group, again where it was interrupted; then it may be another failure."""
        if not self._done.is_open:
            self._failure = failure
        self._done.open()
        self._group = None


def _may_overlap(one: Adapter, other: Adapter) -> bool:
    """Whether two arrays of as many bytes may share memory: who has gaps is not looked into."""
    here, there = one.address(), other.address()
    if here is None or there is None:
        return True
    return overlap((here, one.nbytes), (there, other.nbytes))
