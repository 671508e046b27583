"""The frames of messages between a trainer and its gateway; docs/protocol.md section 5."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .fields import DecodeError
from .wire import MESSAGE_MAX_BYTES


class FrameDecoder:
    """Cuts a stream of bytes into messages, and keeps at most one incomplete message."""

    def __init__(self) -> None:
        """Begins at the start of a message."""
        self._rest = b""
        #: The number of bytes that follow and are no message, and the function that takes them.
        self._plain_left = 0
        self._take: Callable[[memoryview], None] = lambda _part: None

    def expect_bytes(self, count: int, take: Callable[[memoryview], None]) -> None:
        """Makes the next ``count`` bytes no message: ``take`` gets them in parts. Call it while
        ``decode_frames`` has yielded the message that announces them."""
        self._plain_left, self._take = count, take

    def decode_frames(self, data: bytes) -> Iterator[bytes]:
        """Yields the bytes of each message that ``data`` completes, without length field. Bytes
        that ``expect_bytes`` has announced go to its function. Raises ``DecodeError`` for a message
        that is too long."""
        rest = self._rest + data if self._rest else data
        at = 0
        while len(rest) - at >= 4 or (self._plain_left and at < len(rest)):
            if self._plain_left:
                part = memoryview(rest)[at : at + self._plain_left]
                at += len(part)
                self._plain_left -= len(part)
                self._take(part)
                continue
            length = int.from_bytes(rest[at : at + 4], "big")
            if length > MESSAGE_MAX_BYTES:
                raise DecodeError(f"message too long: {length} bytes, {MESSAGE_MAX_BYTES} allowed")
            end = at + 4 + length
            if len(rest) < end:
                break
            # Set before the yield, so that a caller that stops here can continue behind it.
            self._rest = rest[end:]
            yield rest[at + 4 : end]
            at = end
        self._rest = rest[at:]
