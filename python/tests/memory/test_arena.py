"""The allocator of slots, and the arena."""

import ctypes
import fcntl
import gc
import os
import random
import time

import pytest

from landbridge import errors
from landbridge._memory.allocator import SLOT_ALIGN_BYTES, SlotAllocator
from landbridge._memory.arena import Arena


def test_slots_never_overlap_and_all_room_comes_back():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(300):
        slots, live = SlotAllocator(8192), {}
        for _ in range(rng.randrange(80)):
            nbytes = rng.choice([0, 1, 64, 65, rng.randrange(2000)])
            offset = slots.allocate_slot(nbytes)
            if offset is not None:
                assert offset % SLOT_ALIGN_BYTES == 0 and offset + nbytes <= 8192
                for start, length in live.items():
                    assert offset + max(nbytes, 1) <= start or start + max(length, 1) <= offset
                live[offset] = nbytes
            if live and rng.random() < 0.4:
                freed = rng.choice(list(live))
                del live[freed]
                slots.free_slot(freed)
        for offset in live:
            slots.free_slot(offset)
        assert slots.used_bytes == 0
        assert slots.allocate_slot(8192) == 0
        assert slots.allocate_slot(1) is None


def test_the_memfd_is_what_a_gateway_accepts():
    arena = Arena(1 << 20)
    seals = fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_SHRINK and seals & fcntl.F_SEAL_GROW
    # The first hole is past the end, so every page is present.
    assert os.lseek(arena.fd, 0, os.SEEK_HOLE) == 1 << 20
    with pytest.raises(OSError):
        os.ftruncate(arena.fd, 4096)


def test_the_first_use_of_a_page_costs_no_more():
    """Pages are present and mapped before the first step, so that it causes no page faults."""
    arena = Arena(64 << 20)
    slot = arena.allocate_slot(64 << 20)
    before = minor_faults()
    ctypes.memset(slot.memory, 1, 64 << 20)
    assert minor_faults() - before < 1000, "of 16,384 pages"


def minor_faults():
    """Returns the number of page faults of this process that needed no disk."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_a_slot_is_freed_with_its_last_view():
    arena = Arena(4096)
    slot = arena.allocate_slot(4000)
    view = slot.view()[10:20]
    del slot
    gc.collect()
    assert arena.allocate_slot(4000) is None
    del view
    assert arena.allocate_slot(4000) is not None


def test_memory_outlives_its_arena():
    slot = Arena(4096).allocate_slot(100)
    gc.collect()
    view = slot.view()
    view[:] = b"x" * 100
    assert bytes(view) == b"x" * 100


def test_arenas_leave_no_descriptors():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        Arena(4096).allocate_slot(10)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_slots_are_found_by_their_address():
    arena = Arena(4096)
    slot = arena.allocate_slot(256)
    address = ctypes.addressof(slot.memory)
    assert arena.offset_of(address, 256) == slot.offset
    assert arena.offset_of(address + 64, 192) == slot.offset + 64
    assert arena.offset_of(address + 4, 100) is None, "no multiple of 64"
    assert arena.offset_of(address, 5000) is None, "reaches beyond the arena"
    assert arena.offset_of(ctypes.addressof(ctypes.create_string_buffer(64)), 64) is None


@pytest.mark.parametrize("nbytes", [0, -1])
def test_an_arena_of_nothing_is_refused(nbytes):
    with pytest.raises(errors.ConfigError):
        Arena(nbytes)


def test_an_arena_that_takes_longer_than_its_time_is_refused():
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(errors.ArenaFull, match="64 MiB of an arena of 192 MiB were allocated"):
        Arena(192 << 20, time.monotonic())
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_more_memory_than_available_is_never_requested(monkeypatch):
    """The kernel would kill other processes for the memory. The test makes no such request."""
    requests = []
    monkeypatch.setattr(os, "posix_fallocate", lambda *arguments: requests.append(arguments))
    monkeypatch.setattr(os, "memfd_create", lambda *arguments: requests.append(arguments))
    with pytest.raises(errors.ArenaFull, match="are available"):
        Arena(1 << 50)
    assert requests == []
