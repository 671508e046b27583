"""The training scripts of a transformer, by the commands of docs/pytorch.md, and `hsdp.py` in one
process as well. They differ in what shards or copies the model."""

import contextlib
from pathlib import Path

import pytest

from landbridge._local_regions import LocalRegions

torch = pytest.importorskip("torch")

from site_processes import (  # noqa: E402
    FINDS_BACKENDS,
    TORCHRUN_PROGRAM,
    Trainer,
    free_port,
    run_torchruns,
    sent_bytes,
    started_trainers,
)

EXAMPLES = Path(__file__).parents[4] / "examples"
HSDP = EXAMPLES / "hsdp.py"
#: Steps of each example.
STEPS = 40
#: Accepted bytes on the link for each byte of the gradients' shards.
BYTES_RATIO_MAX = 1.02


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The weights of the example in one process, which is a site of one rank."""
    folder = tmp_path_factory.mktemp("reference")
    with LocalRegions(ranks=(1,)) as regions:
        train_by_variables(regions, folder, 1)
    return torch.load(folder / "site-0.pt")


def train_by_variables(regions, folder, local):
    """Runs the example in processes that have the variables of torchrun."""
    variables = {"LOCAL_WORLD_SIZE": str(local), "MASTER_PORT": str(free_port())}
    options = {"one_world": True, "arguments": [folder]}
    with started_trainers(regions, HSDP, **options, **variables) as trainers:
        for trainer in trainers:
            trainer.wait()


@pytest.mark.parametrize(("local", "is_torchrun"), [(2, True), pytest.param(3, False, marks=pytest.mark.long)])
def test_the_hsdp_example_trains_as_one_process(reference, tmp_path, local, is_torchrun):
    with LocalRegions(ranks=(local, local)) as regions:
        if is_torchrun:
            run_torchruns(regions, tmp_path, HSDP, tmp_path / "out")
        else:
            train_by_variables(regions, tmp_path / "out", local)
        assert_trained_as_one_process(reference, tmp_path / "out")
        assert_shards_cross_once(regions, reference, local)


@pytest.mark.long
@pytest.mark.skipif(not FINDS_BACKENDS, reason="this PyTorch finds no backend by its entry point")
def test_the_fsdp_example_trains_as_one_process(reference, tmp_path):
    """Each site has a torchrun of its own, and each of its trainers a job."""
    jobs = ("train-0", "train-1")
    with LocalRegions(ranks=(1, 1), jobs=jobs) as regions, contextlib.ExitStack() as stack:
        agents = []
        for region in regions.ranks:
            words = ["--standalone", "--nproc-per-node=2", EXAMPLES / "fsdp.py"]
            place = [regions.region_file(region), region, tmp_path / "out"]
            agents.append(Trainer([TORCHRUN_PROGRAM, *words, *place], {}))
            stack.callback(agents[-1].kill)
        for agent in agents:
            agent.wait()
        assert_trained_as_one_process(reference, tmp_path / "out")
        assert_shards_cross_once(regions, reference, 2)


@pytest.mark.parametrize("package", ["lightning", "accelerate"])
def test_the_example_of_a_package_trains_as_one_process(reference, tmp_path, package):
    pytest.importorskip(package, reason=f"long: cargo xtask test --long, which installs {package}")
    with LocalRegions(ranks=(2, 2)) as regions:
        run_torchruns(regions, tmp_path, EXAMPLES / f"{package}_ddp.py", tmp_path / "out")
    assert_trained_as_one_process(reference, tmp_path / "out")


def assert_trained_as_one_process(reference, folder):
    """Asserts that both sites saved the weights of one process, and the same bits."""
    sites = [torch.load(folder / f"site-{site}.pt") for site in range(2)]
    assert sites[0].keys() == sites[1].keys() == reference.keys()
    for name, weight in reference.items():
        assert torch.equal(sites[0][name], sites[1][name]), name
        torch.testing.assert_close(sites[0][name], weight, rtol=0, atol=1e-6, msg=name)


def assert_shards_cross_once(regions, reference, local):
    """Asserts that each of `local` shards in a site crossed once in a step."""
    shard = sum(weight.nbytes for weight in reference.values()) / local
    for each in sent_bytes(regions):
        assert shard <= each / (local * STEPS) <= BYTES_RATIO_MAX * shard
