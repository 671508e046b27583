"""The collectives of process groups in pieces, and their failures, over two ranks of this
process."""

import os
import signal
import threading
import warnings
from datetime import timedelta
from types import SimpleNamespace

import pytest

import landbridge
from conftest import DEADLINE_S, call_for_all, wait_until
from landbridge._operations.operation import Operation

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from landbridge.torch._c10d import exchange_work  # noqa: E402
from landbridge.torch._c10d.arena_room import ArenaRoom, choose_arena_piece_bytes  # noqa: E402
from landbridge.torch._c10d.exchange import Exchange  # noqa: E402
from landbridge.torch._c10d.flat_tensors import describe_flat_tensors  # noqa: E402
from process_group_members import Member, members_of, options  # noqa: E402


@pytest.fixture(params=[64, 1 << 20], ids=["many pieces", "one piece"])
def members(request, two_groups):
    """Both ranks, whose pieces are short or long."""
    return members_of(two_groups, request.param)


def row(member, count):
    """Returns a tensor that differs by rank."""
    return torch.arange(count, dtype=torch.float32) + 1000 * member.rank


def test_pieces_of_any_length_make_the_whole_collective(members):
    def check(member):
        both = [torch.arange(101.0), torch.arange(101.0) + 1000]
        total = row(member, 101)
        member.allreduce([total], options()).wait()
        assert torch.equal(total, sum(both))
        given = row(member, 101)
        member.broadcast([given], options(rootRank=1)).wait()
        assert torch.equal(given, both[1])
        uneven = [torch.zeros(50), torch.zeros(101)]
        mine = row(member, len(uneven[member.rank]))
        member.allgather([uneven], [mine], options()).wait()
        assert torch.equal(uneven[0], both[0][:50]) and torch.equal(uneven[1], both[1])
        block = torch.zeros(50)
        member.reduce_scatter_single(block, row(member, 100), options()).wait()
        assert torch.equal(block, sum(both)[50 * member.rank :][:50])
        blocks = [torch.zeros(101) for _ in both] if member.rank == 1 else []
        member.gather([blocks], [row(member, 101)], options(rootRank=1)).wait()
        assert all(torch.equal(*pair) for pair in zip(blocks, both))
        part = torch.zeros(101)
        given = both if member.rank == 0 else []
        member.scatter([part], [given], options(rootRank=0)).wait()
        assert torch.equal(part, both[member.rank])

    call_for_all(members, check)


CALLS_OF_SHAPES = {
    "all_reduce": lambda member, shape: member.allreduce([torch.ones(shape)], options()),
    "broadcast": lambda member, shape: member.broadcast([torch.ones(shape)], options(rootRank=0)),
    "all_gather": lambda member, shape: member.allgather(
        [[torch.ones(shape) for _ in range(2)]], [torch.ones(shape)], options()
    ),
    "all_gather_single": lambda member, shape: member.all_gather_single(
        torch.ones(2, 6), torch.ones(shape), options()
    ),
    "reduce_scatter": lambda member, shape: member.reduce_scatter_single(
        torch.ones(shape), torch.ones(12), options()
    ),
    "all_to_all_single": lambda member, shape: member.all_to_all_single(
        torch.ones(6), torch.ones(shape), [], [], options()
    ),
    "gather": lambda member, shape: member.gather(
        [[torch.ones(6), torch.ones(6)] if member.rank == 0 else []],
        [torch.ones(shape)],
        options(rootRank=0),
    ),
    "scatter": lambda member, shape: member.scatter(
        [torch.ones(shape)],
        [[torch.ones(6), torch.ones(6)] if member.rank == 0 else []],
        options(rootRank=0),
    ),
}


@pytest.mark.parametrize("name", CALLS_OF_SHAPES)
def test_tensors_of_different_shape_are_a_disagreement(members, name):
    """Their elements would be mixed without a word, as those of complex and real tensors."""

    def check(member):
        shape = (3, 2) if member.rank == 0 else (2, 3)
        with pytest.raises(landbridge.RanksDisagree):
            CALLS_OF_SHAPES[name](member, shape).wait()
            # A rank that had nothing to wait for hears it at its next call.
            member.barrier().wait()

    call_for_all(members, check)


@pytest.mark.parametrize("name", CALLS_OF_SHAPES)
def test_each_rank_names_the_tensors_of_its_call(members, name):
    def check(member):
        shape = (3, 2) if member.rank == 0 else (2, 3)
        with pytest.raises(landbridge.RanksDisagree) as raised:
            CALLS_OF_SHAPES[name](member, shape).wait()
            # It tells a rank that had nothing to wait for, and knows only of the piece by then.
            member.barrier().wait()
        return shape, raised.value.here

    told = call_for_all(members, check)
    assert any(f"torch.float32 of shape {shape}" in here for shape, here in told)
    for shape, here in told:
        assert f"torch.float32 of shape {shape}" in here or "passed dtype f32, shape" in here


def test_lists_of_unequal_blocks_are_reduced_and_scattered(members):
    def check(member):
        blocks, mine = [row(member, 50), row(member, 101)], torch.zeros(50 + 51 * member.rank)
        member.reduce_scatter([mine], [blocks], options()).wait()
        assert torch.equal(mine, 2 * torch.arange(float(len(mine))) + 1000)
        unlike = [torch.ones(2, 3), torch.ones(3, 2) if member.rank else torch.ones(2, 3)]
        with pytest.raises(landbridge.RanksDisagree):
            member.reduce_scatter([torch.ones(2, 3)], [unlike], options()).wait()

    call_for_all(members, check)


def test_a_forked_process_is_refused_at_once(two_groups):
    here, _ = members_of(two_groups)
    work = here.allreduce([torch.ones(3)], options())
    calls = [here.barrier, lambda: here.send([torch.ones(3)], 1, 0)]
    calls += [here.start_coalescing, here.end_coalescing]
    calls += [work.wait, work.get_future, work.is_completed, work.is_success, work.synchronize]
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except landbridge.ForkedProcess:
                refused += 1
        here.exchange.close()
        here.exchange.abort()
        os._exit(refused)
    codes = []

    def note_end():
        """Notes the exit status of the child once it has ended."""
        pid, status = os.waitpid(child, os.WNOHANG)
        codes.extend([os.waitstatus_to_exitcode(status)] if pid else [])
        return bool(codes)

    try:
        wait_until(note_end)
    finally:
        if not codes:
            os.kill(child, signal.SIGKILL)
    assert codes == [len(calls)]


def test_a_rank_with_nothing_to_give_needs_no_shape(members):
    def check(member):
        gives = member.rank == 1
        source = torch.ones(3, 2) if gives else torch.ones(0)
        received = torch.zeros(0, 2) if gives else torch.zeros(3, 2)
        sent, got = ([3, 0], [0, 0]) if gives else ([0, 0], [0, 3])
        member.all_to_all_single(received, source, got, sent, options()).wait()
        assert received.sum() == (0 if gives else 6)

    call_for_all(members, check)


def test_a_complex_tensor_is_named_as_it_was_passed(members):
    def check(member):
        dtype = torch.complex64 if member.rank == 0 else torch.complex128
        # PyTorch does so before it calls a backend.
        pairs = torch.view_as_real(torch.ones(4, dtype=dtype))
        with pytest.raises(landbridge.RanksDisagree) as raised:
            member.allreduce([pairs], options()).wait()
        return raised.value.here

    here, there = call_for_all(members, check)
    assert "torch.complex64 of shape (4,), moved as torch.float32 of shape (4, 2)" in here
    assert "torch.complex128 of shape (4,)" in there


def test_a_real_view_of_a_complex_tensor_keeps_its_name():
    parts = torch.ones(3, 2, dtype=torch.complex64)
    for tensor in (parts.real, parts.imag, parts, torch.ones(3, 2)):
        words = describe_flat_tensors([tensor])
        assert f"the tensor {tensor.dtype} of shape (3, 2); layouts" in words
    assert describe_flat_tensors([parts] * 20).count("complex64") == 8


#: Tensors of two numbers that hold other bits in their memory than their elements have.
LAZY_VIEWS = {
    "conj": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "neg": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    "strided neg": lambda: torch.ones(2, 2, dtype=torch.complex64).conj().imag[:, 1],
}


@pytest.mark.parametrize("name", LAZY_VIEWS)
def test_views_that_compute_their_elements_are_taken(members, name):
    def check(member):
        view = LAZY_VIEWS[name]
        plain = view().resolve_conj().resolve_neg().clone()
        for root in range(2):
            moved = view()
            if member.rank != root:
                moved.zero_()
            member.broadcast([moved], options(rootRank=root)).wait()
            assert torch.equal(moved, plain)
        if not plain.is_complex():
            total = view()
            member.allreduce([total], options()).wait()
            assert torch.equal(total, 2 * plain)
            total = view()
            member.reduce([total], options(rootRank=1)).wait()
            assert torch.equal(total, plain * (1 + member.rank))
            member.reduce_scatter([total], [[view(), view()]], options()).wait()
            assert torch.equal(total, 2 * plain)
        blocks = [view().zero_() for _ in range(2)]
        member.allgather([blocks], [view()], options()).wait()
        assert all(torch.equal(block, plain) for block in blocks)
        given, got = [view(), view()], view().zero_()
        member.scatter([got], [given if member.rank == 0 else []], options(rootRank=0)).wait()
        assert torch.equal(got, plain)
        blocks = [view().zero_() for _ in range(2)]
        member.gather([blocks if member.rank == 0 else []], [view()], options(rootRank=0)).wait()
        assert member.rank or all(torch.equal(block, plain) for block in blocks)
        blocks = [view().zero_() for _ in range(2)]
        member.alltoall(blocks, [view(), view()], options()).wait()
        assert all(torch.equal(block, plain) for block in blocks)
        got = view().zero_()
        sent = member.send([view()], 1 - member.rank, 3)
        member.recv([got], 1 - member.rank, 3).wait()
        sent.wait()
        assert torch.equal(got, plain)

    call_for_all(members, check)


def test_expanded_tensors_are_read_and_never_written(members):
    def expanded():
        return torch.ones(1).expand(4)

    def check(member):
        written = {
            "all_reduce": lambda: member.allreduce([expanded()], options()),
            "reduce": lambda: member.reduce([expanded()], options(rootRank=member.rank)),
            "broadcast": lambda: member.broadcast([expanded()], options(rootRank=1 - member.rank)),
            "all_gather": lambda: member.allgather([[expanded()] * 2], [expanded()], options()),
            "all_gather_single": lambda: member.all_gather_single(
                torch.ones(1).expand(8), expanded(), options()
            ),
            "reduce_scatter": lambda: member.reduce_scatter_single(
                expanded(), torch.ones(8), options()
            ),
            "gather": lambda: member.gather(
                [[expanded()] * 2], [torch.ones(4)], options(rootRank=member.rank)
            ),
            "scatter": lambda: member.scatter(
                [expanded()], [[]], options(rootRank=1 - member.rank)
            ),
            "all_to_all": lambda: member.alltoall([expanded()] * 2, [torch.ones(4)] * 2, options()),
            "all_to_all_single": lambda: member.all_to_all_single(
                expanded(), torch.ones(4), None, None, options()
            ),
            "receive": lambda: member.recv([expanded()], 1 - member.rank, 0),
        }
        for call in written.values():
            with pytest.raises(landbridge.UnsupportedArray, match="share memory.*use its copy"):
                call().wait()
        # Nothing was posted, so the ranks are in one order, and tensors that are read are taken.
        got = torch.zeros(4) if member.rank else expanded()
        member.broadcast([got], options(rootRank=0)).wait()
        blocks = [torch.zeros(4), torch.zeros(4)]
        member.allgather([blocks], [expanded()], options()).wait()
        total = torch.ones(4) if member.rank else expanded()
        member.reduce([total], options(rootRank=1)).wait()
        sent = member.send([expanded()], 1 - member.rank, 1)
        member.recv([blocks[0]], 1 - member.rank, 1).wait()
        sent.wait()
        assert [one.tolist() for one in (got, *blocks)] == [[1.0] * 4] * 3
        assert total.tolist() == [1.0 + member.rank] * 4

    call_for_all(members, check)


def test_a_shape_without_dimensions_is_one_of_one_element(members):
    def check(member):
        one = torch.tensor(1.0) if member.rank == 0 else torch.ones(1)
        member.allreduce([one], options()).wait()
        assert one.item() == 2.0

    call_for_all(members, check)


def test_a_tensor_longer_than_the_arena_is_reduced(two_groups):
    """The arena has 8 MiB, and the pieces 1 MiB."""
    assert choose_arena_piece_bytes([32 << 20, 64 << 20]) == 1 << 20

    def check(member):
        tensors = [row(member, 3 << 20) for _ in range(2)]
        works = [member.allreduce([tensor], options()) for tensor in tensors]
        assert [work.wait() for work in works] == [True, True]
        expected = 2 * torch.arange(3 << 20, dtype=torch.float32) + 1000
        assert all(torch.equal(tensor, expected) for tensor in tensors)

    call_for_all(members_of(two_groups), check)


def test_a_rank_that_does_not_come_is_named(two_groups):
    here, _ = members_of(two_groups, timeout_s=0.2)
    with pytest.raises(landbridge.RanksTimedOut, match="rank 1"):
        here.monitored_barrier(None)
    work = here.allreduce([torch.ones(1)], options())
    with pytest.raises(RuntimeError, match=r"landbridge\.RanksTimedOut: .*rank 1"):
        work.get_future().wait()
    assert work.is_completed() and not work.is_success()
    assert isinstance(work.exception(), landbridge.RanksTimedOut)


def test_a_rank_that_cannot_post_stops_all_ranks(two_groups):
    average = dist.AllreduceOptions()
    average.reduceOp = dist.ReduceOp.AVG

    def check(member):
        whole = torch.ones(3, dtype=torch.int64)
        if member.rank == 0:
            with pytest.raises(landbridge.UnsupportedArray, match="no average of i64"):
                member.allreduce([whole], average).wait()
        else:
            with pytest.raises(landbridge.RanksDisagree):
                member.allreduce([whole], options()).wait()

    # Without the news the other rank would wait for longer than the test may take.
    call_for_all(members_of(two_groups, timeout_s=3600), check)


def test_a_batch_fails_as_the_first_of_its_works(two_groups):
    average = dist.AllreduceOptions()
    average.reduceOp = dist.ReduceOp.AVG

    def check(member):
        member.start_coalescing()
        member.allreduce([torch.ones(3)], options())
        member.allreduce([torch.ones(3, dtype=torch.int64)], average)
        return member.end_coalescing()

    works = call_for_all(members_of(two_groups), check)
    for work in works:
        with pytest.raises(landbridge.UnsupportedArray, match="no average of i64"):
            work.wait()


def test_a_wait_that_ends_early_leaves_the_collective_under_way(two_groups):
    here, there = members_of(two_groups)
    tensor = torch.ones(3)
    work = here.allreduce([tensor], options())
    with pytest.raises(landbridge.WaitTimeout):
        work.wait(timedelta(milliseconds=10))
    there.allreduce([torch.ones(3)], options()).wait()
    assert work.wait() and tensor.tolist() == [2.0] * 3


def test_a_closed_exchange_ends_its_calls_and_takes_no_more(two_groups):
    def check(member):
        tensor = torch.ones(3)
        member.allreduce([tensor], options())
        member.exchange.close()
        assert tensor.tolist() == [2.0] * 3
        with pytest.raises(landbridge.Closed):
            member.allreduce([tensor], options())

    call_for_all(members_of(two_groups), check)


def test_an_abort_ends_works_and_tells_the_other_rank(two_groups):
    here, there = members_of(call_for_all(two_groups, lambda group: group.new_group([0, 1])))
    tensor = torch.ones(3)
    work = here.allreduce([tensor], options())
    here.exchange.abort()
    with pytest.raises(landbridge.Closed, match="aborted"):
        work.wait()
    with pytest.raises(landbridge.Closed):
        here.barrier()
    # The first collective may succeed: this rank had posted it.
    late = there.allreduce([torch.ones(3)], options())
    with pytest.raises((landbridge.RanksDisagree, landbridge.RankLost, landbridge.EpochEnded)):
        there.barrier().wait()
    assert late.is_completed()
    assert tensor.tolist() == [1.0] * 3
    # Other groups of the rank go on.
    sums = call_for_all(members_of(two_groups), lambda one: all_reduced(one, 1.0))
    assert sums == [2.0, 2.0]


def test_a_work_ends_though_its_tensors_cannot_be_described(monkeypatch):
    def fail(_):
        raise RuntimeError("of this test")

    monkeypatch.setattr(exchange_work, "describe_flat_tensors", fail)
    work = exchange_work.ExchangeWork([], [torch.ones(3)])
    work.finish(landbridge.RanksDisagree("lengths differ"))
    with pytest.raises(landbridge.RanksDisagree, match="cannot be described: of this test"):
        work.wait(timedelta(seconds=1))


def all_reduced(member, value, count=1):
    tensor = torch.full((count,), value)
    member.allreduce([tensor], options()).wait()
    return tensor[0].item()


def test_groups_that_share_an_arena_wait_for_no_other(two_groups):
    """Each rank fills its arena with one group first, and both with another one. The arena has 8
    MiB, and each tensor more."""
    parts = call_for_all(two_groups, lambda group: group.new_group([0, 1]))
    both_wait = threading.Barrier(2, timeout=DEADLINE_S)

    def check(pair):
        room = ArenaRoom(pair[0]._arena, choose_arena_piece_bytes([8 << 20]))
        members = [Member(group, room) for group in pair]
        order = members if members[0].rank == 0 else members[::-1]
        tensors = [torch.ones(3 << 20) for _ in order]
        works = [order[0].allreduce([tensors[0]], options())]
        # The thread that posts waits for room, on one rank until the other one goes on.
        wait_until(lambda: room._changed._waiters)
        both_wait.wait()
        works.append(order[1].allreduce([tensors[1]], options()))
        assert all(work.wait() for work in works)
        return [tensor.sum().item() for tensor in tensors]

    assert call_for_all(list(zip(two_groups, parts)), check) == [[2.0 * (3 << 20)] * 2] * 2


def test_a_timeout_of_zero_ends_a_collective_at_once(two_groups):
    here, _ = members_of(two_groups)
    work = here.barrier(options(timeout=timedelta()))
    with pytest.raises(landbridge.RanksTimedOut):
        work.wait(timedelta(seconds=DEADLINE_S / 2))


def test_tensors_without_plain_memory_are_refused(two_groups):
    here, _ = members_of(two_groups)
    with pytest.raises(landbridge.UnsupportedArray, match="to_dense"):
        here.allreduce([torch.ones(3).to_sparse()], options())


def test_every_dtype_is_moved_or_refused(two_groups):
    """Each of them travels, or this package says why not."""
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    made = [make_or_skip(dtype) for dtype in sorted(dtypes, key=str)]
    tensors = [tensor for tensor in made if tensor is not None]

    def check(member):
        refused = set()
        for tensor in tensors:
            mine, blocks = torch.empty_like(tensor), [torch.empty_like(tensor) for _ in range(2)]
            if tensor.element_size() == 1 and tensor.dtype is not torch.bool:
                # One that is not contiguous is copied.
                strided = torch.arange(8, dtype=torch.uint8)[member.rank :: 2].view(tensor.dtype)
                member.broadcast([strided], options(rootRank=1)).wait()
                assert strided.view(torch.uint8).tolist() == [1, 3, 5, 7]
            member.broadcast([mine], options(rootRank=0)).wait()
            member.allgather([blocks], [tensor], options()).wait()
            try:
                member.allreduce([mine], options()).wait()
            except landbridge.UnsupportedArray as error:
                assert "cannot be reduced" in str(error)
                refused.add(tensor.dtype)
        return refused

    here, there = call_for_all(members_of(two_groups), check)
    assert here == there and torch.uint4 in here
    assert not here & {torch.float32, torch.bfloat16, torch.int64, torch.uint16, torch.bool}


def make_or_skip(dtype):
    """Returns a tensor of a dtype, or nothing where PyTorch makes none that is plain."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.empty(4, dtype=dtype)
        return None if tensor.is_quantized else tensor


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.int64, torch.bool], ids=str)
def test_a_factor_of_another_dtype_is_refused(two_groups, dtype):
    reduction = dist._make_nccl_premul_sum(0.5)
    given = options(reduceOp=reduction)
    here, _ = members_of(two_groups)
    with pytest.raises(landbridge.UnsupportedArray, match=f"elements of {dtype} cannot be mult"):
        here.allreduce([torch.ones(3).to(dtype)], given)


def test_tensors_with_gaps_or_lazy_values_get_their_results(two_groups):
    def check(member):
        whole = torch.ones(3, 4)
        member.allreduce([whole[:, 1:3].t()], options()).wait()
        assert whole[1].tolist() == [1.0, 2.0, 2.0, 1.0]
        negative = torch._neg_view(torch.ones(2))
        member.allreduce([negative], options()).wait()
        assert negative.tolist() == [-2.0, -2.0]

    call_for_all(members_of(two_groups), check)


def end_operation(operation):
    """Ends an operation, and returns it."""
    operation._set_outcome(None, None)
    operation._finish(None)
    return operation


def test_a_piece_without_room_waits_for_pieces_before_it():
    """Results that are not copied yet hold the arena, when the gateway has done everything."""
    told = []
    group = SimpleNamespace(barrier_async=lambda **given: told.append(given), close=list)
    room = ArenaRoom(SimpleNamespace(nbytes=1 << 20, used_bytes=0), 64)
    exchange = Exchange(group, room)
    first, attempts = Operation(None, None), []

    def begin():
        attempts.append(room._under_way[exchange])
        if len(attempts) == 1:
            end_operation(first)
            raise landbridge.ArenaFull("of this test")
        return end_operation(Operation(None, None))

    def post_two(post):
        post(lambda: first)
        post(begin)

    assert exchange.start_call([], post_two).wait()
    assert attempts == [2, 1] and not told
    attempts.clear()
    with pytest.raises(landbridge.ArenaFull):
        exchange.start_call([], lambda post: post(begin)).wait()
    assert attempts == [1] and len(told) == 1
    exchange.close()
