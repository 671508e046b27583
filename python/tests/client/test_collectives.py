"""All-reduces over real gateways of two regions."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest

import landbridge
from conftest import DEADLINE_S, attached_groups, call_for_all, wait_until
from landbridge._group import group_state as group_state
from landbridge._local_regions import LocalRegions
from landbridge._operations.posted_collective import PostedCollective

numpy = pytest.importorskip("numpy")


def test_every_rank_gets_the_same_bits_of_every_operation(groups):
    rng = numpy.random.default_rng(1)
    inputs = [rng.standard_normal(1000).astype("float32") for _ in groups]
    expected = {
        "sum": sum(i.astype("float64") for i in inputs),
        "avg": sum(i.astype("float64") for i in inputs) / 3,
        "min": numpy.minimum.reduce(inputs),
        "max": numpy.maximum.reduce(inputs),
        "prod": inputs[0].astype("float64") * inputs[1] * inputs[2],
    }
    for op, wanted in expected.items():
        results = call_for_all(
            groups, lambda group, op=op: group.all_reduce(inputs[group.rank], op)
        )
        assert len({result.tobytes() for result in results}) == 1
        numpy.testing.assert_allclose(results[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["float64", "float16", "int32", "int64", "uint8"])
def test_every_dtype(groups, name):
    results = call_for_all(
        groups, lambda group: group.all_reduce(numpy.full((3, 5), group.rank + 1, name), "sum")
    )
    assert all((result == 6).all() and result.dtype == name for result in results)


def test_an_average_counts_ranks_by_their_weight(groups):
    results = call_for_all(
        groups,
        lambda group: group.all_reduce(
            numpy.full(10, float(group.rank), "float64"), "avg", weight=[1, 0, 3][group.rank]
        ),
    )
    assert all((result == 1.5).all() for result in results)
    ones = numpy.ones(10, "float32")
    results = call_for_all(groups, lambda group: group.all_reduce(ones, weight=0))
    assert all(numpy.isnan(result).all() for result in results), "nobody counts"
    results = call_for_all(groups, lambda group: group.all_reduce(ones, weight=1e290))
    assert all((result == 1).all() for result in results)


def test_the_result_goes_where_it_is_wanted(groups):
    def step(group):
        array = numpy.full(5, group.rank + 1, "float32")
        other = numpy.zeros(5, "float32")
        fresh = group.all_reduce(array, "sum")
        assert fresh is not array and array[0] == group.rank + 1
        assert group.all_reduce(array, "sum", out=other) is other
        assert group.all_reduce(array, "sum", out=array) is array
        return fresh[0], other[0], array[0]

    assert call_for_all(groups, step) == [(6, 6, 6)] * 3


def test_the_given_out_is_returned(groups):
    """Not an alias of it, which its library would take for another array."""

    def step(group):
        out = bytearray(5)
        assert group.all_reduce(bytes([group.rank] * 5), "sum", out=out) is out
        return out

    assert call_for_all(groups, step) == [bytes([3] * 5)] * 3


def test_arrays_in_the_arena_are_not_copied(groups):
    def step(group):
        array, out = group.empty(1000, "float32"), group.empty(1000, "float32")
        before = group._arena.used_bytes
        array[:] = group.rank
        operation = group.all_reduce_async(array, "sum", out=out)
        assert group._arena.used_bytes == before, "no other slots"
        assert operation.wait() is not None and (out == 3).all()
        operation.wait_free()
        assert (array == group.rank).all(), "the contribution is as it was"
        in_place = group.all_reduce(array, "sum", out=array)
        return in_place[0], array[0]

    assert call_for_all(groups, step) == [(3, 3)] * 3


def test_many_at_once_complete_in_any_order_of_waiting(groups):
    def step(group):
        under_way = [
            group.all_reduce_async(numpy.full(100 + i, i, "float32"), "sum") for i in range(300)
        ]
        return [operation.wait(30)[0] for operation in reversed(under_way)]

    assert call_for_all(groups, step) == [[3 * i for i in reversed(range(300))]] * 3


def test_an_operation_is_ready_before_it_is_free(groups):
    def step(group):
        seen = []
        operation = group.all_reduce_async(numpy.ones(1 << 18, "float32"))
        operation.add_done_callback(lambda op: seen.append((op.is_ready(), op.wait()[0])))
        result = operation.wait(30)
        assert operation.is_ready() and operation.wait() is result
        operation.wait_free(30)
        assert operation.is_free() and operation.failure is None
        operation.add_done_callback(lambda op: seen.append("late"))
        timing = operation.timing
        assert timing.posted_ns <= timing.ready_ns <= time.monotonic_ns()
        return seen

    assert call_for_all(groups, step) == [[(True, 1.0), "late"]] * 3


def test_a_callback_that_posts_or_waits_raises_at_once(groups):
    """The callback would wait for a message that its own thread must read.

    The caller's thread is no exception, because callbacks may run in either thread.
    """
    group, array = groups[0], numpy.ones(4, "float32")
    first, second = (group.all_reduce_async(array, "sum") for _ in range(2))
    commit = group.commit_async(1)
    errors, threads, called = [], [], threading.Event()

    def callback(operation):
        threads.append(threading.current_thread())
        posts = [group.all_reduce, group.all_reduce_async, group.broadcast, group.reduce_async]
        uses = [partial(post, array) for post in posts]
        uses += [group.barrier, partial(group.commit, 2), partial(group.empty, 1, "u8")]
        uses += [partial(group.recover, landbridge.EpochEnded("for this test"))]
        uses += [second.wait, partial(second.wait_free, 1), commit.wait]
        errors.append([error_type_of(use) for use in uses])
        errors.append(operation.wait()[0])
        called.set()

    first.add_done_callback(callback)
    call_for_all(groups[1:], lambda group: group.all_reduce(array, "sum"))
    assert called.wait(30)
    first.add_done_callback(callback)
    assert errors == [[landbridge.InCallback] * 11, 3] * 2
    assert threads[0].name == "landbridge-reader" and threads[1] is threading.current_thread()
    call_for_all(groups[1:], lambda group: (group.all_reduce(array, "sum"), group.commit(1)))
    assert second.wait(30)[0] == 3
    commit.wait(30)


def error_type_of(use):
    """Returns the type of the error that a call raises, or `None`."""
    try:
        use()
    except landbridge.LandbridgeError as error:
        return type(error)


def test_a_reduce_has_its_result_at_the_root_alone(groups):
    def step(group):
        mine, out = numpy.full(7, group.rank + 1.0), numpy.zeros(7)
        got = group.reduce(mine, 2, "sum", out=out)
        mean = group.reduce(mine, 0, weight=[1, 1, 2][group.rank])
        assert (mine == group.rank + 1).all()
        return got is out, out[0], mean if mean is None else mean[6]

    expected = [(False, 0, 2.25), (False, 0, None), (True, 6, None)]
    assert call_for_all(groups, step) == expected


def test_a_broadcast_is_exact(groups):
    pattern = numpy.array([0x7FC12345, 0x80000000, 0xFFFFFFFF, 1], "uint32").view("float32")

    def step(group):
        mine = pattern if group.rank == 1 else numpy.ones(4, "float32")
        given = group.broadcast(mine, 1)
        group.broadcast(mine, 1, out=mine)
        return given.tobytes(), mine.tobytes()

    assert call_for_all(groups, step) == [(pattern.tobytes(),) * 2] * 3


def test_a_broadcast_in_the_arena_is_not_copied(groups):
    def step(group):
        array, out = group.empty(1000, "i32"), group.empty(1000, "i32")
        array[7], before = group.rank, group._arena.used_bytes
        operation = group.broadcast_async(array, 2, out=out)
        assert group._arena.used_bytes == before, "no other slots"
        assert operation.wait() is not None
        operation.wait_free()
        return array[7], out[7]

    assert call_for_all(groups, step) == [(0, 2), (1, 2), (2, 2)]


def test_a_barrier_holds_until_all_are_there(groups):
    arrived = threading.Event()

    def step(group):
        if group.rank == 2:
            arrived.set()
        group.barrier()
        return arrived.is_set()

    assert call_for_all(groups, step) == [True] * 3


def test_a_barrier_needs_no_room(groups):
    def step(group):
        held = group.empty(8 << 20, "u8")
        group.barrier(60)
        return group.barrier_async().wait(), held[0] * 0

    assert call_for_all(groups, step) == [(None, 0)] * 3


def test_each_collective_is_posted_as_what_it_is(groups):
    """Gateways know the kind of a collective, and move no more bytes than it needs."""

    def step(group):
        posts, connection = [], group._state.connection
        send = connection.send
        connection.send = lambda request, place: (posts.append(request), send(request, place))
        array = numpy.ones(5, "int32")
        group.all_reduce(array, "max")
        group.reduce(array, 1, "sum")
        group.broadcast(array, 2)
        group.barrier(layout=9)
        return [(p.operation.name, p.root, p.dtype.label, p.elements, p.layout_hash) for p in posts]

    expected = [
        ("ALL_REDUCE", 0, "i32", 5, 0),
        ("REDUCE", 1, "i32", 5, 0),
        ("BROADCAST", 2, "i32", 5, 0),
        ("BARRIER", 0, "u8", 0, 9),
    ]
    assert call_for_all(groups, step) == [expected] * 3


@pytest.mark.parametrize("root", [-1, 3, 1 << 40, True, 1.0, "0", None])
@pytest.mark.parametrize("name", ["reduce", "broadcast", "gather", "scatter"])
def test_a_root_that_is_no_rank_is_refused_here(groups, name, root):
    words = f"^root {root!r}: accepted: whole numbers from 0 to 2$"
    for call in (name, f"{name}_async"):
        with pytest.raises(landbridge.ConfigError, match=words):
            getattr(groups[0], call)(numpy.ones(3, "float32"), root)


def test_ranks_that_disagree_on_the_collective_raise(groups):
    array = numpy.ones(4, "float32")

    def roots(group):
        with pytest.raises(landbridge.RanksDisagree, match="rank 1"):
            group.broadcast(array, group.rank % 2)

    def kinds(group):
        with pytest.raises(landbridge.RanksDisagree, match="barrier"):
            group.barrier() if group.rank else group.all_reduce(b"", "sum")

    for step in (roots, kinds):
        call_for_all(groups, step)
    call_for_all(groups, lambda group: group.barrier())


def test_a_step_is_committed_when_every_rank_has_it(groups):
    array = numpy.ones(1000, "float32")
    groups[0].all_reduce_async(array)
    early = groups[0].commit_async(7)
    with pytest.raises(landbridge.WaitTimeout):
        early.wait(0.05)
    with pytest.raises(landbridge.BadRequest, match="step 7"):
        groups[0].commit_async(7)

    def step(group):
        if group.rank:
            group.all_reduce(array)
            group.commit(7, timeout=30)
        else:
            early.wait(30)
        group.all_reduce(array)
        group.commit(8, timeout=30)
        return group.committed_step

    assert call_for_all(groups, step) == [8] * 3


def test_commits_of_different_steps_are_a_disagreement(groups):
    array = numpy.ones(1000, "float32")

    def step(group):
        group.all_reduce(array)
        text = r"commits step 5, rank 2 \(\w+\) commits step 6"
        with pytest.raises(landbridge.RanksDisagree, match=text):
            group.commit(6 if group.rank == 2 else 5)
            group.all_reduce(array)
        group.recover()
        group.all_reduce(array)
        group.commit(6)
        return group.committed_step

    assert call_for_all(groups, step) == [6] * 3


def test_a_commit_that_cannot_be_confirmed_says_so(groups):
    groups[0].all_reduce_async(numpy.ones(4, "float32"), timeout=0.2)
    commit = groups[0].commit_async(9, timeout=20)
    with pytest.raises(landbridge.CollectiveFailed):
        commit.wait(30)
    call_for_all(groups[1:], failure_of)


def test_batches_are_shared_by_speed(groups):
    assert [group.batch_share(16) for group in groups] == [4, 4, 8]
    assert groups[0].batch_shares(17) == [4, 4, 9]
    assert (groups[1].rank, groups[1].world_size, groups[1].fabric) == (1, 3, "lab")


def test_ranks_that_disagree_raise_field_and_values(groups):
    def step(group):
        with pytest.raises(landbridge.RanksDisagree) as raised:
            group.all_reduce(numpy.ones(10 + (group.rank == 1), "float32"))
        assert raised.value.fault == "caller" and raised.value.code == 1
        # The next collective is not harmed.
        assert group.all_reduce(numpy.ones(1, "float32"), "sum")[0] == 3
        return str(raised.value)

    for text in call_for_all(groups, step):
        assert "length" in text and "rank 1 (east) posted 11" in text and "posted 10" in text


def test_a_layout_that_differs_is_a_disagreement(groups):
    def step(group):
        with pytest.raises(landbridge.RanksDisagree, match="layout"):
            group.all_reduce(numpy.ones(4, "float32"), layout=int(group.rank == 0))

    call_for_all(groups, step)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((2, 3), (3, 2)), r"shape: .*posted \(2, 3\), .*posted \(3, 2\)"),
        (((2, 2), (4,)), r"shape: .*posted \(2, 2\), .*posted \(4,\)"),
        (((), (1,)), r"shape: .*posted \(\), .*posted \(1,\)"),
        (((2, 3), (9,)), r"shape: .*posted \(2, 3\), .*posted \(9,\)"),
        (((1,) * 8 + (5,), (1,) * 7 + (5, 1)), "layout"),
        (((1,) * 8 + (5,), (5,)), "layout"),
    ],
)
@pytest.mark.parametrize("operation", ["all_reduce", "reduce", "broadcast"])
def test_arrays_of_different_shape_are_a_disagreement(groups, operation, shapes, words):
    def step(group):
        array = numpy.ones(shapes[group.rank == 2], "float32")
        with pytest.raises(landbridge.RanksDisagree, match=words):
            getattr(group, operation)(array)
            # Ranks of the root's region may have the data of a broadcast before another region
            # begins, and have sent all that they have to a reduce.
            group.barrier()

    call_for_all(groups, step)


def test_flat_arrays_need_only_as_many_elements(groups):
    def step(group):
        array = numpy.arange(6, dtype="float32").reshape([(2, 3), (3, 2), (6,)][group.rank])
        for call in (group.all_reduce, group.reduce, group.broadcast):
            result = call(array, flat=True)
            assert result is None or (result == array).all() and result.shape == array.shape
        with pytest.raises(landbridge.RanksDisagree, match="length"):
            group.all_reduce(numpy.ones((2, 3 + group.rank), "float32"), flat=True)

    call_for_all(groups, step)


def test_waiting_for_ranks_ends_by_the_callers_timeout(groups):
    array = numpy.ones(4, "float32")
    with pytest.raises(landbridge.RanksTimedOut) as raised:
        groups[0].all_reduce(array, timeout=0.2)
    assert "rank" in str(raised.value) and isinstance(raised.value, TimeoutError)
    late = call_for_all(groups[1:], failure_of)
    assert all(isinstance(failure, landbridge.RanksTimedOut) for failure in late)
    assert call_for_all(groups, lambda group: group.all_reduce(array, "sum")[0]) == [3] * 3


def failure_of(group):
    """Returns the failure of an all-reduce, which must fail."""
    with pytest.raises(landbridge.CollectiveFailed) as raised:
        group.all_reduce(numpy.ones(4, "float32"))
    return raised.value


def test_a_wait_may_end_before_the_collective(groups):
    array = numpy.ones(4, "float32")
    operation = groups[0].all_reduce_async(array)
    with pytest.raises(landbridge.WaitTimeout):
        operation.wait(0.05)
    with pytest.raises(landbridge.WaitTimeout):
        operation.wait_free(0)
    call_for_all(groups[1:], lambda group: group.all_reduce(array))
    assert operation.wait(30)[0] == 1


def test_posts_wait_for_room_and_results_not_fetched_take_it(groups):
    """The arena of 8 MiB holds six results of 1 MiB, but no more collective beside them."""

    def step(group):
        array = numpy.ones(1 << 18, "float32")
        kept = [group.all_reduce_async(array, "sum") for _ in range(6)]
        for operation in kept:
            operation.wait_free(30)
        assert group._arena.used_bytes == 6 << 20
        with pytest.raises(landbridge.ArenaFull, match="results not fetched"):
            group.empty(3 << 18, "float32")
        total = sum(operation.wait()[0] for operation in kept)
        assert group._arena.used_bytes == 0
        return total

    assert call_for_all(groups, step) == [18] * 3


def test_room_that_is_about_to_come_back_is_waited_for(groups):
    """The collective is over, but its memory is not free before its callback has returned."""
    array = numpy.ones(1 << 20, "float32")
    operation = groups[0].all_reduce_async(array, timeout=0.2)
    assert groups[0]._arena.used_bytes == groups[0]._arena.nbytes
    began = threading.Event()

    def callback(_):
        began.set()
        time.sleep(0.3)

    operation.add_done_callback(callback)
    began.wait(30)
    assert groups[0].empty(1 << 21, "float32").nbytes == 8 << 20
    call_for_all(groups[1:], failure_of)


def test_memory_that_only_a_traceback_holds_comes_back(groups):
    def fails():
        held = groups[0].empty(1 << 21, "float32")
        try:
            raise ValueError(held.nbytes)
        except ValueError as error:
            failure = error  # Its traceback holds this frame.
        return str(failure)

    gc.disable()
    try:
        assert fails() == str(8 << 20)
        assert groups[0]._arena.used_bytes == 8 << 20
        assert groups[0].empty(1 << 21, "float32").nbytes == 8 << 20
    finally:
        gc.enable()


def test_a_result_slot_in_use_is_waited_for(groups):
    def step(group):
        out = group.empty(1 << 16, "float32")
        array = numpy.ones(1 << 16, "float32")
        for _ in range(20):
            group.all_reduce_async(array, "sum", out=out)
        return group.all_reduce_async(array, "sum", out=out).wait(30)[7]

    assert call_for_all(groups, step) == [3] * 3


def test_jobs_do_not_meet():
    with LocalRegions(ranks=(1, 1), jobs=("train", "zoo")) as regions:

        def attach(who):
            rank, job = who
            return landbridge.connect(
                config=regions.region_file_of_rank(rank),
                rank=rank,
                job=job,
                arena="1 MiB",
                timeout=60,
            )

        every = call_for_all([(0, "train"), (1, "train"), (0, "zoo"), (1, "zoo")], attach)
        results = call_for_all(
            list(enumerate(every)),
            lambda pair: pair[1].all_reduce(numpy.full(4, 10.0 ** pair[0]), "sum")[0],
        )
        assert results == [11, 11, 1100, 1100]
        for group in every:
            group.close()


def test_a_wrong_token_is_refused(regions, tmp_path):
    text = regions.region_file("east").read_text().replace('"keys/train.token"', '"other.token"')
    for name in ("fabric.toml", "east.sock", "keys"):
        (tmp_path / name).symlink_to(regions.folder / name)
    (tmp_path / "east.toml").write_text(text)
    (tmp_path / "other.token").write_text("00" * 32)
    with pytest.raises(landbridge.Refused, match="no such job, or a wrong token"):
        landbridge.connect(config=tmp_path / "east.toml", rank=0, arena=4096)


def test_a_rank_of_another_region_is_refused(regions):
    with pytest.raises(landbridge.Refused, match="rank 2 is not served here"):
        landbridge.connect(config=regions.region_file("east"), rank=2, arena=4096)


def test_ranks_that_do_not_come_are_named(regions):
    with pytest.raises(landbridge.RanksTimedOut, match="rank"):
        landbridge.connect(config=regions.region_file("west"), rank=2, arena=4096, timeout=2)


def test_a_closed_group_says_so(regions):
    with attached_groups(regions) as groups:
        operation = groups[0].all_reduce_async(numpy.ones(4, "float32"))
        kept = groups[0].empty(4, "float32")
        few = groups[0].new_group([0], tag=1)
        waiting = groups[0].new_group([0, 1], tag=2).barrier_async()
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(groups[0].store.get, "missing")
            wait_until(lambda: groups[0]._state.store_calls)
            groups[0].close()
            ended = [operation.failure, waiting.failure, asked.exception(DEADLINE_S)]
        kinds = [landbridge.GatewayLost, landbridge.GatewayLost, landbridge.StoreDisconnected]
        assert [type(failure) for failure in ended] == kinds
        for failure in ended:
            # Nothing attaches the group again.
            assert "the group was closed" in str(failure) and "recover" not in str(failure)
        for group in (groups[0], few):
            with pytest.raises(landbridge.Closed):
                group.all_reduce(numpy.ones(4, "float32"))
            with pytest.raises(landbridge.Closed):
                group.store.get("key") if group is groups[0] else group.barrier()
        with pytest.raises(landbridge.Closed):
            groups[0].recover(operation.failure)
        kept[:] = 1  # The memory is still there.


def test_a_commit_names_the_epoch_of_its_last_post():
    state = group_state.GroupState()
    state.connection, state.ended, state.is_over = object(), None, False
    state.epoch = 1
    state.agree_to_epoch()
    slots = ((0, 0), (0, 0))
    entry = PostedCollective(SimpleNamespace(), slots, held=(), passed=None)
    state.register_collective(entry)
    state.epoch = 2
    state.agree_to_epoch()
    epochs = [state.register_commit(SimpleNamespace(step=step))[1] for step in (1, 2)]
    assert epochs == [1, 2], "the second covers nothing"
