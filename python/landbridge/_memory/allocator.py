"""First-fit allocation of slots in an arena, in whole cache lines."""

from __future__ import annotations

import bisect

#: 64 bytes, one cache line: slots of an arena begin at multiples of this, and are multiples of it
#: long; docs/protocol.md section 5.
SLOT_ALIGN_BYTES = 64


def allocator_slot_bytes(nbytes: int) -> int:
    """Returns the length of a slot for ``nbytes`` bytes: whole cache lines and at least one, so
    that no two slots have the same offset."""
    return max(-(-nbytes // SLOT_ALIGN_BYTES), 1) * SLOT_ALIGN_BYTES


class SlotAllocator:
    """The free and the used parts of an arena. Only one thread may use it at a time."""

    def __init__(self, nbytes: int) -> None:
        """Makes the allocator of ``nbytes`` bytes, all of them free."""
        end = nbytes // SLOT_ALIGN_BYTES * SLOT_ALIGN_BYTES
        # The start and the end of each gap, in order. No gap touches the next.
        self._gaps: list[tuple[int, int]] = [(0, end)] if end else []
        self._used: dict[int, int] = {}

    @property
    def used_bytes(self) -> int:
        """The number of bytes in slots, with padding."""
        return sum(self._used.values())

    def allocate_slot(self, nbytes: int) -> int | None:
        """Returns the offset of a new slot, or ``None`` when no gap is long enough."""
        length = allocator_slot_bytes(nbytes)
        for index, (start, end) in enumerate(self._gaps):
            if end - start >= length:
                if end - start == length:
                    del self._gaps[index]
                else:
                    self._gaps[index] = (start + length, end)
                self._used[start] = length
                return start
        return None

    def free_slot(self, offset: int) -> None:
        """Frees the slot at ``offset``, and joins it with the gaps beside it."""
        start, end = offset, offset + self._used.pop(offset)
        index = bisect.bisect_left(self._gaps, (start, end))
        if index < len(self._gaps) and self._gaps[index][0] == end:
            end = self._gaps.pop(index)[1]
        if index > 0 and self._gaps[index - 1][1] == start:
            index -= 1
            start = self._gaps.pop(index)[0]
        self._gaps.insert(index, (start, end))
