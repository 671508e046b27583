"""Trainers of several sites as processes, numbered by a launcher for each site or by one for all."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading

import torch

#: Limit on the life of one trainer, in seconds; an idle machine needs 20 s.
TIMEOUT_S = 300
#: A program that runs a script, after the import that PyTorch before 2.15 needs.
IMPORT_AND_RUN = (
    "import runpy, sys, landbridge.torch; sys.argv = sys.argv[1:]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
#: Whether this PyTorch finds backends by their entry points.
FINDS_BACKENDS = hasattr(torch.distributed.Backend, "_ensure_backend_registered")


class Trainer:
    """A process that runs a script and prints JSON objects, one a line."""

    def __init__(self, words, variables):
        self._process = subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        )
        self._timer = threading.Timer(TIMEOUT_S, self._process.kill)
        self._timer.start()

    def wait(self):
        """Returns the objects that the process has printed. Fails unless it succeeds."""
        out, errors = self._process.communicate()
        assert self._process.returncode == 0, f"{out[-2000:]}\n{errors[-4000:]}"
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def fail(self):
        """Returns the last lines of stderr of a process that fails."""
        _, errors = self._process.communicate()
        assert self._process.returncode > 0, errors[-4000:]
        return errors[-4000:]

    def kill(self):
        """Ends the process if it still runs."""
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def started_trainers(regions, script, *arguments, one_world=False, only=None, **variables):
    """Yields a process for each rank.

    With `one_world` one launcher numbers all ranks, and their store is reached from all sites. Else
    each site has its own numbers. `only` names the ranks that are started.
    """
    total, port = sum(regions.ranks.values()), free_port()
    words = [str(script), *map(str, arguments)]
    if not FINDS_BACKENDS:
        words = ["-c", IMPORT_AND_RUN, *words]
    running = []
    try:
        rank = 0
        for region, count in regions.ranks.items():
            for local_rank in range(count):
                place = (rank, total) if one_world else (local_rank, count)
                numbers = {
                    "LANDBRIDGE_CONFIG": str(regions.region_file(region)),
                    "LANDBRIDGE_ARENA": "16 MiB",
                    "RANK": str(place[0]),
                    "WORLD_SIZE": str(place[1]),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                }
                if only is None or rank in only:
                    running.append(Trainer(words, {**numbers, **variables}))
                rank += 1
        yield running
    finally:
        for trainer in running:
            trainer.kill()


def free_port():
    """Returns a TCP port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def results_of(trainers):
    """Returns the last object that each process has printed, in the order of ranks."""
    return sorted((trainer.wait()[-1] for trainer in trainers), key=lambda result: result["rank"])
