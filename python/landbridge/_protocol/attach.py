"""The attachment of a rank to a gateway over a connection that was just made."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

from .. import errors
from .._memory.host_limits import describe_host_limit_error
from .._signal_handlers import raise_if_from_signal_handler
from .connection import SOCKET_READ_BYTES, Connection, ConnectionChannel
from .fields import DecodeError
from .frames import FrameDecoder
from .socket_access import (
    SocketAccessUsers,
    check_socket_access_folder,
    check_socket_access_peer,
    check_socket_access_place,
    describe_denied_socket_access,
)
from .wire import (
    ATTACH_FIRST_BYTE,
    LOCAL_PROTOCOL_VERSION,
    REQUESTS,
    RESPONSES,
    Attach,
    Attached,
    Refused,
    Response,
)

#: 30 s: the longest time of one attempt to attach, until the gateway's first response; then
#: ``NoGateway`` is raised. The time is chosen: the gateway waits less long for an earlier
#: connection of the rank to end.
FIRST_RESPONSE_TIMEOUT_S = 30.0


def attach_rank(
    path: Path, fd: int, request: Attach, deadline: float, trusted: SocketAccessUsers
) -> Connection:
    """Connects to a gateway's socket, and attaches a rank with its arena.

    Args:
        path: The gateway's socket.
        fd: The descriptor of the arena's memory.
        request: The rank, and the token that admits it.
        deadline: The latest return, in seconds of ``time.monotonic``.
        trusted: The users as whom the gateway may run.

    Raises:
        NoGateway: No gateway answers at the socket, or the connection ended without an answer.
        NotPermitted: This process's user may not connect.
        UntrustedSocket: A third user may listen at the socket.
        Refused: The gateway refused the rank.
        LimitReached: This process has no descriptor left.
    """
    deadline = min(deadline, time.monotonic() + FIRST_RESPONSE_TIMEOUT_S)
    try:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        text = f"no socket for the gateway at {path}: {describe_host_limit_error(error)}"
        raise errors.LimitReached(text) from error
    try:
        try:
            _limit_next_attach_call(connected, deadline)
            connected.connect(str(path))
        except PermissionError as error:
            raise_if_from_signal_handler(error)
            raise errors.NotPermitted(describe_denied_socket_access(path), is_final=True) from error
        except OSError as error:
            raise_if_from_signal_handler(error)
            # A third user's folder explains why nothing is there, and no gateway starts in it.
            check_socket_access_folder(path, trusted)
            check_socket_access_place(path)
            text = f"no gateway answers at {path}: {error}; start it with `landbridge run`"
            raise errors.NoGateway(text, is_final=_is_impossible_attach_path(error)) from error
        check_socket_access_folder(path, trusted)
        check_socket_access_peer(path, connected, trusted)
        frames = FrameDecoder()
        try:
            socket.send_fds(connected, [ATTACH_FIRST_BYTE], [fd])
            attached = request_attach(connected, frames, request, deadline)
        except errors.AttachError:
            raise  # A `Refused` is an `OSError` as well.
        except socket.timeout as error:
            raise_if_from_signal_handler(error)
            text = f"the gateway at {path} does not answer; is it stopped, or its host overloaded?"
            raise errors.NoGateway(text) from error
        except OSError as error:
            raise_if_from_signal_handler(error)
            text = f"the gateway at {path} ended the connection: {error}; is it starting or ending?"
            raise errors.NoGateway(text) from error
        connected.settimeout(None)
    except BaseException:
        connected.close()
        raise
    return Connection(connected, attached, frames)


def _is_impossible_attach_path(error: OSError) -> bool:
    """Returns whether connecting failed because the path is no possible address of a socket."""
    # A path that is too long has no error number, as a timeout has none.
    return error.errno is None and not isinstance(error, socket.timeout)


def _limit_next_attach_call(connected: ConnectionChannel, deadline: float) -> None:
    """Makes the next call to the socket end by the deadline, with ``socket.timeout``."""
    connected.settimeout(max(deadline - time.monotonic(), 0.001))


def request_attach(
    connected: ConnectionChannel, frames: FrameDecoder, request: Attach, deadline: float
) -> Attached:
    """Sends the request to attach. Returns the gateway's answer, and raises ``Refused`` for any
    other one, or ``OSError`` if the connection ends before."""
    same_release = "install the client and the gateway from one release"
    with contextlib.suppress(ConnectionError):
        # A gateway that has closed the connection may have said why, which is read below.
        connected.sendall(REQUESTS.encode_frame(request))
    try:
        response = _read_attach_response(connected, frames, deadline)
    except DecodeError as error:
        text = f"malformed first response from the gateway: {error}; {same_release}"
        raise errors.Refused(text, is_final=True) from error
    if isinstance(response, Refused):
        is_final = not response.reason.is_temporary
        raise errors.Refused(f"the gateway refused: {response.why}", is_final=is_final)
    if not isinstance(response, Attached):
        text = f"unexpected first response from the gateway: {response}; {same_release}"
        raise errors.Refused(text, is_final=True)
    if response.version != LOCAL_PROTOCOL_VERSION:
        text = (
            f"the gateway speaks version {response.version} of the local protocol, this client "
            f"version {LOCAL_PROTOCOL_VERSION}; {same_release}"
        )
        raise errors.Refused(text, is_final=True)
    return response


def _read_attach_response(
    connected: ConnectionChannel, frames: FrameDecoder, deadline: float
) -> Response:
    """Returns the first message of the gateway. Later ones stay in ``frames``, for the reader
    thread. Raises ``OSError`` at the deadline, and where the connection ends before a message."""
    while True:
        _limit_next_attach_call(connected, deadline)
        data = connected.recv(SOCKET_READ_BYTES)
        if data is None:
            continue
        if not data:
            raise ConnectionResetError("closed without an answer")
        for message in frames.decode_frames(data):
            # Later messages stay in `frames`, for the reader thread.
            return RESPONSES.decode(message)
