"""Training that continues after failures and after Ctrl-C."""

import contextlib
import gc
import os
import signal
import threading
import time

import pytest

import landbridge
from conftest import call_for_all
from landbridge._state_transfer import piece_stream

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from landbridge.torch import (  # noqa: E402
    FlatGrads,
    State,
    all_reduce_hook,
    module_digest,
    resume,
)


@pytest.fixture
def groups(two_groups):
    """Two ranks, each in a region of its own."""
    return two_groups


_forward = threading.Lock()


class SmallTrainer:
    """A trainer of one site in this process, which continues after failures."""

    def __init__(self, group, mode="ddp"):
        self.group, self.mode, self.module = group, mode, torch.nn.Linear(4, 2)
        with torch.no_grad():
            for parameter in self.module.parameters():
                # Threads share the usual source of random numbers.
                parameter.copy_(torch.linspace(group.rank, 1, parameter.numel()).view_as(parameter))
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2)
        self.resume(0)

    def resume(self, step):
        parts = (self.module, self.optimizer, self.schedule)
        self.step = resume(self.group, step, *parts, timeout=60)

    def wrap(self):
        """Wraps the module. One thread at a time calls it."""
        if self.mode == "ddp":
            # Until it is collected, the hooks of an earlier one stay on the parameters.
            self.model = None
            gc.collect()
            self.model, self.state = ddp_of(self.module, self.group)
        else:
            self.model, self.grads = self.module, FlatGrads(self.module, self.group)
        return self

    def backward(self):
        # DDP keeps its model in the class during forward, and then restores the earlier one. With
        # two threads at once, one model would stay for ever, with its hooks.
        with _forward:
            loss = self.model(torch.full((3, 4), 1.0 + self.step - self.group.rank)).square().sum()
        if self.mode == "ddp":
            self.optimizer.zero_grad()
            with self.state.typed_errors():
                return loss.backward()
        self.grads.zero()
        loss.backward()
        self.grads.wait()

    def finish(self):
        self.optimizer.step()
        self.schedule.step()
        self.step += 1

    def recover(self, failure=None):
        (self.state if self.mode == "ddp" else self.group).recover(failure, 60)
        self.resume(self.step)

    def train(self, until):
        """Trains up to a step. Returns the weights after it."""
        while self.step < until:
            try:
                self.backward()
            except landbridge.CollectiveFailed as failure:
                self.recover(failure)
            else:
                self.finish()
        return torch.cat([p.detach().reshape(-1) for p in self.module.parameters()])


def ddp_of(module, group, process_group=None):
    # Buckets stay as they are, so that a model that is wrapped again has equal ones.
    model = torch.nn.parallel.DistributedDataParallel(module, find_unused_parameters=True)
    state = State(group, process_group)
    model.register_comm_hook(state, all_reduce_hook)
    return model, state


def make_trainers(groups, mode="ddp"):
    return [
        trainer.wrap() for trainer in call_for_all(groups, lambda group: SmallTrainer(group, mode))
    ]


def train_all(trainers, until):
    """Trains all up to a step. Returns their weights, which must be equal."""
    weights = call_for_all(trainers, lambda trainer: trainer.train(until))
    assert all(torch.equal(weights[0], others) for others in weights)
    return weights[0]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_rank_a_step_behind_is_brought_up_to_date(ahead, groups, one_trainer):
    """Averages are lost if the gateway is gone before they are read.

    Weights, the state of the optimizer and its schedule become equal.
    """
    whole = train_all(make_trainers(groups), 6)
    pair = make_trainers(groups)
    train_all(pair, 3)
    call_for_all(pair, SmallTrainer.backward)
    pair[ahead].finish()
    call_for_all(pair, lambda trainer: trainer.recover(landbridge.RegionLost("for this test")))
    assert [trainer.step for trainer in pair] == [4, 4]
    assert torch.equal(train_all(pair, 6), whole)
    assert pair[0].schedule.state_dict() == pair[1].schedule.state_dict()


def test_a_rank_keeps_its_state_until_the_new_is_complete(groups, one_trainer, monkeypatch):
    """The epoch ends during the transfer, after which all ranks begin the transfer again."""
    pair, cuts = make_trainers(groups), []
    train_all(pair, 2)
    call_for_all(pair, SmallTrainer.backward)
    pair[1].finish()
    before = module_digest(pair[0].module)

    def cut(self, piece):
        if self._received is not None and not cuts:
            cuts.append(module_digest(pair[0].module))
            groups[0]._state.end_connection(groups[0]._state.connection, "for this test")
        move(self, piece)

    move = piece_stream.PieceStream._move_piece
    monkeypatch.setattr(piece_stream.PieceStream, "_move_piece", cut)
    call_for_all(pair, lambda trainer: trainer.resume(trainer.step))
    assert cuts == [before] and [trainer.step for trainer in pair] == [3, 3]
    train_all(pair, 4)


@contextlib.contextmanager
def expect_ctrl_c(otherwise):
    """Interrupts the block inside, which must end at once. Calls `otherwise` if it does not end."""
    pressed = []

    def press():
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timers = [threading.Timer(0.5, press), threading.Timer(20, otherwise)]
    for timer in timers:
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    assert time.monotonic() - pressed[0] < 5, "of thirty minutes"
    for timer in timers:
        timer.cancel()


@pytest.mark.parametrize("mode", ["ddp", "flat"])
def test_training_goes_on_after_ctrl_c(mode, groups, one_trainer, ctrl_c_interrupts):
    """Averages that were sent before remain: the other rank has the step, and gives its state."""
    whole = train_all(make_trainers(groups, mode), 5)
    east, west = make_trainers(groups, mode)
    train_all((east, west), 2)
    with expect_ctrl_c(otherwise=groups[0].close):
        east.train(3)
    west.train(3)
    if mode == "ddp":
        east.wrap()

    def go_on(trainer):
        if trainer is east:
            trainer.recover()
            assert trainer.step == 3
        return trainer.train(5)

    assert all(torch.equal(weights, whole) for weights in call_for_all((east, west), go_on))


def test_a_group_of_some_ranks_says_that_it_cannot_recover(groups):
    part = call_for_all(groups, lambda group: group.new_group([0, 1]))[0]
    state = State(part)
    with pytest.raises(landbridge.NotSupported, match="make this one again by `new_group`"):
        state.recover(landbridge.RankLost("of this test"))


def test_a_site_is_not_recovered_after_ctrl_c(groups, one_trainer, ctrl_c_interrupts):
    """Its ranks may be at different places of the step, which they do not exchange."""
    model, state = ddp_of(torch.nn.Linear(2, 2), groups[0], dist.group.WORLD)
    loss = model(torch.ones(1, 2)).sum()
    with expect_ctrl_c(otherwise=groups[0].close):
        loss.backward()
    with pytest.raises(landbridge.SiteFailed, match="start all trainers of this site again"):
        state.recover()
