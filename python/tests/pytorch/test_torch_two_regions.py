"""The training script `examples/two_regions.py`, as four processes over two gateways."""

import contextlib
import os
import threading

import pytest

from landbridge._local_regions import RelayLink, LocalRegions
from torch_forks import ForkedScript
from two_regions_script import EPOCH_STEPS, EXAMPLE, write_script

pytest.importorskip("torch")

#: Limit on the life of one trainer, in seconds; an idle machine needs 30 s.
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def regions():
    """Two regions of two ranks each. East's ranks are three times as fast as west's."""
    link = RelayLink(rtt="10 ms")
    with LocalRegions(ranks=(2, 2), speeds=(3.0, 3.0, 1.0, 1.0), link=link) as running:
        yield running


class Trainer:
    """A process that runs the example."""

    def __init__(self, regions, rank, script=EXAMPLE):
        reader, writer = os.pipe()
        self._output = open(reader, encoding="utf-8")
        with open(writer, "wb") as stdout:
            config, variables = str(regions.region_file_of_rank(rank)), {"RANK": str(rank)}
            self._process = ForkedScript(script, config, variables=variables, stdout=stdout)
        self._timer = threading.Timer(TIMEOUT_S, self._process.kill)
        self._timer.start()
        self.lines = []

    def read_until(self, text):
        """Returns the next line that contains `text`."""
        for line in self._output:
            self.lines.append(line.rstrip())
            if text in line:
                return self.lines[-1]
        raise AssertionError(f"no line contains {text!r}: {self.lines[-5:]}")

    def wait(self):
        """Returns the exit code."""
        return self._process.wait()

    def kill(self):
        self._timer.cancel()
        self._process.kill()
        self._process.wait()
        self._output.close()


@contextlib.contextmanager
def trainers(regions, script=EXAMPLE):
    """All four trainers, by rank. A test may replace one of them."""
    running = [Trainer(regions, rank, script) for rank in range(4)]
    try:
        yield running
    finally:
        for trainer in running:
            trainer.kill()


def test_lost_trainer_and_gateway_leave_the_final_weights_unchanged(regions):
    with trainers(regions) as running:
        undisturbed = [trainer.read_until("weights ") for trainer in running]
    assert len(set(undisturbed)) == 1
    with trainers(regions) as running:
        running[0].read_until("step 40:")
        running[3].kill()
        assert "rank 3" in running[0].read_until("failed: rank lost")
        running[3] = Trainer(regions, 3)
        running[0].read_until("step 120:")
        regions.kill_process("east")
        assert "step 1" in running[1].read_until("failed: gateway lost")
        regions.start_gateway("east")
        disturbed = [trainer.read_until("weights ") for trainer in running]
    assert disturbed == undisturbed
    assert not any("step 1:" in line for line in running[3].lines), "it continues where others are"


@pytest.mark.parametrize("region", ["east", "west"])
def test_a_gateway_killed_after_the_last_step_ends_no_trainer(region, regions, tmp_path):
    """One epoch has the same end as eight."""
    with trainers(regions, write_script(tmp_path, 1)) as running:
        running[0].read_until(f"step {EPOCH_STEPS}:")
        regions.kill_process(region)
        regions.start_gateway(region)
        weights = [trainer.read_until("weights ") for trainer in running]
        assert len(set(weights)) == 1
        assert [trainer.wait() for trainer in running] == [0] * 4
