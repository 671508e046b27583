"""PyTorch: unequal batches over two sites, also while speeds drift, against one process."""

import pytest

from conftest import call_for_all
from landbridge._local_regions import LocalRegions

torch = pytest.importorskip("torch")

import trainer as trainers  # noqa: E402
from training_run import (  # noqa: E402
    LONG_LINK,
    assert_alike,
    outcome,
    outcome_of,
    specs_of,
    specs_of_two,
    train_in_one_process,
    trainers_of,
)


@pytest.mark.parametrize("mode", ["ddp", "flat"])
def test_unequal_sites_train_like_one_process(mode, tmp_path):
    with LocalRegions(ranks=(1, 1), speeds=(3.0, 1.0), link=LONG_LINK) as regions:
        with trainers_of(specs_of_two(regions, mode, tmp_path)) as processes:
            outcomes = call_for_all(processes, outcome)
    assert_alike(outcomes, train_in_one_process(lambda _: [[12], [4]]))


#: The jobs of the local ranks of a site.
JOBS = ("train-0", "train-1")


def test_unequal_sites_with_shards_train_like_one_process(tmp_path):
    """Sites have eleven and five samples, so trainers of one site are unequal as well."""
    with LocalRegions(ranks=(1, 1), jobs=JOBS, speeds=(2.0, 1.0), link=LONG_LINK) as regions:
        with trainers_of(specs_of(regions, "sharded", tmp_path, ranks=None)) as processes:
            outcomes = call_for_all(processes, outcome)
    assert_alike(outcomes, train_in_one_process(lambda _: [[6, 5], [3, 2]]))


#: Epochs of the data while speeds drift.
EPOCHS = 4
#: Samples per second of each site in each step. The first site loses two thirds of its speed, then
#: the second becomes as fast as the first was.
SITE_SPEEDS = [
    [max(300 * 0.95 ** max(step - 3, 0), 100.0) for step in range(EPOCHS * trainers.STEPS)],
    [100.0 if step < 32 else 300.0 for step in range(EPOCHS * trainers.STEPS)],
]


@pytest.mark.parametrize("mode", ["ddp", "sharded"])
def test_sites_whose_speeds_drift_train_like_one_process(mode, tmp_path):
    """Shares follow the speeds, and averages are weighted by shares.

    Each epoch has each sample once. The fabric has speeds in another unit than the measured ones.
    """
    sharded = mode == "sharded"
    jobs = JOBS if sharded else ("train",)
    with LocalRegions(ranks=(1, 1), jobs=jobs, speeds=(3.0, 1.0)) as regions:
        made = specs_of if sharded else specs_of_two
        specs = list(made(regions, mode, tmp_path, ranks=None))
        per_site = len(specs) // 2
        for index, spec in enumerate(specs):
            spec["speeds"] = [speed / per_site for speed in SITE_SPEEDS[index // per_site]]
        with trainers_of(specs) as processes:
            messages = call_for_all(processes, lambda process: process.read_until("weights"))
    batches = [[line["batch"] for line in lines if "batch" in line] for lines in messages]
    for step, parts in enumerate(zip(*batches)):
        begin = step % trainers.STEPS * trainers.GLOBAL_BATCH
        assert [i for part in parts for i in part] == list(range(begin, begin + 16)), step

    def parts(step):
        sizes = [len(of_one[step]) for of_one in batches]
        return [sizes[:per_site], sizes[per_site:]]

    splits = [[sum(site) for site in parts(step)] for step in range(len(SITE_SPEEDS[0]))]
    assert [splits[step] for step in (0, 12, 31, 47)] == [[12, 4], [12, 4], [8, 8], [4, 12]]
    changes = sum(before != after for before, after in zip(splits, splits[1:]))
    assert 3 <= changes <= 6, splits
    assert_alike(
        [outcome_of(lines) for lines in messages], train_in_one_process(parts, len(splits))
    )
