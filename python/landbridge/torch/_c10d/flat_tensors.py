"""Tensors as collectives take them: one dimension, contiguous, on the CPU.

``collectives`` makes them in the thread that calls c10d, so that copies from a device follow that
thread's stream. A tensor on a device is staged through host memory. That thread does not wait for
the copies: those that post and finish collectives do.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..._memory.plain_memory import (
    check_plain_memory,
    check_plain_memory_disjoint,
    copyable_plain_memory,
)
from .._device_copies import find_device_copies

#: 8 tensors: an error lists at most so many of one call, so that it stays readable. Of further
#: tensors it says only how many there are.
_DESCRIBED_MAX = 8


class FlatTensor:
    """A tensor as elements in one dimension on the CPU: its own memory where that is possible, else
    a copy.

    Attributes:
        tensor: The tensor itself.
    """

    def __init__(
        self, tensor: torch.Tensor, *, is_read: bool = False, is_written: bool = False
    ) -> None:
        """Notes the tensor, and begins to copy its elements if its own memory cannot serve.

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
        # How many elements have come from a device; the parts that follow, each with its end and
        # its event; and the tensor that must live until they have come.
        self._landed = 0
        self._parts: collections.deque[tuple[int, Any]] = collections.deque()
        self._copied: torch.Tensor | None = None
        # How many elements of the result go to a device already, and the event after them.
        self._returned, self._arrival = 0, None
        plain = self.tensor
        self._is_own_memory = plain.is_cpu and plain.is_contiguous()
        if self._is_own_memory:
            self._flat = plain.view(-1)
        elif is_read:
            resolved = copyable_plain_memory(torch, plain.resolve_conj().resolve_neg())
            self._flat = self._start_copy(resolved.contiguous().view(-1)).view(plain.dtype)
        elif plain.is_cpu:
            self._flat = torch.empty(plain.numel(), dtype=plain.dtype)
        else:
            self._flat = find_device_copies(plain.device).make_host_memory(plain)
        if is_written and not plain.is_cpu:
            # Kernels that read the old elements must end before others are written.
            self._given = find_device_copies(plain.device).note_given_work()

    @property
    def flat(self) -> torch.Tensor:
        """The elements in one dimension, once those that the collective reads are there."""
        return self.piece(0, self.tensor.numel())

    def piece(self, begin: int, end: int) -> torch.Tensor:
        """Returns some of the elements, once those that the collective reads are there."""
        while self._landed < end and self._parts:
            self._landed, event = self._parts.popleft()
            event.synchronize()
        if not self._parts:
            self._copied = None
        return self._flat[begin:end]

    def multiply(self, factor: Any) -> None:
        """Multiplies what the collective reads. The tensor itself changes only where it gets the
        result. Waits for a copy from a device."""
        if self._is_own_memory and not self._is_written:
            self._flat = self._flat * factor
        else:
            self.flat.mul_(factor)

    def start_copy_back(self, begin: int, end: int) -> None:
        """Starts to copy some elements of the result to a tensor on a device, behind those before
        them. What is not started so, ``copy_back`` copies."""
        target = self.tensor
        can_start = begin == self._returned and target.is_contiguous()
        if self._is_written and not target.is_cpu and can_start:
            self._start_copy_in(self._flat[begin:end], target.view(-1)[begin:end])
            self._returned = end

    def copy_back(self) -> None:
        """Copies the elements to the tensor if it is to be written, and waits until they are
        there."""
        if self._is_own_memory or not self._is_written:
            return
        if self.tensor.is_cpu:
            with torch.inference_mode(self.tensor.is_inference()):
                result = copyable_plain_memory(torch, self._flat.view(self.tensor.shape))
                copyable_plain_memory(torch, self.tensor).copy_(result)
        elif self._returned < self.tensor.numel():
            self._start_copy_in(self._flat.view(self.tensor.shape), self.tensor)
        self.await_copies_back()

    def await_copies_back(self) -> None:
        """Waits until nothing more is written to a tensor on a device."""
        # Nobody else knows of the stream, so the tensor must not be freed before.
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            arrival.synchronize()

    def _start_copy_in(self, result: torch.Tensor, target: torch.Tensor) -> None:
        """Starts to copy a result to a tensor on a device."""
        with torch.inference_mode(self.tensor.is_inference()):
            self._arrival = find_device_copies(target.device).start_copy_in(
                copyable_plain_memory(torch, result),
                copyable_plain_memory(torch, target),
                self._given,
            )

    def _start_copy(self, elements: torch.Tensor) -> torch.Tensor:
        """Returns contiguous elements in host memory: themselves, or what a copy from a device will
        bring."""
        if elements.is_cpu:
            return elements
        copies = find_device_copies(elements.device)
        host, parts = copies.start_copy_out(elements)
        self._parts.extend(parts)
        self._copied = elements
        return host


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
