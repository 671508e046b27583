"""The training script `examples/hsdp.py`, by the command of docs/pytorch.md, and in one process."""

from pathlib import Path

import pytest

from landbridge._local_regions import LocalRegions

torch = pytest.importorskip("torch")

from site_processes import (  # noqa: E402
    free_port,
    run_torchruns,
    sent_bytes,
    started_trainers,
)

EXAMPLE = Path(__file__).parents[4] / "examples/hsdp.py"
#: Steps of the example.
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
    with started_trainers(regions, EXAMPLE, **options, **variables) as trainers:
        for trainer in trainers:
            trainer.wait()


@pytest.mark.parametrize(("local", "is_torchrun"), [(2, True), (3, False)])
def test_the_hsdp_example_trains_as_one_process(reference, tmp_path, local, is_torchrun):
    """Each rank's shard crosses once in a step."""
    with LocalRegions(ranks=(local, local)) as regions:
        if is_torchrun:
            run_torchruns(regions, tmp_path, EXAMPLE, tmp_path / "out")
        else:
            train_by_variables(regions, tmp_path / "out", local)
        sent = sent_bytes(regions)
    sites = [torch.load(tmp_path / f"out/site-{site}.pt") for site in range(2)]
    assert sites[0].keys() == sites[1].keys() == reference.keys()
    for name, weight in reference.items():
        assert torch.equal(sites[0][name], sites[1][name]), name
        torch.testing.assert_close(sites[0][name], weight, rtol=0, atol=1e-6, msg=name)
    shard = sum(weight.nbytes for weight in reference.values()) / local
    for each in sent:
        assert shard <= each / (local * STEPS) <= BYTES_RATIO_MAX * shard
