"""The memory that trainer and gateway share: a sealed memfd with every page present.

Making an arena touches every page, which takes 0.25 s or more for 256 MB. ``connect`` does so once,
so that no step waits for pages.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
import threading
import time
import weakref
from collections import deque
from typing import Any

from .._rounding import round_both, round_bytes
from ..errors import ArenaFull, ConfigError, LimitReached
from . import host_limits
from .allocator import SLOT_ALIGN_BYTES, SlotAllocator

#: The flag by which ``mmap`` allocates all pages of an arena before it returns. Python 3.9 lacks
#: the constant, whose value is equal on every supported architecture.
_MMAP_POPULATE_FLAG = getattr(mmap, "MAP_POPULATE", 0x8000)
#: 64 MiB: the pages that are allocated before the next look at the time. They take 0.25 s on a host
#: that allocates 1 GiB in 4 s.
_ALLOCATION_STEP_BYTES = 64 << 20
#: The seals of an arena's memory file (memfd), so that its size can never change while the gateway
#: maps it.
_MEMFD_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaSlot:
    """A slot of the arena in use. It is freed when ``memory`` and every array made of it are
    gone."""

    def __init__(self, memory: Any, offset: int, nbytes: int) -> None:
        """Makes the slot at ``offset`` of the arena, with ``nbytes`` bytes of ``memory``."""
        #: A ctypes array, of which arrays of any library are views.
        self.memory = memory
        #: Bytes from the start of the arena.
        self.offset = offset
        #: Length in bytes, without the padding to the next slot.
        self.nbytes = nbytes

    def view(self) -> memoryview:
        """Returns the bytes of the slot as a writable view, without the padding."""
        return memoryview(self.memory).cast("B")[: self.nbytes]


class Arena:
    """The shared memory of one rank, in slots. Any thread may call ``allocate_slot``."""

    def __init__(self, nbytes: int, deadline: float = math.inf) -> None:
        """Allocates the shared memory, whole, until ``deadline`` in seconds of ``time.monotonic``.

        Raises:
            ConfigError: The arena has no bytes.
            ArenaFull, LimitReached: A limit of the system leaves no room.
            ArenaFull: The deadline passed before every page was there.
        """
        if nbytes <= 0:
            raise ConfigError(f"arena of {nbytes} bytes: accepted: 1 byte or more")
        # Without this check the kernel would kill this process or others to find the pages.
        _check_arena_limits(nbytes)
        self.nbytes = nbytes
        self.fd = _create_arena_memfd()
        weakref.finalize(self, os.close, self.fd)
        try:
            os.ftruncate(self.fd, nbytes)
            # Allocated before it is mapped, so that a lack of memory is an error here and no signal
            # later.
            _allocate_arena_pages(self.fd, nbytes, deadline)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _MEMFD_SEALS)
            self._map = mmap.mmap(self.fd, nbytes, flags=mmap.MAP_SHARED | _MMAP_POPULATE_FLAG)
        except (OSError, OverflowError) as error:
            text = f"no memory for an arena of {round_bytes(nbytes)}: {error}"
            raise ArenaFull(f"{text}; connect with a smaller `arena`") from error
        start = ctypes.c_ubyte.from_buffer(self._map)
        self._start = ctypes.addressof(start)
        self._lock = threading.Lock()
        self._allocator = SlotAllocator(nbytes)
        # Offsets of slots whose arrays are gone. The garbage collector appends them at any moment
        # and in any thread, so it must not take the lock.
        self._returned: deque[int] = deque()

    def allocate_slot(self, nbytes: int) -> ArenaSlot | None:
        """Returns a new slot of ``nbytes`` bytes, or ``None`` when the arena has no room. The slot
        is free again once no array uses its memory."""
        with self._lock:
            self._free_returned_slots()
            offset = self._allocator.allocate_slot(nbytes)
        if offset is None:
            return None
        memory = (ctypes.c_ubyte * max(nbytes, 1)).from_buffer(self._map, offset)
        freed = weakref.finalize(memory, self._returned.append, offset)
        freed.atexit = False
        return ArenaSlot(memory, offset, nbytes)

    def offset_of(self, address: int, nbytes: int) -> int | None:
        """Returns the arena's offset of memory that can serve as a slot where it lies: inside the
        arena and aligned. Otherwise returns ``None``."""
        offset = address - self._start
        inside = offset >= 0 and offset + nbytes <= self.nbytes
        return offset if inside and offset % SLOT_ALIGN_BYTES == 0 else None

    def view(self) -> memoryview:
        """Returns all bytes as a writable view, for a connection that sends them."""
        return memoryview(self._map)

    @property
    def used_bytes(self) -> int:
        """The number of bytes in slots of the arena, with padding."""
        with self._lock:
            self._free_returned_slots()
            return self._allocator.used_bytes

    def reset_lock_after_fork(self) -> None:
        """Replaces the arena's lock in a forked process, where a thread that does not exist may
        hold the lock."""
        self._lock = threading.Lock()

    def _free_returned_slots(self) -> None:
        """Frees the slots whose arrays the garbage collector has collected. The caller holds the
        lock."""
        while self._returned:
            self._allocator.free_slot(self._returned.popleft())


def _allocate_arena_pages(fd: int, nbytes: int, deadline: float) -> None:
    """Allocates the pages of an arena, a step at a time. Raises ``ArenaFull`` once the deadline has
    passed, and ``OSError`` where there is no memory."""
    for offset in range(0, nbytes, _ALLOCATION_STEP_BYTES):
        if offset and time.monotonic() >= deadline:
            done, total = round_both(offset, nbytes)
            raise ArenaFull(
                f"{done} of an arena of {total} were allocated when the time was over; connect "
                "with a smaller `arena` or a longer `timeout`"
            )
        os.posix_fallocate(fd, offset, min(_ALLOCATION_STEP_BYTES, nbytes - offset))


def _check_arena_limits(nbytes: int) -> None:
    """Raises ``ArenaFull`` if a limit of the system leaves no room for an arena of ``nbytes``
    bytes."""
    limit = host_limits.tightest_host_limit()
    if limit is not None and nbytes > limit.arena_bytes:
        wanted, left = round_both(nbytes, limit.arena_bytes)
        raise ArenaFull(
            f"arena of {wanted}: only {left} are available by {limit.name}; {limit.remedy}, or "
            "connect with a smaller `arena`"
        )


def _create_arena_memfd() -> int:
    """Returns the descriptor of a new memfd. Raises ``LimitReached`` or ``ArenaFull``."""
    try:
        return os.memfd_create("landbridge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        text = f"no descriptor for an arena: {host_limits.describe_host_limit_error(error)}"
        if host_limits.is_host_descriptor_limit(error):
            raise LimitReached(text) from error
        raise ArenaFull(text) from error


def arena_ranges_overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Returns whether two ranges of bytes, each an offset and a length, share a byte."""
    return one[0] < other[0] + other[1] and other[0] < one[0] + one[1]
