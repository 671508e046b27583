"""Sharded modules over two sites: HSDP by the backend, and FSDP2 by its hook."""

import contextlib
from pathlib import Path

import pytest

from landbridge._local_regions import LocalRegions

torch = pytest.importorskip("torch")

from ddp_script import STEPS  # noqa: E402

from site_processes import (  # noqa: E402
    Trainer,
    assert_like_one_process,
    changed_script,
    free_port,
    results_of,
    sent_bytes,
    started_trainers,
    train_in_one_rank,
)

HERE = Path(__file__).parent
#: Bytes between the gateways of a run beside gradients: groups, barriers, and heads of messages.
OTHER_BYTES_MAX = 16_000


@pytest.fixture(scope="module")
def reference():
    """The weights of the training script in one process, as it is."""
    return train_in_one_rank(HERE / "ddp_script.py")


@pytest.fixture(scope="module")
def regions():
    """Two regions of two ranks each."""
    with LocalRegions(ranks=(2, 2)) as running:
        yield running


@pytest.mark.parametrize("launch", ["one world", "a launcher for each site"])
def test_an_hsdp_script_trains_over_two_sites(regions, reference, tmp_path, launch):
    """The gradient of each shard crosses once in a step, though a step has two micro-batches."""
    one_world, changed = launch == "one world", {}
    if not one_world:
        changed = {
            'dist.init_process_group("gloo")': "landbridge.torch.init_process_group()",
            ", backend_override=override": "",
            "import torch\n": "import torch\nimport landbridge.torch\n",
        }
    script, before = changed_script(HERE / "hsdp_script.py", tmp_path, changed), sent_bytes(regions)
    with started_trainers(regions, script, one_world=one_world) as trainers:
        results = results_of(trainers)
    assert_like_one_process(results, reference)
    shards = [result["shards"] for result in results]
    assert shards[:2] == shards[2:] and sum(shards[:2]) == len(reference)
    assert_gradients_cross_once(before, regions, reference)


def assert_gradients_cross_once(before, regions, reference):
    """Asserts that each gateway has sent the model once in each step: a shard for each rank."""
    least = STEPS * len(reference) * 4
    for old, new in zip(before, sent_bytes(regions)):
        assert least <= new - old <= least + OTHER_BYTES_MAX


@contextlib.contextmanager
def started_sites(script):
    """Yields two regions with a job for each local rank, the bytes that they had sent before, and
    two processes for each that run a script over a process group of the region."""
    with contextlib.ExitStack() as stack:
        jobs = ("train-0", "train-1")
        regions = stack.enter_context(LocalRegions(ranks=(1, 1), jobs=jobs))
        trainers, before = [], sent_bytes(regions)
        for site, region in enumerate(("east", "west")):
            port = free_port()
            for local_rank in range(2):
                variables = {
                    "LANDBRIDGE_CONFIG": str(regions.region_file(region)),
                    "RANK": str(local_rank),
                    "WORLD_SIZE": "2",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                }
                trainer = Trainer([str(script), str(site)], variables)
                stack.callback(trainer.kill)
                trainers.append(trainer)
        yield regions, before, trainers


def test_sharded_modules_average_over_sites_by_their_hook(reference):
    with started_sites(HERE / "fsdp_script.py") as (regions, before, trainers):
        assert_like_one_process(results_of(trainers), reference)
        assert_gradients_cross_once(before, regions, reference)


def test_sites_that_mix_up_their_shards_disagree(tmp_path):
    """The local ranks of one site attach to the jobs of each other. All shards have one length."""
    changed = {'f"train-{local_rank}"': 'f"train-{(local_rank + site) % 2}"'}
    script = changed_script(HERE / "fsdp_script.py", tmp_path, changed)
    with started_sites(script) as (*_, trainers):
        errors = [trainer.fail() for trainer in trainers]
    assert all("RanksDisagree" in error for error in errors), errors
    assert sum("this rank has shard 0 of 2 of" in error for error in errors) == 2
