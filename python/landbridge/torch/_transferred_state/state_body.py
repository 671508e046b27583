"""The tensors of a state, one behind the other in memory: the same bytes on all ranks that agree.

What else a state holds stands behind them. So the bytes of equal tensors have equal places, also
where ranks differ in a sampler or a generator, and several ranks can send them.
"""

from __future__ import annotations

from typing import Any

import torch

from ..._memory.plain_memory import copyable_plain_memory, plain_memory_conj_or_neg
from .._tensor_broadcast import cpu_tensor_to_broadcast

#: The second item of each tuple that stands for a tensor in the body. ``StateBody.take_tensors``
#: writes such tuples behind the mark of packed tuples.
_BODY_KIND = "body"
#: 4 KiB: the shortest tensor in the body, a chosen length. Shorter ones stay with what else the
#: state holds.
_BODY_TENSOR_BYTES_MIN = 1 << 12
#: 64 bytes: each tensor of the body begins at a multiple of it, which suits every dtype.
_BODY_ALIGN_BYTES = 64


class StateBody:
    """The tensors of a packed state.

    Attributes:
        nbytes: The length of the body.
    """

    def __init__(self, mark: str) -> None:
        """Begins without tensors. ``mark`` is the first item of packed tuples."""
        self.nbytes = 0
        self._mark = mark
        self._tensors: list[tuple[int, torch.Tensor]] = []
        # Where tensors of the same memory lie, such as tied weights.
        self._places: dict[Any, int] = {}

    def take_tensors(self, packed: Any) -> Any:
        """Returns a packed state with a tuple in place of each tensor that is in the body."""
        if isinstance(packed, torch.Tensor):
            return self._take_tensor(packed) if _belongs_in_state_body(packed) else packed
        if type(packed) in (list, tuple):
            return type(packed)(self.take_tensors(item) for item in packed)
        return packed

    def _take_tensor(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Returns the tuple that stands for a tensor, and notes the tensor."""
        plain = tensor.detach()
        same = (plain.data_ptr(), plain.device, plain.dtype, plain.shape)
        at = self._places.get(same)
        if at is None:
            at = self._places[same] = self.nbytes
            self._tensors.append((at, plain))
            self.nbytes += -(-plain.nbytes // _BODY_ALIGN_BYTES) * _BODY_ALIGN_BYTES
        return (self._mark, _BODY_KIND, plain.dtype, list(plain.shape), at)

    def copy_tensors(self, content: memoryview) -> None:
        """Copies all tensors to the beginning of a state's memory."""
        if self.nbytes:
            flat = torch.frombuffer(content, dtype=torch.uint8)
            for at, tensor in self._tensors:
                flat[at : at + tensor.nbytes] = cpu_tensor_to_broadcast(tensor).view(torch.uint8)

    def put_tensors(self, packed: Any, content: memoryview) -> Any:
        """Returns a packed state with copies of the body's tensors in their places."""
        if type(packed) is tuple and len(packed) == 5 and packed[:2] == (self._mark, _BODY_KIND):
            _, _, dtype, shape, at = packed
            nbytes = torch.Size(shape).numel() * dtype.itemsize
            flat = torch.frombuffer(content[at : at + nbytes], dtype=torch.uint8)
            return flat.view(dtype).view(shape).clone()
        if type(packed) in (list, tuple):
            return type(packed)(self.put_tensors(item, content) for item in packed)
        return packed


def _belongs_in_state_body(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is nothing but a block of memory, and long enough for the body."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.nbytes >= _BODY_TENSOR_BYTES_MIN
        and not vars(tensor)
        and tensor.is_contiguous()
        and copyable_plain_memory(torch, tensor) is tensor
        and not plain_memory_conj_or_neg(tensor)
    )
