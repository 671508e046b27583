"""PyTorch over two sites: trainers as processes, also when a trainer or a gateway dies."""

import contextlib
import re
from functools import partial
from pathlib import Path

import pytest

from conftest import call_for_all
from landbridge._local_regions import LocalRegions

torch = pytest.importorskip("torch")

from training_run import (  # noqa: E402
    LONG_LINK,
    assert_alike,
    losses_of,
    outcome,
    specs_of,
    specs_of_two,
    train_in_one_process,
    trainers_of,
)


@pytest.mark.parametrize("mode", ["ddp", "sharded", "parts", "flat"])
def test_two_sites_train_like_one_process_to_the_bit(mode, tmp_path):
    """Compares each trainer's loss in each step, and the weights at the end.

    Buckets have 10 kB, and DDP makes other ones after the first step. In mode `parts` the sites are
    parts of one default group.
    """
    sharded = mode in ("sharded", "parts")
    layout = {"ranks": (1, 1), "jobs": ("train-0", "train-1")} if sharded else {"ranks": (2, 2)}
    with contextlib.ExitStack() as stack:
        regions = stack.enter_context(LocalRegions(link=LONG_LINK, **layout))
        specs = list(specs_of(regions, "sharded" if sharded else mode, tmp_path))
        if mode == "parts":
            for index, spec in enumerate(specs):
                spec.update(local_rank=index, local_size=4, parts=[[0, 1], [2, 3]])
                spec["store"] = f"file://{tmp_path}/store"
        processes = stack.enter_context(trainers_of(specs))
        outcomes = call_for_all(processes, outcome)
    assert len({digest for _, digest, _ in outcomes}) == 1
    losses, weights = train_in_one_process(lambda _: [[4, 4], [4, 4]])
    assert [outcome[0] for outcome in outcomes] == losses
    assert torch.equal(outcomes[0][2], weights)


#: Limit on the time until `backward` raises, in seconds: the longest that docs/failures.md gives
#: codes 4 to 7 and 9, which these tests cause.
RAISED_S = max(
    int(seconds)
    for seconds in re.findall(
        r"^\| code [45679] \| (\d+) s \|",
        (Path(__file__).parents[3] / "docs/failures.md").read_text("utf-8"),
        re.M,
    )
)


def error_of_backward(process):
    """Returns the text that `backward` raised in time, and the messages up to it."""
    messages = read_in_time(process, "raised")
    return messages[-1]["raised"], messages


def read_in_time(process, key):
    """Returns the messages of a trainer up to `key`, which came in time."""
    messages = process.read_until(key)
    assert messages[-1]["after_s"] < RAISED_S
    return messages


def assert_failed(process, mode, kinds, words):
    """Asserts the failure of a trainer's step, in `backward` if the mode has one and behind it."""
    if mode != "flat":
        text, _ = error_of_backward(process)
        assert re.search(f"gradients were not averaged: landbridge.({kinds}): .*({words})", text)
    failed = read_in_time(process, "failed")[-1]
    assert re.fullmatch(kinds, failed["failed"]) and re.search(words, failed["text"])


#: The failure of ranks whose gateway was killed.
GATEWAY_LOST = ("GatewayLost", "connection to the gateway ended")
#: The failure of other ranks before the gateway is back.
BEFORE_RESTART = ("Stalled|RegionLost", "east")
#: The failure of other ranks when the gateway may be back.
AFTER_RESTART = ("EpochEnded|Stalled|RegionLost", "east")


@pytest.mark.parametrize("mode", ["ddp", "flat", "sharded"])
def test_a_trainer_killed_at_step_5_and_restarted_changes_nothing(mode, tmp_path):
    """A trainer that takes shards ends its site, which is started again as a whole."""
    sharded = mode == "sharded"
    more = {"jobs": ("train-0", "train-1")} if sharded else {"speeds": (3.0, 1.0)}
    with LocalRegions(ranks=(1, 1), link=LONG_LINK, **more) as regions:

        def specs(run, hold_at=None):
            (tmp_path / run).mkdir()
            made = list((specs_of if sharded else specs_of_two)(regions, mode, tmp_path / run))
            for index, spec in enumerate(made):
                kept = tmp_path / ("whole" if run == "whole" else "broken")
                spec["checkpoint"] = f"{kept}-{index}"
            made[-1]["hold_at"] = hold_at
            return made

        with trainers_of(specs("first", hold_at=5)) as processes:
            east, west = split_by_site(processes)
            begun = [west[-1].read_until("held")]
            west[-1].end()
            if sharded:
                text, messages = error_of_backward(west[0])
                assert "landbridge.SiteFailed: the trainers of this site" in text
                begun.insert(0, messages)
                west[0].end()
            begun = [read_in_time(survivor, "failed") for survivor in east] + begun
            for failed in (begun[index][-1] for index in range(len(east))):
                assert failed["failed"] == "RankLost" and failed["step"] == 5
                assert "rank 1" in failed["text"]
            with trainers_of(specs("again")[len(east) :]) as again:
                outcomes = call_for_all([*east, *again], outcome)
        with trainers_of(specs("whole")) as processes:
            uninterrupted = call_for_all(processes, outcome)
    assert {o[1] for o in outcomes} == {o[1] for o in uninterrupted}
    for before, after, whole in zip(begun, outcomes, uninterrupted):
        assert {**losses_of(before), **after[0]} == whole[0]
    assert_alike(
        outcomes, train_in_one_process(lambda _: [[4, 4], [4, 4]] if sharded else [[12], [4]])
    )


def split_by_site(items):
    """Returns the items of the east and those of the west."""
    return items[: len(items) // 2], items[len(items) // 2 :]


@pytest.mark.parametrize("mode", ["ddp", "sharded"])
def test_backward_names_a_killed_gateway_and_training_continues(mode, tmp_path):
    with (
        regions_of(mode) as regions,
        trainers_of(specs_of_mode(regions, mode, tmp_path, hold_at=3)) as processes,
    ):
        messages = [process.read_until("held") for process in processes]
        regions.kill_process("east")
        for process in processes:
            process.release()
        for site, failed in zip(split_by_site(processes), (GATEWAY_LOST, BEFORE_RESTART)):
            for process in site:
                assert_failed(process, mode, *failed)
        regions.start_gateway("east")
        # All hold once more, because they begin the step again.
        for process in processes:
            process.read_until("held")
            process.release()
        outcomes = call_for_all(processes, outcome)
    assert_like_uninterrupted(mode, messages, outcomes)


@pytest.mark.parametrize("mode", ["ddp", "flat", "sharded"])
def test_a_gateway_killed_between_two_buckets_changes_nothing(mode, tmp_path):
    """All trainers have the average of one bucket of the step, and none has that of the other."""
    specs = partial(specs_of_mode, mode=mode, tmp_path=tmp_path, hold_between=3)
    with regions_of(mode) as regions, trainers_of(specs(regions)) as processes:
        messages = [process.read_until("held") for process in processes]
        restart_gateway_of_east(regions, processes)
        for site, failed in zip(split_by_site(processes), (GATEWAY_LOST, AFTER_RESTART)):
            for process in site:
                assert_failed(process, mode, *failed)
        outcomes = call_for_all(processes, outcome)
    assert_like_uninterrupted(mode, messages, outcomes)


@pytest.mark.parametrize("mode", ["ddp", "flat", "sharded"])
def test_a_region_ahead_gives_its_step_to_the_other(mode, tmp_path):
    """If each continued at its own step, they would average gradients of different steps."""
    with regions_of(mode) as regions:
        specs = list(specs_of_mode(regions, mode, tmp_path))
        for spec in split_by_site(specs)[0]:
            spec["lose_at"] = 3
        with trainers_of(specs) as processes:
            east, west = split_by_site(processes)
            messages = [process.read_until("held") for process in east]
            messages += [read_until_loss_of(process, 3) for process in west]
            restart_gateway_of_east(regions, east)
            outcomes = call_for_all(processes, outcome)
    assert_like_uninterrupted(mode, messages, outcomes, given=3)


def test_a_trainer_without_checkpoint_gets_the_state_of_the_others(tmp_path):
    """The state includes the momentum of the optimizer."""
    with regions_of("flat") as regions:
        specs = list(specs_of_mode(regions, "flat", tmp_path))
        specs[1]["hold_at"] = 5
        with trainers_of(specs) as (east, west):
            messages = [[], west.read_until("held")]
            west.end()
            messages[0] = east.read_until("failed")
            del specs[1]["hold_at"]
            with trainers_of(specs[1:]) as again:
                outcomes = call_for_all([east, *again], outcome)
    assert_like_uninterrupted("flat", messages, outcomes)


def regions_of(mode):
    """Returns two regions with the jobs that a mode needs."""
    jobs = ("train-0", "train-1") if mode == "sharded" else ("train",)
    return LocalRegions(ranks=(1, 1), jobs=jobs)


def specs_of_mode(regions, mode, tmp_path, **more):
    return (specs_of if mode == "sharded" else specs_of_two)(regions, mode, tmp_path, **more)


def restart_gateway_of_east(regions, held):
    """Restarts the gateway of east while some trainers hold, and releases them."""
    regions.kill_process("east")
    for process in held:
        process.release()
    regions.start_gateway("east")


def read_until_loss_of(process, step):
    """Returns the messages of a trainer up to the loss of a step."""
    messages = process.read_until("loss")
    while messages[-1]["step"] < step:
        messages += process.read_until("loss")
    return messages


def assert_like_uninterrupted(mode, messages, outcomes, given=None):
    """Asserts losses and weights of an uninterrupted run, to the bit.

    Ranks of the east that were given the step `given` have no loss for it.
    """
    losses, weights = train_in_one_process(
        lambda _: [[4, 4], [4, 4]] if mode == "sharded" else [[8], [8]]
    )
    if given is not None:
        for curve in split_by_site(losses)[0]:
            del curve[given]
    assert [{**losses_of(lines), **one[0]} for lines, one in zip(messages, outcomes)] == losses
    assert len({digest for _, digest, _ in outcomes}) == 1
    assert torch.equal(outcomes[0][2], weights)


def test_a_rank_unable_to_post_its_shard_releases_its_site(tmp_path):
    with LocalRegions(ranks=(1, 1), jobs=("train-0", "train-1")) as regions:
        specs = list(specs_of(regions, "sharded", tmp_path))
        specs[0]["fill_at"] = 3
        with trainers_of(specs) as processes:
            (full, _), (other, _) = [error_of_backward(process) for process in processes[:2]]
    assert "landbridge.ArenaFull" in full
    assert "landbridge.EpochEnded" in other
    assert "rank 0 of this site could not exchange its shard" in other
