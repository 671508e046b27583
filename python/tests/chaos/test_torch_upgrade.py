"""An upgrade from an older program under training; `cargo xtask upgrade` builds one and runs it."""

import os

import pytest

pytest.importorskip("torch")

from upgrade_run import REPLACEMENTS, run_upgrade  # noqa: E402

#: The variable that names the older program.
OLDER_PROGRAM = "LANDBRIDGE_OLDER"


def test_gateways_are_upgraded_one_after_the_other_under_training():
    older = os.environ.get(OLDER_PROGRAM)
    if not older:
        pytest.skip(f"{OLDER_PROGRAM} names no older program; cargo xtask upgrade builds one")
    report = run_upgrade(older)
    assert not report["wrong"], "\n".join(report["wrong"])
    assert len(report["states"]) == len(REPLACEMENTS) + 1
    # Each replacement of a gateway ends an epoch, most of them in the middle of a step.
    assert all(failed >= 1 for failed in report["failed_steps"]), report


def test_a_program_is_no_older_one_of_itself(regions):
    report = run_upgrade(regions.program)
    assert len(report["wrong"]) == 1 and "is the program that is to be tested" in report["wrong"][0]
