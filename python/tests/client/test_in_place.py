"""Memory that the gateway may still read or write is not touched; docs/protocol.md section 5."""

import gc
import threading

import numpy
import pytest

import landbridge
from conftest import DEADLINE_S, call_for_all
from stand_in_gateway import free, lone_group, ready

ELEMENTS = 16
RESULT_BYTES = 4 * ELEMENTS


def filled_array(group, value):
    """Returns an array in the arena of the group with equal elements."""
    array = group.empty(ELEMENTS, "float32")
    array[:] = value
    return array


def write_result(gateway, post, value):
    """Writes the result of a post into its slot, as a gateway does."""
    slot = slice(post.result_offset, post.result_offset + RESULT_BYTES)
    gateway.memory[slot] = numpy.full(ELEMENTS, value, "float32").tobytes()


@pytest.mark.parametrize("overlapping", [lambda a: a, lambda a: a[::-1]])
def test_a_result_over_its_contribution_waits_for_free_memory(overlapping):
    """Until then the gateway may send the contribution again."""
    with lone_group() as (group, gateway):
        array, called = filled_array(group, 1), []
        out = overlapping(array)
        operation = group.all_reduce_async(array, "sum", out=out)
        operation.add_done_callback(lambda op: called.append(op.wait() is out))
        post = gateway.receive()
        write_result(gateway, post, 3)
        gateway.send(ready(post))
        with pytest.raises(landbridge.WaitTimeout):
            operation.wait(0.05)
        assert (array == 1).all() and not operation.is_ready() and not called
        gateway.send(free(post))
        assert operation.wait(DEADLINE_S) is out and called == [True]
        assert (array == 3).all() and operation.timing.ready_ns == 4


def test_a_missing_result_in_place_leaves_the_contribution_intact():
    with lone_group() as (group, gateway):
        array = filled_array(group, 1)
        operation = group.all_reduce_async(array, "sum", out=array)
        post = gateway.receive()
        write_result(gateway, post, 3)
        gateway.send(ready(post))
        gateway.shut_down()
        with pytest.raises(landbridge.GatewayLost):
            operation.wait(DEADLINE_S)
        assert (array == 1).all()


def test_a_result_beside_its_contribution_does_not_wait_for_that():
    with lone_group() as (group, gateway):
        array, out = filled_array(group, 1), filled_array(group, 0)
        operation = group.all_reduce_async(array, "sum", out=out)
        post = gateway.receive()
        write_result(gateway, post, 3)
        gateway.send(ready(post))
        assert operation.wait(DEADLINE_S) is out and not operation.is_free()
        gateway.send(free(post))
        operation.wait_free(DEADLINE_S)


def test_a_slot_that_is_still_a_result_is_not_contributed():
    """The gateway would end the connection."""
    with lone_group() as (group, gateway):
        first, out = filled_array(group, 1), filled_array(group, 0)
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
        first, out, last = (filled_array(group, 1) for _ in range(3))
        for _ in range(20):
            group.all_reduce_async(first, "sum", out=out)
            group.all_reduce_async(out, "sum", out=last)
        group.all_reduce(last, "sum", out=last)
        return last[0]

    assert call_for_all(groups, step) == [27] * 3


@pytest.mark.parametrize("post_one", ["all_reduce", "reduce", "broadcast"])
@pytest.mark.parametrize("arena_has", ["both", "contribution", "result", "neither"])
def test_a_call_returns_when_its_arena_arrays_are_writable(post_one, arena_has):
    """A caller has no operation to wait for. Arrays outside the arena were copied."""
    with lone_group() as (group, gateway):
        plain = numpy.ones(ELEMENTS, "float32")
        array = filled_array(group, 1) if arena_has in ("both", "contribution") else plain
        out = filled_array(group, 0) if arena_has in ("both", "result") else plain.copy()
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
    with lone_group() as (group, gateway):
        ones = numpy.ones(ELEMENTS, "float32")
        lost = group.all_reduce_async(ones, "sum")
        post = gateway.receive()
        group._state.end_connection(group._state.connection, "for this test")
        lost.wait_free(DEADLINE_S)
        del lost
        gc.collect()
        before = bytes(gateway.memory)
        with pytest.raises(landbridge.GatewayLost):
            group.all_reduce_async(ones * 5, "sum")
        assert bytes(gateway.memory) == before
        assert ones.tobytes() in before[post.contribution_offset :]
