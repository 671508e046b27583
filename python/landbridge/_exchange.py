"""A few numbers of each rank, told to all of them: what ranks compare themselves by."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, List, Sequence

from ._operation import DEFAULT_TIMEOUT_S

if TYPE_CHECKING:
    from ._group import Group


def exchange(
    group: Group, words: Sequence[int], *, layout: int = 0, timeout: float = DEFAULT_TIMEOUT_S
) -> List[List[int]]:
    """For each of the words, of 64 bits without a sign, what every rank gave, by rank: one
    collective, which costs about what a barrier does. Raises what ``Group.all_reduce`` and
    ``Operation.wait`` raise."""
    count = group.world_size
    # Each rank's words at its place of each part, and nothing anywhere else.
    placed = [0] * (len(words) * count)
    placed[group.rank :: count] = words
    form = f"={len(placed)}Q"
    given = memoryview(struct.pack(form, *placed)).cast("q")
    told = struct.unpack(form, group.all_reduce(given, "sum", layout=layout, timeout=timeout))
    return [list(told[at : at + count]) for at in range(0, len(told), count)]
