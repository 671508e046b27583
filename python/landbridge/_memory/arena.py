"""Memory that the gateway maps too: a sealed memfd with every page present.

Making it touches every page, which costs a quarter of a second for 256 MB or more; attaching
pays that once, so that no step does.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
import weakref
from collections import deque
from typing import Any, Deque, Optional, Tuple

from ..errors import ArenaFull, ConfigError
from .allocator import ALIGN_BYTES, Slots

# Not in `mmap` before Python 3.10; the number is the same on every architecture supported.
_MAP_POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Block:
    """A slot in use. It is free again when ``memory`` and every array made of it are gone."""

    def __init__(self, memory: Any, offset: int, nbytes: int) -> None:
        #: A ctypes array: what arrays of any library are views of.
        self.memory = memory
        #: From the arena's start.
        self.offset = offset
        #: Without the padding to the next slot.
        self.nbytes = nbytes

    def view(self) -> memoryview:
        """Its bytes."""
        return memoryview(self.memory).cast("B")[: self.nbytes]


class Arena:
    """See the module. ``take`` may be called from any thread."""

    def __init__(self, nbytes: int) -> None:
        if nbytes <= 0:
            raise ConfigError(f"an arena of {nbytes} bytes is not possible")
        available = _available_bytes()
        if nbytes > available:
            # The kernel would look for the pages until it has killed other processes.
            raise ArenaFull(
                f"an arena of {nbytes} bytes: {available} bytes of memory are available"
            )
        self.nbytes = nbytes
        self.fd = os.memfd_create("landbridge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.fd)
        try:
            os.ftruncate(self.fd, nbytes)
            # Before it is mapped, so that a lack of memory is an error here, no signal later.
            os.posix_fallocate(self.fd, 0, nbytes)
        except OSError as error:
            raise ArenaFull(f"no memory for an arena of {nbytes} bytes: {error}") from error
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        self._map = mmap.mmap(self.fd, nbytes, flags=mmap.MAP_SHARED | _MAP_POPULATE)
        start = ctypes.c_ubyte.from_buffer(self._map)
        self._start = ctypes.addressof(start)
        self._lock = threading.Lock()
        self._slots = Slots(nbytes)
        # Slots are given back by the garbage collector, at any moment and in any thread, so
        # that it must not take the lock.
        self._given: Deque[int] = deque()

    def take(self, nbytes: int) -> Optional[Block]:
        """A slot, or ``None`` when there is no room."""
        with self._lock:
            self._take_back()
            offset = self._slots.take(nbytes)
        if offset is None:
            return None
        memory = (ctypes.c_ubyte * max(nbytes, 1)).from_buffer(self._map, offset)
        freed = weakref.finalize(memory, self._given.append, offset)
        freed.atexit = False
        return Block(memory, offset, nbytes)

    def place_of(self, address: int, nbytes: int) -> Optional[int]:
        """The offset of memory that can be a slot as it lies, or ``None``."""
        offset = address - self._start
        inside = offset >= 0 and offset + nbytes <= self.nbytes
        return offset if inside and offset % ALIGN_BYTES == 0 else None

    @property
    def used_bytes(self) -> int:
        """Bytes in slots."""
        with self._lock:
            self._take_back()
            return self._slots.used_bytes

    def after_fork(self) -> None:
        """In a forked process: the lock may have been held by a thread that is not there."""
        self._lock = threading.Lock()

    def _take_back(self) -> None:
        while self._given:
            self._slots.give(self._given.popleft())


def _available_bytes() -> int:
    """What can be had without taking it from others, by the kernel's own estimate."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise ArenaFull("the kernel does not say how much memory is available")


def overlap(one: Tuple[int, int], other: Tuple[int, int]) -> bool:
    """Whether two (offset, length) share a byte."""
    return one[0] < other[0] + other[1] and other[0] < one[0] + one[1]
