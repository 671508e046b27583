"""Interruptions at any point: Ctrl-C, signal handlers and forks."""

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import weakref
from functools import partial

import numpy
import pytest

import landbridge
from conftest import DEADLINE_S, exit_code_of_fork, post_unread, wait_until
from landbridge import _protocol
from landbridge._protocol.connection import Connection
from landbridge._protocol.frames import FrameDecoder
from landbridge._protocol.wire import CommitFailed, Committed, Failed, FailureCode
from stand_in_gateway import attach_group, free, lone_group, ready

ONES = numpy.ones(16, "float32")
#: Moments in a row at which a call was over already, after which later ones are not tried.
ENDS = 4


@pytest.fixture(autouse=True)
def slow_reader_thread(monkeypatch):
    """Keeps the reader thread from reading messages that a test's wait should read."""
    monkeypatch.setattr(_protocol.connection, "_IDLE_READ_DELAY_S", 2.0)


def raise_interrupt(*_):
    raise KeyboardInterrupt


def failed(post):
    """Returns the message that a post has failed."""
    return Failed(post.sequence, FailureCode.TIMED_OUT, "for this test")


def starter_of_collective(group):
    """Returns a function that starts an all-reduce."""
    return lambda: group.all_reduce_async(ONES, "sum")


@contextlib.contextmanager
def ctrl_c_at(moment, *others):
    """Raises Ctrl-C in the client's code, at one of the moments when Python handles signals.

    Those are the beginnings of functions and the ends of calls. Yields a function that returns
    whether Ctrl-C was raised. ``others`` are modules that count as the client's code.
    """
    seen, files = [], (os.path.dirname(landbridge.__file__), *(other.__file__ for other in others))

    def profile(frame, event, _):
        if event != "c_call" and frame.f_code.co_filename.startswith(files):
            seen.append(event)
            if len(seen) == moment:
                raise KeyboardInterrupt

    gc.disable()  # Groups of earlier moments are not collected meanwhile.
    sys.setprofile(profile)
    try:
        yield lambda: len(seen) >= moment
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()


def failure_of_wait(wait):
    """Returns the failure of a wait, or `None`. The wait must end."""
    try:
        wait(DEADLINE_S)
    except landbridge.CollectiveFailed as failure:
        return failure


@pytest.mark.parametrize("answer", [failed, free])
def test_a_callback_that_is_interrupted_leaves_nothing_unfinished(answer):
    with lone_group() as (group, gateway):
        begins = [starter_of_collective(group)] * 2 + [lambda: group.commit_async(3)]
        first, second, commit = post_unread(group, *begins)
        called = []
        first.add_done_callback(raise_interrupt)
        first.add_done_callback(called.append)
        post = gateway.receive()
        gateway.send(*([ready(post)] if answer is free else []), answer(post))
        with pytest.raises(KeyboardInterrupt):
            first.wait_free()
        failures = [failure_of_wait(waiting.wait) for waiting in (first, second, commit)]
        kind = landbridge.RanksTimedOut if answer is failed else type(None)
        assert list(map(type, failures)) == [kind, *[landbridge.GatewayLost] * 2]
        first.wait_free(DEADLINE_S)
        second.wait_free(DEADLINE_S)
        wait_until(lambda: called)
        assert called == [first]
        del first, second, commit, failures
        called.clear()
        gc.collect()
        assert group.empty(group._arena.nbytes, "u8") is not None


def interrupt_at_every_moment(scenario):
    """Runs a scenario with Ctrl-C at each moment, until it ends before the moment `ENDS` times in a
    row: a busy machine makes a call take fewer or more moments."""
    moment, ended = 0, 0
    while ended < ENDS:
        moment += 1
        ended = 0 if scenario(moment) else ended + 1
    assert moment > 20 + ENDS, "hardly anything was interrupted"


@pytest.mark.parametrize("answer", [failed, free])
def test_a_wait_that_is_interrupted_anywhere_leaves_nothing_unfinished(answer):
    def scenario(moment):
        with lone_group() as (group, gateway):
            begins = starter_of_collective(group), lambda: group.commit_async(3)
            operation, commit = post_unread(group, *begins)
            post = gateway.receive()
            done = Committed(3) if answer is free else CommitFailed(3, FailureCode.STALLED, "")
            gateway.send(*([ready(post)] if answer is free else []), answer(post), done)
            with ctrl_c_at(moment) as was_pressed:
                failure_of_wait(operation.wait)
                operation.wait_free(DEADLINE_S)
                failure_of_wait(commit.wait)
            failure_of_wait(operation.wait)
            operation.wait_free(DEADLINE_S)
            failure_of_wait(commit.wait)
            wait_until(lambda: group._state.is_idle)
            return was_pressed()

    interrupt_at_every_moment(scenario)


def test_a_post_that_is_interrupted_anywhere_leaves_nothing_unfinished():
    def scenario(moment):
        with lone_group() as (group, gateway):
            (first,) = post_unread(group, starter_of_collective(group))
            with ctrl_c_at(moment) as was_pressed:
                group.all_reduce_async(ONES, "sum")
            # A client that hung up causes these errors.
            with contextlib.suppress(AssertionError, OSError):
                while gateway.has_request():
                    gateway.send(failed(gateway.receive()))
            assert failure_of_wait(first.wait) is not None
            first.wait_free(DEADLINE_S)
            wait_until(lambda: group._state.is_idle)
            return was_pressed()

    interrupt_at_every_moment(scenario)


def test_a_close_that_is_interrupted_anywhere_can_be_done_again():
    def scenario(moment):
        with lone_group() as (group, gateway):
            operation = group.all_reduce_async(ONES, "sum")
            with ctrl_c_at(moment) as was_pressed:
                group.close()
            group.close()
            assert isinstance(failure_of_wait(operation.wait), landbridge.GatewayLost)
            operation.wait_free(DEADLINE_S)
            wait_until(lambda: group._state.is_idle)
            return was_pressed()

    interrupt_at_every_moment(scenario)


def test_waits_in_a_forked_process_say_so():
    with lone_group() as (group, gateway):
        operation, commit = group.all_reduce_async(ONES, "sum"), group.commit_async(3)
        done = group.all_reduce_async(ONES, "sum")
        _, _, post = (gateway.receive() for _ in range(3))
        gateway.send(ready(post), free(post))
        done.wait_free(DEADLINE_S)

        def waits():
            for wait in (operation.wait, operation.wait_free, commit.wait, done.wait):
                with pytest.raises(landbridge.ForkedProcess):
                    wait()

        assert exit_code_of_fork(waits) == 0


def test_a_forked_process_closes_what_another_thread_had_locked():
    """The other thread may hold the lock to copy a result."""
    with lone_group() as (group, gateway):
        operation, called = group.all_reduce_async(ONES, "sum"), []
        commit = group.commit_async(3)
        operation.add_done_callback(called.append)

        def closes():
            group.close()
            asks = [operation.is_ready, operation.is_free, operation.discard_result, commit.is_done]
            for ask in (*asks, partial(operation.add_done_callback, called.append)):
                with pytest.raises(landbridge.ForkedProcess):
                    ask()
            assert not called

        with operation._lock:
            assert exit_code_of_fork(closes) == 0
        post = gateway.receive()
        gateway.send(ready(post), free(post))
        assert operation.wait(DEADLINE_S)[0] == 0 and called == [operation]


def test_a_signal_handler_must_not_wait():
    """The handler would wait for a message that the interrupted wait reads."""
    with lone_group() as (group, gateway):
        begins = [starter_of_collective(group)] * 2 + [lambda: group.commit_async(3)]
        operation, other, commit = post_unread(group, *begins)
        refusals = []

        def handle(*_):
            all_reduce = partial(group.all_reduce, ONES)
            for use in (other.wait, commit.wait, group.barrier, all_reduce):
                with pytest.raises(landbridge.InCallback, match="signal") as error:
                    use(timeout=DEADLINE_S)
                refusals.append(error)
            post = gateway.receive()
            gateway.send(ready(post), free(post))

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            operation.wait(DEADLINE_S)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(refusals) == 4


@pytest.mark.parametrize("timeout", [DEADLINE_S, None], ids=["with a limit", "without"])
def test_an_error_of_a_signal_handler_leaves_the_group_usable(timeout):
    """``TimeoutError`` after ``signal.alarm`` is an ``OSError``, and none of the connection."""

    def handle(*_):
        raise TimeoutError("alarm")

    with lone_group() as (group, gateway):
        (operation,) = post_unread(group, starter_of_collective(group))
        post = gateway.receive()
        before = signal.signal(signal.SIGALRM, handle)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(TimeoutError, match="alarm") as raised:
                operation.wait(timeout)
            assert not isinstance(raised.value, landbridge.LandbridgeError)
        finally:
            signal.signal(signal.SIGALRM, before)
        gateway.send(ready(post), free(post))
        operation.wait(DEADLINE_S)
        group.all_reduce_async(ONES)
        gateway.receive()


@pytest.mark.parametrize("timeout", [float("inf"), 1e15, 1e300])
def test_a_wait_may_be_as_long_as_one_likes(timeout):
    with lone_group() as (group, gateway):
        (operation,) = post_unread(group, starter_of_collective(group))
        post = gateway.receive()
        threading.Timer(0.05, gateway.send, (ready(post), free(post))).start()
        operation.wait(timeout)
        operation.wait_free(timeout)


def test_a_commit_keeps_its_group():
    group, gateway = attach_group()
    commit, kept = group.commit_async(3), weakref.ref(group)
    del group
    gc.collect()
    assert kept() is not None
    gateway.send(Committed(3))
    commit.wait(DEADLINE_S)
    wait_until(lambda: gc.collect() is not None and kept() is None)
    gateway.shut_down()


def test_a_connection_that_still_ends_leaves_the_next_one_alone():
    """The reader thread may be slow to close its socket, while another thread attaches again."""
    with lone_group() as (group, gateway):
        state, old = group._state, group._state.connection
        ends, go_on, shut_down = threading.Event(), threading.Event(), old.shut_down_socket

        def shut_down_slowly():
            shut_down()
            ends.set()
            go_on.wait(DEADLINE_S)

        old.shut_down_socket = shut_down_slowly
        gateway.shut_down()
        assert ends.wait(DEADLINE_S)
        ours, theirs = socket.socketpair()
        new = Connection(ours, old.attached, FrameDecoder())
        threading.Timer(0.1, go_on.set).start()
        state.begin_connection(new)
        wait_until(lambda: old._socket.fileno() == -1)
        assert state.connection is new and state.ended is None
        theirs.close()


def test_waking_the_reader_can_be_repeated_after_any_interruption():
    with lone_group() as (group, _):
        connection, was_pressed, moment = group._state.connection, lambda: True, 0
        while was_pressed():
            moment += 1
            with ctrl_c_at(moment, threading) as was_pressed:
                connection.wake_reader()
            again = threading.Thread(target=connection.wake_reader, daemon=True)
            again.start()
            again.join(DEADLINE_S)
            assert not again.is_alive()
            wait_until(connection._wanted.empty)
        assert moment > 1
