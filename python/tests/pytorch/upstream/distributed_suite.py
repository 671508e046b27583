"""PyTorch's own distributed tests, which its wheel ships, over the backend landbridge.

Each test runs as PyTorch runs it: in four processes, whose default process group has them all. The
processes are forked from this one, which has imported PyTorch once.
"""

import importlib
import multiprocessing
import os
import unittest
from typing import NamedTuple
from unittest import mock

import torch
from torch.testing._internal import common_distributed, common_utils

import landbridge.torch  # noqa: F401  It registers the backend for PyTorch 2.9.
from differences import DIFFERENCES

#: The number of ranks in each region. Tests need four ranks, or an even number.
PLACEMENTS = {"one site": (4,), "two sites": (2, 2)}
#: 120 s: the limit on one test. The slowest takes 20 s on an idle machine.
TEST_TIMEOUT_S = 120
#: Beginnings of the reasons by which PyTorch leaves tests to another backend, though landbridge
#: serves what they call.
LIFTED_REASONS = ("Only MPI supports CPU all_to_all_single", "Only MPI supports all_to_all")
#: Beginning of the names of tests that do nothing, and fail, with a backend that they do not know.
TAKEN_FOR_GLOO = "test_accumulate_gradients_no_sync"


class Outcome(NamedTuple):
    """The outcome of one test."""

    #: `passed`, `skipped` by PyTorch, `differs` as `differences` says, or `failed`.
    verdict: str
    #: The reason of a skip or a difference, or the text of a failure.
    text: str


def load_suite():
    """Returns PyTorch's module with the tests.

    It takes landbridge for Gloo while it is loaded, so that it skips nothing that Gloo serves, and
    for what it is from then on.
    """
    variables = {"BACKEND": "gloo", "WORLD_SIZE": "4", "OMP_NUM_THREADS": "1"}
    os.environ.update({"INIT_METHOD": "file://", "TEMP_DIR": "", **variables})
    skip_if = common_utils.skip_but_pass_in_sandcastle_if

    def skip_unless_lifted(condition, why):
        return skip_if(condition and not why.startswith(LIFTED_REASONS), why)

    def skip_without_gpus(count, **_):
        return unittest.skip("needs a GPU for each rank")

    changed = {
        "skip_if_lt_x_gpu": skip_without_gpus,
        "skip_if_no_gpu": skip_without_gpus(1),
        # It asks for eight ranks, where tests need three.
        "skip_if_small_worldsize": lambda function: function,
        "TIMEOUT_DEFAULT": TEST_TIMEOUT_S,
        "TIMEOUT_OVERRIDE": {},
    }
    for name, value in changed.items():
        setattr(common_distributed, name, value)
    with mock.patch.object(common_utils, "skip_but_pass_in_sandcastle_if", skip_unless_lifted):
        suite = importlib.import_module("torch.testing._internal.distributed.distributed_test")
    os.environ["BACKEND"] = suite.BACKEND = "landbridge"
    torch.set_num_threads(1)
    return suite


def names_of_tests(suite):
    """Returns the names of all tests."""
    return [name for name in dir(suite.DistributedTest._DistTestBase) if name.startswith("test_")]


def make_test_class(suite, regions):
    """Returns PyTorch's tests as a class of `unittest`, over the gateways of some regions."""

    class LandbridgeTests(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        """The tests, each with a file for what a rank prints."""

        def setUp(self):
            super().setUp()
            suite.INIT_METHOD = os.environ["INIT_METHOD"]
            self._start_processes(multiprocessing.get_context("fork").Process)

        def tearDown(self):
            for process in self.processes:
                process.kill()
                process.join()
            super().tearDown()

        @classmethod
        def _run(cls, rank, test_name, file_name, pipe, **options):
            os.environ["LANDBRIDGE_CONFIG"] = str(regions.region_file_of_rank(rank))
            os.environ["LANDBRIDGE_ARENA"] = "64 MiB"
            with open(regions.folder / f"rank-{rank}.out", "w", encoding="utf-8") as printed:
                for descriptor in (1, 2):
                    os.dup2(printed.fileno(), descriptor)
            super()._run(rank, test_name, file_name, pipe, **options)

        def run_test(self, test_name, parent_pipe):
            if test_name.startswith(TAKEN_FOR_GLOO):
                suite.BACKEND = "gloo"
            super().run_test(test_name, parent_pipe)

    return LandbridgeTests


def run_test(kind, name, placement):
    """Runs a test of a class with ranks in some placement. Returns its outcome."""
    result, difference = unittest.TestResult(), DIFFERENCES[placement].get(name)
    # PyTorch's class prints what it does with processes.
    with open(os.devnull, "w", encoding="utf-8") as nowhere, mock.patch("sys.stdout", nowhere):
        kind(name).run(result)
    for _, why in result.skipped:
        return Outcome("skipped", why)
    for _, text in result.failures + result.errors:
        if difference is None or difference.text not in text:
            return Outcome("failed", text)
        return Outcome("differs", difference.reason)
    if difference is not None:
        return Outcome("failed", f"it passes: take it out of the differences ({difference.reason})")
    return Outcome("passed", "")
