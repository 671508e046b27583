"""Quantities as people read them, in the words of the ``landbridge`` program."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: The units of printed sizes, smallest first, each with its number of bytes.
SIZES: Sequence[tuple[str, float]] = (
    ("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30),
    ("TiB", 1 << 40), ("PiB", 1 << 50), ("EiB", 1 << 60)
)  # fmt: skip
#: The units of printed times, smallest first, each with its number of seconds.
TIMES: Sequence[tuple[str, float]] = (
    ("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0),
    ("h", 3600.0), ("d", 86400.0)
)  # fmt: skip
#: The units of printed rates, smallest first, each with its number of bits per second.
RATES: Sequence[tuple[str, float]] = (
    ("bit/s", 1.0), ("kbit/s", 1e3), ("Mbit/s", 1e6), ("Gbit/s", 1e9), ("Tbit/s", 1e12)
)  # fmt: skip


def round_quantity(value: float, units: Sequence[tuple[str, float]]) -> str:
    """Returns a value in three significant digits, in the smallest of ``units`` in which they do
    not reach the next unit or 1000, as the ``landbridge`` program prints it."""
    for (unit, scale), (_, larger) in zip(units, [*units[1:], ("", math.inf)]):
        text = round_number(value / scale)
        if float(text) < min(larger / scale, 1000) or larger == math.inf:
            break
    return f"{text} {unit}"


def round_number(value: float) -> str:
    """Returns a number in three significant digits, but with all digits before the decimal point
    and at most nine behind it."""
    size = abs(value)
    decimals = 0 if size >= 99.95 or size == 0 else min(2 - math.floor(math.log10(size)), 9)
    if 9.995 <= size < 10 or 0.9995 <= size < 1:
        decimals -= 1
    text = f"{value:.{max(decimals, 0)}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def round_percent(fraction: float) -> str:
    """Returns a measured fraction as a percentage in three significant digits, such as ``12.3 %``
    for 0.1234."""
    return f"{round_number(100 * fraction)} %"


def round_bytes(nbytes: int) -> str:
    """Returns a number of bytes in three significant digits, such as ``53.7 MiB``."""
    return round_quantity(nbytes, SIZES)


def round_both(one: int, other: int) -> tuple[str, str]:
    """Returns two numbers of bytes that are compared, exactly where they would look the same."""
    texts = round_bytes(one), round_bytes(other)
    return (f"{one} B", f"{other} B") if one != other and texts[0] == texts[1] else texts
