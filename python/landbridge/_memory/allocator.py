"""Which parts of an arena are free: first fit, in whole cache lines."""

from __future__ import annotations

import bisect
from typing import Dict, List, Optional, Tuple

#: Slots start at multiples of this many bytes; docs/protocol.md section 5.
ALIGN_BYTES = 64


def slot_length(nbytes: int) -> int:
    """Bytes that a slot of ``nbytes`` takes; one of nothing still needs a place of its own."""
    return max(-(-nbytes // ALIGN_BYTES), 1) * ALIGN_BYTES


class Slots:
    """Not safe to share between threads; see the module."""

    def __init__(self, nbytes: int) -> None:
        end = nbytes // ALIGN_BYTES * ALIGN_BYTES
        # Gaps in order, none touching the next.
        self._gaps: List[Tuple[int, int]] = [(0, end)] if end else []
        self._used: Dict[int, int] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes in slots."""
        return sum(self._used.values())

    def take(self, nbytes: int) -> Optional[int]:
        """The offset of a new slot, or ``None`` when no gap is long enough."""
        length = slot_length(nbytes)
        for index, (start, end) in enumerate(self._gaps):
            if end - start >= length:
                if end - start == length:
                    del self._gaps[index]
                else:
                    self._gaps[index] = (start + length, end)
                self._used[start] = length
                return start
        return None

    def give(self, offset: int) -> None:
        """The slot at ``offset`` is free again."""
        start, end = offset, offset + self._used.pop(offset)
        index = bisect.bisect_left(self._gaps, (start, end))
        if index < len(self._gaps) and self._gaps[index][0] == end:
            end = self._gaps.pop(index)[1]
        if index > 0 and self._gaps[index - 1][1] == start:
            index -= 1
            start = self._gaps.pop(index)[0]
        self._gaps.insert(index, (start, end))
