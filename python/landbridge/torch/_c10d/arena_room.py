"""The room of a rank's arena, shared by the exchanges of its process groups.

Threads ``landbridge-post`` and ``landbridge-send`` of all exchanges ask for room, and threads
``landbridge-finish`` and ``landbridge-sent`` give it back.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from ... import errors
from ..._memory.arena import Arena
from ..._operations.operation import Operation

#: 32: a piece's contribution or result is at most a 32nd of the smallest arena of all ranks.
#: Several pieces are then under way, and many groups have room for one.
_PIECES_PER_ARENA = 32
#: 32 MiB: the longest contribution or result of one piece, whatever the arena holds. It is long
#: enough that the fixed costs of a piece do not count.
_PIECE_BYTES_MAX = 32 << 20
#: 2: a piece under way takes at most twice its length in the arena, for its contribution and its
#: result.
_PIECES_PER_POST = 2
# Of the 256 posts that a gateway takes, SHARED_PIECES_MAX + SERIES_MAX leave the rest to groups with
# nothing under way.
#: 128 pieces: while as many are under way on a rank, an exchange or a series that has one under way
#: posts no other. One that has none may still post.
SHARED_PIECES_MAX = 128
#: 64 series of sends of a rank may have pieces under way at a time. Further series wait
#: until one of them has none.
SERIES_MAX = 64

#: The type of those that post pieces: an exchange, or a series of sends.
U = TypeVar("U")


class ArenaRoom:
    """The room of one arena.

    A piece of one group may wait for ranks whose pieces of another group wait for this one. So each
    group may always post one piece, and posts more only where idle groups find room for one. For
    them at most half of the arena is kept free, which is enough for seven idle groups. The same
    holds for a series of sends, up to ``SERIES_MAX`` of them.

    Attributes:
        piece_bytes: The longest contribution or result of a piece, the same on all ranks.
    """

    def __init__(self, arena: Arena, piece_bytes: int) -> None:
        """Makes the room of an arena without exchanges. Pieces are at most ``piece_bytes`` long."""
        self.piece_bytes = piece_bytes
        self._arena = arena
        self._changed = threading.Condition()
        # The exchanges of groups.
        self._groups: set[object] = set()
        # The pieces of each exchange and series that are granted or under way, and the number of
        # those that have ended.
        self._under_way: collections.Counter[object] = collections.Counter()
        self._ended = 0
        # The pieces that are granted and may have no memory yet.
        self._granted = 0

    def add_group(self, group: object) -> None:
        """Adds the exchange of a group."""
        with self._changed:
            self._groups.add(group)

    def remove_user(self, user: object) -> None:
        """Removes an exchange, or a series of sends, and forgets its pieces."""
        with self._changed:
            self._groups.discard(user)
            self._under_way.pop(user, None)
            self._changed.notify_all()

    def begin_piece(
        self,
        users: Callable[[], Sequence[U]],
        begin: Callable[[U], Operation],
        is_over: Callable[[], bool],
    ) -> tuple[U, Operation] | None:
        """Posts one piece once there is room. Returns its user and its operation, or ``None`` where
        no user has a piece and none will.

        Args:
            users: The function that names those with a piece to post, in the order of choice.
            begin: The function that posts the next piece of a user.
            is_over: Whether nothing is waited for.

        Raises:
            ArenaFull: There is no room though no piece is under way.
            LandbridgeError: As ``begin``.
        """
        while True:
            with self._changed:
                user = self._await_turn(users, is_over)
                total, ended = sum(self._under_way.values()), self._ended
                if user is None:
                    return None
                # Counted at once, so that no other thread takes the same room.
                self._under_way[user] += 1
                self._granted += 1
            try:
                operation = begin(user)
            except BaseException as error:
                self._end_grant(user)
                # Results that were not copied yet hold the arena.
                if not isinstance(error, errors.ArenaFull) or not total or is_over():
                    raise
            else:
                self._end_grant(None)
                return user, operation
            with self._changed:
                self._changed.wait_for(lambda: self._ended > ended or is_over())  # noqa: B023

    def end_piece(self, user: object) -> None:
        """Notes that a piece of an exchange or a series has ended and holds no memory."""
        with self._changed:
            self._discount_piece(user)
            self._ended += 1
            self._changed.notify_all()

    def wake_waiting(self) -> None:
        """Lets threads that wait for room ask again whether their exchange is over."""
        with self._changed:
            self._changed.notify_all()

    def _end_grant(self, user: object | None) -> None:
        """Notes that a granted piece has its memory, or that ``user`` could not post it."""
        with self._changed:
            self._granted -= 1
            if user is not None:
                self._discount_piece(user)
            self._changed.notify_all()

    def _discount_piece(self, user: object) -> None:
        """Counts one piece of an exchange or a series less. The caller holds the lock."""
        # An abort has forgotten those of a series.
        if self._under_way[user] > 1:
            self._under_way[user] -= 1
        else:
            self._under_way.pop(user, None)

    def _await_turn(
        self, users: Callable[[], Sequence[U]], is_over: Callable[[], bool]
    ) -> U | None:
        """Waits until one of some users may post, and returns it. Once it is over, returns the
        first of them that has a piece, or ``None``. The caller holds the lock."""
        while True:
            waiting = users()
            for user in waiting:
                if self._may_post(user):
                    return user
            if is_over():
                return waiting[0] if waiting else None
            self._changed.wait()

    def _may_post(self, user: object) -> bool:
        """Returns whether an exchange or a series may post a piece now. One piece of each it always
        may, up to ``SERIES_MAX`` series; more only where enough of the arena stays free. The caller
        holds the lock."""
        if not self._under_way[user]:
            series = len(self._under_way.keys() - self._groups)
            return user in self._groups or series < SERIES_MAX
        if sum(self._under_way.values()) >= SHARED_PIECES_MAX:
            return False
        # A post that waited for memory would take that of a group which has become idle meanwhile.
        idle = sum(not self._under_way[group] for group in self._groups)
        post_bytes = _PIECES_PER_POST * self.piece_bytes
        kept = min((idle + 1) * post_bytes, self._arena.nbytes // 2) + self._granted * post_bytes
        return self._arena.nbytes - self._arena.used_bytes >= kept


def wait_for_arena_piece(operation: Operation) -> Exception | None:
    """Waits for a piece, and copies its result. Returns the piece's failure, or ``None`` without
    one."""
    try:
        operation.wait()
        if operation.lies_in_arena:
            # The caller may write its tensors once the work has ended.
            operation.wait_free()
    except Exception as error:
        return error
    return None


def choose_arena_piece_bytes(arena_bytes: Sequence[int]) -> int:
    """Returns the longest piece: a 32nd of the smallest of the arenas of all ranks, but at least 64
    bytes and at most 32 MiB."""
    return max(min(min(arena_bytes) // _PIECES_PER_ARENA, _PIECE_BYTES_MAX), 64)
