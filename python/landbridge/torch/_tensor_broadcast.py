"""Broadcasts of tensors in chunks, whose memory every rank reserves before any rank waits.

``sync_module`` and ``resume`` first tell all ranks how long a chunk each of them has room for. All
then use the shortest, or all raise ``ArenaFull``.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from .._group import Group
from .._memory.arrays import array_over_slot
from .._memory.plain_memory import copyable_plain_memory, plain_memory_conj_or_neg
from .._operations.operation import DEFAULT_TIMEOUT_S, Operation
from .._rounding import round_bytes
from ..errors import ArenaFull

#: 1 MiB: the longest chunk, which is the part of the tensors that one broadcast carries. The size
#: is chosen, so that the fixed costs of a broadcast do not count.
_CHUNK_BYTES_MAX = 1 << 20
#: 4 KiB, a page: the shortest chunk, which is the part of the tensors that one broadcast carries.
#: An arena without room for three such chunks raises ``ArenaFull``.
_CHUNK_BYTES_MIN = 1 << 12
#: 4 broadcasts: where the arena has no room for as many in flight, the chunk is halved, down to 4
#: KiB. The number is chosen, so that a round trip does not follow each broadcast.
_BROADCASTS_IN_FLIGHT_MIN = 4
#: 16 broadcasts: the most in flight at a time; the next waits for the oldest. The number is chosen,
#: so that a long round trip does not leave the link idle.
_BROADCASTS_IN_FLIGHT_MAX = 16


class BroadcastRoom:
    """Memory in the arena for the broadcasts that are in flight at once.

    Attributes:
        chunk_bytes: The longest chunk that this rank has room for, or 0.
        agreed_bytes: The longest chunk that every rank has room for, after ``agree_on_chunk``.
    """

    def __init__(self, group: Group, nbytes: int | None = None) -> None:
        """Reserves the memory, or none where the arena has too little. ``nbytes`` is the length of
        all tensors, if known."""
        self.agreed_bytes = self.chunk_bytes = 0
        #: Memory for the contribution and the result of each broadcast in flight.
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._reserve_broadcast_slots(group, nbytes)
        if not self.pairs:
            # This waits for collectives under way and collects garbage, which may hold memory.
            with contextlib.suppress(ArenaFull):
                group.empty(_CHUNK_BYTES_MIN, torch.uint8)
                self._reserve_broadcast_slots(group, nbytes)

    def _reserve_broadcast_slots(self, group: Group, nbytes: int | None) -> None:
        """Reserves a contribution and a result slot for each broadcast in flight. Halves the chunk
        until enough broadcasts fit; ``pairs`` stays empty if too few fit even then."""
        chunk = _CHUNK_BYTES_MAX
        while chunk >= _CHUNK_BYTES_MIN:
            most = _BROADCASTS_IN_FLIGHT_MAX
            if nbytes is not None:
                most = min(most, max(-(-nbytes // chunk), 1))
            fewest = 1 if chunk == _CHUNK_BYTES_MIN else min(most, _BROADCASTS_IN_FLIGHT_MIN)
            slots = _reserve_tensor_broadcast_slots(group, 2 * most + 1, chunk)
            # One chunk stays free, for the small collectives beside the broadcasts.
            count = (len(slots) - 1) // 2
            if count >= fewest:
                self.chunk_bytes = chunk
                self.pairs = list(zip(slots[:count], slots[count : 2 * count]))
                return
            del slots
            chunk //= 2

    def agree_on_chunk(self, told: list[int]) -> None:
        """Sets the chunk to the shortest of those that the ranks have told, by rank. Raises
        ``ArenaFull`` if a rank has no room."""
        without = ", ".join(str(rank) for rank, nbytes in enumerate(told) if not nbytes)
        if without:
            raise ArenaFull(
                f"rank {without} has no room in its arena for the weights of others: connect there "
                f"with a larger `arena`; {round_bytes(3 * _CHUNK_BYTES_MIN)} must be free"
            )
        self.agreed_bytes = min(told)

    def release_memory(self) -> None:
        """Gives the room's memory back to the arena, as far as no collective uses it."""
        self.pairs = []


def broadcast_tensors(
    tensors: list[torch.Tensor],
    group: Group,
    root: int,
    *,
    room: BroadcastRoom,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> None:
    """Gives every rank the content of ``root``'s tensors, bit for bit.

    Args:
        tensors: Tensors of plain memory, of the same shapes and dtypes on all ranks.
        group: The ranks.
        root: The rank whose content is right.
        room: The memory for chunks, on whose length all ranks have agreed.
        timeout: How long each broadcast waits for the other ranks, in seconds.

    Raises:
        LandbridgeError: As ``Group.broadcast``. Some tensors may be overwritten then.
    """
    is_root = group.rank == root
    in_flight: deque[_Broadcast] = deque()
    flats = (_flatten_tensor_to_broadcast(tensor, is_root) for tensor in tensors if tensor.numel())
    for index, chunk in enumerate(_split_tensor_broadcast_chunks(flats, room.agreed_bytes)):
        if len(in_flight) == len(room.pairs):
            in_flight.popleft().finish_broadcast()
        nbytes = sum(piece.content.numel() for piece in chunk)
        # Broadcasts finish in order, so the memory of the oldest one is free here.
        given, result = (slot[:nbytes] for slot in room.pairs[index % len(room.pairs)])
        if is_root:
            torch.cat([piece.content for piece in chunk], out=given)
        operation = group.broadcast_async(given, root, out=result, timeout=timeout)
        in_flight.append(_Broadcast(operation, result, [] if is_root else chunk))
    for last in in_flight:
        last.finish_broadcast()


def cpu_tensor_to_broadcast(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor in one dimension on the CPU, without a copy where it is contiguous there
    already. Elements that PyTorch cannot copy are bytes."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    values: torch.Tensor = copyable_plain_memory(torch, plain)
    return values.cpu().contiguous().reshape(-1)


class _FlatTensor(NamedTuple):
    """The bytes of a tensor in one dimension."""

    content: torch.Tensor
    #: The tensor to which the content is copied once it is complete; ``None`` where the content is
    #: the tensor's own memory, or need not be copied.
    target: torch.Tensor | None


class _Piece(NamedTuple):
    """A part of a tensor's bytes, in one chunk."""

    content: torch.Tensor
    #: The tensor whose last part this is.
    completes: _FlatTensor | None


class _Broadcast(NamedTuple):
    """A broadcast in flight."""

    operation: Operation
    result: torch.Tensor
    #: The parts of tensors that get the result; none on the root.
    pieces: list[_Piece]

    def finish_broadcast(self) -> None:
        """Waits for the broadcast, copies its result into the tensors, and waits until its memory
        may be used again."""
        self.operation.wait()
        at = 0
        for content, completes in self.pieces:
            content.copy_(self.result[at : at + content.numel()])
            at += content.numel()
            if completes is not None and completes.target is not None:
                target = completes.target
                with torch.no_grad():
                    values = completes.content.view(target.dtype).view(target.shape)
                    copyable = copyable_plain_memory(torch, values)
                    copyable_plain_memory(torch, target).copy_(copyable)
        self.operation.wait_free()


def _reserve_tensor_broadcast_slots(group: Group, count: int, nbytes: int) -> list[torch.Tensor]:
    """Returns up to ``count`` arrays of ``nbytes`` bytes in the arena, fewer where it is full."""
    slots: list[torch.Tensor] = []
    while len(slots) < count:
        slot = group._arena.allocate_slot(nbytes)
        if slot is None:
            break
        slots.append(array_over_slot(slot, nbytes, torch.uint8))
    return slots


def _flatten_tensor_to_broadcast(tensor: torch.Tensor, is_root: bool) -> _FlatTensor:
    """Returns a tensor's bytes to read, on the root, or the memory that gets them, on other
    ranks."""
    plain = tensor.detach()
    if is_root:
        return _FlatTensor(cpu_tensor_to_broadcast(plain).view(torch.uint8), None)
    if plain.is_cpu and plain.is_contiguous() and not plain_memory_conj_or_neg(plain):
        return _FlatTensor(plain.view(-1).view(torch.uint8), None)
    return _FlatTensor(torch.empty(plain.nbytes, dtype=torch.uint8), plain)


def _split_tensor_broadcast_chunks(
    flats: Iterable[_FlatTensor], chunk_bytes: int
) -> Iterator[list[_Piece]]:
    """Yields the parts of tensors in each chunk. All chunks but the last are of ``chunk_bytes``
    bytes."""
    chunk: list[_Piece] = []
    left = chunk_bytes
    for flat in flats:
        at, end = 0, flat.content.numel()
        while at < end:
            stop = min(at + left, end)
            chunk.append(_Piece(flat.content[at:stop], flat if stop == end else None))
            at, left = stop, left - (stop - at)
            if left == 0:
                yield chunk
                chunk, left = [], chunk_bytes
    if chunk:
        yield chunk
