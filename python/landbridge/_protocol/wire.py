"""What a trainer and its gateway say to each other; docs/protocol.md section 5.

A message is a ``NamedTuple`` of fields in wire order. A new one is its class and one line in
``REQUESTS`` or ``RESPONSES``.
"""

from __future__ import annotations

import enum
import struct
from typing import (
    Annotated,
    Any,
    Callable,
    Dict,
    Generic,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
    Type,
    TypeVar,
    Union,
    get_type_hints,
)

from .descriptor import Dtype, Op, Operation

#: The version of everything in this module.
LOCAL_VERSION = 1
#: Longest message, in bytes, without its length.
MAX_BYTES = 4096
#: Length of a job's token.
TOKEN_BYTES = 32
#: What a trainer sends first, with its arena's descriptor beside it.
FIRST_BYTE = b"L"
#: Longest text of a failure, in bytes.
FAILURE_TEXT_MAX_BYTES = 1024


class FailureCode(enum.IntEnum):
    """The kinds of failure; docs/protocol.md section 2."""

    DISAGREEMENT = 1
    BAD_POST = 2
    TIMED_OUT = 3
    RANK_LOST = 4
    REGION_LOST = 5
    EPOCH_ENDED = 6
    STALLED = 7
    SHUTTING_DOWN = 8
    GATEWAY_LOST = 9


class DecodeError(ValueError):
    """Bytes that are no message. The sender's fault."""


class _Text(NamedTuple):
    max_bytes: int


U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
F64 = Annotated[float, "d"]
Token = Annotated[bytes, f"{TOKEN_BYTES}s"]
OpCode = Annotated[Op, "B"]
DtypeCode = Annotated[Dtype, "B"]
OperationCode = Annotated[Operation, "B"]
Failure = Annotated[FailureCode, "B"]
Text = Annotated[str, _Text(0xFFFF)]
FailureText = Annotated[str, _Text(FAILURE_TEXT_MAX_BYTES)]


class Attach(NamedTuple):
    """First of all: who speaks, for which rank, with how much memory."""

    version: U16
    rank: U32
    arena_bytes: U64
    token: Token
    job: Text


class Post(NamedTuple):
    """Start a collective."""

    epoch: U64
    sequence: U64
    op: OpCode
    dtype: DtypeCode
    elements: U64
    layout_hash: U64
    operation: OperationCode
    root: U32
    weight: F64
    timeout_ns: U64
    contribution_offset: U64
    result_offset: U64


class Detach(NamedTuple):
    """No more posts will come; what is posted goes on."""


class Commit(NamedTuple):
    """Say when a step is complete in every region."""

    epoch: U64
    step: U64
    timeout_ns: U64


class Attached(NamedTuple):
    """The trainer speaks for its rank now."""

    version: U16
    world_size: U32
    fabric: Text


class Refused(NamedTuple):
    """The connection ends."""

    why: Text


class EpochBegan(NamedTuple):
    """Collectives are numbered from ``next_sequence``, in this epoch."""

    epoch: U64
    next_sequence: U64
    # 1 with the last step known to be complete in every region; 0 and 0 without one.
    has_committed: U8
    committed: U64

    def is_sound(self) -> bool:
        """Whether the last two fields go together."""
        return self.has_committed == 1 or self[2:] == (0, 0)


class ResultReady(NamedTuple):
    """The result slot may be read. Instants in ns on the host's monotonic clock."""

    sequence: U64
    posted_ns: U64
    wan_begin_ns: U64
    wan_end_ns: U64
    ready_ns: U64


class ContributionFree(NamedTuple):
    """Both slots may be written again."""

    sequence: U64


class Failed(NamedTuple):
    """The collective failed; both slots are the trainer's again."""

    sequence: U64
    code: Failure
    text: FailureText


class Committed(NamedTuple):
    """Every region has the step's collectives, on all its ranks."""

    step: U64


class CommitFailed(NamedTuple):
    """It is not known here whether every region has the step's collectives."""

    step: U64
    code: Failure
    text: FailureText


Request = Union[Attach, Post, Detach, Commit]
Response = Union[
    Attached, Refused, EpochBegan, ResultReady, ContributionFree, Failed, Committed, CommitFailed
]
M = TypeVar("M")


class _Layout:
    """How one class of messages lies on the wire: fixed parts with texts between them."""

    def __init__(self, cls: Any, first: int) -> None:
        self.cls = cls
        self._first = first
        # A fixed part's struct with its enums, then the limit of the text after it.
        self._parts: List[Tuple[struct.Struct, Tuple[Any, ...], Optional[_Text]]] = []
        codes, enums = ">", []  # type: str, List[Any]
        hints = get_type_hints(cls, include_extras=True)
        for hint in (hints[name] for name in cls._fields):
            kind, mark = hint.__origin__, hint.__metadata__[0]
            if isinstance(mark, _Text):
                self._parts.append((struct.Struct(codes), tuple(enums), mark))
                codes, enums = ">", []
            else:
                codes += mark
                enums.append(kind if issubclass(kind, enum.Enum) else None)
        if enums or not self._parts:
            self._parts.append((struct.Struct(codes), tuple(enums), None))
        # Most messages have no text, and go by thousands: these are one struct.
        has_text = any(text for _, _, text in self._parts)
        self._whole = None if has_text else struct.Struct(f">B{codes[1:]}")
        self._is_plain = self._whole is not None and not any(enums) and cls is not EpochBegan

    def encode(self, message: Tuple[Any, ...]) -> bytes:
        if self._whole is not None:
            return self._whole.pack(self._first, *message)
        out = bytearray((self._first,))
        at = 0
        for fixed, enums, text in self._parts:
            out += fixed.pack(*message[at : at + len(enums)])
            at += len(enums)
            if text is not None:
                coded = message[at].encode()
                if len(coded) > text.max_bytes:
                    raise ValueError(f"a text of {len(coded)} bytes, {text.max_bytes} allowed")
                out += len(coded).to_bytes(2, "big") + coded
                at += 1
        return bytes(out)

    def decode(self, data: bytes) -> Any:
        if self._is_plain and self._whole is not None and len(data) == self._whole.size:
            return self.cls(*self._whole.unpack(data)[1:])
        at = 1
        values: List[Any] = []
        for fixed, enums, text in self._parts:
            try:
                plain = fixed.unpack_from(data, at)
            except struct.error:
                raise DecodeError("truncated") from None
            at += fixed.size
            for value, kind in zip(plain, enums):
                values.append(value if kind is None else _member(kind, value))
            if text is not None:
                taken, at = _take_text(data, at, text)
                values.append(taken)
        if at != len(data):
            raise DecodeError("bytes left over")
        message = self.cls(*values)
        if isinstance(message, EpochBegan) and not message.is_sound():
            raise DecodeError("a committed step that is none")
        return message


def _member(kind: Callable[[int], Any], code: int) -> Any:
    try:
        return kind(code)
    except ValueError:
        raise DecodeError(f"unknown {getattr(kind, '__name__', kind)} {code}") from None


def _take_text(data: bytes, at: int, text: _Text) -> Tuple[str, int]:
    start = at + 2
    end = start + int.from_bytes(data[at:start], "big")
    if len(data) < start or len(data) < end:
        raise DecodeError("truncated")
    if end - start > text.max_bytes:
        raise DecodeError(f"a text of {end - start} bytes, {text.max_bytes} allowed")
    try:
        return data[start:end].decode(), end
    except UnicodeDecodeError:
        raise DecodeError("a text that is not UTF-8") from None


class Codec(Generic[M]):
    """The messages of one direction, by their first byte."""

    def __init__(self, name: str, messages: Mapping[int, Type[Any]]) -> None:
        self._name = name
        self.messages = dict(messages)
        self._by_code = {code: _Layout(cls, code) for code, cls in messages.items()}
        self._by_class: Dict[Any, _Layout] = {
            layout.cls: layout for layout in self._by_code.values()
        }

    def encode(self, message: M) -> bytes:
        """The wire form, without the length in front."""
        return self._by_class[type(message)].encode(message)  # type: ignore[arg-type]

    def frame(self, message: M) -> bytes:
        """The wire form behind its length."""
        data = self.encode(message)
        if len(data) > MAX_BYTES:
            raise ValueError(f"a message of {len(data)} bytes, {MAX_BYTES} allowed")
        return len(data).to_bytes(4, "big") + data

    def decode(self, data: bytes) -> M:
        """Reads the wire form. Raises :class:`DecodeError`: the sender's fault."""
        if not data:
            raise DecodeError("truncated")
        layout = self._by_code.get(data[0])
        if layout is None:
            raise DecodeError(f"unknown {self._name} {data[0]}")
        message: M = layout.decode(data)
        return message


REQUESTS: Codec[Request] = Codec("request", {1: Attach, 2: Post, 3: Detach, 4: Commit})
RESPONSES: Codec[Response] = Codec(
    "response",
    {
        1: Attached,
        2: Refused,
        3: EpochBegan,
        4: ResultReady,
        5: ContributionFree,
        6: Failed,
        7: Committed,
        8: CommitFailed,
    },
)


class Frames:
    """Cuts a stream of bytes into messages; holds at most one incomplete one."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that ``data`` completes. Raises :class:`DecodeError`."""
        rest = self._rest + data if self._rest else data
        at = 0
        while len(rest) - at >= 4:
            length = int.from_bytes(rest[at : at + 4], "big")
            if length > MAX_BYTES:
                raise DecodeError(f"a message of {length} bytes, {MAX_BYTES} allowed")
            end = at + 4 + length
            if len(rest) < end:
                break
            # Told before it is yielded, for a caller that stops here goes on after it.
            self._rest = rest[end:]
            yield rest[at + 4 : end]
            at = end
        self._rest = rest[at:]
