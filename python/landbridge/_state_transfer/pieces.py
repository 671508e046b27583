"""A state in pieces, each with a digest, so that several ranks send it and nothing comes twice."""

from __future__ import annotations

import hashlib

from .._rounding import round_bytes

#: 1 MiB: the length of a piece of a state, of which the last one may be shorter. It is chosen: the
#: digests of a state of 1 GiB take 16 KiB, and two ranks share one of 64 MiB evenly.
PIECE_BYTES = 1 << 20
#: 16 bytes, 128 bits: the length of the BLAKE2b digest of a piece. Two pieces of one digest never
#: happen by chance.
PIECE_DIGEST_BYTES = 16


def count_pieces(nbytes: int) -> int:
    """Returns the number of pieces of a state of ``nbytes`` bytes."""
    return -(-nbytes // PIECE_BYTES)


def piece_range(piece: int, nbytes: int) -> tuple[int, int]:
    """Returns where a piece of a state of ``nbytes`` bytes begins and ends."""
    begin = piece * PIECE_BYTES
    return begin, min(begin + PIECE_BYTES, nbytes)


def digest_pieces(content: memoryview) -> bytes:
    """Returns the digests of all pieces of a state, one behind the other."""
    return b"".join(_digest_piece(content, at) for at in range(count_pieces(content.nbytes)))


def list_equal_pieces(one: bytes, other: bytes) -> set[int]:
    """Returns the pieces that have equal digests in two states."""
    size = PIECE_DIGEST_BYTES
    common = range(min(len(one), len(other)) // size)
    return {at for at in common if one[at * size : at * size + size] == other[at * size :][:size]}


def encode_piece_set(pieces: set[int], count: int) -> bytes:
    """Returns a set of pieces as bits, one for each of ``count`` pieces."""
    bits = bytearray(-(-count // 8))
    for piece in pieces:
        bits[piece // 8] |= 1 << piece % 8
    return bytes(bits)


def decode_piece_set(bits: bytes) -> set[int]:
    """Returns the set of pieces whose bits are set."""
    return {
        8 * at + place for at, byte in enumerate(bits) for place in range(8) if byte >> place & 1
    }


class ReceivedPieces:
    """The pieces of a state that a rank has received so far. It keeps them over a lost sender, and
    over a failure of the whole job.

    Attributes:
        content: The memory of the state. Only pieces that were accepted have a meaning.
    """

    def __init__(self) -> None:
        """Begins without any piece."""
        self.content = memoryview(bytearray())
        self._digests: bytes | None = None
        self._accepted: set[int] = set()

    def begin_transfer(self, nbytes: int, digests: bytes) -> set[int]:
        """Returns the pieces that are missing of a state with these digests. Keeps those that are
        here already. Raises ``MemoryError``."""
        kept = self._accepted & list_equal_pieces(self._digests or b"", digests)
        if len(self.content) != nbytes:
            try:
                content = memoryview(bytearray(nbytes))
            except MemoryError as error:
                raise MemoryError(f"no memory for {round_bytes(nbytes)} of state") from error
            for piece in kept:
                begin, end = piece_range(piece, nbytes)
                content[begin:end] = self.content[begin:end]
            self.content = content
        self._digests, self._accepted = digests, kept
        return set(range(count_pieces(nbytes))) - kept

    def accept_piece(self, piece: int) -> bool:
        """Returns whether a piece that has come whole has its digest. One that has not stays
        missing."""
        at = piece * PIECE_DIGEST_BYTES
        told = (self._digests or b"")[at : at + PIECE_DIGEST_BYTES]
        is_right = _digest_piece(self.content, piece) == told
        if is_right:
            self._accepted.add(piece)
        return is_right

    def has_piece(self, piece: int) -> bool:
        """Returns whether a piece has come and has its digest."""
        return piece in self._accepted

    @property
    def is_complete(self) -> bool:
        """Whether every piece of a state has come."""
        is_begun = self._digests is not None
        return is_begun and len(self._accepted) == count_pieces(len(self.content))


def _digest_piece(content: memoryview, piece: int) -> bytes:
    """Returns the digest of one piece of a state."""
    begin, end = piece_range(piece, content.nbytes)
    part = content[begin:end]
    return hashlib.blake2b(part, digest_size=PIECE_DIGEST_BYTES).digest()
