"""Copies between a device and host memory, on streams of their own.

A copy runs beside the device's other work. The thread that starts one waits for nothing; whoever
needs the elements waits for the event of that copy alone.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any

import torch

_log = logging.getLogger("landbridge")

#: 4 MiB: a copy out of a device goes in parts of this length, each with an event, so that the first
#: elements are sent while others still come. The length is chosen: a bus takes some 0.1 ms for it.
_PART_BYTES = 4 << 20


class DeviceCopies:
    """The copies out of one device and into it. Each direction has a stream, since devices copy
    both ways at once."""

    def __init__(self, device: torch.device) -> None:
        """Makes the streams. Raises a ``RuntimeError`` where the device has none."""
        self._device = device
        self._out, self._in = torch.Stream(device), torch.Stream(device)

    def note_given_work(self) -> Any:
        """Returns an event that comes when the device has done what this thread has given to its
        current stream so far."""
        return torch.accelerator.current_stream(self._device).record_event()

    def start_copy_out(self, source: torch.Tensor) -> tuple[torch.Tensor, list[tuple[int, Any]]]:
        """Starts to copy a tensor of one dimension to host memory, behind what this thread has
        given to the device. The caller keeps the tensor until the copy has ended.

        Returns:
            The host memory, and for each part in order its end and the event that comes when its
            elements are there.
        """
        given = self.note_given_work()
        host, parts = self.make_host_memory(source), []
        step = max(_PART_BYTES // source.element_size(), 1)
        with _on_device_stream(self._out):
            self._out.wait_event(given)
            for begin in range(0, source.numel(), step):
                end = min(begin + step, source.numel())
                host[begin:end].copy_(source[begin:end], non_blocking=True)
                parts.append((end, self._out.record_event()))
        return host, parts

    def start_copy_in(self, host: torch.Tensor, target: torch.Tensor, given: Any) -> Any:
        """Starts to copy host memory to a tensor once an event has come. Returns the event that
        comes when the elements are there. The caller keeps both until then."""
        with _on_device_stream(self._in):
            self._in.wait_event(given)
            target.copy_(host, non_blocking=True)
            return self._in.record_event()

    def make_host_memory(self, like: torch.Tensor) -> torch.Tensor:
        """Returns host memory for the elements of a tensor, which the device reaches by itself
        where that is possible."""
        count, dtype = like.numel(), like.dtype
        if count and _can_pin_host_memory(self._device.type):
            return torch.empty(count, dtype=dtype, device="cpu", pin_memory=True)
        return torch.empty(count, dtype=dtype, device="cpu")


@functools.lru_cache(maxsize=None)  # There are few devices, and their streams are kept.
def find_device_copies(device: torch.device) -> DeviceCopies:
    """Returns the copies of a device."""
    return DeviceCopies(device)


@functools.lru_cache(maxsize=None)
def _can_pin_host_memory(kind: str) -> bool:
    """Returns whether devices of a kind reach host memory by themselves. Tells the log if not."""
    try:
        torch.empty(1, device="cpu", pin_memory=True)
    except RuntimeError as error:
        _log.warning("copies of tensors on %s block the host: %s", kind, error)
        return False
    return True


@contextlib.contextmanager
def _on_device_stream(stream: torch.Stream) -> Iterator[None]:
    """Makes a stream the current one of this thread for a while. PyTorch's own context keeps its
    state in the stream, which several threads use here."""
    index = torch.accelerator.current_device_index()
    before = torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
        torch.accelerator.set_device_index(index)
