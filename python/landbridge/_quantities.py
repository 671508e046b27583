"""Quantities as people read them, in the words of the ``landbridge`` program."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Units of printed sizes in bytes, smallest first.
SIZES: Sequence[tuple[str, float]] = (
    ("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)
)  # fmt: skip
#: Units of printed times in seconds, smallest first.
TIMES: Sequence[tuple[str, float]] = (
    ("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0)
)  # fmt: skip
#: Units of printed rates in bits per second, smallest first.
RATES: Sequence[tuple[str, float]] = (
    ("bit/s", 1.0), ("kbit/s", 1e3), ("Mbit/s", 1e6), ("Gbit/s", 1e9)
)  # fmt: skip


def round_quantity(value: float, units: Sequence[tuple[str, float]]) -> str:
    """Returns a value in three significant digits, in the smallest of ``units`` in which they do
    not reach the next unit or 1000, as the ``landbridge`` program prints it."""
    for (unit, scale), (_, larger) in zip(units, [*units[1:], ("", math.inf)]):
        number = float(f"{value / scale:.3g}")
        if number < min(larger / scale, 1000) or larger == math.inf:
            break
    return f"{number:g} {unit}"


def round_bytes(nbytes: int) -> str:
    """Returns a number of bytes in three significant digits, such as ``53.7 MiB``."""
    return round_quantity(nbytes, SIZES)


def round_both(one: int, other: int) -> tuple[str, str]:
    """Returns two numbers of bytes that are compared, exactly where they would look the same."""
    texts = round_bytes(one), round_bytes(other)
    return (f"{one} B", f"{other} B") if one != other and texts[0] == texts[1] else texts
