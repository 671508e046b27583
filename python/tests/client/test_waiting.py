"""Reading from the gateway: by a thread that waits, or else by the reader thread."""

import random
import threading
import time
from types import SimpleNamespace

import numpy
import pytest

import landbridge
from conftest import DEADLINE_S, attached_groups, call_for_all, post_unread
from landbridge import _protocol
from landbridge._local_regions import LocalRegions
from landbridge._operations.operation import OperationDelivery
from landbridge._operations.waiting import thread_state
from stand_in_gateway import free, lone_group, ready

ONES = numpy.ones(256, "float32")


def test_a_caller_that_waits_reads_messages_itself():
    with LocalRegions(ranks=(1,)) as regions, attached_groups(regions) as (group,):
        connection, readers = group._state.connection, []
        read_once = connection._read_once
        connection._read_once = lambda: readers.append(threading.current_thread()) or read_once()
        for _ in range(100):
            group.all_reduce(ONES)
        # The reader thread reads now and then, more often on a busy machine.
        assert readers.count(threading.current_thread()) >= 50


def test_a_collective_that_nobody_waits_for_is_heard_of(groups):
    def step(group):
        done = threading.Event()
        group.all_reduce_async(ONES, "sum").add_done_callback(lambda _: done.set())
        return done.wait(DEADLINE_S)

    assert call_for_all(groups, step) == [True] * 3


def test_threads_that_wait_at_once_all_get_theirs(groups):
    """Each thread reads for the others, and leaves when it has its own result."""
    rounds, seed = 60, random.randrange(1 << 32)
    print(f"seed {seed}")

    def step(group):
        pending, done = [], []
        ready = threading.Condition()

        def wait_for_some(number):
            chance = random.Random(seed + number)
            while True:
                with ready:
                    ready.wait_for(lambda: pending or len(done) == rounds, DEADLINE_S)
                    if not pending:
                        return
                    operation = pending.pop(chance.randrange(len(pending)))
                value = operation.wait(DEADLINE_S)[0]
                with ready:
                    done.append(value)
                    ready.notify_all()

        threads = [threading.Thread(target=wait_for_some, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for number in range(rounds):
            operation = group.all_reduce_async(ONES * number, "max")
            with ready:
                pending.append(operation)
                ready.notify_all()
            if number % 5 == 0:
                time.sleep(0.001)
        for thread in threads:
            thread.join(DEADLINE_S)
        return sorted(done)

    assert call_for_all(groups, step) == [list(range(rounds))] * 3


def test_a_timeout_ends_a_wait_that_reads(groups):
    operation = groups[0].all_reduce_async(ONES, "sum")
    begun = time.monotonic()
    with pytest.raises(landbridge.WaitTimeout):
        operation.wait(0.2)
    assert time.monotonic() - begun < DEADLINE_S / 2
    assert call_for_all(groups[1:], lambda group: group.all_reduce(ONES, "sum")[0]) == [3, 3]
    assert operation.wait(DEADLINE_S)[0] == 3


def test_a_wait_interrupted_in_mid_message_ends_the_connection(monkeypatch):
    """The place of the interruption is unknown, so the connection must not be used again."""
    # Keeps the reader thread from reading the message that the wait should read.
    monkeypatch.setattr(_protocol.connection, "_IDLE_READ_DELAY_S", 2.0)
    with LocalRegions(ranks=(1,)) as regions, attached_groups(regions) as (group,):

        def interrupt(_):
            raise KeyboardInterrupt

        (operation,) = post_unread(group, lambda: group.all_reduce_async(ONES))
        operation.add_done_callback(interrupt)
        with pytest.raises(KeyboardInterrupt):
            operation.wait()
        with pytest.raises(landbridge.GatewayLost, match="interrupted") as lost:
            group.all_reduce(ONES)
        group.recover(lost.value)
        assert group.all_reduce(ONES)[0] == 1


def test_messages_are_read_while_nothing_is_under_way():
    with LocalRegions(ranks=(1,)) as regions, attached_groups(regions) as (group,):
        group.all_reduce(ONES)
        time.sleep(0.3)  # The reader thread sleeps after that.
        regions.kill_process("east")
        deadline = time.monotonic() + DEADLINE_S
        while group._state.ended is None:
            assert time.monotonic() < deadline, "nobody reads the end"
            time.sleep(0.01)


def test_a_copy_of_one_result_delays_no_other(monkeypatch):
    with lone_group() as (group, gateway):
        copying, go_on, deliver = (
            threading.Event(),
            threading.Event(),
            OperationDelivery.deliver_result,
        )

        def deliver_slowly(delivery):
            if threading.current_thread() is slow:
                copying.set()
                go_on.wait(DEADLINE_S)
            return deliver(delivery)

        monkeypatch.setattr(OperationDelivery, "deliver_result", deliver_slowly)
        first, second = group.all_reduce_async(ONES), group.all_reduce_async(ONES)
        slow = threading.Thread(target=first.wait)
        slow.start()
        posts = gateway.receive(), gateway.receive()
        gateway.send(ready(posts[0]))
        assert copying.wait(DEADLINE_S)
        gateway.send(free(posts[0]), ready(posts[1]))
        try:
            second.wait(2)
        finally:
            go_on.set()
            slow.join(DEADLINE_S)


def test_a_timeout_ends_a_wait_despite_other_messages(monkeypatch):
    with lone_group() as (group, _), monkeypatch.context() as patch:
        connection, until = group._state.connection, time.monotonic() + 3

        def read_nothing():
            time.sleep(0.001)
            assert time.monotonic() < until, "nothing ends it"

        patch.setattr(thread_state, "is_awaited", True)  # The reader thread does not read then.
        operation = group.all_reduce_async(ONES)
        patch.setattr(connection, "_read_once", read_nothing)
        patch.setattr(connection, "_poll", SimpleNamespace(poll=lambda *_: True))
        with pytest.raises(landbridge.WaitTimeout):
            operation.wait(0.1)
