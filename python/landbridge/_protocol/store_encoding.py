"""Requests to the store of a job, and its answers; docs/protocol.md section 7.

The requests are the last field of a ``StoreRequest``, the answers that of a ``StoreAnswered``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Union

from .. import errors
from .fields import DecodeError
from .wire import FAILURE_TEXT_MAX_BYTES

#: 1,024 bytes: the longest key of the store, a limit of gateways. A longer key raises
#: ``ConfigError``.
KEY_MAX_BYTES = 1024
#: 48 KiB: the longest value or item of a queue in the store; a longer one raises ``ConfigError``.
#: It is a limit of gateways, so that a message of 64 KiB holds the value.
VALUE_MAX_BYTES = 48 << 10
#: 56 KiB: the most bytes of keys and values in one request to the store; more raise
#: ``ConfigError``. It is a limit of gateways, so that a message of 64 KiB holds the request.
REQUEST_MAX_BYTES = 56 << 10
#: 1,024 keys: the most in one request to the store, a limit of gateways. More raise
#: ``ConfigError``.
REQUEST_MAX_KEYS = 1024


class StoreOpcode(enum.IntEnum):
    """The first byte of a request; docs/protocol.md section 7."""

    SET = 1
    ADD = 2
    COMPARE_SET = 3
    DELETE = 4
    APPEND = 5
    PUSH = 6
    POP = 7
    GET = 16
    WAIT = 17
    CHECK = 18
    COUNT = 19
    LIST = 20
    QUEUE_LENGTH = 21


class StoreFailureCode(enum.IntEnum):
    """Why a request has no outcome; docs/protocol.md section 7."""

    TIMED_OUT = 1
    UNCONFIRMED = 2
    BUSY = 3
    REFUSED = 4


class StoreFailure(NamedTuple):
    """The answer to a request without an outcome."""

    code: StoreFailureCode
    text: str


class ListedKeys(NamedTuple):
    """Keys with a prefix, in order."""

    keys: list[bytes]
    is_last: bool


#: The types of an answer: nothing more to say, a flag, a number, values, keys, or a failure.
StoreAnswer = Union[None, bool, int, "list[bytes]", ListedKeys, StoreFailure]


def encode_store_set(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Returns the request that gives keys their values, by one change for all of them."""
    _check_store_request([key for key, _ in pairs], [value for _, value in pairs])
    body = b"".join(_encode_store_key(key) + _encode_store_value(value) for key, value in pairs)
    return bytes((StoreOpcode.SET,)) + len(pairs).to_bytes(2, "big") + body


def encode_store_add(key: bytes, amount: int) -> bytes:
    """Returns the request that adds to a number."""
    _check_store_request([key])
    return (
        bytes((StoreOpcode.ADD,)) + _encode_store_key(key) + amount.to_bytes(8, "big", signed=True)
    )


def encode_store_compare_set(key: bytes, expected: bytes, desired: bytes) -> bytes:
    """Returns the request that replaces an expected value."""
    _check_store_request([key], [expected, desired])
    return (
        bytes((StoreOpcode.COMPARE_SET,))
        + _encode_store_key(key)
        + _encode_store_value(expected)
        + _encode_store_value(desired)
    )


def encode_store_delete(key: bytes) -> bytes:
    """Returns the request that removes a key."""
    _check_store_request([key])
    return bytes((StoreOpcode.DELETE,)) + _encode_store_key(key)


def encode_store_append(key: bytes, value: bytes) -> bytes:
    """Returns the request that appends to a value."""
    _check_store_request([key], [value])
    return bytes((StoreOpcode.APPEND,)) + _encode_store_key(key) + _encode_store_value(value)


def encode_store_push(key: bytes, item: bytes) -> bytes:
    """Returns the request that adds an item to a queue."""
    _check_store_request([key], [item])
    return bytes((StoreOpcode.PUSH,)) + _encode_store_key(key) + _encode_store_value(item)


def encode_store_pop(key: bytes) -> bytes:
    """Returns the request that takes an item from a queue, if there is one."""
    _check_store_request([key])
    return bytes((StoreOpcode.POP,)) + _encode_store_key(key)


def encode_store_get(keys: Sequence[bytes]) -> bytes:
    """Returns the request for the values of keys, once all have one."""
    return _encode_store_query(StoreOpcode.GET, keys)


def encode_store_wait(keys: Sequence[bytes]) -> bytes:
    """Returns the request that is answered once all keys exist."""
    return _encode_store_query(StoreOpcode.WAIT, keys)


def encode_store_check(keys: Sequence[bytes]) -> bytes:
    """Returns the request that asks whether all keys exist."""
    return _encode_store_query(StoreOpcode.CHECK, keys)


def encode_store_count() -> bytes:
    """Returns the request for the number of keys."""
    return bytes((StoreOpcode.COUNT,))


def encode_store_list(prefix: bytes, after: bytes) -> bytes:
    """Returns the request for keys with a prefix that come after another."""
    if len(prefix) > KEY_MAX_BYTES:
        text = f"a prefix of length {len(prefix)} is not accepted: up to {KEY_MAX_BYTES}"
        raise errors.ConfigError(text)
    return bytes((StoreOpcode.LIST,)) + _encode_store_key(prefix) + _encode_store_key(after)


def encode_store_queue_length(key: bytes, least: int) -> bytes:
    """Returns the request for the length of a queue, once it has ``least`` items."""
    _check_store_request([key])
    return bytes((StoreOpcode.QUEUE_LENGTH,)) + _encode_store_key(key) + least.to_bytes(4, "big")


def store_request_may_wait(request: bytes) -> bool:
    """Returns whether the answer to a request may wait for another request: for keys, or for items
    of a queue."""
    if request[0] == StoreOpcode.QUEUE_LENGTH:
        return any(request[-4:])
    return request[0] in (StoreOpcode.GET, StoreOpcode.WAIT)


def decode_store_answer(data: bytes) -> StoreAnswer:
    """Returns the answer that the bytes hold. Raises ``DecodeError``."""
    reader = _StoreAnswerReader(data)
    code = reader.number(1)
    answer: StoreAnswer
    if code:
        if code not in set(StoreFailureCode):
            raise DecodeError(f"unknown failure of the store {code}")
        text = reader.take(reader.number(2))
        if len(text) > FAILURE_TEXT_MAX_BYTES:
            raise DecodeError("text too long")
        answer = StoreFailure(StoreFailureCode(code), text.decode(errors="replace"))
    else:
        answer = _decode_store_outcome(reader)
    reader.check_end()
    return answer


def _decode_store_outcome(reader: _StoreAnswerReader) -> StoreAnswer:
    """Returns the outcome of a request that was carried out."""
    kind = reader.number(1)
    if kind == 1:
        return None
    if kind == 2:
        return reader.flag()
    if kind == 3:
        return int.from_bytes(reader.take(8), "big", signed=True)
    if kind == 4:
        return reader.elements(4)
    if kind == 5:
        is_last = reader.flag()
        return ListedKeys(reader.elements(2), is_last)
    raise DecodeError(f"unknown outcome of the store {kind}")


class _StoreAnswerReader:
    """Reads the fields of an answer from its front."""

    def __init__(self, data: bytes) -> None:
        """Begins at the front of the bytes of an answer."""
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        """Returns the next bytes. Raises ``DecodeError`` where fewer are left."""
        start, self._at = self._at, self._at + count
        if self._at > len(self._data):
            raise DecodeError("truncated")
        return self._data[start : self._at]

    def number(self, size: int) -> int:
        """Returns the next number of ``size`` bytes."""
        return int.from_bytes(self.take(size), "big")

    def flag(self) -> bool:
        """Returns the next flag."""
        value = self.number(1)
        if value > 1:
            raise DecodeError(f"unknown flag {value}")
        return bool(value)

    def elements(self, length_size: int) -> list[bytes]:
        """Returns the next list, whose elements follow their lengths of ``length_size`` bytes."""
        return [self.take(self.number(length_size)) for _ in range(self.number(2))]

    def check_end(self) -> None:
        """Raises ``DecodeError`` where bytes are left."""
        if self._at != len(self._data):
            raise DecodeError("bytes follow the last field")


def _encode_store_query(code: StoreOpcode, keys: Sequence[bytes]) -> bytes:
    """Returns the request with a code and keys."""
    _check_store_request(keys)
    return bytes((code,)) + len(keys).to_bytes(2, "big") + b"".join(map(_encode_store_key, keys))


def _encode_store_key(key: bytes) -> bytes:
    """Returns a key behind its length, which takes two bytes, the highest first."""
    return len(key).to_bytes(2, "big") + key


def _encode_store_value(value: bytes) -> bytes:
    """Returns a value behind its length, which takes four bytes, the highest first."""
    return len(value).to_bytes(4, "big") + value


def _check_store_request(keys: Sequence[bytes], values: Sequence[bytes] = ()) -> None:
    """Raises ``ConfigError`` where a request has no key, an empty one, or more or longer keys and
    values than a request may have."""

    def check(name: str, value: int, least: int, most: int) -> None:
        """Raises the error where a number is out of its range."""
        if not least <= value <= most:
            raise errors.ConfigError(f"{name}: {least} to {most} are possible, not {value}")

    check("keys of a request to the store", len(keys), 1, REQUEST_MAX_KEYS)
    for key in keys:
        check("bytes of a key", len(key), 1, KEY_MAX_BYTES)
    for value in values:
        check("bytes of a value", len(value), 0, VALUE_MAX_BYTES)
    total = sum(map(len, keys)) + sum(map(len, values))
    check("bytes of a request to the store", total, 1, REQUEST_MAX_BYTES)
