"""Equal parameters on all ranks: broadcasting them, and comparing their digests."""

from __future__ import annotations

import ctypes
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from .._group import Group, resolve_group
from .._memory.plain_memory import check_plain_tensor, check_writable_tensor
from .._operation import DEFAULT_TIMEOUT_S, Operation
from ..errors import ArenaFull

#: 1 MiB: the most bytes of tensors that one broadcast carries, unless a tensor is not contiguous. A
#: broadcast takes twice as much of the arena.
_BROADCAST_CHUNK_BYTES = 1 << 20
#: 16 broadcasts: the most in flight at once, enough that a long round trip does not leave the link
#: idle.
_BROADCASTS_IN_FLIGHT_MAX = 16


def sync_module(
    module: torch.nn.Module,
    group: Group | None = None,
    root: int = 0,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> None:
    """Gives every rank the parameters and buffers of one rank, bit for bit.

    Args:
        module: The module to overwrite, with or without DDP around it.
        group: The ranks. The default is the only group of this process.
        root: The rank whose parameters and buffers are right.
        timeout: How long to wait for the other ranks at each exchange, in seconds.

    Raises:
        UnsupportedArray: A parameter or buffer is no plain memory of this process, or cannot be
            written, such as one of a sharded, sparse or expanded kind. Nothing was sent.
        RanksDisagree: The ranks' modules differ in names, shapes or dtypes.
        LandbridgeError: As ``Group.broadcast``. Parts of the module may be overwritten.
    """
    group = resolve_group(group)
    check_overwritable(module)
    group.barrier(timeout, layout=names_digest(module))
    tensors = [tensor for _, tensor in _named_tensors(module)]
    broadcast_tensors(tensors, group, root, timeout=timeout)
    group.barrier(timeout, layout=module_digest(module))


def broadcast_tensors(
    tensors: list[torch.Tensor], group: Group, root: int, *, timeout: float = DEFAULT_TIMEOUT_S
) -> None:
    """Gives every rank the content of ``root``'s tensors, bit for bit. ``timeout`` is how long each
    broadcast waits for the other ranks, in seconds.

    Raises as ``Group.broadcast``. Some tensors may be overwritten then.
    """
    in_flight: deque[_Broadcast] = deque()
    for chunk in _split_into_chunks(tensors):
        if len(in_flight) == _BROADCASTS_IN_FLIGHT_MAX:
            in_flight.popleft().finish_broadcast()
        in_flight.append(_begin_broadcast(chunk, group, root, in_flight, timeout))
    for last in in_flight:
        last.finish_broadcast()


def check_module(module: torch.nn.Module, group: Group | None = None) -> int:
    """Raises ``RanksDisagree`` unless the module's parameters and buffers are equal on all ranks.

    Args:
        module: The module, with or without DDP around it.
        group: The ranks. The default is the only group of this process.

    Returns:
        The digest of the module, as ``module_digest``.

    Raises:
        UnsupportedArray: As ``module_digest``.
        RanksDisagree: Parameters or buffers differ. Every rank raises it.
    """
    digest = module_digest(module)
    resolve_group(group).barrier(layout=digest)
    return digest


def module_digest(module: torch.nn.Module) -> int:
    """Returns 64 bits of BLAKE2b over names, shapes, dtypes and bytes of a module's parameters and
    buffers. Raises ``UnsupportedArray`` for a kind of tensor that is no plain memory."""
    return _hash_tensors(
        _describe_tensors(module), *(_flat_cpu_copy(tensor) for _, tensor in _named_tensors(module))
    )


def names_digest(module: torch.nn.Module, *more: str) -> int:
    """Returns a digest of names, shapes and dtypes of a module's parameters and buffers, and of
    more texts."""
    return _hash_tensors("\n".join([_describe_tensors(module), *more]))


def parameters_digest(module: torch.nn.Module) -> int:
    """Returns a digest of a module's parameters without its buffers, which may differ by rank, such
    as running means."""
    parameters = _check_named("parameter", strip_ddp(module).named_parameters())
    return _hash_tensors("", *(_flat_cpu_copy(parameter) for _, parameter in parameters))


def check_overwritable(module: torch.nn.Module) -> None:
    """Raises ``UnsupportedArray`` when a parameter or buffer of a module cannot be sent, or cannot
    be overwritten."""
    for name, tensor in _named_tensors(module):
        check_writable_tensor(torch, tensor, f"`{name}` of the module")


def strip_ddp(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the module without DDP around it, which changes the names of its parts."""
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        inner: torch.nn.Module = module.module
        return inner
    return module


class _Broadcast(NamedTuple):
    """A chunk of tensors whose broadcast is in flight."""

    operation: Operation
    chunk: list[torch.Tensor]
    is_root: bool

    def finish_broadcast(self) -> None:
        """Waits for the broadcast, and copies the chunk into the tensors on ranks other than the
        root."""
        flat = self.operation.wait()
        if not self.is_root:
            _copy_chunk_to_tensors(flat, self.chunk)


def _begin_broadcast(
    chunk: list[torch.Tensor],
    group: Group,
    root: int,
    in_flight: deque[_Broadcast],
    timeout: float,
) -> _Broadcast:
    """Starts the broadcast of a chunk. Finishes earlier ones while the arena has no room."""
    is_root = group.rank == root
    if is_root:
        flat = torch.cat([part.view(torch.uint8) for part in map(_flat_cpu_copy, chunk)])
    else:
        flat = torch.empty(sum(part.nbytes for part in chunk), dtype=torch.uint8)
    while True:
        try:
            operation = group.broadcast_async(flat, root, out=flat, timeout=timeout)
            return _Broadcast(operation, chunk, is_root)
        except ArenaFull:
            # Results stay in the arena until they are fetched.
            if not in_flight:
                raise
            in_flight.popleft().finish_broadcast()


def _hash_tensors(names: str, *parts: torch.Tensor) -> int:
    """Returns 64 bits of BLAKE2b over a text and the bytes of tensors."""
    digest = hashlib.blake2b(names.encode(), digest_size=8)
    for part in parts:
        if part.numel():
            digest.update((ctypes.c_ubyte * part.nbytes).from_address(part.data_ptr()))
    return int.from_bytes(digest.digest(), "big")


def _named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the name and the tensor of each parameter and buffer of a module. Raises
    ``UnsupportedArray`` for one that is no plain memory."""
    yield from _check_named("parameter", strip_ddp(module).named_parameters())
    yield from _check_named("buffer", strip_ddp(module).named_buffers())


def _check_named(
    kind: str, named: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields names and tensors. Raises ``UnsupportedArray``, with kind and name, for a tensor that
    is no plain memory."""
    for name, tensor in named:
        check_plain_tensor(torch, tensor, f"{kind} `{name}` of the module")
        yield name, tensor


def _describe_tensors(module: torch.nn.Module) -> str:
    """Returns names, shapes and dtypes of a module's parameters and buffers, one a line."""
    every = _named_tensors(module)
    return "\n".join(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in every)


def _flat_cpu_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor in one dimension on the CPU, without a copy where its elements are plain
    memory there already."""
    values = tensor.detach().resolve_conj().resolve_neg()
    return values.cpu().contiguous().reshape(-1)


def _split_into_chunks(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yields chunks for broadcasts: lists of tensors, or of parts of one, of at most
    ``_BROADCAST_CHUNK_BYTES`` together."""
    chunk: list[torch.Tensor] = []
    nbytes = 0
    for tensor in tensors:
        for part in _split_tensor(tensor.detach()):
            if nbytes + part.nbytes > _BROADCAST_CHUNK_BYTES and chunk:
                yield chunk
                chunk, nbytes = [], 0
            chunk.append(part)
            nbytes += part.nbytes
    if chunk:
        yield chunk


def _split_tensor(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields views of a tensor of at most ``_BROADCAST_CHUNK_BYTES``. One that is not contiguous
    stays whole."""
    if tensor.numel() == 0:
        return
    if tensor.nbytes <= _BROADCAST_CHUNK_BYTES or not tensor.is_contiguous():
        yield tensor
        return
    yield from torch.split(tensor.view(-1), _BROADCAST_CHUNK_BYTES // tensor.element_size())


def _copy_chunk_to_tensors(flat: torch.Tensor, chunk: list[torch.Tensor]) -> None:
    """Copies the bytes of a broadcast chunk into its tensors."""
    at = 0
    for part in chunk:
        # Cloned, because a view of another dtype must begin at a multiple of its element size.
        values = flat[at : at + part.nbytes].clone().view(part.dtype)
        with torch.no_grad():
            part.copy_(values.view(part.shape))
        at += part.nbytes
