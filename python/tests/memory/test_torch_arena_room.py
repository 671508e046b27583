"""The room of an arena that several process groups share."""

import threading
from types import SimpleNamespace

import pytest

from conftest import DEADLINE_S, wait_until
from landbridge._operations.operation import Operation

pytest.importorskip("torch")

from landbridge.torch._c10d.arena_room import ArenaRoom  # noqa: E402


class RoomUsers:
    """Users of the room of an arena with memory for `posts` pieces, each posted by a thread."""

    def __init__(self, posts, groups):
        self.arena = SimpleNamespace(nbytes=128 * posts, used_bytes=0)
        self.room, self.begun, self.gate = ArenaRoom(self.arena, 64), [], threading.Event()
        self.gate.set()
        for group in groups:
            self.room.add_group(group)

    def begin(self, user):
        """Posts a piece: takes its memory, once the gate is open."""
        self.begun.append(user)
        assert self.gate.wait(DEADLINE_S)
        self.arena.used_bytes += 128
        return Operation(None, None)

    def post(self, user):
        """Posts a piece of a user in a thread of its own, and returns the thread."""
        arguments = (lambda: (user,), self.begin, lambda: False)
        thread = threading.Thread(target=self.room.begin_piece, args=arguments, daemon=True)
        thread.start()
        return thread

    def end(self, user):
        """Ends a piece of a user."""
        self.arena.used_bytes -= 128
        self.room.end_piece(user)

    def posts(self, user):
        """Posts a piece of a user, for which there is room."""
        self.post(user).join(DEADLINE_S)
        assert self.begun[-1] == user

    def await_waiting(self, thread):
        """Returns once a thread waits for room, and no other does."""
        wait_until(lambda: self.room._changed._waiters)
        assert thread.is_alive()


def test_a_full_arena_leaves_room_to_an_idle_group():
    """A post that waits for memory itself would take that of the group which another rank waits
    for, and both ranks would wait for each other."""
    users = RoomUsers(4, ["one", "other"])
    for user in ("one", "other", "one", "one"):
        users.posts(user)
    waiting = users.post("one")
    users.await_waiting(waiting)
    users.end("other")
    users.posts("other")
    users.await_waiting(waiting)
    assert users.begun == ["one", "other", "one", "one", "other"]
    users.end("one")
    waiting.join(DEADLINE_S)
    assert users.begun[-1] == "one"


def test_posts_at_once_do_not_take_the_same_room():
    users = RoomUsers(8, ["one", "other", "idle"])
    for user in ("one", "other") * 3:
        users.posts(user)
    # Two are left, of which one stays free for the idle group.
    users.gate.clear()
    first = users.post("one")
    wait_until(lambda: len(users.begun) == 7)
    second = users.post("other")
    users.await_waiting(second)
    assert len(users.begun) == 7
    users.gate.set()
    first.join(DEADLINE_S)
    users.posts("idle")
    assert second.is_alive()
