"""Collectives of blocks: each rank has, or gets, a part of the whole.

``Group`` inherits them. Blocks lie behind each other along the first dimension of an array, in
rank order. Counts are numbers of rows: sizes of that dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import errors
from .._arguments import CollectiveOptions, check_integer_argument, check_collective_arguments
from .._memory.arena import ArenaSlot
from .._memory.arrays import ArrayAdapter, adapt_array
from .._operation import DEFAULT_TIMEOUT_S, Operation, ResultDelivery
from .._protocol.descriptor import CollectiveKind, Dtype, Op
from .poster import AgreedArray, CollectivePoster, hash_posted_layout
from .state import PostedCollective

#: Offset and length in bytes of a slot without data.
_EMPTY_SLOT = (0, 0)
#: 2^48 rows: more than any array has.
_ROWS_MAX = 1 << 48


class _Blocks(NamedTuple):
    """The arrays of one collective of blocks on this rank, and what ranks agree on."""

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
            array: This rank's block, of any kind that ``all_reduce`` takes. All ranks have the same
                dtype, and the same sizes of all dimensions but the first.
            counts: The rows of each rank's block, the same list on all ranks. Blocks may be empty.
                By default all have as many rows.
            out: An array for the result, of the same kind and dtype. The default is a new one.
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
        options = check_collective_arguments(
            CollectiveKind.ALL_GATHER, layout=layout, timeout=timeout
        )
        source = _adapt_rows(array, dtype)
        rows = self._check_counts(counts, source.shape[0])
        self._check_own_rows(rows, source)
        result = _with_rows(source, sum(rows))
        agreed = _agreed_blocks(source, options, sum(rows), None if counts is None else (rows,))
        return self._start_blocks(options, _Blocks(source, result, agreed), out, dtype)

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
            array: The contribution: a block for each rank, in rank order.
            op: The reduction, as for ``all_reduce``, like ``weight``.
            counts: The rows of each rank's block, the same list on all ranks. By default all have as
                many rows.
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
        options = check_collective_arguments(
            kind, op=named, weight=weight, layout=layout, timeout=timeout
        )
        source = _adapt_rows(array, dtype)
        if named == Op.AVG and not source.dtype.is_float:
            text = f"there is no average of {source.dtype.label}; use op='sum', or floats"
            raise errors.UnsupportedArray(text)
        rows = self._check_shares(counts, source)
        result = _with_rows(source, rows[self.rank])
        agreed = _agreed_blocks(source, options, sum(rows), None if counts is None else (rows,))
        return self._start_blocks(options, _Blocks(source, result, agreed), out, dtype)

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
        """Gives one rank the arrays of all ranks, one behind the other, and waits until this rank is
        done.

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
        options = check_collective_arguments(
            CollectiveKind.GATHER, root=root, layout=layout, timeout=timeout
        )
        self._check_root(options)
        source = _adapt_rows(array, dtype)
        rows = self._check_counts(counts, source.shape[0])
        self._check_own_rows(rows, source)
        result = _with_rows(source, sum(rows)) if options.root == self.rank else None
        agreed = _agreed_blocks(source, options, sum(rows), None if counts is None else (rows,))
        out = out if result is not None else None
        return self._start_blocks(options, _Blocks(source, result, agreed), out, dtype)

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
            array: On ``root`` a block for each rank, in rank order. On other ranks it says kind,
                dtype and shape of this rank's block, and its elements are not read.
            root: The rank with the blocks.
            counts: The rows of each rank's block, the same list on all ranks. By default all have as
                many rows.
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
        options = check_collective_arguments(
            CollectiveKind.SCATTER, root=root, layout=layout, timeout=timeout
        )
        self._check_root(options)
        given = _adapt_rows(array, dtype)
        if options.root == self.rank:
            rows = self._check_shares(counts, given)
        else:
            rows = self._check_counts(counts, given.shape[0])
            self._check_own_rows(rows, given)
        source = given if options.root == self.rank else None
        result = _with_rows(given, rows[self.rank])
        agreed = _agreed_blocks(given, options, sum(rows), None if counts is None else (rows,))
        return self._start_blocks(options, _Blocks(source, result, agreed), out, dtype)

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
            array: A block for each rank, in rank order.
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
        options = check_collective_arguments(
            CollectiveKind.ALL_TO_ALL, layout=layout, timeout=timeout
        )
        source = _adapt_rows(array, dtype)
        if (send is None) != (receive is None):
            raise errors.ConfigError("`send` and `receive` go together: give both, or neither")
        rows = self._check_shares(send, source)
        if receive is None:
            agreed = _agreed_blocks(source, options, sum(rows), None)
            return self._start_blocks(options, _Blocks(source, source, agreed), out, dtype)
        received = self._check_counts(receive, 0)
        agreed = _agreed_blocks(source, options, 0, (rows, received))
        blocks = _Blocks(source, _with_rows(source, sum(received)), agreed)
        return self._start_blocks(options, blocks, out, dtype)

    def _start_blocks(
        self, options: CollectiveOptions, blocks: _Blocks, out: Any, dtype: str | None
    ) -> Operation:
        """Posts a collective of blocks, and returns the operation to wait for."""
        self._check_may_wait()
        source, result = blocks.source, blocks.result
        named = None if dtype is None else Dtype.from_name(dtype)
        target = None if out is None else adapt_array(out, named)
        if target is not None and result is not None:
            _check_out(target, result)
        with self._posting:
            self._state.check_usable()
            given, got = _EMPTY_SLOT, _EMPTY_SLOT
            held: tuple[Any, ...] = ()
            slot: ArenaSlot | None = None
            if source is not None:
                offset, held = self._place_contribution(source, True)
                given = (offset, source.nbytes)
            if result is not None:
                offset, slot = self._place_result(result, target, given)
                got = (offset, result.nbytes)
            slots = (given, got)
            self._await_post_room(slots)
            in_arena = source if held and not isinstance(held[0], ArenaSlot) else None
            wanted = None if target is None else (out, target)
            delivery = None
            if result is not None:
                delivery = ResultDelivery(result, wanted, slot, in_arena)
            operation = Operation(delivery, self)
            in_place = result is not None and slot is None
            operation.lies_in_arena = in_arena is not None or in_place
            # The entry also holds the array that `out` is a view of.
            held = (*held, slot, target and target.array)
            self._post_collective(PostedCollective(operation, slots, held), options, blocks.agreed)
        return operation

    def _check_counts(self, counts: Sequence[int] | None, rows: int) -> tuple[int, ...]:
        """Returns the rows of each rank's block: ``counts``, or by default ``rows`` for all."""
        if counts is None:
            return (rows,) * self._world_size
        checked = tuple(check_integer_argument("counts", count, _ROWS_MAX) for count in counts)
        if len(checked) != self._world_size:
            text = f"{len(checked)} counts for {self._world_size} ranks"
            raise errors.ConfigError(f"{text}: give one for each rank")
        return checked

    def _check_shares(
        self, counts: Sequence[int] | None, source: ArrayAdapter
    ) -> tuple[int, ...]:
        """Returns the rows of each block of an array that has one for each rank."""
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

    def _check_root(self, options: CollectiveOptions) -> None:
        """Raises ``ConfigError`` unless the root is a rank of the job."""
        if options.root >= self._world_size:
            text = f"root {options.root}: the fabric has ranks 0 to {self._world_size - 1}"
            raise errors.ConfigError(text)


def _adapt_rows(array: Any, dtype: str | None) -> ArrayAdapter:
    """Returns the adapter of an array that has rows. Raises ``UnsupportedArray`` for a single
    number."""
    adapter = adapt_array(array, None if dtype is None else Dtype.from_name(dtype))
    if not adapter.shape:
        raise errors.UnsupportedArray("an array without dimensions has no rows; reshape it to (1,)")
    return adapter


def _with_rows(like: ArrayAdapter, rows: int) -> ArrayAdapter:
    """Returns an adapter for new arrays like another one, with this many rows."""
    return like.with_shape((rows, *like.shape[1:]))


def _check_out(target: ArrayAdapter, result: ArrayAdapter) -> None:
    """Raises ``UnsupportedArray`` unless an array can take a result."""
    target.check_writable()
    if (target.dtype, tuple(target.shape)) != (result.dtype, tuple(result.shape)):
        want = f"{result.dtype.label} of shape {tuple(result.shape)}"
        got = f"{target.dtype.label} of shape {tuple(target.shape)}"
        raise errors.UnsupportedArray(f"`out` is {got}, the result {want}; they must be alike")


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
    row = tuple(source.shape[1:])
    size = math.prod(row)
    layout = hash_posted_layout(options.layout, row) if row else options.layout
    lists = tuple(tuple(size * count for count in each) for each in counts or ())
    return AgreedArray(source.dtype, rows * size, (rows * size,), layout, lists)
