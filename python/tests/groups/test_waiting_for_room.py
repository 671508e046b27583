"""Calls that wait for room: other threads of the rank go on, and each keeps to its own timeout."""

import threading
import time
import types

import numpy
import pytest

import landbridge
from conftest import DEADLINE_S, attached_groups, call_for_all, wait_until
from landbridge._group import collective_poster
from landbridge._group.collective_poster import POSTS_MAX
from landbridge._group.group_state import STORE_CALLS_MAX, STORE_WAITS_MAX
from landbridge._local_regions import LocalRegions
from landbridge._operations.store_operation import StoreOperation
from landbridge._protocol.wire import EpochAwaited
from stand_in_gateway import free, lone_group, ready


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
    with pytest.raises(
        landbridge.StoreTimeout, match="at most 112 that wait for keys; .*nothing was sent"
    ):
        first.store.wait(["another"], 0.5)
    assert sum_of_ones(two_groups) == [2.0, 2.0]
    first.store.set("key", "value")
    for thread in waits:
        thread.join(DEADLINE_S)
    assert time.monotonic() - begun < DEADLINE_S
    assert len(released) == STORE_CALLS_MAX + 10


def test_only_requests_that_wait_count_against_their_limit():
    with lone_group() as (group, _):
        state = group._state

        def register(count, may_wait):
            for _ in range(count):
                assert state.has_store_room(may_wait)
                state.register_store_call(StoreOperation(group, may_wait))

        register(STORE_CALLS_MAX - STORE_WAITS_MAX - 1, may_wait=False)
        register(STORE_WAITS_MAX, may_wait=True)
        assert not state.has_store_room(may_wait=True)
        register(1, may_wait=False)
        assert not state.has_store_room(may_wait=False)


def test_the_wait_for_room_is_part_of_the_timeout(monkeypatch):
    passed_s = [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s[0])
    monkeypatch.setattr(collective_poster, "time", clock)
    with lone_group() as (group, gateway):
        # Contribution and result leave no room for another pair of them in 64 KiB.
        first = group.all_reduce_async(numpy.ones(3000), timeout=30)
        post = gateway.receive()
        assert 29e9 < post.timeout_ns <= 30e9
        results = []
        (waiting,) = in_threads(
            1, lambda _: results.append(group.all_reduce(numpy.ones(3000), timeout=30))
        )
        wait_until(lambda: group._state._waiting)
        passed_s[0] = 20.0
        gateway.send(ready(post), free(post))
        first.wait()
        del first
        # Its memory is free once nobody has the result.
        gateway.send(EpochAwaited("nothing"))
        second = gateway.receive()
        assert 9e9 < second.timeout_ns <= 10e9
        gateway.send(ready(second), free(second))
        waiting.join(DEADLINE_S)
        assert len(results) == 1


def test_posts_that_wait_delay_no_other_request(two_groups):
    first, second = two_groups
    subgroups = call_for_all(two_groups, lambda group: group.new_group([0, 1]))
    # Posts of all groups of a rank count together.
    posted = [subgroups[0].barrier_async() for _ in range(3)]
    count = POSTS_MAX - len(posted)
    received = [first.receive_async(numpy.zeros(1), 1, tag=at % 7) for at in range(count)]
    failures = []

    def post_in_both_groups(at):
        with pytest.raises(landbridge.PostTimedOut, match="256 .*nothing was posted") as raised:
            if at == 0:
                first.receive_async(numpy.zeros(1), 1, timeout=3)
            else:
                subgroups[0].all_reduce(numpy.ones(1), timeout=3)
        failures.append(raised.value)

    threads = in_threads(2, post_in_both_groups)
    wait_until(lambda: first._pairs[1]._waiting and subgroups[0]._state._waiting)
    assert first.store.add("count", 1) == 1, "the store does not wait for room"
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(failures) == 2
    (waiting,) = in_threads(1, lambda _: failures.append(subgroups[0].all_reduce(numpy.ones(1))))
    wait_until(lambda: subgroups[0]._state._waiting)
    for _ in posted:
        subgroups[1].barrier()
    for operation in posted:
        operation.wait()
    # The room of the barriers suffices, while all receives are under way.
    assert subgroups[1].all_reduce(numpy.full(1, 3.0))[0] == 2.0
    waiting.join(DEADLINE_S)
    assert failures[2][0] == 2.0
    for at in range(count):
        second.send(numpy.full(1, float(at)), 0, tag=at % 7)
    assert [operation.wait()[0] for operation in received] == list(range(count))
    assert sum_of_ones(two_groups) == [2.0, 2.0]


def test_a_wait_for_the_arena_ends_with_its_timeout():
    with LocalRegions(ranks=(1, 1)) as running, attached_groups(running, "64 KiB") as groups:
        first, second = groups
        large = numpy.arange(6000.0)
        # Its result has no room beside it, and its contribution stays until the other rank comes.
        sent = first.send_async(large, 1)
        words = "no room for .*nothing was posted, .*no other rank .*a larger `arena`"
        with pytest.raises(landbridge.PostTimedOut, match=words) as raised:
            first.all_reduce(numpy.ones(4000), "sum", timeout=0.5)
        failure = raised.value
        assert (failure.code, failure.fault) == (0, "caller")
        assert isinstance(failure, TimeoutError)
        assert not isinstance(failure, landbridge.RanksTimedOut), "no rank was waited for"
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
