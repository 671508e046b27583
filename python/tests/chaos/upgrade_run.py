"""Gateways of two regions that are upgraded one after the other under training with PyTorch.

An older program runs beside this one. The trainers run `examples/two_regions.py`, the script of the
README. They begin with older gateways; then each gateway is replaced, one of them by the older
program again, as in an upgrade that is taken back. Each trainer must live to its end, in every
state both gateways must use the highest wire version that both speak, and the final weights must
equal those of a training with this program alone, bit for bit.

Trainers are of this version all the time. So an older program with another version of the local
protocol refuses them, and the run fails. `cargo xtask upgrade` runs this program.
"""

import argparse
import contextlib
import filecmp
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from chaos_run import EPOCH_STEPS, EVENT_STEPS, Run, Wrong, write_script

from landbridge._local_regions import LocalRegions

#: The replacements of gateways, in order: the region, and whether it gets the older program.
REPLACEMENTS = (("west", False), ("east", False), ("west", True), ("west", False))
#: The epochs that the replacements need, with steps before, between and after them.
EPOCHS = -(-EVENT_STEPS * (len(REPLACEMENTS) + 1) // EPOCH_STEPS)
#: The longest wait until two gateways have met again, in seconds: far above the time that it takes.
MEET_TIMEOUT_S = 60


class State(NamedTuple):
    """The programs of the gateways, and the version of the messages between them."""

    #: `older` or `newer`, by region.
    programs: dict
    #: The wire version that both gateways report.
    wire_version: int

    def describe(self):
        """Returns the state as text."""
        programs = ", ".join(f"{region} {which}" for region, which in self.programs.items())
        return f"{programs}: wire version {self.wire_version}"


def program_version(program):
    """Returns the name and version that a program prints."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def peer_wire_version(regions, region):
    """Returns the version of a gateway's messages with its peer; `None` before they have met."""
    text = regions.region_file(region).read_text("utf-8")
    address = re.search(r'status = "([^"]+)"', text)[1]
    with urllib.request.urlopen(f"http://{address}/status", timeout=10) as answer:
        (peer,) = json.load(answer)["peers"]
    return peer["wire_version"]


def common_wire_version(regions):
    """Waits until both gateways have met, and returns the version that they agree on."""
    deadline = time.monotonic() + MEET_TIMEOUT_S
    while True:
        versions = {peer_wire_version(regions, region) for region in regions.ranks}
        if len(versions) == 1 and None not in versions:
            return versions.pop()
        if time.monotonic() > deadline:
            raise Wrong(f"the gateways have not met; their wire versions are {versions}")
        time.sleep(0.05)


def replace_gateways(run, older, tell):
    """Replaces the gateways one after the other while training goes on. Returns all states."""
    regions, newer = run.regions, run.regions.program
    programs = dict.fromkeys(regions.ranks, "older")
    states = [State(dict(programs), common_wire_version(regions))]
    tell(states[-1].describe())
    for number, (region, is_older) in enumerate(REPLACEMENTS, 1):
        run.trainers[0].wait_for(lambda trainer, step=number * EVENT_STEPS: trainer.step >= step)
        run.stop_gateway(region)
        regions.program = older if is_older else newer
        regions.start_gateway(region)
        regions.program = newer
        programs[region] = "older" if is_older else "newer"
        states.append(State(dict(programs), common_wire_version(regions)))
        tell(states[-1].describe())
    return states


def run_upgrade(older, tell=lambda text: None):
    """Trains with this program alone, then through an upgrade from the program `older`. Returns the
    report; its `wrong` is empty if all promises were kept."""
    begun, report = time.monotonic(), {"steps": EPOCHS * EPOCH_STEPS, "states": [], "wrong": []}
    with contextlib.ExitStack() as stack:
        script = write_script(stack.enter_context(tempfile.TemporaryDirectory()), EPOCHS)
        regions = stack.enter_context(LocalRegions(ranks=(1, 1)))
        newer, run = regions.program, None
        try:
            report["older"], report["newer"] = program_version(older), program_version(newer)
            if filecmp.cmp(older, newer, shallow=False):
                raise Wrong(f"{older} is the program that is to be tested itself")
            tell("this program alone")
            run = stack.enter_context(Run(regions, script))
            undisturbed = run.finish()
            for region in regions.ranks:
                run.stop_gateway(region)
            regions.program = older
            for region in regions.ranks:
                regions.start_gateway(region)
            regions.program = newer
            run = stack.enter_context(Run(regions, script))
            states = replace_gateways(run, older, tell)
            report["states"] = [state._asdict() for state in states]
            report["weights"] = run.finish()
            if report["weights"] != undisturbed:
                text = f"this program alone {undisturbed}"
                raise Wrong(f"final weights are {report['weights']}, {text}")
        except Exception as error:
            tails = run.tails() if run else ""
            report["wrong"].append(f"{type(error).__name__}: {error}\n{tails}")
        report["failed_steps"] = [trainer.failures for trainer in run.trainers] if run else []
    report["seconds"] = round(time.monotonic() - begun, 1)
    return report


def main():
    parser = argparse.ArgumentParser(
        description="Upgrade gateways of two regions one after the other under training with "
        "PyTorch. Trainers must live, and weights equal those of this program alone."
    )
    parser.add_argument("--older", type=Path, required=True, help="the older program landbridge")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    found = parser.parse_args()
    older = str(found.older.resolve())
    report = run_upgrade(older, tell=lambda text: print(text, file=sys.stderr, flush=True))
    if found.json:
        print(json.dumps(report))
    elif not report["wrong"]:
        failed = ", ".join(map(str, report["failed_steps"]))
        print(
            f"{len(REPLACEMENTS)} replacements in {report['steps']} steps and {report['seconds']} s: "
            f"pass; steps begun again by rank: {failed}; weights {report['weights']}"
        )
    print("\n".join(report["wrong"]), end="", file=sys.stderr)
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
