"""Equal parameters everywhere before the first step, and proof that they are."""

from __future__ import annotations

import ctypes
import hashlib
from collections import deque
from typing import Deque, Iterator, List, NamedTuple, Optional, Tuple

import torch

from .._group import Group, chosen
from .._operation import Operation
from ..errors import ArenaFull

#: Bytes that one broadcast carries; it takes twice as many of the arena.
_CHUNK_BYTES = 1 << 20
#: Broadcasts under way, so that a long way does not leave the link idle between them.
_UNDER_WAY_MAX = 16


def sync_module(module: torch.nn.Module, group: Optional[Group] = None, root: int = 0) -> None:
    """Gives every rank the parameters and buffers of ``root``, bit for bit. ``group`` is the only
    one that this process has connected, where it is not given.

    Raises ``RanksDisagree`` when the ranks' modules differ in names, shapes or dtypes, and
    whatever collectives raise; parts of the module are overwritten then.
    """
    group = chosen(group)
    group.barrier(layout=names_digest(module))
    broadcast([tensor for _, tensor in _tensors(module)], group, root)
    check_module(module, group)


def broadcast(tensors: List[torch.Tensor], group: Group, root: int) -> None:
    """Gives every rank what ``root``'s tensors hold, bit for bit. Raises what collectives
    raise; some tensors are overwritten then."""
    under_way: Deque[_Broadcast] = deque()
    for chunk in _chunks(tensors):
        if len(under_way) == _UNDER_WAY_MAX:
            under_way.popleft().finish()
        under_way.append(_begin(chunk, group, root, under_way))
    for last in under_way:
        last.finish()


def check_module(module: torch.nn.Module, group: Optional[Group] = None) -> int:
    """The digest of the module, equal on every rank. ``group`` as for ``sync_module``.

    Raises ``RanksDisagree`` on every rank when parameters or buffers differ anywhere.
    """
    digest = module_digest(module)
    chosen(group).barrier(layout=digest)
    return digest


def module_digest(module: torch.nn.Module) -> int:
    """64 bits of BLAKE2b over names, shapes, dtypes and bytes of parameters and buffers."""
    return _digest(_names(module), *(_flat(tensor) for _, tensor in _tensors(module)))


def names_digest(module: torch.nn.Module, *more: str) -> int:
    """Of names, shapes and dtypes alone, and of more words."""
    return _digest("\n".join([_names(module), *more]))


def parameters_digest(module: torch.nn.Module) -> int:
    """Of what training makes equal: buffers, such as running means, may differ between sites."""
    return _digest("", *(_flat(parameter) for parameter in module.parameters()))


def bare(module: torch.nn.Module) -> torch.nn.Module:
    """Without DDP around it, in which its parts have other names."""
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        inner: torch.nn.Module = module.module
        return inner
    return module


class _Broadcast(NamedTuple):
    """A chunk under way."""

    operation: Operation
    chunk: List[torch.Tensor]
    is_root: bool

    def finish(self) -> None:
        flat = self.operation.wait()
        if not self.is_root:
            _scatter(flat, self.chunk)


def _begin(
    chunk: List[torch.Tensor], group: Group, root: int, under_way: Deque[_Broadcast]
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
            # Their results are in the arena until they are fetched.
            if not under_way:
                raise
            under_way.popleft().finish()


def _digest(names: str, *parts: torch.Tensor) -> int:
    digest = hashlib.blake2b(names.encode(), digest_size=8)
    for part in parts:
        if part.numel():
            digest.update((ctypes.c_ubyte * part.nbytes).from_address(part.data_ptr()))
    return int.from_bytes(digest.digest(), "big")


def _tensors(module: torch.nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
    yield from bare(module).named_parameters()
    yield from bare(module).named_buffers()


def _names(module: torch.nn.Module) -> str:
    every = _tensors(module)
    return "\n".join(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in every)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1)


def _chunks(tensors: List[torch.Tensor]) -> Iterator[List[torch.Tensor]]:
    """Tensors of at most ``_CHUNK_BYTES`` together, or a part of one, as views."""
    chunk: List[torch.Tensor] = []
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


def _scatter(flat: torch.Tensor, chunk: List[torch.Tensor]) -> None:
    at = 0
    for part in chunk:
        # Copied, since a view of another dtype must begin at a multiple of its size.
        values = flat[at : at + part.nbytes].clone().view(part.dtype)
        with torch.no_grad():
            part.copy_(values.view(part.shape))
        at += part.nbytes
