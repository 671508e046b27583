"""What a caller says of a collective beside its arrays, as the gateway is told.

All of it is checked before the collective has a number, for a number without its post would end
the connection.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

from ._protocol.descriptor import Op
from ._protocol.descriptor import Operation as Kind
from .errors import ConfigError


class Terms(NamedTuple):
    """A collective, without its arrays; from ``terms``."""

    kind: Kind
    #: The rank that gets the result of a reduce or has the data of a broadcast, else 0.
    root: int
    op: Op
    weight: float
    layout: int
    timeout_ns: int


def terms(kind: Kind, root: Any, op: Op, weight: Any, layout: Any, timeout: Any) -> Terms:
    """Raises ``ConfigError``."""
    return Terms(
        kind,
        whole("root", root, 1 << 32),
        op,
        _weight(weight),
        whole("layout", layout, 1 << 64),
        nanoseconds(timeout),
    )


def whole(name: str, value: Any, limit: int) -> int:
    """A whole number from 0 up to below ``limit``. Raises ``ConfigError``."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < limit:
        raise ConfigError(f"{name} {value!r}: accepted: whole numbers from 0 to {limit - 1}")
    return number


def nanoseconds(timeout: Any) -> int:
    """Of a timeout in seconds. Raises ``ConfigError``."""
    try:
        number = int(round(timeout * 1e9))
    except (TypeError, ValueError, OverflowError):  # of no number, NaN and infinity
        number = -1
    if not 0 <= number < 1 << 64:
        raise ConfigError(f"timeout {timeout!r}: accepted: seconds, from 0 to 1.8e10")
    return number


def _weight(weight: Any) -> float:
    try:
        number = float(weight)
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if not 0 <= number < math.inf:
        raise ConfigError(f"weight {weight!r}: accepted: finite and not negative")
    return number
