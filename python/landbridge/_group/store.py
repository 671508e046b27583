"""The store of a job: keys, counters and queues that all ranks share, by ``Group.store``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol, Union

from .. import errors
from .._argument_errors import argument_error
from .._arguments import (
    check_integer_argument,
    check_sequence_argument,
    check_text_argument,
    check_timeout_argument,
    is_boolean_argument,
)
from .._protocol import store_encoding as wire

#: 300 s: how long a request to the store waits by default; then ``StoreTimeout`` is raised. The
#: stores of PyTorch have the same default.
STORE_TIMEOUT_S = 300.0
#: 2 s: the longest delay between the timeout of a request to the store and the answer of a running
#: gateway, a chosen time. After it ``StoreTimeout`` says that the gateway is silent.
STORE_ANSWER_DELAY_MAX_S = 2.0

#: The words in errors for the keys that the store accepts.
_KEY_ACCEPTED = "texts that UTF-8 can hold"
#: The words in errors for the values that the store accepts.
_VALUE_ACCEPTED = "texts that UTF-8 can hold, and bytes"
#: The types of a value, and of an item of a queue.
Value = Union[str, bytes]
#: The types of a timeout: seconds, a span of time, or ``None`` for the timeout of the store.
Timeout = Union[float, timedelta, None]


class StoreCaller(Protocol):
    """The part of a group that a store needs."""

    def _call_store(self, request: bytes, timeout_ns: int) -> Any:
        """Sends a request to the store, and returns the answer."""


class Store:
    """The store of the job, as ``Group.store`` returns it. Threads may share it.

    Every gateway of the job holds all of it, so it outlives any gateway but the last. A change is
    made once all gateways hold it. Reads are answered by the gateway of this rank, once the changes
    that it knows are made. All ranks see one order of all requests. Methods that
    ``torch.distributed.Store`` has do the same here.

    At most 128 requests of a rank are under way, and at most 112 of them wait for a key or an item.
    Further ones wait for room, at most for their timeout.

    A key has 1 to 1,024 bytes, a value at most 48 KiB, and all of a job 65,536 keys and 16 MiB.

    Every method raises ``StoreTimeout`` when its time is over, ``StoreRefused`` when the store
    refuses the change, ``StoreDisconnected`` when the connection to the gateway ends, and
    ``ConfigError`` for a request that is too long, or an argument that cannot be used.

    Attributes:
        timeout: How long requests wait, in seconds; 300 by default.
    """

    def __init__(self, caller: StoreCaller) -> None:
        """Makes the store whose requests the caller sends. They wait for 300 s by default."""
        self._caller = caller
        self.timeout = STORE_TIMEOUT_S

    def set_timeout(self, timeout: float | timedelta) -> None:
        """Sets how long requests wait, in seconds or as a span of time."""
        seconds = _store_seconds(timeout, self.timeout)
        check_timeout_argument(seconds)
        self.timeout = seconds

    def set(self, key: str, value: Value) -> None:
        """Gives a key a value."""
        self._ask(wire.encode_store_set([(_store_key(key), _store_bytes(value))]))

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Gives keys their values, by one change for all of them."""
        named = _store_keys(keys)
        given = check_sequence_argument("values", values, "a list of texts or bytes")
        if len(named) != len(given):
            raise errors.ConfigError(f"{len(named)} keys and {len(given)} values")
        pairs = [(key, _store_bytes(value)) for key, value in zip(named, given)]
        self._ask(wire.encode_store_set(pairs))

    def get(self, key: str) -> bytes:
        """Returns the value of a key, once it has one."""
        values: list[bytes] = self._ask(wire.encode_store_get([_store_key(key)]))
        return values[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Returns the values of keys at one moment, once all have one."""
        values: list[bytes] = self._ask(wire.encode_store_get(_store_keys(keys)))
        return values

    def add(self, key: str, amount: int) -> int:
        """Adds to the number that is the value of a key, 0 at first. Returns the sum."""
        amount = check_integer_argument("amount", amount, 1 << 63, -(1 << 63))
        total: int = self._ask(wire.encode_store_add(_store_key(key), amount))
        return total

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Gives a key the value ``desired`` if its value is ``expected``; an empty ``expected``
        also stands for a key without a value. Returns the value that the key has then, or
        ``expected`` if it has none."""
        values = (_store_bytes(expected), _store_bytes(desired))
        found: list[bytes] = self._ask(wire.encode_store_compare_set(_store_key(key), *values))
        return found[0]

    def append(self, key: str, value: Value) -> None:
        """Appends to the value of a key, which is empty at first."""
        self._ask(wire.encode_store_append(_store_key(key), _store_bytes(value)))

    def wait(self, keys: Sequence[str], timeout: Timeout = None) -> None:
        """Waits until all keys exist, with a value or a queue."""
        self._ask(wire.encode_store_wait(_store_keys(keys)), timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Returns whether all keys exist now, with a value or a queue."""
        return bool(self._ask(wire.encode_store_check(_store_keys(keys))))

    def delete_key(self, key: str) -> bool:
        """Removes a key with its value and its queue. Returns whether it existed."""
        return bool(self._ask(wire.encode_store_delete(_store_key(key))))

    def num_keys(self) -> int:
        """Returns the number of keys."""
        count: int = self._ask(wire.encode_store_count())
        return count

    def list_keys(self, prefix: str = "") -> list[str]:
        """Returns the keys with a prefix, in order. Keys that come or go meanwhile may be
        missing."""
        wanted = check_text_argument("prefix", prefix, _KEY_ACCEPTED).encode()
        listed: list[bytes] = []
        while True:
            after = listed[-1] if listed else b""
            page: wire.ListedKeys = self._ask(wire.encode_store_list(wanted, after))
            listed += page.keys
            if page.is_last:
                return [key.decode(errors="surrogateescape") for key in listed]

    def queue_push(self, key: str, value: Value) -> None:
        """Adds an item at the end of the queue of a key."""
        self._ask(wire.encode_store_push(_store_key(key), _store_bytes(value)))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Takes the first item of the queue of a key, once there is one.

        Args:
            key: The key.
            block: Whether to wait for an item; otherwise an empty queue raises ``StoreTimeout``.
        """
        deadline = time.monotonic() + check_timeout_argument(self.timeout) / 1e9
        while True:
            items: list[bytes] = self._ask(wire.encode_store_pop(_store_key(key)))
            if items:
                return items[0]
            if not block:
                raise errors.StoreTimeout(f"queue {key!r} is empty", is_unconfirmed=False)
            # Another rank may take the item before this one.
            left = max(deadline - time.monotonic(), 0.001)
            self._ask(wire.encode_store_queue_length(_store_key(key), 1), left)

    def queue_len(self, key: str) -> int:
        """Returns the number of items in the queue of a key."""
        length: int = self._ask(wire.encode_store_queue_length(_store_key(key), 0))
        return length

    def _ask(self, request: bytes, timeout: Timeout = None) -> Any:
        """Sends a request, and returns its outcome."""
        timeout_ns = check_timeout_argument(_store_seconds(timeout, self.timeout))
        answer = self._caller._call_store(request, timeout_ns)
        if not isinstance(answer, wire.StoreFailure):
            return answer
        if answer.code in (wire.StoreFailureCode.TIMED_OUT, wire.StoreFailureCode.UNCONFIRMED):
            is_unconfirmed = answer.code == wire.StoreFailureCode.UNCONFIRMED
            raise errors.StoreTimeout(answer.text, is_unconfirmed=is_unconfirmed)
        raise errors.StoreRefused(answer.text)


def _store_key(key: str) -> bytes:
    """Returns the bytes of a key, in UTF-8. Raises ``ConfigError`` for one that is no text."""
    return check_text_argument("key", key, _KEY_ACCEPTED).encode()


def _store_keys(keys: Sequence[str]) -> list[bytes]:
    """Returns the bytes of keys. Raises ``ConfigError`` for one text in place of a list."""
    return [_store_key(key) for key in check_sequence_argument("keys", keys, "a list of texts")]


def _store_bytes(value: Value) -> bytes:
    """Returns the bytes of a value; a text is encoded as UTF-8. Raises ``ConfigError`` for anything
    else, such as a number, of which Python would make as many zeros."""
    if isinstance(value, str):
        return check_text_argument("value", value, _VALUE_ACCEPTED).encode()
    try:
        if is_boolean_argument(value):  # One of NumPy has a buffer.
            raise TypeError
        return bytes(memoryview(value))
    except (TypeError, ValueError, BufferError) as error:
        raise argument_error("value", value, _VALUE_ACCEPTED) from error


def _store_seconds(timeout: Timeout, default: float) -> float:
    """Returns a timeout in seconds, or the default for ``None``."""
    if timeout is None:
        return default
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
