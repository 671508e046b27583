"""The training state that `resume` gives to ranks that are behind: its types, and its errors."""

import contextlib
import random
import time
from collections import Counter, OrderedDict, defaultdict, deque
from typing import NamedTuple

import numpy
import pytest

import landbridge
import stand_in_gateway
from conftest import call_for_all
from landbridge._local_regions import LocalRegions
from landbridge._operations.step_confirmations import StepConfirmation
from landbridge._state_transfer import pieces

torch = pytest.importorskip("torch")

from landbridge.torch import module_digest, resume, sync_module  # noqa: E402
from landbridge.torch._training_state import (  # noqa: E402
    UnpackableValue,
    check_training_state,
    decode_training_state,
    encode_training_state,
)

#: Errors reach every rank within this time, in seconds, instead of the timeout of `resume`.
AT_ONCE_S = 20


class Unknown:
    """An object that no other rank knows."""


class Subclass(torch.Tensor):
    """A tensor of a class that no other rank knows."""


class Pair(NamedTuple):
    """A tuple of a class that no other rank knows."""

    one: int
    other: int


def marked_tensor():
    """Returns a tensor with an attribute that no other rank knows."""
    tensor = torch.ones(2)
    tensor.owner = Unknown()
    return tensor


def nested_lists():
    """Returns a list that holds itself."""
    outer = []
    outer.append(outer)
    return outer


def values_of_all_kinds():
    """Returns values that training states hold, by name."""
    generator = numpy.random.default_rng(1)
    return {
        "learning rate": numpy.float64(0.1) * (1 + numpy.cos(1)),
        "numbers": [numpy.float32(2), numpy.int64(3), numpy.bool_(True), 1j, 2.5, None],
        "random": [numpy.random.get_state(), generator.bit_generator.state, random.getstate()],
        "torch": [torch.get_rng_state(), torch.float32, torch.Size([1]), torch.ones(2).bfloat16()],
        "arrays": [numpy.zeros((0, 3)), numpy.arange(6.0).reshape(2, 3), numpy.array(3.0)],
        "date": numpy.datetime64("2020-01-01"),
        "lists": defaultdict(list, {1: [numpy.float32(2)]}),
        "no factory": defaultdict(None, {2: 3}),
        "recent": deque([1, 2, 3], 3),
        "sets": [{1, 2}, frozenset([3])],
        "texts": ["ä", b"bytes", bytearray(b"more")],
        "long arrays": [torch.rand(40, 50), torch.rand(60, 70).t(), numpy.arange(3000)],
        "counts": Counter({numpy.int64(3): numpy.float32(2), "a": 1}),
        "long": [1 << 200, -(1 << 5000)],
        "no text keys": {frozenset([1]): 1, ("\0landbridge", "tuple", 1): 2, (1, numpy.int8(2)): 3},
        "ordered": OrderedDict(b=1, a=2),
        "marked": ("\0landbridge", "numpy", "<f4"),
        numpy.int64(7): (1, (2, [3])),
    }


def assert_same(one, other):
    """Asserts that two values have the same types and contents."""
    assert type(one) is type(other), (one, other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, numpy.ndarray):
        assert one.dtype == other.dtype and numpy.array_equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert getattr(one, "default_factory", 0) is getattr(other, "default_factory", 0)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple, deque)):
        assert len(one) == len(other)
        for pair in zip(one, other):
            assert_same(*pair)
    else:
        assert one == other


def test_states_arrive_with_all_their_types():
    values = values_of_all_kinds()
    check_training_state(values)
    arrived = decode_training_state(memoryview(encode_training_state(values)))
    assert_same(values, arrived)
    assert arrived["recent"].maxlen == 3


@pytest.mark.parametrize(
    ("value", "way"),
    [
        (Unknown(), r"it is of type Unknown"),
        ([1, {"a": (2, Unknown())}], r"\[1\]\['a'\]\[1\] is of type Unknown"),
        ({"f": defaultdict(lambda: 1)}, r"\['f'\] is a defaultdict whose factory is <function"),
        ([numpy.array([Unknown()])], r"\[0\] is of type ndarray"),
        ({"f": len}, r"\['f'\] is of type builtin_function_or_method"),
        ([torch.ones(3, device="meta")], r"\[0\] is on meta and has no memory"),
        ({"f": torch.ones(2).to_sparse()}, r"\['f'\] has the layout torch.sparse_coo"),
        ([torch.ones(2).as_subclass(Subclass)], r"\[0\] is of type Subclass"),
        ({"f": marked_tensor()}, r"the attribute owner of \['f'\] is of type Unknown"),
        (Counter({Pair(1, 2): 3}), r" key Pair\(one=1, other=2\) is of type Pair"),
        (nested_lists(), r"it holds itself, or is nested too deep"),
    ],
)
def test_values_that_cannot_be_sent_are_named(value, way):
    with pytest.raises(UnpackableValue, match=way):
        check_training_state(value)


def test_a_class_that_this_rank_does_not_take_is_named():
    with torch.serialization.safe_globals([Unknown]):
        data = encode_training_state({"f": Unknown()})
    with pytest.raises(UnpackableValue) as caught:
        decode_training_state(memoryview(data))
    text = str(caught.value)
    assert "an object of test_torch_resume.Unknown that this rank does not take" in text
    assert "\x1b" not in text and "\n" not in text


class Part:
    """Anything that `resume` is given beside the model."""

    def __init__(self, content=None):
        self.content = content

    def state_dict(self):
        return {"content": self.content}

    def load_state_dict(self, state):
        self.content = state["content"]


class RefusingPart(Part):
    """A part that loads no state."""

    def load_state_dict(self, state):
        raise KeyError("not for this test")


def outcomes_of_all(groups, function):
    """Calls a function of a rank's number on every rank. Returns the result or the error of each,
    which must come at once."""
    begun = time.monotonic()

    def call_one(rank):
        try:
            return function(rank)
        except landbridge.LandbridgeError as error:
            return error

    outcomes = call_for_all(range(len(groups)), call_one)
    assert time.monotonic() - begun < AT_ONCE_S, "of thirty minutes"
    return outcomes


def resume_each(groups, parts, steps):
    """Calls `resume` on every rank. Returns the step or the error of each rank."""
    modules = [torch.nn.Linear(3, 2) for _ in groups]
    modules[1].load_state_dict(modules[0].state_dict())

    def resume_one(rank):
        return resume(groups[rank], steps[rank], modules[rank], parts[rank])

    return outcomes_of_all(groups, resume_one)


def test_a_resumed_model_takes_over_one_whole_confirmation(groups):
    """The second of three ranks is ahead with a commit of step 6 that is not confirmed."""

    def step(group):
        finished, confirmation = ((4, (1, 4)), (6, (1, 4)), (6, (3, 6)))[group.rank]
        group._state.confirmation = StepConfirmation(*confirmation)
        module = torch.nn.Linear(2, 2)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(finished)
        assert resume(group, finished, module) == 6
        assert group.agree(6) == 6, "all states are equal"
        return group._state.confirmation, module.weight.max().item()

    assert call_for_all(groups, step) == [((3, 6), 6.0)] * 3


def test_numpy_state_reaches_the_rank_behind(two_groups):
    parts = [Part(values_of_all_kinds()), Part()]
    assert resume_each(two_groups, parts, [3, 1]) == [3, 3]
    assert_same(parts[0].content, parts[1].content)


def test_an_unsendable_state_is_named_before_anybody_waits(two_groups):
    outcomes = resume_each(two_groups, [Part(), Part([Unknown()])], [1, 3])
    assert all(isinstance(error, landbridge.StateNotTransferred) for error in outcomes)
    assert "rank 1 has finished step 3" in str(outcomes[0])
    assert "[1]['content'][0] is of type Unknown" in str(outcomes[1])


def test_an_unsendable_state_harms_no_ranks_at_one_step(two_groups):
    assert resume_each(two_groups, [Part(Unknown()), Part(Unknown())], [3, 3]) == [3, 3]


def test_a_rank_that_cannot_load_tells_all_others(two_groups):
    parts = [RefusingPart(1), RefusingPart(2)]
    outcomes = resume_each(two_groups, parts, [3, 1])
    assert all(isinstance(error, landbridge.StateNotTransferred) for error in outcomes)
    assert "rank 1 cannot send or load" in str(outcomes[0])
    assert "not for this test" in str(outcomes[1])


class BufferedLayer(torch.nn.Linear):
    """A layer with buffers, of which its state dict leaves some out, and a version."""

    _version = 2

    def __init__(self, value):
        super().__init__(2, 2)
        self.register_buffer("kept", torch.full((2,), value))
        self.register_buffer("seen", torch.full((), value), persistent=False)
        inner = torch.nn.Linear(2, 2)
        inner.register_buffer("turned", torch.full((3, 2), value).t(), persistent=False)
        self.inner = inner
        #: The version of the state that was loaded last.
        self.loaded = None

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *more):
        self.loaded = local_metadata.get("version")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *more)


def sgd_and_scheduler(lr, momentum=0.9, gamma=0.5):
    """Returns a module with an optimizer and a scheduler, which differ between ranks."""
    module = torch.nn.Linear(2, 2)
    torch.nn.init.ones_(module.weight), torch.nn.init.ones_(module.bias)
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)
    module(torch.ones(1, 2)).sum().backward()
    return module, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)


def other_momentum(module, optimizer, scheduler):
    """Steps once, as only one rank with another gradient does."""
    optimizer.step()
    optimizer.state[module.weight]["momentum_buffer"] += 1
    torch.nn.init.ones_(module.weight), torch.nn.init.ones_(module.bias)
    return module, optimizer, scheduler


@pytest.mark.parametrize("step", [0, 5])
@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda rank: sgd_and_scheduler(0.2 - rank / 10), r"\['initial_lr'\] is 0.2 on rank 0"),
        (lambda rank: sgd_and_scheduler(0.1, rank), "'momentum'. is 0 on rank 0 and 1 on rank 1"),
        (lambda rank: sgd_and_scheduler(0.1, gamma=0.5 + rank), r"\['gamma'\] is 0.5 on rank 0"),
        (
            lambda rank: (lambda *of: other_momentum(*of) if rank else of)(*sgd_and_scheduler(0.1)),
            r"\(SGD\)\['state'\]\[0\]\['momentum_buffer'\] is missing on rank 0",
        ),
    ],
)
def test_other_optimizers_after_the_same_step_raise(step, make, where, two_groups):
    parts = [make(rank) for rank in range(2)]

    def resume_one(rank):
        with pytest.raises(landbridge.RanksDisagree, match=where):
            resume(two_groups[rank], step, *parts[rank])

    call_for_all(range(2), resume_one)


class OwnState(dict):
    """A part whose state is each rank's own, such as a sampler."""

    def state_dict(self):
        return dict(self)

    load_state_dict = dict.update


def test_states_of_one_rank_alone_may_differ(two_groups):
    parts = [[*sgd_and_scheduler(0.1), OwnState(seen=rank)] for rank in range(2)]
    for step in (0, 5):
        pairs = list(zip(two_groups, parts))
        call_for_all(pairs, lambda pair: resume(pair[0], step, *pair[1]))  # noqa: B023
    assert [own["seen"] for *_, own in parts] == [0, 1]


def test_other_modules_become_equal_without_a_finished_step(two_groups):
    parts = [(torch.nn.Linear(2, 2), torch.nn.Linear(3, 3)) for _ in range(2)]
    call_for_all(range(2), lambda rank: resume(two_groups[rank], 0, *parts[rank]))
    assert module_digest(parts[0][1]) == module_digest(parts[1][1])
    with torch.no_grad():
        parts[1][1].weight += 1
    with pytest.raises(landbridge.RanksDisagree, match=r"others\[0\] \(Linear\)\['weight'\] is"):
        call_for_all(range(2), lambda rank: resume(two_groups[rank], 3, *parts[rank]))


def test_all_buffers_reach_the_rank_behind(two_groups):
    """Of the model and of another module, which would differ without a word until the end."""
    modules = [BufferedLayer(5.0), BufferedLayer(0.0)]
    averages = [BufferedLayer(7.0), BufferedLayer(0.0)]

    def resume_one(rank):
        return resume(two_groups[rank], 5 - 5 * rank, modules[rank], averages[rank])

    assert outcomes_of_all(two_groups, resume_one) == [5, 5]
    for first, second in (modules, averages):
        digests = [module_digest(module, buffers=True) for module in (first, second)]
        assert digests[0] == digests[1]
        assert second.loaded == 2
    assert modules[1].seen == 5 and averages[1].inner.turned.tolist() == [[7.0] * 3] * 2


def test_other_buffers_of_another_module_raise_on_all_ranks(two_groups):
    parts = [BufferedLayer(5.0), BufferedLayer(0.0)]
    parts[1].register_buffer("seen", torch.zeros(3), persistent=False)
    outcomes = resume_each(two_groups, parts, [3, 1])
    assert all(isinstance(error, landbridge.StateNotTransferred) for error in outcomes)
    assert "buffers outside of the state dict differ" in str(outcomes[1])
    assert parts[1].kept.tolist() == [0, 0], "nothing was overwritten"


def test_a_scheduler_with_numpy_milestones_reaches_the_rank_behind(two_groups):
    def scheduler():
        optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
        milestones = numpy.linspace(10, 100, 4).astype(int)
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)

    parts = [scheduler(), scheduler()]
    parts[0].milestones[numpy.int64(7)] += 1
    assert resume_each(two_groups, parts, [3, 1]) == [3, 3]
    assert_same(parts[0].milestones, parts[1].milestones)


@pytest.mark.parametrize("step", [0.0, "0", None, -1, 1 << 63, pytest.param(10**5000, id="long")])
def test_a_step_that_is_no_number_of_steps_is_refused(step):
    with stand_in_gateway.lone_group() as (group, _):
        with pytest.raises(landbridge.ConfigError, match="^step .{,80}: accepted: whole numbers"):
            resume(group, step, torch.nn.Linear(1, 1))


@pytest.fixture
def uneven_arenas():
    """Two ranks, of which the second has a small arena."""
    with LocalRegions(ranks=(1, 1)) as regions, contextlib.ExitStack() as stack:

        def attach(rank):
            config, arena = regions.region_file_of_rank(rank), ["8 MiB", "64 KiB"][rank]
            return landbridge.connect(config=config, rank=rank, arena=arena, timeout=60)

        yield [stack.enter_context(group) for group in call_for_all(range(2), attach)]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_small_arena_sends_and_receives_all(ahead, uneven_arenas):
    modules = [torch.nn.Linear(128, 500) for _ in range(2)]
    modules[0].register_buffer("turned", torch.rand(30, 40).t())
    modules[1].register_buffer("turned", torch.rand(40, 30))
    steps = [1, 1]

    def synchronize(rank):
        return sync_module(modules[rank], uneven_arenas[rank], root=ahead)

    def resume_one(rank):
        return resume(uneven_arenas[rank], steps[rank], modules[rank])

    assert outcomes_of_all(modules, synchronize) == [None, None]
    assert module_digest(modules[0]) == module_digest(modules[1])
    with torch.no_grad():
        modules[ahead].weight.add_(1)
    steps[ahead] = 3
    assert outcomes_of_all(modules, resume_one) == [3, 3]
    assert module_digest(modules[0]) == module_digest(modules[1])


@pytest.mark.parametrize(
    ("left", "others"),
    [(4096, landbridge.ArenaFull), (0, landbridge.RanksDisagree)],
)
def test_a_full_arena_of_one_rank_stops_all_ranks(left, others, uneven_arenas):
    first, full = uneven_arenas
    kept = [full.empty(64, torch.uint8) for _ in range(((64 << 10) - left) // 64)]
    works = [
        lambda rank, module: resume(uneven_arenas[rank], 3 - rank, module),
        lambda rank, module: sync_module(module, uneven_arenas[rank]),
    ]
    modules = [torch.nn.Linear(3, 2) for _ in range(2)]
    for work in works[: 2 if left else 1]:
        outcomes = outcomes_of_all(modules, lambda rank, work=work: work(rank, modules[rank]))
        assert isinstance(outcomes[0], others), outcomes
        assert isinstance(outcomes[1], landbridge.ArenaFull), outcomes
    assert len(kept) > 900


def test_a_rank_without_memory_tells_all_others(two_groups, monkeypatch):
    def fail(nbytes=0):
        if nbytes > 100:
            raise MemoryError
        return bytearray(nbytes)

    monkeypatch.setattr(pieces, "bytearray", fail, raising=False)
    outcomes = resume_each(two_groups, [Part(1), Part(2)], [3, 1])
    assert all(isinstance(error, landbridge.StateNotTransferred) for error in outcomes)
    assert "rank 1 cannot send or load" in str(outcomes[0])
    assert "MemoryError: no memory for" in str(outcomes[1])
