"""The fields of the messages between a trainer and its gateway, of a length of their own."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple


class DecodeError(ValueError):
    """The bytes are no valid message. The sender is at fault."""


class TextField(NamedTuple):
    """The mark of a text field, with its longest length in bytes."""

    max_bytes: int


class SizesField(NamedTuple):
    """The mark of a field with a number of 64-bit numbers, with the most of them."""

    max_count: int


class CountsField(NamedTuple):
    """The mark of a message's last field, which holds lists of counts."""

    max_lists: int


class RestField(NamedTuple):
    """The mark of a message's last field, which holds all bytes that are left."""


def decode_enum_field(kind: Callable[[int], Any], code: int) -> Any:
    """Returns the member of an enumeration for its code on the wire. Raises ``DecodeError`` for an
    unknown code."""
    try:
        return kind(code)
    except ValueError:
        raise DecodeError(f"unknown {getattr(kind, '__name__', kind)} {code}") from None


def encode_text_field(value: str, field: TextField) -> bytes:
    """Returns the bytes of a text behind its length. Raises ``ValueError`` for a text too long."""
    coded = value.encode()
    if len(coded) > field.max_bytes:
        raise ValueError(f"text too long: {len(coded)} bytes, {field.max_bytes} allowed")
    return len(coded).to_bytes(2, "big") + coded


def decode_sizes_field(data: bytes, at: int, field: SizesField) -> tuple[tuple[int, ...], int]:
    """Returns the sizes whose number is at position ``at``, and the position behind them. Raises
    ``DecodeError``."""
    count = data[at] if at < len(data) else 0
    if count > field.max_count:
        raise DecodeError(f"too many sizes: {count}, {field.max_count} allowed")
    end = at + 1 + 8 * count
    if len(data) < end:
        raise DecodeError("truncated")
    return struct.unpack(f">{count}Q", data[at + 1 : end]), end


def encode_counts_field(lists: tuple[tuple[int, ...], ...]) -> bytes:
    """Returns the bytes of lists of counts behind the number of lists. Each list stands behind its
    length."""
    coded = bytes((len(lists),))
    for counts in lists:
        coded += struct.pack(f">I{len(counts)}Q", len(counts), *counts)
    return coded


def decode_counts_field(
    data: bytes, at: int, field: CountsField
) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Returns the lists of counts whose number is at position ``at``, and the position behind
    them. Raises ``DecodeError``."""
    if at >= len(data):
        raise DecodeError("truncated")
    if data[at] > field.max_lists:
        raise DecodeError(f"unknown counts {data[at]}")
    lists = []
    start = at + 1
    for _ in range(data[at]):
        length = int.from_bytes(data[start : start + 4], "big")
        end = start + 4 + 8 * length
        if len(data) < max(end, start + 4):
            raise DecodeError("truncated")
        lists.append(struct.unpack(f">{length}Q", data[start + 4 : end]))
        start = end
    return tuple(lists), start


def decode_text_field(data: bytes, at: int, text: TextField) -> tuple[str, int]:
    """Returns the text whose length field is at position ``at``, and the position behind it. Raises
    ``DecodeError``."""
    start = at + 2
    end = start + int.from_bytes(data[at:start], "big")
    if len(data) < start or len(data) < end:
        raise DecodeError("truncated")
    if end - start > text.max_bytes:
        raise DecodeError(f"text too long: {end - start} bytes, {text.max_bytes} allowed")
    try:
        return data[start:end].decode(), end
    except UnicodeDecodeError:
        raise DecodeError("a text is not UTF-8") from None
