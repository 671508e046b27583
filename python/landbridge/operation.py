"""A collective under way."""

from __future__ import annotations

import _thread
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional

from . import errors
from ._arena import overlap

if TYPE_CHECKING:
    from ._arena import Block
    from ._buffers import Adapter
    from .group import Group

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


class Latch:
    """Opens once. Waiting ends at once on a signal such as Ctrl-C."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self.is_open = False

    def open(self) -> None:
        """Lets everybody through; must be called once."""
        self.is_open = True
        self._lock.release()

    def wait(self, timeout_s: Optional[float]) -> bool:
        """Whether it is open within ``timeout_s``. Raises ``InCallback`` where it would wait."""
        if self.is_open:
            return True
        check_caller()
        timeout = -1.0 if timeout_s is None else min(max(timeout_s, 0.0), threading.TIMEOUT_MAX)
        if self._lock.acquire(True, timeout):
            # For the others that wait.
            self._lock.release()
        return self.is_open


class Delivery:
    """What becomes of the result: where it is, and where it goes."""

    def __init__(
        self,
        like: Adapter,
        out: Optional[Adapter],
        block: Optional[Block],
        contribution: Optional[Adapter],
    ) -> None:
        self._like = like
        self._out = out
        # `None` when the result is written in place.
        self._block = block
        #: Whether it writes over the contribution that lies in the arena, if one does: not before
        #: that is free, for until then the gateway may send it again.
        self.overwrites = bool(contribution and block and out and _may_overlap(contribution, out))

    def deliver(self) -> Any:
        """The result as the caller wants it. The slot is let go of."""
        block = self._block
        if self._out is None:
            if block is None:
                raise RuntimeError("a result is delivered once")
            result = self._like.fresh(block)
        else:
            if block is not None:
                self._out.load(block)
            result = self._out.array
        # Not before: what is interrupted is delivered by the next wait.
        self._block = None
        return result


class Operation:
    """A collective under way; from ``Group.all_reduce_async`` and the like.

    Two things happen to it, in this order. *Result ready*: ``wait`` returns the result.
    *Contribution free*: ``wait_free`` returns; the gateway will not read the contribution nor
    the result any more. Only arrays made by ``Group.empty`` need to wait for the second, before
    they are written again; others were copied. A result that replaces a contribution made by
    ``Group.empty`` is ready when that is free, not before.
    """

    def __init__(self, delivery: Optional[Delivery], group: Group) -> None:
        # A group that nobody else holds must not go away under its collectives.
        self._group: Optional[Group] = group
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
        self._callbacks: Optional[List[Callable[[Operation], None]]] = []

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
        with self._lock:
            if self._callbacks is not None:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def _await(self, latch: Latch, timeout_s: Optional[float]) -> bool:
        """Whether ``latch`` is open within ``timeout_s``."""
        group = self._group
        if group is None or latch.is_open:
            return latch.wait(timeout_s)
        check_caller()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        group._state.hear_until(latch, timeout_s)
        return latch.wait(None if deadline is None else deadline - time.monotonic())

    def _settle(self, timing: Optional[Timing], failure: Optional[errors.CollectiveFailed]) -> None:
        """Result ready, or failed. Called by the group; only the first call counts."""
        delivery = self._delivery
        if failure is None and delivery is not None and delivery.overwrites:
            self.timing = timing
        else:
            self._open(timing, failure)

    def _release(self) -> None:
        """Contribution free. Called by the group, once."""
        if self.timing is not None:
            self._open(self.timing, None)
        self._group = None
        self._free.open()

    def _open(self, timing: Optional[Timing], failure: Optional[errors.CollectiveFailed]) -> None:
        """``wait`` returns or raises from here on. Only the first call counts."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks, None
            if callbacks is None:
                return
            self.timing, self._failure = timing, failure
            if failure is not None:
                self._delivery = None
        self._ready.open()
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[Operation], None]) -> None:
        before, _thread_is.in_callback = _thread_is.in_callback, True
        try:
            callback(self)
        except Exception:
            log.exception("a callback of collective %d raised", self.sequence)
        finally:
            _thread_is.in_callback = before


class Commit:
    """A step that is being committed; from ``Group.commit_async``."""

    def __init__(self, step: int) -> None:
        #: The trainer's number of the step.
        self.step = step
        self._failure: Optional[errors.CollectiveFailed] = None
        self._done = Latch()

    def wait(self, timeout: Optional[float] = None) -> None:
        """Returns when every region has the step's collectives. ``timeout`` is in seconds.

        Raises ``WaitTimeout`` when that is not known in time, and a ``CollectiveFailed`` when
        it will not be known: see ``Group.committed_step``.
        """
        if not self._done.wait(timeout):
            raise errors.WaitTimeout(f"step {self.step} is not committed after {timeout} s")
        if self._failure is not None:
            raise self._failure

    def is_done(self) -> bool:
        """Whether ``wait`` would return or raise at once."""
        return self._done.is_open

    def _settle(self, failure: Optional[errors.CollectiveFailed]) -> None:
        """Called by the group, once."""
        self._failure = failure
        self._done.open()


def _may_overlap(one: Adapter, other: Adapter) -> bool:
    """Whether two arrays of as many bytes may share memory: who has gaps is not looked into."""
    here, there = one.address(), other.address()
    if here is None or there is None:
        return True
    return overlap((here, one.nbytes), (there, other.nbytes))
