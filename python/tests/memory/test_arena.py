"""Allocator and the arena."""

import ctypes
import fcntl
import gc
import os
import random

import pytest

from landbridge import errors
from landbridge._memory.allocator import ALIGN_BYTES, Allocator
from landbridge._memory.arena import Arena


def test_slots_never_overlap_and_all_room_comes_back():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(300):
        slots, live = Allocator(8192), {}
        for _ in range(rng.randrange(80)):
            nbytes = rng.choice([0, 1, 64, 65, rng.randrange(2000)])
            offset = slots.take(nbytes)
            if offset is not None:
                assert offset % ALIGN_BYTES == 0 and offset + nbytes <= 8192
                for start, length in live.items():
                    assert offset + max(nbytes, 1) <= start or start + max(length, 1) <= offset
                live[offset] = nbytes
            if live and rng.random() < 0.4:
                freed = rng.choice(list(live))
                del live[freed]
                slots.free(freed)
        for offset in live:
            slots.free(offset)
        assert slots.used_bytes == 0
        assert slots.take(8192) == 0
        assert slots.take(1) is None


def test_the_memfd_is_what_a_gateway_accepts():
    arena = Arena(1 << 20)
    seals = fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_SHRINK and seals & fcntl.F_SEAL_GROW
    # The first hole is past the end: every page is there.
    assert os.lseek(arena.fd, 0, os.SEEK_HOLE) == 1 << 20
    with pytest.raises(OSError):
        os.ftruncate(arena.fd, 4096)


def test_the_first_use_of_a_page_costs_no_more():
    """Pages are there and mapped before the first step, so that it causes no faults."""
    arena = Arena(64 << 20)
    block = arena.take(64 << 20)
    before = minor_faults()
    ctypes.memset(block.memory, 1, 64 << 20)
    assert minor_faults() - before < 1000, "of 16,384 pages"


def minor_faults():
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_a_slot_is_freed_with_its_last_view():
    arena = Arena(4096)
    block = arena.take(4000)
    view = block.view()[10:20]
    del block
    gc.collect()
    assert arena.take(4000) is None
    del view
    assert arena.take(4000) is not None


def test_memory_outlives_its_arena():
    block = Arena(4096).take(100)
    gc.collect()
    view = block.view()
    view[:] = b"x" * 100
    assert bytes(view) == b"x" * 100


def test_arenas_leave_no_descriptors():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        Arena(4096).take(10)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_places_are_told_by_address():
    arena = Arena(4096)
    block = arena.take(256)
    address = ctypes.addressof(block.memory)
    assert arena.offset_of(address, 256) == block.offset
    assert arena.offset_of(address + 64, 192) == block.offset + 64
    assert arena.offset_of(address + 4, 100) is None, "no multiple of 64"
    assert arena.offset_of(address, 5000) is None, "reaches beyond the arena"
    assert arena.offset_of(ctypes.addressof(ctypes.create_string_buffer(64)), 64) is None


@pytest.mark.parametrize("nbytes", [0, -1])
def test_an_arena_of_nothing_is_refused(nbytes):
    with pytest.raises(errors.ConfigError):
        Arena(nbytes)


def test_more_memory_than_available_is_never_requested(monkeypatch):
    """It would kill other processes for it. Were it asked all the same, this would be told."""
    asked = []
    monkeypatch.setattr(os, "posix_fallocate", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(os, "memfd_create", lambda *arguments: asked.append(arguments))
    with pytest.raises(errors.ArenaFull, match="are available"):
        Arena(1 << 50)
    assert asked == []
