"""Equal parameters everywhere before the first step, and proof that they are."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Iterator, List, Tuple

import torch

from ..group import Group

#: Bytes that one broadcast carries: a part of the smallest useful arena.
_CHUNK_BYTES = 4 << 20


def sync_module(module: torch.nn.Module, group: Group, root: int = 0) -> None:
    """Gives every rank the parameters and buffers of ``root``, bit for bit.

    Raises ``RanksDisagree`` when the ranks' modules differ in names, shapes or dtypes, and
    whatever collectives raise; parts of the module are overwritten then.
    """
    _agree(group, _digest(_names(module)))
    tensors = [tensor for _, tensor in _tensors(module)]
    for chunk in _chunks(tensors):
        flat = torch.cat([part.view(torch.uint8) for part in map(_flat, chunk)])
        group.broadcast(flat, root, out=flat)
        _scatter(flat, chunk)
    check_module(module, group)


def check_module(module: torch.nn.Module, group: Group) -> int:
    """The digest of the module, equal on every rank.

    Raises ``RanksDisagree`` on every rank when parameters or buffers differ anywhere.
    """
    digest = module_digest(module)
    _agree(group, digest)
    return digest


def module_digest(module: torch.nn.Module) -> int:
    """64 bits of BLAKE2b over names, shapes, dtypes and bytes of parameters and buffers."""
    return _digest(_names(module), *(_flat(tensor) for _, tensor in _tensors(module)))


def _agree(group: Group, digest: int) -> None:
    group.all_reduce(b"\0", "max", layout=digest)


def _digest(names: str, *parts: torch.Tensor) -> int:
    digest = hashlib.blake2b(names.encode(), digest_size=8)
    for part in parts:
        if part.numel():
            digest.update((ctypes.c_ubyte * part.nbytes).from_address(part.data_ptr()))
    return int.from_bytes(digest.digest(), "big")


def _tensors(module: torch.nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


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
