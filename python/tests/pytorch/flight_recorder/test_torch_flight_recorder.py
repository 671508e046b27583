"""PyTorch's own tool names the rank at fault by the flight recorders of all ranks."""

import pickle
import subprocess
from types import SimpleNamespace

import numpy
import pytest

import landbridge
from conftest import attached_groups, call_for_all
from landbridge._local_regions import LocalRegions

fr_trace = pytest.importorskip("torch.distributed.flight_recorder.fr_trace")

#: How long ranks wait for one that does not post, in seconds.
MISSING_AFTER_S = 1.0


def write_traces_of_clients(groups, _, folder):
    """Writes the files of all ranks by the ranks themselves."""
    folder.mkdir()
    for group in groups:
        landbridge.dump(folder / "rank_", format="torch", group=group)
    return folder


def write_traces_of_gateways(_, running, folder):
    """Writes the files of all ranks by the gateways' recorders."""
    configs = [f"--config={running.region_file(region)}" for region in running.ranks]
    command = [running.program, "dump", *configs, "--torch", str(folder)]
    told = subprocess.run(command, capture_output=True, check=True, text=True)
    assert f"`torchfrtrace --prefix rank_ {folder}/train` compares them" in told.stdout
    return folder / "train"


@pytest.fixture(
    params=[write_traces_of_clients, write_traces_of_gateways], ids=["clients", "gateways"]
)
def four_ranks(request):
    """Two ranks in each of two regions, and who writes the files for PyTorch's tool."""
    with LocalRegions(ranks=(2, 2)) as running, attached_groups(running) as groups:
        yield SimpleNamespace(groups=groups, running=running, write=request.param)


def torch_verdict(ranks, folder):
    """Returns the collectives that PyTorch's tool sees in the files of all ranks."""
    traces = ranks.write(ranks.groups, ranks.running, folder / "traces")
    fr_trace.main([str(traces), "--prefix", "rank_", "--output", str(folder / "verdict")])
    _, database = pickle.loads((folder / "verdict").read_bytes())
    return database.collectives


def step(group):
    """Posts collectives of several kinds, which all succeed."""
    group.all_reduce(numpy.ones((2, 3), "float32"))
    group.broadcast(numpy.ones(5, "int64"), 1)
    group.all_gather(numpy.ones(group.rank, "f8"), counts=list(range(4)))
    group.all_to_all(numpy.ones(4, "u1"))
    group.reduce(numpy.ones(7, "float32"), 2)
    group.barrier()


def test_torch_finds_nothing_wrong_with_a_healthy_job(four_ranks, tmp_path):
    call_for_all(four_ranks.groups, step)
    collectives = torch_verdict(four_ranks, tmp_path)
    names = [collective.collective_name for collective in collectives]
    assert names[-6:] == [
        "nccl:all_reduce",
        "nccl:broadcast",
        "nccl:all_gather_v",
        "nccl:all_to_all",
        "nccl:reduce",
        "nccl:barrier",
    ]
    assert all(found.pass_check and not found.missing_ranks for found in collectives)


def test_torch_names_the_rank_that_did_not_post(four_ranks, tmp_path):
    def post(group):
        step(group)
        if group.rank != 2:
            with pytest.raises(landbridge.CollectiveFailed):
                group.all_reduce(numpy.ones(8), timeout=MISSING_AFTER_S)

    call_for_all(four_ranks.groups, post)
    *healthy, last = torch_verdict(four_ranks, tmp_path)
    assert last.missing_ranks == {2}
    assert not any(found.missing_ranks for found in healthy)


@pytest.mark.parametrize(
    ("other", "state"),
    [
        (lambda group: group.all_reduce(numpy.ones(9)), "SIZE_OR_SYNTAX_MISMATCH"),
        (lambda group: group.broadcast(numpy.ones(8)), "COLLECTIVE_TYPE_MISMATCH"),
        (lambda group: group.all_reduce(numpy.ones(8, "f4")), "COLLECTIVE_DTYPE_MISMATCH"),
    ],
    ids=["size", "kind", "dtype"],
)
def test_torch_names_the_rank_that_posted_something_else(four_ranks, tmp_path, other, state):
    def post(group):
        step(group)
        with pytest.raises(landbridge.RanksDisagree):
            if group.rank == 3:
                other(group)
            else:
                group.all_reduce(numpy.ones(8))

    call_for_all(four_ranks.groups, post)
    last = torch_verdict(four_ranks, tmp_path)[-1]
    # The tool compares with the first file that it reads, which may be that of this rank.
    wrong = last.mismatch_collectives
    assert set(wrong) in ({3}, {0, 1, 2})
    assert {found.type_of_mismatch.state.name for found in wrong.values()} == {state}
