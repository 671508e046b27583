"""Some of PyTorch's own distributed tests over two sites; the command of the page runs all."""

import subprocess
import sys
import unittest
from pathlib import Path

import pytest

pytest.importorskip("torch")

from differences import DIFFERENCES  # noqa: E402
from distributed_suite import run_test  # noqa: E402

#: Names of the tests, of every kind of call. The command alone runs the slowest ones.
NAMES = (
    "test_DistributedDataParallelCPU",
    "test_all_gather_coalesced_group",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_full_group_sum",
    "test_all_to_all_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_destroy_full_group",
    "test_gather_group",
    "test_reduce_group_product",
    "test_scatter_object_list",
    "test_send_recv_with_tag",
)


def test_pytorchs_own_tests_pass_over_two_sites():
    script = Path(__file__).with_name("run_distributed_tests.py")
    words = [sys.executable, str(script), "--placement", "two sites", *NAMES]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert done.stdout.split("\n")[:-1] == [f"two sites {name} passed " for name in NAMES]


class FailingTest(unittest.TestCase):
    """A test with the name of one that differs."""

    __test__ = False

    text = ""

    def test_sparse_all_reduce_sum(self):
        if self.text:
            raise RuntimeError(self.text)


def test_a_difference_with_another_text_is_a_failure(monkeypatch):
    name, placement = "test_sparse_all_reduce_sum", "two sites"
    expected = DIFFERENCES[placement][name]
    assert run_test(FailingTest, name, placement).text.startswith("it passes")
    monkeypatch.setattr(FailingTest, "text", f"landbridge.{expected.text}; and more")
    assert run_test(FailingTest, name, placement) == ("differs", expected.reason)
    monkeypatch.setattr(FailingTest, "text", "a rank hangs")
    assert run_test(FailingTest, name, placement).verdict == "failed"
