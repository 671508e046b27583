"""PyTorch: the DDP hook, gradients in the arena, equal parameters, after failures too."""

import contextlib
import gc
import os
import signal
import threading
import time
import weakref
from functools import partial
from types import SimpleNamespace

import pytest

import landbridge
import stand_in_gateway
from conftest import DEADLINE_S, attached, in_fork, on_all, usage
from landbridge._operation import Operation
from landbridge._testing import Lab

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import trainer as trainers  # noqa: E402
from landbridge.torch import (  # noqa: E402
    FlatGrads,
    State,
    _resume,
    all_reduce_hook,
    check_module,
    module_digest,
    resume,
    sync_module,
)
from landbridge.torch._hook import layout_of  # noqa: E402
from landbridge.torch._sync import names_digest  # noqa: E402


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


def test_the_only_group_of_a_process_need_not_be_named(monkeypatch):
    monkeypatch.setattr(landbridge._group.group, "_groups", weakref.WeakSet())
    model = torch.nn.Linear(3, 3)
    uses = (sync_module, check_module, FlatGrads, lambda _: State())

    def refused(count):
        for use in uses:
            with pytest.raises(landbridge.ConfigError, match=f"{count} groups are connected"):
                use(model)

    refused("no")
    with Lab(ranks=(1,)) as lab, attached(lab) as (group,):
        sync_module(model)
        assert check_module(model) == check_module(model, group)
        assert FlatGrads(model).group is State().group is group
        assert in_fork(partial(refused, "no")) == 0, "it is connected in its parent"
        with stand_in_gateway.alone():
            refused(2)
        assert State().group is group, "that is closed"
    refused("no")


_forward = threading.Lock()


class Small:
    """A trainer of one site in this process, who goes on after failures."""

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
        """Of one thread at a time."""
        if self.mode == "ddp":
            # Until it is collected, the hooks of an earlier one stay on the parameters.
            self.model = None
            gc.collect()
            self.model, self.state = ddp_of(self.module, self.group)
        else:
            self.model, self.grads = self.module, FlatGrads(self.module, self.group)
        return self

    def backward(self):
        # DDP keeps its model in the class during forward, and then puts back what was there: of
        # two threads at once, one's stays for ever, with its hooks.
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
        """The weights after that step."""
        while self.step < until:
            try:
                self.backward()
            except landbridge.CollectiveFailed as failure:
                self.recover(failure)
            else:
                self.finish()
        return torch.cat([p.detach().reshape(-1) for p in self.module.parameters()])


def ddp_of(module, group, process_group=None):
    # Buckets stay as they are, so that one that is made anew has the same.
    model = torch.nn.parallel.DistributedDataParallel(module, find_unused_parameters=True)
    state = State(group, process_group)
    model.register_comm_hook(state, all_reduce_hook)
    return model, state


def small_pair(groups, mode="ddp"):
    return [trainer.wrap() for trainer in on_all(groups, lambda group: Small(group, mode))]


def trained(trainers, until):
    """Their weights, which are the same."""
    weights = on_all(trainers, lambda trainer: trainer.train(until))
    assert all(torch.equal(weights[0], others) for others in weights)
    return weights[0]


@pytest.mark.parametrize("ahead", [0, 1])
def test_whoever_is_a_step_behind_is_given_it(ahead, groups, one_trainer):
    """Averages that came are as good as lost where the gateway is gone before they are read. The
    weights, what the optimizer remembers and how far its schedule is come to be the same."""
    whole = trained(small_pair(groups), 6)
    pair = small_pair(groups)
    trained(pair, 3)
    on_all(pair, Small.backward)
    pair[ahead].finish()
    on_all(pair, lambda trainer: trainer.recover(landbridge.RegionLost("for this test")))
    assert [trainer.step for trainer in pair] == [4, 4]
    assert torch.equal(trained(pair, 6), whole)
    assert pair[0].schedule.state_dict() == pair[1].schedule.state_dict()


def test_what_a_rank_has_stays_until_all_of_the_new_is_there(groups, one_trainer, monkeypatch):
    """Its epoch ends in mid-transfer, after which all begin that anew."""
    pair, cuts = small_pair(groups), []
    trained(pair, 2)
    on_all(pair, Small.backward)
    pair[1].finish()
    before = module_digest(pair[0].module)

    def cut(tensors, group, root):
        if group.rank == 0 and not cuts:
            cuts.append(module_digest(pair[0].module))
            group._state.end(group._state.link, "for this test")
        broadcast(tensors, group, root)

    broadcast = _resume.broadcast
    monkeypatch.setattr(_resume, "broadcast", cut)
    on_all(pair, lambda trainer: trainer.resume(trainer.step))
    assert cuts == [before] and [trainer.step for trainer in pair] == [3, 3]
    trained(pair, 4)


def test_different_weights_after_the_same_step_are_told(groups):
    def step(group):
        module = torch.nn.Linear(2, 2)
        told = []
        for step, others in ((3, ()), (3, (torch.optim.SGD(module.parameters()),) * group.rank)):
            with torch.no_grad():
                module.weight.fill_(group.rank)
            with pytest.raises(landbridge.RanksDisagree) as failure:
                resume(group, step, module, *others)
            told.append(str(failure.value))
        # Those of buffers may differ.
        norm = torch.nn.BatchNorm1d(2)
        norm.running_mean.fill_(group.rank)
        assert resume(group, 3, norm) == 3
        return told

    for parameters, kinds in on_all(groups, step):
        assert "after step 3 the parameters of rank 0 are not those of rank 1" in parameters
        assert "layout" in kinds


def test_a_module_is_the_same_with_ddp_around_it(one_trainer):
    module = torch.nn.Linear(2, 2)
    assert names_digest(torch.nn.parallel.DistributedDataParallel(module)) == names_digest(module)


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


def test_flat_averages_may_be_written_when_they_are_there():
    """Clipped, for one. The gateway may send from them until the contribution is free."""
    with stand_in_gateway.alone() as (group, gateway):
        model, returned = Partly(), threading.Event()
        grads = FlatGrads(model, group, bucket_bytes=1)
        model(1.0).backward()
        waiter = threading.Thread(target=lambda: (grads.wait(), returned.set()))
        waiter.start()
        posts = [gateway.hear() for _ in range(3)]
        gateway.say(*map(stand_in_gateway.ready, posts), *map(stand_in_gateway.free, posts[:2]))
        assert not returned.wait(0.05)
        gateway.say(stand_in_gateway.free(posts[2]))
        assert returned.wait(DEADLINE_S)
        waiter.join(DEADLINE_S)


def test_flat_gradients_are_sent_again_to_gateways_whose_epochs_count_anew():
    with stand_in_gateway.alone() as (group, gateway):
        model = torch.nn.Linear(2, 1, bias=False)
        grads = FlatGrads(model, group)
        model(torch.ones(1, 2)).sum().backward()
        post = gateway.hear()
        gateway.say(stand_in_gateway.ready(post), stand_in_gateway.free(post))
        group._state.wait_until(lambda: not group._state.entries, time.monotonic() + DEADLINE_S)
        # Whose averages came here, but not to other ranks.
        group._state.end(group._state.link, "for this test")
        gateway = stand_in_gateway.attach_anew(group)
        with pytest.raises(landbridge.GatewayLost):
            threading.Timer(0.1, gateway.hang_up).start()
            grads.wait()


@pytest.mark.parametrize("interrupted", ["send", "wait"])
def test_flat_gradients_are_sent_again_in_order_after_ctrl_c(groups, interrupted, monkeypatch):
    """Two of three buckets are out when the first rank is interrupted, or all of them."""

    all_sent = threading.Barrier(2)

    def press(*_):
        raise KeyboardInterrupt

    def step(group):
        model = Partly()
        grads = FlatGrads(model, group, timeout=60, bucket_bytes=1)
        model(group.rank + 1.0).backward()
        all_sent.wait(DEADLINE_S)
        if group.rank == 0:
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(grads._buckets[2], interrupted, press)
                grads.wait()
            group.recover(timeout=60)
        else:
            with contextlib.suppress(landbridge.CollectiveFailed):
                grads.wait()
            group.recover(timeout=60)
        grads.wait()
        return model.used.grad.tolist()

    assert on_all(groups, step) == [[1.5] * 5] * 2


def test_an_out_that_requires_grad_is_returned_itself(groups):
    def step(group):
        for out in (torch.zeros(3, requires_grad=True), group.empty(3, torch.float32)):
            out.requires_grad_()
            assert group.all_reduce(torch.full((3,), group.rank + 1.0), out=out) is out
            assert out.requires_grad and out.tolist() == [1.5] * 3

    on_all(groups, step)


def test_a_hook_that_cannot_post_says_why(groups, one_trainer):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    state = State(groups[0])
    model.register_comm_hook(state, all_reduce_hook)
    groups[0].close()
    with pytest.raises(RuntimeError, match=r"landbridge\.Closed: the group was closed") as told:
        model(torch.ones(1, 2)).sum().backward()
    # What torch says where an exception comes to it in a way that it cannot read.
    assert "Unable to cast" not in str(told.value)
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


@contextlib.contextmanager
def ctrl_c(otherwise):
    """Interrupts what is inside, which must end at once; if it does not, calls `otherwise`."""
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
    """What was sent before it stands: the other has the step, and this one is given it."""
    whole = trained(small_pair(groups, mode), 5)
    east, west = small_pair(groups, mode)
    trained((east, west), 2)
    with ctrl_c(otherwise=groups[0].close):
        east.train(3)
    west.train(3)
    if mode == "ddp":
        east.wrap()

    def go_on(trainer):
        if trainer is east:
            trainer.recover()
            assert trainer.step == 3
        return trainer.train(5)

    assert all(torch.equal(weights, whole) for weights in on_all((east, west), go_on))


def test_a_site_is_not_recovered_after_ctrl_c(groups, one_trainer, ctrl_c_interrupts):
    """Its ranks may be in different places, of which they tell each other nothing."""
    model, state = ddp_of(torch.nn.Linear(2, 2), groups[0], dist.group.WORLD)
    loss = model(torch.ones(1, 2)).sum()
    with ctrl_c(otherwise=groups[0].close):
        loss.backward()
    with pytest.raises(landbridge.SiteFailed, match="start all trainers of this site anew"):
        state.recover()


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
