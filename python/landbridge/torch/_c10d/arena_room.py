"""The room of a rank's arena, shared by the exchanges of its process groups.

Threads ``landbridge-post`` of all exchanges ask for room, and threads ``landbridge-finish`` give it
back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ... import errors
from ..._memory.arena import Arena
from ..._operation import Operation

#: 1/32 of the arena: longest contribution or result of one piece, so that several are under way and
#: many groups have room for one.
_PIECES_PER_ARENA = 32
#: 32 MiB: longest piece, enough that its own costs do not count.
_PIECE_BYTES_MAX = 32 << 20
#: 2 pieces: the memory of a piece under way, its contribution and its result.
_PIECES_PER_POST = 2


class ArenaRoom:
    """The room of one arena.

    A piece of one group may wait for ranks whose pieces of another group wait for this one. So each
    group may always post one piece, and posts more only where idle groups find room for one. For
    them at most half of the arena is kept free, which is enough for seven idle groups.

    Attributes:
        piece_bytes: The longest contribution or result of a piece, the same on all ranks.
    """

    def __init__(self, arena: Arena, piece_bytes: int) -> None:
        self.piece_bytes = piece_bytes
        self._arena = arena
        self._changed = threading.Condition()
        # The pieces under way of each exchange, and the number of those that have ended.
        self._under_way: dict[object, int] = {}
        self._ended = 0

    def add_user(self, user: object) -> None:
        """Adds an exchange."""
        with self._changed:
            self._under_way[user] = 0

    def remove_user(self, user: object) -> None:
        """Removes an exchange whose pieces have all ended."""
        with self._changed:
            self._under_way.pop(user, None)
            self._changed.notify_all()

    def begin_piece(
        self, user: object, begin: Callable[[], Operation], is_over: Callable[[], bool]
    ) -> Operation:
        """Posts one piece of an exchange once there is room, and returns its operation.

        Args:
            user: The exchange.
            begin: The function that posts the piece.
            is_over: Whether the exchange was aborted, so that nothing is waited for.

        Raises:
            ArenaFull: There is no room though no piece is under way.
            LandbridgeError: As ``begin``.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._may_post(user) or is_over())
                total, ended = sum(self._under_way.values()), self._ended
            try:
                operation = begin()
                break
            except errors.ArenaFull:
                # Results that were not copied yet hold the arena.
                if not total or is_over():
                    raise
            with self._changed:
                self._changed.wait_for(lambda: self._ended > ended or is_over())  # noqa: B023
        with self._changed:
            self._under_way[user] += 1
        return operation

    def end_piece(self, user: object) -> None:
        """Notes that a piece of an exchange has ended and holds no memory."""
        with self._changed:
            self._under_way[user] -= 1
            self._ended += 1
            self._changed.notify_all()

    def wake_waiting(self) -> None:
        """Lets threads that wait for room ask again whether their exchange is over."""
        with self._changed:
            self._changed.notify_all()

    def _may_post(self, user: object) -> bool:
        """Returns whether an exchange may post a piece now. The caller holds the lock."""
        if not self._under_way[user]:
            return True
        idle = sum(not count for count in self._under_way.values())
        if not idle:
            return True
        kept = min((idle + 1) * _PIECES_PER_POST * self.piece_bytes, self._arena.nbytes // 2)
        return self._arena.nbytes - self._arena.used_bytes >= kept


def choose_piece_bytes(arena_bytes: Sequence[int]) -> int:
    """Returns the longest piece, from the bytes of the arenas of all ranks."""
    return max(min(min(arena_bytes) // _PIECES_PER_ARENA, _PIECE_BYTES_MAX), 64)
