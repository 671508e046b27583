"""Attaching while a gateway starts, ends, refuses or goes away: only what lasts is an error."""

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from typing import ClassVar

import pytest

import landbridge
from conftest import DEADLINE_S, attached_groups, call_for_all
from landbridge._config.region_file import RegionFileGateway
from landbridge._group import Group, attachment
from landbridge._local_regions import LocalRegions
from landbridge._memory.arena import Arena
from landbridge._protocol.wire import (
    LOCAL_PROTOCOL_VERSION,
    Attached,
    EpochBegan,
    Failed,
    FailureCode,
    RefusalReason,
    Refused,
)
from stand_in_gateway import StandInGateway, free, ready

WELCOME = Attached(LOCAL_PROTOCOL_VERSION, 1, "one")
TEMPORARY = [reason for reason in RefusalReason if reason.is_temporary]
LASTING = [reason for reason in RefusalReason if not reason.is_temporary]


def close(peer):
    """Closes the connection without an answer, as a gateway that ends."""


def cut_off(peer):
    """Closes the connection in the middle of an answer."""
    peer._socket.sendall(b"\0\0\0\x20\1")


def refuse(reason):
    """Returns an answer that refuses the rank."""
    return lambda peer: peer.send(Refused(reason, "for this test"))


def end_before_epoch(peer):
    """Attaches the rank, and ends before an epoch begins."""
    peer.send(WELCOME, Refused(RefusalReason.SHUTTING_DOWN, "for this test"))


def end_after_barrier(peer):
    """Begins an epoch, and ends while the ranks meet."""
    peer.send(WELCOME, EpochBegan(1, 0, 0, 0))
    post = peer.receive()
    peer.send(Failed(post.sequence, FailureCode.SHUTTING_DOWN, "for this test"))
    peer.send(Refused(RefusalReason.SHUTTING_DOWN, "for this test"))


def disagree(peer):
    """Begins an epoch that has a post of a rank which has ended."""
    peer.send(WELCOME, EpochBegan(1, 0, 0, 0))
    post = peer.receive()
    text = "rank 1 posted all-reduce, rank 0 posted barrier"
    peer.send(Failed(post.sequence, FailureCode.DISAGREEMENT, text), free(post))


def serve(peer):
    """Begins an epoch, lets the ranks meet, and serves until the test ends."""
    peer.send(WELCOME, EpochBegan(1, 0, 0, 0))
    post = peer.receive()
    peer.send(ready(post), free(post))
    with contextlib.suppress(AssertionError, OSError):
        peer.receive()


TROUBLES = [close, cut_off, end_before_epoch, end_after_barrier, *map(refuse, TEMPORARY)]


class ScriptedGateway:
    """A listening gateway that gives each connection the next answer of a list."""

    #: The gateways of the test under way.
    running: ClassVar[list] = []

    def __init__(self, path, group, answers, delay_s=0.0):
        self.connections = 0
        self._path, self._group, self._answers, self._delay_s = path, group, answers, delay_s
        self._listener = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.running.append(self)

    def _run(self):
        threading.Event().wait(self._delay_s)
        with self._listener as listener, contextlib.suppress(OSError):
            listener.bind(str(self._path))
            listener.listen()
            for answer in self._answers:
                connection, _ = listener.accept()
                self.connections += 1
                with connection:
                    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
                    for descriptor in descriptors:
                        os.close(descriptor)
                    peer = StandInGateway(connection, self._group._arena)
                    peer.receive()
                    answer(peer)
        with contextlib.suppress(FileNotFoundError):  # The test may have ended.
            os.unlink(self._path)

    def join(self):
        """Waits until all answers are given."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def end(self):
        """Ends the wait for connections that do not come."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.join()


@pytest.fixture(autouse=True)
def no_scripted_gateway_outlives_its_test():
    """A listening socket that stays would be found by tests that count sockets."""
    yield
    while ScriptedGateway.running:
        ScriptedGateway.running.pop().end()


@pytest.fixture
def group(tmp_path):
    """A group of one rank that is not attached."""
    location = RegionFileGateway(tmp_path / "socket", "train", bytes(32), [1.0], ["east"])
    with Group(location, 0, Arena(1 << 16)) as lone:
        yield lone


def meet(group):
    """Attaches and meets the other ranks, as `connect` does."""
    group._meet_all_ranks(time.monotonic() + DEADLINE_S)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_troubles_that_pass_end_no_attempt(trouble, group, tmp_path):
    """The first connection after the start, and the one of `recover`, meet the trouble."""
    path = tmp_path / "socket"
    gateway = ScriptedGateway(path, group, [trouble, serve])
    meet(group)
    group._state.end_connection(group._state.connection, "for this test")
    gateway.join()
    gateway = ScriptedGateway(path, group, [trouble, trouble, serve])
    group.recover(landbridge.GatewayLost("for this test"), DEADLINE_S)
    assert gateway.connections == 3


def test_a_post_that_an_ended_rank_left_behind_is_outlived(group, tmp_path):
    gateway = ScriptedGateway(tmp_path / "socket", group, [disagree, serve])
    meet(group)
    assert gateway.connections == 2


def test_ranks_that_disagree_twice_raise(group, tmp_path):
    gateway = ScriptedGateway(tmp_path / "socket", group, [disagree, disagree, serve])
    with pytest.raises(landbridge.RanksDisagree, match="posted all-reduce"):
        meet(group)
    assert gateway.connections == 2


def test_a_missing_socket_is_awaited(group, tmp_path, caplog):
    caplog.set_level(logging.INFO, "landbridge")
    ScriptedGateway(tmp_path / "socket", group, [serve], delay_s=0.4)
    meet(group)
    assert 1 <= caplog.text.count("no gateway answers") <= 2, "not a line for each attempt"
    assert not any(record.levelno >= logging.WARNING for record in caplog.records)


def test_only_a_lasting_trouble_is_a_warning_once(caplog):
    caplog.set_level(logging.INFO, "landbridge")
    log, gone = attachment.AttachmentLog(0), landbridge.NoGateway("no gateway")

    def levels_of(failure, times):
        caplog.clear()
        for now in times:
            log.note_trouble(failure, now, 1800)
        return [(record.levelname, failure.args[0] in record.message) for record in caplog.records]

    assert levels_of(gone, range(30)) == [("INFO", True)]
    assert levels_of(gone, range(30, 630)) == [("WARNING", True)]
    assert levels_of(gone, range(630, 700)) == [("WARNING", True)]
    assert levels_of(landbridge.Refused("taken"), range(700, 800)) == [("WARNING", True)]
    log.end_trouble()
    assert levels_of(gone, range(800, 830)) == [("INFO", True)]
    assert levels_of(gone, range(830, 1200)) == [], "ten minutes have not passed"


def deny(times, monkeypatch):
    """Lets the system refuse the first connections to the gateway."""
    attach_rank, denied = attachment.attach_rank, []

    def attach(*arguments):
        if len(denied) < times:
            denied.append(time.monotonic())
            raise landbridge.NotPermitted("for this test", is_final=True) from PermissionError()
        return attach_rank(*arguments)

    monkeypatch.setattr(attachment, "attach_rank", attach)
    return denied


def test_a_folder_that_is_still_closed_is_awaited(group, tmp_path, monkeypatch):
    """A gateway that starts makes its folder, and then opens it to its group."""
    denied = deny(3, monkeypatch)
    ScriptedGateway(tmp_path / "socket", group, [serve])
    meet(group)
    assert len(denied) == 3


def test_a_folder_that_stays_closed_ends_the_attempt(group, monkeypatch):
    denied = deny(1 << 20, monkeypatch)
    with pytest.raises(landbridge.NotPermitted):
        meet(group)
    assert 2 <= denied[-1] - denied[0] < DEADLINE_S


def serve_two_barriers(peer):
    """Lets the ranks meet, and finish."""
    peer.send(WELCOME, EpochBegan(1, 0, 0, 0))
    for _ in range(2):
        post = peer.receive()
        peer.send(ready(post), free(post))
    with contextlib.suppress(AssertionError, OSError):
        peer.receive()


def fail_second_barrier(code):
    """Returns an answer that lets the ranks meet, and fails their end."""

    def answer(peer):
        peer.send(WELCOME, EpochBegan(1, 0, 0, 0))
        post = peer.receive()
        peer.send(ready(post), free(post))
        post = peer.receive()
        peer.send(Failed(post.sequence, code, "for this test"))
        if code == FailureCode.SHUTTING_DOWN:
            peer.send(Refused(RefusalReason.SHUTTING_DOWN, "for this test"))

    return answer


def test_a_failure_while_ranks_finish_is_recovered(group, tmp_path):
    failing = fail_second_barrier(FailureCode.SHUTTING_DOWN)
    ScriptedGateway(tmp_path / "socket", group, [failing, close, serve_two_barriers])
    meet(group)
    assert [group.finish(DEADLINE_S), group.finish(DEADLINE_S)] == [False, True]


def test_a_rank_whose_peers_have_ended_ends_too(group, tmp_path):
    failing = fail_second_barrier(FailureCode.SHUTTING_DOWN)
    ScriptedGateway(tmp_path / "socket", group, [failing])
    meet(group)
    assert group.finish(0.5)


def test_ranks_that_finish_with_other_weights_disagree(group, tmp_path):
    ScriptedGateway(tmp_path / "socket", group, [fail_second_barrier(FailureCode.DISAGREEMENT)])
    meet(group)
    with pytest.raises(landbridge.RanksDisagree):
        group.finish(layout=1)


@pytest.mark.parametrize("reason", LASTING)
def test_refusals_that_last_end_the_attempt(reason, group, tmp_path):
    gateway = ScriptedGateway(tmp_path / "socket", group, [refuse(reason), serve])
    with pytest.raises(landbridge.Refused, match="for this test") as raised:
        meet(group)
    assert raised.value.is_final and gateway.connections == 1


def test_another_version_ends_the_attempt(group, tmp_path):
    other = Attached(LOCAL_PROTOCOL_VERSION + 1, 1, "one")
    ScriptedGateway(tmp_path / "socket", group, [lambda peer: peer.send(other), serve])
    with pytest.raises(landbridge.Refused, match="from one release") as raised:
        meet(group)
    assert raised.value.is_final


def test_an_impossible_path_ends_the_attempt(tmp_path):
    location = RegionFileGateway(tmp_path / ("x" * 200), "train", bytes(32), [1.0], ["east"])
    with Group(location, 0, Arena(1 << 16)) as lone, pytest.raises(landbridge.NoGateway) as raised:
        meet(lone)
    assert raised.value.is_final


def test_an_error_of_a_signal_handler_ends_the_attempt(group, tmp_path):
    """``TimeoutError`` after ``signal.alarm`` is an ``OSError``, and none of the connection."""

    def handle(*_):
        raise TimeoutError("alarm")

    ScriptedGateway(tmp_path / "socket", group, [lambda _: threading.Event().wait(1.5)])
    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(TimeoutError, match="alarm") as raised:
            meet(group)
        assert not isinstance(raised.value, landbridge.LandbridgeError)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_the_timeout_raises_the_last_trouble(group, tmp_path):
    answers = [refuse(RefusalReason.RANK_TAKEN)] * 50
    ScriptedGateway(tmp_path / "socket", group, answers)
    with pytest.raises(landbridge.Refused, match="for this test") as raised:
        group._meet_all_ranks(time.monotonic() + 0.5)
    assert not raised.value.is_final


def say_nothing(peer):
    """Leaves the connection open until the client gives up."""
    with contextlib.suppress(AssertionError, OSError):
        peer.receive()


def time_out(text):
    """Returns an answer that begins an epoch, in which other ranks do not come."""

    def answer(peer):
        peer.send(WELCOME, EpochBegan(1, 0, 0, 0))
        post = peer.receive()
        peer.send(Failed(post.sequence, FailureCode.TIMED_OUT, text))

    return answer


def test_an_attempt_cut_short_hides_no_refusal(group, tmp_path):
    answers = [refuse(RefusalReason.RANK_TAKEN), say_nothing]
    ScriptedGateway(tmp_path / "socket", group, answers)
    text = "rank 0 could not attach within 500 ms: the gateway refused: for this test"
    with pytest.raises(landbridge.Refused, match=text):
        group._meet_all_ranks(time.monotonic() + 0.5)


def test_a_long_silence_hides_an_earlier_refusal():
    attempts = attachment.AttachmentFailures(0, 20)
    attempts.note_failure(landbridge.Refused("attached already"))
    silence = landbridge.NoGateway("does not answer")
    silence.__cause__ = socket.timeout()
    with pytest.raises(landbridge.NoGateway):
        attempts.raise_reason(silence, 19)


def test_ranks_missing_at_the_first_timeout_are_named_first(group, tmp_path):
    """Ranks that give up at the first timeout are missing in all later attempts of the others."""
    answers = [time_out("waiting for rank 3"), *[time_out("waiting for rank 0, rank 3")] * 20]
    ScriptedGateway(tmp_path / "socket", group, answers)
    with pytest.raises(landbridge.RanksTimedOut) as raised:
        group._meet_all_ranks(time.monotonic() + 0.5)
    assert raised.value.text.startswith("waiting for rank 3; ranks that gave up then are missing")


#: Restarts of both gateways in turn.
ROUNDS = 5


def restart_gateway(regions, region):
    """Ends a gateway by SIGTERM, and starts it again."""
    assert regions.stop_gateway(region) == 0
    regions.start_gateway(region)


class CountingTrainer:
    """A trainer whose steps are all-reduces, and who continues after failures."""

    def __init__(self, group):
        self.group, self.step, self.failures = group, 0, 0
        self.is_enough = False

    def train(self):
        """Takes steps until some trainer has enough. Returns the number of steps."""
        while True:
            try:
                self.agree()
                while not self.take_step():
                    pass
                return self.step
            except landbridge.CollectiveFailed as failure:
                self.failures += 1
                self.recover(failure)

    def take_step(self):
        """Takes one step. Returns whether some trainer has enough."""
        sums = self.group.all_reduce(memoryview(bytearray(16)).cast("q"), "sum")
        flag = memoryview(bytearray([self.is_enough])).cast("B")
        is_last = bool(self.group.all_reduce(flag, "max")[0])
        self.step += 1 + sums[0]
        return is_last

    def agree(self):
        """Continues at the step of the trainer that is ahead."""
        try:
            self.group.agree(self.step)
        except landbridge.StepsDiffer as differ:
            self.step = max(differ.steps)

    def recover(self, failure):
        """Recovers, however often gateways are restarted meanwhile."""
        self.group.recover(failure, DEADLINE_S)


def test_a_rolling_restart_costs_steps_but_no_trainer():
    with LocalRegions(ranks=(2, 1)) as regions, attached_groups(regions) as groups:
        trainers = [CountingTrainer(group) for group in groups]

        def restart_all():
            for _ in range(ROUNDS):
                for region in ("east", "west"):
                    before = trainers[0].step
                    restart_gateway(regions, region)
                    deadline = time.monotonic() + DEADLINE_S
                    while trainers[0].step == before:
                        assert time.monotonic() < deadline, "no step after a restart"
                        threading.Event().wait(0.01)
            trainers[0].is_enough = True

        works = [restart_all, *(trainer.train for trainer in trainers)]
        _, *steps = call_for_all(works, lambda work: work())
        assert len(set(steps)) == 1 and steps[0] > ROUNDS
        assert all(trainer.failures for trainer in trainers)


def test_a_rank_connects_after_an_attempt_without_an_epoch():
    with LocalRegions(ranks=(1, 1)) as regions:
        assert regions.stop_gateway("west") == 0
        with pytest.raises(landbridge.NoEpoch):
            landbridge.connect(config=regions.region_file("east"), rank=0, arena="1 MiB", timeout=1)
        regions.start_gateway("west")
        with attached_groups(regions, arena="1 MiB") as groups:
            call_for_all(groups, lambda group: group.barrier())
