"""Equal parameters on all ranks: broadcasting them, and comparing their digests."""

from __future__ import annotations

import ctypes
import hashlib
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch

from .._group import Group, chosen
from .._operation import Operation
from ..errors import ArenaFull

#: Size of one broadcast in bytes. It takes twice as much of the arena.
_CHUNK_BYTES = 1 << 20
#: Broadcasts that may be in flight, so that a long round trip does not leave the link idle.
_IN_FLIGHT_MAX = 16


def sync_module(module: torch.nn.Module, group: Group | None = None, root: int = 0) -> None:
    """Gives every rank the parameters and buffers of one rank, bit for bit.

    Args:
        module: The module to overwrite, with or without DDP around it.
        group: The ranks. The default is the only group of this process.
        root: The rank whose parameters and buffers are right.

    Raises:
        RanksDisagree: The ranks' modules differ in names, shapes or dtypes.
        LandbridgeError: As ``Group.broadcast``. Parts of the module may be overwritten.
    """
    group = chosen(group)
    group.barrier(layout=names_digest(module))
    broadcast([tensor for _, tensor in _tensors(module)], group, root)
    check_module(module, group)


def broadcast(tensors: list[torch.Tensor], group: Group, root: int) -> None:
    """Gives every rank the content of ``root``'s tensors, bit for bit.

    Raises as ``Group.broadcast``. Some tensors may be overwritten then.
    """
    in_flight: deque[_Broadcast] = deque()
    for chunk in _chunks(tensors):
        if len(in_flight) == _IN_FLIGHT_MAX:
            in_flight.popleft().finish()
        in_flight.append(_begin(chunk, group, root, in_flight))
    for last in in_flight:
        last.finish()


def check_module(module: torch.nn.Module, group: Group | None = None) -> int:
    """Checks that parameters and buffers are equal on all ranks.

    Args:
        module: The module, with or without DDP around it.
        group: The ranks. The default is the only group of this process.

    Returns:
        The digest of the module, as ``module_digest``.

    Raises:
        RanksDisagree: Parameters or buffers differ. Every rank raises it.
    """
    digest = module_digest(module)
    chosen(group).barrier(layout=digest)
    return digest


def module_digest(module: torch.nn.Module) -> int:
    """Returns 64 bits of BLAKE2b over names, shapes, dtypes and bytes of parameters and buffers."""
    return _digest(_names(module), *(_flat(tensor) for _, tensor in _tensors(module)))


def names_digest(module: torch.nn.Module, *more: str) -> int:
    """Returns a digest of names, shapes and dtypes, and of more texts."""
    return _digest("\n".join([_names(module), *more]))


def parameters_digest(module: torch.nn.Module) -> int:
    """Returns a digest of the parameters. Buffers, such as running means, may differ by rank."""
    return _digest("", *(_flat(parameter) for parameter in module.parameters()))


def bare(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the module without DDP around it, which changes the names of its parts."""
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        inner: torch.nn.Module = module.module
        return inner
    return module


class _Broadcast(NamedTuple):
    """A chunk in flight."""

    operation: Operation
    chunk: list[torch.Tensor]
    is_root: bool

    def finish(self) -> None:
        flat = self.operation.wait()
        if not self.is_root:
            _scatter(flat, self.chunk)


def _begin(
    chunk: list[torch.Tensor], group: Group, root: int, in_flight: deque[_Broadcast]
) -> _Broadcast:
    is_root = group.rank == root
    if is_root:
        flat = torch.cat([part.view(torch.uint8) for part in map(_flat, chunk)])
    else:
        flat = torch.empty(sum(part.nbytes for part in chunk), dtype=torch.uint8)
    while True:
        try:
            operation = group.broadcast_async(flat, root, out=flat)
            return _Broadcast(operation, chunk, is_root)
        except ArenaFull:
            # Results stay in the arena until they are fetched.
            if not in_flight:
                raise
            in_flight.popleft().finish()


def _digest(names: str, *parts: torch.Tensor) -> int:
    digest = hashlib.blake2b(names.encode(), digest_size=8)
    for part in parts:
        if part.numel():
            digest.update((ctypes.c_ubyte * part.nbytes).from_address(part.data_ptr()))
    return int.from_bytes(digest.digest(), "big")


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from bare(module).named_parameters()
    yield from bare(module).named_buffers()


def _names(module: torch.nn.Module) -> str:
    every = _tensors(module)
    return "\n".join(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in every)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1)


def _chunks(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yields views of tensors, or of a part of one, of at most ``_CHUNK_BYTES`` together."""
    chunk: list[torch.Tensor] = []
    nbytes = 0
    for tensor in tensors:
        for part in _parts(tensor.detach()):
            if nbytes + part.nbytes > _CHUNK_BYTES and chunk:
                yield chunk
                chunk, nbytes = [], 0
            chunk.append(part)
            nbytes += part.nbytes
    if chunk:
        yield chunk


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.numel() == 0:
        return
    if tensor.nbytes <= _CHUNK_BYTES or not tensor.is_contiguous():
        yield tensor
        return
    yield from torch.split(tensor.view(-1), _CHUNK_BYTES // tensor.element_size())


def _scatter(flat: torch.Tensor, chunk: list[torch.Tensor]) -> None:
    at = 0
    for part in chunk:
        # Cloned, because a view of another dtype must begin at a multiple of its element size.
        values = flat[at : at + part.nbytes].clone().view(part.dtype)
        with torch.no_grad():
            part.copy_(values.view(part.shape))
        at += part.nbytes
