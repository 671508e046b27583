"""Calls that wait for room: other threads of the rank go on, and each keeps to its own timeout."""

import threading
import time

import numpy
import pytest

import landbridge
from conftest import DEADLINE_S, attached_groups, call_for_all, wait_until
from landbridge._group.collective_poster import POSTS_MAX
from landbridge._group.group_state import STORE_CALLS_MAX, STORE_WAITS_MAX
from landbridge._local_regions import LocalRegions


def in_threads(count, function):
    """Calls a function with each number below `count`, each in a thread of its own."""
    threads = [threading.Thread(target=function, args=(at,), daemon=True) for at in range(count)]
    for thread in threads:
        thread.start()
    return threads


def sum_of_ones(groups):
    """Returns the sums of an all-reduce with a short timeout."""
    return call_for_all(groups, lambda group: group.all_reduce(numpy.ones(2), "sum", timeout=10)[0])


def test_waits_for_keys_delay_neither_changes_nor_collectives(two_groups):
    first = two_groups[0]
    released = []

    def wait_for_key(at):
        first.store.wait(["key"], 60)
        released.append(at)

    waits = in_threads(STORE_CALLS_MAX + 10, wait_for_key)
    wait_until(lambda: len(first._state.store_calls) >= STORE_WAITS_MAX)
    begun = time.monotonic()
    with pytest.raises(landbridge.StoreTimeout, match="128 requests of this rank"):
        first.store.wait(["another"], 0.5)
    assert sum_of_ones(two_groups) == [2.0, 2.0]
    first.store.set("key", "value")
    for thread in waits:
        thread.join(DEADLINE_S)
    assert time.monotonic() - begun < DEADLINE_S
    assert len(released) == STORE_CALLS_MAX + 10


def test_posts_that_wait_delay_no_other_request(two_groups):
    first, second = two_groups
    subgroup = first.new_group([0], tag=1)
    posted = [subgroup.barrier_async() for _ in range(3)]
    for operation in posted:
        operation.wait()
    received = [first.receive_async(numpy.zeros(1), 1, tag=at % 7) for at in range(POSTS_MAX)]
    failures = []

    def post_another(_):
        with pytest.raises(landbridge.RanksTimedOut, match="256 .*nothing was") as raised:
            first.receive_async(numpy.zeros(1), 1, timeout=3)
        failures.append(raised.value)

    (waiting,) = in_threads(1, post_another)
    wait_until(lambda: first._pairs[1]._waiting)
    assert first.store.add("count", 1) == 1, "the store does not wait for room"
    waiting.join(DEADLINE_S)
    assert len(failures) == 1
    for at in range(POSTS_MAX):
        second.send(numpy.full(1, float(at)), 0, tag=at % 7)
    assert [operation.wait()[0] for operation in received] == list(range(POSTS_MAX))
    assert sum_of_ones(two_groups) == [2.0, 2.0]


def test_a_wait_for_the_arena_ends_with_its_timeout():
    with LocalRegions(ranks=(1, 1)) as running, attached_groups(running, "64 KiB") as groups:
        first, second = groups
        large = numpy.arange(6000.0)
        # Its result has no room beside it, and its contribution stays until the other rank comes.
        sent = first.send_async(large, 1)
        with pytest.raises(landbridge.RanksTimedOut, match="no room for .*nothing was posted"):
            first.all_reduce(numpy.ones(4000), "sum", timeout=0.5)
        assert first.store.add("count", 1) == 1
        assert second.receive(numpy.zeros(6000), 0)[5999] == 5999.0
        sent.wait_free()
        assert sum_of_ones(groups) == [2.0, 2.0]


def test_a_send_after_an_epoch_waits_for_the_next(two_groups):
    def use_all_tags(group):
        """Uses as many tags as the two may have in a direction."""
        for tag in range(1024):
            if group.rank == 0:
                group.send(numpy.ones(1), 1, tag, timeout=30)
            else:
                group.receive(numpy.zeros(1), 0, tag, timeout=30)

    call_for_all(two_groups, use_all_tags)
    other_end = two_groups[1]._pairs[0]
    ended = other_end.epoch
    with pytest.raises(landbridge.EpochEnded, match="more than 1024 tags"):
        two_groups[0].send(numpy.ones(1), 1, 1024, timeout=30)
    for value in range(3):

        def exchange(group, value=value):
            if group.rank == 0:
                return group.send(numpy.full(1, float(value)), 1, timeout=30)
            # Its gateway hears later that the epoch has ended.
            wait_until(lambda: other_end.epoch > ended)
            return group.receive(numpy.zeros(1), 0, timeout=30)[0]

        assert call_for_all(two_groups, exchange) == [None, value]
