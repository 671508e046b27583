"""Parameters that the hook averages: frozen, unfrozen, added, and unused on some ranks."""

import gc
import time
from types import SimpleNamespace

import pytest

import landbridge
from conftest import DEADLINE_S, call_for_all

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from landbridge.torch import State, all_reduce_hook, module_digest  # noqa: E402
from landbridge.torch._trained_parameters import TrainedParameters  # noqa: E402


@pytest.fixture
def groups(two_groups):
    """Two ranks, each in a region of its own."""
    return two_groups


class PartlyFrozenTrainer:
    """A rank whose first layer is frozen when its wrapper is made."""

    def __init__(self, group):
        torch.manual_seed(0)
        self.group = group
        self.module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        self.module[0].requires_grad_(False)
        self.wrap()

    def wrap(self, **options):
        """Makes a new wrapper. The old one must be gone before its hooks are."""
        self.model = None
        gc.collect()
        self.model = torch.nn.parallel.DistributedDataParallel(self.module, **options)
        self.state = State(self.group)
        self.model.register_comm_hook(self.state, all_reduce_hook)

    def step(self):
        """Computes gradients, of other data on each rank."""
        self.module.zero_grad()
        with self.state.typed_errors():
            self.model(torch.full((1, 2), self.group.rank + 1.0)).sum().backward()


def test_a_parameter_unfrozen_after_wrapping_is_named(groups, one_trainer):
    trainers = [PartlyFrozenTrainer(group) for group in groups]
    call_for_all(trainers, PartlyFrozenTrainer.step)

    def unfreeze(trainer):
        trainer.module[0].requires_grad_(True)
        with pytest.raises(landbridge.ConfigError, match="`0.weight` and 1 more is not averaged"):
            trainer.step()
        trainer.group.barrier()  # All ranks are at the same place.

    call_for_all(trainers, unfreeze)
    for trainer in trainers:
        trainer.wrap()
    call_for_all(trainers, PartlyFrozenTrainer.step)
    one, other = ([p.grad for p in trainer.module.parameters()] for trainer in trainers)
    assert len(one) == 4 and all(torch.equal(*pair) for pair in zip(one, other))


def test_a_parameter_unfrozen_on_one_rank_stops_all_ranks(groups, one_trainer):
    trainers = [PartlyFrozenTrainer(group) for group in groups]
    trainers[1].module[0].requires_grad_(True)
    expected = [landbridge.RanksDisagree, landbridge.ConfigError]

    def step(rank):
        begun = time.monotonic()
        with pytest.raises(expected[rank]):
            trainers[rank].step()
        assert time.monotonic() - begun < DEADLINE_S, "of thirty minutes"

    call_for_all(range(2), step)


class BranchingModule(torch.nn.Module):
    """A module of which a step may leave one layer unused."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.always, self.never = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.sometimes = torch.nn.Linear(2, 2)

    def forward(self, inputs, uses_all):
        outputs = self.always(inputs)
        return outputs + self.sometimes(inputs) if uses_all else outputs


def test_parameters_that_only_one_rank_uses_stay_equal(groups, one_trainer):
    def wrap(group):
        module = BranchingModule()
        model = torch.nn.parallel.DistributedDataParallel(module, find_unused_parameters=True)
        model.register_comm_hook(State(group), all_reduce_hook)
        return group, module, model

    def step(trainer):
        group, module, model = trainer
        model(torch.ones(1, 2), group.rank == 0).sum().backward()
        assert module.never.weight.grad is None, "no rank used it"
        return [module.always.weight.grad.tolist(), module.sometimes.weight.grad.tolist()]

    one, other = call_for_all([wrap(group) for group in groups], step)
    assert one == other == [[[1.0, 1.0]] * 2, [[0.5, 0.5]] * 2]


class UseTrainer:
    """A rank with a module that may leave its second layer unused, and the optimizer of it."""

    def __init__(self, group, layer, process_group=None, **options):
        torch.manual_seed(0)
        self.rank = group.rank
        self.module = torch.nn.ModuleDict({"always": layer(), "sometimes": layer()})
        self.module.to(memory_format=torch.channels_last)
        self.module.forward = self.forward
        options = {"find_unused_parameters": True, **options}
        self.model = torch.nn.parallel.DistributedDataParallel(self.module, **options)
        self.state = State(group, process_group)
        self.model.register_comm_hook(self.state, all_reduce_hook)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), 0.1, weight_decay=0.1)

    def forward(self, inputs, scale):
        outputs = self.module["always"](inputs)
        return outputs if scale is None else outputs + self.module["sometimes"](inputs) * scale

    def step(self, inputs, scale, set_to_none=True):
        """Takes a step in which the second layer counts `scale` times; `None` leaves it unused."""
        self.optimizer.zero_grad(set_to_none)
        with self.state.typed_errors():
            self.model(inputs * (self.rank + 1), scale).square().sum().backward()
        self.optimizer.step()

    def weights(self):
        """Returns the second layer's gradients and all weights."""
        grads = [parameter.grad for parameter in self.module["sometimes"].parameters()]
        return [grad.clone() for grad in grads if grad is not None], module_digest(self.module)


def linear_layer():
    return torch.nn.Linear(4, 4)


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"process_group": "one"}],
    ids=lambda options: "".join(options) or "plain",
)
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("scale", [0.0, 1.0])
@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_gradients_of_partly_used_parameters_are_equal(
    options, set_to_none, scale, weight, groups, one_trainer
):
    """The layer's gradient may be zero on the rank that uses it, or count nothing."""

    more = {"process_group": dist.group.WORLD} if "process_group" in options else options

    def run(trainer):
        inputs = torch.ones(2, 4)
        if "static_graph" not in options:
            trainer.step(inputs, 1.0, set_to_none)
        trainer.state.weight = weight if trainer.rank == 0 else 1.0
        for _ in range(2):
            trainer.step(inputs, scale if trainer.rank == 0 else None, set_to_none)
        return trainer.weights()

    ranks = [UseTrainer(group, linear_layer, **more) for group in groups]
    (one, digest), (other, other_digest) = call_for_all(ranks, run)
    assert len(one) == len(other) == 2 and all(map(torch.equal, one, other))
    assert digest == other_digest


def test_gradients_of_unused_parameters_stay_untouched(groups, one_trainer):
    def run(trainer):
        trainer.step(torch.ones(2, 4), 1.0)
        trainer.step(torch.ones(2, 4), None)
        return trainer.weights()

    one, other = call_for_all([UseTrainer(group, linear_layer) for group in groups], run)
    assert one == other and one[0] == []


def test_unused_gradients_follow_the_memory_format_of_parameters(groups, one_trainer):
    def run(trainer):
        inputs = torch.arange(384.0).view(2, 3, 8, 8)
        for _ in range(2):
            trainer.step(inputs, 1.0 if trainer.rank == 0 else None)
        return trainer.weights()

    ranks = [UseTrainer(group, lambda: torch.nn.Conv2d(3, 4, 3)) for group in groups]
    (one, digest), (other, other_digest) = call_for_all(ranks, run)
    assert all(map(torch.equal, one, other)) and digest == other_digest


def test_a_parameter_frozen_on_one_rank_stops_all_ranks(groups, one_trainer):
    trainers = [PartlyFrozenTrainer(group) for group in groups]
    for trainer in trainers:
        trainer.wrap(find_unused_parameters=True)
    trainers[1].module[1].weight.requires_grad_(False)

    def step(trainer):
        with pytest.raises(landbridge.RanksDisagree) as raised:
            trainer.step()
        return str(raised.value)

    here, there = call_for_all(trainers, step)
    assert "bucket of this rank has `1.weight` (" in here
    assert "frozen parameters of its module: `0.weight`" in here and "`1.weight`," not in here
    assert "frozen parameters of its module: `0.weight`, `0.bias`, `1.weight`;" in there


def one_bucket(*parameters):
    """Returns the only bucket of a `backward`."""
    return SimpleNamespace(parameters=lambda: list(parameters), index=lambda: 0, is_last=lambda: 1)


def test_added_parameters_are_named_but_not_ignored_ones(one_trainer):
    wrapper = torch.nn.parallel.DistributedDataParallel
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    module.register_parameter("own", torch.nn.Parameter(torch.zeros(1)))
    wrapper._set_params_and_buffers_to_ignore_for_model(module, ["own"])
    model = wrapper(module)
    bucket, trained = one_bucket(*module[0].parameters()), TrainedParameters()
    trained.note_wrapper(model)
    assert trained.note_bucket(bucket) == []
    module.append(torch.nn.Linear(2, 1, bias=False))
    assert trained.note_bucket(bucket) == ["1.weight"]
    del model


def test_parameters_without_a_wrapper_are_told_once(caplog):
    trained, bucket = TrainedParameters(), one_bucket(*torch.nn.Linear(2, 2).parameters())
    assert [trained.note_bucket(bucket) for _ in range(3)] == [[], [], []]
    assert caplog.text.count("no DistributedDataParallel with the averaged") == 1
