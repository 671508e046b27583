"""Memory in the arena for the broadcasts by which a state travels."""

from __future__ import annotations

import contextlib
from typing import Any

from .._group import Group
from .._rounding import round_bytes
from ..errors import ArenaFull
from .pieces import PIECE_BYTES

#: 4 KiB, a page: the shortest chunk, which is the part of a piece that one broadcast carries. An
#: arena without room for three such chunks raises ``ArenaFull``.
_CHUNK_BYTES_MIN = 1 << 12
#: 16 broadcasts: the most in flight at a time, of all senders together. The number is chosen, so
#: that a long round trip does not leave the link idle.
_BROADCASTS_MAX = 16
#: 4 broadcasts: where the arena has no room for as many in flight from each sender, the chunk is
#: halved. The number is chosen, so that a round trip does not follow each broadcast.
_BROADCASTS_MIN = 4
#: 4: a transfer beside steps takes at most this part of the arena, a quarter. It is chosen, since
#: steps need room for their gradients.
_ARENA_PART_BESIDE_STEPS = 4

#: The memory of a broadcast: for the contribution, and for the result.
SlotPair = tuple[memoryview, memoryview]


class TransferRoom:
    """Memory in the arena for the broadcasts that are in flight at once, by sender.

    Attributes:
        chunk_bytes: The longest chunk that this rank has room for, or 0.
        senders: For how many senders at a time there is room.
    """

    def __init__(self, group: Group, senders: int, *, beside_steps: bool = False) -> None:
        """Reserves memory for as many senders, or for one where the arena has too little. At most a
        quarter of the arena is taken ``beside_steps``, which need the rest."""
        self._bytes_max = group._arena.nbytes // (_ARENA_PART_BESIDE_STEPS if beside_steps else 1)
        self.chunk_bytes = self.senders = 0
        self._pairs: list[SlotPair] = []
        for count in sorted({senders, 1}, reverse=True):
            if self.senders == 0:
                self._reserve_transfer_slots(group, count)
        if self.senders == 0:
            # This waits for collectives under way and collects garbage, which may hold memory.
            with contextlib.suppress(ArenaFull):
                group.empty(_CHUNK_BYTES_MIN, "u8")
                self._reserve_transfer_slots(group, 1)

    def _reserve_transfer_slots(self, group: Group, senders: int) -> None:
        """Reserves a contribution and a result for each broadcast in flight. Halves the chunk until
        enough broadcasts of each sender fit; there is no room if too few fit even then."""
        most = max(_BROADCASTS_MAX // senders, _BROADCASTS_MIN)
        chunk = PIECE_BYTES
        while chunk > _CHUNK_BYTES_MIN and (2 * most * senders + 1) * chunk > self._bytes_max:
            chunk //= 2
        while chunk >= _CHUNK_BYTES_MIN:
            fewest = 1 if chunk == _CHUNK_BYTES_MIN else _BROADCASTS_MIN
            slots = _take_transfer_slots(group, 2 * most * senders + 1, chunk)
            # One chunk stays free, for the small collectives beside the broadcasts.
            each = (len(slots) - 1) // (2 * senders)
            if each >= fewest:
                half = each * senders
                self._pairs = list(zip(slots[:half], slots[half : 2 * half]))
                self.chunk_bytes, self.senders = chunk, senders
                return
            del slots
            chunk //= 2

    def agree_on_room(self, chunks: list[int], senders: list[int]) -> None:
        """Takes over the room of the rank that has least, of those that all ranks have told, by
        rank. Raises ``ArenaFull`` if a rank has none."""
        without = ", ".join(str(rank) for rank, nbytes in enumerate(chunks) if not nbytes)
        if without:
            raise ArenaFull(
                f"rank {without} has no room in its arena for the state of others: connect there "
                f"with a larger `arena`; {round_bytes(3 * _CHUNK_BYTES_MIN)} must be free"
            )
        self.chunk_bytes, self.senders = min(chunks), min(senders)

    def split_room(self) -> list[list[SlotPair]]:
        """Returns the memory for each sender, after ``agree_on_room``."""
        cut = [(given[: self.chunk_bytes], out[: self.chunk_bytes]) for given, out in self._pairs]
        return [cut[at :: self.senders] for at in range(self.senders)]


def _take_transfer_slots(group: Group, count: int, nbytes: int) -> list[memoryview]:
    """Returns up to ``count`` slots of ``nbytes`` bytes in the arena, fewer where it is full."""
    slots: list[Any] = []
    while len(slots) < count:
        slot = group._arena.allocate_slot(nbytes)
        if slot is None:
            break
        slots.append(slot.view())
    return slots
