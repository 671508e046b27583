"""The pieces that one rank sends to all ranks that lack them, in a group of these ranks alone.

The first receiver announces each piece before it comes, so that a sender on a faster link sends
more of them. Announcements run ahead of the pieces by a fixed number, which hides their round trip.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from .._group.subgroup import ParentGroup
from .._operations.operation import Operation
from .pieces import ReceivedPieces, piece_range
from .transfer_room import SlotPair

#: 16 announcements: how far they run ahead of the pieces. The number is chosen, so that 16 MiB are
#: under way in a round trip.
_ANNOUNCED_AHEAD = 16
#: 60 s: how long a rank of a stream waits for another rank to post. The time is chosen. Ranks post
#: as soon as bytes have come, so a rank that does not is stopped. Other senders take its pieces.
STREAM_TIMEOUT_S = 60.0
#: 8 bytes: the length of an announcement, which is the number of a piece.
_ANNOUNCEMENT_BYTES = 8
#: 2^64 - 1: the number that is announced after the last piece.
_END_OF_STREAM = (1 << 64) - 1


class PieceSchedule:
    """The pieces that are still to be sent, and by whom. The first receiver has it. Threads share
    it, one for each sender."""

    def __init__(self, served: dict[int, set[int]], missing: set[int]) -> None:
        """Plans the pieces that are missing. ``served`` are the pieces that each sender has."""
        self._lock = threading.Lock()
        self._served = served
        self._left = set(missing)
        # The pieces of each sender, in order. Others may have taken some of them.
        self._queues = {sender: deque(sorted(has & missing)) for sender, has in served.items()}

    def take_piece(self, sender: int) -> int | None:
        """Returns the next piece for a sender, or ``None`` if it has none that is left."""
        with self._lock:
            queue = self._queues[sender]
            while queue:
                piece = queue.popleft()
                if piece in self._left:
                    self._left.discard(piece)
                    return piece
            return None

    def return_pieces(self, pieces: set[int]) -> None:
        """Returns the pieces of a sender that was lost, for others to send."""
        with self._lock:
            self._left |= pieces
            for sender, queue in self._queues.items():
                queue.extendleft(sorted(pieces & self._served[sender], reverse=True))

    def cancel_pieces(self) -> None:
        """Ends all streams once what was announced has come."""
        with self._lock:
            self._left.clear()


class StreamPlan(NamedTuple):
    """The ranks and the memory of a stream."""

    #: The ranks of the stream: a group of their own, or the job.
    group: ParentGroup
    #: The rank that sends, by its number in the group.
    sender: int
    #: The first receiver, by its number in the group.
    leader: int
    #: The rank that sends, by its number in the group of all ranks.
    sender_in_job: int
    #: The length of the state in bytes.
    nbytes: int
    chunk_bytes: int
    #: Memory for the broadcasts in flight.
    pairs: list[SlotPair]


class _Chunk(NamedTuple):
    """A part of a piece on its way."""

    operation: Operation
    result: memoryview
    piece: int
    #: Where the chunk begins in the state.
    begin: int


class PieceStream:
    """This rank's part in a stream. It sends, it receives, or it takes part for others alone."""

    def __init__(
        self,
        plan: StreamPlan,
        content: memoryview | None,
        received: ReceivedPieces | None,
        schedule: PieceSchedule | None,
    ) -> None:
        """Prepares a stream.

        Args:
            plan: Its ranks and memory.
            content: The state, on the sender.
            received: What came so far, on a receiver.
            schedule: The pieces to be sent, on the first receiver.
        """
        self.plan = plan
        #: Whether a piece came whose digest is not the one that was told before.
        self.has_damaged = False
        self._content, self._received, self._schedule = content, received, schedule
        self._in_flight: deque[_Chunk] = deque()
        self._chunks = 0
        # The pieces that this rank has announced.
        self._announced: set[int] = set()
        self._has_ended = False

    def run(self) -> None:
        """Sends or receives pieces until the end is announced. Raises ``LandbridgeError``; the
        pieces that are missing then are for other senders."""
        try:
            self._run_stream()
        except BaseException:
            if self._schedule is not None and self._received is not None:
                came = {at for at in self._announced if self._received.has_piece(at)}
                self._schedule.return_pieces(self._announced - came)
            raise

    def _run_stream(self) -> None:
        """Sends or receives the pieces in the order in which they are announced."""
        coming = deque(self._announce_piece() for _ in range(_ANNOUNCED_AHEAD))
        while True:
            piece = int.from_bytes(coming.popleft().wait(), "little")
            if piece == _END_OF_STREAM:
                break
            coming.append(self._announce_piece())
            self._move_piece(piece)
        while self._in_flight:
            self._finish_chunk()
        for last in coming:
            last.wait()

    def _announce_piece(self) -> Operation:
        """Starts the broadcast of the number of a piece, or of the end."""
        number = _END_OF_STREAM
        if self._schedule is not None and not self._has_ended:
            piece = self._schedule.take_piece(self.plan.sender_in_job)
            if piece is None:
                self._has_ended = True
            else:
                self._announced.add(piece)
                number = piece
        told = memoryview(bytearray(number.to_bytes(_ANNOUNCEMENT_BYTES, "little")))
        return self.plan.group.broadcast_async(told, self.plan.leader, timeout=STREAM_TIMEOUT_S)

    def _move_piece(self, piece: int) -> None:
        """Starts the broadcasts of a piece, chunk by chunk."""
        plan = self.plan
        begin, end = piece_range(piece, plan.nbytes)
        for at in range(begin, end, plan.chunk_bytes):
            if len(self._in_flight) == len(plan.pairs):
                self._finish_chunk()
            length = min(plan.chunk_bytes, end - at)
            # Broadcasts finish in order, so the memory of the oldest one is free here.
            given, result = (slot[:length] for slot in plan.pairs[self._chunks % len(plan.pairs)])
            self._chunks += 1
            if self._content is not None:
                given[:] = self._content[at : at + length]
            operation = plan.group.broadcast_async(
                given, plan.sender, out=result, timeout=STREAM_TIMEOUT_S
            )
            self._in_flight.append(_Chunk(operation, result, piece, at))

    def _finish_chunk(self) -> None:
        """Waits for the oldest broadcast, takes its bytes, and waits until its memory is free."""
        operation, result, piece, begin = self._in_flight.popleft()
        operation.wait()
        received = self._received
        if received is not None and not received.has_piece(piece):
            stop = begin + len(result)
            received.content[begin:stop] = result
            _, end = piece_range(piece, self.plan.nbytes)
            if stop == end and not received.accept_piece(piece):
                self.has_damaged = True
        operation.wait_free()
