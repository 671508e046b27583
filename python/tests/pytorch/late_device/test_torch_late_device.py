"""Every collective with tensors on a device that does its work late, and without each of the waits.

A mutant is the package with one wait taken out. It must give a wrong number.
"""

import shutil
from pathlib import Path

import pytest

import landbridge
from landbridge._local_regions import LocalRegions

torch = pytest.importorskip("torch")

from site_processes import results_of, started_trainers  # noqa: E402

SCRIPT = Path(__file__).parents[1] / "c10d/collectives_script.py"
#: The file with all waits for a device, and each of them with what remains of it in a mutant.
WAITS = "torch/_c10d/flat_tensors.py"
MUTANTS = {
    "of a contribution": (
        "resolved.cpu()",
        "torch.empty(resolved.shape, dtype=resolved.dtype).copy_(resolved, non_blocking=True)",
    ),
    "before a result": ("            _await_flat_tensor_device(plain)\n", ""),
    "after a result": ("        _await_flat_tensor_device(self.tensor)\n", ""),
}

pytestmark = pytest.mark.skipif(
    not hasattr(torch._C, "_acc"), reason="this PyTorch has no devices in Python"
)


@pytest.fixture(scope="module")
def regions():
    """Two regions of two ranks each."""
    with LocalRegions(ranks=(2, 2)) as running:
        yield running


def run_on_late_device(regions, package):
    """Starts the processes that call all collectives of a package with tensors on the device."""
    options = {"one_world": True, "arguments": ["late", package]}
    return started_trainers(regions, SCRIPT, **options, LANDBRIDGE_ARENA="4 MiB")


def test_collectives_wait_for_a_device_that_works_late(regions):
    package = Path(landbridge.__file__).parents[1]
    with run_on_late_device(regions, package) as trainers:
        assert [len(result["cases"]) for result in results_of(trainers)] == [15] * 4


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_missing_wait_for_a_device_is_a_wrong_number(regions, mutant, tmp_path):
    before, after = MUTANTS[mutant]
    shutil.copytree(Path(landbridge.__file__).parent, tmp_path / "landbridge")
    file = tmp_path / "landbridge" / WAITS
    text = file.read_text("utf-8")
    assert text.count(before) == 1
    file.write_text(text.replace(before, after), "utf-8")
    with run_on_late_device(regions, tmp_path) as trainers:
        assert "AssertionError" in trainers[0].fail()
