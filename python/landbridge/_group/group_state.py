"""The state of a group: the epoch, and what is under way in it.

The trainer's threads register collectives and wait; the thread that reads from the gateway calls
``handle_response`` and ``end_connection``. One lock guards everything here.
"""

from __future__ import annotations

import collections
import copy
import re
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from .. import errors
from .._arguments import PassedArguments
from .._operations.commit import Commit
from .._operations.failure_dumps import FailureDumps
from .._operations.flight_recorder import FlightRecorder
from .._operations.operation import Operation, Timing
from .._operations.posted_collective import PostedCollective
from .._operations.step_confirmations import ExpectedConfirmation, StepConfirmation
from .._operations.store_operation import StoreOperation
from .._operations.waiting import Latch
from .._protocol.connection import Connection, GroupPlace
from .._protocol.store_encoding import decode_store_answer
from .._protocol.wire import (
    CommitFailed,
    Committed,
    ContributionFree,
    EpochAwaited,
    EpochBegan,
    Failed,
    Response,
    ResultReady,
    StoreAnswered,
)

#: 64 steps of one rank may wait to be committed, a limit of gateways;
#: docs/protocol.md section 5. A further commit raises ``BadRequest``.
COMMITS_MAX = 64
#: 256 collectives: a group keeps the arguments of its last ones for the texts of ``RanksDisagree``,
#: also after their end. It forgets those of older ones. As many may be under way.
_PASSED_KEPT = 256
#: 128 requests of one rank to the store may be under way, a limit of gateways;
#: docs/protocol.md section 7. A further request waits until one of them has ended.
STORE_CALLS_MAX = 128
#: 112 of these may wait for a key or an item. So 16 places are left for changes, which others may
#: be waiting for; the client in Rust has the same limit.
STORE_WAITS_MAX = 112
#: The words with which errors after a lost connection begin. Fabrics have many gateways, and the
#: rank's own is meant.
_OWN_GATEWAY_LOST = "this rank is no longer attached to its own gateway"
#: The words in errors for the effect of a lost connection or an ended epoch on a collective.
_CONTRIBUTION_INTACT = "contribution intact"
#: The words in errors for the effect of a lost connection on a request to the store.
_CHANGE_UNKNOWN = "a change may have been made"

#: The pattern with which a gateway's text of a disagreement begins: the number of the collective
#: that it is about. Of a send the text has the tag, too.
_NAMED_COLLECTIVE = re.compile(r"collective (\d+): ")

#: The type of what a look at the state finds.
_T = TypeVar("_T")


class GroupState:
    """The epoch and the collectives of a group, shared by the trainer's threads and the reader.

    It is a ``ConnectionGroupListener``. ``JobState`` and ``JobSubgroupState`` are the kinds.
    """

    #: The place of the rank in the group, or ``None`` for the job itself.
    place: GroupPlace | None = None

    def __init__(self) -> None:
        """Makes the state of a group that is not connected and in no epoch."""
        self._make_locks()
        self.connection: Connection | None = None
        #: The latest known epoch, or 0.
        self.epoch = 0
        #: Whether that epoch is known to be over.
        self.is_over = True
        #: What the gateway waits for while no epoch is under way, in its words, or `None`.
        self.awaited: str | None = None
        #: The epoch that the trainer has agreed to post in.
        self._agreed = 0
        #: The reason why that epoch ended, or `None`.
        self._end_reason: errors.CollectiveFailed | None = None
        #: Number of agreements. An epoch's number is not enough: it may return after all gateways
        #: were started again.
        self.agreements = 0
        self._next = 0
        #: The first number of the epoch, which is also the first place of each series of sends.
        self._first = 0
        #: The next number of each series of sends, by the number of its place 0.
        self._next_in_series: dict[int, int] = {}
        #: The epoch of the last post that no commit covers yet.
        self._uncommitted: int | None = None
        #: The last collectives, by number, with what the caller passed: one that has ended here may
        #: turn out to differ from another rank's.
        self._passed: collections.deque[tuple[int, PassedArguments]]
        self._passed = collections.deque(maxlen=_PASSED_KEPT)
        #: The last collectives of all groups of this rank.
        self.recorder = FlightRecorder()
        #: The dumps of that recorder after failures, or ``None`` where nobody asks for them.
        self.dumps: FailureDumps | None = None
        #: Collectives under way, by number.
        self.entries: dict[int, PostedCollective] = {}
        #: Operations and commits that have left `entries` or `commits` and are being finished.
        #: A signal may interrupt that, so they stay here until it is done.
        self._leaving: set[Operation | Commit | StoreOperation] = set()
        #: The number of threads that wait for a change.
        self._waiting = 0
        #: Commits under way, by step.
        self.commits: dict[int, Commit] = {}
        #: Requests to the store under way, by number.
        self.store_calls: dict[int, StoreOperation] = {}
        self._next_store_call = 0
        #: The last step known to be complete in every region.
        self.committed: int | None = None
        #: The commit of this rank, or of one whose state it has taken, that was confirmed last.
        self.confirmation = StepConfirmation()
        #: That of a state which this rank is to take, as ``agree`` has told it.
        self.expected: ExpectedConfirmation | None = None
        #: The reason why there is no connection, or `None`.
        self.ended: str | None = "not attached"
        self.closed = False
        #: How many groups the ranks have made of this one since this rank agreed to the epoch.
        self._makings = 0

    @property
    def is_epoch_agreed(self) -> bool:
        """Whether the trainer has agreed to post in the current epoch, and that has not ended."""
        return not self.is_over and self.epoch == self._agreed

    @property
    def is_connected(self) -> bool:
        """Whether the rank has agreed to an epoch at least once and the group is open, even after
        its gateway was lost."""
        return self.agreements > 0 and not self.closed

    def agree_to_epoch(self) -> None:
        """Allows posts of the current epoch, in which the trainer begins its step."""
        with self._lock:
            self._agreed, self._end_reason = self.epoch, None
            self._makings = 0
            self.agreements += 1

    @property
    def has_closed(self) -> bool:
        """Whether this process has closed the group, or the job that it is of."""
        return self.closed

    @property
    def has_ended_all(self) -> bool:
        """Whether no collective of the group is under way."""
        return not self.entries and not self._leaving

    @property
    def is_idle(self) -> bool:
        """Whether no collective of this group is under way; ``JobState`` looks at all groups of the
        rank."""
        return self.has_ended_all

    def posted_collectives(self) -> list[PostedCollective]:
        """Returns the collectives of this group that are under way; ``JobState`` returns those of
        all groups of the rank."""
        return list(self.entries.values())

    def take_departures(self) -> list[int]:
        """Returns no numbers: here no group is left. ``JobState`` removes the groups that the rank
        leaves, and returns their numbers."""
        return []

    @property
    def expects_messages(self) -> bool:
        """Whether a thread waits for a message of the gateway or a request is under way."""
        return bool(self.entries or self.commits or self.store_calls or self._waiting)

    def check_usable(self) -> None:
        """Raises ``GatewayLost``, ``EpochEnded`` or ``Closed`` when nothing can be posted."""
        failure = self._post_refusal()
        if failure is not None:
            # The step goes on, so that its results of an epoch that is over are no whole step.
            self._uncommitted = None
            raise failure

    def count_making(self) -> tuple[int, int]:
        """Counts a group that ranks make of this one, whether this rank is in it or not. All ranks
        that have agreed to one epoch count from 1 on, so that a count means one group to them.

        Returns:
            The epoch and the count.

        Raises:
            GatewayLost, EpochEnded, Closed: Nothing can be posted, and nothing was counted.
        """
        with self._lock:
            self.check_usable()
            self._makings += 1
            return self.epoch, self._makings

    def register_collective(
        self, entry: PostedCollective, series: int | None = None
    ) -> tuple[Connection, int, int]:
        """Gives a collective the next number, and notes it as under way.

        Args:
            entry: The collective.
            series: The series of a send, by the number of its place 0; ``None`` for others.

        Returns:
            The connection to post it on, the epoch and the number.

        Raises:
            GatewayLost, EpochEnded, Closed: Nothing can be posted.
        """
        with self._lock:
            # After a change of epoch a collective of the old one may still have the next number,
            # until the message of its failure arrives.
            self._wait_for_change(
                lambda: self._next_number(series) not in self.entries or bool(self._post_refusal()),
                None,
            )
            self.check_usable()
            sequence = self._next_number(series)
            if series is None:
                self._next = sequence + 1
            else:
                self._next_in_series[series] = sequence + 1
            entry.operation.epoch, entry.operation.sequence = self.epoch, sequence
            place = 0 if self.place is None else self.place.number
            self.recorder.add(entry.record_post(place, (self.epoch, sequence)))
            self.entries[sequence] = entry
            self._passed.append((sequence, entry.passed))
            self._uncommitted = self.epoch
            assert self.connection is not None
            return self.connection, self.epoch, sequence

    def register_commit(self, commit: Commit) -> tuple[Connection, int]:
        """Adds a step to commit, and returns the connection and the epoch for the request. Raises
        ``BadRequest`` for a step under way or while ``COMMITS_MAX`` are, and otherwise as
        ``register_collective``."""
        with self._lock:
            # The gateway knows whether the results of an epoch that is over make a complete step.
            covered = self._uncommitted
            refusal = self._post_refusal() if covered is None else self._group_refusal()
            if refusal is not None:
                raise refusal
            if commit.step in self.commits:
                raise errors.BadRequest(f"step {commit.step} is being committed already")
            if len(self.commits) == COMMITS_MAX:
                text = f"{COMMITS_MAX} steps are being committed; wait for one of them"
                raise errors.BadRequest(f"step {commit.step} cannot be committed yet: {text}")
            self.commits[commit.step] = commit
            # Committing posts of an epoch that is over in the current one would confirm nothing.
            self._uncommitted = None
            commit._epoch = self.epoch if covered is None else covered
            assert self.connection is not None
            return self.connection, commit._epoch

    def has_store_room(self, may_wait: bool) -> bool:
        """Returns whether the gateway takes another request to the store, or none any more.
        ``may_wait`` says that its answer may wait for another request."""
        if self.ended is not None:
            return True
        waits = sum(call.may_wait for call in self.store_calls.values())
        return len(self.store_calls) < STORE_CALLS_MAX and not (
            may_wait and waits >= STORE_WAITS_MAX
        )

    def register_store_call(self, call: StoreOperation) -> tuple[Connection, int]:
        """Adds a request to the store, for which there is room, and returns the connection and the
        number for it. Raises ``StoreDisconnected`` or ``Closed``."""
        with self._lock:
            if self.has_closed:
                raise errors.Closed("the group was closed")
            if self.ended is not None:
                raise errors.StoreDisconnected(self._connection_lost_text(_CHANGE_UNKNOWN))
            number, self._next_store_call = self._next_store_call, self._next_store_call + 1
            self.store_calls[number] = call
            assert self.connection is not None
            return self.connection, number

    @property
    def is_usable_now(self) -> bool:
        """Whether something can be posted now."""
        return self._post_refusal() is None

    def look(self, predicate: Callable[[], _T]) -> _T:
        """Returns what a function of this state finds, without a wait."""
        with self._lock:
            return predicate()

    def wait_until(self, predicate: Callable[[], bool], deadline: float | None) -> bool:
        """Waits until a predicate of this state is true. Returns whether it was by ``deadline``, in
        seconds of ``time.monotonic``; ``None`` waits without limit."""
        with self._lock:
            return self._wait_for_change(predicate, deadline)

    def read_until(self, latch: Latch, timeout_s: float | None) -> None:
        """Reads the gateway's messages until ``latch`` opens or the timeout passes.

        Returns at once where another thread reads already, or where there is no connection.

        Raises:
            InCallback: A signal handler calls it while it interrupts the thread that reads.
        """
        connection = self.connection
        if connection is not None:
            self.check_not_in_signal_handler()
            connection.read_until(latch, timeout_s)

    def check_not_in_signal_handler(self) -> None:
        """Raises ``InCallback`` in a signal handler that interrupts the thread that reads, because
        no message would arrive."""
        connection = self.connection
        if connection is not None and connection.is_read_by_this_thread():
            raise errors.InCallback(
                "a signal handler must neither post nor wait while it interrupts a wait for the "
                "gateway; set a flag in it"
            )

    def handle_response(self, connection: Connection, response: Response) -> None:
        """Handles a message of the gateway, in the thread that reads the connection."""
        if connection is not self.connection:
            return  # A connection that was given up.
        if isinstance(response, ResultReady):
            entry = self.entries.get(response.sequence)
            if entry is not None:
                entry.operation._set_outcome(Timing(*response[1:]), None)
        elif isinstance(response, ContributionFree):
            self._finish_collective(response.sequence, None)
        elif isinstance(response, Failed):
            failure = errors.FAILURES[response.code](response.text)
            self._note_passed_arguments(failure, response.sequence)
            self._finish_collective(response.sequence, failure)
            if self.dumps is not None:
                self.dumps.note_failure(type(failure))
        elif isinstance(response, EpochBegan):
            with self._lock:
                if response.ended_code and self.epoch == self._agreed:
                    end = errors.FAILURES[response.ended_code]
                    self._end_reason = end(response.ended_text)
                    self._note_passed_arguments(self._end_reason, None)
                self.epoch, self._next = response.epoch, response.next_sequence
                self._first, self._next_in_series = response.next_sequence, {}
                self.is_over, self.awaited = False, None
                if response.has_committed:
                    self.committed = response.committed
                self._changed.notify_all()
        elif isinstance(response, EpochAwaited):
            self.awaited = response.why
        elif isinstance(response, Committed):
            commit = self.commits.get(response.step)
            epoch = self.epoch if commit is None else commit._epoch
            self.confirmation, self.expected = StepConfirmation(epoch, response.step), None
            # A commit of an epoch that is over may be answered in the next one, which has named
            # this step or a later one.
            if epoch == self.epoch:
                self.committed = response.step
            self._finish_commit(response.step, None)
        elif isinstance(response, CommitFailed):
            failure = errors.FAILURES[response.code](response.text)
            self._note_passed_arguments(failure, None)
            self._finish_commit(response.step, failure)
        elif isinstance(response, StoreAnswered):
            call = self.store_calls.get(response.number)
            if call is not None:
                call._set_answer(decode_store_answer(response.answer))
                self._finish_store_call(response.number, None)

    def _note_passed_arguments(
        self, failure: errors.CollectiveFailed, sequence: int | None
    ) -> None:
        """Adds to a disagreement what the caller passed, where that is known. It may be about an
        earlier collective, which had ended here, than that of this number."""
        if not isinstance(failure, errors.RanksDisagree):
            return
        named = _NAMED_COLLECTIVE.match(failure.text)
        number = int(named[1]) if named else sequence
        # A copy, since a thread that posts may add to it.
        for known, passed in tuple(self._passed):
            if known == number:
                failure.here = passed.describe()

    def expects_result(self, connection: Connection, sequence: int, end: int) -> bool:
        """Returns whether a collective is under way whose result has at least ``end`` bytes."""
        entry = self.entries.get(sequence)
        return connection is self.connection and entry is not None and end <= entry.slots[1][1]

    def write_result(
        self, connection: Connection, sequence: int, offset: int, part: memoryview
    ) -> None:
        """Writes a part of a result, unless the collective has ended: another array may then have
        its memory."""
        with self._lock:
            entry = self.entries.get(sequence)
            if connection is self.connection and entry is not None:
                connection.write_to_arena(entry.slots[1][0] + offset, part)

    def end_connection(self, connection: Connection | None, reason: str) -> None:
        """Ends a connection, and fails everything under way with ``GatewayLost`` and the reason.
        Does nothing for a connection that another one has replaced. ``None`` ends a group that has
        no connection, since none came up again."""
        with self._lock:
            if self.ended is None:
                if connection is not self.connection:
                    return  # A connection that was given up.
                self.ended = reason
            self._changed.notify_all()
        self.finish_ending_connection()

    def lose_connection(self, connection: Connection | None, reason: str) -> None:
        """Ends a connection as ``end_connection`` does, where this process has not asked for it. The
        collectives that fail by it are dumped."""
        fails_collectives = connection is self.connection and not self.is_idle
        self.end_connection(connection, reason)
        if fails_collectives and self.dumps is not None:
            self.dumps.note_failure(errors.GatewayLost)

    def finish_ending_connection(self) -> None:
        """Completes an ``end_connection`` that a signal may have interrupted: fails everything
        under way. Does nothing while the connection has not ended."""
        with self._ending:
            if self.ended is None:
                return
            connection = self.connection
            if connection is not None:
                connection.shut_down_socket()
                self.connection = None
            text = self._connection_lost_text(_CONTRIBUTION_INTACT)
            for leaving in list(self._leaving):
                self._finish_leaving(leaving, errors.GatewayLost(text))
            for step in sorted(self.commits):
                self._finish_commit(step, errors.GatewayLost(text))
            for number in sorted(self.store_calls):
                failure = errors.StoreDisconnected(self._connection_lost_text(_CHANGE_UNKNOWN))
                self._finish_store_call(number, failure)
            for sequence in sorted(self.entries):
                self._finish_collective(sequence, errors.GatewayLost(text))

    def close(self) -> None:
        """Ends the connection for good, after which posts raise ``Closed``."""
        self.closed = True
        self.end_connection(self.connection, "the group was closed")

    def shut_down_connection(self) -> None:
        """Shuts down the connection of a group that no longer exists, so that its reader thread
        ends."""
        connection = self.connection
        if connection is not None:
            connection.shut_down_socket()

    def reset_after_fork(self) -> None:
        """Forgets everything under way in a forked process, which has no other thread."""
        self._make_locks()
        # Nothing is finished here: the outcome is unknown, the callbacks are for the parent
        # process, and threads that do not exist here may have held the locks.
        self.entries, self.commits, self._leaving = {}, {}, set()
        self.store_calls = {}
        self.shut_down_connection()

    def _make_locks(self) -> None:
        """Makes new locks, at the start and in a forked process."""
        # The lock is taken by itself: entering a condition is a call, after which Ctrl-C could
        # leave it taken.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Held while everything under way is failed. A callback may then close the group, so it is
        # reentrant. It is taken before `_lock`, never while that is held.
        self._ending = threading.RLock()

    def _wait_for_change(self, predicate: Callable[[], bool], deadline: float | None) -> bool:
        """Waits until a predicate is true or ``deadline`` passes, and returns whether it is true.
        The caller holds the lock."""
        if predicate():
            return True
        left = None
        if deadline is not None:
            left = min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
        self._waiting += 1
        try:
            connection = self.connection  # Another thread may drop it.
            if connection is not None:
                connection.wake_reader()
            return self._changed.wait_for(predicate, left)
        finally:
            self._waiting -= 1

    def _next_number(self, series: int | None) -> int:
        """Returns the number of the next collective, or of the next send of a series."""
        if series is None:
            return self._next
        return self._next_in_series.get(series, series + self._first)

    def check_connected(self) -> None:
        """Raises ``GatewayLost`` or ``Closed`` when nothing can be asked of the gateway."""
        failure = self._connection_refusal()
        if failure is not None:
            raise failure

    def _connection_refusal(self) -> errors.LandbridgeError | None:
        """Returns the error of a request that needs the connection, or ``None`` where there is
        one."""
        if self.has_closed:
            return errors.Closed("the group was closed")
        if self.ended is not None:
            return errors.GatewayLost(self._connection_lost_text(_CONTRIBUTION_INTACT))
        return None

    def _connection_lost_text(self, effect: str) -> str:
        """Returns the text of an error of a connection that ended, with its effect. No ``recover``
        attaches a group again that this process closed."""
        if self.has_closed:
            return f"{self.ended}; {effect}; `connect` makes a new one"
        return f"{_OWN_GATEWAY_LOST}: {self.ended}; {effect}; `recover` attaches again"

    def _post_refusal(self) -> errors.LandbridgeError | None:
        """Returns the error of a post that is not possible now, or ``None`` where posts are
        possible."""
        refusal = self._group_refusal()
        return refusal or (None if self.is_epoch_agreed else self._epoch_end_error())

    def _group_refusal(self) -> errors.LandbridgeError | None:
        """Returns the error of a request to a group that is over, or ``None`` while it is not."""
        return self._connection_refusal()

    def _epoch_end_error(self) -> errors.CollectiveFailed:
        """Returns the error of a post in the epoch that the trainer agreed to and that ended."""
        end = self._end_reason
        if isinstance(end, errors.POSTS_AT_FAULT):
            # Other ranks raise the same, and another attempt would fail too.
            return copy.copy(end)
        # Ranks may have failed at different places of a step, so each must begin it again.
        text = f"epoch {self._agreed} ended{group_epoch_end_words(end)}; {_CONTRIBUTION_INTACT}"
        return errors.EpochEnded(f"{text}; call `recover` and begin the step again")

    def _finish_collective(self, sequence: int, failure: errors.CollectiveFailed | None) -> None:
        """Ends the collective of this number with or without a failure. It does nothing for one
        that has ended. The epoch is over after one of ``errors.EPOCH_ENDING_FAILURES`` in it."""
        with self._lock:
            entry = self.entries.get(sequence)
            if entry is None:
                return
            operation = entry.operation
            if isinstance(failure, errors.EPOCH_ENDING_FAILURES) and operation.epoch == self.epoch:
                self.is_over = True
            # It may have carried the state.
            self.expected = None if failure else self.expected
            self._leaving.add(operation)
            # The slots are free before the threads that wait for room are notified.
            del self.entries[sequence], entry
        self._finish_leaving(operation, failure)

    def _finish_commit(self, step: int, failure: errors.CollectiveFailed | None) -> None:
        """Ends the commit of this step with or without a failure. It does nothing for one that has
        ended."""
        with self._lock:
            commit = self.commits.get(step)
            if commit is None:
                return
            self._leaving.add(commit)
            del self.commits[step]
        self._finish_leaving(commit, failure)

    def _finish_store_call(self, number: int, failure: errors.StoreDisconnected | None) -> None:
        """Ends the request to the store of this number. It does nothing for one that has ended."""
        with self._lock:
            call = self.store_calls.get(number)
            if call is None:
                return
            self._leaving.add(call)
            del self.store_calls[number]
        self._finish_leaving(call, failure)

    def _finish_leaving(self, leaving: Operation | Commit | StoreOperation, failure: Any) -> None:
        """Finishes an operation, a commit or a call that is no longer under way. It is called again
        after an interruption."""
        leaving._finish(failure)
        with self._lock:
            self._leaving.discard(leaving)
            self._changed.notify_all()


def group_epoch_end_words(end: errors.CollectiveFailed | None) -> str:
    """Returns why an epoch ended, in parentheses, for the text of an ``EpochEnded``; nothing where
    that is not known."""
    if end is None:
        return ""
    # The words of its kind stand in front of the whole text already.
    return f" ({end.text if isinstance(end, errors.EpochEnded) else end})"

