"""Groups of some of a job's ranks, made at run time."""

import gc
import struct
import threading

import pytest

import landbridge
from conftest import call_for_all
from landbridge._group.connecting import connect_alone
from landbridge._local_regions import LocalRegions
from landbridge._protocol.wire import (
    REQUESTS,
    RESPONSES,
    Commit,
    Committed,
    Disbanded,
    EpochBegan,
    FailureCode,
    GroupRequest,
    GroupResponse,
    LeaveGroup,
    MakeGroup,
    Post,
)
from stand_in_gateway import free, lone_group, ready


def sum_of(group, number):
    """Returns the sum of one number of each rank of a group."""
    array = memoryview(struct.pack("=q", number)).cast("q")
    return group.all_reduce(array, "sum").tolist()[0]


def test_ranks_of_two_sites_sum_in_groups_of_their_own(groups):
    def make(group):
        pair = group.new_group([2, 0])
        assert (pair is None) == (group.rank == 1)
        inner = None if pair is None else pair.new_group([1])
        assert (inner is None) == (group.rank != 2)
        sums = [sum_of(part, 1 << group.rank) for part in (group, pair, inner) if part is not None]
        places = None if pair is None else (pair.rank, pair.world_size, pair.ranks)
        for part in (inner, pair):
            if part is not None:
                part.close()
        return sums, places, sum_of(group, 1)

    first, second, third = call_for_all(groups, make)
    assert first == ([7, 5], (0, 2, (0, 2)), 3)
    assert second == ([7], None, 3)
    assert third == ([7, 5, 4], (1, 2, (0, 2)), 3)


def test_ranks_attached_alone_make_groups_without_absent_ones():
    with LocalRegions(ranks=(2, 1)) as regions:

        def attach(rank):
            place = {"config": regions.region_file_of_rank(rank), "rank": rank, "job": None}
            return connect_alone(None, **place, arena="64 KiB", timeout=30)

        east, west = call_for_all([0, 2], attach)
        parts = call_for_all([east, west], lambda group: group.new_group([0, 2], tag=5))
        assert call_for_all(parts, lambda part: sum_of(part, 1 << part.rank)) == [3, 3]
        with pytest.raises(landbridge.EpochEnded):
            east.new_group([0, 2])
        for group in (east, west):
            group.close()


def test_colors_part_the_ranks_and_roots_are_numbered_anew(groups):
    def split(group):
        part = group.split(None if group.rank == 0 else 7, key=group.rank)
        if part is None:
            return None
        with part:
            array = memoryview(struct.pack("=q", 10 + group.rank)).cast("q")
            part.commit(1)
            return part.broadcast(array, root=1).tolist()

    assert call_for_all(groups, split) == [None, [12], [12]]


def test_a_group_with_a_tag_needs_its_own_ranks_alone(two_groups):
    alone = two_groups[1].new_group([1], tag=5)
    assert sum_of(alone, 3) == 3
    made = call_for_all(two_groups, lambda group: group.new_group(range(2), tag=6))
    assert call_for_all(made, lambda group: sum_of(group, group.rank)) == [1, 1]


def test_ranks_that_disagree_on_a_group_hear_of_it(groups):
    def make(group):
        ranks = [0, 2] if group.rank == 0 else [1, 2]
        try:
            group.new_group([0, 1, 2] if group.rank == 2 else ranks)
        except landbridge.RanksDisagree as failure:
            return str(failure)

    texts = call_for_all(groups, make)
    assert all("ranks disagree on a group" in text for text in texts if text), texts
    assert any(texts)


def test_ranks_of_no_group_are_refused(groups):
    group = groups[0]
    for ranks in ([], [0, 0], [0, 3], [-1]):
        with pytest.raises(landbridge.ConfigError, match="rank"):
            group.new_group(ranks)
    with pytest.raises(landbridge.ConfigError, match="tag"):
        group.new_group([0], tag=-1)


def in_group(number, *messages):
    """Returns messages as those about a group."""
    return [GroupResponse(number, RESPONSES.encode(message)) for message in messages]


def made_alone(group, gateway):
    """Returns a group of one rank whose gateway says that it is made, and its number."""
    made = []
    maker = threading.Thread(target=lambda: made.append(group.new_group([0])))
    maker.start()
    request = gateway.receive()
    assert isinstance(request, MakeGroup) and request.parent == 0
    gateway.send(*in_group(request.number, EpochBegan(1, 0, 0, 0)))
    maker.join()
    return made[0], request.number


def test_a_group_is_left_once_it_is_idle():
    with lone_group() as (group, gateway):
        part, number = made_alone(group, gateway)
        operation = part.all_reduce_async(bytearray(8), "sum")
        posted = gateway.receive()
        post = REQUESTS.decode(posted.request)
        assert isinstance(posted, GroupRequest) and posted.number == number
        assert isinstance(post, Post) and (post.epoch, post.sequence) == (1, 0)
        part.close()
        with pytest.raises(landbridge.Closed):
            part.barrier()
        assert not gateway.has_request()
        gateway.send(*in_group(number, ready(post), free(post)))
        operation.wait()
        operation.wait_free()
        other = group.barrier_async()
        assert gateway.receive() == LeaveGroup(number)
        gateway.send(ready(gateway.receive()), free(post))
        other.wait()


def test_a_group_that_nobody_holds_is_left():
    with lone_group() as (group, gateway):
        part, number = made_alone(group, gateway)
        del part
        gc.collect()
        group.barrier_async()
        assert gateway.receive() == LeaveGroup(number)


def test_a_group_has_commits_of_its_own():
    with lone_group() as (group, gateway):
        part, number = made_alone(group, gateway)
        inner, outer = part.commit_async(4), group.commit_async(4)
        request = gateway.receive()
        assert request == GroupRequest(number, REQUESTS.encode(gateway.receive()))
        assert REQUESTS.decode(request.request) == Commit(1, 4, 1800 * 10**9)
        gateway.send(*in_group(number, Committed(4)))
        inner.wait()
        assert not outer.is_done() and group.committed_step is None
        gateway.send(Committed(4))
        outer.wait()


def test_a_group_is_left_after_its_last_commit():
    with lone_group() as (group, gateway):
        part, number = made_alone(group, gateway)
        commit = part.commit_async(4)
        assert isinstance(gateway.receive(), GroupRequest)
        part.close()
        assert not gateway.has_request()
        gateway.send(*in_group(number, Committed(4)))
        commit.wait()
        group.barrier_async()
        assert gateway.receive() == LeaveGroup(number)


def test_groups_are_counted_in_the_epoch_agreed_to():
    with lone_group() as (group, gateway):
        group._world_size = 2
        assert group.new_group([1]) is None
        gateway.send(EpochBegan(2, 0, 0, 0))
        while group.epoch < 2:
            threading.Event().wait(0.001)
        # A rank that knows of the end counts no group, whether it is one of it or not.
        for ranks in ([0], [1]):
            with pytest.raises(landbridge.EpochEnded, match="call `recover`"):
                group.new_group(ranks)
        group._state.agree_to_epoch()
        assert group.new_group([1]) is None
        made = threading.Thread(target=lambda: group.new_group([0]))
        made.start()
        request = gateway.receive()
        assert request.place == 2 << 32 | 2
        gateway.send(*in_group(request.number, EpochBegan(1, 0, 0, 0)))
        made.join()


def test_a_group_that_is_over_refuses_posts():
    with lone_group() as (group, gateway):
        part, number = made_alone(group, gateway)
        gateway.send(*in_group(number, EpochBegan(2, 0, 0, 0)))
        while part.epoch < 2:
            threading.Event().wait(0.001)
        with pytest.raises(landbridge.EpochEnded, match="make the group again"):
            part.barrier()
        gateway.send(*in_group(number, Disbanded(FailureCode.DISAGREEMENT, "ranks disagree")))
        while part._state.disbanded is None:
            threading.Event().wait(0.001)
        with pytest.raises(landbridge.RanksDisagree, match="ranks disagree"):
            part.barrier()


def test_all_groups_end_with_the_connection():
    with lone_group() as (group, gateway):
        part, _ = made_alone(group, gateway)
        operation = part.all_reduce_async(bytearray(8), "sum")
        gateway.shut_down()
        with pytest.raises(landbridge.GatewayLost):
            operation.wait()
        with pytest.raises(landbridge.GatewayLost):
            part.barrier()
