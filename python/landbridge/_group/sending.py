"""Sends and receives: an array from one rank to another, matched by a tag.

``Group`` inherits them. Two ranks that send to each other have a group of their own, which the
first send or receive makes. So others neither wait for them nor hear of their failures.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

from .. import errors
from .._arguments import check_integer_argument, check_timeout_argument
from .._memory.arena import Arena
from .._memory.arrays import ArrayAdapter, adapt_array
from .._operations.operation import DEFAULT_TIMEOUT_S, Operation
from .._operations.waiting import Latch
from .._protocol.collective_types import CollectiveKind, Dtype
from .._protocol.connection import Connection
from .._protocol.wire import MakeGroup, Request, encode_wire_group_ranks
from .blocks import BlockCollectives, MovedArrays
from .collective_poster import check_posted_result_array, posted_agreed_array
from .group_state import GroupState
from .job_state import JobPairState, JobState, JobSubgroupState
from .whole_arrays import WholeArrayCollectives

#: 2^64 - 1: the place of every group of two ranks for their sends. A place numbers the groups of a
#: job, and no other group has this one.
_PAIR_PLACE = (1 << 64) - 1
#: 65,536 tags of sends, from 0 on: as many as the 16 bits of a tag can name. A tag that is not
#: below raises ``ConfigError``.
_TAG_COUNT = 1 << 16
#: 2^61, bit 61: set in the number of a send, and in that of no other collective; docs/protocol.md
#: section 2.
_SEND_BIT = 1 << 61
#: 60: the place of the bit that names the sender in the number of a send. The bit is the sender's
#: rank, 0 or 1, in the group of two.
_SENDER_SHIFT = 60
#: 44 bits, the lowest in the number of a send: they hold the send's place in its series. The tag
#: stands in the bits above them.
_TAG_SHIFT = 44


#: 1 ms: the least timeout of a send whose ranks have met just before its time was over. Then the
#: gateway tells both of them.
_TIME_LEFT_MIN_S = 0.001


class SendingGroup(WholeArrayCollectives):
    """A group whose ranks send to each other."""

    _state: JobState | JobSubgroupState

    def __init__(
        self, rank: int, world_size: int, arena: Arena, state: GroupState, posting: threading.RLock
    ) -> None:
        """Prepares posts, as ``CollectivePoster``, for a rank that has sent to no other rank
        yet."""
        super().__init__(rank, world_size, arena, state, posting)
        # The groups of this rank and each other one that it has sent to or received from.
        self._pairs: dict[int, JobPairState] = {}

    def send(
        self,
        array: Any,
        dst: int,
        tag: int = 0,
        *,
        dtype: str | None = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Sends an array to one other rank, bit for bit, and waits until that rank has received it.

        The other rank calls ``receive`` with the same tag, and with an array of the same dtype and
        shape. Of a tag the first send meets the first receive, the second the second, and so on,
        also where one of them fails. Sends with different tags wait for nothing of each other, and
        no third rank is waited for. A rank may use at most 1,024 tags to another one, and as many
        from it.

        Other ranks and collectives of this group do not notice a failure. After it call again: the
        call waits for the next epoch of the two. The first call for a rank takes a round trip more.

        Args:
            array: The array, of any dtype that ``broadcast`` takes.
            dst: The rank that receives it, by its number in this group.
            tag: The tag, below 65,536.
            dtype: As for ``all_reduce``, like ``layout`` and ``timeout``.

        Raises:
            ConfigError: An argument cannot be used, or ``dst`` is this rank.
            RanksDisagree: The other rank receives another dtype or shape; it raises the same.
            BadRequest: This rank is in 4,096 groups, where two ranks that send to each other have
                one; or the job has 32,768 such pairs.
            LandbridgeError: As ``all_reduce``.
        """
        self._start_and_wait(
            lambda: self.send_async(array, dst, tag, dtype=dtype, layout=layout, timeout=timeout)
        )

    def send_async(
        self,
        array: Any,
        dst: int,
        tag: int = 0,
        *,
        dtype: str | None = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Operation:
        """Starts a ``send``, and returns the operation before the other rank has received it.
        An array from ``Group.empty`` must stay unchanged until ``Operation.wait_free``; others are
        copied. The first call for ``dst`` blocks for one round trip."""
        self._check_may_wait()
        source = adapt_array(array, None if dtype is None else Dtype.from_name(dtype))
        other, number = self.check_send_arguments("dst", dst, tag)
        pair, left = self._pair_with(other, timeout)
        return pair.start_end(pair.rank, source, None, number, layout, left)

    def receive(
        self,
        like: Any,
        src: int,
        tag: int = 0,
        *,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Receives the array that one other rank sends with the same tag, and waits for it.

        To look for a message from time to time, post one ``receive_async`` and poll its
        ``wait(0.2)``. A receive that expires, or that a signal leaves, still uses up one send.

        Args:
            like: An array of the kind, dtype and shape of the one that is sent. Its elements are
                not read.
            src: The rank that sends it, by its number in this group.
            out: An array for the result, of the same kind, dtype and shape: ``like`` itself
                receives in place. The default is a new array.
            tag: As for ``send``, like all arguments not named here.

        Returns:
            The array that the other rank sent.

        Raises:
            LandbridgeError: As ``send``.
        """
        return self._start_and_wait(
            lambda: self.receive_async(
                like, src, tag, out=out, dtype=dtype, layout=layout, timeout=timeout
            )
        )

    def receive_async(
        self,
        like: Any,
        src: int,
        tag: int = 0,
        *,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Operation:
        """Starts a ``receive``, and returns the operation before the array is there. Its ``wait``
        returns the array."""
        self._check_may_wait()
        named = None if dtype is None else Dtype.from_name(dtype)
        result = adapt_array(like, named)
        wanted = None if out is None else (out, adapt_array(out, named))
        if wanted is not None:
            # Before the group of the two ranks is made.
            check_posted_result_array(wanted[1], result)
        other, number = self.check_send_arguments("src", src, tag)
        pair, left = self._pair_with(other, timeout)
        return pair.start_end(1 - pair.rank, result, wanted, number, layout, left)

    def check_send_arguments(self, name: str, rank: Any, tag: Any) -> tuple[int, int]:
        """Returns the other rank and the tag of a send as integers. ``name`` is the argument that
        names the rank.

        Raises:
            ConfigError: There is no such rank or tag, or the rank is this one.
        """
        other = check_integer_argument(name, rank, self._world_size)
        if other == self.rank:
            text = f"{name} {other} is this rank itself: copy the array instead"
            raise errors.ConfigError(text)
        return other, check_integer_argument("tag", tag, _TAG_COUNT)

    def _close_pairs(self) -> None:
        """Leaves the groups in which this rank and others send to each other, each once nothing is
        under way in it."""
        for pair in list(self._pairs.values()):
            pair.close()

    def _rank_in_job(self, rank: int) -> int:
        """Returns the number in the job of a rank of this group."""
        return rank

    def _parent_group(self) -> SendingGroup:
        """Returns the job, which keeps the connection of all groups."""
        return self

    def _pair_with(self, other: int, timeout: float) -> tuple[SendingPair, float]:
        """Returns the group of this rank and another one, in an epoch, and the time that is left,
        in seconds. Makes the group where there is none, and waits for its next epoch where the last
        one has ended. Raises ``NoEpoch`` where the gateways do not meet in time."""
        deadline = time.monotonic() + check_timeout_argument(timeout) / 1e9
        # The end of an epoch may be among the messages that nobody has read.
        self._state.read_until(Latch(), 0.0)
        with self._posting:
            state = self._pairs.get(other)
            if state is None or not state.is_usable:
                self._pairs.pop(other, None)
                state = self._pairs[other] = self._make_pair(other)
        if not state.wait_until(lambda: state.is_made, deadline):
            text = "the gateways of both ranks did not meet in time; see `landbridge status`"
            raise errors.NoEpoch(text)
        left = max(deadline - time.monotonic(), _TIME_LEFT_MIN_S)
        return SendingPair(self._parent_group(), state), left

    def _make_pair(self, other: int) -> JobPairState:
        """Asks the gateway for the group of this rank and another one. The caller holds the lock of
        posts."""
        job = self._parent_group()
        state = job._state
        assert isinstance(state, JobState), "the job has the state of a job"
        parent = 0 if self._state.place is None else self._state.place.number
        ranks = sorted((self._rank_in_job(self.rank), self._rank_in_job(other)))
        made: list[JobPairState] = []

        def register_pair() -> tuple[Connection, Request]:
            """Registers the group, and returns the connection and the request to send."""
            pair = state.add_pair(self._state, int(self.rank > other))
            made.append(pair)
            assert pair.connection is not None
            members = encode_wire_group_ranks(ranks)
            return pair.connection, MakeGroup(pair.place.number, parent, _PAIR_PLACE, members)

        job._register_and_send(register_pair)
        # Leaves the group with the last reference to this one.
        weakref.finalize(self, JobPairState.request_departure, made[0]).atexit = False
        return made[0]


class SendingPair(BlockCollectives):
    """A rank and one other, in a group of their own for their sends."""

    def __init__(self, job: SendingGroup, state: JobPairState) -> None:
        """Makes the group of two ranks with this state, on the connection of the job."""
        super().__init__(state.place.rank, 2, job._arena, state, job._posting)
        # Keeps the connection.
        self._job = job

    def start_end(
        self,
        sender: int,
        like: ArrayAdapter,
        wanted: tuple[Any, ArrayAdapter] | None,
        tag: int,
        layout: Any,
        timeout: Any,
    ) -> Operation:
        """Posts one end of a send, and returns the operation to wait for.

        Args:
            sender: The rank that sends, by its number in this group.
            like: The array that is sent, or one like it.
            wanted: The receiver's array for the result, as given and adapted.
            tag: The tag.
            layout: A hash that both ranks must agree on.
            timeout: How long to wait for the other rank, in seconds.
        """
        options = self._check_arguments(
            CollectiveKind.SEND, root=sender, layout=layout, timeout=timeout
        )
        agreed = posted_agreed_array(like, options)
        moved = (
            MovedArrays(like, None, agreed)
            if sender == self.rank
            else MovedArrays(None, like, agreed)
        )
        series = _SEND_BIT | sender << _SENDER_SHIFT | tag << _TAG_SHIFT
        return self._start_moves(moved, wanted, series)
