"""A stand-in for a gateway that sends exactly the messages of a test."""

import contextlib
import socket
from pathlib import Path

from landbridge._config.region_file import RegionFileGateway
from landbridge._group import Group
from landbridge._memory.arena import Arena
from landbridge._protocol.connection import Connection
from landbridge._protocol.frames import FrameDecoder
from landbridge._protocol.wire import (
    LOCAL_PROTOCOL_VERSION,
    REQUESTS,
    RESPONSES,
    Attached,
    ContributionFree,
    EpochBegan,
    ResultReady,
)

#: Limit on the wait for a request, in seconds.
REQUEST_TIMEOUT_S = 10.0
#: Time after which `has_request` says that no request comes, in seconds.
NO_REQUEST_AFTER_S = 0.03


class StandInGateway:
    """The other end of one rank's connection, and the rank's memory."""

    def __init__(self, connection, arena):
        self._socket = connection
        self._socket.settimeout(REQUEST_TIMEOUT_S)
        self._frames = FrameDecoder()
        self._requests = []
        self.memory = arena._map

    def send(self, *messages):
        """Sends messages, all at once."""
        self._socket.sendall(b"".join(RESPONSES.encode_frame(message) for message in messages))

    def receive(self):
        """Returns the next request."""
        while not self._requests:
            data = self._socket.recv(1 << 16)
            assert data, "the client hung up"
            self._requests += [
                REQUESTS.decode(message) for message in self._frames.decode_frames(data)
            ]
        return self._requests.pop(0)

    def has_request(self):
        """Returns whether a request comes within ``NO_REQUEST_AFTER_S``."""
        with contextlib.suppress(socket.timeout):
            self._socket.settimeout(NO_REQUEST_AFTER_S)
            self._requests.append(self.receive())
        self._socket.settimeout(REQUEST_TIMEOUT_S)
        return bool(self._requests)

    def shut_down(self):
        """Closes the stand-in's end of the connection."""
        self._socket.close()


@contextlib.contextmanager
def lone_group():
    """Yields a group of one rank in its first epoch, and the stand-in of its gateway."""
    group, gateway = attach_group()
    try:
        yield group, gateway
    finally:
        gateway.shut_down()
        group.close()


def attach_group():
    """Returns a group of one rank and the stand-in of its gateway, which the test ends itself."""
    group = Group(RegionFileGateway(Path("none"), "train", b"", [1.0], ["east"]), 0, Arena(1 << 16))
    return group, attach_again(group)


def attach_again(group):
    """Attaches a group to another stand-in, whose epochs count from 1 again, and returns it."""
    ours, theirs = socket.socketpair()
    frames = FrameDecoder()
    # The message seems to come right behind the first response, so it wakes no thread.
    frames._rest = RESPONSES.encode_frame(EpochBegan(1, 0, 0, 0))
    group._state.begin_connection(
        Connection(ours, Attached(LOCAL_PROTOCOL_VERSION, 1, "one"), frames)
    )
    group._state.agree_to_epoch()
    return StandInGateway(theirs, group._arena)


def ready(post):
    """Returns the message that the result of a post is ready."""
    return ResultReady(post.sequence, 1, 2, 3, 4)


def free(post):
    """Returns the message that the memory of a post is free."""
    return ContributionFree(post.sequence)
