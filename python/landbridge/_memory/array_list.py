"""Lists of arrays that count as one array: their rows lie one behind the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .._protocol.collective_types import Dtype
from ..errors import UnsupportedArray
from .arena import ArenaSlot
from .arrays import ArrayAdapter, adapt_array

#: 64 bytes: the memory that stands for a block without rows. It is chosen, since array libraries
#: refuse a view of nothing.
_NO_ROWS_BYTES = 64


class ArrayList(ArrayAdapter):
    """The adapter of a list of arrays, whose library, dtype and row shape are the same."""

    def __init__(self, blocks: Sequence[ArrayAdapter]) -> None:
        """Makes the adapter from those of the arrays. Raises ``UnsupportedArray`` where there is
        none, or their dtypes or rows differ."""
        if not blocks:
            raise UnsupportedArray("an empty list of arrays; give one for each rank")
        first = blocks[0]
        for block in blocks:
            check_array_list_rows(block)
            if (block.element, block.shape[1:]) != (first.element, first.shape[1:]):
                text = f"a list with {first.describe()} and {block.describe()}"
                raise UnsupportedArray(f"{text}; its arrays must have the same rows")
        rows = sum(block.shape[0] for block in blocks)
        arrays = [block.array for block in blocks]
        super().__init__(arrays, first.element, (rows, *first.shape[1:]))
        self.blocks = blocks

    @property
    def rows(self) -> tuple[int, ...]:
        """The number of rows of each array."""
        return tuple(block.shape[0] for block in self.blocks)

    def with_shape(self, shape: tuple[int, ...]) -> ArrayAdapter:
        """Returns an adapter for new arrays of the library and dtype of those in the list."""
        return self.blocks[0].with_shape(shape)

    def address(self) -> int | None:
        """Returns ``None``, so that a list is always copied into a slot."""
        return None

    def check_writable(self) -> None:
        """Raises ``UnsupportedArray`` when a result cannot be written into one of the arrays."""
        for block in self.blocks:
            block.check_writable()

    def copy_to_slot(self, slot: ArenaSlot) -> None:
        """Copies the elements of all arrays into a slot of the arena."""
        for block, part in self._divide(slot):
            block.copy_to_slot(part)

    def copy_from_slot(self, slot: ArenaSlot) -> None:
        """Copies a slot of the arena into the arrays."""
        for block, part in self._divide(slot):
            block.copy_from_slot(part)

    def copy_to_new_array(self, slot: ArenaSlot) -> Any:
        """Returns a list of new arrays with the content of a slot."""
        return [block.copy_to_new_array(part) for block, part in self._divide(slot)]

    def _divide(self, slot: ArenaSlot) -> Iterator[tuple[ArrayAdapter, ArenaSlot]]:
        """Returns each array with its part of a slot."""
        view, start = slot.view(), 0
        for block in self.blocks:
            memory = view[start : start + block.nbytes] or bytearray(_NO_ROWS_BYTES)
            yield block, ArenaSlot(memory, slot.offset + start, block.nbytes)
            start += block.nbytes


def adapt_array_or_list(array: Any, dtype: Dtype | None = None) -> ArrayAdapter:
    """Returns the adapter of an array that has rows, or of a list of such arrays. Raises
    ``UnsupportedArray`` for a single number."""
    if isinstance(array, (list, tuple)):
        return ArrayList([adapt_array(block, dtype) for block in array])
    adapter = adapt_array(array, dtype)
    check_array_list_rows(adapter)
    return adapter


def check_array_list_rows(adapter: ArrayAdapter) -> None:
    """Raises ``UnsupportedArray`` unless an array has rows."""
    if not adapter.shape:
        raise UnsupportedArray("an array without dimensions has no rows; reshape it to (1,)")
