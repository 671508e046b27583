"""Trainers of several sites as processes, numbered by a launcher for each site or by one for all.

The launcher is torchrun itself, or variables as it sets them.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryFile

import torch

from torch_forks import ForkedScript

#: Limit on the life of one trainer, in seconds; an idle machine needs 20 s.
TIMEOUT_S = 300
#: The program torchrun, in a process that has PyTorch already.
TORCHRUN_PROGRAM = Path(__file__).parent / "pytorch/torchrun/torchrun_agent.py"
#: A program that runs a script after an import.
IMPORT_AND_RUN = (
    "import runpy, sys; __import__(sys.argv[1]); sys.argv = sys.argv[2:]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
#: Imports that a script needs before PyTorch 2.15, which finds backends by their entry points.
FINDS_BACKENDS = hasattr(torch.distributed.Backend, "_ensure_backend_registered")
IMPORTS = () if FINDS_BACKENDS else ("landbridge.torch",)


class Trainer:
    """A process that runs a script and prints JSON objects, one a line.

    Most are forked, with PyTorch there before the script. `is_command` starts Python anew, as a
    launcher does. `words` are the script and its arguments. `imports` names modules that are
    imported before the script.
    """

    def __init__(self, words, variables, *, is_command=False, imports=()):
        words, variables = list(map(str, words)), {"OMP_NUM_THREADS": "1", **variables}
        self._out, self._errors = TemporaryFile(), TemporaryFile()
        files = {"stdout": self._out, "stderr": self._errors}
        if is_command:
            line = [sys.executable, "-c", IMPORT_AND_RUN, *imports, *words]
            line = line if imports else [sys.executable, *words]
            self._process = subprocess.Popen(line, env={**os.environ, **variables}, **files)
        else:
            self._process = ForkedScript(*words, variables=variables, imports=imports, **files)
        self._timer = threading.Timer(TIMEOUT_S, self._process.kill)
        self._timer.start()

    def wait(self):
        """Returns the objects that the process has printed. Fails unless it succeeds."""
        code, out = self._process.wait(), read_all(self._out)
        assert code == 0, f"{code}\n{out[-2000:]}\n{read_all(self._errors)[-4000:]}"
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def fail(self):
        """Returns the last lines of stderr of a process that fails."""
        code, errors = self._process.wait(), read_all(self._errors)[-4000:]
        assert code > 0, errors
        return errors

    def kill(self):
        """Ends the process if it still runs."""
        self._timer.cancel()
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._errors.close()


def read_all(file):
    """Returns the text of a file from its beginning."""
    file.seek(0)
    return file.read().decode("utf-8", "replace")


@contextlib.contextmanager
def started_trainers(
    regions,
    script,
    *,
    one_world=False,
    is_command=False,
    arguments=(),
    imports=IMPORTS,
    **variables,
):
    """Yields a process for each rank, which gets the arguments.

    With `one_world` one launcher numbers all ranks, and their store is reached from all sites. Else
    each site has its own numbers. With `is_command` the processes are not forked.
    """
    total, port = sum(regions.ranks.values()), free_port()
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
                options = {"is_command": is_command, "imports": imports}
                words = [script, *arguments]
                running.append(Trainer(words, {**numbers, **variables}, **options))
                rank += 1
        yield running
    finally:
        for trainer in running:
            trainer.kill()


def run_torchruns(regions, folder, script, *arguments, options=(), **variables):
    """Runs a script by a torchrun in each site, which meet through the gateways, and waits until
    all have succeeded. The folder is for files of this function."""
    path = [os.environ.get("PYTHONPATH", "")]
    if not entry_points(group="torchrun.handlers"):
        path.append(str(written_entry_point(folder)))
    agents = []
    try:
        for region, count in regions.ranks.items():
            words = ["--rdzv-backend=landbridge", f"--rdzv-endpoint={regions.region_file(region)}"]
            words += [f"--nproc-per-node={count}", *options, script, *arguments]
            found = {"PYTHONPATH": os.pathsep.join(filter(None, path)), **variables}
            agents.append(Trainer([TORCHRUN_PROGRAM, *words], found))
        for agent in agents:
            agent.wait()
    finally:
        for agent in agents:
            agent.kill()


def written_entry_point(folder):
    """Returns a folder with the entry point of an installed package."""
    info = folder / "path" / "of_this_test-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: of-this-test\nVersion: 0\n", "utf-8"
    )
    line = "landbridge = landbridge.torch._c10d.rendezvous:load_rendezvous"
    (info / "entry_points.txt").write_text(f"[torchrun.handlers]\n{line}\n", "utf-8")
    return info.parent


def free_port():
    """Returns a TCP port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def results_of(trainers):
    """Returns the last object that each process has printed, in the order of ranks."""
    return sorted((trainer.wait()[-1] for trainer in trainers), key=lambda result: result["rank"])


def changed_script(original, folder, changed):
    """Returns a copy of a script with some texts replaced, in another folder."""
    text = original.read_text("utf-8")
    for before, after in changed.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    script = folder / "script.py"
    script.write_text(text, "utf-8")
    return script


def train_in_one_rank(script):
    """Returns the weights that a training script has in one process."""
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    variables["MASTER_PORT"] = str(free_port())
    trainer = Trainer([script], variables)
    try:
        return torch.tensor(trainer.wait()[-1]["weights"])
    finally:
        trainer.kill()


def assert_like_one_process(results, reference):
    """Asserts equal weights on all ranks, and those of one process up to rounding."""
    weights = [result["weights"] for result in results]
    assert len(weights) == 4 and weights == [weights[0]] * 4
    torch.testing.assert_close(torch.tensor(weights[0]), reference, rtol=0, atol=1e-6)


def sent_bytes(regions):
    """Returns the bytes that the gateway of each region has sent to the other one."""
    answers = [read_status(regions, region) for region in regions.ranks]
    return [sum(peer["sent_bytes"] for peer in answer["peers"]) for answer in answers]


def read_status(regions, region):
    """Returns what the gateway of a region says of itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{regions._status[region]}/status") as answer:
        return json.load(answer)
