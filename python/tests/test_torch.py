"""PyTorch: DDP over two sites, gradients in the arena, equal parameters."""

import contextlib
import gc
import os
import signal
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

import landbridge
from conftest import DEADLINE_S, attached, on_all, usage
from landbridge._lab import Lab
from landbridge.operation import Operation

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import trainer as trainers  # noqa: E402

from landbridge.torch import (  # noqa: E402
    FlatGrads,
    State,
    all_reduce_hook,
    check_module,
    sync_module,
)
from landbridge.torch._hook import layout_of  # noqa: E402
from two_sites import (  # noqa: E402
    FAR,
    assert_alike,
    losses_of,
    one_process,
    outcome,
    specs_of,
    specs_of_two,
    trainers_of,
)


@pytest.mark.parametrize("mode", ["ddp", "sharded", "parts", "flat"])
def test_two_sites_train_like_one_process_to_the_bit(mode, tmp_path):
    """The loss of each trainer in each step, and the weights at the end. Buckets of 10 kB, which
    DDP makes anew after the first step. `parts`: the sites are parts of one default group."""
    sharded = mode in ("sharded", "parts")
    layout = {"ranks": (1, 1), "jobs": ("train-0", "train-1")} if sharded else {"ranks": (2, 2)}
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab(link=FAR, **layout))
        specs = list(specs_of(lab, "sharded" if sharded else mode, tmp_path))
        if mode == "parts":
            for index, spec in enumerate(specs):
                spec.update(local_rank=index, local_size=4, parts=[[0, 1], [2, 3]])
                spec["store"] = f"file://{tmp_path}/store"
        processes = stack.enter_context(trainers_of(specs))
        outcomes = on_all(processes, outcome)
    assert len({digest for _, digest, _ in outcomes}) == 1
    losses, weights = one_process(lambda _: [[4, 4], [4, 4]])
    assert [outcome[0] for outcome in outcomes] == losses
    assert torch.equal(outcomes[0][2], weights)


#: Within which `backward` tells of a failure.
TOLD_S = 60


def raised_of(process):
    """What `backward` raised, soon enough, and what the trainer said up to that."""
    said = process.says("raised")
    assert said[-1]["after_s"] < TOLD_S
    return said[-1]["raised"], said


@pytest.mark.parametrize("mode", ["ddp", "flat", "sharded"])
def test_a_trainer_killed_at_step_5_and_restarted_changes_nothing(mode, tmp_path):
    """With shards it takes its site with it, which is started anew as a whole."""
    sharded = mode == "sharded"
    more = {"jobs": ("train-0", "train-1")} if sharded else {"speeds": (3.0, 1.0)}
    with Lab(ranks=(1, 1), link=FAR, **more) as lab:

        def specs(run, hold_at=None):
            (tmp_path / run).mkdir()
            made = list((specs_of if sharded else specs_of_two)(lab, mode, tmp_path / run))
            for index, spec in enumerate(made):
                kept = tmp_path / ("whole" if run == "whole" else "broken")
                spec["checkpoint"] = f"{kept}-{index}"
            made[-1]["hold_at"] = hold_at
            return made

        with trainers_of(specs("first", hold_at=5)) as processes:
            east, west = halves(processes)
            begun = [west[-1].says("held")]
            west[-1].end()
            if sharded:
                text, said = raised_of(west[0])
                assert "landbridge.SiteFailed: the trainers of this site" in text
                begun.insert(0, said)
                west[0].end()
            begun = [survivor.says("failed") for survivor in east] + begun
            for told in (begun[index][-1] for index in range(len(east))):
                assert told["failed"] == "RankLost" and told["step"] == 5
                assert "rank 1" in told["text"]
            with trainers_of(specs("again")[len(east) :]) as again:
                outcomes = on_all([*east, *again], outcome)
        with trainers_of(specs("whole")) as processes:
            uninterrupted = on_all(processes, outcome)
    assert {o[1] for o in outcomes} == {o[1] for o in uninterrupted}
    for before, after, whole in zip(begun, outcomes, uninterrupted):
        assert {**losses_of(before), **after[0]} == whole[0]
    assert_alike(outcomes, one_process(lambda _: [[4, 4], [4, 4]] if sharded else [[12], [4]]))


def halves(items):
    """Those of the east, those of the west."""
    return items[: len(items) // 2], items[len(items) // 2 :]


@pytest.mark.parametrize("mode", ["ddp", "sharded"])
def test_a_killed_gateway_is_told_by_backward_and_training_goes_on(mode, tmp_path):
    sharded = mode == "sharded"
    with Lab(ranks=(1, 1), jobs=("train-0", "train-1") if sharded else ("train",)) as lab:
        specs = (specs_of if sharded else specs_of_two)(lab, mode, tmp_path, hold_at=3)
        with trainers_of(specs) as processes:
            for process in processes:
                process.says("held")
            lab.kill("east")
            for process in processes:
                process.go_on()
            for process in halves(processes)[0]:
                text, _ = raised_of(process)
                assert "gradients were not averaged: landbridge.GatewayLost" in text
                assert "connection to the gateway ended" in text
                assert process.says("failed")[-1]["failed"] == "GatewayLost"
            lab.start("east")
            # All hold once more where they fell back to, for they begin the step again.
            for process in processes:
                process.says("held")
                process.go_on()
            outcomes = on_all(processes, outcome)
    assert_alike(outcomes, one_process(lambda _: [[4, 4], [4, 4]] if sharded else [[8], [8]]))


def test_a_rank_that_cannot_post_its_shard_does_not_hold_up_its_site(tmp_path):
    with Lab(ranks=(1, 1), jobs=("train-0", "train-1")) as lab:
        specs = list(specs_of(lab, "sharded", tmp_path))
        specs[0]["fill_at"] = 3
        with trainers_of(specs) as processes:
            (full, _), (other, _) = [raised_of(process) for process in processes[:2]]
    assert "landbridge.ArenaFull" in full
    assert "landbridge.EpochEnded" in other
    assert "rank 0 of this site could not exchange its shard" in other


class GroupOfLate:
    """Collectives that fail when they are told to."""

    def __init__(self):
        self.posted = []

    def empty(self, elements, dtype):
        return torch.empty(elements, dtype=dtype)

    def all_reduce_async(self, gradients, **_):
        self.posted.append(Late())
        return self.posted[-1]

    def recover(self, failure, timeout):
        pass


class Late(Operation):
    def __init__(self):
        super().__init__(None, None)


BUCKET = SimpleNamespace(
    buffer=lambda: torch.ones(3), parameters=list, index=lambda: 0, is_last=lambda: True
)


def test_a_failure_that_comes_after_recovery_does_not_spoil_the_next_step():
    """Of two buckets one fails at once: `backward` raises then, whatever becomes of the other."""
    group = GroupOfLate()
    state = State(group)
    first, second = [state.start(BUCKET) for _ in range(2)]
    group.posted[0]._settle(None, landbridge.RegionLost("of the first"))
    with pytest.raises(Exception, match="of the first"):
        first.wait()
    state.recover()
    group.posted[1]._settle(None, landbridge.RegionLost("of the second"))
    with pytest.raises(Exception, match="of the second"):
        second.wait()
    assert state.failure is None
    state.start(BUCKET)
    assert len(group.posted) == 3, "the next step is sent"


@pytest.fixture
def one_trainer(tmp_path):
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_hook_has_the_signature_that_ddp_asks_for(one_trainer):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model.register_comm_hook(None, all_reduce_hook)


def test_buckets_stay_as_they_are_where_trainers_may_come_back(one_trainer):
    """DDP makes other buckets after its first step. A trainer that was started anew has not done
    so; that is told by `layout`, and does not happen with `find_unused_parameters`."""
    for stays in (False, True):
        model = torch.nn.parallel.DistributedDataParallel(
            trainers.make_model(0), bucket_cap_mb=0.01, find_unused_parameters=stays
        )
        layouts = []

        def hook(seen, bucket):
            seen.append(layout_of(bucket, ""))
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        # DDP compares the types of its parameters.
        hook.__annotations__ = all_reduce_hook.__annotations__
        model.register_comm_hook(layouts, hook)
        steps = []
        for _ in range(3):
            layouts.clear()
            trainers.loss_of(model, trainers.make_data(), [0, 1]).backward()
            steps.append(list(layouts))
        assert (steps[0] == steps[1]) == stays
        assert steps[1] == steps[2]
        assert len(steps[1]) > 1


@pytest.fixture
def groups():
    with Lab(ranks=(1, 1)) as lab, attached(lab) as both:
        yield both


def test_parameters_and_buffers_become_those_of_the_root(groups):
    def modules(group):
        module = torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.BatchNorm1d(7))
        module.register_buffer("flags", torch.tensor([group.rank == 1, True]))
        module.register_buffer("none", torch.empty(0))
        module.register_buffer("big", torch.full((3 << 20,), float(group.rank)))
        module.half()[0].double()
        with pytest.raises(landbridge.RanksDisagree, match="layout"):
            check_module(module, group)
        sync_module(module, group, root=1)
        assert check_module(module, group)
        return [t.clone() for t in module.state_dict().values()]

    first, second = on_all(groups, modules)
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert first[0].tolist() == [True, True] and first[2][-1] == 1 and len(first) == 10


def test_modules_of_different_shape_are_told_before_anything_is_overwritten(groups):
    def step(group):
        module = torch.nn.Linear(3, 3 + group.rank)
        before = module.weight.clone()
        with pytest.raises(landbridge.RanksDisagree):
            sync_module(module, group)
        assert torch.equal(module.weight, before)

    on_all(groups, step)


class Partly(torch.nn.Module):
    """Has parameters that it does not use."""

    def __init__(self):
        super().__init__()
        self.used = torch.nn.Parameter(torch.ones(5))
        self.unused = torch.nn.Parameter(torch.ones(3))
        self.also_used = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, scale):
        return (self.used.sum() + self.also_used.sum()) * scale


def test_flat_gradients_of_unused_parameters_and_several_backwards(groups):
    def step(group):
        model = Partly()
        grads = FlatGrads(model, group)
        taken = group._arena.used_bytes
        for _ in range(3):
            grads.zero()
            with grads.no_sync():
                model(group.rank + 1.0).backward()
            model(10.0).backward()
            grads.wait()
            assert model.used.grad.tolist() == [11.5] * 5
            assert model.unused.grad.tolist() == [0] * 3
            assert model.also_used.grad.tolist() == [11.5] * 4
        assert group._arena.used_bytes <= taken, "no copies"

    on_all(groups, step)


def test_flat_gradients_that_were_dropped_are_told(groups):
    model = Partly()
    grads = FlatGrads(model, groups[0])
    model.zero_grad()
    with pytest.raises(Exception, match="in place of `zero_grad`"):
        model(1.0).backward()
    grads.zero()


def test_flat_gradients_are_not_added_to_while_they_are_sent(groups):
    def step(group):
        model = Partly()
        grads = FlatGrads(model, group, timeout=60, bucket_bytes=1)
        with grads.no_sync():
            model(1.0).backward()
        model(group.rank + 1.0).backward()
        with pytest.raises(Exception, match="while it was being sent"):
            model(1.0).backward()
        # What was sent is not what is there: the step is begun anew.
        with pytest.raises(landbridge.ConfigError, match="begin the step again"):
            grads.wait()
        grads.zero()
        model(group.rank + 1.0).backward()
        grads.wait()
        return model.used.grad.tolist()

    assert on_all(groups, step) == [[1.5] * 5] * 2


def test_flat_gradients_are_sent_again_after_a_failure(groups):
    failing = [True]

    def step(group):
        model = Partly()
        grads = FlatGrads(model, group, timeout=60)
        model(group.rank + 1.0).backward()
        if group.rank == 0 and failing:
            group._state.end(group._state.link, "for this test")
        try:
            grads.wait()
        except landbridge.CollectiveFailed as failure:
            assert model.used.grad.tolist() == [group.rank + 1.0] * 5, "its own, intact"
            group.recover(failure, 60)
            grads.wait()
        return model.used.grad.tolist()

    assert on_all(groups, step) == [[1.5] * 5] * 2


def test_a_hook_that_cannot_post_says_why(groups, one_trainer):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    state = State(groups[0])
    model.register_comm_hook(state, all_reduce_hook)
    groups[0].close()
    with pytest.raises(RuntimeError, match=r"landbridge\.Closed: the group was closed"):
        model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(landbridge.Closed), state.typed_errors():
        model(torch.ones(1, 2)).sum().backward()


def test_results_begin_where_their_storage_begins(groups, one_trainer):
    """DDP reads a result from the begin of its storage, whatever its offset."""

    def start(group):
        class Bucket:
            buffer = staticmethod(lambda: torch.full((1000,), group.rank + 1.0))
            parameters = staticmethod(lambda: [])
            index = staticmethod(lambda: 0)
            is_last = staticmethod(lambda: True)

        held = group.empty(100, torch.float32)  # so that the result is not at the arena's begin
        result = State(group).start(Bucket).wait()
        assert result.storage_offset() == 0 and result.untyped_storage().nbytes() >= 4000
        assert torch.as_strided(result, (1000,), (1,), 0).tolist() == [1.5] * 1000
        del held

    on_all(groups, start)


def come(predicate, what):
    """Waits for what a thread brings about, at any moment."""
    deadline = time.monotonic() + DEADLINE_S
    while not predicate():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.01)


def told_by(future):
    """How it failed. Its own `wait` would have no end if nobody completed it."""
    come(future.done, "a future is never completed")
    with pytest.raises(Exception) as told:
        future.value()
    return str(told.value)


def test_after_a_failure_a_site_goes_on_together_and_posts_nothing(one_trainer, monkeypatch):
    """Others of the site may have begun the same bucket."""
    group, reduced = GroupOfLate(), []
    state = State(group, dist.group.WORLD)
    first = state.start(BUCKET)
    come(lambda: group.posted, "the first is not posted")
    group.posted[0]._settle(None, landbridge.RegionLost("of the first"))
    assert "of the first" in told_by(first)

    def reduce_scatter(*arguments, reduce_scatter=dist.reduce_scatter_tensor, **more):
        reduced.append(arguments)
        return reduce_scatter(*arguments, **more)

    monkeypatch.setattr(dist, "reduce_scatter_tensor", reduce_scatter)
    assert "failed already" in told_by(state.start(BUCKET))
    assert (len(reduced), len(group.posted)) == (1, 1)
    assert isinstance(state.failure, landbridge.RegionLost)
    state.recover()
    state.start(BUCKET)
    come(lambda: len(group.posted) == 2, "the next step is not posted")
    # Its thread shall not outlive the test.
    group.posted.pop()._settle(None, landbridge.RegionLost("of the next step"))
    group.posted.clear()


@pytest.mark.parametrize("broken", ["reduce_scatter_tensor", "empty", "all_gather_into_tensor"])
def test_whatever_a_site_meets_its_buckets_are_completed(broken, one_trainer, monkeypatch):
    """Or `backward` would wait for ever."""

    def fail(*_, **__):
        raise ValueError("of this test")

    group = GroupOfLate()
    state = State(group, dist.group.WORLD)
    monkeypatch.setattr(group if broken == "empty" else dist, broken, fail)
    monkeypatch.setattr(Late, "wait", lambda _: None)
    for _ in range(2):
        text = told_by(state.start(BUCKET))
        assert "landbridge.SiteFailed" in text and "ValueError: of this test" in text
    monkeypatch.undo()
    assert "ValueError: of this test" in told_by(state.start(BUCKET)), "there is no way back"
    with pytest.raises(landbridge.SiteFailed):
        raise state.failure


def test_a_state_that_is_dropped_leaves_nothing(one_trainer):
    """Also after a failure, which holds frames."""

    def threads():
        names = ("landbridge-exchange", "landbridge-gather")
        return sum(thread.name in names for thread in threading.enumerate())

    def once():
        group = GroupOfLate()
        state = State(group, dist.group.WORLD)
        assert threads() == 2
        future = state.start(BUCKET)
        come(lambda: group.posted, "nothing is posted")
        # As a group, which keeps none of those that have ended.
        group.posted.pop()._settle(None, landbridge.RegionLost("of this test"))
        assert "of this test" in told_by(future)
        gone = weakref.ref(group)
        del group, state, future
        gc.collect()
        come(lambda: threads() == 0, "a thread does not end")
        assert gone() is None

    gc.collect()
    come(lambda: threads() == 0, "a thread of another test does not end")
    once()
    before = usage(readers=0)
    for _ in range(5):
        once()
    after = usage(readers=0)
    assert after["descriptors"] == before["descriptors"]
    assert after["threads"] == before["threads"]


@pytest.mark.parametrize("mode", ["ddp", "sharded"])
def test_steps_of_the_hook_leak_nothing(mode, groups, one_trainer):
    def trainer(group):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 64) for _ in range(4)]
        module = torch.nn.Sequential(*layers)
        # Several buckets of 16 KiB.
        model = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=0.01)
        state = State(group, dist.group.WORLD if mode == "sharded" else None)
        model.register_comm_hook(state, all_reduce_hook)
        return model

    models = [trainer(group) for group in groups]

    def steps(count):
        def run(model):
            for _ in range(count):
                model.zero_grad()
                model(torch.ones(2, 64)).sum().backward()

        on_all(models, run)
        gc.collect()
        for group in groups:
            group._state.wait_until(lambda: not group._state.entries, None)  # noqa: B023
        return {**usage(readers=2), "slots": [group._arena.used_bytes for group in groups]}

    before = steps(100)
    after = steps(1000)
    for what in ("descriptors", "threads"):
        assert after[what] == before[what]
    # DDP, or a thread of the hook, may hold a bucket of the last step until the next one.
    assert max(after["slots"]) <= 4 * 16_640, "slots of more than one step"
    # 1,000 steps of 66 KB for each of two ranks, had they stayed, were 130 MB.
    assert after["rss"] - before["rss"] < 4 << 20


@pytest.mark.parametrize("mode", ["ddp", "sharded"])
def test_ctrl_c_ends_backward_at_once(mode, groups, one_trainer, ctrl_c_interrupts):
    """While it waits for another site."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    state = State(groups[0], dist.group.WORLD if mode == "sharded" else None)
    model.register_comm_hook(state, all_reduce_hook)
    loss, pressed = model(torch.ones(1, 2)).sum(), []

    def press():
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timers = [threading.Timer(0.5, press), threading.Timer(20, groups[0].close)]
    for timer in timers:
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    assert time.monotonic() - pressed[0] < 5, "of thirty minutes"
    for timer in timers:
        timer.cancel()


class Rows(torch.utils.data.Dataset):
    """Each row says its number; made in a worker, which is forked from the trainer."""

    def __init__(self, group):
        self._group = group

    def __len__(self):
        return 24

    def __getitem__(self, index):
        with pytest.raises(landbridge.ForkedProcess):
            self._group.empty(1, torch.float32)
        return torch.full((4,), float(index))


def test_workers_of_a_data_loader_do_not_disturb_the_client(groups):
    """Two at a time, forked and ended with a collective under way."""
    first, second = groups
    for _ in range(2):
        under_way = first.all_reduce_async(torch.ones(1000), "sum")
        loader = torch.utils.data.DataLoader(
            Rows(first), batch_size=4, num_workers=2, multiprocessing_context="fork"
        )
        for index, batch in enumerate(loader):
            if index == 0:
                assert second.all_reduce(torch.ones(1000), "sum")[0] == 2
                assert under_way.wait(DEADLINE_S)[0] == 2
            both = [group.all_reduce_async(batch, "sum") for group in groups]
            expected = torch.arange(4.0 * index, 4.0 * index + 4)[:, None].expand(4, 4) * 2
            assert all(torch.equal(op.wait(DEADLINE_S), expected) for op in both)
