"""PyTorch: unequal batches, and splits that change while loaders draw ahead."""

import random
import threading

import pytest

import landbridge
from conftest import DEADLINE_S, call_for_all

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from landbridge._batch_split import batch_split_shares  # noqa: E402
from landbridge.torch import (  # noqa: E402
    FlatGrads,
    State,
    UnevenSampler,
    _local_ranks,  # noqa: E402
)


class FakeGroup(landbridge.Group):
    """A rank whose splits are given, one for each step that has ended. Keeps the calls."""

    def __init__(self, rank, *splits, alike=True):
        self.rank, self.step_ends = rank, []
        self._splits, self._alike = splits, alike

    def batch_split(self, global_batch, limits):
        assert all(global_batch == sum(shares) for shares in self._splits)
        return self

    @property
    def shares(self):
        return list(self._splits[min(len(self.step_ends), len(self._splits) - 1)])

    @property
    def was_alike(self):
        return self._alike

    def end_step(self, computed_seconds, samples, **options):
        before = self.shares
        self.step_ends.append({"seconds": computed_seconds, "samples": samples, **options})
        return self.shares != before


def samplers_of(*splits, samples=50, **options):
    """Returns the samplers and the groups of three ranks."""
    groups = [FakeGroup(rank, *splits) for rank in range(3)]
    return [UnevenSampler(range(samples), group, 8, **options) for group in groups], groups


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"prefetch": -1}, "prefetch"),
        ({"seed": 0.5}, "seed"),
        ({"dataset": 80}, "dataset"),
        ({"group": None}, "group"),
        ({"group": "east"}, "group"),
        ({"process_group": "all"}, "process_group"),
    ],
)
def test_wrong_arguments_of_a_sampler_are_refused(options, name):
    known = {"dataset": range(80), "group": FakeGroup(0, [4, 4]), "global_batch": 8}
    with pytest.raises(landbridge.ConfigError, match=f"^{name} .*: accepted: "):
        UnevenSampler(**{**known, **options})


def test_unequal_batches_cover_every_global_batch_once():
    shares = [3, 1, 4]
    samplers, _ = samplers_of(shares)
    assert [len(sampler) for sampler in samplers] == [6, 6, 6]
    orders = []
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        steps = list(zip(*samplers))
        assert len(steps) == 6
        assert all([len(part) for part in step] == shares for step in steps)
        seen = [index for step in steps for part in step for index in part]
        assert len(set(seen)) == 48 and set(seen) <= set(range(50))
        orders.append(seen)
    assert orders[0] != orders[1]
    for sampler in samplers:
        sampler.set_epoch(1, done=4)
    assert [len(sampler) for sampler in samplers] == [2, 2, 2]
    assert [i for step in zip(*samplers) for part in step for i in part] == orders[1][32:]
    with pytest.raises(landbridge.ConfigError, match="7 batches done: an epoch has 6"):
        samplers[0].set_epoch(1, done=7)


def test_a_rank_without_samples_is_refused():
    with pytest.raises(landbridge.ConfigError, match="rank 1 gets no sample"):
        UnevenSampler(range(9), FakeGroup(0, [8, 0]), 8)


CHANGING_SPLITS = ([3, 1, 4], [3, 1, 4], [2, 2, 4], [2, 2, 4], [6, 1, 1])


@pytest.mark.parametrize("prefetch", [0, 3])
def test_batches_are_covered_once_while_their_split_changes(prefetch):
    """Loaders of different ranks draw different numbers of batches ahead."""
    samplers, groups = samplers_of(*CHANGING_SPLITS, samples=80, shuffle=False, prefetch=prefetch)
    used = [[], [], []]
    for epoch in range(2):
        for rank, (sampler, group) in enumerate(zip(samplers, groups)):
            draws, waiting = iter(sampler), []
            for step in range(len(sampler)):
                # One loader draws nothing early, one all that it may, one something in between.
                lead = min(step + 1 + prefetch * rank // 2, len(sampler)) - step
                waiting += [next(draws) for _ in range(lead - len(waiting))]
                batch = waiting.pop(0)
                assert len(batch) == sampler.share
                used[rank].append(batch)
                known = min(epoch * len(sampler) + step, len(CHANGING_SPLITS) - 1)
                after = min(known + 1, len(CHANGING_SPLITS) - 1)
                assert sampler.end_step(0.5, timeout=9) == (
                    CHANGING_SPLITS[after] != CHANGING_SPLITS[known]
                )
            step_ends = {**group.step_ends[-1], "layout": None}
            assert step_ends == {
                "seconds": 0.5,
                "samples": len(batch),
                "layout": None,
                "timeout": 9,
            }
    for step, parts in enumerate(zip(*used)):
        of_this = CHANGING_SPLITS[min(max(step - prefetch, 0), len(CHANGING_SPLITS) - 1)]
        assert [len(part) for part in parts] == of_this
        begin = step % 10 * 8
        assert [i for part in parts for i in part] == list(range(begin, begin + 8))
    assert len(used[0]) == 20


def test_a_rank_too_slow_for_a_sample_keeps_one():
    samplers, _ = samplers_of([3, 1, 4], [8, 0, 0])
    for sampler in samplers:
        draws = iter(sampler)
        next(draws)
        sampler.end_step(1.0)
        next(draws)
    assert [sampler.share for sampler in samplers] == [6, 1, 1]


def test_draws_beyond_the_known_splits_raise():
    def sampler():
        return UnevenSampler(range(80), FakeGroup(0, [4, 4]), 8, prefetch=2)

    early = sampler()
    draws = iter(early)
    for _ in range(4):
        next(draws)
    with pytest.raises(landbridge.ConfigError, match="3 steps before its own, with prefetch=2"):
        early.end_step(1.0)
    late = sampler()
    draws = iter(late)
    next(draws)
    late.end_step(1.0)
    for _ in range(3):
        next(draws)
    with pytest.raises(landbridge.ConfigError, match="3 steps before its own, with prefetch=2"):
        next(draws)
    none_left, draws = sampler(), None
    draws = iter(none_left)
    next(draws)
    none_left.end_step(1.0)
    none_left.end_step(1.0)
    with pytest.raises(landbridge.ConfigError, match="more steps than batches"):
        next(draws)


def test_different_splits_raise():
    sampler = UnevenSampler(range(80), FakeGroup(0, [4, 4], alike=False), 8)
    next(iter(sampler))
    with pytest.raises(landbridge.RanksDisagree, match="new sampler on every rank"):
        sampler.end_step(1.0)


def test_a_disagreement_names_the_arguments_of_the_sampler(monkeypatch):
    sampler = UnevenSampler(range(80), FakeGroup(0, [4, 4]), 8, prefetch=2)
    next(iter(sampler))

    def disagree(*_, **__):
        raise landbridge.RanksDisagree("layouts differ", "this rank passed integers")

    monkeypatch.setattr(FakeGroup, "end_step", disagree)
    words = (
        "differ; this sampler has 80 samples, global_batch=8, shuffle=True, seed=0, prefetch=2, "
        "epoch 0 after 0 batches, and is of trainer 0 of 1 of its site"
    )
    with pytest.raises(landbridge.RanksDisagree, match=words):
        sampler.end_step(1.0)


OTHER_ORDERS = {
    "seed": {"seed": 7},
    "shuffle": {"shuffle": False},
    "samples": {"dataset": range(81)},
    "epoch": {"epoch": 1},
    "done": {"done": 1},
}


def one_step(group, process_group=None, dataset=range(80), epoch=0, done=0, **options):  # noqa: B008
    """Makes a sampler, draws a batch, and ends its step."""
    sampler = UnevenSampler(dataset, group, 8, process_group=process_group, **options)
    sampler.set_epoch(epoch, done)
    next(iter(sampler))
    sampler.end_step(0.5)


@pytest.mark.parametrize("change", OTHER_ORDERS)
def test_ranks_that_draw_in_other_orders_raise(change, two_groups):
    def step(group):
        one_step(group)
        with pytest.raises(landbridge.RanksDisagree, match="this sampler has 8[01] samples"):
            one_step(group, **OTHER_ORDERS[change] if group.rank else {})

    call_for_all(two_groups, step)


@pytest.mark.parametrize("change", OTHER_ORDERS)
def test_trainers_of_a_site_in_other_orders_raise(change, monkeypatch):
    monkeypatch.setattr(_local_ranks, "dist", FakeDistributed(2))

    def step(local):
        group = FakeGroup(0, [4, 4])
        with pytest.raises(landbridge.RanksDisagree, match="trainers of this site.*this sampler"):
            one_step(group, local, **OTHER_ORDERS[change] if local else {})
        assert not group.step_ends, "no other site was told"

    call_for_all(range(2), step)


class FakeDistributed:
    """A stand-in for `torch.distributed`: trainers of a site, each a thread of this process."""

    ReduceOp = dist.ReduceOp

    def __init__(self, size):
        self.size, self.values = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=DEADLINE_S)

    def get_world_size(self, process_group):
        return self.size

    def get_rank(self, process_group):
        return process_group

    def all_reduce(self, tensor, op, group):
        assert op == dist.ReduceOp.MAX
        self.values[group] = tensor.clone()
        self.barrier.wait()
        tensor.copy_(torch.stack(self.values).amax(0))
        self.barrier.wait()


def sites_of(splits, size, samples, batch, **options):
    """Returns a sampler for each trainer of sites of `size` trainers."""
    return [
        UnevenSampler(
            range(samples), FakeGroup(rank, *splits), batch, process_group=local, **options
        )
        for rank in range(len(splits[0]))
        for local in range(size)
    ]


def test_trainers_of_a_site_share_its_part_of_any_size(monkeypatch):
    """All trainers together have the global batch in each step, and no sample twice."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(100):
        sites, size = rng.randint(1, 4), rng.randint(1, 5)
        monkeypatch.setattr(_local_ranks, "dist", FakeDistributed(size))
        speeds = [rng.uniform(1, 4) for _ in range(sites)]
        batch = rng.randint(sites * size * 4, 80)
        split = batch_split_shares(batch, speeds)
        samples = batch * rng.randint(1, 4) + rng.randrange(batch)
        samplers = sites_of([split], size, samples, batch, seed=rng.randrange(9))
        steps = list(zip(*samplers))
        assert len(steps) == samples // batch
        for step in steps:
            parts = [len(part) for part in step]
            assert parts == [sampler.share for sampler in samplers]
            of_sites = [parts[site * size : (site + 1) * size] for site in range(sites)]
            assert [sum(of_site) for of_site in of_sites] == split
            assert all(max(of_site) - min(of_site) <= 1 for of_site in of_sites)
        seen = [index for step in steps for part in step for index in part]
        assert len(set(seen)) == len(seen) == len(steps) * batch
        assert set(seen) <= set(range(samples))


def test_trainers_of_a_site_follow_the_slowest_of_them(monkeypatch):
    """Each trainer keeps at least one sample."""
    monkeypatch.setattr(_local_ranks, "dist", FakeDistributed(3))
    samplers = sites_of([[7, 5], [9, 3], [11, 1]], 3, 48, 12)
    draws = [iter(sampler) for sampler in samplers]
    shares = []
    for _ in range(4):
        parts = [next(of_one) for of_one in draws]
        assert len({index for part in parts for index in part}) == 12
        shares.append([len(part) for part in parts])
        for site in range(2):
            both = list(enumerate(samplers))[3 * site : 3 * site + 3]
            call_for_all(both, lambda one: one[1].end_step(1.0 + one[0] % 3))
    assert shares == [[3, 2, 2, 2, 2, 1], [3, 3, 3, 1, 1, 1]] + [[3, 3, 3, 1, 1, 1]] * 2
    of_groups = [sampler._split.step_ends for sampler in samplers]
    for step_ends in of_groups[:3]:
        assert (step_ends[0]["seconds"], step_ends[0]["samples"]) == (3.0, 7)
    assert len({step_ends[0]["layout"] for step_ends in of_groups}) == 3, (
        "jobs of different local ranks"
    )


def test_a_trainer_unable_to_end_a_step_releases_its_site(monkeypatch):
    monkeypatch.setattr(_local_ranks, "dist", FakeDistributed(2))

    def raised(times, failing=None):
        samplers = sites_of([[4, 4]], 2, 48, 8)[:2]
        for sampler in samplers:
            next(iter(sampler))
        if failing is not None:
            samplers[failing]._split.end_step = fail
        pairs = list(zip(samplers, times))
        return call_for_all(
            pairs, lambda one: pytest.raises(Exception, one[0].end_step, one[1]).value
        )

    def fail(*_, **__):
        raise landbridge.RanksTimedOut("of this test")

    own, other = raised([float("nan"), 1.0])
    assert isinstance(own, landbridge.ConfigError) and "computed_seconds" in str(own)
    assert isinstance(other, landbridge.EpochEnded) and "rank 0 of this site" in str(other)
    other, own = raised([1.0, 1.0], failing=1)
    assert isinstance(own, landbridge.RanksTimedOut)
    assert isinstance(other, landbridge.EpochEnded) and "rank 1 of this site" in str(other)


def test_sites_too_slow_for_all_their_trainers_are_refused(monkeypatch):
    monkeypatch.setattr(_local_ranks, "dist", FakeDistributed(3))
    with pytest.raises(landbridge.ConfigError, match="the 3 trainers of rank 1 get 2 samples"):
        sites_of([[6, 2]], 3, 48, 8)


def test_a_sampler_without_the_process_group_is_refused(monkeypatch):
    """Local ranks would train on the same samples."""
    monkeypatch.setattr(_local_ranks, "dist", FakeDistributed(2))
    alone, of_site = FakeGroup(0, [4, 4]), FakeGroup(0, [4, 4])
    UnevenSampler(range(8), alone, 8)
    UnevenSampler(range(8), of_site, 8, process_group=1)
    for made in (
        lambda: State(alone, 0),
        lambda: UnevenSampler(range(8), alone, 8, process_group=0),
        lambda: State(of_site),
        lambda: FlatGrads(torch.nn.Linear(1, 1), of_site),
    ):
        with pytest.raises(landbridge.ConfigError, match="the same process group"):
            made()


class Numbers(torch.utils.data.Dataset):
    """A data set whose samples are their own indices."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_follows_speeds_that_drift(workers, groups):
    """One of three real ranks has a fourth of its expected speed. Workers have two batches each."""
    context = "fork" if workers else None
    options = {"shuffle": False, "ahead": 2 * workers, "limits": [12, 12, 5]}
    samplers = [UnevenSampler(Numbers(), group, 12, **options) for group in groups]
    loaders = [
        torch.utils.data.DataLoader(
            Numbers(), batch_sampler=sampler, num_workers=workers, multiprocessing_context=context
        )
        for sampler in samplers
    ]
    changes, step = [], 0
    for _ in range(3):
        for parts in zip(*loaders):
            shares = [len(part) for part in parts]
            assert shares == [sampler.share for sampler in samplers]
            assert shares == ([4, 3, 5] if step < 5 + 2 * workers else [5, 5, 2]), step
            begin = step % 8 * 12
            assert torch.cat(parts).tolist() == list(range(begin, begin + 12))
            took = [share / speed for share, speed in zip(shares, [100.0, 100.0, 50.0])]
            both = zip(samplers, took)
            changes.append(call_for_all(both, lambda one: one[0].end_step(one[1])))
            step += 1
    assert changes == [[step == 4] * 3 for step in range(24)]
