"""Ranks that take part in steps while the state of the others is on its way."""

import copy
import gc
import threading

import pytest

import landbridge
import stand_in_gateway
from conftest import attached_groups, call_for_all, wait_until
from landbridge._local_regions import LocalRegions
from landbridge._state_transfer import piece_stream

torch = pytest.importorskip("torch")

from landbridge.torch import (  # noqa: E402
    FlatGrads,
    State,
    _resume,
    all_reduce_hook,
    catch_up,
    module_digest,
    resume,
)
from landbridge.torch._training_state import list_state_values  # noqa: E402

#: Ranks that send their state, and the one that receives it.
SENDERS, BEHIND = (0, 2), 1


@pytest.fixture(scope="module")
def three_regions():
    """Three regions of one rank each."""
    with LocalRegions(ranks=(1, 1, 1)) as running:
        yield running


@pytest.fixture
def three_groups(three_regions):
    """Three ranks, each in a region of its own."""
    with attached_groups(three_regions, arena="80 MiB") as groups:
        yield groups


class Sampler:
    """A sampler whose state each rank keeps for itself."""

    def __init__(self):
        self.seen = []

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = list(state["seen"])


def gradient_input(rank, step):
    """Returns the batch of a rank at a step."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.rand(3, 512, generator=generator)


class FlatTrainer:
    """A trainer with an optimizer, a schedule and a sampler, in this process."""

    def __init__(self, group, seed=0):
        self.group, self.step = group, 0
        generator = torch.Generator().manual_seed(seed)
        self.module = torch.nn.Linear(512, 1024)
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.copy_(torch.rand(parameter.shape, generator=generator) / 100)
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.sampler = Sampler()
        self.grads = None

    def parts(self):
        return self.module, self.optimizer, self.schedule, self.sampler

    def resume(self, follow=0):
        self.step = resume(self.group, self.step, *self.parts(), follow=follow, timeout=60)
        self.grads = self.grads or FlatGrads(self.module, self.group)
        return self.step

    def train_step(self):
        """Takes a step, and begins it again after a failure."""
        try:
            self.grads.zero()
            self.module(gradient_input(self.group.rank, self.step)).square().sum().backward()
            self.grads.wait()
            self.optimizer.step()
        except landbridge.CollectiveFailed as failure:
            self.group.recover(failure, 60)
            self.resume()
            return self.train_step()
        self.end_step()

    def train_until(self, step):
        while self.step < step:
            self.train_step()

    def end_step(self):
        self.schedule.step()
        self.sampler.seen.append(self.step)
        self.step += 1


#: DDP keeps its model in the class during forward, so that one thread at a time may be there.
_forward = threading.Lock()


class HookTrainer(FlatTrainer):
    """The same with the hook of DDP."""

    def resume(self, follow=0):
        step = super().resume(follow)
        self.grads = self.model = None
        gc.collect()
        with _forward:
            self.model = torch.nn.parallel.DistributedDataParallel(
                self.module, find_unused_parameters=True
            )
        self.state = State(self.group)
        self.model.register_comm_hook(self.state, all_reduce_hook)
        return step

    def train_step(self):
        self.optimizer.zero_grad()
        with _forward:
            loss = self.model(gradient_input(self.group.rank, self.step)).square().sum()
        with self.state.typed_errors():
            loss.backward()
        self.optimizer.step()
        self.end_step()


def train_steps(trainers, count):
    """Takes steps on all ranks at once."""
    for _ in range(count):
        call_for_all(trainers, lambda trainer: trainer.train_step())


def reference_of(trainer, ranks_of_steps):
    """Trains a copy of a trainer in this process, with the ranks that count at each step."""
    alone = copy.copy(trainer)
    alone.module = copy.deepcopy(trainer.module)
    alone.optimizer = torch.optim.Adam(alone.module.parameters(), lr=0.01)
    alone.optimizer.load_state_dict(copy.deepcopy(trainer.optimizer.state_dict()))
    alone.schedule = torch.optim.lr_scheduler.StepLR(alone.optimizer, 2)
    alone.schedule.load_state_dict(trainer.schedule.state_dict())
    alone.sampler = Sampler()
    for ranks in ranks_of_steps:
        alone.optimizer.zero_grad()
        for rank in ranks:
            loss = alone.module(gradient_input(rank, alone.step)).square().sum() / len(ranks)
            loss.backward()
        alone.optimizer.step()
        alone.end_step()
    return alone


def assert_equal_trainers(trainers):
    """Asserts that weights, optimizers, schedules and samplers are the same, bit for bit."""
    assert len({module_digest(trainer.module) for trainer in trainers}) == 1
    for part in range(1, 4):
        states = [trainer.parts()[part].state_dict() for trainer in trainers]
        values = [list(list_state_values(state, "")) for state in states]
        assert values[1:] == values[:-1]


@pytest.fixture
def gate(monkeypatch):
    """An event that the pieces of a state wait for."""
    opened, move = threading.Event(), piece_stream.PieceStream._move_piece

    def wait_and_move(self, piece):
        assert opened.wait(40)
        move(self, piece)

    monkeypatch.setattr(piece_stream.PieceStream, "_move_piece", wait_and_move)
    yield opened
    opened.set()


def three_trainers(groups, kind=FlatTrainer):
    """Returns trainers of which two have finished three steps, and one was started again."""
    trainers = [kind(group) for group in groups]
    call_for_all(trainers, kind.resume)
    train_steps(trainers, 3)
    trainers[BEHIND] = kind(groups[BEHIND], seed=9)
    return trainers


def test_weights_optimizer_and_sampler_come_from_two_ranks(three_groups, monkeypatch):
    senders, move = set(), piece_stream.PieceStream._move_piece
    have_both_begun = threading.Event()

    def note(self, piece):
        # The first sender may be so fast that it leaves no piece to the other.
        senders.add(self.plan.sender_in_job)
        if senders == set(SENDERS):
            have_both_begun.set()
        have_both_begun.wait(timeout=20)
        move(self, piece)

    monkeypatch.setattr(piece_stream.PieceStream, "_move_piece", note)
    monkeypatch.setattr(piece_stream, "_ANNOUNCED_AHEAD", 1)
    trainers = three_trainers(three_groups)
    trainers[0].sampler.seen.append("only here")
    assert call_for_all(trainers, FlatTrainer.resume) == [3, 3, 3]
    assert senders == set(SENDERS)
    trainers[2].sampler.seen.append("only here")
    assert_equal_trainers(trainers)


def test_others_go_on_while_the_state_comes(three_groups, gate):
    trainers = three_trainers(three_groups)
    before = reference_of(trainers[0], [])
    assert call_for_all(trainers, lambda trainer: trainer.resume(follow=5)) == [3, 3, 3]
    train_steps(trainers, 3)
    assert trainers[0].step == 6, "nobody has waited for the state"
    assert module_digest(trainers[BEHIND].module) != module_digest(trainers[0].module)
    follower = three_groups[BEHIND]._follower
    gate.set()
    wait_until(lambda: not follower._attempt.is_running)
    train_steps(trainers, 3)
    assert three_groups[BEHIND]._follower is None
    assert_equal_trainers(trainers)
    alone = reference_of(before, [SENDERS] * 4 + [range(3)] * 2)
    for one, other in zip(trainers[0].module.parameters(), alone.module.parameters()):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_rank_follows_with_the_hook(three_groups, gate, one_trainer):
    trainers = three_trainers(three_groups, HookTrainer)
    call_for_all(trainers, lambda trainer: trainer.resume(follow=5))
    train_steps(trainers, 2)
    assert module_digest(trainers[BEHIND].module) != module_digest(trainers[0].module)
    gate.set()
    catch_up(three_groups[BEHIND])
    train_steps(trainers, 2)
    assert_equal_trainers(trainers)


def test_others_wait_once_the_steps_are_taken(three_groups, gate):
    trainers = three_trainers(three_groups)
    call_for_all(trainers, lambda trainer: trainer.resume(follow=2))
    train_steps(trainers, 2)
    threading.Timer(0.3, gate.set).start()
    train_steps(trainers, 1)
    assert gate.is_set() and three_groups[BEHIND]._follower is None
    assert_equal_trainers(trainers)


def test_the_rank_behind_catches_up_before_its_weights_are_read(three_groups, gate):
    trainers = three_trainers(three_groups)
    call_for_all(trainers, lambda trainer: trainer.resume(follow=5))
    train_steps(trainers, 2)
    gate.set()
    catch_up(three_groups[BEHIND])
    assert_equal_trainers(trainers)
    train_steps(trainers, 1)
    assert_equal_trainers(trainers)


def test_resume_catches_up_after_a_failure(three_groups, gate, monkeypatch):
    """The epoch ends when the state has come, which then need not come again."""
    trainers = three_trainers(three_groups)
    call_for_all(trainers, lambda trainer: trainer.resume(follow=5))
    train_steps(trainers, 2)
    gate.set()
    follower = three_groups[BEHIND]._follower
    wait_until(lambda: not follower._attempt.is_running)
    monkeypatch.setattr(_resume, "TransferRound", None)

    def recover(trainer):
        trainer.group.recover(landbridge.RegionLost("for this test"), 60)
        return trainer.resume()

    assert call_for_all(trainers, recover) == [5, 5, 5]
    assert_equal_trainers(trainers)
    train_steps(trainers, 1)
    assert_equal_trainers(trainers)


def test_a_state_that_does_not_come_is_fetched_again(three_groups, monkeypatch):
    """All that send end in the middle, and the rank behind begins anew."""
    move, ended = piece_stream.PieceStream._move_piece, set()

    def fail_once(self, piece):
        if self._content is not None and self.plan.sender_in_job not in ended:
            ended.add(self.plan.sender_in_job)
            raise landbridge.Closed("for this test")
        move(self, piece)

    trainers = three_trainers(three_groups)
    monkeypatch.setattr(piece_stream, "_ANNOUNCED_AHEAD", 1)
    monkeypatch.setattr(piece_stream.PieceStream, "_move_piece", fail_once)
    call_for_all(trainers, lambda trainer: trainer.resume(follow=1))
    call_for_all(trainers, lambda trainer: trainer.train_until(7))
    assert ended == set(SENDERS)
    assert_equal_trainers(trainers)


def test_ranks_wait_where_an_average_of_weights_is_kept(three_groups):
    """It would follow from the wrong weights of a rank behind."""
    trainers = three_trainers(three_groups)
    for trainer in trainers:
        trainer.sampler.state_dict = lambda: {"mean": torch.zeros(3)}
        trainer.sampler.load_state_dict = lambda state: None
    call_for_all(trainers, lambda trainer: trainer.resume(follow=5))
    assert three_groups[BEHIND]._follower is None
    assert len({module_digest(trainer.module) for trainer in trainers}) == 1


def test_averages_leave_out_a_rank_that_follows(two_groups):
    """Its gradients may be anything, such as NaN."""
    two_groups[1]._follower = object()
    given = [torch.ones(3), torch.full((3,), torch.nan)]
    for average in call_for_all(range(2), lambda rank: two_groups[rank].all_reduce(given[rank])):
        assert average.tolist() == [1, 1, 1]
    sums = call_for_all(range(2), lambda rank: two_groups[rank].all_reduce(given[0], "sum"))
    assert [total.tolist() for total in sums] == [[2, 2, 2]] * 2


def test_a_site_with_a_process_group_cannot_follow(two_groups, one_trainer):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    state = State(two_groups[0], torch.distributed.group.WORLD)
    model.register_comm_hook(state, all_reduce_hook)
    two_groups[0]._follower = object()
    refused = pytest.raises(landbridge.ConfigError, match="cannot `follow` others")
    with refused, state.typed_errors():
        model(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize("follow", [-1, 0.5, "1", True])
def test_follow_is_a_number_of_steps(follow):
    refused = pytest.raises(landbridge.ConfigError, match="^follow .*accepted: whole numbers")
    with stand_in_gateway.lone_group() as (group, _), refused:
        resume(group, 0, torch.nn.Linear(1, 1), follow=follow)
