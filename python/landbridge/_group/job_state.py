"""The state of an attached rank: its connection, its job, and the groups that it has made.

``JobState`` is the ``ConnectionListener`` of the rank's connection. The thread that reads from the
gateway calls it, as do the trainer's threads. All groups of a rank have one lock.
"""

from __future__ import annotations

import collections
import copy
from typing import Any

from .. import errors
from .._operations.posted_collective import PostedCollective
from .._protocol.connection import Connection, GroupPlace
from .._protocol.wire import (
    Disbanded,
    EpochBegan,
    Response,
    WorldChanged,
    decode_wire_group_ranks,
)
from .group_state import GroupState, group_epoch_end_words


class JobState(GroupState):
    """The state of the job as a group of all its ranks, and of the rank's other groups."""

    def __init__(self) -> None:
        """Makes the state of a job that is not connected and has no other groups."""
        super().__init__()
        #: The groups that the rank has made and not left, by its own numbers.
        self.subgroups: dict[int, JobSubgroupState] = {}
        #: Groups that the rank leaves once nothing of it is under way there. The garbage collector
        #: adds some, in any thread, so this needs no lock.
        self.departures: collections.deque[int] = collections.deque()
        self._last_number = 0
        #: The ranks with which the job goes on, by their numbers in the fabric, or ``None`` while all
        #: do.
        self.world: tuple[int, ...] | None = None

    def begin_connection(self, connection: Connection) -> None:
        """Replaces the connection by a new one, on which the rank is in no epoch and in no group
        but the job. Starts its reader thread."""
        # Not while another thread still ends the previous connection.
        with self._ending, self._lock:
            self.connection, self.ended, self.is_over = connection, None, True
            self._agreed, self._end_reason, self.awaited = 0, None, None
            self.subgroups = {}
            self.world = None
        connection.start_reader(self)

    def handle_response(self, connection: Connection, response: Response) -> None:
        """Handles a message of the gateway about the job."""
        if isinstance(response, WorldChanged) and connection is self.connection:
            self.world = decode_wire_group_ranks(response.ranks)
            self.recorder.world_size = len(self.world)
            connection.enter_world(self.world)
        super().handle_response(connection, response)

    @property
    def expects_messages(self) -> bool:
        """Whether a thread waits for a message of the gateway or a request of any group is under
        way."""
        if super().expects_messages:
            return True
        return any(group.has_requests for group in list(self.subgroups.values()))

    @property
    def is_idle(self) -> bool:
        """Whether no collective of any group is under way."""
        groups = list(self.subgroups.values())
        return self.has_ended_all and all(group.has_ended_all for group in groups)

    def posted_collectives(self) -> list[PostedCollective]:
        """Returns the collectives of all groups that are under way."""
        entries = super().posted_collectives()
        for group in list(self.subgroups.values()):
            entries += group.entries.values()
        return entries

    def group_listener(self, number: int) -> GroupState | None:
        """Returns the state of a group, or ``None`` for one that the rank has left."""
        return self if number == 0 else self.subgroups.get(number)

    def add_subgroup(self, parent: GroupState, rank: int, size: int) -> JobSubgroupState:
        """Adds a group of ``size`` ranks in which this one has the number ``rank``. Raises
        ``GatewayLost``, ``EpochEnded`` or ``Closed`` as a post in its parent; of a parent in which
        this rank has met no others, it needs the connection alone."""
        with self._lock:
            if parent.agreements == 0:
                parent.check_connected()
            else:
                parent.check_usable()
            return self._enter_subgroup(JobSubgroupState(self, self._next_place(rank, size)))

    def add_pair(self, parent: GroupState, rank: int) -> JobPairState:
        """Adds the group in which this rank, with the number ``rank``, and another one send to each
        other. It needs no epoch of its parent. Raises ``GatewayLost`` or ``Closed``."""
        with self._lock:
            parent.check_connected()
            pair = JobPairState(self, self._next_place(rank, 2))
            self._enter_subgroup(pair)
            return pair

    def _next_place(self, rank: int, size: int) -> GroupPlace:
        """Returns a rank's place in its next group."""
        self._last_number += 1
        return GroupPlace(self._last_number, rank, size)

    def _enter_subgroup(self, group: JobSubgroupState) -> JobSubgroupState:
        """Adds a group on the connection of the job."""
        group.connection, group.ended = self.connection, None
        self.subgroups[group.place.number] = group
        return group

    @property
    def locks(self) -> tuple[Any, ...]:
        """The locks of all groups: of the state, for its changes, and of an end."""
        return self._lock, self._changed, self._ending

    def take_departures(self) -> list[int]:
        """Removes the groups that the rank leaves and in which nothing is under way, commits
        included. Returns their numbers."""
        left = []
        for _ in range(len(self.departures)):
            number = self.departures.popleft()
            with self._lock:
                group = self.subgroups.get(number)
                if group is not None and group.has_ended_all and not group.commits:
                    del self.subgroups[number]
                    left.append(number)
                elif group is not None:
                    self.departures.append(number)
        return left

    def finish_ending_connection(self) -> None:
        """Completes an ``end_connection`` that a signal may have interrupted: fails everything
        under way, in all groups."""
        super().finish_ending_connection()
        with self._ending:
            if self.ended is None:
                return
            for group in list(self.subgroups.values()):
                group.ended = self.ended
                group.finish_ending_connection()
            with self._lock:
                self._changed.notify_all()

    def reset_after_fork(self) -> None:
        """Forgets everything under way in a forked process."""
        super().reset_after_fork()
        self.subgroups = {}
        self.departures.clear()


class JobSubgroupState(GroupState):
    """The state of a group that ranks made. It is usable in its first epoch alone."""

    place: GroupPlace

    def __init__(self, job: JobState, place: GroupPlace) -> None:
        """Makes the state of a group at a place of the job. Its gateways have not met yet."""
        self.job = job
        super().__init__()
        self.recorder, self.dumps = job.recorder, job.dumps
        self.place = place
        #: Why the group was not made, or is over; ``None`` while it is not.
        self.disbanded: errors.CollectiveFailed | None = None

    @property
    def has_requests(self) -> bool:
        """Whether a thread waits for a message about the group or a request is under way in it."""
        return bool(self.entries or self.commits or self._waiting)

    @property
    def has_closed(self) -> bool:
        """Whether this process has closed the group, or the job that it is of."""
        return self.closed or self.job.closed

    @property
    def is_made(self) -> bool:
        """Whether the gateways of the group have met, or it is known that they will not."""
        return self.agreements > 0 or self.disbanded is not None or self.ended is not None

    @property
    def is_idle(self) -> bool:
        """Whether no collective of any group is under way."""
        return self.job.is_idle

    def posted_collectives(self) -> list[PostedCollective]:
        """Returns the collectives of all groups that are under way."""
        return self.job.posted_collectives()

    def take_departures(self) -> list[int]:
        """Removes the groups that the rank leaves. Returns their numbers."""
        return self.job.take_departures()

    def handle_response(self, connection: Connection, response: Response) -> None:
        """Handles a message of the gateway about the group."""
        super().handle_response(connection, response)
        if isinstance(response, EpochBegan) and self.agreements == 0:
            self.agree_to_epoch()
        elif isinstance(response, Disbanded):
            self.disbanded = errors.FAILURES[response.code](response.text)
        else:
            return
        with self._lock:
            self._changed.notify_all()

    def end_connection(self, connection: Connection | None, reason: str) -> None:
        """Ends the connection, which all groups of the rank share."""
        self.job.end_connection(connection, reason)

    def lose_connection(self, connection: Connection | None, reason: str) -> None:
        """Ends the connection, which all groups of the rank share, and has that dumped."""
        self.job.lose_connection(connection, reason)

    def close(self) -> None:
        """Leaves the group with the next request, or later once nothing is under way in it."""
        if not self.closed:
            self.closed = True
            self.request_departure()

    def request_departure(self) -> None:
        """Leaves the group as ``close`` does. The garbage collector may call it."""
        self.job.departures.append(self.place.number)

    def _make_locks(self) -> None:
        """Uses the locks of the job, because all groups of a rank share them."""
        self._lock, self._changed, self._ending = self.job.locks

    def _group_refusal(self) -> errors.LandbridgeError | None:
        """Returns the error of a request to a group that is over, or ``None`` while it is not."""
        if not self.closed and self.disbanded is not None:
            failure = self.disbanded
            return type(failure)(failure.text)
        return super()._group_refusal()

    def _epoch_end_error(self) -> errors.CollectiveFailed:
        """Returns the error of a post after the end of the group's epoch."""
        end = self._end_reason
        if isinstance(end, errors.POSTS_AT_FAULT):
            return copy.copy(end)
        why = group_epoch_end_words(end)
        text = f"epoch {self._agreed} of the group ended{why}; contribution intact"
        text = f"{text}; make the group again on all ranks of its parent, or with a tag"
        return errors.EpochEnded(text)


class JobPairState(JobSubgroupState):
    """The state of a group in which two ranks send to each other. It is usable in every epoch,
    since no step depends on it."""

    @property
    def is_usable(self) -> bool:
        """Whether sends are possible, now or in an epoch to come."""
        return self.disbanded is None and self.ended is None

    @property
    def is_made(self) -> bool:
        """Whether the two are in an epoch, or it is known that they never will be."""
        return self.is_epoch_agreed or not self.is_usable

    def handle_response(self, connection: Connection, response: Response) -> None:
        """Handles a message of the gateway about the group."""
        super().handle_response(connection, response)
        if isinstance(response, EpochBegan) and not self.is_epoch_agreed:
            self.agree_to_epoch()
            with self._lock:
                self._changed.notify_all()

    def _epoch_end_error(self) -> errors.CollectiveFailed:
        """Returns the error of a send after the end of the epoch of both ranks."""
        why = group_epoch_end_words(self._end_reason)
        text = f"the gateways of both ranks do not meet{why}; contribution intact; send again"
        return errors.EpochEnded(text)
