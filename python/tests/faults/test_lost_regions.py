"""A job that goes on without a region: ranks get other numbers in ``recover``."""

import socket
import threading
from pathlib import Path

import pytest
from stand_in_gateway import StandInGateway, attach_again, free, lone_group, ready

import landbridge
from landbridge import errors
from landbridge._config.region_file import RegionFileGateway
from landbridge._group import Group
from landbridge._memory.arena import Arena
from landbridge._protocol.frames import FrameDecoder
from landbridge._protocol.remote import RemoteConnection
from landbridge._protocol.wire import (
    LOCAL_PROTOCOL_VERSION,
    REQUESTS,
    Attached,
    Commit,
    Committed,
    EpochBegan,
    Failed,
    FailureCode,
    WorldChanged,
    encode_wire_group_ranks,
)

#: The speeds and the regions of three ranks.
SPEEDS, REGIONS = [1.0, 2.0, 6.0], ["east", "north", "west"]


def begin_world(gateway, epoch, ranks):
    """Announces an epoch of these ranks, and answers the post by which they meet."""
    gateway.send(WorldChanged(encode_wire_group_ranks(ranks)), EpochBegan(epoch, 10 * epoch, 0, 0))
    post = gateway.receive()
    gateway.send(ready(post), free(post))


def test_recover_numbers_the_ranks_that_go_on():
    location = RegionFileGateway(Path("none"), "train", b"", SPEEDS, REGIONS)
    group = Group(location, 2, Arena(1 << 16))
    gateway = attach_again(group)
    try:
        array = group.empty(4, "f32")
        operation = group.all_reduce_async(array)
        post = gateway.receive()
        code = FailureCode.MEMBERSHIP_CHANGED
        gateway.send(Failed(post.sequence, code, "region east is lost"))
        with pytest.raises(landbridge.MembershipChanged, match="region east is lost") as failed:
            operation.wait(timeout=10)
        assert isinstance(failed.value, errors.CollectiveFailed)
        for epoch, ranks, place in ((2, [1, 2], 1), (3, [0, 1, 2], 2)):
            # The epoch before has ended once the next one has begun.
            announced = threading.Thread(target=begin_world, args=(gateway, epoch, ranks))
            announced.start()
            assert group._state.wait_until(lambda: group._state.epoch == epoch, None)  # noqa: B023
            group.recover(failed.value, timeout=10)
            announced.join()
            assert (group.rank, group.world_size) == (place, len(ranks))
            shares = group.batch_shares(80)
            assert shares == ([20, 60] if len(ranks) == 2 else [9, 18, 53])
            assert [group._rank_in_job(rank) for rank in range(len(ranks))] == ranks
    finally:
        gateway.shut_down()
        group.close()


def test_a_rank_on_another_host_sends_by_its_new_number():
    location = RegionFileGateway(Path("none"), "train", b"", SPEEDS, REGIONS)
    group = Group(location, 2, Arena(1 << 16))
    ours, theirs = socket.socketpair()
    attached = Attached(LOCAL_PROTOCOL_VERSION, 3, "one")
    memory = memoryview(bytearray(1 << 16))
    group._state.begin_connection(RemoteConnection(ours, attached, FrameDecoder(), 2, memory))
    gateway = StandInGateway(theirs, group._arena)
    try:
        # Rank 2 is rank 0 of those that go on, and the root.
        gateway.send(WorldChanged(encode_wire_group_ranks([2])), EpochBegan(1, 0, 0, 0))
        assert group._state.wait_until(lambda: group._state.epoch == 1, None)
        group._state.agree_to_epoch()
        group.broadcast_async(group.empty(4, "f32"), root=0)
        # The bytes come behind the post, in no frame.
        first, *_ = FrameDecoder().decode_frames(theirs.recv(1 << 16))
        assert REQUESTS.decode(first).streamed_bytes == 16
    finally:
        gateway.shut_down()
        group.close()


def test_results_of_an_ended_epoch_are_committed_in_it():
    with lone_group() as (group, gateway):
        operation = group.all_reduce_async(group.empty(4, "f32"))
        post = gateway.receive()
        gateway.send(ready(post), free(post), EpochBegan(2, 10, 1, 8))
        operation.wait(timeout=10)
        assert group._state.wait_until(lambda: group._state.epoch == 2, None)
        commit = group.commit_async(7)
        request = gateway.receive()
        assert isinstance(request, Commit)
        assert (request.epoch, request.step) == (1, 7)
        gateway.send(Committed(7))
        commit.wait(timeout=10)
        # Others have done step 8 meanwhile, as the new epoch says.
        assert (group.committed_step, group._state.confirmation.epoch) == (8, 1)


def test_a_step_that_goes_on_is_not_committed():
    with lone_group() as (group, gateway):
        operation = group.all_reduce_async(group.empty(4, "f32"))
        post = gateway.receive()
        gateway.send(ready(post), free(post), EpochBegan(2, 10, 0, 0))
        operation.wait(timeout=10)
        assert group._state.wait_until(lambda: group._state.epoch == 2, None)
        with pytest.raises(landbridge.EpochEnded):
            group.all_reduce_async(group.empty(4, "f32"))
        with pytest.raises(landbridge.EpochEnded):
            group.commit_async(7)
        assert not gateway.has_request()
