"""The c10d backend over two sites: every collective, and training by scripts that change a word."""

import re
from pathlib import Path

import pytest

from landbridge._local_regions import LocalRegions

torch = pytest.importorskip("torch")

from site_processes import (  # noqa: E402
    FINDS_BACKENDS,
    assert_like_one_process,
    changed_script,
    results_of,
    started_trainers,
    train_in_one_rank,
)


@pytest.fixture(scope="module", params=[(2, 2), (3, 1)], ids=str)
def regions(request):
    """Two regions of four ranks together."""
    with LocalRegions(ranks=request.param) as running:
        yield running


def test_collectives_over_two_sites_equal_those_of_gloo(regions):
    script, small = HERE / "collectives_script.py", {"LANDBRIDGE_ARENA": "4 MiB"}
    with started_trainers(regions, script, one_world=True, **small) as trainers:
        results = results_of(trainers)
    assert [len(result["cases"]) for result in results] == [16] * 4


HERE = Path(__file__).parent
#: The calls that are refused, each with a text of the table in docs/pytorch.md.
REFUSED = {
    "average_of_integers": "UnsupportedArray: there is no average of i64",
    "sum_of_float8": "UnsupportedArray: elements of float8_e4m3fn cannot be reduced",
    "sparse": "UnsupportedArray: the tensor of a collective has the layout torch.sparse_coo",
    "recv_anysource": "landbridge cannot receive from any rank",
    "isend_to_itself": "is this rank itself: copy the array instead",
    "high_tag": "tag 65536: accepted: whole numbers from 0 to 65535",
}
if not FINDS_BACKENDS:
    REFUSED["monitored_barrier"] = "monitored_barrier is only implemented for GLOO backend"


def test_other_calls_are_served_or_refused_as_documented(regions):
    page = (Path(__file__).parents[4] / "docs/pytorch.md").read_text("utf-8")
    with started_trainers(regions, HERE / "calls_script.py", one_world=True) as trainers:
        results = results_of(trainers)
    for result in results:
        refused = {name: how for name, how in result["outcomes"].items() if how != "served"}
        assert refused.keys() == REFUSED.keys(), refused
        for name, how in refused.items():
            assert REFUSED[name] in how and REFUSED[name] in page


@pytest.fixture(scope="module")
def reference():
    """The weights of the training script in one process, as it is."""
    return train_in_one_rank(HERE / "ddp_script.py")


def test_a_script_with_one_word_changed_trains_over_two_sites(regions, reference, tmp_path):
    changed = {'"gloo"': '"landbridge"'}
    # Each value of the flag with one of the layouts. PyTorch reads it when it is imported, and it
    # is 0 by default.
    options = {}
    if regions.ranks["west"] == 1:
        options = {"TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1", "is_command": True}
    script = changed_script(HERE / "ddp_script.py", tmp_path, changed)
    with started_trainers(regions, script, one_world=True, **options) as trainers:
        assert_like_one_process(results_of(trainers), reference)


def test_a_launcher_for_each_site_needs_one_other_line(regions, reference, tmp_path):
    changed = {
        'dist.init_process_group("gloo")': "landbridge.torch.init_process_group()",
        "import torch\n": "import torch\nimport landbridge.torch\n",
    }
    with started_trainers(
        regions, changed_script(HERE / "ddp_script.py", tmp_path, changed)
    ) as trainers:
        assert_like_one_process(results_of(trainers), reference)


def test_a_pipeline_with_one_word_changed_trains_over_two_sites(regions, tmp_path):
    script = changed_script(HERE / "pipeline_script.py", tmp_path, {'"gloo"': '"landbridge"'})
    with started_trainers(regions, script, one_world=True) as trainers:
        if torch.__version__ >= (2, 13):
            assert all(result["apart"] <= 1e-6 for result in results_of(trainers))
        else:
            # PyTorch 2.9 itself sends the number of a stage as i64, and receives it as f32.
            assert "ranks disagree on dtype" in trainers[0].fail()


def test_groups_wait_for_no_other_and_fail_alone(regions):
    mode = "env" if regions.ranks["west"] == 2 else "sites"
    options = {"one_world": mode == "env", "arguments": [mode]}
    with started_trainers(regions, HERE / "groups_script.py", **options) as trainers:
        assert [result["rank"] for result in results_of(trainers)] == [0, 1, 2, 3]


def test_a_trainer_that_ends_is_named_by_all_others(tmp_path):
    step = "        optimizer.step()\n"
    changed = {'"gloo"': '"landbridge"', step: f"{step}        rank == 3 and os._exit(3)\n"}
    script = changed_script(HERE / "ddp_script.py", tmp_path, changed)
    with LocalRegions(ranks=(2, 2)) as regions:
        with started_trainers(regions, script, one_world=True) as trainers:
            for trainer in trainers[:3]:
                assert re.search(r"landbridge\.[\w.]+: .*rank 3", trainer.fail())
