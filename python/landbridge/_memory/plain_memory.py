"""The question whether an array's elements are plain memory of this process.

Whoever takes tensors asks here, before anything is sent or overwritten. The memory of other kinds
is missing, lies in other processes, or does not hold the elements themselves. Reading it would
crash the process or give the ranks different data. This module imports no array library.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..errors import UnsupportedArray


def check_plain_memory(torch: Any, tensor: Any, name: str) -> None:
    """Raises ``UnsupportedArray``, with the name and a remedy, unless the elements of a torch
    tensor are plain memory of this process, on any device."""
    obstacle = _plain_memory_obstacle(torch, tensor)
    if obstacle is not None:
        raise UnsupportedArray(f"{name} {obstacle}")


def check_plain_cpu_memory(torch: Any, tensor: Any, name: str) -> None:
    """Raises ``UnsupportedArray``, with the name and a remedy, unless the elements of a torch
    tensor are plain memory that the CPU can read."""
    check_plain_memory(torch, tensor, name)
    if not tensor.is_cpu:
        text = f"is on {tensor.device}; accepted: dense tensors on the CPU; copy it there first"
        raise UnsupportedArray(f"{name} {text}")


def check_writable_plain_memory(torch: Any, tensor: Any, name: str) -> None:
    """Raises ``UnsupportedArray``, with the name and a remedy, when a torch tensor cannot be
    overwritten: it was made in inference mode and this thread is not in it, or its elements share
    memory."""
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        text = "was made in inference mode and can be written only in it; use another tensor"
        raise UnsupportedArray(f"{name} {text}")
    check_plain_memory_disjoint(tensor.shape, tensor.stride(), 1, name)


def check_plain_memory_disjoint(
    shape: Sequence[int], strides: Sequence[int], itemsize: int, name: str
) -> None:
    """Raises ``UnsupportedArray``, with the name and a remedy, when two elements of an array may
    share memory.

    From the innermost dimension outwards, each stride must step over everything inside it. That
    also refuses unusual layouts whose elements interleave without sharing memory.
    """
    inside = itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(strides, shape)):
        if size > 1 and stride < inside and 0 not in shape:
            text = "its elements share memory, as after `expand` or `broadcast_to`; use its copy"
            raise UnsupportedArray(f"{name} cannot be written: {text}")
        inside += stride * (size - 1)


def plain_memory_conj_or_neg(tensor: Any) -> bool:
    """Returns whether the memory of a torch tensor holds the conjugates or the negatives of its
    elements."""
    return bool(tensor.is_conj() or tensor.is_neg())


def copyable_plain_memory(torch: Any, tensor: Any) -> Any:
    """Returns a torch tensor that PyTorch can copy: the tensor itself, or a view of its bytes for
    dtypes of less than a byte, which have no copy."""
    is_copyable = _can_copy_plain_memory(torch, tensor.dtype)
    return tensor if is_copyable else tensor.view(torch.uint8)


def _plain_memory_obstacle(torch: Any, tensor: Any) -> str | None:
    """Returns why the elements of a torch tensor are no plain memory of this process, and what to
    do; ``None`` where they are."""
    kind = type(tensor)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return _describe_plain_memory_wrapper(kind)
    if torch.nn.parameter.is_lazy(tensor):
        return "has no shape yet: run the module once before"
    if tensor.layout is not torch.strided:
        return f"has the layout {tensor.layout}; accepted: dense tensors; use its `to_dense()`"
    if tensor.is_nested:
        return "is a nested tensor; accepted: dense tensors; use its parts"
    if tensor.is_quantized:
        return "is quantized, and its scale would not be sent; use its `dequantize()`"
    if tensor.is_meta:
        return "is on meta and has no memory; use `to_empty` and load its values first"
    if not tensor.is_cpu:
        return None
    try:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
    except RuntimeError:
        return "has no memory of its own, as inside transforms of `torch.func`; use it outside"
    if tensor.numel() == 0:
        return None
    if address == 0:
        return "has no memory: its storage was freed, as that of a sharded module between steps"
    if storage.nbytes() < _end_in_plain_memory(tensor):
        return "lies beyond the end of its storage, which was shrunk after it; use a new tensor"
    return None


@functools.cache  # There are few dtypes.
def _can_copy_plain_memory(torch: Any, dtype: Any) -> bool:
    """Returns whether PyTorch copies elements of a dtype."""
    try:
        torch.empty(1, dtype=dtype).clone()
    except RuntimeError:
        return False
    return True


def _end_in_plain_memory(tensor: Any) -> int:
    """Returns the end of the last element of a torch tensor, in bytes from the start of its
    storage."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    end: int = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return end


def _describe_plain_memory_wrapper(kind: type[Any]) -> str:
    """Returns why tensors of a subclass with operations of its own are no plain memory, and what to
    do."""
    # By name, because importing the class takes long where nobody uses it.
    if any(base.__name__ == "DTensor" for base in kind.__mro__):
        return (
            "is a DTensor, of which this process has only a part, as after `fully_shard`; use its "
            "`to_local()` or `full_tensor()`, or a module that is not sharded"
        )
    if any(base.__name__ == "FakeTensor" for base in kind.__mro__):
        return "is a FakeTensor and has no memory; use it outside of its mode"
    return f"is a {kind.__name__}, which wraps other tensors; use the plain tensors in it"
