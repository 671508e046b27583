"""Collectives of blocks: each rank has, or gets, a part of the whole.

``Group`` inherits them. Blocks lie behind each other along the first dimension of an array, in
rank order. Counts are numbers of rows: sizes of that dimension. A list of arrays, one for each
rank, may stand in place of an array of several blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import errors
from .._arguments import (
    CollectiveOptions,
    PassedArguments,
    check_integer_argument,
    check_sequence_argument,
)
from .._memory.array_list import ArrayList, adapt_array_or_list
from .._memory.arrays import ArrayAdapter
from .._operations.operation import DEFAULT_TIMEOUT_S, Operation, OperationDelivery
from .._protocol.collective_types import CollectiveKind, Dtype, Op
from .collective_poster import (
    AgreedArray,
    CollectivePoster,
    PlacedPost,
    WantedPost,
    WantedSlot,
    check_posted_reduction,
    check_posted_result_array,
    hash_posted_element,
    hash_posted_layout,
    post_deadline,
)

#: Offset and length in bytes of an arena slot where a rank gives no blocks, or gets none.
_EMPTY_SLOT = (0, 0)
#: 2^48 rows: each number of rows in an argument such as ``counts`` must be below this, which no
#: array reaches. Another number raises ``ConfigError``.
_ROWS_MAX = 1 << 48


class MovedArrays(NamedTuple):
    """The arrays of one collective of blocks or one send on this rank, and what ranks agree on."""

    #: The contribution, or ``None`` where the rank has none.
    source: ArrayAdapter | None
    #: An array of the result's kind, dtype and shape, or ``None`` where the rank gets none.
    result: ArrayAdapter | None
    agreed: AgreedArray


class BlockCollectives(CollectivePoster):
    """The collectives of blocks of a group."""

    def all_gather(
        self,
        array: Any,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Gives every rank the arrays of all ranks, one behind the other, and waits for the result.

        Args:
            array: This rank's block, of any kind that ``broadcast`` takes. All ranks have the same
                dtype, and the same sizes of all dimensions but the first.
            counts: The rows of each rank's block, the same list on all ranks. Blocks may be empty.
                By default all have as many rows.
            out: An array for the result, of the same kind and dtype, or a list of one for each
                rank. The default is a new array.
            dtype: As for ``all_reduce``, like ``layout`` and ``timeout``.

        Returns:
            The blocks of all ranks in rank order.

        Raises:
            LandbridgeError: As ``all_reduce``.
        """
        return self._start_and_wait(
            lambda: self.all_gather_async(
                array, counts=counts, out=out, dtype=dtype, layout=layout, timeout=timeout
            )
        )

    def all_gather_async(
        self,
        array: Any,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Operation:
        """Starts an ``all_gather``, and returns the operation before the result is ready."""
        options = self._check_arguments(CollectiveKind.ALL_GATHER, layout=layout, timeout=timeout)
        source, counts = _adapt_block_rows(array, dtype), self._listed_counts(counts, out, dtype)
        rows = self._check_counts(counts, source.shape[0])
        self._check_own_rows(rows, source)
        result = _block_with_rows(source, sum(rows))
        agreed = _agreed_blocks(source, options, sum(rows), None if counts is None else (rows,))
        return self._start_blocks(MovedArrays(source, result, agreed), out, dtype)

    def reduce_scatter(
        self,
        array: Any,
        op: str = "avg",
        *,
        counts: Sequence[int] | None = None,
        weight: float = 1.0,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Combines the arrays of all ranks, gives each rank its own block, and waits for it.

        Args:
            array: The contribution: a block for each rank, in rank order, or a list of them.
            op: The reduction, as for ``all_reduce``, like ``weight``.
            counts: The rows of each rank's block, the same list on all ranks. By default all have
                as many rows.
            out: An array for this rank's block. The default is a new one.
            dtype: As for ``all_reduce``, like ``layout`` and ``timeout``.

        Returns:
            This rank's block of the reduction.

        Raises:
            LandbridgeError: As ``all_reduce``.
        """
        return self._start_and_wait(
            lambda: self.reduce_scatter_async(
                array,
                op,
                counts=counts,
                weight=weight,
                out=out,
                dtype=dtype,
                layout=layout,
                timeout=timeout,
            )
        )

    def reduce_scatter_async(
        self,
        array: Any,
        op: str = "avg",
        *,
        counts: Sequence[int] | None = None,
        weight: float = 1.0,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Operation:
        """Starts a ``reduce_scatter``, and returns the operation before the result is ready."""
        kind, named = CollectiveKind.REDUCE_SCATTER, Op.from_name(op)
        options = self._check_arguments(
            kind, op=named, weight=weight, layout=layout, timeout=timeout
        )
        source, counts = _adapt_block_rows(array, dtype), self._listed_counts(counts, array, dtype)
        check_posted_reduction(source, options)
        rows = self._check_shares(counts, source)
        result = _block_with_rows(source, rows[self.rank])
        agreed = _agreed_blocks(source, options, sum(rows), None if counts is None else (rows,))
        return self._start_blocks(MovedArrays(source, result, agreed), out, dtype)

    def gather(
        self,
        array: Any,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Gives one rank the arrays of all ranks, one behind the other, and waits until this rank
        is done.

        Args:
            array: This rank's block, as for ``all_gather``, like all arguments not named here.
            root: The rank that gets the blocks.
            out: As for ``all_gather``. Ranks other than ``root`` leave it unchanged.

        Returns:
            The blocks of all ranks on ``root``, and ``None`` on other ranks.

        Raises:
            LandbridgeError: As ``all_reduce``.
        """
        return self._start_and_wait(
            lambda: self.gather_async(
                array, root, counts=counts, out=out, dtype=dtype, layout=layout, timeout=timeout
            )
        )

    def gather_async(
        self,
        array: Any,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Operation:
        """Starts a ``gather``, and returns the operation before the result is ready."""
        options = self._check_arguments(
            CollectiveKind.GATHER, root=root, layout=layout, timeout=timeout
        )
        source = _adapt_block_rows(array, dtype)
        if options.root == self.rank:
            counts = self._listed_counts(counts, out, dtype)
        rows = self._check_counts(counts, source.shape[0])
        self._check_own_rows(rows, source)
        result = _block_with_rows(source, sum(rows)) if options.root == self.rank else None
        agreed = _agreed_blocks(source, options, sum(rows), None if counts is None else (rows,))
        out = out if result is not None else None
        return self._start_blocks(MovedArrays(source, result, agreed), out, dtype)

    def scatter(
        self,
        array: Any,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Gives each rank its own block of one rank's array, and waits for it.

        Args:
            array: On ``root`` a block for each rank, in rank order, or a list of them. On other
                ranks it says kind, dtype and shape of this rank's block, and its elements are not
                read.
            root: The rank with the blocks.
            counts: The rows of each rank's block, the same list on all ranks. By default all have
                as many rows.
            out: An array for this rank's block. The default is a new one.
            dtype: As for ``all_reduce``, like ``layout`` and ``timeout``.

        Returns:
            This rank's block.

        Raises:
            LandbridgeError: As ``all_reduce``.
        """
        return self._start_and_wait(
            lambda: self.scatter_async(
                array, root, counts=counts, out=out, dtype=dtype, layout=layout, timeout=timeout
            )
        )

    def scatter_async(
        self,
        array: Any,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Operation:
        """Starts a ``scatter``, and returns the operation before the result is ready."""
        options = self._check_arguments(
            CollectiveKind.SCATTER, root=root, layout=layout, timeout=timeout
        )
        given = _adapt_block_rows(array, dtype)
        if options.root == self.rank:
            counts = self._listed_counts(counts, array, dtype)
            rows = self._check_shares(counts, given)
        else:
            rows = self._check_counts(counts, given.shape[0])
            self._check_own_rows(rows, given)
        source = given if options.root == self.rank else None
        result = _block_with_rows(given, rows[self.rank])
        agreed = _agreed_blocks(given, options, sum(rows), None if counts is None else (rows,))
        return self._start_blocks(MovedArrays(source, result, agreed), out, dtype)

    def all_to_all(
        self,
        array: Any,
        *,
        send: Sequence[int] | None = None,
        receive: Sequence[int] | None = None,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Exchanges blocks between all pairs of ranks, and waits for the result.

        Args:
            array: A block for each rank, in rank order, or a list of them. After a list the result
                is a list too.
            send: The rows for each rank. Blocks may be empty. By default, without ``receive``, all
                blocks of all ranks have as many rows.
            receive: The rows from each rank. Ranks that contradict each other raise
                ``RanksDisagree``, with both named.
            out: An array for the result. The default is a new one.
            dtype: As for ``all_reduce``, like ``layout`` and ``timeout``.

        Returns:
            The blocks for this rank, in the order of the ranks that sent them.

        Raises:
            LandbridgeError: As ``all_reduce``.
        """
        return self._start_and_wait(
            lambda: self.all_to_all_async(
                array,
                send=send,
                receive=receive,
                out=out,
                dtype=dtype,
                layout=layout,
                timeout=timeout,
            )
        )

    def all_to_all_async(
        self,
        array: Any,
        *,
        send: Sequence[int] | None = None,
        receive: Sequence[int] | None = None,
        out: Any = None,
        dtype: str | None = None,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Operation:
        """Starts an ``all_to_all``, and returns the operation before the result is ready."""
        options = self._check_arguments(CollectiveKind.ALL_TO_ALL, layout=layout, timeout=timeout)
        source = _adapt_block_rows(array, dtype)
        send = self._listed_counts(send, array, dtype)
        receive = self._listed_counts(receive, out, dtype)
        if (send is None) != (receive is None):
            raise errors.ConfigError("`send` and `receive` go together: give both, or neither")
        rows = self._check_shares(send, source)
        received = rows if receive is None else self._check_counts(receive, 0)
        result = _block_with_rows(source, sum(received))
        if isinstance(source, ArrayList):
            result = ArrayList([_block_with_rows(source, count) for count in received])
        if receive is None:
            agreed = _agreed_blocks(source, options, sum(rows), None)
        else:
            agreed = _agreed_blocks(source, options, 0, (rows, received))
        return self._start_blocks(MovedArrays(source, result, agreed), out, dtype)

    def _start_blocks(self, blocks: MovedArrays, out: Any, dtype: str | None) -> Operation:
        """Posts a collective of blocks, and returns the operation to wait for."""
        target = None if out is None else _adapt_block_rows(out, dtype)
        return self._start_moves(blocks, None if target is None else (out, target))

    def _start_moves(
        self,
        moved: MovedArrays,
        wanted: tuple[Any, ArrayAdapter] | None,
        series: int | None = None,
    ) -> Operation:
        """Posts a collective of blocks or a send, and returns the operation to wait for.

        Args:
            moved: Its arrays, with its other arguments.
            wanted: The caller's array for the result, as given and adapted.
            series: The series of a send.
        """
        source, result = moved.source, moved.result
        target = None if wanted is None else wanted[1]
        if target is not None and result is not None:
            check_posted_result_array(target, result)
        given: WantedSlot = _EMPTY_SLOT
        got: WantedSlot = _EMPTY_SLOT
        if source is not None:
            given = self._wanted_contribution(source)
        if result is not None:
            got = self._wanted_result(result, target, given)
        needs = WantedPost(given, got, post_deadline(moved.agreed.passed.options))

        def post(placed: PlacedPost) -> Operation:
            """Posts the operation with its memory."""
            slot = placed.result
            held: tuple[Any, ...] = (source and source.array,)
            if source is not None and placed.contribution is not None:
                source.copy_to_slot(placed.contribution)
                held = (placed.contribution,)
            in_arena = source if placed.contribution is None else None
            delivery = None
            if result is not None:
                delivery = OperationDelivery(result, wanted, slot, in_arena)
            operation = Operation(delivery, self)
            in_place = result is not None and slot is None
            operation.lies_in_arena = in_arena is not None or in_place
            # The entry also holds the array that `out` is a view of.
            held = (*held, slot, target and target.array)
            self._post_collective(operation, placed, held, moved.agreed, series)
            return operation

        return self._post_with_room(needs, post)

    def _listed_counts(
        self, counts: Sequence[int] | None, blocks: Any, dtype: str | None
    ) -> Sequence[int] | None:
        """Returns ``counts``, or by default the rows of a list of arrays; ``None`` where all have
        as many, so that other ranks may give arrays. Raises ``UnsupportedArray`` for a list with
        other rows than ``counts``."""
        if not isinstance(blocks, (list, tuple)):
            return counts
        adapted = _adapt_block_rows(blocks, dtype)
        assert isinstance(adapted, ArrayList), "a list has the adapter of a list"
        rows = adapted.rows
        if counts is not None:
            given = self._check_counts(counts, 0)
            if given != rows:
                text = f"a list of arrays of {rows} rows does not fit counts of {given}"
                raise errors.UnsupportedArray(text)
            return counts
        is_even = len(set(rows)) == 1 and len(rows) == self._world_size
        return None if is_even else rows

    def _check_counts(self, counts: Sequence[int] | None, rows: int) -> tuple[int, ...]:
        """Returns the rows of each rank's block: ``counts``, or by default ``rows`` for all. Raises
        ``ConfigError`` for another number of counts than ranks."""
        if counts is None:
            return (rows,) * self._world_size
        given = check_sequence_argument("counts", counts, "a list of one number for each rank")
        checked = tuple(check_integer_argument("counts", count, _ROWS_MAX) for count in given)
        if len(checked) != self._world_size:
            text = f"{len(checked)} counts for {self._world_size} ranks"
            raise errors.ConfigError(f"{text}: give one for each rank")
        return checked

    def _check_shares(self, counts: Sequence[int] | None, source: ArrayAdapter) -> tuple[int, ...]:
        """Returns the rows of each block of an array that has one for each rank. Raises
        ``UnsupportedArray`` where the blocks do not add up to the array."""
        rows = source.shape[0]
        if counts is None and rows % self._world_size:
            text = f"{rows} rows for {self._world_size} ranks"
            raise errors.UnsupportedArray(f"{text}: give the rows of each block")
        checked = self._check_counts(counts, rows // self._world_size)
        if sum(checked) != rows:
            raise errors.UnsupportedArray(f"the counts add up to {sum(checked)} rows, not {rows}")
        return checked

    def _check_own_rows(self, rows: tuple[int, ...], source: ArrayAdapter) -> None:
        """Raises ``UnsupportedArray`` unless an array has the rows of this rank's block."""
        if source.shape[0] != rows[self.rank]:
            text = f"the array has {source.shape[0]} rows, its count is {rows[self.rank]}"
            raise errors.UnsupportedArray(text)


def _adapt_block_rows(array: Any, dtype: str | None) -> ArrayAdapter:
    """Returns the adapter of an array or of a list of arrays, with a dtype by its name."""
    return adapt_array_or_list(array, None if dtype is None else Dtype.from_name(dtype))


def _block_with_rows(like: ArrayAdapter, rows: int) -> ArrayAdapter:
    """Returns an adapter for new arrays like another one, with this many rows."""
    return like.with_shape((rows, *like.shape[1:]))


def _agreed_blocks(
    source: ArrayAdapter,
    options: CollectiveOptions,
    rows: int,
    counts: tuple[tuple[int, ...], ...] | None,
) -> AgreedArray:
    """Returns what ranks agree on about blocks.

    Args:
        source: An array of the same dtype and row shape.
        options: The collective's arguments.
        rows: The rows of all blocks of one array.
        counts: The lists of rows, or ``None`` where all blocks are alike.
    """
    row = source.agreed_shape[1:]
    size = math.prod(row)
    layout = hash_posted_element(options.layout, source)
    layout = hash_posted_layout(layout, row) if row else layout
    lists = tuple(tuple(size * count for count in each) for each in counts or ())
    element, total = source.element, rows * size
    given = (element.label, element.opaque_bytes, source.shape)
    passed = PassedArguments(options, *given, total, counts or ())
    return AgreedArray(source.dtype, total, (total,), layout, lists, passed)
