"""Tensors that are no plain memory: refused with their name, before anything is sent."""

from types import SimpleNamespace

import pytest

import stand_in_gateway
from conftest import call_for_all
from landbridge import UnsupportedArray

torch = pytest.importorskip("torch")


from landbridge.torch import (  # noqa: E402
    FlatGrads,
    State,
    check_module,
    module_digest,
    resume,
    sync_module,
)


class WrapperTensor(torch.Tensor):
    """A tensor without memory that stands for another one, as quantizing libraries make them."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


def fake_tensor():
    """Returns a tensor of the mode in which compilers trace a model."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(3)


def freed_tensor():
    """Returns a tensor whose memory is gone, as a sharding library leaves it between steps."""
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


def shrunk_tensor():
    """Returns a tensor whose storage ends before its elements do."""
    tensor = torch.ones(8)[2:]
    tensor.untyped_storage().resize_(4 * 7)
    return tensor


#: Tensors that are no plain memory, with words of their refusal.
KINDS = {
    "wrapper": (lambda: WrapperTensor(torch.ones(3)), "is a WrapperTensor"),
    "fake": (fake_tensor, "is a FakeTensor"),
    "meta": (lambda: torch.ones(3, device="meta"), "is on meta"),
    "freed": (freed_tensor, "storage was freed"),
    "shrunk": (shrunk_tensor, "beyond the end of its storage"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "torch.sparse_coo.*to_dense"),
    "quantized": (
        lambda: torch._empty_affine_quantized([3], scale=1, zero_point=0, dtype=torch.qint8),
        "is quantized",
    ),
}


@pytest.fixture
def groups(two_groups):
    """Two ranks, each in a region of its own."""
    return two_groups


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_without_plain_memory_are_refused_by_name(kind):
    make, words = KINDS[kind]
    module = torch.nn.BatchNorm1d(2)
    module.register_buffer("odd", make())
    with stand_in_gateway.lone_group() as (group, gateway):
        for use in (
            lambda: module_digest(module),
            lambda: check_module(module, group),
            lambda: sync_module(module, group),
            lambda: resume(group, 3, module),
        ):
            with pytest.raises(UnsupportedArray, match=f"buffer `odd` of the module.*{words}"):
                use()
        with pytest.raises(UnsupportedArray, match=f"the tensor .*{words}"):
            group.all_reduce(make())
        assert not gateway.has_request(), "nothing was sent"


def test_a_sharded_module_is_refused_by_name(one_trainer):
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    module = torch.nn.Linear(2, 2)
    torch.distributed.fsdp.fully_shard(module, mesh=mesh)
    words = "parameter `weight`.* is a DTensor.*to_local"
    with stand_in_gateway.lone_group() as (group, gateway):
        for use in (
            lambda: module_digest(module),
            lambda: sync_module(module, group),
            lambda: resume(group, 5, module, torch.optim.SGD(module.parameters())),
            lambda: FlatGrads(module, group),
        ):
            with pytest.raises(UnsupportedArray, match=words):
                use()
        with pytest.raises(UnsupportedArray, match="is a DTensor"):
            group.all_reduce(module.weight)
        assert not gateway.has_request()


def test_expanded_buffers_are_read_but_not_overwritten():
    module = torch.nn.Module()
    module.register_buffer("mask", torch.ones(1, 3).expand(4, 3))
    plain = torch.nn.Module()
    plain.register_buffer("mask", torch.ones(4, 3))
    assert module_digest(module) == module_digest(plain)
    with stand_in_gateway.lone_group() as (group, gateway):
        for use in (lambda: sync_module(module, group), lambda: resume(group, 0, module)):
            with pytest.raises(UnsupportedArray, match="`mask`.*share memory"):
                use()
        assert not gateway.has_request()


def test_conjugated_buffers_become_those_of_the_root(groups):
    def step(group):
        module = torch.nn.Module()
        values = torch.tensor([1 + 2j, 3 - 1j]) * (group.rank + 1)
        module.register_buffer("phase", values.clone().conj())
        module.register_buffer("minus", values.clone().conj().imag)
        assert module.phase.is_conj() and module.minus.is_neg()
        plain = torch.nn.Module()
        plain.register_buffer("phase", module.phase.resolve_conj())
        plain.register_buffer("minus", module.minus.resolve_neg())
        assert module_digest(module) == module_digest(plain)
        sync_module(module if group.rank == 0 else plain, group, root=1)
        return module.phase.resolve_conj().tolist(), module.minus.resolve_neg().tolist()

    assert call_for_all(groups, step) == [([2 - 4j, 6 + 2j], [-4, 2])] * 2


def half_bytes(group, is_strided):
    """Returns a tensor of elements that PyTorch cannot copy, which differ by rank."""
    whole = torch.arange(12, dtype=torch.uint8).view(3, 4) + 100 * group.rank
    return (whole.t() if is_strided else whole).view(torch.uint4)


@pytest.mark.parametrize("is_strided", [False, True])
def test_elements_that_torch_cannot_copy_are_moved(groups, is_strided):
    def step(group):
        module = torch.nn.Module()
        module.register_buffer("packed", half_bytes(group, is_strided))
        module.register_buffer("one", half_bytes(group, is_strided)[0, 0])
        sync_module(module, group, root=1)
        check_module(module, group)
        own = half_bytes(group, is_strided)
        gathered = torch.empty(2 * own.shape[0], own.shape[1], dtype=torch.uint4)
        group.all_gather(own, out=gathered)
        got = group.broadcast(own, 1)
        assert got.dtype is torch.uint4
        with pytest.raises(UnsupportedArray, match="elements of uint4 cannot be reduced"):
            group.all_reduce(own)
        return [t.view(torch.uint8).flatten().tolist() for t in (module.packed, got, gathered[len(own) :])]

    sent = half_bytes(groups[1], is_strided).view(torch.uint8).flatten().tolist()
    assert call_for_all(groups, step) == [[sent] * 3] * 2


def test_the_layout_of_gradients_names_unsupported_parameters():
    cases = [
        (torch.nn.Linear(2, 2, device="meta"), "parameter `weight` is on meta"),
        (torch.nn.LazyLinear(2), "parameter `weight` has no shape yet"),
        (torch.nn.Linear(2, 2, dtype=torch.complex64), "parameter `weight`: elements of complex64"),
    ]
    with stand_in_gateway.lone_group() as (group, _):
        for module, words in cases:
            with pytest.raises(UnsupportedArray, match=words):
                FlatGrads(module, group)


GRADIENTS = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "bucket 0 has the layout"),
    "half a byte": (lambda: torch.empty(3, dtype=torch.int4), "int4 cannot be reduced"),
}


@pytest.mark.parametrize("kind", GRADIENTS)
def test_the_hook_refuses_gradients_without_plain_memory(kind):
    make, words = GRADIENTS[kind]
    bucket = SimpleNamespace(
        buffer=make,
        parameters=list,
        index=lambda: 0,
        is_last=lambda: True,
    )
    with stand_in_gateway.lone_group() as (group, gateway):
        state = State(group)
        with pytest.raises(RuntimeError, match=f"UnsupportedArray.*{words}"):
            state.start_bucket(bucket).wait()
        assert isinstance(state.failure, UnsupportedArray)
        assert not gateway.has_request()
