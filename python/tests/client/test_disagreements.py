"""Ranks that post different collectives raise one error, also where a region is done already."""

import copy
import pickle
import re
import time

import numpy
import pytest

import landbridge
from conftest import DEADLINE_S, call_for_all
from landbridge._protocol.wire import EpochBegan, FailureCode
from stand_in_gateway import lone_group

ONES = numpy.ones(4, "float32")


def error_of(group, *calls):
    """Returns the text of the disagreement that one of the calls raises, without its own part."""
    with pytest.raises(landbridge.RanksDisagree) as raised:
        for call in calls:
            call(group)
    return raised.value.text


def barrier(group):
    """Calls ``Group.barrier``, the next collective of every rank."""
    group.barrier()


@pytest.mark.parametrize("is_east_first", [True, False], ids=["east first", "at once"])
@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda group: group.broadcast(numpy.ones(5, "float32")), "length: .*posted 4, .* 5;"),
        (lambda group: group.broadcast(ONES, 2), "operation: .*rank 0, .*rank 2;"),
        (lambda group: group.all_reduce(ONES), "operation: .*broadcast .*, .*all-reduce;"),
        (barrier, "operation: .*broadcast .*, .*barrier;"),
    ],
    ids=["length", "root", "kind", "barrier"],
)
def test_every_rank_raises_the_same_text(groups, other, words, is_east_first):
    east = groups[:2]
    if is_east_first:
        # The root's region has its data before the other region begins.
        for result in call_for_all(east, lambda group: group.broadcast(ONES)):
            assert (result == ONES).all()

    # The news of a disagreement takes a one-way delay, and a barrier as long: so it may be the
    # second one that raises.
    barriers = [barrier] * 3

    def step(group):
        if group.rank == 2:
            return error_of(group, other, *barriers)
        if is_east_first:
            return error_of(group, *barriers)
        return error_of(group, lambda group: group.broadcast(ONES), *barriers)

    texts = call_for_all(groups, step)
    assert len(set(texts)) == 1, texts
    assert re.search(words, texts[0]), texts[0]


def begin_second_epoch(group, gateway, code, text):
    """Lets the gateway say that the first epoch ended and the second began."""
    gateway.send(EpochBegan(2, 0, 0, 0, code, text))
    assert group._state.wait_until(lambda: group.epoch == 2, time.monotonic() + DEADLINE_S)


def test_a_rank_with_nothing_under_way_hears_of_a_disagreement():
    with lone_group() as (group, gateway):
        text = "collective 0: ranks disagree on length"
        begin_second_epoch(group, gateway, FailureCode.DISAGREEMENT, text)
        for _ in range(2):
            with pytest.raises(landbridge.RanksDisagree, match=text) as raised:
                group.barrier_async()
        with pytest.raises(landbridge.RanksDisagree, match=text):
            group.recover(raised.value)


def test_the_end_of_an_epoch_is_told_with_its_reason():
    with lone_group() as (group, gateway):
        text = "gateway west-0 cannot be reached"
        begin_second_epoch(group, gateway, FailureCode.REGION_LOST, text)
        expected = rf"epoch 1 ended \(region lost \(cause: link\): {text}\).*call `recover`"
        with pytest.raises(landbridge.EpochEnded, match=expected):
            group.barrier_async()


def test_the_end_of_an_epoch_is_not_told_twice():
    with lone_group() as (group, gateway):
        begin_second_epoch(group, gateway, FailureCode.EPOCH_ENDED, "rank 0 attached again")
        expected = r"^epoch ended \(cause: peer\): epoch 1 ended \(rank 0 attached again\); contri"
        with pytest.raises(landbridge.EpochEnded, match=expected):
            group.barrier_async()


def post_shares(group, counts):
    """Gathers this rank's share of some counts."""
    group.all_gather(numpy.zeros((counts[group.rank], 4), "float32"), counts=counts)


def exchange_rows(group):
    """Exchanges rows, of which one rank expects too many."""
    receive = [1, 1, 2 if group.rank == 0 else 1]
    group.all_to_all(numpy.zeros((3, 5)), send=[1, 1, 1], receive=receive)


@pytest.mark.parametrize(
    ("post", "words"),
    [
        (
            lambda group: group.broadcast(numpy.zeros(4, ["M8[s]", "M8[ns]"][group.rank // 2])),
            ["dtype datetime64[s], shape (4,), root 0 to broadcast", "dtype datetime64[ns]"],
        ),
        (
            lambda group: group.all_gather(numpy.zeros(4, ["complex64", "U2"][group.rank // 2])),
            ["dtype complex64, shape (4,), no counts to", "dtype <U2"],
        ),
        (
            lambda group: group.all_gather(numpy.zeros((1 + group.rank // 2, 2), "float32")),
            ["shape (1, 2), no counts to all_gather; a length is of the blocks of all", "(2, 2)"],
        ),
        (
            lambda group: post_shares(group, [1, 2, 3] if group.rank < 2 else [2, 2, 2]),
            ["counts (1, 2, 3) to all_gather; a row has 4 elements", "counts (2, 2, 2)"],
        ),
        (
            exchange_rows,
            ["send (1, 1, 1), receive (1, 1, 2) to all_to_all; a row has 5", "receive (1, 1, 1)"],
        ),
        (
            lambda group: group.all_gather(numpy.zeros((2, 2 + group.rank // 2), "float32")),
            ["dtype f32, shape (2, 2), no counts to", "shape (2, 3)"],
        ),
        (
            lambda group: group.reduce(numpy.zeros(2), 1, "sum", layout=group.rank // 2 + 17),
            ["op sum, dtype f64, shape (2,), root 1, layout 0x11 to reduce", "layout 0x12"],
        ),
        (
            lambda group: group.barrier(layout=group.rank // 2),
            ["this rank passed layout 0x0 to barrier; layouts and digests", "layout 0x1 to"],
        ),
    ],
    ids=["units", "opaque", "rows", "counts", "pairs", "row shape", "layout", "barrier"],
)
def test_each_rank_names_what_it_passed_itself(groups, post, words):
    def step(group):
        with pytest.raises(landbridge.RanksDisagree) as raised:
            post(group)
            # It tells a rank whose part had ended.
            group.barrier()
        return raised.value

    failures = call_for_all(groups, step)
    assert len({failure.text for failure in failures}) == 1
    # The ranks of east pass the first, that of west the second.
    for failure in (failures[0], failures[2]):
        wanted = words[failure is failures[2]]
        assert f"contributions intact; {failure.here}" in str(failure)
        assert wanted in failure.here, failure.here


def test_both_ends_of_a_send_name_their_dtypes(groups):
    def move(group):
        if group.rank == 1:
            return None
        words = r"shape: .*\(2, 3, 8\), .*\(2, 3, 16\)"
        with pytest.raises(landbridge.RanksDisagree, match=words) as raised:
            if group.rank == 0:
                group.send(numpy.zeros((2, 3), "complex64"), 2)
            else:
                group.receive(numpy.zeros((2, 3), "complex128"), 0)
        return raised.value.here

    sent, _, received = call_for_all(groups, move)
    wanted = "this rank passed dtype complex64, shape (2, 3) to send or receive; an element of "
    assert sent.startswith(f"{wanted}complex64 is moved as 8 u8;")
    assert "dtype complex128" in received and "moved as 16 u8" in received


def test_a_copied_disagreement_keeps_both_parts():
    failure = landbridge.RanksDisagree("what differs", "what was passed")
    for other in (copy.copy(failure), pickle.loads(pickle.dumps(failure))):
        assert (other.text, other.here, str(other)) == (failure.text, failure.here, str(failure))
