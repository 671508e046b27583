"""The DDP hook, alone and with a reduction inside the site."""

import gc
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

import landbridge
from conftest import DEADLINE_S, call_for_all, exit_code_of_fork, resource_usage
from landbridge._operations.operation import Operation

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import trainer as trainers  # noqa: E402
from landbridge.torch import (  # noqa: E402
    FlatGrads,
    State,
    all_reduce_hook,
    check_module,
    fsdp_hook,
    module_digest,
    resume,
    sync_module,
)
from landbridge.torch._hook_state import hook_bucket_layout_hash  # noqa: E402


@pytest.fixture
def groups(two_groups):
    """Two ranks, each in a region of its own."""
    return two_groups


class FakeGroup(landbridge.Group):
    """A group whose collectives the test ends."""

    world_size = 2

    def __init__(self):
        self.posted = []

    def empty(self, elements, dtype):
        return torch.empty(elements, dtype=dtype)

    def all_reduce_async(self, gradients, **_):
        self.posted.append(FakeOperation())
        return self.posted[-1]

    def recover(self, failure, timeout):
        pass


class FakeOperation(Operation):
    """An operation that the test ends."""

    def __init__(self):
        super().__init__(None, None)


BUCKET = SimpleNamespace(
    buffer=lambda: torch.ones(3), parameters=list, index=lambda: 0, is_last=lambda: True
)


MODULE = torch.nn.Linear(1, 1)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda group: State(group, timeout=0), "timeout"),
        (lambda group: State(group, weight=-1.0), "weight"),
        (lambda group: State(group, weight="2"), "weight"),
        (lambda group: FlatGrads(MODULE, group, timeout=float("nan")), "timeout"),
        (lambda group: FlatGrads(MODULE, group, bucket_bytes=0), "bucket_bytes"),
        (lambda group: FlatGrads(MODULE, group, weight=float("inf")), "weight"),
        (lambda group: fsdp_hook(group, timeout=None), "timeout"),
        (lambda group: fsdp_hook(group, weight=True), "weight"),
        (lambda group: resume(group, 1, MODULE, timeout=-1.0), "timeout"),
        (lambda group: resume(group, 1.5, MODULE), "step"),
        (lambda group: sync_module(MODULE, group, root=2), "root"),
        (lambda group: sync_module(MODULE, group, timeout="9"), "timeout"),
        (lambda group: State("east"), "group"),
        (lambda group: State(group, "all"), "process_group"),
        (lambda group: all_reduce_hook(None, BUCKET), "state"),
        (lambda group: FlatGrads("x", group), "module"),
        (lambda group: FlatGrads(MODULE, "east"), "group"),
        (lambda group: fsdp_hook("east"), "group"),
        (lambda group: module_digest(None), "module"),
        (lambda group: check_module([MODULE], group), "module"),
        (lambda group: check_module(MODULE, 3), "group"),
        (lambda group: sync_module(MODULE.state_dict(), group), "module"),
        (lambda group: sync_module(MODULE, "east"), "group"),
        (lambda group: resume(group, 1, "x"), "module"),
        (lambda group: resume(group, 0, MODULE, "adam"), "others"),
        (lambda group: resume(group, 0, MODULE, torch.optim.SGD), "others"),
        (lambda group: resume(None, 0, MODULE), "group"),
    ],
)
def test_wrong_arguments_are_refused_before_a_post(call, name):
    with pytest.raises(landbridge.ConfigError, match=f"^{name} .*: accepted: "):
        call(FakeGroup())


def test_a_failure_after_recovery_leaves_the_next_step_intact():
    """One of two buckets fails at once. `backward` raises then, before the other one ends."""
    group = FakeGroup()
    state = State(group)
    first, second = [state.start_bucket(BUCKET) for _ in range(2)]
    group.posted[0]._set_outcome(None, landbridge.RegionLost("of the first"))
    with pytest.raises(Exception, match="of the first"):
        first.wait()
    state.recover()
    group.posted[1]._set_outcome(None, landbridge.RegionLost("of the second"))
    with pytest.raises(Exception, match="of the second"):
        second.wait()
    assert state.failure is None
    state.start_bucket(BUCKET)
    assert len(group.posted) == 3, "the next step is sent"


def test_the_hook_has_the_signature_that_ddp_asks_for(one_trainer):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model.register_comm_hook(None, all_reduce_hook)


def test_buckets_stay_as_they_are_where_trainers_may_come_back(one_trainer):
    """DDP makes other buckets after its first step, which a restarted trainer has not done.

    `layout` then differs. With `find_unused_parameters` DDP keeps its buckets.
    """
    for stays in (False, True):
        model = torch.nn.parallel.DistributedDataParallel(
            trainers.make_model(0), bucket_cap_mb=0.01, find_unused_parameters=stays
        )
        layouts = []

        def hook(seen, bucket):
            seen.append(hook_bucket_layout_hash(bucket, ""))
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


def test_a_hook_that_cannot_post_says_why(groups, one_trainer):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    state = State(groups[0])
    model.register_comm_hook(state, all_reduce_hook)
    groups[0].close()
    with pytest.raises(RuntimeError, match=r"landbridge\.Closed: the group was closed") as raised:
        model(torch.ones(1, 2)).sum().backward()
    # Torch raises this text for an exception that it cannot read.
    assert "Unable to cast" not in str(raised.value)
    with pytest.raises(landbridge.Closed), state.typed_errors():
        model(torch.ones(1, 2)).sum().backward()


class OrderedModule(torch.nn.Module):
    """A module whose two layers of one shape are registered in the given order."""

    def __init__(self, *names):
        super().__init__()
        torch.manual_seed(0)
        for name in names:
            self.add_module(name, torch.nn.Linear(2, 2))

    def forward(self, inputs):
        return self.second(self.first(inputs))


def test_layers_in_another_order_on_one_rank_stop_all_ranks(groups, one_trainer):
    """Their gradients would be averaged with each other's."""

    def step(rank):
        order = ("first", "second") if rank == 0 else ("second", "first")
        model = torch.nn.parallel.DistributedDataParallel(OrderedModule(*order))
        model.register_comm_hook(State(groups[rank]), all_reduce_hook)
        with pytest.raises(Exception, match="RanksDisagree"):
            model(torch.ones(1, 2)).sum().backward()

    call_for_all(range(2), step)


def test_another_memory_format_on_one_rank_stops_all_ranks(groups, one_trainer):
    """DDP lays gradients into a bucket by their strides, and the hook averages what it finds."""

    def step(rank):
        module = torch.nn.Conv2d(3, 4, 3)
        if rank == 0:
            module.to(memory_format=torch.channels_last)
        model = torch.nn.parallel.DistributedDataParallel(module)
        state = State(groups[rank])
        model.register_comm_hook(state, all_reduce_hook)
        with pytest.raises(landbridge.RanksDisagree) as raised, state.typed_errors():
            model(torch.ones(2, 3, 8, 8)).sum().backward()
        return str(raised.value)

    here, there = call_for_all(range(2), step)
    assert "`weight` (4, 3, 3, 3) with strides (27, 1, 9, 3), `bias` (4,);" in here
    assert "`weight` (4, 3, 3, 3), `bias` (4,);" in there and "shapes, strides" in there


def test_results_begin_where_their_storage_begins(groups, one_trainer):
    """DDP reads a result from the start of its storage, whatever its offset."""

    def start(group):
        class Bucket:
            buffer = staticmethod(lambda: torch.full((1000,), group.rank + 1.0))
            parameters = staticmethod(lambda: [])
            index = staticmethod(lambda: 0)
            is_last = staticmethod(lambda: True)

        held = group.empty(100, torch.float32)  # The result is not at the arena's start then.
        result = State(group).start_bucket(Bucket).wait()
        assert result.storage_offset() == 0 and result.untyped_storage().nbytes() >= 4000
        assert torch.as_strided(result, (1000,), (1,), 0).tolist() == [1.5] * 1000
        del held

    call_for_all(groups, start)


def wait_until(predicate, what):
    """Waits until another thread has made a predicate true."""
    deadline = time.monotonic() + DEADLINE_S
    while not predicate():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.01)


def failure_text(future):
    """Returns the text of a future's failure. Fails if the future is never completed."""
    wait_until(future.done, "a future is never completed")
    with pytest.raises(Exception) as raised:
        future.value()
    return str(raised.value)


def test_a_site_continues_together_but_posts_nothing_after_a_failure(one_trainer, monkeypatch):
    """Others of the site may have begun the same bucket."""
    group, reduced = FakeGroup(), []
    state = State(group, dist.group.WORLD)
    first = state.start_bucket(BUCKET)
    wait_until(lambda: group.posted, "the first is not posted")
    group.posted[0]._set_outcome(None, landbridge.RegionLost("of the first"))
    assert "of the first" in failure_text(first)

    def reduce_scatter(*arguments, reduce_scatter=dist.reduce_scatter_tensor, **more):
        reduced.append(arguments)
        return reduce_scatter(*arguments, **more)

    monkeypatch.setattr(dist, "reduce_scatter_tensor", reduce_scatter)
    assert "failed already" in failure_text(state.start_bucket(BUCKET))
    assert (len(reduced), len(group.posted)) == (1, 1)
    assert isinstance(state.failure, landbridge.RegionLost)
    state.recover()
    state.start_bucket(BUCKET)
    wait_until(lambda: len(group.posted) == 2, "the next step is not posted")
    # The thread of the state must end before the test does.
    group.posted.pop()._set_outcome(None, landbridge.RegionLost("of the next step"))
    group.posted.clear()


@pytest.mark.parametrize("broken", ["reduce_scatter_tensor", "empty", "all_gather_into_tensor"])
def test_buckets_of_a_site_complete_despite_any_error(broken, one_trainer, monkeypatch):
    """Otherwise `backward` would wait for ever."""

    def fail(*_, **__):
        raise ValueError("of this test")

    group = FakeGroup()
    state = State(group, dist.group.WORLD)
    monkeypatch.setattr(group if broken == "empty" else dist, broken, fail)
    monkeypatch.setattr(FakeOperation, "wait", lambda _: None)
    for _ in range(2):
        text = failure_text(state.start_bucket(BUCKET))
        assert "landbridge.SiteFailed" in text and "ValueError: of this test" in text
    monkeypatch.undo()
    assert "ValueError: of this test" in failure_text(state.start_bucket(BUCKET)), (
        "there is no way back"
    )
    with pytest.raises(landbridge.SiteFailed):
        raise state.failure


def test_the_hook_is_refused_in_a_forked_process(one_trainer):
    """The threads that reduce inside the site are not there."""
    state = State(FakeGroup(), dist.group.WORLD)

    def start():
        assert "landbridge.ForkedProcess" in failure_text(state.start_bucket(BUCKET))

    assert exit_code_of_fork(start) == 0


def test_a_state_that_is_dropped_leaves_nothing(one_trainer):
    """The state has failed before, and a failure holds frames."""

    def threads():
        # What a thread held a moment ago may be a cycle by now.
        gc.collect()
        names = ("landbridge-exchange", "landbridge-gather")
        return sum(thread.name in names for thread in threading.enumerate())

    def once():
        group = FakeGroup()
        state = State(group, dist.group.WORLD)
        assert threads() == 2
        future, posted = state.start_bucket(BUCKET), group.posted
        wait_until(lambda: posted, "nothing is posted")
        # The operation is dropped, as a group drops operations that have ended.
        posted.pop()._set_outcome(None, landbridge.RegionLost("of this test"))
        assert "of this test" in failure_text(future)
        gone = weakref.ref(group)
        del group, state, future
        wait_until(lambda: threads() == 0, "a thread does not end")
        assert gone() is None

    # A state of another test may be in use when this one begins.
    wait_until(lambda: threads() == 0, "a thread of another test does not end")
    once()
    before = resource_usage(readers=0)
    for _ in range(5):
        once()
    after = resource_usage(readers=0)
    assert after["descriptors"] == before["descriptors"]
    assert after["threads"] == before["threads"]


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("mode", ["ddp", "sharded"])
def test_steps_of_the_hook_leak_nothing(mode, count, groups, one_trainer):
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

    def steps(number):
        def run(model):
            for _ in range(number):
                model.zero_grad()
                model(torch.ones(2, 64)).sum().backward()

        call_for_all(models, run)
        gc.collect()
        for group in groups:
            group._state.wait_until(lambda: not group._state.entries, None)  # noqa: B023
        return {**resource_usage(readers=2), "slots": [group._arena.used_bytes for group in groups]}

    before = steps(100)
    after = steps(count)
    for what in ("descriptors", "threads"):
        # Those of an earlier test may end meanwhile.
        assert after[what] <= before[what]
    # DDP, or a thread of the hook, may hold a bucket of the last step until the next one.
    assert max(after["slots"]) <= 4 * 16_640, "slots of more than one step"
    # 200 steps of 66 KB for each of two ranks would take 26 MB.
    assert after["rss"] - before["rss"] < 4 << 20
