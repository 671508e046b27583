"""Equal parameters on all ranks, the default group, and data loaders."""

import threading
import weakref
from functools import partial

import pytest

import landbridge
import stand_in_gateway
from conftest import DEADLINE_S, attached_groups, call_for_all, exit_code_of_fork
from landbridge._local_regions import LocalRegions

torch = pytest.importorskip("torch")


from landbridge.torch import (  # noqa: E402
    FlatGrads,
    State,
    check_module,
    module_digest,
    resume,
    sync_module,
)
from landbridge.torch._module_sync import module_names_digest  # noqa: E402


@pytest.fixture
def groups(two_groups):
    """Two ranks, each in a region of its own."""
    return two_groups


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
        assert check_module(module, group, buffers=True)
        return [t.clone() for t in module.state_dict().values()]

    first, second = call_for_all(groups, modules)
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert first[0].tolist() == [True, True] and first[2][-1] == 1 and len(first) == 10


def test_ranks_with_their_own_running_means_finish_together(groups):
    def run(group):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
        sync_module(module, group)
        module(torch.full((4, 3), group.rank + 1.0))
        assert check_module(module, group) == module_digest(module)
        assert group.finish(layout=module_digest(module))
        with pytest.raises(landbridge.RanksDisagree, match="values of its parameters and buffers"):
            check_module(module, group, buffers=True)
        group.recover()
        with torch.no_grad():
            module[0].weight += group.rank
        with pytest.raises(landbridge.RanksDisagree, match="the values of its parameters 0x"):
            check_module(module, group)
        with pytest.raises(landbridge.ConfigError, match="buffers 1: accepted: True or False"):
            module_digest(module, buffers=1)

    call_for_all(groups, run)


def test_modules_of_different_shape_raise_before_they_are_overwritten(groups):
    def step(group):
        module = torch.nn.Linear(3, 3 + group.rank)
        before = module.weight.clone()
        shape = (3 + group.rank, 3)
        for call in (sync_module, check_module, lambda *given: resume(given[1], 0, given[0])):
            words = rf"layout.*module of this rank has weight \({shape[0]}, 3\) torch.float32, bias"
            with pytest.raises(landbridge.RanksDisagree, match=words):
                call(module, group)
        with pytest.raises(landbridge.RanksDisagree, match="others` here: (none|SGD)"):
            same = torch.nn.Linear(2, 2)
            optimizers = [torch.optim.SGD(same.parameters(), 0.1)] * group.rank
            resume(group, 0, same, *optimizers)
        assert torch.equal(module.weight, before)

    call_for_all(groups, step)


def test_the_only_group_of_a_process_need_not_be_named(monkeypatch):
    monkeypatch.setattr(landbridge._group.group, "_groups", weakref.WeakSet())
    model = torch.nn.Linear(3, 3)
    uses = (sync_module, check_module, FlatGrads, lambda _: State())

    def refused(count):
        for use in uses:
            with pytest.raises(landbridge.ConfigError, match=f"{count} groups are connected"):
                use(model)

    refused("no")
    with LocalRegions(ranks=(1,)) as regions, attached_groups(regions) as (group,):
        sync_module(model)
        assert check_module(model) == check_module(model, group)
        assert FlatGrads(model).group is State().group is group
        assert exit_code_of_fork(partial(refused, "no")) == 0, "it is connected in its parent"
        with stand_in_gateway.lone_group():
            refused(2)
        assert State().group is group, "the other group is closed"
    refused("no")


_forward = threading.Lock()


def test_different_weights_after_the_same_step_raise(groups):
    def step(group):
        module = torch.nn.Linear(2, 2)
        texts = []
        for step, others in ((3, ()), (3, (torch.optim.SGD(module.parameters()),) * group.rank)):
            with torch.no_grad():
                module.weight.fill_(group.rank)
            with pytest.raises(landbridge.RanksDisagree) as failure:
                resume(group, step, module, *others)
            texts.append(str(failure.value))
        # Buffers may differ.
        norm = torch.nn.BatchNorm1d(2)
        norm.running_mean.fill_(group.rank)
        assert resume(group, 3, norm) == 3
        with pytest.raises(landbridge.ConfigError, match="step True: accepted: whole numbers"):
            resume(group, True, norm)
        assert type(resume(group, 1, norm)) is int
        return texts

    for parameters, kinds in call_for_all(groups, step):
        assert "after step 3 the parameters of rank 0 are not those of rank 1" in parameters
        assert "layout" in kinds


def test_a_step_that_others_did_again_gives_way(groups):
    both_committed = threading.Barrier(2)

    def step(group):
        module = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(module.parameters(), lr=group.rank + 1.0)
        assert resume(group, 0, module) == 0
        group.commit(3)
        # A recovery ends the epoch, in which the other commit may still come.
        both_committed.wait(DEADLINE_S)
        group.recover()
        if group.rank == 1:
            # It does the step again, in a later epoch.
            group.commit(3)
        with torch.no_grad():
            module.weight.fill_(group.rank)
        assert resume(group, 3, module, optimizer) == 3
        # In one epoch nobody gives way.
        group.commit(4)
        with torch.no_grad():
            module.weight.fill_(group.rank)
        with pytest.raises(landbridge.RanksDisagree, match="parameters of rank 0 are not those"):
            resume(group, 4, module, optimizer)
        return optimizer.param_groups[0]["lr"]

    assert call_for_all(groups, step) == [2, 2]


def test_a_module_is_the_same_with_ddp_around_it(one_trainer):
    module = torch.nn.Linear(2, 2)
    wrapped = torch.nn.parallel.DistributedDataParallel(module)
    assert module_names_digest(wrapped) == module_names_digest(module)


class NumberedRows(torch.utils.data.Dataset):
    """A data set whose rows hold their indices, made in a worker that the trainer forks."""

    def __init__(self, group):
        self._group = group

    def __len__(self):
        return 24

    def __getitem__(self, index):
        with pytest.raises(landbridge.ForkedProcess):
            self._group.empty(1, torch.float32)
        return torch.full((4,), float(index))


def test_workers_of_a_data_loader_do_not_disturb_the_client(groups):
    """Two workers at a time are forked and end with a collective under way."""
    first, second = groups
    for _ in range(2):
        under_way = first.all_reduce_async(torch.ones(1000), "sum")
        loader = torch.utils.data.DataLoader(
            NumberedRows(first), batch_size=4, num_workers=2, multiprocessing_context="fork"
        )
        for index, batch in enumerate(loader):
            if index == 0:
                assert second.all_reduce(torch.ones(1000), "sum")[0] == 2
                assert under_way.wait(DEADLINE_S)[0] == 2
            both = [group.all_reduce_async(batch, "sum") for group in groups]
            expected = torch.arange(4.0 * index, 4.0 * index + 4)[:, None].expand(4, 4) * 2
            assert all(torch.equal(op.wait(DEADLINE_S), expected) for op in both)
