"""The collectives and sends of c10d, carried out by those of ``Group``.

Each method has the name and the arguments of c10d's own and returns a work. Methods flatten tensors
in the caller's thread. A long tensor is cut into pieces of one length on all ranks, because a
piece has to fit into the arena.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch

from ... import errors
from ..._argument_errors import argument_error
from ..._group.collective_poster import hash_posted_layout
from ..._operations.operation import Operation
from .._fsdp.shard import note_fsdp_shards_if_imported, reduced_fsdp_shard
from .exchange import BeginPiece, Exchange
from .exchange_work import ExchangeWork
from .flat_tensors import FlatTensor, flat_tensor_block_pieces, split_flat_tensor_blocks
from .send_exchange import SendPlace

#: The name that ``Group`` has for each reduction of c10d.
_OP_NAMES = {
    "SUM": "sum",
    "AVG": "avg",
    "PRODUCT": "prod",
    "MIN": "min",
    "MAX": "max",
    "BAND": "band",
    "BOR": "bor",
    "BXOR": "bxor",
    # Each rank multiplies its own elements before they are added up.
    "PREMUL_SUM": "sum",
}
#: 1 ms: the shortest timeout of a collective. A shorter one, such as 0, is raised to it, since
#: gateways take no zero.
_TIMEOUT_MIN = timedelta(milliseconds=1)


class C10dCollectives:
    """The collectives and sends of one process group. The classes that c10d takes inherit from
    it."""

    def start_exchange(self, exchange: Exchange, timeout: timedelta) -> None:
        """Notes the exchange that carries out collectives, and the timeout of those that have
        none."""
        note_fsdp_shards_if_imported()
        self._exchange = exchange
        self._timeout = timeout

    @property
    def _world_size(self) -> int:
        """The number of ranks of the process group."""
        return self._exchange.group.world_size

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of collectives that have none of their own."""
        self._timeout = timeout

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> ExchangeWork:
        """Combines each tensor with those of all ranks, in place."""
        op, start = _collective_op_name(opts), self._exchange.group.all_reduce_async
        return self._reduce_in_place(tensors, opts, functools.partial(start, op=op))

    def allreduce_coalesced(
        self, tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> ExchangeWork:
        """Combines several tensors as ``allreduce`` does one."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> ExchangeWork:
        """Combines a tensor with those of all ranks, in place on the root."""
        root, start = opts.rootRank, self._exchange.group.reduce_async
        begin = functools.partial(start, root=root, op=_collective_op_name(opts))
        is_root = self._exchange.group.rank == root
        return self._reduce_in_place(tensors, opts, begin, is_written=is_root)

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> ExchangeWork:
        """Gives each tensor the elements of the root's."""
        is_root = self._exchange.group.rank == opts.rootRank
        flats = [FlatTensor(t, is_read=is_root, is_written=not is_root) for t in tensors]
        begin = functools.partial(self._exchange.group.broadcast_async, root=opts.rootRank)
        return self._start_in_place(flats, tensors, opts, begin)

    def allgather(
        self,
        outputs: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> ExchangeWork:
        """Gives every rank the tensors of all ranks. Their lengths may differ by rank."""
        calls = [
            ([FlatTensor(block, is_written=True) for block in blocks], _read_for_collective(source))
            for blocks, source in zip(outputs, inputs)
        ]

        def post_all(post: Callable[[BeginPiece], None]) -> None:
            """Posts the pieces of each tensor."""
            for blocks, source in calls:
                flats, options = [block.flat for block in blocks], self._options(opts, blocks)
                self._post_all_gather(flats, source.flat, options, post)

        results = [block for blocks, _ in calls for block in blocks]
        passed = [block for blocks in outputs for block in blocks]
        return self._exchange.start_call(results, post_all, passed)

    def allgather_coalesced(
        self,
        outputs: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> ExchangeWork:
        """Gathers several tensors as ``allgather`` does one. ``outputs`` has a list a rank."""
        return self.allgather(list(zip(*outputs)), inputs, opts)

    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> ExchangeWork:
        """Gives every rank the tensors of all ranks, one behind the other."""
        return self.all_gather_single_coalesced([output], [source], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> ExchangeWork:
        """Gathers several tensors as ``all_gather_single`` does one."""
        results = [FlatTensor(output, is_written=True) for output in outputs]
        sources = [_read_for_collective(source) for source in inputs]

        def post_all(post: Callable[[BeginPiece], None]) -> None:
            """Posts the pieces of each tensor."""
            for result, source in zip(results, sources):
                blocks = split_flat_tensor_blocks(
                    result.flat, [source.tensor.numel()] * self._world_size
                )
                self._post_all_gather(blocks, source.flat, self._options(opts, [source]), post)

        return self._exchange.start_call(results, post_all, inputs)

    def reduce_scatter(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[Sequence[torch.Tensor]],
        opts: Any = None,
    ) -> ExchangeWork:
        """Combines lists of a tensor for each rank, and gives each rank its own."""
        sources = [[_read_for_collective(block, opts) for block in blocks] for blocks in inputs]
        # The blocks of the list may differ from each other, but not from those of other ranks.
        shapes = [[tuple(block.shape) or (1,) for block in blocks] for blocks in inputs]
        passed = [block for blocks in inputs for block in blocks]
        blocks = [functools.partial(_landed_flats, of_output) for of_output in sources]
        return self._scatter_sums(outputs, blocks, opts, passed, shapes)

    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> ExchangeWork:
        """Combines tensors of a block for each rank, and gives each rank its own."""
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> ExchangeWork:
        """Reduces and scatters several tensors as ``reduce_scatter_single`` does one."""
        sources = [_read_for_collective(source, opts) for source in inputs]
        blocks = [
            functools.partial(_landed_blocks, source, [output.numel()] * self._world_size)
            for output, source in zip(outputs, sources)
        ]
        shapes = [[tuple(output.shape) or (1,)] for output in outputs]
        return self._scatter_sums(outputs, blocks, opts, outputs, shapes)

    def gather(
        self,
        outputs: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: Any,
    ) -> ExchangeWork:
        """Gives the root the tensors of all ranks, which have one length."""
        group, source, root = self._exchange.group, _read_for_collective(inputs[0]), opts.rootRank
        is_root = group.rank == root
        blocks = [FlatTensor(block, is_written=True) for block in outputs[0]] if is_root else []

        def post_all(post: Callable[[BeginPiece], None]) -> None:
            """Posts the pieces."""
            step, options = self._block_step(source.flat), self._options(opts, [source])
            self._post_if_empty("gather", [source.flat], options, post)
            for begin, (mine,) in flat_tensor_block_pieces([source.flat], step):
                out = [block.flat[begin : begin + step] for block in blocks] or None
                post(functools.partial(group.gather_async, mine, root, out=out, **options))

        return self._exchange.start_call(blocks, post_all, [inputs[0]])

    def scatter(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[Sequence[torch.Tensor]],
        opts: Any,
    ) -> ExchangeWork:
        """Gives each rank its own tensor of the root's list. They have one length."""
        group, root = self._exchange.group, opts.rootRank
        result = FlatTensor(outputs[0], is_written=True)
        sources = [_read_for_collective(each) for each in inputs[0]] if group.rank == root else []

        def post_all(post: Callable[[BeginPiece], None]) -> None:
            """Posts the pieces."""
            blocks = _landed_flats(sources)
            step, options = self._block_step(result.flat), self._options(opts, [result])
            self._post_if_empty("scatter", [result.flat], options, post)
            for begin, (out,) in flat_tensor_block_pieces([result.flat], step):
                given = [block[begin : begin + step] for block in blocks] or out
                post(functools.partial(group.scatter_async, given, root, out=out, **options))

        return self._exchange.start_call([result], post_all, [outputs[0]])

    def alltoall(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> ExchangeWork:
        """Exchanges a tensor between all pairs of ranks. It has to fit into the arena."""
        results = [FlatTensor(output, is_written=True) for output in outputs]
        sources = [_read_for_collective(source) for source in inputs]

        def post_all(post: Callable[[BeginPiece], None]) -> None:
            """Posts the exchange, whose pieces no rank could count alone."""
            self._post_all_to_all(_landed_flats(results), _landed_flats(sources), opts, post)

        return self._exchange.start_call(results, post_all, [*inputs, *outputs])

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_split_sizes: Sequence[int] | None,
        input_split_sizes: Sequence[int] | None,
        opts: Any = None,
    ) -> ExchangeWork:
        """Exchanges rows of a tensor between all pairs of ranks. Without sizes all get as many."""
        result, given = FlatTensor(output, is_written=True), _read_for_collective(source)
        received = self._block_lengths(output, output_split_sizes)
        sent = self._block_lengths(source, input_split_sizes)

        def post_all(post: Callable[[BeginPiece], None]) -> None:
            """Posts the exchange, whose pieces no rank could count alone."""
            blocks = split_flat_tensor_blocks(result.flat, received)
            shares = split_flat_tensor_blocks(given.flat, sent)
            self._post_all_to_all(blocks, shares, opts, post, _collective_row_hash(source, output))

        return self._exchange.start_call([result], post_all, [source, output])

    def barrier(self, opts: Any = None) -> ExchangeWork:
        """Waits until all ranks have come."""
        begin = functools.partial(self._exchange.group.barrier_async, **self._options(opts))
        return self._exchange.start_call([], lambda post: post(begin))

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """Waits until all ranks have come. Raises ``RanksTimedOut``, which names those that have
        not, on all that have."""
        self.barrier(opts).wait()

    def start_coalescing(self, device: Any = None) -> None:
        """Begins a batch of collectives, which end as one work."""
        self._exchange.start_batch()

    def end_coalescing(self, device: Any = None) -> ExchangeWork:
        """Ends a batch. Returns a work that ends with the last collective of it, and fails with the
        first failure."""
        return self._exchange.end_batch()

    def send(self, tensors: Sequence[torch.Tensor], destination: int, tag: int) -> ExchangeWork:
        """Sends a tensor to one other rank, which calls ``recv`` with the same tag."""
        return self._start_send(SendPlace(destination, True, tag), tensors)

    def recv(self, tensors: Sequence[torch.Tensor], source: int, tag: int) -> ExchangeWork:
        """Receives the tensor that one other rank sends with the same tag."""
        return self._start_send(SendPlace(source, False, tag), tensors)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int) -> ExchangeWork:
        """Raises ``NotSupported``: a receive belongs to the sends of one rank."""
        raise errors.NotSupported(
            "landbridge cannot receive from any rank, since both ends of a send know it by its "
            "two ranks and its place among theirs: name `src`"
        )

    def _start_send(self, place: SendPlace, tensors: Sequence[torch.Tensor]) -> ExchangeWork:
        """Starts a send or a receive, which both have one tensor."""
        if len(tensors) != 1:
            raise argument_error("tensors", len(tensors), "one tensor")
        flat = FlatTensor(tensors[0], is_read=place.is_sender, is_written=not place.is_sender)
        return self._exchange.start_send(place, flat, self._timeout.total_seconds())

    def _reduce_in_place(
        self,
        tensors: Sequence[torch.Tensor],
        opts: Any,
        begin: Callable[..., Operation],
        is_written: bool = True,
    ) -> ExchangeWork:
        """Starts a reduction of tensors in place, piece by piece. They are not ``is_written`` on
        ranks that get no result."""
        flats = [FlatTensor(t, is_read=True, is_written=is_written) for t in tensors]
        factor = _collective_premultiplier(opts)
        if factor is not None:
            for flat in flats:
                with _error_on_collective_factor(flat.tensor, factor):
                    flat.multiply(factor)
        return self._start_in_place(flats, tensors, opts, begin)

    def _start_in_place(
        self,
        flats: Sequence[FlatTensor],
        tensors: Sequence[torch.Tensor],
        opts: Any,
        begin: Callable[..., Operation],
    ) -> ExchangeWork:
        """Starts a collective whose results replace the tensors, piece by piece."""
        shard = reduced_fsdp_shard()
        more, told = (0, "") if shard is None else (shard.layout_hash(), shard.describe())

        def post_all(post: Callable[..., None]) -> None:
            """Posts the pieces of each tensor."""
            for flat in flats:
                count = flat.tensor.numel()
                step = max(self._exchange.piece_bytes // flat.tensor.element_size(), 1)
                if count <= step:
                    # Of a whole tensor ranks compare the shape itself, and name it.
                    whole, options = flat.flat.view(_collective_shape_of(flat)), self._options(opts)
                    options["layout"] ^= more
                    post(functools.partial(begin, whole, out=whole, **options))
                    continue
                options = self._options(opts, [flat])
                options["layout"] ^= more
                for at in range(0, count, step):
                    end = min(at + step, count)
                    piece = flat.piece(at, end)
                    take = functools.partial(flat.start_copy_back, at, end)
                    post(functools.partial(begin, piece, out=piece, flat=True, **options), take)

        return self._exchange.start_call(flats, post_all, tensors, told)

    def _scatter_sums(
        self,
        outputs: Sequence[torch.Tensor],
        sources: Sequence[Callable[[], list[torch.Tensor]]],
        opts: Any,
        passed: Sequence[torch.Tensor],
        shapes: Sequence[list[tuple[int, ...]]],
    ) -> ExchangeWork:
        """Starts reduce-scatters of the blocks that ``sources`` return, piece by piece. Ranks must
        agree on the shapes."""
        group, op = self._exchange.group, _collective_op_name(opts)
        results = [FlatTensor(output, is_written=True) for output in outputs]
        shard = reduced_fsdp_shard()
        more, told = (0, "") if shard is None else (shard.whole_layout_hash(), shard.describe())

        def post_all(post: Callable[[BeginPiece], None]) -> None:
            """Posts the pieces of each tensor."""
            for result, source, alike in zip(results, sources, shapes):
                blocks = source()
                step, options = self._block_step(result.flat), self._options(opts)
                options["layout"] = hash_posted_layout(0, str(alike)) ^ more
                self._post_if_empty("reduce_scatter", blocks, options, post)
                for begin, given in flat_tensor_block_pieces(blocks, step):
                    out = result.flat[begin : begin + step]
                    start = group.reduce_scatter_async
                    post(functools.partial(start, given, op, out=out, **options))

        return self._exchange.start_call(results, post_all, passed, told)

    def _post_all_gather(
        self,
        blocks: Sequence[torch.Tensor],
        source: torch.Tensor,
        options: dict[str, Any],
        post: Callable[[BeginPiece], None],
    ) -> None:
        """Posts the pieces of an all-gather."""
        group, step = self._exchange.group, self._block_step(source)
        self._post_if_empty("all_gather", blocks, options, post)
        for begin, out in flat_tensor_block_pieces(blocks, step):
            mine = source[begin : begin + step]
            # The list of results says how long each block is.
            post(functools.partial(group.all_gather_async, mine, out=out, **options))

    def _post_if_empty(
        self,
        name: str,
        blocks: Sequence[torch.Tensor],
        options: dict[str, Any],
        post: Callable[[BeginPiece], None],
    ) -> None:
        """Posts a barrier in place of the pieces of empty blocks, of which there are none. So ranks
        compare their shapes. Gateways compare no blocks without bytes over regions."""
        if not any(block.numel() for block in blocks):
            layout = hash_posted_layout(options["layout"], f"{name} {blocks[0].dtype}")
            begin = self._exchange.group.barrier_async
            post(functools.partial(begin, options["timeout"], layout=layout))

    def _post_all_to_all(
        self,
        results: Sequence[torch.Tensor],
        sources: Sequence[torch.Tensor],
        opts: Any,
        post: Callable[[BeginPiece], None],
        layout: int = 0,
    ) -> None:
        """Posts an all-to-all of flat blocks. Ranks must agree on the layout hash."""
        begin = functools.partial(
            self._exchange.group.all_to_all_async,
            list(sources),
            send=[source.numel() for source in sources],
            receive=[result.numel() for result in results],
            out=list(results),
            **{**self._options(opts), "layout": layout},
        )
        post(begin)

    def _block_lengths(self, tensor: torch.Tensor, sizes: Sequence[int] | None) -> list[int]:
        """Returns the elements of each rank's block of a tensor, from its rows for each rank."""
        if not sizes:
            return [tensor.numel() // self._world_size] * self._world_size
        row = tensor.numel() // tensor.shape[0] if tensor.shape[0] else 0
        return [size * row for size in sizes]

    def _block_step(self, block: torch.Tensor) -> int:
        """Returns the elements of a block in one piece, which has a block for each rank."""
        return max(self._exchange.piece_bytes // self._world_size // block.element_size(), 1)

    def _options(self, opts: Any, alike: Sequence[FlatTensor] = ()) -> dict[str, Any]:
        """Returns the arguments that all collectives of ``Group`` take. Ranks must agree on the
        shapes of the tensors ``alike``, which the flat ones do not tell."""
        given: timedelta | None = getattr(opts, "timeout", None)
        # One that is not set is negative.
        if given is None or given < timedelta():
            given = self._timeout
        given = max(given, _TIMEOUT_MIN)
        return {
            "timeout": given.total_seconds(),
            "layout": _collective_shape_hash(alike) if alike else 0,
        }


def _collective_shape_hash(tensors: Sequence[FlatTensor]) -> int:
    """Returns a layout hash of the shapes of tensors, on which ranks must agree."""
    return hash_posted_layout(0, str([_collective_shape_of(tensor) for tensor in tensors]))


def _collective_row_hash(source: torch.Tensor, output: torch.Tensor) -> int:
    """Returns a layout hash of the shape of one row, on which ranks must agree. A rank that gives
    nothing may have no rows to tell it, and gets some."""
    rows = output if source.numel() == 0 and source.dim() < 2 else source
    return hash_posted_layout(0, str(tuple(rows.shape[1:])))


def _collective_shape_of(tensor: FlatTensor) -> tuple[int, ...]:
    """Returns the shape of a tensor. One without dimensions counts as one of one element."""
    return tuple(tensor.tensor.shape) or (1,)


def _read_for_collective(tensor: torch.Tensor, opts: Any = None) -> FlatTensor:
    """Returns a tensor to read, multiplied where the reduction asks for it."""
    flat, factor = FlatTensor(tensor, is_read=True), _collective_premultiplier(opts)
    if factor is not None:
        with _error_on_collective_factor(tensor, factor):
            flat.multiply(factor)
    return flat


def _landed_flats(tensors: Sequence[FlatTensor]) -> list[torch.Tensor]:
    """Returns the elements of some tensors, once they are there."""
    return [tensor.flat for tensor in tensors]


def _landed_blocks(tensor: FlatTensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Returns blocks of a tensor that have these lengths, once its elements are there."""
    return split_flat_tensor_blocks(tensor.flat, lengths)


@contextlib.contextmanager
def _error_on_collective_factor(tensor: torch.Tensor, factor: Any) -> Iterator[None]:
    """Returns a context that raises ``UnsupportedArray`` where PyTorch cannot multiply a tensor by
    a factor."""
    try:
        yield
    except RuntimeError as error:
        text = f"elements of {tensor.dtype} cannot be multiplied by {factor}, as PREMUL_SUM asks"
        raise errors.UnsupportedArray(f"{text}; use a tensor of floats: {error}") from error


def _collective_op_name(opts: Any) -> str:
    """Returns the name that ``Group`` has for the reduction of some options: a sum by default."""
    op = getattr(opts, "reduceOp", None)
    return "sum" if op is None else _OP_NAMES[op.op.name]


def _collective_premultiplier(opts: Any) -> Any:
    """Returns the number by which a reduction multiplies each contribution, or ``None``."""
    op = getattr(opts, "reduceOp", None)
    if op is None or op.op.name != "PREMUL_SUM":
        return None
    return op.__getstate__()[1]
