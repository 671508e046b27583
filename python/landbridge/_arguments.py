"""Checks of the arguments of public functions, other than arrays.

``Group`` checks those of a collective before it numbers the collective, because the gateway ends a
connection on which a number has no post. Booleans are no numbers, although Python adds them up.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ._argument_errors import argument_error
from ._protocol.collective_types import CollectiveKind, Op

#: 1e290: the largest weight of a rank in an average. A larger one raises ``ConfigError``, and
#: gateways refuse it, so that the sum of all ranks' weights is finite.
_WEIGHT_MAX = 1e290
#: The kinds of collectives with a root that the caller names. For these kinds ``RanksDisagree``
#: shows the root that this rank passed.
ROOTED_KINDS = (
    CollectiveKind.REDUCE,
    CollectiveKind.BROADCAST,
    CollectiveKind.GATHER,
    CollectiveKind.SCATTER,
)


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


class PassedArguments(NamedTuple):
    """The arguments of a collective as its caller passed them. The post has some of them in another
    form, or in a hash alone."""

    options: CollectiveOptions
    #: The name of the element type.
    dtype: str
    #: The size of an element that is only moved, as so many ``u8``; 0 for all other types.
    opaque_bytes: int
    shape: tuple[int, ...]
    #: The elements of all blocks together, or ``None`` where there are no blocks.
    all_elements: int | None = None
    #: The lists of the rows of blocks.
    rows: tuple[tuple[int, ...], ...] = ()

    def describe(self) -> str:
        """Returns the arguments in words, for ``RanksDisagree``, and what they are called in the
        gateway's words."""
        options, kind = self.options, self.options.kind
        parts = [f"op {options.op.name.lower()}"] if kind.is_reduced else []
        if kind != CollectiveKind.BARRIER:
            parts += [f"dtype {self.dtype}", f"shape {tuple(self.shape)}"]
        names = ("send", "receive") if len(self.rows) > 1 else ("counts",)
        parts += [f"{name} {rows}" for name, rows in zip(names, self.rows)]
        if self.all_elements is not None and not self.rows:
            parts.append("no counts")
        if kind in ROOTED_KINDS:
            parts.append(f"root {options.root}")
        if options.layout or not parts:
            parts.append(f"layout {options.layout:#x}")
        name = "send or receive" if kind == CollectiveKind.SEND else kind.name.lower()
        notes = [f"this rank passed {', '.join(parts)} to {name}"]
        if self.opaque_bytes:
            notes.append(f"an element of {self.dtype} is moved as {self.opaque_bytes} u8")
        if self.rows:
            row = math.prod(self.shape[1:]) * (self.opaque_bytes or 1)
            notes.append(f"a row has {row} elements")
        elif self.all_elements is not None:
            length = f"{self.all_elements} elements"
            notes.append(f"a length is of the blocks of all ranks, here {length}")
        notes.append("layouts and digests are hashes of these")
        return "; ".join(notes)


def check_collective_arguments(
    kind: CollectiveKind,
    *,
    ranks: int,
    root: Any = 0,
    op: Op = Op.SUM,
    weight: Any = 1.0,
    layout: Any = 0,
    timeout: Any,
    flat: Any = False,
) -> CollectiveOptions:
    """Returns the arguments of a collective in the form and units that its post has. ``ranks`` is
    the number of ranks of the group; 0 while a rank without a config meets the others first.

    Raises:
        ConfigError: An argument has the wrong type or is out of range.
    """
    return CollectiveOptions(
        kind,
        check_integer_argument("root", root, max(ranks, 1)),
        op,
        check_weight_argument(weight),
        check_integer_argument("layout", layout, 1 << 64),
        check_timeout_argument(timeout),
        _check_flag_argument("flat", flat),
    )


def check_integer_argument(
    name: str, value: Any, limit: int, least: int = 0, *, accepted: str | None = None
) -> int:
    """Returns the argument ``value`` as an integer from ``least`` to ``limit - 1``.

    Args:
        name: The name of the argument.
        value: Its value.
        limit: The first integer that is too large.
        least: The smallest integer that is accepted.
        accepted: The words for them, where the limit says nothing to a caller.

    Raises:
        ConfigError: The value is no such integer.
    """
    try:
        number = least - 1 if is_boolean_argument(value) else int(operator.index(value))
    except TypeError:
        number = least - 1
    if not least <= number < limit:
        accepted = accepted or f"whole numbers from {least} to {limit - 1}"
        raise argument_error(name, value, accepted)
    return number


def is_boolean_argument(value: Any) -> bool:
    """Returns whether an argument is a boolean of Python, NumPy or torch."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def number_argument_or_nan(value: Any) -> float:
    """Returns an argument as a float; NaN for one that is no number, as texts and booleans are
    none."""
    # `float` reads texts, too, and they are no numbers even where they hold one.
    is_number = hasattr(value, "__float__") or hasattr(value, "__index__")
    if isinstance(value, str) or is_boolean_argument(value) or not is_number:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # Such as an array of several.
        return math.nan


def check_text_argument(name: str, value: Any, accepted: str) -> str:
    """Returns the argument ``value``, a text that UTF-8 can hold.

    Raises:
        ConfigError: The value is something else.
    """
    if not isinstance(value, str) or not _is_utf8_argument(value):
        raise argument_error(name, value, accepted)
    return value


def check_path_argument(name: str, value: Any) -> Path:
    """Returns the argument ``value``, the path of a file.

    Raises:
        ConfigError: The value is no path: neither a text nor an ``os.PathLike`` of one, or empty,
            or it holds a NUL.
    """
    try:
        text = os.fspath(value)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise argument_error(name, value, "the path of a file, a text or an os.PathLike")
    return Path(text)


def check_sequence_argument(name: str, value: Any, accepted: str) -> Sequence[Any]:
    """Returns the argument ``value``, whose parts the caller checks, as a sequence.

    Raises:
        ConfigError: The value has no parts, or is one text.
    """
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return tuple(value)
    except TypeError as error:
        raise argument_error(name, value, accepted) from error


def _check_flag_argument(name: str, value: Any) -> bool:
    """Returns the argument ``value``, a boolean. Raises ``ConfigError`` for anything else."""
    try:
        if is_boolean_argument(value):
            return bool(value)
    except (ValueError, RuntimeError):  # An array of several.
        pass
    raise argument_error(name, value, "True or False")


def _is_utf8_argument(text: str) -> bool:
    """Returns whether UTF-8 can hold a text: not one with halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_timeout_argument(timeout: Any) -> int:
    """Returns the argument ``timeout``, given in seconds, in nanoseconds.

    Raises:
        ConfigError: The timeout is no number of seconds above 0 and up to 1.8e10.
    """
    seconds = number_argument_or_nan(timeout)
    # Rounded up, so that a timeout never becomes 0.
    number = math.ceil(seconds * 1e9) if 0 < seconds < math.inf else 0
    if not 0 < number < 1 << 64:
        raise argument_error("timeout", timeout, "seconds above 0, up to 1.8e10")
    return number


def check_wait_argument(timeout: Any) -> float | None:
    """Returns the argument ``timeout`` of a wait for something under way, in seconds. It may be 0,
    which only looks, and ``None`` waits without limit.

    Raises:
        ConfigError: The timeout is neither ``None`` nor a number of seconds from 0 on.
    """
    if timeout is None:
        return None
    seconds = number_argument_or_nan(timeout)
    if not seconds >= 0:
        raise argument_error("timeout", timeout, "seconds from 0 on, or None")
    return seconds


def check_weight_argument(weight: Any) -> float:
    """Returns the argument ``weight``, a rank's weight in an average.

    Raises:
        ConfigError: The weight is no number from 0 to 1e290.
    """
    number = number_argument_or_nan(weight)
    if not 0 <= number <= _WEIGHT_MAX:
        raise argument_error("weight", weight, f"numbers from 0 to {_WEIGHT_MAX}")
    return number
