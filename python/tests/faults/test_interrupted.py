"""Interruptions at any point: Ctrl-C, signal handlers and forks."""

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import time
import weakref
from functools import partial
from types import SimpleNamespace

import numpy
import pytest

import landbridge
from conftest import DEADLINE_S, in_fork
from landbridge import _protocol
from landbridge._protocol.connection import Connection
from landbridge._protocol.wire import CommitFailed, Committed, Failed, FailureCode, Frames
from stand_in_gateway import alone, attach, free, ready

ONES = numpy.ones(16, "float32")


@pytest.fixture(autouse=True)
def a_reader_that_hardly_looks(monkeypatch):
    """Keeps the reader thread from reading messages that a test's wait should read."""
    monkeypatch.setattr(_protocol.connection, "_IDLE_POLL_S", 2.0)


def press(*_):
    raise KeyboardInterrupt


def failed(post):
    return Failed(post.sequence, FailureCode.TIMED_OUT, "for this test")


def unheard(group, *begins):
    """Begins collectives whose messages the next wait reads, not the reader thread."""
    connection = group._state.connection

    def nobody_reads():
        with connection._choosing:
            if connection._reading is None:
                connection._reading = SimpleNamespace(thread=None)
                return True

    comes(nobody_reads)
    group._is_awaited = True
    begun = [begin() for begin in begins]
    group._is_awaited, connection._reading = False, None
    return begun


def collective(group):
    return lambda: group.all_reduce_async(ONES, "sum")


@contextlib.contextmanager
def ctrl_c_at(moment, *others):
    """Ctrl-C in the client's code, at one of the moments when Python handles signals: where its
    functions begin, and after calls. Yields a function that says whether it came to that.
    ``others`` are modules that count as the client's code."""
    seen, files = [], (os.path.dirname(landbridge.__file__), *(other.__file__ for other in others))

    def profile(frame, event, _):
        if event != "c_call" and frame.f_code.co_filename.startswith(files):
            seen.append(event)
            if len(seen) == moment:
                raise KeyboardInterrupt

    gc.disable()  # of groups of earlier moments
    sys.setprofile(profile)
    try:
        yield lambda: len(seen) >= moment
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()


def outcome_of(wait):
    """Nothing, or how it failed; but it ends."""
    try:
        wait(DEADLINE_S)
    except landbridge.CollectiveFailed as failure:
        return failure


def comes(predicate):
    """Waits for an effect of another thread."""
    deadline = time.monotonic() + DEADLINE_S
    while not predicate():
        assert time.monotonic() < deadline, "it never comes true"
        threading.Event().wait(0.001)


@pytest.mark.parametrize("answer", [failed, free])
def test_a_callback_that_is_interrupted_leaves_nothing_unfinished(answer):
    with alone() as (group, gateway):
        begins = [collective(group)] * 2 + [lambda: group.commit_async(3)]
        first, second, commit = unheard(group, *begins)
        called = []
        first.add_done_callback(press)
        first.add_done_callback(called.append)
        post = gateway.receive()
        gateway.send(*([ready(post)] if answer is free else []), answer(post))
        with pytest.raises(KeyboardInterrupt):
            first.wait_free()
        failures = [outcome_of(waiting.wait) for waiting in (first, second, commit)]
        kind = landbridge.RanksTimedOut if answer is failed else type(None)
        assert list(map(type, failures)) == [kind, *[landbridge.GatewayLost] * 2]
        first.wait_free(DEADLINE_S)
        second.wait_free(DEADLINE_S)
        comes(lambda: called == [first])
        del first, second, commit, failures
        called.clear()
        gc.collect()
        assert group.empty(group._arena.nbytes, "u8") is not None


def every_moment(scenario):
    """Runs it with Ctrl-C at the first moment, the second and so on, until it ends before that."""
    moment = 0
    while True:
        moment += 1
        if not scenario(moment):
            break
    assert moment > 20, "hardly anything was interrupted"
    # The call may have ended early by chance.
    assert not any(scenario(moment + later) for later in range(1, 4))


@pytest.mark.parametrize("answer", [failed, free])
def test_a_wait_that_is_interrupted_anywhere_leaves_nothing_unfinished(answer):
    def scenario(moment):
        with alone() as (group, gateway):
            begins = collective(group), lambda: group.commit_async(3)
            operation, commit = unheard(group, *begins)
            post = gateway.receive()
            done = Committed(3) if answer is free else CommitFailed(3, FailureCode.STALLED, "")
            gateway.send(*([ready(post)] if answer is free else []), answer(post), done)
            with ctrl_c_at(moment) as was_pressed:
                outcome_of(operation.wait)
                operation.wait_free(DEADLINE_S)
                outcome_of(commit.wait)
            outcome_of(operation.wait)
            operation.wait_free(DEADLINE_S)
            outcome_of(commit.wait)
            comes(lambda: group._state.is_idle)
            return was_pressed()

    every_moment(scenario)


def test_a_post_that_is_interrupted_anywhere_leaves_nothing_unfinished():
    def scenario(moment):
        with alone() as (group, gateway):
            (first,) = unheard(group, collective(group))
            with ctrl_c_at(moment) as was_pressed:
                group.all_reduce_async(ONES, "sum")
            with contextlib.suppress(AssertionError, OSError):  # of a client that hung up
                while gateway.has_request():
                    gateway.send(failed(gateway.receive()))
            assert outcome_of(first.wait) is not None
            first.wait_free(DEADLINE_S)
            comes(lambda: group._state.is_idle)
            return was_pressed()

    every_moment(scenario)


def test_a_close_that_is_interrupted_anywhere_can_be_done_again():
    def scenario(moment):
        with alone() as (group, gateway):
            operation = group.all_reduce_async(ONES, "sum")
            with ctrl_c_at(moment) as was_pressed:
                group.close()
            group.close()
            assert isinstance(outcome_of(operation.wait), landbridge.GatewayLost)
            operation.wait_free(DEADLINE_S)
            comes(lambda: group._state.is_idle)
            return was_pressed()

    every_moment(scenario)


def test_waits_in_a_forked_process_say_so():
    with alone() as (group, gateway):
        operation, commit = group.all_reduce_async(ONES, "sum"), group.commit_async(3)
        done = group.all_reduce_async(ONES, "sum")
        _, _, post = (gateway.receive() for _ in range(3))
        gateway.send(ready(post), free(post))
        done.wait_free(DEADLINE_S)

        def waits():
            for wait in (operation.wait, operation.wait_free, commit.wait, done.wait):
                with pytest.raises(landbridge.ForkedProcess):
                    wait()

        assert in_fork(waits) == 0


def test_a_forked_process_closes_what_another_thread_had_locked():
    """As where that copied a result."""
    with alone() as (group, gateway):
        operation, called = group.all_reduce_async(ONES, "sum"), []
        commit = group.commit_async(3)
        operation.add_done_callback(called.append)

        def closes():
            group.close()
            with pytest.raises(landbridge.ForkedProcess):
                operation.add_done_callback(called.append)
            assert not called and not operation.is_ready() and not commit.is_done()

        with operation._lock:
            assert in_fork(closes) == 0
        post = gateway.receive()
        gateway.send(ready(post), free(post))
        assert operation.wait(DEADLINE_S)[0] == 0 and called == [operation]


def test_a_signal_handler_must_not_wait():
    """The handler would wait for a message that the interrupted wait reads."""
    with alone() as (group, gateway):
        begins = [collective(group)] * 2 + [lambda: group.commit_async(3)]
        operation, other, commit = unheard(group, *begins)
        told = []

        def handle(*_):
            all_reduce = partial(group.all_reduce, ONES)
            for use in (other.wait, commit.wait, group.barrier, all_reduce):
                with pytest.raises(landbridge.InCallback, match="signal") as error:
                    use(timeout=DEADLINE_S)
                told.append(error)
            post = gateway.receive()
            gateway.send(ready(post), free(post))

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            operation.wait(DEADLINE_S)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(told) == 4


@pytest.mark.parametrize("timeout", [float("inf"), 1e15, 1e300])
def test_a_wait_may_be_as_long_as_one_likes(timeout):
    with alone() as (group, gateway):
        (operation,) = unheard(group, collective(group))
        post = gateway.receive()
        threading.Timer(0.05, gateway.send, (ready(post), free(post))).start()
        operation.wait(timeout)
        operation.wait_free(timeout)


def test_a_commit_keeps_its_group():
    group, gateway = attach()
    commit, kept = group.commit_async(3), weakref.ref(group)
    del group
    gc.collect()
    assert kept() is not None
    gateway.send(Committed(3))
    commit.wait(DEADLINE_S)
    comes(lambda: gc.collect() is not None and kept() is None)
    gateway.shut_down()


def test_a_connection_that_still_ends_leaves_the_next_one_alone():
    """The reader's thread may be slow to hang up, while another attaches anew."""
    with alone() as (group, gateway):
        state, old = group._state, group._state.connection
        ends, go_on, shut_down = threading.Event(), threading.Event(), old.shut_down

        def shut_down_slowly():
            shut_down()
            ends.set()
            go_on.wait(DEADLINE_S)

        old.shut_down = shut_down_slowly
        gateway.shut_down()
        assert ends.wait(DEADLINE_S)
        ours, theirs = socket.socketpair()
        new = Connection(ours, old.attached, Frames())
        threading.Timer(0.1, go_on.set).start()
        state.begin(new)
        comes(lambda: old._socket.fileno() == -1)
        assert state.connection is new and state.ended is None
        theirs.close()


def test_waking_the_reader_can_be_repeated_after_any_interruption():
    with alone() as (group, _):
        connection, was_pressed, moment = group._state.connection, lambda: True, 0
        while was_pressed():
            moment += 1
            with ctrl_c_at(moment, threading) as was_pressed:
                connection.wake_reader()
            again = threading.Thread(target=connection.wake_reader, daemon=True)
            again.start()
            again.join(DEADLINE_S)
            assert not again.is_alive()
            comes(connection._wanted.empty)
        assert moment > 1
