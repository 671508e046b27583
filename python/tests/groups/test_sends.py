"""Sends and receives between two ranks."""

import gc
import struct
import threading

import pytest

import landbridge
from conftest import call_for_all
from landbridge._protocol.collective_types import CollectiveKind
from landbridge._protocol.wire import (
    REQUESTS,
    RESPONSES,
    ContributionFree,
    Disbanded,
    EpochBegan,
    FailureCode,
    GroupRequest,
    GroupResponse,
    MakeGroup,
)
from stand_in_gateway import free, lone_group, ready


def numbers(*values):
    """Returns an array of i64."""
    return memoryview(struct.pack(f"={len(values)}q", *values)).cast("q")


def test_all_ranks_send_to_each_other(groups):
    def exchange(group):
        others = [rank for rank in range(group.world_size) if rank != group.rank]
        sent = [group.send_async(numbers(group.rank, rank), rank, tag=7) for rank in others]
        got = [group.receive(numbers(0, 0), rank, tag=7).tolist() for rank in others]
        for operation in sent:
            assert operation.wait() is None
        return got

    for rank, got in enumerate(call_for_all(groups, exchange)):
        assert got == [[other, rank] for other in range(3) if other != rank]


def test_tags_meet_in_any_order(two_groups):
    first, second = two_groups
    sent = [
        first.send_async(numbers(tag, place), 1, tag) for place in range(2) for tag in range(20)
    ]
    for tag in reversed(range(20)):
        for place in range(2):
            assert second.receive(numbers(0, 0), 0, tag).tolist() == [tag, place]
    for operation in sent:
        operation.wait()


def test_arrays_of_the_arena_are_sent_and_received_in_place(two_groups):
    first, second = two_groups
    given, got = first.empty(1000, "i64"), second.empty(1000, "i64")
    for at in range(1000):
        given[at] = at * at
    operation = second.receive_async(got, 0, out=got)
    first.send(given, 1)
    assert operation.wait() is got
    assert got.tolist() == given.tolist()
    # Without bytes, too.
    empty = first.send_async(bytearray(), 1)
    assert bytes(second.receive(bytearray(), 0)) == b""
    empty.wait()


def test_ends_that_differ_raise_the_same_at_both(two_groups):
    def disagree(group):
        with pytest.raises(landbridge.RanksDisagree, match="posted") as raised:
            if group.rank == 0:
                group.send(numbers(1, 2, 3), 1, tag=2)
            else:
                group.receive(numbers(0, 0), 0, tag=2)
        return raised.value.text

    one, other = call_for_all(two_groups, disagree)
    assert one == other and "3" in one and "2" in one
    # The job does not notice, and the next send of the tag meets the next receive.
    sums = call_for_all(two_groups, lambda group: group.all_reduce(numbers(1), "sum").tolist())
    assert sums == [[2], [2]]
    sent = two_groups[0].send_async(numbers(5), 1, tag=2)
    assert two_groups[1].receive(numbers(0), 0, tag=2).tolist() == [5]
    sent.wait()


def test_wrong_arguments_of_sends_are_refused(two_groups):
    group = two_groups[0]
    for call, words in (
        (lambda: group.send(numbers(1), 0), "dst 0 is this rank itself"),
        (lambda: group.receive(numbers(1), 2), "src 2"),
        (lambda: group.send(numbers(1), 1, tag=1 << 16), "tag 65536"),
        (lambda: group.send(numbers(1), 1, timeout=-1), "timeout"),
    ):
        with pytest.raises(landbridge.ConfigError, match=words):
            call()


def test_a_receive_without_a_send_times_out(two_groups):
    with pytest.raises(landbridge.RanksTimedOut, match="rank 0"):
        two_groups[1].receive(numbers(0), 0, tag=3, timeout=0.2)
    # Its send comes later, and meets no other receive.
    with pytest.raises(landbridge.RanksTimedOut):
        two_groups[0].send(numbers(1), 1, tag=3)


def test_ranks_of_a_group_send_by_their_numbers_there(groups):
    def exchange(group):
        part = group.new_group([0, 2])
        if part is None:
            return None
        with part:
            other = 1 - part.rank
            sent = part.send_async(numbers(10 + part.rank), other)
            got = part.receive(numbers(0), other).tolist()
            sent.wait()
            return got

    assert call_for_all(groups, exchange) == [[11], None, [10]]


def in_pair(number, *messages):
    """Returns messages as those about a group."""
    return [GroupResponse(number, RESPONSES.encode(message)) for message in messages]


def begin_send(group, gateway, tag):
    """Starts a send to rank 1 in another thread, and lets its gateway make the group of both.
    Returns the operation and the group's number."""
    begun = []
    sender = threading.Thread(target=lambda: begun.append(group.send_async(numbers(1), 1, tag)))
    sender.start()
    request = gateway.receive()
    assert isinstance(request, MakeGroup)
    assert (request.parent, request.place) == (0, (1 << 64) - 1)
    gateway.send(*in_pair(request.number, EpochBegan(4, 6, 0, 0)))
    sender.join()
    return begun[0], request.number


def received_post(gateway, number):
    """Returns the next post, which is one of this group."""
    request = gateway.receive()
    assert isinstance(request, GroupRequest) and request.number == number
    return REQUESTS.decode(request.request)


def test_each_tag_has_an_order_of_its_own():
    with lone_group() as (group, gateway):
        group._world_size = 2
        operation, number = begin_send(group, gateway, tag=9)
        base = 1 << 61 | 9 << 44
        post = received_post(gateway, number)
        assert (post.operation, post.root, post.epoch) == (CollectiveKind.SEND, 0, 4)
        assert post.sequence == base + 6
        gateway.send(*in_pair(number, ready(post), free(post)))
        operation.wait()
        group.send_async(numbers(1), 1, 9)
        assert received_post(gateway, number).sequence == base + 7
        group.send_async(numbers(1), 1, 8)
        assert received_post(gateway, number).sequence == (1 << 61 | 8 << 44) + 6
        group.receive_async(numbers(1), 1, 9)
        back = received_post(gateway, number)
        assert (back.root, back.sequence) == (1, base + (1 << 60) + 6)
        # Sends go on in the next epoch, without `recover`.
        gateway.send(*in_pair(number, EpochBegan(5, 20, 0, 0)))
        while group._pairs[1].epoch < 5:
            threading.Event().wait(0.001)
        group.send_async(numbers(1), 1, 9)
        post = received_post(gateway, number)
        assert (post.epoch, post.sequence) == (5, base + 20)


def test_ranks_that_met_once_meet_again():
    with lone_group() as (group, gateway):
        group._world_size = 2
        _, number = begin_send(group, gateway, tag=0)
        post = received_post(gateway, number)
        gateway.send(*in_pair(number, Disbanded(FailureCode.SHUTTING_DOWN, "a gateway ends")))
        while group._pairs[1].disbanded is None:
            threading.Event().wait(0.001)
        gateway.send(*in_pair(number, ContributionFree(post.sequence)))
        _, again = begin_send(group, gateway, tag=0)
        assert again > number


def test_the_group_of_two_is_left_with_its_parent():
    with lone_group() as (group, gateway):
        group._world_size = 2
        part = []
        maker = threading.Thread(target=lambda: part.append(group.new_group([0, 1])))
        maker.start()
        parent = gateway.receive().number
        gateway.send(*in_pair(parent, EpochBegan(1, 0, 0, 0)))
        maker.join()
        begun = []
        sender = threading.Thread(target=lambda: begun.append(part[0].send_async(numbers(1), 1)))
        sender.start()
        request = gateway.receive()
        assert request.parent == parent
        gateway.send(*in_pair(request.number, EpochBegan(1, 0, 0, 0)))
        sender.join()
        post = received_post(gateway, request.number)
        gateway.send(*in_pair(request.number, ready(post), free(post)))
        begun.pop().wait()
        part.clear()
        gc.collect()
        group.barrier_async()
        left = {gateway.receive().number for _ in range(2)}
        assert left == {parent, request.number}


def test_a_closed_group_leaves_its_groups_of_two():
    with lone_group() as (group, gateway):
        group._world_size = 2
        part = []
        maker = threading.Thread(target=lambda: part.append(group.new_group([0, 1])))
        maker.start()
        parent = gateway.receive().number
        gateway.send(*in_pair(parent, EpochBegan(1, 0, 0, 0)))
        maker.join()
        begun = []
        sender = threading.Thread(target=lambda: begun.append(part[0].send_async(numbers(1), 1)))
        sender.start()
        pair = gateway.receive().number
        gateway.send(*in_pair(pair, EpochBegan(1, 0, 0, 0)))
        sender.join()
        post = received_post(gateway, pair)
        part[0].close()
        assert gateway.receive().number == parent
        # The send is under way until now.
        gateway.send(*in_pair(pair, ready(post), free(post)))
        begun.pop().wait_free()
        with pytest.raises(landbridge.Closed):
            part[0].send_async(numbers(1), 1)
        group.barrier_async()
        assert gateway.receive().number == pair
