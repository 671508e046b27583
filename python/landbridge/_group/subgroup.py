"""Groups of some of a group's ranks, made at run time."""

from __future__ import annotations

import os
import struct
import time
import weakref
from collections.abc import Sequence

from .. import errors
from .._arguments import check_integer_argument, check_sequence_argument, check_timeout_argument
from .._operations.operation import DEFAULT_TIMEOUT_S
from .._protocol.connection import Connection
from .._protocol.wire import LeaveGroup, MakeGroup, Request, encode_wire_group_ranks
from .job_state import JobState, JobSubgroupState
from .sending import SendingGroup

#: 2^63: the bit that is set in the place of a group whose ranks gave a tag, which has the bits
#: below. Without it the place has the epoch and a count of the groups that ranks have made.
_TAG_PLACE_BIT = 1 << 63


class ParentGroup(SendingGroup):
    """A group whose ranks make groups of some of them."""

    _state: JobState | JobSubgroupState

    def new_group(
        self,
        ranks: Sequence[int],
        *,
        tag: int | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Subgroup | None:
        """Makes a group of some ranks of this one, without any config.

        All ranks of this group call it, in one epoch, and make their groups in one order. With a
        ``tag`` only the ranks of the new group call it, in any order and any epoch; they give it
        one tag, which none of them uses for another group of this one meanwhile. It takes one round
        trip at most, and waits for no rank: the first collective does.

        Args:
            ranks: The numbers of the ranks in this group, in any order. In the new group they are
                numbered from 0 on, in the order of their numbers here.
            tag: The tag, below 2^63 - 1.
            timeout: How long to wait for the gateways of the ranks, in seconds.

        Returns:
            The group, or ``None`` on a rank that is not one of ``ranks``.

        Raises:
            ConfigError: An argument cannot be used.
            RanksDisagree: Ranks name different ranks for one group.
            BadRequest: The gateways of the ranks have no way to each other but through others, or
                there are too many groups.
            NoEpoch: The gateways did not meet in time.
            GatewayLost, EpochEnded, Closed: As a post in this group, also on ranks of no new group.
        """
        self._check_may_wait()
        check_timeout_argument(timeout)
        chosen = self._ranks_in_job(ranks)
        if tag is None:
            epoch, count = self._state.count_making()
            place = (epoch << 32 | count) & (_TAG_PLACE_BIT - 1)
        else:
            place = _TAG_PLACE_BIT | check_integer_argument("tag", tag, _TAG_PLACE_BIT - 1)
        me = self._rank_in_job(self.rank)
        if me not in chosen:
            return None
        return self._make_subgroup(chosen, chosen.index(me), place, time.monotonic() + timeout)

    def split(
        self, color: int | None, key: int = 0, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Subgroup | None:
        """Makes a group of all ranks that give the same color. All ranks of this group call it.

        Args:
            color: The color, below 2^32; ``None`` on a rank that joins no group.
            key: A number by which ranks of a color would be ordered. Ranks are numbered in the
                order of this group, so keys must not change it. Equal ones do not.
            timeout: How long to wait for the other ranks, in seconds.

        Returns:
            The group, or ``None`` on a rank without a color.

        Raises:
            ConfigError: An argument cannot be used, or the keys ask for another order.
            LandbridgeError: As ``all_gather`` and ``new_group``.
        """
        own = -1 if color is None else check_integer_argument("color", color, 1 << 32)
        key = check_integer_argument("key", key, 1 << 31, -(1 << 31))
        check_timeout_argument(timeout)
        deadline = time.monotonic() + timeout
        # The client in Rust sends the same.
        pair = memoryview(struct.pack("=2q", own, key)).cast("q")
        numbers = self.all_gather(pair, timeout=timeout).tolist()
        given = list(zip(numbers[::2], numbers[1::2]))
        if color is None:
            # It makes no group, but counts with those that do.
            self._state.count_making()
            return None
        same = [(rank, key) for rank, (other, key) in enumerate(given) if other == own]
        keys = [key for _, key in same]
        if keys != sorted(keys):
            # All ranks of the color see it, and count on.
            self._state.count_making()
            raise errors.ConfigError("keys of a split ask for another order of ranks than theirs")
        left = max(deadline - time.monotonic(), 0.001)
        return self.new_group([rank for rank, _ in same], timeout=left)

    def _parent_group(self) -> ParentGroup:
        """Returns the job, which keeps the connection of all groups."""
        return self

    def _ranks_in_job(self, ranks: Sequence[int]) -> list[int]:
        """Returns the numbers in the job of ranks of this group, ascending. Raises
        ``ConfigError``."""
        given = check_sequence_argument("ranks", ranks, "a list of ranks")
        numbers = sorted(check_integer_argument("rank", rank, self._world_size) for rank in given)
        if not numbers or len(set(numbers)) < len(numbers):
            raise errors.ConfigError(f"ranks {numbers}: accepted: at least one rank, each once")
        return [self._rank_in_job(rank) for rank in numbers]

    def _make_subgroup(self, ranks: list[int], rank: int, place: int, deadline: float) -> Subgroup:
        """Makes a group at a place of this one, and waits until its gateways have met. Raises
        ``NoEpoch`` at the deadline, and closes the group after any error."""
        job = self._state.job if isinstance(self._state, JobSubgroupState) else self._state
        parent = 0 if self._state.place is None else self._state.place.number
        made: list[JobSubgroupState] = []

        def register_group() -> tuple[Connection, Request]:
            """Registers the group, and returns the connection and the request to send."""
            state = job.add_subgroup(self._state, rank, len(ranks))
            made.append(state)
            assert state.connection is not None
            number = state.place.number
            return state.connection, MakeGroup(
                number, parent, place, encode_wire_group_ranks(ranks)
            )

        with self._posting:
            self._parent_group()._register_and_send(register_group)
        group = Subgroup(self._parent_group(), made[0], ranks)
        try:
            if not made[0].wait_until(lambda: made[0].is_made, deadline):
                text = "the gateways of the group did not meet in time; see `landbridge status`"
                raise errors.NoEpoch(text)
            made[0].check_usable()
        except BaseException:
            group.close()
            raise
        return group


class Subgroup(ParentGroup):
    """Some ranks of a job, returned by ``Group.new_group`` and ``Group.split``.

    It has all collectives of ``Group``, in an order of its own: nothing waits for other groups. A
    failure in it is nothing to other groups. After the end of its epoch, as when a rank of it was
    lost, posts raise ``EpochEnded``: make the group again on all ranks of its parent, or with a tag
    on its own.

    Attributes:
        rank: The number of this rank in the group.
        ranks: The numbers in the job of all its ranks, ascending.
    """

    _state: JobSubgroupState

    def __init__(self, job: ParentGroup, state: JobSubgroupState, ranks: Sequence[int]) -> None:
        """Makes the group of these ranks of the job, by their numbers there, from its state."""
        super().__init__(state.place.rank, len(ranks), job._arena, state, job._posting)
        self.ranks = tuple(ranks)
        # Keeps the connection.
        self._job = job
        # Leaves a group that nobody closes.
        weakref.finalize(self, JobSubgroupState.request_departure, state).atexit = False

    def close(self) -> None:
        """Leaves the group: now, or with a later request of this rank once nothing of it is under
        way in the group. Groups that are no longer used are left by themselves. No more is sent or
        received in it."""
        state = self._state
        state.close()
        self._close_pairs()
        # Another thread that posts right now leaves it, too.
        if os.getpid() == self._owner and self._posting.acquire(blocking=False):
            try:
                connection = state.connection
                for number in state.take_departures():
                    if connection is not None:
                        connection.send(LeaveGroup(number))
            except OSError as error:
                state.end_connection(connection, f"connection to the gateway ended: {error}")
            finally:
                self._posting.release()

    def recover(
        self, failure: errors.LandbridgeError | None = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Raises ``NotSupported``: after a failure, a group of some ranks is made again."""
        raise errors.NotSupported(
            f"the group of ranks {list(self.ranks)} does not recover: `recover` the group that "
            "`connect` returned on all its ranks, and make this one again by `new_group`"
        ) from failure

    def _rank_in_job(self, rank: int) -> int:
        """Returns the number in the job of a rank of this group."""
        return self.ranks[rank]

    def _parent_group(self) -> ParentGroup:
        """Returns the job, which keeps the connection of all groups."""
        return self._job
