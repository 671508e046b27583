"""The connection to a gateway: frames out, and a thread that reads frames in."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from pathlib import Path
from typing import Any, Callable, Optional, Protocol

from . import errors
from ._wire import (
    FIRST_BYTE,
    LOCAL_VERSION,
    REQUESTS,
    RESPONSES,
    Attach,
    Attached,
    DecodeError,
    Frames,
    Refused,
    Request,
    Response,
)

_READ_BYTES = 1 << 16
#: Longer than a gateway waits for a predecessor of the rank to be gone.
_ANSWER_PATIENCE_S = 30.0


class Listener(Protocol):
    """Who hears what the gateway says, in the reader's thread."""

    def handle(self, link: Link, response: Response) -> None:
        """A message came."""

    def end(self, link: Link, why: str) -> None:
        """The connection is gone; nothing follows."""


class Link:
    """An attached connection. ``listen`` starts its reader."""

    def __init__(self, connection: socket.socket, attached: Attached, frames: Frames) -> None:
        self.attached = attached
        self._socket = connection
        self._frames = frames
        self._owner = os.getpid()

    def listen(self, listener: Listener) -> None:
        """Starts the reader. It keeps the listener from nothing: when nobody else holds it,
        the reader ends."""
        reader = threading.Thread(
            target=_read,
            args=(weakref.ref(listener), self, self._socket, self._frames),
            name="landbridge-reader",
            daemon=True,
        )
        reader.start()

    def send(self, request: Request) -> None:
        """Writes one message. Raises ``OSError``: the connection is gone."""
        self._socket.sendall(REQUESTS.frame(request))

    def hang_up(self) -> None:
        """Ends the connection, for the gateway too. In a forked process only its own copy of
        the descriptor is closed, which the gateway does not notice."""
        if os.getpid() != self._owner:
            return self._socket.close()
        # It may be gone already. The reader closes it: nobody else may, for a new descriptor
        # could get its number while the reader is about to read from it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def attach(path: Path, fd: int, request: Attach) -> Link:
    """Connects and attaches. Raises ``AttachError``."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_ANSWER_PATIENCE_S)
        try:
            connection.connect(str(path))
        except OSError as error:
            text = f"no gateway answers at {path}: {error}; start it with `landbridge run`"
            raise errors.NoGateway(text) from error
        frames = Frames()
        attached = _ask(connection, frames, fd, request)
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return Link(connection, attached, frames)


def _ask(connection: socket.socket, frames: Frames, fd: int, request: Attach) -> Attached:
    try:
        socket.send_fds(connection, [FIRST_BYTE], [fd])
        connection.sendall(REQUESTS.frame(request))
        answer = _first(connection, frames)
    except (OSError, DecodeError) as error:
        raise errors.Refused(f"the gateway ended the connection: {error}") from error
    if isinstance(answer, Refused):
        raise errors.Refused(f"the gateway refused: {answer.why}")
    if not isinstance(answer, Attached):
        raise errors.Refused(f"the gateway's first answer is none: {answer}")
    if answer.version != LOCAL_VERSION:
        text = f"the gateway speaks version {answer.version}, this client {LOCAL_VERSION}"
        raise errors.Refused(text)
    return answer


def _first(connection: socket.socket, frames: Frames) -> Response:
    while True:
        data = connection.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("closed without an answer")
        for message in frames.feed(data):
            # What follows it stays in `frames`, for the reader.
            return RESPONSES.decode(message)


def _read(
    listener: Callable[[], Optional[Any]], link: Link, connection: socket.socket, frames: Frames
) -> None:
    data = b""
    while True:
        why = _deliver(listener, link, frames, data)
        if why is None:
            try:
                data = connection.recv(_READ_BYTES)
            except OSError as error:
                why = f"connection to the gateway ended: {error}"
            else:
                why = None if data else "connection to the gateway ended"
        if why is not None:
            connection.close()
            hearing = listener()
            if hearing is not None:
                hearing.end(link, why)
            return


def _deliver(
    listener: Callable[[], Optional[Any]], link: Link, frames: Frames, data: bytes
) -> Optional[str]:
    """Hands over what is complete; says why the connection is of no more use."""
    try:
        for message in frames.feed(data):
            response = RESPONSES.decode(message)
            hearing = listener()
            if hearing is None:
                return "nobody listens"
            if isinstance(response, Refused):
                return response.why
            if isinstance(response, Attached):
                return "the gateway attached this rank twice"
            hearing.handle(link, response)
            del hearing
    except DecodeError as error:
        return f"the gateway sent what is no message: {error}"
    except Exception as error:
        # A bug of ours: whoever waits hears of it.
        return f"the client failed: {error!r}"
    return None
