"""For the examples: trainers of two regions on this machine, each a process, with gateways and an
emulated link between the regions. A deployment has none of this."""

import multiprocessing
import sys
import time

from landbridge._testing import LinkSpec, LocalRegions

#: How long to wait for anything, in seconds.
PATIENCE_S = 600.0


def run(trainer, *, ranks, speeds=None, link=None, preload=()):
    """Calls ``trainer(config, rank, folder)`` in a process for each rank; returns their results.

    ``trainer`` is a function of a module, for it is looked up there by each process."""
    link = link or LinkSpec(rate="500 Mbit/s", rtt="80 ms", loss="0.1 %")
    context = multiprocessing.get_context("forkserver")
    # Imported once: each process is forked from the one that did.
    context.set_forkserver_preload(["local_run", *preload])
    print(f"two regions with {ranks[0]} and {ranks[1]} trainers, {link.rate}, {link.rtt}, "
          f"{link.loss} loss", flush=True)  # fmt: skip
    with LocalRegions(ranks=ranks, speeds=speeds, link=link) as regions:
        started = []
        for rank in range(sum(ranks)):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (trainer, str(regions.config_of(rank)), rank, str(regions.folder), theirs)
            process = context.Process(target=_call, args=arguments, daemon=True)
            process.start()
            theirs.close()
            started.append((process, ours))
        try:
            return [_result(rank, *of) for rank, of in enumerate(started)]
        finally:
            for process, ours in started:
                process.kill()
                process.join()
                ours.close()


def _call(trainer, config, rank, folder, results):
    results.send(trainer(config, rank, folder))


def _result(rank, process, results):
    if not results.poll(PATIENCE_S):
        sys.exit(f"rank {rank} says nothing after {PATIENCE_S:.0f} s")
    try:
        return results.recv()
    except EOFError:
        process.join()
        sys.exit(f"rank {rank} ended with exit code {process.exitcode}")


class Clock:
    """How much of the communication computing hides: see ``report``."""

    def __init__(self):
        self._steps = []
        self._begin()

    def _begin(self):
        self._posted, self._done = [], []

    def posted(self):
        """A part of the gradients is handed over."""
        self._posted.append(time.monotonic())

    def done(self, *_):
        """Its average is there."""
        self._done.append(time.monotonic())

    def came(self, operation):
        """As ``done``, of a collective that has been waited for."""
        self._done.append(operation.timing.ready_ns / 1e9)

    def step(self):
        """The step ends."""
        if self._posted and self._done:
            first, last, end = min(self._posted), max(self._posted), max(self._done)
            self._steps.append((end - first, end - last))
        self._begin()

    def report(self):
        """Seconds of communication hidden behind and exposed after the backward pass: in the
        median step, from the first hand-over to the last average, and from the last hand-over."""
        steps = sorted(self._steps)
        total, exposed = steps[len(steps) // 2] if steps else (0.0, 0.0)
        return {"hidden": total - exposed, "exposed": exposed}


def print_result(result):
    """Prints a trainer's result: ``losses`` by step, ``score`` with its ``label``, and the times
    of its clock."""
    losses = result["losses"]
    for step, loss in enumerate(losses):
        if step % max(len(losses) // 8, 1) == 0:
            print(f"step {step:4}: loss {loss:.4f}")
    print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}, {result['label']} {result['score']:.3f}")
    print(f"communication in a step: hidden {result['hidden'] * 1e3:.1f} ms, "
          f"exposed {result['exposed'] * 1e3:.1f} ms")  # fmt: skip


def exit_by(what, found, allowed):
    """Ends the process: 0 if the difference is allowed, else 1."""
    good = found <= allowed
    print(f"{what}: {found:.2e}, allowed {allowed:.0e}: {'pass' if good else 'FAIL'}")
    sys.exit(0 if good else 1)
