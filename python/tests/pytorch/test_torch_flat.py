"""Gradients that lie in the arena."""

import contextlib
import itertools
import threading
import time

import pytest

import landbridge
import stand_in_gateway
from conftest import DEADLINE_S, call_for_all

torch = pytest.importorskip("torch")


from landbridge.torch import (  # noqa: E402
    FlatGrads,
)


@pytest.fixture
def groups(two_groups):
    """Two ranks, each in a region of its own."""
    return two_groups


class PartlyUsedModel(torch.nn.Module):
    """A model that does not use some of its parameters."""

    def __init__(self):
        super().__init__()
        self.used = torch.nn.Parameter(torch.ones(5))
        self.unused = torch.nn.Parameter(torch.ones(3))
        self.also_used = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, scale):
        return (self.used.sum() + self.also_used.sum()) * scale


def test_flat_gradients_of_unused_parameters_and_several_backwards(groups):
    def step(group):
        model = PartlyUsedModel()
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

    call_for_all(groups, step)


def test_dropped_flat_gradients_raise(groups):
    model = PartlyUsedModel()
    grads = FlatGrads(model, groups[0])
    model.zero_grad()
    with pytest.raises(Exception, match="in place of `zero_grad`"):
        model(1.0).backward()
    grads.zero()


def test_flat_gradients_are_not_added_to_while_they_are_sent(groups):
    def step(group):
        model = PartlyUsedModel()
        grads = FlatGrads(model, group, timeout=60, bucket_bytes=1)
        with grads.no_sync():
            model(1.0).backward()
        model(group.rank + 1.0).backward()
        with pytest.raises(Exception, match="while it was being sent"):
            model(1.0).backward()
        # The gradients differ from those that were sent, so the step begins again.
        with pytest.raises(landbridge.ConfigError, match="begin the step again"):
            grads.wait()
        grads.zero()
        model(group.rank + 1.0).backward()
        grads.wait()
        return model.used.grad.tolist()

    assert call_for_all(groups, step) == [[1.5] * 5] * 2


def test_flat_gradients_are_sent_again_after_a_failure(groups):
    failing = [True]

    def step(group):
        model = PartlyUsedModel()
        grads = FlatGrads(model, group, timeout=60)
        model(group.rank + 1.0).backward()
        if group.rank == 0 and failing:
            group._state.end_connection(group._state.connection, "for this test")
        try:
            grads.wait()
        except landbridge.CollectiveFailed as failure:
            assert model.used.grad.tolist() == [group.rank + 1.0] * 5, "its own, intact"
            group.recover(failure, 60)
            grads.wait()
        return model.used.grad.tolist()

    assert call_for_all(groups, step) == [[1.5] * 5] * 2


def test_flat_averages_may_be_written_after_wait():
    """A caller may clip averages, so `wait` returns when the gateway no longer reads them."""
    with stand_in_gateway.lone_group() as (group, gateway):
        model, returned = PartlyUsedModel(), threading.Event()
        grads = FlatGrads(model, group, bucket_bytes=1)
        model(1.0).backward()
        waiter = threading.Thread(target=lambda: (grads.wait(), returned.set()))
        waiter.start()
        posts = [gateway.receive() for _ in range(3)]
        gateway.send(*map(stand_in_gateway.ready, posts), *map(stand_in_gateway.free, posts[:2]))
        assert not returned.wait(0.05)
        gateway.send(stand_in_gateway.free(posts[2]))
        assert returned.wait(DEADLINE_S)
        waiter.join(DEADLINE_S)


def test_flat_gradients_are_posted_again_to_restarted_gateways():
    with stand_in_gateway.lone_group() as (group, gateway):
        model = torch.nn.Linear(2, 1, bias=False)
        grads = FlatGrads(model, group)
        model(torch.ones(1, 2)).sum().backward()
        post = gateway.receive()
        gateway.send(stand_in_gateway.ready(post), stand_in_gateway.free(post))
        group._state.wait_until(lambda: not group._state.entries, time.monotonic() + DEADLINE_S)
        # The averages came to this rank, but not to other ranks.
        group._state.end_connection(group._state.connection, "for this test")
        gateway = stand_in_gateway.attach_again(group)
        with pytest.raises(landbridge.GatewayLost):
            threading.Timer(0.1, gateway.shut_down).start()
            grads.wait()


@pytest.mark.parametrize("interrupted", ["post_gradients", "wait_for_averages"])
def test_flat_gradients_are_sent_again_in_order_after_ctrl_c(groups, interrupted, monkeypatch):
    """Two of three buckets, or all of them, are posted when the first rank is interrupted."""

    all_sent = threading.Barrier(2)

    def raise_interrupt(*_):
        raise KeyboardInterrupt

    def step(group):
        model = PartlyUsedModel()
        grads = FlatGrads(model, group, timeout=60, bucket_bytes=1)
        model(group.rank + 1.0).backward()
        all_sent.wait(DEADLINE_S)
        if group.rank == 0:
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(grads._buckets[2], interrupted, raise_interrupt)
                grads.wait()
            group.recover(timeout=60)
        else:
            with contextlib.suppress(landbridge.CollectiveFailed):
                grads.wait()
            group.recover(timeout=60)
        grads.wait()
        return model.used.grad.tolist()

    assert call_for_all(groups, step) == [[1.5] * 5] * 2


def replace_gradients(model):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)


def double_gradients(model):
    for parameter in model.parameters():
        parameter.grad = parameter.grad * 2


def give_other_memory(model):
    for parameter in model.parameters():
        parameter.grad.data = parameter.grad * 2


def drop_a_gradient(model):
    model.also_used.grad = None


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize(
    "change", [replace_gradients, double_gradients, give_other_memory, drop_a_gradient]
)
def test_a_gradient_outside_of_the_arena_makes_wait_raise(change, is_sent):
    """The gateway gets what lies in the arena, so another tensor would be lost without a word."""
    with stand_in_gateway.lone_group() as (group, gateway):
        model = PartlyUsedModel()
        grads = FlatGrads(model, group, timeout=60, bucket_bytes=1)
        if is_sent:
            model(1.0).backward()
        change(model)
        for _ in range(2):
            with pytest.raises(landbridge.UnsupportedArray, match="a gradient is not in the arena"):
                grads.wait()
        posts = [gateway.receive() for _ in range(is_sent)]
        assert not gateway.has_request(), "no bucket with other values is sent"
        gateway.send(*map(stand_in_gateway.ready, posts), *map(stand_in_gateway.free, posts))
        grads.zero()
        model(1.0).backward()
        assert model.also_used.grad.tolist() == [1] * 4


def test_gradients_that_are_written_in_place_are_averaged(groups):
    def step(group):
        model = PartlyUsedModel()
        grads = FlatGrads(model, group, timeout=60)
        losses = torch.autograd.grad(model(group.rank + 1.0), [model.used, model.also_used])
        model.used.grad.copy_(losses[0])
        model.also_used.grad.add_(losses[1] * 2)
        grads.wait()
        first = model.used.grad.tolist(), model.also_used.grad.tolist()
        # The averages are the caller's, who may put others in their place.
        give_other_memory(model)
        grads.wait()
        grads.zero()
        model(group.rank + 1.0).backward()
        grads.wait()
        assert model.used.grad.tolist() == model.also_used.grad.tolist() + [1.5]
        return first

    assert call_for_all(groups, step) == [([1.5] * 5, [3.0] * 4)] * 2


def test_a_gradient_that_is_written_while_sent_is_named(groups):
    """As when gradients are clipped before `wait`: other ranks got them as they were, or torn."""

    def step(group):
        model = PartlyUsedModel()
        grads = FlatGrads(model, group, timeout=60, bucket_bytes=1)
        model(group.rank + 1.0).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with pytest.raises(landbridge.ConfigError, match="also_used was written after `backward`"):
            grads.wait()
        return model.used.grad.tolist()

    assert len(call_for_all(groups, step)) == 2


def test_a_step_without_wait_is_noticed_at_the_next(groups):
    def step(group):
        model = PartlyUsedModel()
        grads = FlatGrads(model, group, timeout=60)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        # None of these trains on what was to be averaged.
        with grads.no_sync():
            model(1.0).backward()
            optimizer.step()
        grads.zero()
        model(1.0).backward()
        grads.wait()
        optimizer.step()
        grads.zero()
        model(1.0).backward()
        grads.zero()
        model(group.rank + 1.0).backward()
        optimizer.step()
        with pytest.raises(landbridge.ConfigError, match="without `FlatGrads.wait`.*sync_module"):
            grads.zero()
        grads.zero()
        model(group.rank + 1.0).backward()
        grads.wait()
        return model.used.grad.tolist()

    assert call_for_all(groups, step) == [[1.5] * 5] * 2


@pytest.mark.parametrize("is_last_sent", [True, False])
def test_a_step_before_wait_is_noticed_by_wait(is_last_sent, groups):
    def run(group):
        model = PartlyUsedModel()
        grads = FlatGrads(model, group, bucket_bytes=1)
        optimizer = torch.optim.SGD([{"params": [model.used, model.also_used]}], lr=0.1)
        with contextlib.nullcontext() if is_last_sent else grads.no_sync():
            model(group.rank + 1.0).backward()
        optimizer.step()
        with pytest.raises(landbridge.ConfigError, match="`(also_)?used` was changed.*sync_module"):
            grads.wait()
        assert model.used.grad.tolist() == [group.rank + 1.0] * 5, "its own gradient"
        grads.zero()
        model(group.rank + 1.0).backward()
        grads.wait()
        optimizer.step()
        grads.wait()  # Averages may be applied before it.
        assert model.used.grad.tolist() == [1.5] * 5

    call_for_all(groups, run)


def test_a_last_step_without_wait_is_noticed_at_the_end(groups):
    def run(group):
        model = PartlyUsedModel()
        grads = FlatGrads(model, group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(group.rank + 1.0).backward()
        grads.wait()
        optimizer.step()
        group.commit(1)
        grads.zero()
        with grads.no_sync():
            model(group.rank + 1.0).backward()
        model(group.rank + 1.0).backward()
        optimizer.step()
        for end in (group.finish, lambda: group.commit(2), group.finish):
            with pytest.raises(landbridge.ConfigError, match="without `FlatGrads.wait`"):
                end()
        del grads
        assert group.finish()

    call_for_all(groups, run)


def test_weights_that_a_recovery_changed_are_no_step_without_wait(groups):
    def step(group):
        model = PartlyUsedModel()
        grads = FlatGrads(model, group, timeout=60)
        model(1.0).backward()
        group.recover(timeout=60)
        with torch.no_grad():
            model.used.add_(1)
        grads.zero()

    assert call_for_all(groups, step) == [None] * 2


def two_layers():
    """Returns two linear layers, of which only the second is trained."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].requires_grad_(False)
    return model


def backward_of_rank(model, group):
    """Computes gradients that differ between the ranks."""
    model(torch.full((1, 2), group.rank + 1.0)).sum().backward()


def test_parameters_that_come_or_thaw_later_are_averaged(groups):
    def step(group):
        model = two_layers()
        grads = FlatGrads(model, group, timeout=60, bucket_bytes=1)
        changes = (
            lambda: None,
            lambda: model[0].requires_grad_(),
            lambda: model.append(torch.nn.Linear(2, 1)),
            lambda: model.double(),
        )
        averages = []
        for change in changes:
            change()
            grads.zero()
            model(
                torch.full((1, 2), group.rank + 1.0, dtype=model[0].weight.dtype)
            ).sum().backward()
            grads.wait()
            found = [p.grad for p in model.parameters() if p.grad is not None]
            averages.append([grad.tolist() for grad in found])
        assert found[0].dtype == torch.float64
        return averages

    first, second = call_for_all(groups, step)
    assert first == second and list(map(len, first)) == [2, 4, 6, 6]


class Branches(torch.nn.ModuleDict):
    """Layers beside each other, each with a name, whose outputs are added up."""

    def __init__(self, names):
        super().__init__({name: torch.nn.Linear(2, 2) for name in names})

    def forward(self, inputs):
        return sum(layer(inputs) for layer in self.values())


def rename_layer(model, old, new):
    """Gives a layer another name, which also moves it to the end."""
    model[new] = model.pop(old)


#: Changes of which parameters of `Branches("abcde")` are trained. Each can be made in any order.
CHANGES_OF_BRANCHES = {
    "freeze": lambda model: model["a"].requires_grad_(False),
    "thaw": lambda model: model["b"].requires_grad_(),
    "add": lambda model: model.update({"new": torch.nn.Linear(2, 2)}),
    "remove": lambda model: model.pop("c"),
    "rename": lambda model: rename_layer(model, "d", "first"),
}


def test_a_rank_that_starts_after_any_changes_joins(groups):
    """Before each step one rank is new: it made its model, with all changes so far, just now."""
    orders = list(itertools.permutations(CHANGES_OF_BRANCHES))[::7]

    def begin(group):
        model = Branches("abcde")
        model["b"].requires_grad_(False)
        return model

    def step(group):
        steps = 0
        for order in orders:
            model = begin(group)
            grads = FlatGrads(model, group, timeout=60)
            for count in range(len(order) + 1):
                if count:
                    CHANGES_OF_BRANCHES[order[count - 1]](model)
                if (group.rank + count) % 2:
                    model = begin(group)
                    for change in order[:count]:
                        CHANGES_OF_BRANCHES[change](model)
                    grads = FlatGrads(model, group, timeout=60)
                grads.zero()
                backward_of_rank(model, group)
                grads.wait()
                for name, parameter in model.named_parameters():
                    assert (parameter.grad is None) != parameter.requires_grad, (order, name)
                steps += 1
        return steps, [p.grad.tolist() for p in model.parameters() if p.grad is not None]

    first, second = call_for_all(groups, step)
    assert first == second


def test_a_layer_is_thawed_again_beside_a_rank_that_starts(groups):
    def step(group):
        model = two_layers()
        grads = FlatGrads(model, group, timeout=60)
        found = []
        for is_trained in (True, False, True, False):
            model[0].requires_grad_(is_trained)
            if group.rank:
                # As after a restart.
                grads = FlatGrads(model, group, timeout=60)
            grads.zero()
            backward_of_rank(model, group)
            grads.wait()
            found.append(sum(p.grad is not None for p in model.parameters()))
        return found

    assert call_for_all(groups, step) == [[4, 2, 4, 2]] * 2


def test_another_layout_of_the_module_frees_the_first(groups):
    model = two_layers()
    grads = FlatGrads(model, groups[0])
    taken = groups[0]._arena.used_bytes
    for _ in range(3):
        grads = FlatGrads(model, groups[0])
    assert groups[0]._arena.used_bytes == taken
    assert [len(p._post_accumulate_grad_hooks) for p in model[1].parameters()] == [1, 1]
    del grads


def test_a_frozen_parameter_stays_as_it_is(groups):
    """An optimizer with momentum or decay moves each parameter that has a gradient, also of 0."""
    model = two_layers().requires_grad_()
    grads = FlatGrads(model, groups[0])
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
    optimizer.step()
    model[0].requires_grad_(False)
    before = [p.tolist() for p in model[0].parameters()]
    grads.zero()
    optimizer.step()
    assert [p.tolist() for p in model[0].parameters()] == before


def test_a_new_layout_takes_the_place_of_the_old(groups):
    model = two_layers()
    grads = FlatGrads(model, groups[0])
    model[0].requires_grad_()
    grads.zero()
    taken = groups[0]._arena.used_bytes
    for _ in range(3):
        model[0].bias = torch.nn.Parameter(torch.zeros(2))
        grads.zero()
        assert groups[0]._arena.used_bytes == taken
    assert model[0].bias.grad.tolist() == [0, 0]


def test_a_gradient_that_was_not_averaged_is_named(groups):
    def step(group):
        model = two_layers()
        grads = FlatGrads(model, group, timeout=60)
        model[0].requires_grad_()
        backward_of_rank(model, group)
        for _ in range(2):
            with pytest.raises(landbridge.ConfigError, match="parameter `0.weight` was not"):
                grads.wait()
        grads.zero()
        backward_of_rank(model, group)
        grads.wait()
        return model[0].weight.grad.tolist()

    first, second = call_for_all(groups, step)
    assert first == second


def test_ranks_that_train_other_parameters_disagree(groups):
    def step(group):
        model = two_layers().requires_grad_()
        model[group.rank].requires_grad_(False)
        grads = FlatGrads(model, group, timeout=60)
        backward_of_rank(model, group)
        with pytest.raises(landbridge.RanksDisagree, match="layout") as raised:
            grads.wait()
        return str(raised.value)

    here, there = call_for_all(groups, step)
    assert "has `1.bias` " in here and "frozen parameters of its module: `0.weight`, `0.b" in here
    assert "has `0.bias` " in there and "frozen parameters of its module: `1.weight`, `1.b" in there


def test_an_out_that_requires_grad_is_returned_itself(groups):
    def step(group):
        for out in (torch.zeros(3, requires_grad=True), group.empty(3, torch.float32)):
            out.requires_grad_()
            assert group.all_reduce(torch.full((3,), group.rank + 1.0), out=out) is out
            assert out.requires_grad and out.tolist() == [1.5] * 3

    call_for_all(groups, step)
