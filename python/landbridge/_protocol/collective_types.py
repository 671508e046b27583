"""The description of a collective: its kind, its reduction and its element type."""

from __future__ import annotations

import enum

from .._argument_errors import argument_error


class Op(enum.IntEnum):
    """The reduction of two elements; docs/protocol.md section 2."""

    SUM = 1
    AVG = 2
    MIN = 3
    MAX = 4
    PROD = 5
    BAND = 6
    BOR = 7
    BXOR = 8

    @classmethod
    def from_name(cls, name: str) -> Op:
        """Returns the reduction of a name such as ``sum``, in any case. Raises ``ConfigError`` for
        an unknown name."""
        op = _OPS_BY_NAME.get(name.lower()) if isinstance(name, str) else None
        if op is None:
            raise argument_error("op", name, ", ".join(_OPS_BY_NAME))
        return op

    def accepts(self, dtype: Dtype) -> bool:
        """Returns whether the reduction is defined on an element type: an average on floats alone,
        a bitwise operation on all but floats, and all others on every type."""
        if self == Op.AVG:
            return dtype.is_float
        return not (dtype.is_float and self in (Op.BAND, Op.BOR, Op.BXOR))


class CollectiveKind(enum.IntEnum):
    """The kind of a collective; docs/protocol.md section 2 calls it its operation."""

    ALL_REDUCE = 1
    REDUCE = 2
    BROADCAST = 3
    BARRIER = 4
    ALL_GATHER = 5
    REDUCE_SCATTER = 6
    GATHER = 7
    SCATTER = 8
    ALL_TO_ALL = 9
    SEND = 10

    @property
    def is_reduced(self) -> bool:
        """Whether contributions are reduced, and not only moved."""
        return self in _REDUCED_KINDS


class Dtype(enum.IntEnum):
    """The type of an element; docs/protocol.md section 2."""

    F32 = 1
    F64 = 2
    F16 = 3
    BF16 = 4
    I32 = 5
    I64 = 6
    U8 = 7
    I8 = 8
    I16 = 9
    U16 = 10
    U32 = 11
    U64 = 12
    BOOL = 13

    @property
    def label(self) -> str:
        """The name of the element type in config files and errors, such as ``bf16``."""
        return self.name.lower()

    @property
    def element_bytes(self) -> int:
        """The size of an element in bytes."""
        return _ELEMENT_BYTES[self]

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self in (Dtype.F32, Dtype.F64, Dtype.F16, Dtype.BF16)

    @property
    def struct_format(self) -> str:
        """The ``struct`` character of an element. A bf16 has that of a ``u16``, which holds its
        bits."""
        return _STRUCT_FORMATS[self]

    @classmethod
    def from_name(cls, name: str) -> Dtype:
        """Returns the element type of a name such as ``bf16``. Raises ``ConfigError`` for an
        unknown name."""
        for dtype in cls:
            if isinstance(name, str) and dtype.label == name:
                return dtype
        raise argument_error("dtype", name, ", ".join(dtype.label for dtype in cls))


#: The reduction ``Op`` for each name in lower case. A dictionary finds a name ten times as fast as
#: an enumeration.
_OPS_BY_NAME = {op.name.lower(): op for op in Op}
#: The kinds of collectives that reduce contributions, and do not only move them.
_REDUCED_KINDS = frozenset(
    (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)
)
#: The size in bytes of an element of each ``Dtype``.
_ELEMENT_BYTES = {
    Dtype.F32: 4,
    Dtype.F64: 8,
    Dtype.F16: 2,
    Dtype.BF16: 2,
    Dtype.I32: 4,
    Dtype.I64: 8,
    Dtype.U8: 1,
    Dtype.I8: 1,
    Dtype.I16: 2,
    Dtype.U16: 2,
    Dtype.U32: 4,
    Dtype.U64: 8,
    Dtype.BOOL: 1,
}
#: The character of each ``Dtype`` in formats of the module ``struct``, by which buffers have
#: elements of the type. A bf16 has that of a ``u16``, which holds its bits.
_STRUCT_FORMATS = {
    Dtype.F32: "f",
    Dtype.F64: "d",
    Dtype.F16: "e",
    Dtype.BF16: "H",
    Dtype.I32: "i",
    Dtype.I64: "q",
    Dtype.U8: "B",
    Dtype.I8: "b",
    Dtype.I16: "h",
    Dtype.U16: "H",
    Dtype.U32: "I",
    Dtype.U64: "Q",
    Dtype.BOOL: "?",
}
