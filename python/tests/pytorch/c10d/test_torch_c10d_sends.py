"""Sends and receives of process groups in pieces, and their failures, over ranks of this
process."""

from datetime import timedelta

import pytest

import landbridge
from conftest import DEADLINE_S, call_for_all, wait_until

torch = pytest.importorskip("torch")

from landbridge.torch._c10d import arena_room  # noqa: E402
from process_group_members import members_of  # noqa: E402


@pytest.fixture(params=[64, 1 << 20], ids=["many pieces", "one piece"])
def members(request, two_groups):
    """Both ranks, whose pieces are short or long."""
    return members_of(two_groups, request.param)


def received(member, like, tag=0, peer=0):
    """Returns a tensor like another one, received."""
    got = torch.zeros_like(like)
    assert member.recv([got], peer, tag).wait()
    return got


def test_tensors_of_any_length_and_type_arrive_whole(members):
    here, there = members
    given = [
        torch.arange(101.0),
        torch.arange(40, dtype=torch.float64).view(5, 8).t(),
        torch.zeros(0),
        torch.tensor(7, dtype=torch.int64),
        torch.arange(33) % 2 == 0,
        torch.arange(9.0).to(torch.float8_e4m3fn),
        torch.complex(torch.arange(20.0), torch.ones(20)),
        torch.arange(30, dtype=torch.int32).to(torch.uint16),
    ]
    works = [here.send([tensor], 1, 5) for tensor in given]
    for tensor in given:
        assert torch.equal(*map(as_bytes, (received(there, tensor, tag=5), tensor)))
    assert all(work.wait() for work in works)


def as_bytes(tensor):
    """Returns the elements of a tensor as bytes."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def test_a_tensor_with_gaps_receives_into_its_elements_alone(members):
    here, there = members
    whole = torch.ones(3, 40)
    work = here.send([torch.arange(60.0).view(20, 3)], 1, 0)
    there.recv([whole[:, 10:30].t()], 0, 0).wait()
    assert torch.equal(whole[:, 10:30], torch.arange(60.0).view(20, 3).t())
    assert whole[:, :10].eq(1).all() and whole[:, 30:].eq(1).all()
    work.wait()


def test_sends_wait_for_no_other_tag_and_for_no_collective(two_groups):
    here, there = members_of(two_groups)
    early = torch.zeros(3)
    awaited = here.recv([early], 1, 1)
    # A collective and a send the other way end meanwhile, though they were called later.
    totals = call_for_all((here, there), all_reduced)
    assert totals == [2.0, 2.0]
    answer = there.send([torch.ones(3)], 0, 2)
    assert received(here, early, tag=2, peer=1).tolist() == [1.0] * 3
    answer.wait()
    assert not awaited.is_completed()
    there.send([torch.full((3,), 2.0)], 0, 1).wait()
    assert awaited.wait() and early.tolist() == [2.0] * 3


def all_reduced(member):
    tensor = torch.ones(1)
    member.allreduce([tensor]).wait()
    return tensor.item()


def test_sends_of_one_tag_arrive_in_their_order(members):
    here, there = members
    works = [here.send([torch.full((20,), float(place))], 1, 3) for place in range(30)]
    for place in range(30):
        assert received(there, torch.zeros(20), tag=3).eq(place).all()
    assert all(work.wait() for work in works)


def test_tensors_longer_than_the_arena_pass_both_ways_at_once(two_groups):
    """The arena has 8 MiB, and each tensor 12 MiB."""

    def check(member):
        other, given = 1 - member.rank, torch.arange(3 << 20, dtype=torch.float32)
        works = [member.send([given + member.rank], other, tag) for tag in range(2)]
        got = [received(member, given, tag, other) for tag in range(2)]
        assert all(torch.equal(one, given + other) for one in got)
        assert all(work.wait() for work in works)

    call_for_all(members_of(two_groups, arena_room.choose_arena_piece_bytes([8 << 20])), check)


def test_more_series_than_a_gateway_takes_posts_all_arrive(two_groups):
    here, there = members_of(two_groups)
    tags = range(300)
    got = [torch.zeros(1) for _ in tags]
    works = [there.recv([got[tag]], 0, tag) for tag in tags]
    # They leave posts to collectives.
    await_full_room(there, threads=1)
    assert call_for_all((here, there), all_reduced) == [2.0, 2.0]
    works += [here.send([torch.tensor([float(tag)])], 1, tag) for tag in tags]
    assert all(work.wait() for work in works)
    assert [tensor.item() for tensor in got] == list(tags)


def await_full_room(member, threads):
    """Waits until this many threads of a rank wait for room to post."""
    room = member.exchange._room
    wait_until(lambda: len(room._changed._waiters) == threads and room._under_way)


def test_receives_that_wait_leave_posts_to_other_sends(two_groups):
    """More receives and collectives than a gateway takes posts are called before any can end."""
    here, there = members_of(two_groups)
    waiting = [here.recv([torch.zeros(1)], 1, 7) for _ in range(300)]
    sums = [here.allreduce([torch.ones(1)]) for _ in range(300)]
    await_full_room(here, threads=2)
    sent = here.send([torch.ones(1)], 1, 9)
    assert received(there, torch.zeros(1), tag=9).item() == 1.0
    assert sent.wait()
    works = [there.allreduce([torch.ones(1)]) for _ in range(300)]
    works += [there.send([torch.ones(1)], 0, 7) for _ in range(300)]
    assert all(work.wait() for work in [*waiting, *sums, *works])


@pytest.mark.parametrize("piece_bytes", [64, 1 << 20], ids=["many pieces", "one piece"])
def test_ends_that_differ_are_both_told_and_nothing_is_received(two_groups, piece_bytes):
    # Without the news an end would wait for longer than the test may take.
    members = here, there = members_of(two_groups, piece_bytes, timeout_s=3600)

    def disagree(member):
        tensor = torch.zeros(101 if member.rank else 60)
        call = member.recv if member.rank else member.send
        with pytest.raises(landbridge.RanksDisagree):
            call([tensor], 1 - member.rank, 0).wait()
        assert tensor.eq(0).all()

    call_for_all(members, disagree)
    # Another tag is not concerned, nor is a collective.
    work = here.send([torch.ones(3)], 1, 1)
    assert received(there, torch.zeros(3), tag=1).eq(1).all() and work.wait()
    assert call_for_all(members, all_reduced) == [2.0, 2.0]


@pytest.mark.parametrize("first", [(8, 4), (4, 12)], ids=str)
def test_no_piece_is_received_as_one_of_another_call(two_groups, first):
    """The first calls have other numbers of pieces, and the next ones are posted already."""
    here, there = members_of(two_groups, piece_bytes=64)
    got = [torch.zeros(count) for count in (first[1], 8, 8)]
    works = [there.recv([tensor], 0, 0) for tensor in got]
    wait_until(lambda: all(call.is_posted for call in there.exchange._sends._calls))
    works += [here.send([torch.ones(count)], 1, 0) for count in (first[0], 8, 8)]
    for work in works:
        with pytest.raises((landbridge.RanksDisagree, landbridge.EpochEnded)):
            work.wait()
    assert all(tensor.eq(0).all() for tensor in got)
    with pytest.raises(
        landbridge.EpochEnded, match="receive from rank 0 with tag 0 failed .*posted"
    ):
        there.recv([got[1]], 0, 0).wait()


def test_a_tag_goes_on_after_a_timeout_of_one_piece(two_groups):
    here, there = members_of(two_groups, timeout_s=0.2)
    with pytest.raises(landbridge.RanksTimedOut):
        here.recv([torch.zeros(3)], 1, 0).wait()
    with pytest.raises(landbridge.RanksTimedOut):
        there.send([torch.ones(3)], 0, 0).wait()
    there._timeout = timedelta(seconds=DEADLINE_S)
    here._timeout = there._timeout
    work = there.send([torch.ones(3)], 0, 0)
    assert received(here, torch.zeros(3), peer=1).eq(1).all() and work.wait()


def test_a_receive_without_a_send_names_the_other_rank(two_groups):
    here, there = members_of(two_groups, timeout_s=0.2)
    with pytest.raises(landbridge.RanksTimedOut, match="rank 1"):
        here.recv([torch.ones(1)], 1, 0).wait()
    work = there.recv([torch.ones(1)], 0, 0)
    with pytest.raises(RuntimeError, match=r"landbridge\.RanksTimedOut: .*rank 0"):
        work.get_future().wait()


def test_calls_that_no_rank_could_meet_are_refused(two_groups):
    here, _ = members_of(two_groups)
    one = torch.ones(1)
    for call, words in (
        (lambda: here.send([one], 0, 0), "dst 0 is this rank itself"),
        (lambda: here.recv([one], 2, 0), "src 2: accepted: whole numbers from 0 to 1"),
        (lambda: here.send([one], 1, 1 << 16), "tag 65536: accepted"),
        (lambda: here.send([one], 1, -1), "tag -1: accepted"),
        (lambda: here.send([one, one], 1, 0), "tensors 2: accepted: one tensor"),
    ):
        with pytest.raises(landbridge.ConfigError, match=words):
            call()
    with pytest.raises(landbridge.NotSupported, match="name `src`"):
        here.recv_anysource([one], 0)
    with pytest.raises(landbridge.UnsupportedArray, match="to_dense"):
        here.send([one.to_sparse()], 1, 0)


def test_a_batch_of_sends_ends_with_its_last(two_groups):
    here, there = members_of(two_groups)
    here.start_coalescing()
    got = torch.zeros(3)
    here.recv([got], 1, 0)
    here.send([torch.ones(3)], 1, 0)
    batch = here.end_coalescing()
    assert received(there, got).eq(1).all()
    assert not batch.is_completed()
    there.send([torch.full((3,), 2.0)], 0, 0)
    assert batch.wait() and got.eq(2).all()
    # One without calls has ended.
    here.start_coalescing()
    assert here.end_coalescing().wait()


def test_a_batch_fails_as_its_receive_does(two_groups):
    here, there = members_of(two_groups)
    here.start_coalescing()
    here.recv([torch.zeros(2)], 1, 0)
    here.send([torch.ones(3)], 1, 0)
    batch = here.end_coalescing()
    received(there, torch.ones(3))
    there.send([torch.ones(3)], 0, 0)
    with pytest.raises(landbridge.RanksDisagree):
        batch.wait()


def test_a_closed_exchange_ends_its_sends_and_takes_no_more(two_groups):
    def check(member):
        got, other = torch.zeros(40), 1 - member.rank
        member.recv([got], other, 0)
        member.send([torch.ones(40)], other, 0)
        exchange = member.exchange
        ending = exchange._finishing._threads | exchange._sends._finishing._threads
        threads = [exchange._post_thread, *exchange._sends._post_threads, *ending]
        exchange.close()
        assert got.eq(1).all() and len(threads) == 4
        assert not any(thread.is_alive() for thread in threads)
        with pytest.raises(landbridge.Closed):
            member.send([got], other, 0)

    call_for_all(members_of(two_groups, piece_bytes=64), check)


def test_an_abort_ends_sends_at_once_and_leaves_the_pair(two_groups):
    """The other rank hears of it as soon as nothing of this one is under way between the two."""
    here, there = members_of(call_for_all(two_groups, lambda group: group.new_group([0, 1])))
    got = torch.zeros(3)
    work = here.recv([got], 1, 4)
    awaited = there.recv([torch.zeros(3)], 0, 5)
    calls = [call for one in (here, there) for call in one.exchange._sends._calls]
    wait_until(lambda: all(call.is_posted for call in calls))
    here.exchange.abort()
    with pytest.raises(landbridge.Closed, match="aborted"):
        work.wait()
    with pytest.raises(landbridge.Closed):
        here.send([got], 1, 0)
    # What this rank still had posted is met, and changes nothing.
    there.send([torch.ones(3)], 0, 4).wait()
    two_groups[0].send_async(torch.ones(1), 1)
    with pytest.raises((landbridge.RankLost, landbridge.EpochEnded)):
        awaited.wait()
    assert got.eq(0).all()
    sends = here.exchange._sends
    threads = [*sends._post_threads, *sends._finishing._threads]
    wait_until(lambda: not any(thread.is_alive() for thread in threads))
    # Other groups of the rank go on.
    assert call_for_all(members_of(two_groups), all_reduced) == [2.0, 2.0]
