"""Collectives of blocks over real gateways of two regions."""

import array as arrays
import random

import pytest

import landbridge
from conftest import call_for_all

numpy = pytest.importorskip("numpy")

#: The rows of each rank's block. One rank has none.
COUNTS = [2, 0, 5]
#: The rows from each rank (first index) to each rank (second index).
PAIRS = [[1, 0, 2], [3, 1, 0], [0, 0, 4]]


def rows_of(rank, count):
    """Returns rows of three numbers, each of which occurs once among all ranks."""
    return numpy.arange(3 * count, dtype="float32").reshape(count, 3) + 1000 * rank


def test_every_rank_gathers_the_blocks_of_all(groups):
    even = call_for_all(groups, lambda group: group.all_gather(rows_of(group.rank, 2)))
    wanted = numpy.concatenate([rows_of(rank, 2) for rank in range(3)])
    assert all(numpy.array_equal(result, wanted) for result in even)
    ragged = call_for_all(
        groups,
        lambda group: group.all_gather(rows_of(group.rank, COUNTS[group.rank]), counts=COUNTS),
    )
    wanted = numpy.concatenate([rows_of(rank, count) for rank, count in enumerate(COUNTS)])
    assert all(numpy.array_equal(result, wanted) for result in ragged)


def test_each_rank_gets_its_block_of_the_sum(groups):
    results = call_for_all(
        groups, lambda group: group.reduce_scatter(rows_of(group.rank, 7), "sum", counts=COUNTS)
    )
    total = sum(rows_of(rank, 7) for rank in range(3))
    for result, wanted in zip(results, numpy.split(total, [2, 2])):
        assert numpy.array_equal(result, wanted)


def test_the_root_gathers_and_scatters(groups):
    gathered = call_for_all(
        groups,
        lambda group: group.gather(rows_of(group.rank, COUNTS[group.rank]), 1, counts=COUNTS),
    )
    wanted = numpy.concatenate([rows_of(rank, count) for rank, count in enumerate(COUNTS)])
    assert gathered[0] is None and gathered[2] is None
    assert numpy.array_equal(gathered[1], wanted)
    given = [rows_of(2, 7) if rank == 2 else rows_of(9, COUNTS[rank]) for rank in range(3)]
    scattered = call_for_all(
        groups, lambda group: group.scatter(given[group.rank], 2, counts=COUNTS)
    )
    for result, wanted in zip(scattered, numpy.split(rows_of(2, 7), [2, 2])):
        assert numpy.array_equal(result, wanted)


def test_all_pairs_exchange_blocks(groups):
    def exchange(group):
        send, receive = PAIRS[group.rank], [row[group.rank] for row in PAIRS]
        return group.all_to_all(rows_of(group.rank, sum(send)), send=send, receive=receive)

    for rank, result in enumerate(call_for_all(groups, exchange)):
        blocks = [
            rows_of(sender, sum(row))[sum(row[:rank]) : sum(row[: rank + 1])]
            for sender, row in enumerate(PAIRS)
        ]
        assert numpy.array_equal(result, numpy.concatenate(blocks))
    even = call_for_all(groups, lambda group: group.all_to_all(arrays.array("q", [group.rank] * 6)))
    assert [list(result) for result in even] == [[0, 0, 1, 1, 2, 2]] * 3


@pytest.mark.parametrize("dtype", ["complex64", "S5", [("key", "<u2"), ("value", "<f4")], "bool"])
def test_elements_of_any_type_are_moved(groups, dtype):
    """Each rank has rows of random bytes; an operation must give their bits."""
    width = numpy.dtype(dtype).itemsize
    seed = random.randrange(1 << 32)
    print("seed", seed)
    whole = [random.Random(seed + rank).randbytes(7 * 2 * width) for rank in range(3)]
    given = [numpy.frombuffer(data, dtype).reshape(7, 2) for data in whole]
    edges = [0, 2, 2, 7]

    def move(group):
        mine = given[group.rank]
        own = mine[edges[group.rank] : edges[group.rank + 1]]
        send, receive = COUNTS, [COUNTS[group.rank]] * 3
        return [
            group.broadcast(mine, 1),
            group.all_gather(own, counts=COUNTS),
            group.gather(own, 0, counts=COUNTS),
            group.scatter(mine if group.rank == 2 else own, 2, counts=COUNTS),
            group.all_to_all(mine, send=send, receive=receive),
        ]

    blocks = [[g[edges[to] : edges[to + 1]] for to in range(3)] for g in given]
    gathered = numpy.concatenate([blocks[rank][rank] for rank in range(3)])
    for rank, results in enumerate(call_for_all(groups, move)):
        exchanged = numpy.concatenate([blocks[sender][rank] for sender in range(3)])
        wanted = [given[1], gathered, gathered, blocks[2][rank], exchanged]
        for result, want in zip(results, wanted):
            if result is None:
                assert rank != 0
                continue
            assert (result.dtype, result.shape) == (want.dtype, want.shape)
            assert result.tobytes() == want.tobytes()


def test_ranks_with_elements_of_different_sizes_disagree(groups):
    def gather(group):
        dtype = "complex128" if group.rank == 2 else "complex64"
        with pytest.raises(landbridge.RanksDisagree):
            group.all_gather(numpy.zeros(4, dtype))
            group.barrier()

    call_for_all(groups, gather)


@pytest.mark.parametrize("move", ["all_gather", "broadcast"])
def test_ranks_with_elements_of_different_types_disagree(groups, move):
    def post(group):
        # All of them have eight bytes.
        dtype = ["complex64", "M8[s]", [("key", "<u4"), ("value", "<f4")]][group.rank]
        with pytest.raises(landbridge.RanksDisagree, match="layout"):
            getattr(group, move)(numpy.zeros(4, dtype))
            group.barrier()

    call_for_all(groups, post)


def test_a_result_goes_where_it_is_wanted(groups):
    def gather(group):
        out = numpy.zeros((6, 3), "float32")
        assert group.all_gather(rows_of(group.rank, 2), out=out) is out
        return out

    wanted = numpy.concatenate([rows_of(rank, 2) for rank in range(3)])
    assert all(numpy.array_equal(result, wanted) for result in call_for_all(groups, gather))


def test_ranks_that_contradict_each_other_are_named(groups):
    def exchange(group):
        receive = [1, 1, 2 if group.rank == 0 else 1]
        with pytest.raises(landbridge.RanksDisagree) as raised:
            group.all_to_all(rows_of(group.rank, 3), send=[1, 1, 1], receive=receive)
            group.barrier()
        return str(raised.value)

    texts = call_for_all(groups, exchange)
    assert all("rank 2 " in text and "rank 0 " in text for text in texts)


def test_blocks_that_do_not_fit_are_refused_before_a_post(groups):
    group = groups[0]
    for call, error in [
        (lambda: group.all_gather(rows_of(0, 2), counts=[1, 1, 1]), landbridge.UnsupportedArray),
        (lambda: group.all_gather(rows_of(0, 2), counts=[2, 1]), landbridge.ConfigError),
        (lambda: group.reduce_scatter(rows_of(0, 4), "sum"), landbridge.UnsupportedArray),
        (lambda: group.all_to_all(rows_of(0, 3), send=[1, 1, 1]), landbridge.ConfigError),
        (lambda: group.gather(rows_of(0, 3), 3), landbridge.ConfigError),
        (lambda: group.all_gather(numpy.float32(1)), landbridge.UnsupportedArray),
    ]:
        with pytest.raises(error):
            call()
