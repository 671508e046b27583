"""A stand-in for a gateway that sends exactly the messages of a test."""

import contextlib
import socket
from pathlib import Path

from landbridge._config.region_file import Location
from landbridge._group import Group
from landbridge._memory.arena import Arena
from landbridge._protocol.connection import Connection
from landbridge._protocol.wire import (
    LOCAL_VERSION,
    REQUESTS,
    RESPONSES,
    Attached,
    ContributionFree,
    EpochBegan,
    Frames,
    ResultReady,
)

#: Limit on the wait for a request, in seconds.
PATIENCE_S = 10.0
#: A request that is not there after this time, in seconds, does not come.
SOON_S = 0.03


class Gateway:
    """The other end of one rank's connection, and the rank's memory."""

    def __init__(self, connection, arena):
        self._socket = connection
        self._socket.settimeout(PATIENCE_S)
        self._frames = Frames()
        self._requests = []
        self.memory = arena._map

    def send(self, *messages):
        """Sends messages, all at once."""
        self._socket.sendall(b"".join(RESPONSES.frame(message) for message in messages))

    def receive(self):
        """Returns the next request."""
        while not self._requests:
            data = self._socket.recv(1 << 16)
            assert data, "the client hung up"
            self._requests += [REQUESTS.decode(message) for message in self._frames.feed(data)]
        return self._requests.pop(0)

    def has_request(self):
        """Returns whether there is a request, without waiting for one."""
        with contextlib.suppress(socket.timeout):
            self._socket.settimeout(SOON_S)
            self._requests.append(self.receive())
        self._socket.settimeout(PATIENCE_S)
        return bool(self._requests)

    def shut_down(self):
        self._socket.close()


@contextlib.contextmanager
def alone():
    """A group of one rank in its first epoch, and the stand-in of its gateway."""
    group, gateway = attach()
    try:
        yield group, gateway
    finally:
        gateway.shut_down()
        group.close()


def attach():
    """Returns the same, for a test that ends them itself."""
    group = Group(Location(Path("none"), "train", b"", [1.0], ["east"]), 0, Arena(1 << 16))
    return group, attach_anew(group)


def attach_anew(group):
    """Returns another stand-in for the group, whose epochs count from 1 again."""
    ours, theirs = socket.socketpair()
    frames = Frames()
    # The message seems to come right behind the first response, so it wakes no thread.
    frames._rest = RESPONSES.frame(EpochBegan(1, 0, 0, 0))
    group._state.begin(Connection(ours, Attached(LOCAL_VERSION, 1, "one"), frames))
    group._state.agree()
    return Gateway(theirs, group._arena)


def ready(post):
    """Returns the message that the result of a post is ready."""
    return ResultReady(post.sequence, 1, 2, 3, 4)


def free(post):
    """Returns the message that the memory of a post is free."""
    return ContributionFree(post.sequence)
