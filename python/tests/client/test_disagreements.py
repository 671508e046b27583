"""Ranks that post different collectives raise one error, also where a region is done already."""

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
    """Returns the text of the disagreement that one of the calls raises."""
    with pytest.raises(landbridge.RanksDisagree) as raised:
        for call in calls:
            call(group)
    return str(raised.value)


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

    def step(group):
        if group.rank == 2:
            return error_of(group, other, barrier)
        if is_east_first:
            return error_of(group, barrier)
        return error_of(group, lambda group: group.broadcast(ONES), barrier)

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
