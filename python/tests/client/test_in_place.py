"""Memory that the gateway may still read or write is not touched; docs/protocol.md section 5."""

import gc
import threading

import numpy
import pytest

import landbridge
from conftest import DEADLINE_S, on_all
from stand_in_gateway import alone, free, ready

COUNT = 16
NBYTES = 4 * COUNT


def array_of(group, value):
    array = group.empty(COUNT, "float32")
    array[:] = value
    return array


def put_result(gateway, post, value):
    slot = slice(post.result_offset, post.result_offset + NBYTES)
    gateway.memory[slot] = numpy.full(COUNT, value, "float32").tobytes()


@pytest.mark.parametrize("overlapping", [lambda a: a, lambda a: a[::-1]])
def test_a_result_over_its_contribution_waits_for_free_memory(overlapping):
    """Until then the gateway may send the contribution again."""
    with alone() as (group, gateway):
        array, called = array_of(group, 1), []
        out = overlapping(array)
        operation = group.all_reduce_async(array, "sum", out=out)
        operation.add_done_callback(lambda op: called.append(op.wait() is out))
        post = gateway.receive()
        put_result(gateway, post, 3)
        gateway.send(ready(post))
        with pytest.raises(landbridge.WaitTimeout):
            operation.wait(0.05)
        assert (array == 1).all() and not operation.is_ready() and not called
        gateway.send(free(post))
        assert operation.wait(DEADLINE_S) is out and called == [True]
        assert (array == 3).all() and operation.timing.ready_ns == 4


def test_a_missing_result_in_place_leaves_the_contribution_intact():
    with alone() as (group, gateway):
        array = array_of(group, 1)
        operation = group.all_reduce_async(array, "sum", out=array)
        post = gateway.receive()
        put_result(gateway, post, 3)
        gateway.send(ready(post))
        gateway.shut_down()
        with pytest.raises(landbridge.GatewayLost):
            operation.wait(DEADLINE_S)
        assert (array == 1).all()


def test_a_result_beside_its_contribution_does_not_wait_for_that():
    with alone() as (group, gateway):
        array, out = array_of(group, 1), array_of(group, 0)
        operation = group.all_reduce_async(array, "sum", out=out)
        post = gateway.receive()
        put_result(gateway, post, 3)
        gateway.send(ready(post))
        assert operation.wait(DEADLINE_S) is out and not operation.is_free()
        gateway.send(free(post))
        operation.wait_free(DEADLINE_S)


def test_a_slot_that_is_still_a_result_is_not_contributed():
    """The gateway would end the connection."""
    with alone() as (group, gateway):
        first, out = array_of(group, 1), array_of(group, 0)
        group.all_reduce_async(first, "sum", out=out)
        post = gateway.receive()
        gateway.send(ready(post))
        second = threading.Thread(target=group.all_reduce_async, args=(out, "sum"))
        second.start()
        assert not gateway.has_request()
        gateway.send(free(post))
        assert gateway.receive().contribution_offset == post.result_offset
        second.join(DEADLINE_S)


def test_a_result_may_be_contributed_next(groups):
    def step(group):
        first, out, last = (array_of(group, 1) for _ in range(3))
        for _ in range(20):
            group.all_reduce_async(first, "sum", out=out)
            group.all_reduce_async(out, "sum", out=last)
        group.all_reduce(last, "sum", out=last)
        return last[0]

    assert on_all(groups, step) == [27] * 3


@pytest.mark.parametrize("post_one", ["all_reduce", "reduce", "broadcast"])
@pytest.mark.parametrize("arena_has", ["both", "contribution", "result", "neither"])
def test_a_call_returns_when_its_arena_arrays_are_writable(post_one, arena_has):
    """It returns nothing that could be asked for that; arrays elsewhere were copied."""
    with alone() as (group, gateway):
        plain = numpy.ones(COUNT, "float32")
        array = array_of(group, 1) if arena_has in ("both", "contribution") else plain
        out = array_of(group, 0) if arena_has in ("both", "result") else plain.copy()
        returned = threading.Event()

        def call():
            getattr(group, post_one)(array, out=out)
            returned.set()

        caller = threading.Thread(target=call)
        caller.start()
        post = gateway.receive()
        gateway.send(ready(post))
        assert returned.wait(0.05 if arena_has != "neither" else DEADLINE_S) == (
            arena_has == "neither"
        )
        gateway.send(free(post))
        assert returned.wait(DEADLINE_S)
        caller.join(DEADLINE_S)


def test_the_next_post_spares_memory_of_a_lost_gateway():
    with alone() as (group, gateway):
        ones = numpy.ones(COUNT, "float32")
        lost = group.all_reduce_async(ones, "sum")
        post = gateway.receive()
        group._state.end(group._state.connection, "for this test")
        lost.wait_free(DEADLINE_S)
        del lost
        gc.collect()
        before = bytes(gateway.memory)
        with pytest.raises(landbridge.GatewayLost):
            group.all_reduce_async(ones * 5, "sum")
        assert bytes(gateway.memory) == before
        assert ones.tobytes() in before[post.contribution_offset :]
