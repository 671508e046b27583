"""Arguments of groups, their stores and their batches that cannot be used.

Each is refused by its name and its value, before anything is posted. Booleans are no numbers.
"""

from datetime import timedelta

import pytest

import landbridge
from conftest import call_for_all

numpy = pytest.importorskip("numpy")

ONES = numpy.ones(2, "float32")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"array": [1.0]}, landbridge.UnsupportedArray, "list is no array"),
        ({"array": numpy.ones(2, "int32")}, landbridge.UnsupportedArray, "no average of i32"),
        ({"op": "mean"}, landbridge.ConfigError, "sum, avg, min"),
        ({"op": None}, landbridge.ConfigError, "sum, avg, min"),
        ({"dtype": "f8"}, landbridge.ConfigError, "f32, f64"),
        ({"layout": -1}, landbridge.ConfigError, "layout -1: accepted"),
        ({"layout": 1 << 64}, landbridge.ConfigError, "layout 18446744073709551616: accepted"),
        ({"layout": 0.5}, landbridge.ConfigError, "layout 0.5: accepted"),
        ({"timeout": -1}, landbridge.ConfigError, "timeout -1: accepted"),
        ({"timeout": float("inf")}, landbridge.ConfigError, "timeout inf: accepted"),
        ({"timeout": float("nan")}, landbridge.ConfigError, "timeout nan: accepted"),
        ({"timeout": None}, landbridge.ConfigError, "timeout None: accepted"),
        ({"timeout": 2e10}, landbridge.ConfigError, "timeout 20000000000.0: accepted"),
        ({"weight": None}, landbridge.ConfigError, "weight None: accepted"),
        ({"weight": True}, landbridge.ConfigError, "weight True: accepted: numbers"),
        ({"weight": "1"}, landbridge.ConfigError, "weight '1': accepted: numbers"),
        ({"timeout": 0}, landbridge.ConfigError, "timeout 0: accepted: seconds above 0"),
        ({"timeout": True}, landbridge.ConfigError, "timeout True: accepted"),
        ({"layout": True}, landbridge.ConfigError, "layout True: accepted"),
        ({"flat": "no"}, landbridge.ConfigError, "flat 'no': accepted: True or False"),
        ({"op": 10**5000}, landbridge.ConfigError, "op a number of thousands of digits: accepted"),
        ({"dtype": numpy.ones(2)}, landbridge.ConfigError, "dtype array.*: accepted: f32"),
        ({"weight": -1.0}, landbridge.ConfigError, "weight"),
        ({"weight": 1e291}, landbridge.ConfigError, r"weight 1e\+291: accepted: .*0 to 1e\+290"),
        ({"weight": 10**400}, landbridge.ConfigError, "^weight .{,80}accepted"),
        ({"weight": float("nan")}, landbridge.ConfigError, "weight"),
        ({"out": numpy.ones(3, "float32")}, landbridge.UnsupportedArray, r"shape \(3,\)"),
        ({"out": numpy.ones(2, "float64")}, landbridge.UnsupportedArray, "f64"),
        ({"out": b"12345678"}, landbridge.UnsupportedArray, "writable"),
        (
            {"array": numpy.float32(1), "out": numpy.float32(0)},
            landbridge.UnsupportedArray,
            "writable",
        ),
        ({"array": numpy.ones(1 << 22, "float32")}, landbridge.ArenaFull, "larger `arena`"),
    ],
)
def test_unusable_posts_are_refused_before_posting(groups, arguments, error, words):
    arguments = {"array": numpy.ones(2, "float32"), **arguments}
    state = groups[0]._state
    # The barrier of `connect` may still be under way.
    state.wait_until(lambda: not state.entries, None)
    with pytest.raises(error, match=words):
        groups[0].all_reduce_async(**arguments)
    assert state.entries == {} and state.ended is None


@pytest.mark.parametrize(
    "call",
    [
        lambda group, array, out: group.reduce_async(array, 1, "sum", out=out),
        lambda group, array, out: group.broadcast_async(array, out=out),
        lambda group, array, out: group.receive_async(array, 1, out=out),
        lambda group, array, out: group.all_gather_async(array, out=[out, out, out]),
        lambda group, array, out: group.reduce_scatter_async([array] * 3, "sum", out=out),
        lambda group, array, out: group.gather_async(array, out=[out, out, out]),
        lambda group, array, out: group.scatter_async([array] * 3, out=out),
        lambda group, array, out: group.all_to_all_async([array] * 3, out=[out, out, out]),
    ],
)
def test_results_that_cannot_be_written_are_refused_before_posting(groups, call):
    state = groups[0]._state
    state.wait_until(lambda: not state.entries, None)
    frozen = numpy.zeros(2, "float32")
    frozen.flags.writeable = False
    for array, out in ((numpy.ones(2, "float32"), frozen), (numpy.float32(1), numpy.float32(0))):
        with pytest.raises(landbridge.UnsupportedArray, match="writable|dimensions"):
            call(groups[0], array, out)
    assert state.entries == {} and not groups[0]._pairs and state.ended is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda group: group.barrier(-1), "timeout -1: accepted"),
        (lambda group: group.barrier(layout=None), "layout None: accepted"),
        (lambda group: group.commit(1, timeout=float("inf")), "timeout inf: accepted"),
        (lambda group: group.commit(1.5), "step 1.5: accepted"),
        (lambda group: group.reduce(numpy.ones(2), 0.0), "root 0.0: accepted"),
        (lambda group: group.agree(None), "step None: accepted"),
        (lambda group: group.recover(timeout=None), "timeout None: accepted"),
        (lambda group: group.recover(timeout=float("inf")), "timeout inf: accepted"),
        (lambda group: group.barrier(0), "timeout 0: accepted: seconds above 0"),
        (lambda group: group.commit(True), "step True: accepted: whole numbers from 0"),
        (lambda group: group.commit(numpy.True_), r"step (np\.)?True_?: accepted"),
        (lambda group: group.commit(1, timeout=True), "timeout True: accepted"),
        (lambda group: group.commit(1, timeout=0.0), "timeout 0.0: accepted"),
        (lambda group: group.reduce(numpy.ones(2), True), "root True: accepted: whole"),
        (lambda group: group.agree(True), "step True: accepted"),
        (lambda group: group.recover(timeout=0), "timeout 0: accepted"),
        (lambda group: group.recover(3), "failure 3: accepted: the exception"),
        (lambda group: group.finish(timeout="5"), "timeout '5': accepted"),
        (lambda group: group.all_gather(ONES, counts=3), "counts 3: accepted: a list"),
        (lambda group: group.all_gather(ONES, counts=[2, True, 2]), "counts True: accepted"),
        (lambda group: group.all_reduce([ONES], flat="no"), "flat 'no': accepted: True or False"),
    ],
)
def test_invalid_arguments_are_refused_before_posting(groups, call, words):
    state = groups[0]._state
    with pytest.raises(landbridge.ConfigError, match=words):
        call(groups[0])
    assert state.ended is None and state.is_epoch_agreed and not state.commits


@pytest.mark.parametrize("timeout", [None, 0, -1, float("nan"), float("inf"), True, "5"])
def test_an_invalid_timeout_is_refused_before_connecting(regions, timeout):
    config, words = regions.region_file("east"), f"timeout {timeout!r}: accepted: seconds above 0"
    with pytest.raises(landbridge.ConfigError, match=words):
        landbridge.connect(config=config, rank=0, arena=4096, timeout=timeout)


def test_a_wait_takes_zero_but_no_wrong_timeout(groups):
    operation = groups[0].all_reduce_async(ONES)
    for timeout in (0, 0.0):
        with pytest.raises(landbridge.WaitTimeout):
            operation.wait(timeout)
    for timeout in (-1, float("nan"), True, "5"):
        for wait in (operation.wait, operation.wait_free):
            words = f"timeout {timeout!r}: accepted: seconds from 0 on"
            with pytest.raises(landbridge.ConfigError, match=words):
                wait(timeout)
    with pytest.raises(landbridge.ConfigError, match="callback 3: accepted: a function"):
        operation.add_done_callback(3)
    call_for_all(groups[1:], lambda group: group.all_reduce(ONES))
    operation.wait(float("inf"))
    with pytest.raises(landbridge.ConfigError, match="timeout nan: accepted"):
        operation.wait(float("nan"))


def test_sizes_of_new_arrays_are_whole_numbers(groups):
    for shape in (True, (2, True), -1, 1.5, 10**5000, (1 << 40,) * 30):
        with pytest.raises(landbridge.UnsupportedArray, match="shape .*: accepted: "):
            groups[0].empty(shape, "f32")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda group: group.new_group(3), "ranks 3: accepted: a list of ranks"),
        (lambda group: group.new_group("01"), "ranks '01': accepted: a list of ranks"),
        (lambda group: group.new_group([True]), "rank True: accepted: whole numbers from 0 to 2"),
        (lambda group: group.new_group([0], tag=True), "tag True: accepted"),
        (lambda group: group.new_group([0], tag=1, timeout=0), "timeout 0: accepted"),
        (lambda group: group.split(True), "color True: accepted"),
        (lambda group: group.split(1, key=True), "key True: accepted: .*-2147483648 to 2147483647"),
        (lambda group: group.split(1, key=1 << 31), "key 2147483648: accepted"),
        (lambda group: group.split(1, timeout="5"), "timeout '5': accepted"),
        (lambda group: group.batch_shares(True), "global_batch True: accepted"),
        (lambda group: group.batch_split("8"), "global_batch '8': accepted"),
        (lambda group: group.batch_share(8, 3), "limits 3: accepted: a list"),
        (lambda group: group.batch_split(8).end_step("1"), "computed_seconds '1': accepted"),
        (lambda group: group.batch_split(8).end_step(True), "computed_seconds True: accepted"),
        (lambda group: group.batch_split(8).end_step(1, True), "samples True: accepted"),
        (lambda group: group.batch_split(8).end_step(1, timeout=0), "timeout 0: accepted"),
    ],
)
def test_wrong_groups_and_batches_are_refused_before_posting(groups, call, words):
    state = groups[0]._state
    state.wait_until(lambda: not state.entries, None)
    counted = state._makings
    with pytest.raises(landbridge.ConfigError, match=words):
        call(groups[0])
    assert not state.entries and not state.subgroups and state._makings == counted


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda store: store.set(3, "x"), "key 3: accepted: texts"),
        (lambda store: store.set("\ud800", "x"), "key .*: accepted: texts that UTF-8 can hold"),
        (lambda store: store.set("key", 3), "value 3: accepted: texts.*bytes"),
        (lambda store: store.set("key", True), "value True: accepted"),
        (lambda store: store.set("key", numpy.True_), "value .*True_?: accepted"),
        (lambda store: store.append("key", None), "value None: accepted"),
        (lambda store: store.get(b"key"), "key b'key': accepted"),
        (lambda store: store.wait("key"), "keys 'key': accepted: a list of texts"),
        (lambda store: store.check(3), "keys 3: accepted: a list of texts"),
        (lambda store: store.multi_get(["key", None]), "key None: accepted"),
        (lambda store: store.multi_set(["key"], "x"), "values 'x': accepted: a list"),
        (lambda store: store.multi_set(["key"], []), "1 keys and 0 values"),
        (lambda store: store.add("key", True), "amount True: accepted: whole numbers from -9223"),
        (lambda store: store.add("key", 1.5), "amount 1.5: accepted"),
        (lambda store: store.add("key", 1 << 63), "amount 9223372036854775808: accepted"),
        (lambda store: store.list_keys(3), "prefix 3: accepted: texts"),
        (lambda store: store.wait(["key"], 0), "timeout 0: accepted: seconds above 0"),
        (lambda store: store.wait(["key"], True), "timeout True: accepted"),
        (lambda store: store.set_timeout("5"), "timeout '5': accepted"),
        (lambda store: store.set_timeout(timedelta()), "timeout 0.0: accepted"),
    ],
)
def test_wrong_requests_to_the_store_are_refused_here(groups, call, words):
    store = groups[0].store
    with pytest.raises(landbridge.ConfigError, match=words):
        call(store)
    assert store.timeout == 300 and not store.check(["key"])
