"""Parameters that a step leaves without a gradient on some ranks, under FSDP2."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

import landbridge
from conftest import call_for_all
from landbridge._local_regions import LocalRegions

torch = pytest.importorskip("torch")

from branches_script import Branches  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from landbridge.torch import fsdp_hook  # noqa: E402
from landbridge.torch._fsdp import shard  # noqa: E402
from site_processes import results_of, started_trainers  # noqa: E402


class ShardedTrainer:
    """A rank with a module that `fully_shard` shards over one process, and the hook."""

    def __init__(self, group):
        self.group, self.model = group, Branches()
        fully_shard(self.model)
        self.model.set_all_reduce_hook(fsdp_hook(group))

    def gradients(self, names):
        """Takes a step that uses these layers, whose inputs differ by rank. Returns the gradients
        by name."""
        self.model.zero_grad()
        self.model(torch.full((1, 3), self.group.rank + 1.0), names).sum().backward()
        named = self.model.named_parameters()
        return {name: p.grad.full_tensor().tolist() for name, p in named if p.grad is not None}


@pytest.fixture
def trainers(two_groups, one_trainer):
    """Two ranks, each in a region of its own."""
    return [ShardedTrainer(group) for group in two_groups]


def test_ranks_that_skip_different_parameters_disagree(trainers):
    """Their gradients have one length, and were averaged with each other's."""

    def step(trainer):
        with pytest.raises(landbridge.RanksDisagree) as raised:
            trainer.gradients("ab"[trainer.group.rank])
        return str(raised.value)

    here, there = call_for_all(trainers, step)
    for name, text in zip("ab", (here, there)):
        parameters = f"`layers.{name}.weight` (3, 3), `layers.{name}.bias` (3,)"
        assert f"this rank has shard 0 of 1 of the gradients of {parameters};" in text


def test_ranks_may_skip_the_same_parameters_in_any_step(trainers):
    def steps(trainer):
        return [trainer.gradients(names) for names in ("a", "ab", "b")]

    one, other = call_for_all(trainers, steps)
    layer = [[[1.5] * 3] * 3, [1.0] * 3]
    a, b = (dict(zip((f"layers.{name}.weight", f"layers.{name}.bias"), layer)) for name in "ab")
    assert one == other == [a, {**a, **b}, b]


def test_a_tensor_that_fsdp_does_not_reduce_is_refused(two_groups):
    with pytest.raises(landbridge.ConfigError, match="set_all_reduce_hook"):
        fsdp_hook(two_groups[0])(torch.ones(3))


def test_a_version_that_tells_no_parameters_is_refused(two_groups, monkeypatch, caplog):
    other = SimpleNamespace(foreach_reduce=lambda gradients: None)
    monkeypatch.setattr(shard.importlib, "import_module", lambda _: other)
    monkeypatch.setattr(shard, "note_fsdp_shards", shard.note_fsdp_shards.__wrapped__)
    with pytest.raises(landbridge.NotSupported, match="does not tell which gradients"):
        shard.note_fsdp_shards()
    caplog.set_level("INFO")
    shard.note_fsdp_shards_if_imported()
    assert "does not tell which gradients" in caplog.text


def test_replicas_over_the_backend_compare_parameters():
    script = Path(__file__).parent / "branches_script.py"
    with contextlib.ExitStack() as stack:
        regions = stack.enter_context(LocalRegions(ranks=(1, 1)))
        started = started_trainers(regions, script, one_world=True)
        results = results_of(stack.enter_context(started))
    for result, name in zip(results, "ab"):
        assert result["alike"] == [1.5] * 9
        assert result["error"].startswith("RanksDisagree: ranks disagree")
        assert f"shard 0 of 1 of the gradients of `layers.{name}.weight` (3, 3)" in result["error"]
