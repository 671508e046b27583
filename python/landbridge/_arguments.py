"""Checks of a collective's arguments other than its arrays.

``Group`` checks all of them before it numbers a collective, because the gateway ends a connection
on which a number has no post.
"""

from __future__ import annotations

import operator
import reprlib
from typing import Any, NamedTuple

from ._protocol.descriptor import CollectiveKind, Op
from .errors import ConfigError


#: 1e290: the largest weight of a rank in an average. Gateways refuse a larger one, so that the sum
#: of all ranks' weights is finite.
_WEIGHT_MAX = 1e290


class CollectiveOptions(NamedTuple):
    """The checked arguments of a collective other than its arrays, as
    ``check_collective_arguments`` makes them."""

    kind: CollectiveKind
    #: The rank with the result of a reduce or the data of a broadcast; 0 for other kinds.
    root: int
    op: Op
    #: This rank's weight in an average.
    weight: float
    #: A hash of anything else that the ranks must agree on.
    layout: int
    #: How long to wait for the other ranks to post.
    timeout_ns: int
    #: Whether arrays count as one-dimensional, so that ranks need not agree on their shape.
    flat: bool = False


def check_collective_arguments(
    kind: CollectiveKind,
    *,
    root: Any = 0,
    op: Op = Op.SUM,
    weight: Any = 1.0,
    layout: Any = 0,
    timeout: Any,
    flat: Any = False,
) -> CollectiveOptions:
    """Returns the arguments of a collective in the form and units that its post has.

    Raises:
        ConfigError: An argument has the wrong type or is out of range.
    """
    return CollectiveOptions(
        kind,
        check_integer_argument("root", root, 1 << 32),
        op,
        _check_weight_argument(weight),
        check_integer_argument("layout", layout, 1 << 64),
        check_timeout_argument(timeout),
        bool(flat),
    )


def check_integer_argument(name: str, value: Any, limit: int) -> int:
    """Returns the argument ``value`` as an integer from 0 to ``limit - 1``.

    Raises:
        ConfigError: The value is no such integer.
    """
    try:
        number = int(operator.index(value))
    except TypeError:
        number = -1
    if not 0 <= number < limit:
        text = f"accepted: whole numbers from 0 to {limit - 1}"
        raise ConfigError(f"{name} {describe_argument(value)}: {text}")
    return number


def describe_argument(value: Any) -> str:
    """Returns an argument as Python writes it, shortened in the middle where it is long."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits.
        return "a number of thousands of digits"


def check_timeout_argument(timeout: Any) -> int:
    """Returns the argument ``timeout``, given in seconds, in nanoseconds.

    Raises:
        ConfigError: The timeout is no number of seconds from 0 to 1.8e10.
    """
    try:
        number = int(round(timeout * 1e9))
    except (TypeError, ValueError, OverflowError):  # Not a number, NaN or infinite.
        number = -1
    if not 0 <= number < 1 << 64:
        text = "accepted: seconds, from 0 to 1.8e10"
        raise ConfigError(f"timeout {describe_argument(timeout)}: {text}")
    return number


def _check_weight_argument(weight: Any) -> float:
    """Returns the argument ``weight``, a rank's weight in an average, as a float from 0 to 1e290.
    Raises ``ConfigError`` if it is none."""
    try:
        number = float(weight)
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if not 0 <= number <= _WEIGHT_MAX:
        text = f"accepted: numbers from 0 to {_WEIGHT_MAX}"
        raise ConfigError(f"weight {describe_argument(weight)}: {text}")
    return number
