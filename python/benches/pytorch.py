"""Measures training steps over emulated links between two sites, beside the same over Gloo.

`python python/benches/pytorch.py [--quick]` prints one JSON object. It needs root, for network
namespaces. Computing is a sleep, as on an accelerator, so the gateways have the processors.
"""

import itertools
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple, Optional

import torch

from landbridge._local_regions import RelayLink
from pytorch_steps import SITE_RANKS
from site_lab import ADDRESSES, DEVICE, SITES, SiteLab, all_congestion_controls

#: Whether the short version runs, with less data and fewer steps.
QUICK = "--quick" in sys.argv
#: The emulated links.
LINKS = (RelayLink("500 Mbit/s", "2 ms", "0 %"), RelayLink("500 Mbit/s", "80 ms", "0.1 %"))
#: How a model is spread over the processes: copied to all, or sharded in each site.
KINDS = ("ddp", "hsdp")
#: What carries gradients: the backend, and the congestion control of its TCP.
WAYS = (("landbridge", None), ("gloo", "cubic"), ("gloo", "bbr"))
#: Size of all gradients of the model.
GRADIENT_BYTES = (16 if QUICK else 64) << 20
#: Seconds of computing in a step: about half of what the gradients take on the link.
COMPUTE_SECONDS = 0.13 if QUICK else 0.5
#: Steps of a run before those that count: DDP lays out its buckets in the first two.
FIRST_STEPS = 2
#: Steps of a run that count.
STEPS = 3 if QUICK else 5
#: Runs of each way over each link. All ways take turns, so that a busy spell meets all.
ROUNDS = 1 if QUICK else 3
#: Runs at most, for each that the emulator calls void.
ATTEMPTS = 1 if QUICK else 3
#: Seconds in which the processes of a run begin their first step; an idle machine needs 30.
START_LIMIT_S = 300
#: Seconds from the first step on after which a run is cut.
CUT_AFTER_S = 60 if QUICK else 240


def main():
    # A bench that is ended removes its namespaces, as one that is interrupted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cells = {place: Cell(*place) for place in itertools.product(LINKS, KINDS, WAYS)}
    with all_congestion_controls():
        for _ in range(ROUNDS):
            for cell in cells.values():
                if not cell.is_cut:
                    cell.measure()
    report = {
        "quick": QUICK,
        "torch": torch.__version__,
        "gradient_bytes": GRADIENT_BYTES,
        "compute_seconds": COMPUTE_SECONDS,
        "site_ranks": SITE_RANKS,
        "rounds": ROUNDS,
        "cut_after_seconds": CUT_AFTER_S,
        "rate": LINKS[0].rate,
        "cells": [cell.report() for cell in cells.values()],
    }
    print(json.dumps(report))


class StepTimes(NamedTuple):
    """The steps of one run.

    Attributes:
        seconds: Those of each step that counts, of the slowest process.
        at_least: Where the run was cut, how long the step under way had taken.
        void: Why the emulator calls the run void.
    """

    seconds: list[float]
    at_least: Optional[float]
    void: Optional[str]


class Cell:
    """Steps of one kind of model, carried in one way over one link."""

    def __init__(self, link, kind, way):
        self._link, self._kind, self._way = link, kind, way
        self._runs = []

    @property
    def is_cut(self):
        """Whether a run was cut."""
        return any(run.at_least is not None for run in self._runs)

    def measure(self):
        """Adds a run. Repeats it while it is void, and then adds the last."""
        for _ in range(ATTEMPTS):
            run = self._run_in_lab()
            name = " ".join([self._link.rtt, self._link.loss, self._kind, *filter(None, self._way)])
            print(f"{name}: {run}", file=sys.stderr, flush=True)
            if run.void is None:
                break
        self._runs.append(run)

    def report(self):
        """Returns the figures: of void runs where there are no others."""
        good = [run for run in self._runs if run.void is None]
        seconds = [each for run in good or self._runs for each in run.seconds]
        cut = [run.at_least for run in self._runs if run.at_least is not None]
        figures = {"seconds": None, "least_seconds": None, "most_seconds": None}
        if seconds:
            figures["seconds"] = statistics.median(seconds)
            figures.update(least_seconds=min(seconds), most_seconds=max(seconds))
        return {
            "rtt": self._link.rtt,
            "loss": self._link.loss,
            "kind": self._kind,
            "backend": self._way[0],
            "congestion_control": self._way[1],
            **figures,
            "steps": len(seconds),
            "at_least_seconds": max(cut, default=None),
            "void": None if good else self._runs[-1].void,
        }

    def _run_in_lab(self):
        """Returns the steps of a run, in sites of its own."""
        backend, control = self._way
        with SiteLab(self._link, ranks=SITE_RANKS) as lab:
            if backend == "landbridge":
                lab.start_gateways()
            else:
                lab.set_congestion_control(control)
            steps = str(FIRST_STEPS + STEPS)
            script = Path(__file__).with_name("pytorch_steps.py")
            words = [sys.executable, script, self._kind, backend, GRADIENT_BYTES, COMPUTE_SECONDS]
            processes, outputs = [], []
            for rank in range(len(SITES) * SITE_RANKS):
                site, variables = SITES[rank // SITE_RANKS], rank_variables(lab, backend, rank)
                outputs.append(lab.folder / f"rank-{rank}.out")
                with open(outputs[-1], "wb") as out:
                    process = lab.start(site, *words, steps, stdout=out, env=variables)
                processes.append(process)
            seconds, at_least = wait_for_steps(processes, outputs)
            return StepTimes(seconds, at_least, lab.void_reason())


def rank_variables(lab, backend, rank):
    """Returns the environment of a process, by its number over both sites."""
    site = SITES[rank // SITE_RANKS]
    found = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": DEVICE}
    # Namespaces have no names of hosts, of which PyTorch warns.
    found["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    found.update(MASTER_ADDR=ADDRESSES["east"], MASTER_PORT="29500")
    number, size = rank, len(SITES) * SITE_RANKS
    if backend == "landbridge":
        # Each site has a launcher of its own.
        number, size = rank % SITE_RANKS, SITE_RANKS
        found.update(LANDBRIDGE_CONFIG=str(lab.region_file(site)))
    return {**found, "RANK": str(number), "WORLD_SIZE": str(size)}


def wait_for_steps(processes, outputs):
    """Returns the seconds of the steps that count and, where the run was cut, the seconds that the
    step under way had taken."""
    started, begun, is_cut = time.monotonic(), None, False
    while any(process.poll() is None for process in processes) and not is_cut:
        if any(process.returncode for process in processes):
            raise SystemExit("a process of the training failed")
        now = time.monotonic()
        if begun is None and all(output.stat().st_size for output in outputs):
            begun = now
        if begun is None and now > started + START_LIMIT_S:
            raise SystemExit(f"no step had begun after {START_LIMIT_S} s")
        is_cut = begun is not None and now > begun + CUT_AFTER_S
        time.sleep(0.05)
    if not is_cut and any(process.returncode for process in processes):
        raise SystemExit("a process of the training failed")
    now = time.monotonic()
    lines = [list(map(json.loads, output.read_text("utf-8").splitlines())) for output in outputs]
    done = [[line["seconds"] for line in of_rank if "seconds" in line] for of_rank in lines]
    slowest = list(map(max, zip(*done)))[FIRST_STEPS:]
    under_way = min(of_rank[-1].get("begun", now) for of_rank in lines)
    return slowest, now - under_way if is_cut else None


if __name__ == "__main__":
    main()
