"""Collectives of blocks that are given as lists of arrays."""

import pytest

import landbridge
from conftest import call_for_all
from landbridge._memory.arena import Arena
from landbridge._memory.array_list import ArrayList, adapt_array_or_list

numpy = pytest.importorskip("numpy")

#: The rows from each rank (first index) to each rank (second index).
PAIRS = [[1, 0, 2], [3, 1, 0], [0, 0, 4]]


def block(sender, receiver, count):
    """Returns rows that name their sender and receiver."""
    rows = numpy.empty((count, 2), "int16")
    rows[:, 0], rows[:, 1] = sender, receiver
    return rows


def test_a_list_lies_in_a_slot_as_one_array():
    arena = Arena(1 << 16)
    arrays = [block(0, to, count) for to, count in enumerate([2, 0, 3])]
    adapter = adapt_array_or_list(arrays)
    assert isinstance(adapter, ArrayList) and adapter.shape == (5, 2) and adapter.rows == (2, 0, 3)
    slot = arena.allocate_slot(adapter.nbytes)
    adapter.copy_to_slot(slot)
    assert bytes(slot.view()) == numpy.concatenate(arrays).tobytes()
    for fresh, given in zip(adapter.copy_to_new_array(slot), arrays):
        assert fresh.shape == given.shape and (fresh == given).all()
    out = [numpy.zeros_like(array) for array in arrays]
    adapt_array_or_list(out).copy_from_slot(slot)
    assert all((one == other).all() for one, other in zip(out, arrays))


def test_lists_of_unlike_arrays_are_refused():
    zeros = numpy.zeros((2, 3), "int16")
    for wrong in ([], [zeros, zeros.astype("int32")], [zeros, zeros[:, :2]], [numpy.int16(1)]):
        with pytest.raises(landbridge.UnsupportedArray):
            adapt_array_or_list(wrong)


def test_all_pairs_exchange_lists(groups):
    def exchange(group):
        given = [block(group.rank, to, count) for to, count in enumerate(PAIRS[group.rank])]
        receive = [row[group.rank] for row in PAIRS]
        fresh = group.all_to_all(given, receive=receive)
        out = [numpy.zeros((count, 2), "int16") for count in receive]
        assert group.all_to_all(given, out=out) is out
        even = group.all_to_all([block(group.rank, to, 2) for to in range(3)])
        assert [part.tolist() for part in even] == [[[s, group.rank]] * 2 for s in range(3)]
        return fresh, out

    for rank, results in enumerate(call_for_all(groups, exchange)):
        for result in results:
            for sender, part in enumerate(result):
                assert (part == block(sender, rank, PAIRS[sender][rank])).all()
                assert len(part) == PAIRS[sender][rank]


def test_lists_are_gathered_and_scattered(groups):
    counts = [2, 0, 5]

    def move(group):
        own = block(group.rank, 9, counts[group.rank])
        gathered = [numpy.zeros((count, 2), "int16") for count in counts]
        group.all_gather(own, out=gathered)
        whole = [block(1, to, count) for to, count in enumerate(counts)]
        given = whole if group.rank == 1 else own
        mine = group.scatter(given, 1, counts=counts)
        total = group.reduce_scatter(whole, "sum")
        return gathered, mine, total

    for rank, (gathered, mine, total) in enumerate(call_for_all(groups, move)):
        for sender, part in enumerate(gathered):
            assert (part == block(sender, 9, counts[sender])).all()
        assert (mine == block(1, rank, counts[rank])).all()
        assert (total == 3 * block(1, rank, counts[rank])).all()
