"""Every collective with tensors on a device that does its work late, and without each of the waits.

A mutant is the package with one wait taken out. It must give a wrong number.
"""

import shutil
from pathlib import Path

import pytest

import landbridge
from landbridge._local_regions import LocalRegions

torch = pytest.importorskip("torch")

from site_processes import Trainer, results_of, started_trainers  # noqa: E402

SCRIPT = Path(__file__).parents[1] / "c10d/collectives_script.py"
#: The files with all waits for a device, and the line of each.
COPIES, FLATS = "torch/_device_copies.py", "torch/_c10d/flat_tensors.py"
MUTANTS = {
    "of a copy for the tensor": (COPIES, "            self._out.wait_event(given)\n"),
    "of a post for the copy": (FLATS, "            event.synchronize()\n"),
    "of a result for the tensor": (COPIES, "            self._in.wait_event(given)\n"),
    "of a work for the result": (FLATS, "            arrival.synchronize()\n"),
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
    # The script imports the package itself.
    options = {"one_world": True, "arguments": ["late", package], "imports": ()}
    return started_trainers(regions, SCRIPT, **options, LANDBRIDGE_ARENA="4 MiB")


def test_collectives_wait_for_a_device_that_works_late(regions):
    package = Path(landbridge.__file__).parents[1]
    with run_on_late_device(regions, package) as trainers:
        results = results_of(trainers)
    assert [len(result["cases"]) for result in results] == [15] * 4
    # The thread that calls collectives goes on at once: those of landbridge wait for the device.
    for result in results:
        assert result["host_waits"] and "MainThread" not in result["host_waits"]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_missing_wait_for_a_device_is_a_wrong_number(regions, mutant, tmp_path):
    name, line = MUTANTS[mutant]
    shutil.copytree(Path(landbridge.__file__).parent, tmp_path / "landbridge")
    file = tmp_path / "landbridge" / name
    text = file.read_text("utf-8")
    assert text.count(line) == 1
    file.write_text(text.replace(line.strip(), "pass"), "utf-8")
    with run_on_late_device(regions, tmp_path) as trainers:
        assert "AssertionError" in trainers[0].fail()


def test_each_part_of_a_long_tensor_is_waited_for_alone():
    trainer = Trainer([Path(__file__).with_name("parts_script.py")], {})
    try:
        assert trainer.wait() == [{"waits": [0, 1, 2, 3, 4]}]
    finally:
        trainer.kill()
