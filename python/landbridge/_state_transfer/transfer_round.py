"""One attempt to give the ranks that are behind the state of those that are ahead.

All ranks agree on who sends, on the digests of the pieces and on who lacks which. Then the pieces
travel in groups of one sender and all receivers, beside the collectives of the job.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._exchange_integers import exchange_integers
from .._group import Group
from .._group.subgroup import ParentGroup
from ..errors import BadRequest, CollectiveFailed, LandbridgeError, NoEpoch
from .piece_stream import STREAM_TIMEOUT_S, PieceSchedule, PieceStream, StreamPlan
from .pieces import (
    PIECE_DIGEST_BYTES,
    ReceivedPieces,
    count_pieces,
    decode_piece_set,
    digest_pieces,
    encode_piece_set,
    list_equal_pieces,
)
from .transfer_room import TransferRoom

_log = logging.getLogger("landbridge")

#: 4 ranks: the most that send a state at a time. The number is chosen, since each takes a part of
#: the arena of every receiver.
_SENDERS_MAX = 4
#: 2^60: tags of the groups in which states travel are below. A rank draws them, so that they are
#: never those of an earlier attempt.
_TAG_COUNT = 1 << 60


class TransferRanks(NamedTuple):
    """The ranks of a transfer, the same on every rank."""

    #: The ranks that have the state and can send it, ascending.
    senders: list[int]
    #: The ranks that lack it, ascending.
    receivers: list[int]

    def choose_senders(self) -> list[int]:
        """Returns the ranks that send: the first one, and others evenly spaced among those ahead.
        Ranks so far apart are mostly in different regions."""
        count = min(len(self.senders), _SENDERS_MAX)
        return [self.senders[at * len(self.senders) // count] for at in range(count)]


class TransferRound:
    """One attempt of a transfer, as this rank sees it.

    Attributes:
        trouble: Why this rank cannot send its state, or has no memory for another one.
        damaged: The ranks of whose pieces some came with another digest.
    """

    def __init__(
        self,
        group: Group,
        ranks: TransferRanks,
        received: ReceivedPieces,
        remaining_s: Callable[[], float],
        *,
        beside_steps: bool = False,
    ) -> None:
        """Prepares an attempt.

        Args:
            group: All ranks.
            ranks: Those that send, and those that receive.
            received: What this rank has received before.
            remaining_s: Returns how long the attempt may take, in seconds.
            beside_steps: Whether ranks take steps meanwhile.
        """
        self._beside_steps = beside_steps
        self.trouble: Exception | None = None
        self.damaged: list[int] = []
        self._group, self._ranks, self._remaining_s = group, ranks, remaining_s
        self._received = received
        self._is_receiver = group.rank in ranks.receivers
        self._content: memoryview | None = None
        self._nbytes = 0
        self._has_agreed = False
        self._schedule: PieceSchedule | None = None
        self._streams: list[PieceStream] = []
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def begin_round(self, encode: Callable[[], Any]) -> bool:
        """Agrees with all ranks, and begins to send or to receive in threads. Returns whether it
        has begun: not where some rank is in ``trouble``.

        Args:
            encode: Returns the state as a buffer. It is called on the ranks that send alone.

        Raises:
            ArenaFull: The arena of some rank has no room. Every rank raises it.
            LandbridgeError: As ``all_reduce``.
        """
        chosen = self._ranks.choose_senders()
        if self._group.rank in chosen:
            self._encode_content(encode)
        room = TransferRoom(self._group, len(chosen), beside_steps=self._beside_steps)
        length = 0 if self._content is None else self._content.nbytes + 1
        tag = int.from_bytes(os.urandom(8), "little") % _TAG_COUNT
        told = [length, room.chunk_bytes, room.senders, tag]
        lengths, chunks, senders, tags = exchange_integers(
            self._group, told, timeout=self._remaining_s()
        )
        room.agree_on_room(chunks, senders)
        if not all(lengths[rank] for rank in chosen):
            return False  # That rank tells its trouble at the next attempt.
        chosen = chosen[: room.senders]
        self._nbytes = lengths[chosen[0]] - 1
        served, missing = self._agree_on_pieces(chosen, room)
        return self._start_streams(served, missing, room, tags[chosen[0]])

    def finish_round(self) -> None:
        """Waits until all threads have ended, or the time is over. Raises the error of one that is
        no failure of a rank, gateway or link."""
        try:
            for thread in self._threads:
                thread.join(self._remaining_s())
        finally:
            # After Ctrl-C too: the threads end once what was announced has come.
            self.cancel_round()
        for stream in self._streams:
            if stream.has_damaged:
                self.damaged.append(stream.plan.sender_in_job)
        self._streams, self._threads, self._content = [], [], None
        for failure in self._failures:
            if not isinstance(failure, LandbridgeError):
                raise failure

    def cancel_round(self) -> None:
        """Receives no more than what was announced."""
        if self._schedule is not None:
            self._schedule.cancel_pieces()

    @property
    def is_running(self) -> bool:
        """Whether pieces are under way."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def failure(self) -> CollectiveFailed | None:
        """The failure of the first sender that was lost, or ``None``."""
        failed = (f for f in self._failures if isinstance(f, CollectiveFailed))
        return next(failed, None)

    @property
    def has_received_all(self) -> bool:
        """Whether this rank has received the whole state of this attempt."""
        return self._has_agreed and self._received.is_complete

    def _encode_content(self, encode: Callable[[], Any]) -> None:
        """Takes the state of this rank, or the error of a rank that has none to give."""
        try:
            view = memoryview(encode())
            # Python casts no view without elements.
            self._content = view.cast("B") if view.nbytes else memoryview(b"")
        except Exception as error:  # A part of the caller failed; the others are told first.
            self.trouble = error

    def _agree_on_pieces(
        self, chosen: list[int], room: TransferRoom
    ) -> tuple[dict[int, set[int]], set[int]]:
        """Returns the pieces that each sender has, and those that some receiver lacks. The digests
        of the first sender count."""
        me, count = self._group.rank, count_pieces(self._nbytes)
        own = b"" if self._content is None else digest_pieces(self._content)
        digests = self._share_bytes(
            own if me == chosen[0] else b"", count * PIECE_DIGEST_BYTES, room
        )
        pieces = list_equal_pieces(own, digests)
        if self._is_receiver:
            try:
                pieces = self._received.begin_transfer(self._nbytes, digests)
                self._has_agreed = True
            except MemoryError as error:
                self.trouble = error
        width = -(-count // 8)
        rows = [*chosen, *self._ranks.receivers]
        row = b""
        if me in rows:
            row = bytes(rows.index(me) * width) + encode_piece_set(pieces, count)
        shared = self._share_bytes(row, len(rows) * width, room)
        sets = [decode_piece_set(shared[at * width :][:width]) for at in range(len(rows))]
        missing = {piece for lacked in sets[len(chosen) :] for piece in lacked}
        return dict(zip(chosen, sets)), missing

    def _share_bytes(self, own: bytes, nbytes: int, room: TransferRoom) -> bytes:
        """Returns the bytes of all ranks joined, on every rank. Each rank gives bytes at places of
        its own, and zeros elsewhere."""
        given, result = room.split_room()[0][0]
        padded = own + bytes(nbytes - len(own))
        shared = b""
        for at in range(0, nbytes, room.chunk_bytes):
            part = padded[at : at + room.chunk_bytes]
            given[: len(part)] = part
            self._group.all_reduce(
                given[: len(part)], "bor", out=result[: len(part)], timeout=self._remaining_s()
            )
            shared += bytes(result[: len(part)])
        return shared

    def _start_streams(
        self, served: dict[int, set[int]], missing: set[int], room: TransferRoom, tag: int
    ) -> bool:
        """Makes the group of each sender, and starts this rank's part in each. Where no sender has
        a group of its own with the receivers, all ranks move the pieces of the first one. Returns
        whether every receiver has memory for the state."""
        made: dict[int, ParentGroup] = {}
        for at, sender in enumerate(served if missing else ()):
            group = self._make_stream_group(sender, tag + at)
            if group is not None:
                made[sender] = group
        usable = sum(
            1 << at for at, s in enumerate(served) if s in made or not self._takes_part_with(s)
        )
        # A receiver without memory tells the others before they send.
        told = [usable, int(self.trouble is not None)]
        masks, failed = exchange_integers(self._group, told, timeout=self._remaining_s())
        agreed = [s for at, s in enumerate(served) if all(mask >> at & 1 for mask in masks)]
        if self._group.rank == self._ranks.receivers[0]:
            self._schedule = PieceSchedule(served, missing)
        if any(failed[rank] for rank in self._ranks.receivers):
            return False
        if not missing:
            return True
        slots = room.split_room()
        if not agreed:
            first = next(iter(served))
            plan = self._plan_stream(self._group, first, range(self._group.world_size), room)
            self._make_stream(plan._replace(pairs=slots[0])).run()
        for at, sender in enumerate(agreed):
            if sender in made:
                members = self._list_members(sender)
                plan = self._plan_stream(made[sender], sender, members, room)
                self._start_thread(self._make_stream(plan._replace(pairs=slots[at])))
        return True

    def _takes_part_with(self, sender: int) -> bool:
        """Returns whether this rank is in the group of a sender."""
        return self._is_receiver or self._group.rank == sender

    def _list_members(self, sender: int) -> list[int]:
        """Returns the ranks of the group of a sender, ascending."""
        return sorted([sender, *self._ranks.receivers])

    def _make_stream_group(self, sender: int, tag: int) -> ParentGroup | None:
        """Makes the group of a sender and all receivers. Returns ``None`` on other ranks, and where
        they have no way to each other but through others."""
        if not self._takes_part_with(sender):
            return None
        timeout = min(self._remaining_s(), STREAM_TIMEOUT_S)
        try:
            return self._group.new_group(self._list_members(sender), tag=tag, timeout=timeout)
        except (BadRequest, NoEpoch) as failure:
            _log.info("the state of rank %d does not come by a group: %s", sender, failure)
            return None

    def _plan_stream(
        self, group: ParentGroup, sender: int, members: Sequence[int], room: TransferRoom
    ) -> StreamPlan:
        """Returns the plan of a stream in the group of these ranks, without its memory."""
        places = {rank: place for place, rank in enumerate(members)}
        leader = places[self._ranks.receivers[0]]
        return StreamPlan(group, places[sender], leader, sender, self._nbytes, room.chunk_bytes, [])

    def _make_stream(self, plan: StreamPlan) -> PieceStream:
        """Returns this rank's part in a stream."""
        content = self._content if self._group.rank == plan.sender_in_job else None
        received = self._received if self._is_receiver else None
        stream = PieceStream(plan, content, received, self._schedule)
        self._streams.append(stream)
        return stream

    def _start_thread(self, stream: PieceStream) -> None:
        """Runs this rank's part in a stream in a thread, and leaves its group at the end."""

        def run_stream() -> None:
            """Runs the stream, and keeps its failure."""
            try:
                stream.run()
            except BaseException as failure:
                text = "the stream of state from rank %d ended: %s"
                _log.info(text, stream.plan.sender_in_job, failure)
                self._failures.append(failure)
            finally:
                stream.plan.group.close()

        thread = threading.Thread(target=run_stream, name="landbridge-state", daemon=True)
        self._threads.append(thread)
        thread.start()
