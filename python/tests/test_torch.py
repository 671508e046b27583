"""PyTorch: DDP over two sites, gradients in the arena, equal parameters, unequal batches."""

import contextlib
import multiprocessing
from types import SimpleNamespace

import pytest

import landbridge
from conftest import attached, on_all
from landbridge._lab import Lab, LinkSpec
from landbridge.operation import Operation

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import trainer as trainers  # noqa: E402

from landbridge.torch import (  # noqa: E402
    FlatGrads,
    State,
    UnevenSampler,
    all_reduce_hook,
    check_module,
    sync_module,
)
from landbridge.torch._hook import layout_of  # noqa: E402

PATIENCE_S = 120


#: Its server imports torch once, and each trainer is forked from it.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["trainer"])


class Process:
    """A trainer, and what it says."""

    def __init__(self, **spec):
        self.pipe, theirs = FORKS.Pipe()
        self.process = FORKS.Process(target=trainers.main, args=(spec, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def says(self, key):
        """The next message that has `key`, and those before it."""
        said = []
        while not said or key not in said[-1]:
            assert self.pipe.poll(PATIENCE_S), f"no {key} after {said}"
            try:
                said.append(self.pipe.recv())
            except EOFError:
                self.process.join()
                code = self.process.exitcode
                raise AssertionError(
                    f"a trainer ended with {code}, no {key} after {said}"
                ) from None
        return said

    def go_on(self):
        self.pipe.send("go on")

    def end(self):
        self.process.kill()
        self.process.join()
        self.pipe.close()


@contextlib.contextmanager
def trainers_of(specs):
    with contextlib.ExitStack() as stack:
        processes = []
        for spec in specs:
            processes.append(Process(**spec))
            stack.callback(processes[-1].end)
        yield processes


def outcome(process):
    """The loss of each step, the digest and the weights. A step that was begun again counts once,
    as it ended."""
    lines = process.says("weights")
    digest = next(line["digest"] for line in lines if "digest" in line)
    return losses_of(lines), digest, torch.tensor(lines[-1]["weights"])


def losses_of(lines):
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def one_process(parts):
    """The same training in one process: for each part of a batch the loss of each step, and the
    weights. `parts`, lists of lists of batch sizes, say in which order gradients are added up:
    first inside each site."""
    torch.set_num_threads(1)
    model = trainers.make_model(seed=0)
    optimizer, data = trainers.make_optimizer(model), trainers.make_data()
    total = sum(sum(site) for site in parts)
    losses = [{} for site in parts for _ in site]
    for step in range(trainers.STEPS):
        begin, sites = step * trainers.GLOBAL_BATCH, []
        curves = iter(losses)
        for site in parts:
            ranks = []
            for size in site:
                model.zero_grad()
                loss = trainers.loss_of(model, data, list(range(begin, begin + size)))
                loss.backward()
                next(curves)[step] = loss.item()
                ranks.append([p.grad * size for p in model.parameters()])
                begin += size
            sites.append([sum(grads[1:], grads[0]) for grads in zip(*ranks)])
        for parameter, *grads in zip(model.parameters(), *sites):
            parameter.grad = sum(grads[1:], grads[0]) / total
        optimizer.step()
    return losses, torch.cat([p.detach().reshape(-1) for p in model.parameters()])


#: Between the sites, where a test says nothing else: far, and not without loss.
FAR = LinkSpec(rtt="80 ms", loss="0.1 %")


def specs_of(lab, mode, tmp_path, **more):
    """Two sites of two trainers each."""
    for trainer in range(4):
        site, local = divmod(trainer, 2)
        yield {
            "mode": mode,
            "config": str(lab.config(["east", "west"][site])),
            "trainer": trainer,
            "ranks": 4,
            "rank": site if mode == "sharded" else trainer,
            "job": f"train-{local}" if mode == "sharded" else "train",
            "local_rank": local,
            "local_size": 2,
            "store": f"file://{tmp_path}/store-{site}",
            **more,
        }


@pytest.mark.parametrize("mode", ["ddp", "sharded", "flat"])
def test_two_sites_train_like_one_process_to_the_bit(mode, tmp_path):
    """The loss of each trainer in each step, and the weights at the end. Buckets of 10 kB, which
    DDP makes anew after the first step."""
    layout = {"ranks": (1, 1), "jobs": ("train-0", "train-1")} if mode == "sharded" else {
        "ranks": (2, 2)}  # fmt: skip
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab(link=FAR, **layout))
        processes = stack.enter_context(trainers_of(specs_of(lab, mode, tmp_path)))
        outcomes = on_all(processes, outcome)
    assert len({digest for _, digest, _ in outcomes}) == 1
    losses, weights = one_process([[4, 4], [4, 4]])
    assert [outcome[0] for outcome in outcomes] == losses
    assert torch.equal(outcomes[0][2], weights)


@pytest.mark.parametrize("mode", ["ddp", "flat"])
def test_unequal_sites_train_like_one_process(mode, tmp_path):
    with Lab(ranks=(1, 1), speeds=(3.0, 1.0), link=FAR) as lab:
        specs = [
            {"mode": mode, "config": str(lab.config_of(rank)), "rank": rank, "local_rank": 0,
             "local_size": 1, "store": f"file://{tmp_path}/store-{rank}"}
            for rank in range(2)
        ]  # fmt: skip
        with trainers_of(specs) as processes:
            outcomes = on_all(processes, outcome)
    assert outcomes[0][1] == outcomes[1][1]
    assert_alike(outcomes, one_process([[12], [4]]))


def assert_alike(outcomes, reference):
    """To rounding, which unequal weights bring about."""
    losses, weights = reference
    for (curve, _, _), expected in zip(outcomes, losses):
        # A trainer that lived through a failure tells the rest of its curve.
        assert curve.keys() == set(range(min(curve), trainers.STEPS))
        for step, loss in curve.items():
            assert loss == pytest.approx(expected[step], rel=1e-4, abs=1e-6), step
    torch.testing.assert_close(outcomes[0][2], weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["ddp", "flat"])
def test_a_trainer_killed_at_step_5_and_restarted_changes_nothing(mode, tmp_path):
    with Lab(ranks=(1, 1), speeds=(3.0, 1.0), link=FAR) as lab:

        def spec(rank, **more):
            return {
                "mode": mode, "config": str(lab.config_of(rank)), "rank": rank, "local_rank": 0,
                "local_size": 1, "store": f"file://{tmp_path}/{len(more)}-{rank}",
                "checkpoint": f"{tmp_path}/checkpoint-{rank}", **more,
            }  # fmt: skip

        with trainers_of([spec(0), spec(1, hold_at=5)]) as (survivor, victim):
            begun = [victim.says("held")]
            victim.end()
            begun.insert(0, survivor.says("failed"))
            told = begun[0][-1]
            assert told["failed"] == "RankLost" and told["step"] == 5
            assert "rank 1" in told["text"]
            with trainers_of([spec(1)]) as (again,):
                outcomes = on_all([survivor, again], outcome)
        (tmp_path / "checkpoint-0").unlink()
        (tmp_path / "checkpoint-1").unlink()
        with trainers_of([spec(0, new=1), spec(1, new=1)]) as processes:
            uninterrupted = on_all(processes, outcome)
    assert {o[1] for o in outcomes} == {o[1] for o in uninterrupted}
    for before, after, whole in zip(begun, outcomes, uninterrupted):
        assert {**losses_of(before), **after[0]} == whole[0]
    assert_alike(outcomes, one_process([[12], [4]]))


def test_a_killed_gateway_is_told_by_backward_and_training_goes_on(tmp_path):
    with Lab(ranks=(1, 1)) as lab:
        specs = [
            {"mode": "ddp", "config": str(lab.config_of(rank)), "rank": rank, "local_rank": 0,
             "local_size": 1, "store": f"file://{tmp_path}/store-{rank}", "hold_at": 3}
            for rank in range(2)
        ]  # fmt: skip
        with trainers_of(specs) as processes:
            for process in processes:
                process.says("held")
            lab.kill("east")
            for process in processes:
                process.go_on()
            raised = processes[0].says("raised")[-1]["raised"]
            assert "gradients were not averaged: landbridge.GatewayLost" in raised
            assert "connection to the gateway ended" in raised
            assert processes[0].says("failed")[-1]["failed"] == "GatewayLost"
            lab.start("east")
            # Both hold once more where they fell back to, for they begin the step again.
            for process in processes:
                process.says("held")
                process.go_on()
            outcomes = on_all(processes, outcome)
    assert_alike(outcomes, one_process([[8], [8]]))
    assert outcomes[0][1] == outcomes[1][1]


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


def test_a_failure_that_comes_after_recovery_does_not_spoil_the_next_step():
    """Of two buckets one fails at once: `backward` raises then, whatever becomes of the other."""
    group = GroupOfLate()
    state = State(group)
    bucket = SimpleNamespace(
        buffer=lambda: torch.ones(3), parameters=list, index=lambda: 0, is_last=lambda: True
    )
    first, second = [state.start(bucket) for _ in range(2)]
    group.posted[0]._settle(None, landbridge.RegionLost("of the first"))
    with pytest.raises(Exception, match="of the first"):
        first.wait()
    state.recover()
    group.posted[1]._settle(None, landbridge.RegionLost("of the second"))
    with pytest.raises(Exception, match="of the second"):
        second.wait()
    assert state.failure is None
    state.start(bucket)
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
            seen.append(layout_of(bucket))
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


class FakeGroup:
    def __init__(self, rank, shares):
        self.rank, self._shares = rank, shares

    def batch_shares(self, global_batch):
        assert global_batch == sum(self._shares)
        return self._shares


def test_unequal_batches_cover_every_global_batch_once():
    shares = [3, 1, 4]
    samplers = [UnevenSampler(range(50), FakeGroup(rank, shares), 8) for rank in range(3)]
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


def test_a_rank_without_samples_is_refused():
    with pytest.raises(landbridge.ConfigError, match="rank 1 gets no sample"):
        UnevenSampler(range(9), FakeGroup(0, [8, 0]), 8)
