"""Tensors as collectives take them: one dimension, contiguous, on the CPU.

``collectives`` makes them in the thread that calls c10d, so that copies from a device follow that
thread's stream. A tensor on a device is staged through host memory, which blocks the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..._memory.plain_memory import (
    check_plain_memory,
    check_plain_memory_disjoint,
    copyable_plain_memory,
)

#: 8 tensors: an error lists at most so many of one call, so that it stays readable. Of further
#: tensors it says only how many there are.
_DESCRIBED_MAX = 8


class FlatTensor:
    """A tensor as elements in one dimension on the CPU: its own memory where that is possible, else
    a copy.

    Attributes:
        tensor: The tensor itself.
        flat: Its elements in one dimension.
    """

    def __init__(
        self, tensor: torch.Tensor, *, is_read: bool = False, is_written: bool = False
    ) -> None:
        """Notes the tensor, and copies its elements if its own memory cannot serve.

        Args:
            tensor: A dense tensor on any device.
            is_read: Whether the collective reads the elements. A result alone needs no copy.
            is_written: Whether the collective gives the tensor other elements.

        Raises:
            UnsupportedArray: The tensor is no plain memory, such as a sparse one, or is to be
                written though its elements share memory.
        """
        name = "the tensor of a collective"
        check_plain_memory(torch, tensor, name)
        if is_written:
            check_plain_memory_disjoint(tensor.shape, tensor.stride(), 1, name)
        self.tensor = tensor.detach()
        self._is_written = is_written
        plain = self.tensor
        self._is_own_memory = plain.is_cpu and plain.is_contiguous()
        if self._is_own_memory:
            self.flat = plain.view(-1)
        elif is_read:
            # A copy from a device waits for the kernels before it on this thread's stream.
            resolved = copyable_plain_memory(torch, plain.resolve_conj().resolve_neg())
            self.flat = resolved.cpu().contiguous().view(-1).view(plain.dtype)
        else:
            self.flat = torch.empty(plain.numel(), dtype=plain.dtype)
            # Kernels that read the old elements must end before others are written.
            _await_flat_tensor_device(plain)

    def copy_back(self) -> None:
        """Copies the elements to the tensor if it is to be written, and waits until they are
        there."""
        if self._is_own_memory or not self._is_written:
            return
        with torch.inference_mode(self.tensor.is_inference()):
            result = copyable_plain_memory(torch, self.flat.view(self.tensor.shape))
            copyable_plain_memory(torch, self.tensor).copy_(result)
        _await_flat_tensor_device(self.tensor)


def describe_flat_tensors(tensors: Sequence[torch.Tensor]) -> str:
    """Returns dtypes and shapes of the tensors that this rank passed to a call of c10d, for
    ``RanksDisagree``."""
    listed = [_describe_flat_tensor(tensor) for tensor in tensors[:_DESCRIBED_MAX]]
    if len(tensors) > _DESCRIBED_MAX:
        listed.append(f"{len(tensors) - _DESCRIBED_MAX} more")
    noun = "tensor" if len(tensors) == 1 else "tensors"
    words = f"this rank passed the {noun} {', '.join(listed)}"
    return f"{words}; layouts and digests are hashes of dtypes and shapes"


def _describe_flat_tensor(tensor: torch.Tensor) -> str:
    """Returns dtype and shape of a tensor as its owner knows them. PyTorch hands a complex tensor
    over as a view of its pairs of real numbers."""
    words = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
    base = tensor._base
    is_pairs = tensor.dim() > 0 and (tensor.shape[-1], tensor.stride(-1)) == (2, 1)
    if base is not None and base.is_complex() and not tensor.is_complex() and is_pairs:
        return f"{base.dtype} of shape {tuple(tensor.shape[:-1])}, moved as {words}"
    return words


def split_flat_tensor_blocks(flat: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Returns the parts of a flat tensor that have these lengths, one behind the other."""
    return list(torch.split(flat, list(lengths)))


def flat_tensor_block_pieces(
    blocks: Sequence[torch.Tensor], step: int
) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Yields pieces of at most ``step`` elements of each of some flat tensors, with the place where
    they begin. A tensor that has ended gives empty pieces."""
    for begin in range(0, max((block.numel() for block in blocks), default=0), step):
        yield begin, [block[begin : begin + step] for block in blocks]


def _await_flat_tensor_device(tensor: torch.Tensor) -> None:
    """Waits until the device of a tensor has done everything that was asked of it."""
    if not tensor.is_cpu:
        torch.accelerator.synchronize(tensor.device)
