"""The connection to a gateway: frames out, and frames in.

Whoever waits for the gateway reads what it says; a thread does while something is under way
that nobody waits for. A thread that read for everybody would cost each answer another wake-up.
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
from pathlib import Path
from typing import Any, Optional, Protocol

from .. import errors
from .wire import (
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

#: Dozens of messages. Memory is taken for as many bytes at each read.
_READ_BYTES = 1 << 12
#: Longer than a gateway waits for a predecessor of the rank to be gone.
_ANSWER_PATIENCE_S = 30.0
#: Who waits looks this long for an answer before it sleeps: to be woken takes as long.
_LOOK_S = 50e-6
#: While nothing is under way, what the gateway says is heard this much later at most.
_IDLE_LOOK_S = 0.1
#: What a poll takes: a C int.
_POLL_MAX_MS = (1 << 31) - 1


class Listener(Protocol):
    """Who hears what the gateway says, in the thread that reads it."""

    @property
    def is_busy(self) -> bool:
        """Whether the gateway is about to say something."""

    def handle(self, link: Link, response: Response) -> None:
        """A message came."""

    def end(self, link: Link, why: str) -> None:
        """The connection is gone; nothing follows."""


class Latch(Protocol):
    """What opens when something was heard."""

    is_open: bool


class Link:
    """An attached connection. ``listen`` starts its reader."""

    def __init__(self, connection: socket.socket, attached: Attached, frames: Frames) -> None:
        self.attached = attached
        self._socket = connection
        self._frames = frames
        self._owner = os.getpid()
        self._listener: Any = None
        # Who reads, if anybody does. Signals may interrupt a caller anywhere, so this is no lock:
        # a lock could be taken without its holder knowing.
        self._reading: Optional[_Turn] = None
        self._choosing = threading.Lock()
        # The reader's thread is to look. No event: Ctrl-C could leave its lock taken, and the
        # garbage collector, in any thread, calls `attend` as well.
        self._wanted: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_over = False
        self._why = ""
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def listen(self, listener: Listener) -> None:
        """Starts the reader. It keeps the listener from nothing: when nobody else holds it,
        the reader ends."""
        self._listener = weakref.ref(listener)
        why = self._deliver(b"")  # what came behind the first answer
        if why is not None:
            self._end(why)
        threading.Thread(target=self._read, name="landbridge-reader", daemon=True).start()

    def send(self, request: Request) -> None:
        """Writes one message. Raises ``OSError``: the connection is gone."""
        self._socket.sendall(REQUESTS.frame(request))

    def attend(self) -> None:
        """Something is under way: it is heard of, whether or not somebody waits for it."""
        if self._wanted.empty():
            self._wanted.put(None)

    def read_until(self, latch: Latch, timeout_s: Optional[float]) -> None:
        """Reads in the caller's thread until ``latch`` is open, for so long at most; returns at
        once where another thread reads already. A signal may interrupt it."""
        me, is_mine = _Turn(), False
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            with self._choosing:
                if self._reading is None:
                    self._reading = me
            while self._reading is me and not latch.is_open:
                if not self._comes_soon(deadline) and not self._comes(deadline):
                    break
                self._hear()
                # It may have spoken of other things all the time.
                if deadline is not None and time.monotonic() >= deadline:
                    break
        finally:
            # No call in between, so no signal either.
            if self._reading is me:
                self._reading, is_mine = None, True
            if not is_mine or self._is_busy():
                self.attend()

    def is_read_here(self) -> bool:
        """Whether this thread reads, further up: a signal has interrupted it."""
        reading = self._reading
        return reading is not None and reading.thread == threading.get_ident()

    def hang_up(self) -> None:
        """Ends the connection, for the gateway too. In a forked process only its own copy of
        the descriptor is closed, which the gateway does not notice."""
        if os.getpid() != self._owner:
            return self._socket.close()
        # It may be gone already. Who reads closes it: nobody else may, for a new descriptor
        # could get its number while somebody is about to read from it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.attend()

    def _read(self) -> None:
        """The reader's thread. It ends the connection, whoever found that it must end: signals
        interrupt any other thread."""
        me = _Turn()
        while not self._is_over:
            with contextlib.suppress(queue.Empty):
                self._wanted.get(timeout=_IDLE_LOOK_S)
            with self._choosing:
                if self._reading is not None:
                    continue  # who reads says when it has done so
                self._reading = me
            while not self._is_over and self._comes(None if self._is_busy() else 0.0):
                self._hear()
            self._reading = None
        listener = self._listener()
        if listener is not None:
            listener.end(self, self._why)
        self._socket.close()

    def _is_busy(self) -> bool:
        listener = self._listener()
        return listener is not None and bool(listener.is_busy)

    def _comes_soon(self, deadline: Optional[float]) -> bool:
        """Whether there is something to hear before a thread that sleeps would be awake, and by
        then."""
        end = time.monotonic() + _LOOK_S
        if deadline is not None:
            end = min(end, deadline)
        while not self._is_over and time.monotonic() < end:
            if self._poll.poll(0):
                return True
        return False

    def _comes(self, deadline: Optional[float]) -> bool:
        """Whether there is something to hear, by then."""
        if self._is_over:
            return False
        if deadline is None:
            return bool(self._poll.poll())
        while True:
            left_ms = (deadline - time.monotonic()) * 1000
            if self._poll.poll(max(math.ceil(min(left_ms, _POLL_MAX_MS)), 0)):
                return True
            if left_ms <= _POLL_MAX_MS:
                return False

    def _hear(self) -> None:
        """Reads once, and hands over what is complete."""
        try:
            try:
                data = self._socket.recv(_READ_BYTES)
            except OSError as error:
                why: Optional[str] = f"connection to the gateway ended: {error}"
            else:
                why = self._deliver(data) if data else "connection to the gateway ended"
            if why is not None:
                self._end(why)
        except BaseException:
            # Bytes may be lost, or half a message handled: no way to go on.
            self._end("waiting was interrupted while the gateway spoke")
            raise

    def _end(self, why: str) -> None:
        """Nobody reads any more. What follows is up to the reader's thread."""
        if not self._is_over:
            self._why = why
        self._is_over = True
        self.attend()

    def _deliver(self, data: bytes) -> Optional[str]:
        """Hands over what is complete; says why the connection is of no more use."""
        try:
            for message in self._frames.feed(data):
                response = RESPONSES.decode(message)
                listener = self._listener()
                if listener is None:
                    return "nobody listens"
                if isinstance(response, Refused):
                    return response.why
                if isinstance(response, Attached):
                    return "the gateway attached this rank twice"
                listener.handle(self, response)
                del listener
        except DecodeError as error:
            return f"the gateway sent what is no message: {error}"
        except Exception as error:
            # A bug of ours: whoever waits hears of it.
            return f"the client failed: {error!r}"
        return None


class _Turn:
    """Somebody reads."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


def attach(path: Path, fd: int, request: Attach, deadline: float) -> Link:
    """Connects and attaches, before ``deadline`` of ``time.monotonic``. Raises ``AttachError``."""
    deadline = min(deadline, time.monotonic() + _ANSWER_PATIENCE_S)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            _limit(connection, deadline)
            connection.connect(str(path))
        except OSError as error:
            text = f"no gateway answers at {path}: {error}; start it with `landbridge run`"
            raise errors.NoGateway(text) from error
        frames = Frames()
        try:
            attached = _ask(connection, frames, fd, request, deadline)
        except socket.timeout as error:
            text = f"the gateway at {path} does not answer; is it stopped, or its host overloaded?"
            raise errors.NoGateway(text) from error
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return Link(connection, attached, frames)


def _limit(connection: socket.socket, deadline: float) -> None:
    """The next call to it ends by then, with ``socket.timeout``."""
    connection.settimeout(max(deadline - time.monotonic(), 0.001))


def _ask(
    connection: socket.socket, frames: Frames, fd: int, request: Attach, deadline: float
) -> Attached:
    try:
        socket.send_fds(connection, [FIRST_BYTE], [fd])
        connection.sendall(REQUESTS.frame(request))
        answer = _first(connection, frames, deadline)
    except socket.timeout:
        raise
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


def _first(connection: socket.socket, frames: Frames, deadline: float) -> Response:
    while True:
        _limit(connection, deadline)
        data = connection.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("closed without an answer")
        for message in frames.feed(data):
            # What follows it stays in `frames`, for the reader.
            return RESPONSES.decode(message)
