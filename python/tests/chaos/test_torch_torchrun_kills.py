"""A site that is killed under torchrun; the program `torchrun_kills.py` kills more."""

import pytest

pytest.importorskip("torch")

from torchrun_kills import run_kills  # noqa: E402


def test_a_killed_site_comes_back_under_torchrun():
    report = run_kills("hsdp", kills=1, seed=1, site_ranks=1)
    assert report["kills"] == ["site"] and not report["wrong"], report["wrong"]
