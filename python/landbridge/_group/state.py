"""What a group knows of its connection: the epoch, and the collectives under way."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Set, Tuple, Union

from .. import errors
from .._operation import Commit, Latch, Operation, Timing
from .._protocol.connection import Link
from .._protocol.wire import (
    CommitFailed,
    Committed,
    ContributionFree,
    EpochBegan,
    Failed,
    Response,
    ResultReady,
)

#: Steps of one rank that wait to be committed; docs/protocol.md section 5.
COMMITS_MAX = 64

#: Offset and length of a part of the arena.
Slot = Tuple[int, int]


class Entry(NamedTuple):
    """What must not go away before the gateway is done with it."""

    operation: Operation
    #: Of the contribution and of the result.
    slots: Tuple[Slot, Slot]
    held: Tuple[Any, ...]


class State:
    """Shared between the trainer's threads and the one that reads."""

    def __init__(self) -> None:
        self._make_locks()
        self.link: Optional[Link] = None
        #: The latest epoch heard of, 0 for none, and whether it is known to be over.
        self.epoch = 0
        self.is_over = True
        #: The epoch that the trainer has agreed to post in.
        self._agreed = 0
        #: How often it has agreed: epochs count anew where all gateways are started anew.
        self.agreements = 0
        self._next = 0
        #: The epoch of the last post that no commit covers yet.
        self._uncommitted: Optional[int] = None
        self.entries: Dict[int, Entry] = {}
        #: What is in `entries` or `commits` no more and is being told how it ended. Whoever does
        #: that may be interrupted, so it stays here until that is done.
        self._leaving: Set[Union[Operation, Commit]] = set()
        #: Threads that wait for a change.
        self._waiting = 0
        #: Steps that are being committed.
        self.commits: Dict[int, Commit] = {}
        #: The last step known to be complete in every region.
        self.committed: Optional[int] = None
        #: Why there is no connection.
        self.ended: Optional[str] = "not attached"
        self.closed = False

    def begin(self, link: Link) -> None:
        """A new connection, in no epoch yet."""
        # Not while another thread still ends the one before.
        with self._ending, self._lock:
            self.link, self.ended, self.is_over = link, None, True
            self._agreed = 0
        link.listen(self)

    @property
    def is_agreed(self) -> bool:
        """Whether the trainer posts in the epoch under way."""
        return not self.is_over and self.epoch == self._agreed

    @property
    def is_connected(self) -> bool:
        """Whether it was once, for a failure is recovered from, and was not closed."""
        return self.agreements > 0 and not self.closed

    def agree(self) -> None:
        """The trainer begins its step anew, in the epoch under way."""
        with self._lock:
            self._agreed = self.epoch
            self.agreements += 1

    @property
    def is_idle(self) -> bool:
        """Whether no memory will come back from the gateway."""
        return not self.entries and not self._leaving

    @property
    def is_busy(self) -> bool:
        """Whether the gateway is about to say something."""
        return bool(self.entries or self.commits or self._waiting)

    def check_usable(self) -> None:
        """Raises ``GatewayLost``, ``EpochEnded``, ``Closed`` where nothing can be posted."""
        failure = self._why_not()
        if failure is not None:
            raise failure

    def register(self, entry: Entry) -> Tuple[Link, int, int]:
        """Numbers a collective. Raises ``GatewayLost``, ``EpochEnded``, ``Closed``."""
        with self._lock:
            # After a change of epoch a number may still be taken by a collective of the old
            # one, whose failure is on its way.
            self._wait_for(lambda: self._next not in self.entries or bool(self._why_not()), None)
            self.check_usable()
            sequence, self._next = self._next, self._next + 1
            entry.operation.epoch, entry.operation.sequence = self.epoch, sequence
            self.entries[sequence] = entry
            self._uncommitted = self.epoch
            assert self.link is not None
            return self.link, self.epoch, sequence

    def register_commit(self, commit: Commit) -> Tuple[Link, int]:
        """Notes a step to commit. Raises what ``register`` raises."""
        with self._lock:
            self.check_usable()
            if commit.step in self.commits or len(self.commits) == COMMITS_MAX:
                text = "is being committed already" if commit.step in self.commits else "waits"
                raise errors.BadRequest(f"step {commit.step} {text}; at most {COMMITS_MAX} do")
            self.commits[commit.step] = commit
            # What was posted in an epoch that is over has failed, and in this one there would
            # be nothing to confirm.
            covered, self._uncommitted = self._uncommitted, None
            assert self.link is not None
            return self.link, self.epoch if covered is None else covered

    def wait_until(self, predicate: Callable[[], bool], deadline: Optional[float]) -> bool:
        """Whether it came true before the deadline of ``time.monotonic``."""
        with self._lock:
            return self._wait_for(predicate, deadline)

    def hear_until(self, latch: Latch, timeout_s: Optional[float]) -> None:
        """Reads what the gateway says until ``latch`` is open, for so long at most, unless
        another thread does."""
        link = self.link
        if link is not None:
            self.check_handler()
            link.read_until(latch, timeout_s)

    def check_handler(self) -> None:
        """Raises ``InCallback`` in a signal's handler that interrupts who reads: nothing that it
        waits for would be heard."""
        link = self.link
        if link is not None and link.is_read_here():
            raise errors.InCallback(
                "the handler of a signal must not post, nor wait, while what it interrupts waits "
                "for the gateway: have it set a flag"
            )

    def handle(self, link: Link, response: Response) -> None:
        """A message of the gateway, in the thread that reads it."""
        if link is not self.link:
            return  # of a connection that was given up
        if isinstance(response, ResultReady):
            entry = self.entries.get(response.sequence)
            if entry is not None:
                entry.operation._settle(Timing(*response[1:]), None)
        elif isinstance(response, ContributionFree):
            self._finish(response.sequence, None)
        elif isinstance(response, Failed):
            self._finish(response.sequence, errors.FAILURES[response.code](response.text))
        elif isinstance(response, EpochBegan):
            with self._lock:
                self.epoch, self._next = response.epoch, response.next_sequence
                self.is_over = False
                if response.has_committed:
                    self.committed = response.committed
                self._changed.notify_all()
        elif isinstance(response, Committed):
            self.committed = response.step
            self._finish_commit(response.step, None)
        elif isinstance(response, CommitFailed):
            self._finish_commit(response.step, errors.FAILURES[response.code](response.text))

    def end(self, link: Optional[Link], why: str) -> None:
        """The connection is gone, and with it everything under way."""
        with self._lock:
            if self.ended is None:
                if link is not self.link:
                    return  # it was given up
                self.ended = why
            self._changed.notify_all()
        self.finish_end()

    def finish_end(self) -> None:
        """What ``end`` has to do, or what is left of that where a signal interrupted it."""
        with self._ending:
            if self.ended is None:
                return
            link = self.link
            if link is not None:
                link.hang_up()
                self.link = None
            why = _lost(self.ended)
            for leaving in list(self._leaving):
                self._complete(leaving, errors.GatewayLost(why))
            for step in sorted(self.commits):
                self._finish_commit(step, errors.GatewayLost(why))
            for sequence in sorted(self.entries):
                self._finish(sequence, errors.GatewayLost(why))

    def close(self) -> None:
        """For good."""
        self.closed = True
        self.end(self.link, "the group was closed")

    def hang_up(self) -> None:
        """Nobody can wait for anything any more."""
        link = self.link
        if link is not None:
            link.hang_up()

    def after_fork(self) -> None:
        """In a forked process: nothing here is ours, and no other thread lives."""
        self._make_locks()
        # Nobody is told how they end: it is not known here, their callbacks are another process's
        # matter, and threads that are not there may have held their locks.
        self.entries, self.commits, self._leaving = {}, {}, set()
        self.hang_up()

    def _make_locks(self) -> None:
        # Taken by itself: taking a condition is a call, at whose end Ctrl-C may leave it taken.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Of who tells everybody that the connection is gone; a callback may close the group.
        # Taken before the other lock, never while that is held.
        self._ending = threading.RLock()

    def _wait_for(self, predicate: Callable[[], bool], deadline: Optional[float]) -> bool:
        """With the lock held."""
        if predicate():
            return True
        left = None
        if deadline is not None:
            left = min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
        self._waiting += 1
        try:
            link = self.link  # another thread may drop it
            if link is not None:
                link.attend()
            return self._changed.wait_for(predicate, left)
        finally:
            self._waiting -= 1

    def _why_not(self) -> Optional[errors.LandbridgeError]:
        """Why nothing can be posted."""
        if self.closed:
            return errors.Closed("the group was closed")
        if self.ended is not None:
            return errors.GatewayLost(_lost(self.ended))
        if not self.is_agreed:
            # Ranks may have failed in different places of a step, so each must begin it anew.
            text = f"epoch {self._agreed} ended; contribution intact"
            return errors.EpochEnded(f"{text}; call `recover` and begin the step again")
        return None

    def _finish(self, sequence: int, failure: Optional[errors.CollectiveFailed]) -> None:
        with self._lock:
            entry = self.entries.get(sequence)
            if entry is None:
                return
            operation = entry.operation
            if isinstance(failure, _EPOCH_ENDING) and operation.epoch == self.epoch:
                self.is_over = True
            self._leaving.add(operation)
            # Slots go before those are told who wait for room.
            del self.entries[sequence], entry
        self._complete(operation, failure)

    def _finish_commit(self, step: int, failure: Optional[errors.CollectiveFailed]) -> None:
        with self._lock:
            commit = self.commits.get(step)
            if commit is None:
                return
            self._leaving.add(commit)
            del self.commits[step]
        self._complete(commit, failure)

    def _complete(
        self, leaving: Union[Operation, Commit], failure: Optional[errors.CollectiveFailed]
    ) -> None:
        """It is told how it ended; again where that was interrupted."""
        leaving._finish(failure)
        with self._lock:
            self._leaving.discard(leaving)
            self._changed.notify_all()


def _lost(why: str) -> str:
    return f"{why}; contribution intact; `recover` attaches anew"


_EPOCH_ENDING = (errors.EpochEnded, errors.RegionLost, errors.GatewayShuttingDown)
