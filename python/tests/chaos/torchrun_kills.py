"""Trainers, gateways and whole sites that are killed under torchrun, with PyTorch's backend.

Each of two sites has trainers, a `torchrun` that starts them again, and a gateway. The trainers run
`killed_script.py` in DDP or HSDP. The final weights must equal those of an undisturbed run bit
for bit.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from landbridge._local_regions import LocalRegions

# This program is started in a folder of its own, below the one of what tests share.
sys.path.append(str(Path(__file__).parents[1]))

from site_processes import TORCHRUN_PROGRAM, written_entry_point  # noqa: E402
from torch_forks import ForkedScript  # noqa: E402

SCRIPT = Path(__file__).with_name("killed_script.py")
#: Trainers of each site, unless a test has fewer.
SITE_RANKS = 2
#: Steps between two kills, which show that training goes on.
KILL_STEPS = 4
#: What is killed, with `SIGKILL`.
KINDS = ("site", "trainer", "gateway")
#: The longest time until the next step is done, in seconds: four trainers that import PyTorch on
#: two busy cores need 40 s.
STEP_TIMEOUT_S = 180
#: Bytes at the end of each output that a failure shows.
TAIL_BYTES = 3000


class Wrong(Exception):
    """A promise that was not kept."""


class Site:
    """The `torchrun` of one site and its trainers."""

    def __init__(self, run, region, first_rank):
        self.run, self.region = run, region
        self.ranks = range(first_rank, first_rank + run.regions.ranks[region])
        self.output = run.folder / f"{region}.out"
        self.start()

    def start(self):
        """Starts `torchrun`, with its output behind that of before."""
        regions, variables = self.run.regions, self.run.variables
        words = ["--rdzv-backend=landbridge", f"--rdzv-endpoint={regions.region_file(self.region)}"]
        # Each kill costs every site a restart.
        words += [
            f"--nproc-per-node={len(self.ranks)}",
            "--max-restarts=1000",
            "--monitor-interval=0.1",
        ]
        words += [SCRIPT, self.run.mode, str(self.run.steps), self.run.folder]
        with open(self.output, "ab") as output:
            files = {"stdout": output, "stderr": output}
            self.process = ForkedScript(
                TORCHRUN_PROGRAM, *map(str, words), variables=variables, **files
            )

    def kill_trainer(self, rank):
        """Kills a trainer, if it runs."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((self.run.folder / f"pid-{rank}").read_text("utf-8")), signal.SIGKILL)

    def kill(self):
        """Kills `torchrun` and its trainers, which it cannot end any more."""
        self.process.kill()
        self.process.wait()
        for rank in self.ranks:
            self.kill_trainer(rank)


class Run:
    """One training over running regions."""

    def __init__(self, regions, folder, mode, steps):
        self.regions, self.folder, self.mode, self.steps = regions, folder, mode, steps
        path = filter(None, [os.environ.get("PYTHONPATH"), str(written_entry_point(folder))])
        self.variables = {
            "PYTHONPATH": os.pathsep.join(path),
            "OMP_NUM_THREADS": "1",
            "LANDBRIDGE_ARENA": "16 MiB",
        }
        self.sites, first = [], 0
        for name, count in regions.ranks.items():
            self.sites.append(Site(self, name, first))
            first += count

    def done_steps(self):
        """Returns the steps that the first rank has saved."""
        saved = [int(path.name.split("-")[2]) for path in self.folder.glob("saved-0-*")]
        return max(saved, default=0)

    def wait_for_step(self, step):
        """Waits until a step is done. Raises `Wrong` where none is for `STEP_TIMEOUT_S`."""
        before, deadline = self.done_steps(), time.monotonic() + STEP_TIMEOUT_S
        while (done := self.done_steps()) < step:
            if done != before:
                before, deadline = done, time.monotonic() + STEP_TIMEOUT_S
            if time.monotonic() > deadline:
                raise Wrong(f"no step after step {done} within {STEP_TIMEOUT_S} s")
            time.sleep(0.01)

    def strike(self, kind, dice):
        """Kills what is drawn, and starts what does not start itself."""
        site = dice.choice(self.sites)
        if kind == "trainer":
            return site.kill_trainer(dice.choice(site.ranks))
        if kind == "site":
            site.kill()
        self.regions.kill_process(site.region)
        time.sleep(dice.uniform(0, 2))
        self.regions.start_gateway(site.region)
        if kind == "site":
            site.start()

    def weights(self):
        """Waits for the end of all processes, and returns the digest of the weights."""
        self.wait_for_step(self.steps)
        for site in self.sites:
            code = site.process.wait()
            if code != 0:
                raise Wrong(f"the torchrun of {site.region} ended with {code}")
        ranks = range(sum(self.regions.ranks.values()))
        digests = {(self.folder / f"weights-{rank}").read_text("utf-8") for rank in ranks}
        if len(digests) != 1:
            raise Wrong(f"ranks differ: {sorted(digests)}")
        return digests.pop()

    def tails(self):
        """Returns the ends of all outputs and logs."""
        texts = [(site.region, site.output.read_text("utf-8", "replace")) for site in self.sites]
        texts += [
            (f"gateway of {name}", self.regions.read_log(name)) for name in self.regions.ranks
        ]
        return "\n".join(f"--- {name}:\n{text[-TAIL_BYTES:]}" for name, text in texts)

    def end(self):
        """Kills all processes that still run."""
        for site in self.sites:
            site.kill()


def run_kills(mode, kills, seed, site_ranks=SITE_RANKS, tell=lambda text: None):
    """Trains undisturbed, then beside some kills. Returns a report; its `wrong` is empty if the
    weights are equal."""
    dice, steps, begun = random.Random(seed), KILL_STEPS * (kills + 1), time.monotonic()
    kinds = [KINDS[at % len(KINDS)] for at in range(kills)]
    dice.shuffle(kinds)
    report = {"mode": mode, "kills": kinds, "seed": seed, "steps": steps, "wrong": ""}
    with contextlib.ExitStack() as stack:
        regions = stack.enter_context(LocalRegions(ranks=(site_ranks, site_ranks)))
        run = None
        try:
            digests = []
            for struck in ([], kinds):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                run = Run(regions, folder, mode, steps)
                stack.callback(run.end)
                for number, kind in enumerate(struck, 1):
                    run.wait_for_step(KILL_STEPS * number)
                    tell(f"{mode}, {time.monotonic() - begun:.0f} s: kill {number}, {kind}")
                    run.strike(kind, dice)
                digests.append(run.weights())
            if digests[0] != digests[1]:
                raise Wrong(f"final weights are {digests[1]}, undisturbed {digests[0]}")
        except Exception as error:
            tails = "" if run is None else run.tails()
            report["wrong"] = f"{type(error).__name__}: {error}\n{tails}"
    report["seconds"] = round(time.monotonic() - begun, 1)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("ddp", "hsdp"), default="ddp")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()

    def tell(text):
        print(text, file=sys.stderr, flush=True)

    report = run_kills(chosen.mode, chosen.kills, chosen.seed, tell=tell)
    print(json.dumps(report))
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
