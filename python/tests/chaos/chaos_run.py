"""Gateways of three regions that are restarted and killed under training with PyTorch.

The trainers run `examples/two_regions.py`, the script of the README, with as many epochs as the
events need. Each trainer must live to its end, and the final weights must equal those of an
undisturbed run bit for bit. `cargo xtask chaos` runs this program.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from landbridge._local_regions import LocalRegions

# This program is started in a folder of its own, below the one of what tests share.
sys.path.append(str(Path(__file__).parents[1]))

from torch_forks import ForkedScript  # noqa: E402
from two_regions_script import EPOCH_STEPS, write_script  # noqa: E402

#: The regions of three numbers of ranks, in the order of ranks.
REGIONS = ("east", "north", "west")
#: Steps for each event. The event strikes in one of them, and the others show that training goes
#: on.
EVENT_STEPS = 4
#: The longest pause from the end of a gateway to its start, in seconds.
PAUSE_MAX_S = 3.0
#: The longest time without a step, in seconds: far above the time that a recovery takes.
STEP_TIMEOUT_S = 180
#: Times of so many steps give the duration of a step.
MEASURED_STEPS = 9
#: Lines at the end of each log and each output that a failure shows.
TAIL_LINES = 25


class Event(NamedTuple):
    """The end of a gateway, and its start."""

    #: `restart` by SIGTERM, or `kill`.
    kind: str
    region: str
    #: The step during which the gateway ends.
    step: int
    #: The moment in the step, from 0 to 1.
    moment: float
    #: The pause before the gateway is started, in seconds.
    pause_s: float

    def describe(self):
        """Returns the event as text."""
        return (
            f"{self.kind} {self.region} at {self.moment:.0%} of step {self.step}, "
            f"start after {self.pause_s:.1f} s"
        )


class Plan(NamedTuple):
    """The numbers that determine a run. All events follow from them."""

    #: Restarts of every gateway.
    restarts: int
    #: Kills of gateways.
    kills: int
    seed: int

    def make_events(self):
        """Returns the events, in order. A rolling restart ends the gateways one after the other."""
        dice = random.Random(self.seed)
        groups = [[("restart", region) for region in REGIONS] for _ in range(self.restarts)]
        for group in groups:
            dice.shuffle(group)
        groups += [[("kill", dice.choice(REGIONS))] for _ in range(self.kills)]
        dice.shuffle(groups)
        events = []
        for kind, region in (one for group in groups for one in group):
            step = (len(events) + 1) * EVENT_STEPS + dice.randrange(EVENT_STEPS)
            pause_s = dice.uniform(0, PAUSE_MAX_S)
            events.append(Event(kind, region, step, dice.random(), pause_s))
        if events:
            # The last event strikes after the last step, while the trainers end.
            events[-1] = events[-1]._replace(step=self.count_epochs() * EPOCH_STEPS)
        return events

    def count_epochs(self):
        """Returns the epochs that the events need."""
        steps = (self.restarts * len(REGIONS) + self.kills + 1) * EVENT_STEPS
        return -(-steps // EPOCH_STEPS)

    def replay_command(self):
        """Returns the command that repeats the run."""
        counts = f"--restarts {self.restarts} --kills {self.kills}"
        return f"cargo xtask chaos {counts} --seed {self.seed}"


class Wrong(Exception):
    """A promise was broken. The text says which."""


class Trainer:
    """A process that runs the example, and a thread that reads its lines."""

    def __init__(self, script, region_file, rank):
        self.rank = rank
        reader, writer = os.pipe()
        self.output = open(reader, encoding="utf-8", errors="replace")
        with open(writer, "wb") as both:
            files = {"stdout": both, "stderr": both}
            variables = {"RANK": str(rank)}
            self.process = ForkedScript(script, str(region_file), variables=variables, **files)
        self.lines = []
        #: The number of finished steps, and the times at which the last ones were finished.
        self.step, self.times = 0, []
        self.failures = 0
        self.weights = None
        self.has_ended = False
        self.changed = threading.Condition()
        threading.Thread(target=self.read_lines, daemon=True).start()

    def read_lines(self):
        """Reads the output to its end."""
        with self.output as lines:
            for line in lines:
                with self.changed:
                    self.read_line(line.rstrip())
                    self.changed.notify_all()
        with self.changed:
            self.has_ended = True
            self.changed.notify_all()

    def read_line(self, line):
        """Notes a line of the output."""
        self.lines.append(line)
        word, _, rest = line.partition(" ")
        if word == "weights":
            self.weights = rest
        elif word == "step" and " failed: " in rest:
            self.failures += 1
        elif word == "step":
            self.step = int(rest.partition(":")[0])
            self.times = [*self.times, time.monotonic()][-MEASURED_STEPS - 1 :]

    def wait_for(self, is_reached):
        """Waits until `is_reached` of this trainer. Raises `Wrong` if it ends before, or takes no
        step for `STEP_TIMEOUT_S`."""
        with self.changed:
            step, deadline = self.step, time.monotonic() + STEP_TIMEOUT_S
            while not is_reached(self):
                if self.has_ended:
                    raise Wrong(f"trainer {self.rank} ended with code {self.process.wait()}")
                if self.step != step:
                    step, deadline = self.step, time.monotonic() + STEP_TIMEOUT_S
                rest = deadline - time.monotonic()
                if rest <= 0:
                    text = f"no step after step {step} within {STEP_TIMEOUT_S} s"
                    raise Wrong(f"trainer {self.rank}: {text}")
                self.changed.wait(rest)

    def step_duration_s(self):
        """Returns the usual duration of a step, in seconds."""
        with self.changed:
            gaps = [after - before for before, after in zip(self.times, self.times[1:])]
        return statistics.median(gaps) if gaps else 0.0

    def end(self):
        """Kills the process."""
        self.process.kill()
        self.process.wait()


class Run:
    """One training over running regions."""

    def __init__(self, regions, script):
        self.regions = regions
        self.trainers = [
            Trainer(script, regions.region_file_of_rank(rank), rank)
            for rank in range(sum(regions.ranks.values()))
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for trainer in self.trainers:
            trainer.end()

    def stop_gateway(self, region):
        """Ends a gateway by SIGTERM, in good order."""
        code = self.regions.stop_gateway(region)
        if code != 0:
            raise Wrong(f"the gateway of {region} ended with {code} on SIGTERM")

    def strike(self, event):
        """Ends a gateway in the moment of the event, and starts it after the pause."""
        first = self.trainers[0]
        first.wait_for(lambda trainer: trainer.step >= event.step)
        time.sleep(event.moment * first.step_duration_s())
        if event.kind == "restart":
            self.stop_gateway(event.region)
        else:
            self.regions.kill_process(event.region)
        time.sleep(event.pause_s)
        self.regions.start_gateway(event.region)

    def finish(self):
        """Waits for the end of all trainers. Returns the digest of the weights."""
        for trainer in self.trainers:
            trainer.wait_for(lambda trainer: trainer.weights is not None)
        for trainer in self.trainers:
            code = trainer.process.wait()
            if code != 0:
                raise Wrong(f"trainer {trainer.rank} ended with code {code}")
        digests = {trainer.weights for trainer in self.trainers}
        if len(digests) != 1:
            raise Wrong(f"trainers differ: {sorted(digests)}")
        return digests.pop()

    def tails(self):
        """Returns the ends of all logs and outputs."""
        names = self.regions.ranks
        texts = [(f"gateway of {name}", self.regions.read_log(name)) for name in names]
        for trainer in self.trainers:
            texts.append((f"trainer {trainer.rank}", "\n".join(trainer.lines)))
        return "\n".join(
            f"--- {name}:\n" + "\n".join(text.splitlines()[-TAIL_LINES:]) for name, text in texts
        )


def run_chaos(plan, tell=lambda text: None):
    """Trains undisturbed, then beside all events of the plan. Returns the report; its `wrong` is
    empty if all promises were kept."""
    events, epochs, begun = plan.make_events(), plan.count_epochs(), time.monotonic()
    report = {**plan._asdict(), "events": len(events), "steps": epochs * EPOCH_STEPS, "wrong": []}
    with contextlib.ExitStack() as stack:
        script = write_script(stack.enter_context(tempfile.TemporaryDirectory()), epochs)
        regions = stack.enter_context(LocalRegions(ranks=(1,) * len(REGIONS)))
        try:
            tell(f"{epochs * EPOCH_STEPS} steps undisturbed")
            run = stack.enter_context(Run(regions, script))
            undisturbed = run.finish()
            run = stack.enter_context(Run(regions, script))
            for number, event in enumerate(events, 1):
                tell(f"{number} of {len(events)}: {event.describe()}")
                run.strike(event)
            disturbed = run.finish()
            report["weights"] = disturbed
            if disturbed != undisturbed:
                raise Wrong(f"final weights are {disturbed}, undisturbed {undisturbed}")
        except Exception as error:
            report["wrong"].append(f"{type(error).__name__}: {error}\n{run.tails()}")
        report["failed_steps"] = [trainer.failures for trainer in run.trainers]
    report["seconds"] = round(time.monotonic() - begun, 1)
    return report


def explain(plan, report):
    """Returns the text of a failed run: the seed, what was wrong, and the command that repeats
    it."""
    wrong = "\n".join(report["wrong"])
    return f"seed {plan.seed}: {wrong}\nRepeat with:\n  {plan.replay_command()}"


def parse_arguments(words=None):
    """Returns the plan, and whether the report is JSON."""
    parser = argparse.ArgumentParser(
        prog="cargo xtask chaos",
        description="Restart and kill gateways of three regions under training with PyTorch. "
        "Trainers must live, and weights equal those of an undisturbed run.",
        epilog="Example: cargo xtask chaos --restarts 50 --kills 50 --seed 7",
    )
    count = parser.add_argument
    count("--restarts", type=int, default=2, metavar="N", help="restarts of every gateway (2)")
    count("--kills", type=int, default=2, metavar="N", help="kills of a gateway (2)")
    count("--seed", type=int, default=1, metavar="S", help="draws gateways, moments and pauses (1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    found = parser.parse_args(words)
    if found.restarts < 0 or found.kills < 0:
        parser.error("--restarts and --kills take numbers from 0 on")
    return Plan(found.restarts, found.kills, found.seed), found.json


def main():
    plan, as_json = parse_arguments()
    report = run_chaos(plan, tell=lambda text: print(text, file=sys.stderr, flush=True))
    is_good = not report["wrong"]
    if as_json:
        print(json.dumps(report))
    elif is_good:
        failed = ", ".join(map(str, report["failed_steps"]))
        print(
            f"{report['events']} events in {report['steps']} steps and {report['seconds']} s: "
            f"pass; steps begun again by rank: {failed}; weights {report['weights']}"
        )
    if not is_good:
        print(explain(plan, report), file=sys.stderr)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
