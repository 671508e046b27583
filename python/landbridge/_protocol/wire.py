"""The messages between a trainer and its gateway; docs/protocol.md section 5.

A message is a ``NamedTuple`` of its fields in wire order. To add one, write its class and one line
in ``REQUESTS`` or ``RESPONSES``.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, Union, get_type_hints

from .collective_types import CollectiveKind, Dtype, Op
from .fields import (
    CountsField,
    DecodeError,
    RestField,
    SizesField,
    TextField,
    decode_counts_field,
    decode_enum_field,
    decode_sizes_field,
    decode_text_field,
    encode_counts_field,
    encode_text_field,
)

#: 6: the version of the protocol between trainer and gateway, which both must speak;
#: docs/protocol.md. Another version raises ``Refused``.
LOCAL_PROTOCOL_VERSION = 6
#: 64 KiB: the longest message between trainer and gateway, without its length field. A longer one
#: is not sent, and a received one ends the connection.
MESSAGE_MAX_BYTES = 64 << 10
#: 256 KiB: the most bytes of one piece of a contribution or result between a trainer and a gateway
#: on another host. Messages pass between pieces.
PIECE_MAX_BYTES = 1 << 18
#: 32 bytes: the length of a job's token, the secret by which a trainer may attach.
TOKEN_BYTES = 32
#: ``L``: the first byte that a trainer sends to its gateway. The file descriptor of the arena goes
#: along with this byte.
ATTACH_FIRST_BYTE = b"L"
#: 128: reasons of refusals with this code or a higher one pass with time. A lower code lasts until
#: somebody changes a file or a program.
TEMPORARY_REFUSAL_MIN = 128
#: 1,024 bytes: the longest text of a failure in a gateway's message; docs/protocol.md. A longer
#: text is a malformed message, which ends the connection.
FAILURE_TEXT_MAX_BYTES = 1024
#: 8 dimensions: a shape in a message has at most so many; docs/protocol.md section 2. Of an array with
#: more, the message has one dimension, and the layout a hash of the shape.
SHAPE_MAX_DIMENSIONS = 8


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
    MEMBERSHIP_CHANGED = 10


class RefusalReason(enum.IntEnum):
    """The reasons why a gateway refuses a trainer; docs/protocol.md section 5."""

    BAD_REQUEST = 1
    VERSION = 2
    UNAUTHORIZED = 3
    OTHER_GATEWAY = 4
    BAD_ARENA = 5
    ARENA_TOO_LARGE = 6
    SHUTTING_DOWN = 128
    RANK_TAKEN = 129
    MEMORY_IN_USE = 130
    DETACHED = 131
    NO_RESOURCES = 132

    @property
    def is_temporary(self) -> bool:
        """Whether the reason passes with time, so that another attempt may succeed."""
        return self >= TEMPORARY_REFUSAL_MIN


#: The type of a message's field of 8 bits without sign, with its ``struct`` character.
U8 = Annotated[int, "B"]
#: The type of a message's field of 16 bits without sign, with its ``struct`` character.
U16 = Annotated[int, "H"]
#: The type of a message's field of 32 bits without sign, with its ``struct`` character.
U32 = Annotated[int, "I"]
#: The type of a message's field of 64 bits without sign, with its ``struct`` character.
U64 = Annotated[int, "Q"]
#: The type of a message's field that is a 64-bit float, with its ``struct`` character.
F64 = Annotated[float, "d"]
#: The type of a message's field that holds a job's token, with its ``struct`` format.
Token = Annotated[bytes, f"{TOKEN_BYTES}s"]
#: The type of a message's field that is the code of a reduction, with its ``struct`` character.
OpCode = Annotated[Op, "B"]
#: The type of a message's field that is the code of an element type, with its ``struct`` character.
DtypeCode = Annotated[Dtype, "B"]
#: The type of a message's field that is the code of a collective's kind, with its ``struct``
#: character.
KindCode = Annotated[CollectiveKind, "B"]
#: The type of a message's field that is the code of a failure, with its ``struct`` character.
Failure = Annotated[FailureCode, "B"]
#: The type of a message's field that is the reason of a refusal, with its ``struct`` character.
Reason = Annotated[RefusalReason, "B"]
#: The type of a message's text field of at most 65,535 bytes, which its length field of 2 bytes can
#: tell.
Text = Annotated[str, TextField(0xFFFF)]
#: The type of a message's field that holds the sizes of an array's dimensions.
Sizes = Annotated[tuple[int, ...], SizesField(SHAPE_MAX_DIMENSIONS)]
#: The type of a message's last field, which holds the counts of a collective's blocks: no list
#: where all blocks are alike, one list by rank, or the lists to and from each rank.
CountLists = Annotated[tuple[tuple[int, ...], ...], CountsField(2)]
#: The type of a message's last field, which holds all bytes that are left. Another module encodes
#: them.
Rest = Annotated[bytes, RestField()]
#: The type of a message's text field of at most ``FAILURE_TEXT_MAX_BYTES`` bytes.
FailureText = Annotated[str, TextField(FAILURE_TEXT_MAX_BYTES)]


class Attach(NamedTuple):
    """Attaches a rank with its memory. It is the first request."""

    version: U16
    rank: U32
    arena_bytes: U64
    token: Token
    job: Text


class Post(NamedTuple):
    """Starts a collective."""

    epoch: U64
    sequence: U64
    op: OpCode
    dtype: DtypeCode
    elements: U64
    layout_hash: U64
    operation: KindCode
    root: U32
    shape: Sizes
    weight: F64
    timeout_ns: U64
    contribution_offset: U64
    result_offset: U64
    # The bytes of the contribution that follow in pieces; 0 where the gateway shares the arena.
    streamed_bytes: U64 = 0
    counts: CountLists = ()

    def is_valid(self) -> bool:
        """Returns whether an array of ``shape`` has ``elements`` elements."""
        return math.prod(self.shape) == self.elements


class Detach(NamedTuple):
    """Announces that no more posts follow. Posted collectives continue."""


class Commit(NamedTuple):
    """Asks for a message when a step is complete in every region."""

    epoch: U64
    step: U64
    timeout_ns: U64


class ContributionPiece(NamedTuple):
    """The next bytes of the contribution that was posted last. They follow behind the message."""

    # Counted from the first byte of the contribution.
    offset: U64
    nbytes: U32

    def is_valid(self) -> bool:
        """Returns whether the piece is neither empty nor too long."""
        return 0 < self.nbytes <= PIECE_MAX_BYTES


class StoreRequest(NamedTuple):
    """Reads or changes the store of the job; ``store_encoding.py`` encodes what is asked."""

    number: U64
    timeout_ns: U64
    request: Rest


class MakeGroup(NamedTuple):
    """Makes a group of ranks of the job; ``encode_wire_group_ranks`` encodes their list."""

    number: U64
    parent: U64
    place: U64
    ranks: Rest


class LeaveGroup(NamedTuple):
    """Leaves a group, in which no collective of this rank is under way."""

    number: U64


class GroupRequest(NamedTuple):
    """A post or commit in a group, as it is encoded for the job."""

    number: U64
    request: Rest


class Attached(NamedTuple):
    """The rank is attached."""

    version: U16
    world_size: U32
    fabric: Text


class Refused(NamedTuple):
    """The gateway refuses the rank and ends the connection."""

    reason: Reason
    why: Text


class EpochBegan(NamedTuple):
    """An epoch began. Its collectives are numbered from ``next_sequence``."""

    epoch: U64
    next_sequence: U64
    # 1, and the last step known to be complete in every region; both 0 where none is known.
    has_committed: U8
    committed: U64
    # Why the epoch before ended; 0 and no text for a rank that was not in it.
    ended_code: U8 = 0
    ended_text: FailureText = ""

    def is_valid(self) -> bool:
        """Returns whether fields are 0 or empty where others say that they have no meaning, and
        ``ended_code`` is 0 or known."""
        is_known = self.has_committed == 1 or (self.has_committed, self.committed) == (0, 0)
        if self.ended_code == 0:
            return is_known and not self.ended_text
        return is_known and self.ended_code in set(FailureCode)


class WorldChanged(NamedTuple):
    """The job goes on with these ranks from its next epoch on, numbered from 0 in their order."""

    ranks: Rest


class EpochAwaited(NamedTuple):
    """No epoch is under way; the text says what the gateway waits for."""

    why: FailureText


class ResultReady(NamedTuple):
    """The result slot may be read. Instants are in ns of the host's monotonic clock."""

    sequence: U64
    posted_ns: U64
    wan_begin_ns: U64
    wan_end_ns: U64
    ready_ns: U64


class ContributionFree(NamedTuple):
    """Both slots may be written again."""

    sequence: U64


class Failed(NamedTuple):
    """The collective failed. Both slots may be written again."""

    sequence: U64
    code: Failure
    text: FailureText


class Committed(NamedTuple):
    """All ranks of every region have the collectives of the step."""

    step: U64


class CommitFailed(NamedTuple):
    """It is unknown whether every region has the collectives of the step."""

    step: U64
    code: Failure
    text: FailureText


class ResultPiece(NamedTuple):
    """Bytes of a result for a trainer that shares no memory. They follow behind the message."""

    sequence: U64
    offset: U64
    nbytes: U32

    def is_valid(self) -> bool:
        """Returns whether the piece is neither empty nor too long."""
        return 0 < self.nbytes <= PIECE_MAX_BYTES


class StoreAnswered(NamedTuple):
    """The store of the job has answered a request; ``store_encoding.py`` decodes the answer."""

    number: U64
    answer: Rest


class GroupResponse(NamedTuple):
    """A message about a group, as it is encoded for the job."""

    number: U64
    response: Rest


class Disbanded(NamedTuple):
    """The group cannot be made, or is over."""

    code: Failure
    text: FailureText


#: The types of the messages from a trainer to its gateway.
Request = Union[
    Attach,
    Post,
    Detach,
    Commit,
    ContributionPiece,
    MakeGroup,
    LeaveGroup,
    GroupRequest,
    StoreRequest,
]
#: The types of the messages from a gateway to a trainer.
Response = Union[
    Attached,
    Refused,
    EpochBegan,
    WorldChanged,
    ResultReady,
    ContributionFree,
    Failed,
    Committed,
    CommitFailed,
    EpochAwaited,
    ResultPiece,
    GroupResponse,
    Disbanded,
    StoreAnswered,
]
#: The type of the messages of a ``WireCodec``.
M = TypeVar("M")


class _WireLayout:
    """The wire layout of one message class: fixed parts with texts or sizes between them."""

    def __init__(self, cls: Any, first: int) -> None:
        """Derives the layout of a message class from the types of its fields; ``first`` is its
        code, the first byte."""
        self.cls = cls
        self._first = first
        # For each fixed part: its struct, its enums, and the text or the sizes after it.
        self._parts: list[tuple[struct.Struct, tuple[Any, ...], TextField | SizesField | None]] = []
        # The mark of the counts that are the last field, or `None`.
        self._counts: CountsField | None = None
        # Whether the last field has all bytes that are left.
        self._has_rest = False
        codes = ">"
        enums: list[Any] = []
        hints = get_type_hints(cls, include_extras=True)
        for hint in (hints[name] for name in cls._fields):
            kind, mark = hint.__origin__, hint.__metadata__[0]
            if isinstance(mark, CountsField):
                self._counts = mark
                continue
            if isinstance(mark, RestField):
                self._has_rest = True
                continue
            if isinstance(mark, (TextField, SizesField)):
                self._parts.append((struct.Struct(codes), tuple(enums), mark))
                codes, enums = ">", []
            else:
                codes += mark
                enums.append(kind if issubclass(kind, enum.Enum) else None)
        if enums or not self._parts:
            self._parts.append((struct.Struct(codes), tuple(enums), None))
        # One struct packs a whole message of fixed fields alone.
        has_more = any(after for _, _, after in self._parts)
        has_more = has_more or self._counts is not None or self._has_rest
        self._whole = None if has_more else struct.Struct(f">B{codes[1:]}")
        # One packs a whole post too, up to its counts, whose only other field is its shape: posts
        # are frequent. The list has the struct of each number of sizes.
        self._by_size_count: list[struct.Struct] = []
        self._sizes_at = len(self._parts[0][1])
        sizes = self._parts[0][2]
        if isinstance(sizes, SizesField):
            assert len(self._parts) == 2, "fixed fields, sizes, fixed fields"
            head, tail = (part[0].format[1:] for part in self._parts)
            self._by_size_count = [
                struct.Struct(f">B{head}B{count}Q{tail}") for count in range(sizes.max_count + 1)
            ]
        self._has_check = hasattr(cls, "is_valid")
        self._is_plain = self._whole is not None and not any(enums) and not self._has_check

    def encode(self, message: tuple[Any, ...]) -> bytes:
        """Returns the bytes of a message of this class, with its code first and without the length
        field."""
        if self._whole is not None:
            return self._whole.pack(self._first, *message)
        if self._by_size_count:
            at = self._sizes_at
            count = len(message[at])
            if count >= len(self._by_size_count):
                raise ValueError(f"too many sizes: {count}")
            whole = self._by_size_count[count]
            counts = b"" if self._counts is None else encode_counts_field(message[-1])
            end = len(message) - (self._counts is not None)
            sizes, rest = message[at], message[at + 1 : end]
            return whole.pack(self._first, *message[:at], count, *sizes, *rest) + counts
        out = bytearray((self._first,))
        at = 0
        for fixed, enums, after in self._parts:
            out += fixed.pack(*message[at : at + len(enums)])
            at += len(enums)
            if isinstance(after, TextField):
                out += encode_text_field(message[at], after)
                at += 1
        if self._has_rest:
            out += message[at]
        return bytes(out)

    def decode(self, data: bytes) -> Any:
        """Returns the message of this class that the bytes hold, code included. Raises
        ``DecodeError``."""
        if self._is_plain and self._whole is not None and len(data) == self._whole.size:
            return self.cls(*self._whole.unpack(data)[1:])
        at = 1
        values: list[Any] = []
        for fixed, enums, after in self._parts:
            try:
                plain = fixed.unpack_from(data, at)
            except struct.error:
                raise DecodeError("truncated") from None
            at += fixed.size
            for value, kind in zip(plain, enums):
                values.append(value if kind is None else decode_enum_field(kind, value))
            if isinstance(after, TextField):
                text, at = decode_text_field(data, at, after)
                values.append(text)
            elif after is not None:
                sizes, at = decode_sizes_field(data, at, after)
                values.append(sizes)
        if self._counts is not None:
            counts, at = decode_counts_field(data, at, self._counts)
            values.append(counts)
        if self._has_rest:
            values.append(data[at:])
            at = len(data)
        if at != len(data):
            raise DecodeError("bytes follow the last field")
        message = self.cls(*values)
        if self._has_check and not message.is_valid():
            raise DecodeError(f"fields of {self.cls.__name__} contradict each other")
        return message


def decode_wire_group_ranks(encoded: bytes) -> tuple[int, ...]:
    """Returns the ranks behind their number. Raises ``DecodeError`` unless they ascend."""
    if len(encoded) < 8 or len(encoded) != 4 + 4 * struct.unpack_from(">I", encoded)[0]:
        raise DecodeError("ranks of another number than the message says")
    ranks: tuple[int, ...] = struct.unpack_from(f">{len(encoded) // 4 - 1}I", encoded, 4)
    if any(one >= other for one, other in zip(ranks, ranks[1:])):
        raise DecodeError("ranks that do not ascend")
    return ranks


def encode_wire_group_ranks(ranks: Sequence[int]) -> bytes:
    """Returns the bytes of the ranks of a group behind their number."""
    return struct.pack(f">I{len(ranks)}I", len(ranks), *ranks)


class WireCodec(Generic[M]):
    """The codec of one direction's messages, which differ by their first byte."""

    def __init__(self, name: str, messages: Mapping[int, type[Any]]) -> None:
        """Makes the codec of these message classes by their codes. ``name`` says in errors whose
        messages they are."""
        self._name = name
        self.messages = dict(messages)
        self._by_code = {code: _WireLayout(cls, code) for code, cls in messages.items()}
        self._by_class: dict[Any, _WireLayout] = {
            layout.cls: layout for layout in self._by_code.values()
        }

    def encode(self, message: M) -> bytes:
        """Returns the bytes of a message, without the length field."""
        return self._by_class[type(message)].encode(message)  # type: ignore[arg-type]

    def encode_frame(self, message: M) -> bytes:
        """Returns the bytes of a message behind its length field of 4 bytes."""
        data = self.encode(message)
        if len(data) > MESSAGE_MAX_BYTES:
            raise ValueError(f"message too long: {len(data)} bytes, {MESSAGE_MAX_BYTES} allowed")
        return len(data).to_bytes(4, "big") + data

    def decode(self, data: bytes) -> M:
        """Returns the message that the bytes without length field hold. Raises ``DecodeError`` for
        malformed bytes."""
        if not data:
            raise DecodeError("truncated")
        layout = self._by_code.get(data[0])
        if layout is None:
            raise DecodeError(f"unknown {self._name} {data[0]}")
        message: M = layout.decode(data)
        return message


#: The codec of messages from a trainer to its gateway, with the wire code of each message.
REQUESTS: WireCodec[Request] = WireCodec(
    "request",
    {
        1: Attach,
        2: Post,
        3: Detach,
        4: Commit,
        5: ContributionPiece,
        6: MakeGroup,
        7: LeaveGroup,
        8: GroupRequest,
        14: StoreRequest,
    },
)
#: The codec of messages from a gateway to a trainer, with the wire code of each message.
RESPONSES: WireCodec[Response] = WireCodec(
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
        9: EpochAwaited,
        10: ResultPiece,
        11: GroupResponse,
        12: Disbanded,
        13: WorldChanged,
        19: StoreAnswered,
    },
)
