"""The connection to a gateway: it sends requests and reads responses.

A thread that waits for the gateway reads its messages itself. The connection's own thread reads
only while something is under way that no thread waits for, because waking a second thread would
delay each response. ``JobState`` is the listener that gets the messages.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from .._memory.host_limits import start_thread_within_host_limits
from .._operations.waiting import Latch
from .._signal_handlers import raise_if_from_signal_handler
from .fields import DecodeError
from .frames import FrameDecoder
from .wire import (
    REQUESTS,
    RESPONSES,
    Attached,
    GroupRequest,
    GroupResponse,
    Refused,
    Request,
    Response,
    ResultPiece,
    StoreAnswered,
)

#: 4,096 bytes: the most that one read of the gateway's socket asks for; longer messages take
#: several reads. The size is chosen, with room for dozens of messages.
SOCKET_READ_BYTES = 1 << 12
#: 50e-6 s (50 us): the time for which a waiting thread polls the gateway's socket without sleeping;
#: then it sleeps. To wake up a sleeping thread takes as long.
_POLL_BEFORE_SLEEP_S = 50e-6
#: 0.1 s: the longest delay until the reader thread reads a message of the gateway while no
#: operation is under way. The time is chosen.
_IDLE_READ_DELAY_S = 0.1
#: 2^31 - 1 ms: the largest timeout that ``poll`` takes, which is a C int. A longer wait polls
#: again.
_POLL_TIMEOUT_MAX_MS = (1 << 31) - 1


class GroupPlace(NamedTuple):
    """The place of a rank in one of its groups."""

    #: The number by which the gateway knows the group on this connection; 0 is the job itself.
    number: int
    #: The number of the rank in the group.
    rank: int
    #: The number of ranks of the group.
    size: int


class ConnectionGroupListener(Protocol):
    """The receiver of the gateway's messages about one group."""

    def handle_response(self, connection: Connection, response: Response) -> None:
        """Handles one message of the gateway."""

    def expects_result(self, connection: Connection, sequence: int, end: int) -> bool:
        """Returns whether a collective is under way whose result has at least ``end`` bytes."""

    def write_result(
        self, connection: Connection, sequence: int, offset: int, part: memoryview
    ) -> None:
        """Writes a part of a result, unless the collective has ended."""


class ConnectionListener(Protocol):
    """The receiver of the gateway's messages. It is called in the thread that reads them."""

    @property
    def expects_messages(self) -> bool:
        """Whether the connection's own thread should wait for a message of the gateway."""

    def group_listener(self, number: int) -> ConnectionGroupListener | None:
        """Returns the receiver of messages about a group, or ``None`` for a group that was left."""

    def lose_connection(self, connection: Connection, reason: str) -> None:
        """Handles the end of the connection, after which no message follows."""


class ConnectionChannel(Protocol):
    """The calls of a socket that a connection makes."""

    def fileno(self) -> int:
        """Returns the descriptor, to poll it."""

    def settimeout(self, timeout: float | None, /) -> None:
        """Limits the calls that follow, in seconds; ``None`` for no limit."""

    def sendall(self, data: bytes | memoryview, /) -> None:
        """Sends bytes."""

    def recv(self, limit: int, /) -> bytes | None:
        """Reads once. Returns no bytes at the end, and ``None`` where more must be read first."""

    def shutdown(self, how: int, /) -> None:
        """Shuts down the socket."""

    def close(self) -> None:
        """Closes the socket."""


class Connection:
    """An attached connection to the gateway. ``start_reader`` starts its reader thread."""

    def __init__(
        self, connected: ConnectionChannel, attached: Attached, frames: FrameDecoder
    ) -> None:
        """Takes over a socket on which the gateway has answered ``attached``. ``frames`` may hold
        bytes that came behind the answer."""
        self.attached = attached
        self._socket = connected
        self._frames = frames
        self._owner = os.getpid()
        self._listener: Any = None
        # The thread that reads, if any. This is no lock, because a signal may interrupt a thread
        # between taking a lock and noting that it holds it.
        self._reading: _ConnectionReadingThread | None = None
        self._choosing = threading.Lock()
        # An item asks the reader thread to read. This is no event: Ctrl-C could leave an event's
        # lock taken, and the garbage collector calls `wake_reader` too, in any thread.
        self._wanted: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_over = False
        self._end_reason = ""
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)

    def enter_world(self, ranks: tuple[int, ...]) -> None:
        """Notes the ranks with which the job goes on, by their numbers in the fabric. Only a
        connection that sends contributions needs them."""

    def start_reader(self, listener: ConnectionListener) -> None:
        """Starts the reader thread, which ends when ``listener`` is collected. The thread holds it
        weakly. Messages that came right behind the first response are delivered before."""
        self._listener = weakref.ref(listener)
        reason = self._deliver_messages(
            b""
        )  # Messages may have come right behind the first response.
        if reason is not None:
            self._stop_reading(reason)
        reader = threading.Thread(
            target=self._run_reader_thread, name="landbridge-reader", daemon=True
        )
        start_thread_within_host_limits(reader)

    def send(self, request: Request, place: GroupPlace | None = None) -> None:
        """Sends one request to the gateway, of a rank at a place of a group or of the job. Raises
        ``OSError`` when the connection is gone."""
        if place is not None:
            request = GroupRequest(place.number, REQUESTS.encode(request))
        self._socket.sendall(REQUESTS.encode_frame(request))

    def write_to_arena(self, offset: int, part: memoryview) -> None:
        """Writes bytes of a result to the arena. Only a connection without shared memory gets
        any."""
        raise DecodeError("bytes of a result, though the arena is shared")

    def wake_reader(self) -> None:
        """Makes the reader thread read, because something is under way that no other thread reads
        for."""
        if self._wanted.empty():
            self._wanted.put(None)

    def read_until(self, latch: Latch, timeout_s: float | None) -> None:
        """Reads the gateway's messages in the caller's thread until ``latch`` opens or the timeout
        passes.

        Returns at once where another thread reads already. A signal may interrupt it.
        """
        me, is_mine = _ConnectionReadingThread(), False
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            with self._choosing:
                if self._reading is None:
                    self._reading = me
            while self._reading is me and not latch.is_open:
                if not self._is_readable_soon(deadline) and not self._is_readable_by(deadline):
                    break
                self._read_once()
                # The messages may all have been about other collectives.
                if deadline is not None and time.monotonic() >= deadline:
                    break
        finally:
            # These two statements make no call, so no signal can interrupt between them.
            if self._reading is me:
                self._reading, is_mine = None, True
            if not is_mine or self._expects_messages():
                self.wake_reader()

    def is_read_by_this_thread(self) -> bool:
        """Returns whether this thread reads already. The caller is then a signal handler that
        interrupts the read."""
        reading = self._reading
        return reading is not None and reading.thread == threading.get_ident()

    def shut_down_socket(self) -> None:
        """Shuts down the socket, so that gateway and reader thread see the end of the connection.

        In a forked process it only closes the process's copy of the descriptor, which the gateway
        does not notice.
        """
        if os.getpid() != self._owner:
            return self._socket.close()
        # The thread that reads closes the socket. If another thread did, a new descriptor could
        # get its number while the first thread is about to read from it.
        with contextlib.suppress(OSError):  # The connection may be gone already.
            self._socket.shutdown(socket.SHUT_RDWR)
        self.wake_reader()

    def _run_reader_thread(self) -> None:
        """Reads messages while no other thread does, and ends the connection. Only this thread ends
        it, because signals do not interrupt this thread."""
        me = _ConnectionReadingThread()
        try:
            while not self._is_over:
                self._read_while_wanted(me)
        except Exception as error:
            # Whatever ends this thread must reach the threads that wait, such as a limit on
            # descriptors that was lowered to 0, with which nothing can be polled.
            self._end_reason, self._is_over = f"reading from the gateway failed: {error}", True
            self._reading = None
        listener = self._listener()
        if listener is not None:
            listener.lose_connection(self, self._end_reason)
        self._socket.close()

    def _read_while_wanted(self, me: _ConnectionReadingThread) -> None:
        """Waits until somebody wants messages, and reads them unless another thread does."""
        with contextlib.suppress(queue.Empty):
            self._wanted.get(timeout=_IDLE_READ_DELAY_S)
        with self._choosing:
            if self._reading is not None:
                return  # The thread that reads wakes this one when it is done.
            self._reading = me
        while not self._is_over and self._is_readable_by(None if self._expects_messages() else 0.0):
            self._read_once()
        self._reading = None

    def _expects_messages(self) -> bool:
        """Returns whether the listener exists and expects messages."""
        listener = self._listener()
        return listener is not None and bool(listener.expects_messages)

    def _is_readable_soon(self, deadline: float | None) -> bool:
        """Polls the socket for as long as waking up would take. Returns whether there is a
        message."""
        end = time.monotonic() + _POLL_BEFORE_SLEEP_S
        if deadline is not None:
            end = min(end, deadline)
        while not self._is_over and time.monotonic() < end:
            if self._poll_socket(0):
                return True
        return False

    def _is_readable_by(self, deadline: float | None) -> bool:
        """Sleeps until the socket has a message or the deadline passes; ``None`` sleeps without
        limit. Returns whether there is a message, and ``False`` once reading has stopped."""
        if self._is_over:
            return False
        if deadline is None:
            return self._poll_socket(None)
        while True:
            left_ms = (deadline - time.monotonic()) * 1000
            if self._poll_socket(max(math.ceil(min(left_ms, _POLL_TIMEOUT_MAX_MS)), 0)):
                return True
            if left_ms <= _POLL_TIMEOUT_MAX_MS or self._is_over:
                return False

    def _poll_socket(self, timeout_ms: int | None) -> bool:
        """Returns whether the socket has a message within some milliseconds. Ends the connection
        where the system polls nothing any more, as with a limit of 0 descriptors."""
        try:
            return bool(self._poll.poll(timeout_ms))
        except OSError as error:
            raise_if_from_signal_handler(error)
            self._stop_reading(f"the socket of the gateway cannot be polled (ulimit -n): {error}")
            return False

    def _read_once(self) -> None:
        """Reads from the socket once, and hands complete messages to the listener. Stops reading at
        the end of the connection, after a malformed message, and after an interruption."""
        try:
            try:
                data = self._socket.recv(SOCKET_READ_BYTES)
            except OSError as error:
                raise_if_from_signal_handler(error)
                reason: str | None = f"connection to the gateway ended: {error}"
            else:
                if data is None:
                    return
                reason = self._deliver_messages(data) if data else "connection to the gateway ended"
            if reason is not None:
                self._stop_reading(reason)
        except BaseException:
            # Bytes may be lost or a message half handled, so the connection cannot be used.
            self._stop_reading("a wait was interrupted in the middle of a message from the gateway")
            raise

    def _stop_reading(self, reason: str) -> None:
        """Stores the reason of the connection's end, and wakes the reader thread, which ends it."""
        if not self._is_over:
            self._end_reason = reason
        self._is_over = True
        self.wake_reader()

    def _deliver_messages(self, data: bytes) -> str | None:
        """Decodes bytes from the gateway, and hands complete messages to the listener. Returns a
        reason to end the connection, or ``None``."""
        try:
            for message in self._frames.decode_frames(data):
                response = RESPONSES.decode(message)
                listener = self._listener()
                if listener is None:
                    return "the group no longer exists"
                if isinstance(response, Refused):
                    return response.why
                if isinstance(response, Attached):
                    return "the gateway attached this rank twice"
                number = 0
                if isinstance(response, GroupResponse):
                    number, response = response.number, _decode_on_connection(response)
                group = listener.group_listener(number)
                if isinstance(response, ResultPiece):
                    end = response.offset + response.nbytes
                    if group is None or not group.expects_result(self, response.sequence, end):
                        return f"bytes for no result of collective {response.sequence}"
                    take = self._result_writer(number, response)
                    self._frames.expect_bytes(response.nbytes, take)
                elif group is not None:
                    group.handle_response(self, response)
                del listener, group
        except DecodeError as error:
            return f"malformed message from the gateway: {error}"
        except Exception as error:
            # A fault of this package must reach the threads that wait.
            return f"the client failed: {error!r}"
        return None

    def _result_writer(self, number: int, piece: ResultPiece) -> Callable[[memoryview], None]:
        """Returns the function that takes the parts of a piece of a group, in order."""
        at = piece.offset

        def write_part(part: memoryview) -> None:
            """Writes the next part of the piece."""
            nonlocal at
            listener = self._listener()
            group = None if listener is None else listener.group_listener(number)
            if group is not None:
                group.write_result(self, piece.sequence, at, part)
            at += len(part)

        return write_part


def _decode_on_connection(response: GroupResponse) -> Response:
    """Returns the message about a group that a response holds. Raises ``DecodeError``."""
    message = RESPONSES.decode(response.response)
    if isinstance(message, (Attached, Refused, GroupResponse, StoreAnswered)):
        raise DecodeError(f"{type(message).__name__} in a group")
    return message


class _ConnectionReadingThread:
    """The thread that reads, as a new object for each turn."""

    def __init__(self) -> None:
        """Notes that the calling thread reads."""
        self.thread = threading.get_ident()
