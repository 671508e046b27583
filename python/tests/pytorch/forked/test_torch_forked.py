"""Processes that were forked from one with process groups over sites."""

import contextlib
from pathlib import Path

import pytest

from landbridge._local_regions import LocalRegions

pytest.importorskip("torch")

from site_processes import results_of, started_trainers  # noqa: E402

#: What calls in a forked process do, in their order.
OUTCOMES = {
    "wait": "ForkedProcess",
    "get_future": "ForkedProcess",
    "all_reduce": "ForkedProcess",
    "subgroup": "ForkedProcess",
    "barrier": "ForkedProcess",
    "destroy": "returned",
    "group close": "returned",
}


def test_a_forked_process_ends_and_leaves_its_parent_alone():
    script = Path(__file__).parent / "forked_script.py"
    with contextlib.ExitStack() as stack:
        regions = stack.enter_context(LocalRegions(ranks=(1, 1)))
        started = started_trainers(regions, script, one_world=True, is_command=True)
        results = results_of(stack.enter_context(started))
    for result in results:
        assert (result["outcomes"], result["code"]) == (OUTCOMES, 0)
        assert result["received"] == [2.0 - result["rank"]] * 3
        assert result["total"] == [2.0] * 3
