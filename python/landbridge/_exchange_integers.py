"""The exchange of a few integers among all ranks, by which ranks compare their state."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from typing import Any, Protocol

from ._operations.operation import DEFAULT_TIMEOUT_S
from .errors import ArenaFull, LandbridgeError


class IntegerExchangeGroup(Protocol):
    """The part of ``Group`` that an exchange needs."""

    rank: int

    @property
    def world_size(self) -> int:
        """The number of ranks of the job."""

    def all_reduce(
        self, array: Any, op: str = "avg", *, layout: int = 0, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Any:
        """Combines the arrays of all ranks, element by element, and returns the result."""

    def barrier(self, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Waits until every rank has come. It takes no memory of the arena."""


def exchange_integers(
    group: IntegerExchangeGroup,
    values: Sequence[int],
    *,
    layout: int = 0,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> list[list[int]]:
    """Gives every rank the values of all ranks, by one collective about as fast as a barrier.

    Args:
        group: The ranks.
        values: Unsigned 64-bit integers of this rank; every rank gives equally many.
        layout: A hash of anything else that the ranks must agree on.
        timeout: How long to wait for the other ranks, in seconds.

    Returns:
        For each value, a list of what every rank gave, by rank.

    Raises:
        ArenaFull: The arena has no room. Ranks whose arenas have room raise ``RanksDisagree`` at
            once.
        LandbridgeError: As ``Group.all_reduce``.
    """
    count = group.world_size
    # Each rank fills its own place of every row and leaves zeros elsewhere, so a sum collects all.
    placed = [0] * (len(values) * count)
    placed[group.rank :: count] = values
    form = f"={len(placed)}Q"
    contribution = memoryview(struct.pack(form, *placed)).cast("q")
    try:
        total = group.all_reduce(contribution, "sum", layout=layout, timeout=timeout)
    except ArenaFull:
        # Another collective than the one for which the others wait, so that they hear at once.
        with contextlib.suppress(LandbridgeError):
            group.barrier(timeout)
        raise
    collected = struct.unpack(form, total)
    return [list(collected[at : at + count]) for at in range(0, len(collected), count)]
