"""Equal parameters on all ranks: broadcasting them, and comparing their digests."""

from __future__ import annotations

import ctypes
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .._argument_errors import argument_error
from .._arguments import check_integer_argument, check_timeout_argument
from .._exchange_integers import exchange_integers
from .._group import Group, resolve_group
from .._memory.plain_memory import check_plain_memory, check_writable_plain_memory
from .._operations.operation import DEFAULT_TIMEOUT_S
from ..errors import error_on_disagreement_with
from ._tensor_broadcast import BroadcastRoom, broadcast_tensors, cpu_tensor_to_broadcast

#: 16 parameters and buffers: the most that an error lists, so that the error stays readable. Of
#: further ones it says only how many there are.
_DESCRIBED_MAX = 16


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
        ArenaFull: The arena of some rank has too little room. Every rank raises an error.
        RanksDisagree: The ranks' modules differ in names, shapes or dtypes.
        LandbridgeError: As ``Group.broadcast``. Parts of the module may be overwritten.
    """
    group = resolve_group(group)
    check_timeout_argument(timeout)
    root = check_integer_argument("root", root, group.world_size)
    check_module_overwritable(module)
    tensors = [tensor for _, tensor in _named_module_tensors(module)]
    room = BroadcastRoom(group, sum(tensor.nbytes for tensor in tensors))
    told, layout = [room.chunk_bytes], module_names_digest(module)
    with error_on_disagreement_with(lambda: describe_module(module)):
        (chunks,) = exchange_integers(group, told, layout=layout, timeout=timeout)
    room.agree_on_chunk(chunks)
    broadcast_tensors(tensors, group, root, room=room, timeout=timeout)
    group.barrier(timeout, layout=module_digest(module, buffers=True))


def check_module(
    module: torch.nn.Module, group: Group | None = None, *, buffers: bool = False
) -> int:
    """Raises ``RanksDisagree`` unless the module's parameters are equal on all ranks.

    Args:
        module: The module, with or without DDP around it.
        group: The ranks. The default is the only group of this process.
        buffers: Whether the values of buffers are compared too. Those of each rank are its own
            where nothing brings them together, such as the running means of ``BatchNorm``.

    Returns:
        The digest of the module, as ``module_digest``.

    Raises:
        UnsupportedArray, ConfigError: As ``module_digest``.
        RanksDisagree: Parameters differ, or buffers where they are compared, or the names, shapes
            or dtypes of either. Every rank raises it.
    """
    digest, ranks = module_digest(module, buffers=buffers), resolve_group(group)
    compared = "parameters and buffers" if buffers else "parameters"
    with error_on_disagreement_with(
        lambda: f"{describe_module(module)}; the values of its {compared} {digest:#x}"
    ):
        ranks.barrier(layout=digest)
    return digest


def module_digest(module: torch.nn.Module, *, buffers: bool = False) -> int:
    """Returns 64 bits of BLAKE2b over a module: names, shapes and dtypes of its parameters and
    buffers, and the bytes of its parameters.

    Args:
        module: The module, with or without DDP around it.
        buffers: Whether the bytes of buffers count too. They may differ between ranks whose weights
            are equal, as the running means of ``BatchNorm`` do.

    Raises:
        UnsupportedArray: A parameter or buffer is no plain memory.
        ConfigError: ``module`` is no module, or ``buffers`` neither ``True`` nor ``False``.
    """
    if not isinstance(buffers, bool):
        raise argument_error("buffers", buffers, "True or False")
    every = _named_module_tensors(module) if buffers else _named_module_parameters(module)
    names = _describe_module_tensors(module)
    return _hash_module_tensors(names, *(cpu_tensor_to_broadcast(tensor) for _, tensor in every))


def module_names_digest(module: torch.nn.Module, *more: str) -> int:
    """Returns a digest of names, shapes and dtypes of a module's parameters and buffers, and of
    more texts."""
    return _hash_module_tensors("\n".join([_describe_module_tensors(module), *more]))


def module_parameters_digest(module: torch.nn.Module) -> int:
    """Returns a digest of a module's parameters without its buffers, which may differ by rank, such
    as running means."""
    parameters = _named_module_parameters(module)
    return _hash_module_tensors(
        "", *(cpu_tensor_to_broadcast(parameter) for _, parameter in parameters)
    )


def check_module_overwritable(module: torch.nn.Module) -> None:
    """Raises ``UnsupportedArray`` when a parameter or buffer of a module cannot be sent, or cannot
    be overwritten."""
    for name, tensor in _named_module_tensors(module):
        check_writable_plain_memory(torch, tensor, f"`{name}` of the module")


def module_state(module: torch.nn.Module) -> dict[str, Any]:
    """Returns all that another rank needs to make its module equal: the state dict, its versions,
    and the parameters and buffers that are not in it, such as non-persistent buffers."""
    module = module_without_ddp(module)
    state = module.state_dict()
    rest = {name: tensor.detach() for name, tensor in _module_tensors_beside(module, state)}
    # An attribute of the dictionary, by which modules know states of older releases.
    return {"state": state, "versions": getattr(state, "_metadata", None), "rest": rest}


def load_module_state(module: torch.nn.Module, other: dict[str, Any]) -> None:
    """Loads what ``module_state`` returned on another rank. Raises ``RuntimeError`` where the
    modules differ."""
    module = module_without_ddp(module)
    rest, own = other["rest"], dict(_module_tensors_beside(module, other["state"]))
    shapes = {name: tensor.shape for name, tensor in rest.items()}
    if shapes != {name: tensor.shape for name, tensor in own.items()}:
        raise RuntimeError(f"buffers outside of the state dict differ: {list(rest)}, {list(own)}")
    state: Any = OrderedDict(other["state"])
    state._metadata = other["versions"]
    module.load_state_dict(state)
    with torch.no_grad():
        for name, tensor in rest.items():
            own[name].copy_(tensor)


def _module_tensors_beside(
    module: torch.nn.Module, state: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the name and the tensor of each parameter and buffer that a state dict leaves out."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return ((name, tensor) for name, tensor in named if name not in state)


def check_module_argument(module: Any) -> None:
    """Raises ``ConfigError`` unless the argument ``module`` is one."""
    if not isinstance(module, torch.nn.Module):
        raise argument_error("module", module, "a torch.nn.Module")


def module_without_ddp(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the module without DDP around it, which changes the names of its parts. Raises
    ``ConfigError`` for anything that is no module."""
    check_module_argument(module)
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        inner: torch.nn.Module = module.module
        return inner
    return module


def describe_module(module: torch.nn.Module) -> str:
    """Returns names, shapes and dtypes of a module's parameters and buffers, for
    ``RanksDisagree``: ranks compare them by their digest alone."""
    listed = _describe_module_tensors(module).splitlines()
    more = len(listed) - _DESCRIBED_MAX
    words = ", ".join(listed[:_DESCRIBED_MAX]) + (f" and {more} more" if more > 0 else "")
    digest = module_names_digest(module)
    return f"the module of this rank has {words or 'no parameters'}; their digest is {digest:#x}"


def _hash_module_tensors(names: str, *parts: torch.Tensor) -> int:
    """Returns 64 bits of BLAKE2b over a text and the bytes of tensors."""
    digest = hashlib.blake2b(names.encode(), digest_size=8)
    for part in parts:
        if part.numel():
            digest.update((ctypes.c_ubyte * part.nbytes).from_address(part.data_ptr()))
    return int.from_bytes(digest.digest(), "big")


def _named_module_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the name and the tensor of each parameter and buffer of a module. Raises
    ``UnsupportedArray`` for one that is no plain memory."""
    yield from _named_module_parameters(module)
    yield from _check_named_module_tensors("buffer", module_without_ddp(module).named_buffers())


def _named_module_parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the name and the tensor of each parameter of a module. Raises as
    ``_named_module_tensors``."""
    return _check_named_module_tensors("parameter", module_without_ddp(module).named_parameters())


def _check_named_module_tensors(
    kind: str, named: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields names and tensors. Raises ``UnsupportedArray``, with kind and name, for a tensor that
    is no plain memory."""
    for name, tensor in named:
        check_plain_memory(torch, tensor, f"{kind} `{name}` of the module")
        yield name, tensor


def _describe_module_tensors(module: torch.nn.Module) -> str:
    """Returns names, shapes and dtypes of a module's parameters and buffers, one a line."""
    every = _named_module_tensors(module)
    return "\n".join(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in every)
