"""PyTorch: unequal batches over two sites, also while speeds drift, against one process."""

import pytest

from conftest import on_all
from landbridge._testing import LocalRegions

torch = pytest.importorskip("torch")

import trainer as trainers  # noqa: E402
from training_run import (  # noqa: E402
    FAR,
    assert_alike,
    one_process,
    outcome,
    outcome_of,
    specs_of,
    specs_of_two,
    trainers_of,
)


@pytest.mark.parametrize("mode", ["ddp", "flat"])
def test_unequal_sites_train_like_one_process(mode, tmp_path):
    with LocalRegions(ranks=(1, 1), speeds=(3.0, 1.0), link=FAR) as regions:
        with trainers_of(specs_of_two(regions, mode, tmp_path)) as processes:
            outcomes = on_all(processes, outcome)
    assert_alike(outcomes, one_process(lambda _: [[12], [4]]))


JOBS = ("train-0", "train-1")


def test_unequal_sites_with_shards_train_like_one_process(tmp_path):
    """Sites have eleven and five samples, so trainers of one site are unequal as well."""
    with LocalRegions(ranks=(1, 1), jobs=JOBS, speeds=(2.0, 1.0), link=FAR) as regions:
        with trainers_of(specs_of(regions, "sharded", tmp_path, ranks=None)) as processes:
            outcomes = on_all(processes, outcome)
    assert_alike(outcomes, one_process(lambda _: [[6, 5], [3, 2]]))


EPOCHS = 4
#: Samples in a second: the first site loses two thirds, then the second becomes as fast as the
#: first has been.
SPEEDS = [
    [max(300 * 0.95 ** max(step - 3, 0), 100.0) for step in range(EPOCHS * trainers.STEPS)],
    [100.0 if step < 32 else 300.0 for step in range(EPOCHS * trainers.STEPS)],
]


@pytest.mark.parametrize("mode", ["ddp", "sharded"])
def test_sites_whose_speeds_drift_train_like_one_process(mode, tmp_path):
    """Real gateways: shares follow, each epoch has each sample once, averages are weighted by what
    shares have become. The fabric has speeds in another unit than they are measured in."""
    sharded = mode == "sharded"
    jobs = JOBS if sharded else ("train",)
    with LocalRegions(ranks=(1, 1), jobs=jobs, speeds=(3.0, 1.0)) as regions:
        made = specs_of if sharded else specs_of_two
        specs = list(made(regions, mode, tmp_path, ranks=None))
        per_site = len(specs) // 2
        for index, spec in enumerate(specs):
            spec["speeds"] = [speed / per_site for speed in SPEEDS[index // per_site]]
        with trainers_of(specs) as processes:
            told = on_all(processes, lambda process: process.says("weights"))
    batches = [[line["batch"] for line in lines if "batch" in line] for lines in told]
    for step, parts in enumerate(zip(*batches)):
        begin = step % trainers.STEPS * trainers.GLOBAL_BATCH
        assert [i for part in parts for i in part] == list(range(begin, begin + 16)), step

    def parts(step):
        sizes = [len(of_one[step]) for of_one in batches]
        return [sizes[:per_site], sizes[per_site:]]

    splits = [[sum(site) for site in parts(step)] for step in range(len(SPEEDS[0]))]
    assert [splits[step] for step in (0, 12, 31, 47)] == [[12, 4], [12, 4], [8, 8], [4, 12]]
    changes = sum(before != after for before, after in zip(splits, splits[1:]))
    assert 3 <= changes <= 6, splits
    assert_alike([outcome_of(lines) for lines in told], one_process(parts, len(splits)))
