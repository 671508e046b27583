"""Splits of a global batch, compared with those of the Rust client, and between ranks."""

import pytest

import landbridge
from conftest import call_for_all, read_golden
from landbridge._batch_split import (
    BATCH_SAMPLES_MAX,
    BatchSplit,
    LocalBatchSplit,
    _hand_out_split_samples,
    batch_split_shares,
)

LINES = read_golden("batch_splits.jsonl")
SPLITS = [line for line in LINES if "shares" in line]
SEQUENCES = [line for line in LINES if "steps" in line]


def test_batches_are_split_as_in_the_gateway():
    for line in SPLITS:
        case = (line["batch"], line["speeds"], line["limits"])
        if line["shares"] is None:
            with pytest.raises(landbridge.ConfigError):
                batch_split_shares(*case)
        else:
            assert batch_split_shares(*case) == line["shares"], case
    kinds = {(line["limits"] is None, line["shares"] is None) for line in SPLITS}
    assert len(kinds) == 4, "with limits and without, split and refused"


def test_each_sample_looks_at_few_ranks_of_many():
    ranks, visited = 10_000, []
    shares = [0] * ranks

    def key(rank, share):
        visited.append(rank)
        return share / (1 + rank % 7)

    _hand_out_split_samples(shares, 3 * ranks, key)
    assert (len(visited), sum(shares)) == (4 * ranks, 3 * ranks)
    speeds = [1.0 + rank % 97 / 31 for rank in range(ranks)]
    limits = [40 + rank % 13 for rank in range(ranks)]
    shares = batch_split_shares(433_333, speeds, limits)
    assert sum(shares) == 433_333
    assert all(share <= limit for share, limit in zip(shares, limits))


@pytest.mark.parametrize("index", range(len(SEQUENCES)))
def test_splits_go_on_as_on_the_daemons_side(index):
    line = SEQUENCES[index]
    split = LocalBatchSplit(line["batch"], line["speeds"], line["limits"])
    assert split.arguments_hash() == line["agreed"]
    for number, step in enumerate(line["steps"]):
        speeds, rank = step["speeds"], step["rank"]
        agreed, states = [split.arguments_hash()] * len(speeds), [split.split_hash()] * len(speeds)
        agreed[rank] ^= step["other"]
        states[rank] ^= step["apart"]
        if step["changed"] is None:
            error = landbridge.RanksDisagree if step["unlike"] else landbridge.ConfigError
            with pytest.raises(error):
                split.handle_exchange(speeds, agreed, states)
        else:
            assert split.handle_exchange(speeds, agreed, states) == step["changed"], number
        assert split.shares == step["shares"], number
        assert split.split_hash() == step["state"], number


@pytest.mark.parametrize(
    ("batch", "speeds", "limits", "words"),
    [
        (1, [], None, "at least one rank"),
        (-1, [1.0], None, "0 to 4294967296"),
        (BATCH_SAMPLES_MAX + 1, [1.0], None, "0 to 4294967296"),
        (1, [1.0, float("nan")], None, "rank 1 has speed nan"),
        (1, [1.0, 0.0], None, "rank 1 has speed 0.0"),
        (1, [1e308, 1e308], None, "larger unit"),
        (1, [1.0, 1.0], [1], "1 limits for 2 ranks"),
        (1, [1.0, 1.0], [1, -1], "limit of rank 1 -1: accepted: whole"),
        (1, [1.0], [True], "limit of rank 0 True: accepted: whole"),
        (1, [1.0], "1", "limits '1': accepted: a list"),
        (True, [1.0], None, "global_batch True: accepted: whole"),
        (1.0, [1.0], None, "global_batch 1.0: accepted: whole"),
        (9, [1.0, 1.0], [4, 4], "9 samples is above the 8 that all ranks hold"),
    ],
)
def test_invalid_batches_are_refused(batch, speeds, limits, words):
    with pytest.raises(landbridge.ConfigError, match=words):
        batch_split_shares(batch, speeds, limits)


def test_invalid_speeds_change_nothing():
    split = LocalBatchSplit(16, [1.0, 2.0])
    before = split.split_hash()
    for wrong in ([1.0], [1.0, 0.0], [float("nan"), 1.0]):
        with pytest.raises(landbridge.ConfigError):
            split.handle_speeds(wrong)
        assert split.split_hash() == before


def test_limits_hold_and_the_others_take_what_is_left(groups):
    assert groups[0].batch_shares(16, [5, 5, 6]) == [5, 5, 6]
    assert [group.batch_share(16, [16, 3, 16]) for group in groups] == [4, 3, 9]
    with pytest.raises(landbridge.ConfigError, match="2 limits for 3 ranks"):
        groups[0].batch_split(16, [8, 8])


def test_all_ranks_follow_a_rank_that_became_slow(groups):
    """Small changes of speed before that change nothing."""

    def steps(group):
        split, seen = group.batch_split(400), []
        speeds = [100.0, 100.0, 200.0]
        for step in range(20):
            if step == 8:
                speeds[2] = 100.0
            jitter = 1.02 if (step + group.rank) % 2 else 0.98
            changed = split.end_step(split.samples / (speeds[group.rank] * jitter))
            seen.append((changed, split.shares))
            assert split.was_alike and split.samples == split.shares[group.rank]
        return seen

    seen = call_for_all(groups, steps)
    assert seen[0] == seen[1] == seen[2]
    assert [step for step, (changed, _) in enumerate(seen[0]) if changed] == [12]
    assert all(sum(shares) == 400 for _, shares in seen[0])
    assert [shares for _, shares in seen[0]][11] == [100, 100, 200]
    assert all(abs(share - 133) < 8 for share in seen[0][-1][1])


def test_ranks_with_another_split_are_named(groups):
    def unlike_limits(group):
        split = group.batch_split(16, [16, 16, 9 if group.rank == 1 else 16])
        with pytest.raises(landbridge.RanksDisagree, match="rank 1 splits another global batch"):
            split.end_step(1.0)
        return split.shares

    def unlike_speeds(group):
        split = BatchSplit(group, 16, [1.0, 1.0, 3.0 if group.rank == 2 else 2.0], None)
        with pytest.raises(landbridge.RanksDisagree, match="rank 2 splits another .* other speeds"):
            split.end_step(1.0)

    def unlike_layout(group):
        words = f"layout: .*; this rank passed layout {group.rank:#x} to end_step$"
        with pytest.raises(landbridge.RanksDisagree, match=words):
            group.batch_split(16).end_step(1.0, layout=group.rank)

    assert call_for_all(groups, unlike_limits) == [[4, 4, 8]] * 3
    call_for_all(groups, unlike_speeds)
    call_for_all(groups, unlike_layout)


def test_splits_that_came_apart_are_alike_after_one_exchange(groups):
    """A rank that is started again has another split."""

    def steps(group):
        split = group.batch_split(400)
        for _ in range(5):
            split.end_step(split.samples / 100.0)
        assert split.shares == [134, 133, 133] and split.was_alike
        if group.rank == 2:
            split = group.batch_split(400)
        assert split.end_step(4.0 if group.rank else 0.0, samples=800)
        return split.shares, split.was_alike, split.end_step(1.0), split.was_alike

    # Rank 0 computed for no time, so its speed in earlier steps counts.
    assert call_for_all(groups, steps) == [([80, 160, 160], False, False, True)] * 3


def test_an_unmeasured_rank_counts_with_its_expected_speed(groups):
    """Its speed in the fabric, 2, has another unit than the measured speeds."""

    def steps(group):
        split = group.batch_split(400)
        for _ in range(8):
            assert not split.end_step(0.0 if group.rank == 2 else split.samples / 100.0)
        return split.shares

    assert call_for_all(groups, steps) == [[100, 100, 200]] * 3


def test_an_exchange_of_speeds_obeys_its_timeout(groups):
    with pytest.raises(landbridge.RanksTimedOut):
        groups[0].batch_split(16).end_step(1.0, timeout=0.2)


@pytest.mark.parametrize("wrong", [-1.0, float("inf"), float("nan")])
def test_a_time_that_gives_no_speed_is_refused_here(groups, wrong):
    groups[0].close()  # Nothing can be posted.
    with pytest.raises(landbridge.ConfigError, match="finite and not negative"):
        groups[0].batch_split(16).end_step(wrong)
