"""Trainers of two regions on this machine, for the examples.

Each trainer is a process. Gateways and an emulated link connect the regions. A deployment has none
of this.
"""

import multiprocessing
import sys
import time

from landbridge._local_regions import RelayLink, LocalRegions

#: Limit on the time until a trainer returns its result, in seconds.
RESULT_TIMEOUT_S = 600.0


def run_trainers(trainer, **options):
    """Calls ``trainer(config, rank, folder)`` in a process for each rank, and returns the results.

    Args:
        options: As for ``run_trainers_and_link``.
    """
    return run_trainers_and_link(trainer, **options)[0]


def run_trainers_and_link(trainer, *, ranks, speeds=None, link=None, preload=()):
    """Calls ``trainer(config, rank, folder)`` in a process for each rank.

    Args:
        trainer: A function of a module, where each process looks it up.
        ranks: The number of ranks in each region.
        speeds: The relative speed of each rank.
        link: The emulated link.
        preload: Installed modules that take long to import.

    Returns:
        The results in rank order, and the bytes of IP packets that the link carried from east to
        west, and from west to east, since the gateways started.
    """
    link = link or RelayLink(rate="500 Mbit/s", rtt="80 ms", loss="0.1 %")
    context = multiprocessing.get_context("forkserver")
    # Modules are imported once, in the process that all others are forked from. Before Python 3.13
    # it finds installed modules only, and is silent about others.
    context.set_forkserver_preload(["landbridge", *preload])
    print(f"two regions with {ranks[0]} and {ranks[1]} trainers, {link.rate}, {link.rtt}, "
          f"{link.loss} loss", flush=True)  # fmt: skip
    with LocalRegions(ranks=ranks, speeds=speeds, link=link) as regions:
        started = []
        for rank in range(sum(ranks)):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (
                trainer,
                str(regions.region_file_of_rank(rank)),
                rank,
                str(regions.folder),
                theirs,
            )
            process = context.Process(target=_run_trainer, args=arguments, daemon=True)
            process.start()
            theirs.close()
            started.append((process, ours))
        try:
            results = [_receive_result(rank, *pair) for rank, pair in enumerate(started)]
        finally:
            for process, ours in started:
                process.kill()
                process.join()
                ours.close()
        carried = regions.stop_relay()
        return results, [carried[way]["ip_bytes"] for way in ("east_west", "west_east")]


def _run_trainer(trainer, config, rank, folder, results):
    """Sends the result of a trainer over the pipe ``results``, in a process of its own."""
    results.send(trainer(config, rank, folder))


def _receive_result(rank, process, results):
    """Returns the result of a trainer. Ends this process if there is none."""
    if not results.poll(RESULT_TIMEOUT_S):
        sys.exit(f"rank {rank} says nothing after {RESULT_TIMEOUT_S:.0f} s")
    try:
        return results.recv()
    except EOFError:
        process.join()
        sys.exit(f"rank {rank} ended with exit code {process.exitcode}")


class CommunicationClock:
    """Measures how much of the communication is hidden behind computing: see ``report``."""

    def __init__(self):
        self._steps = []
        self._begin_step()

    def _begin_step(self):
        self._posted, self._done = [], []

    def note_post(self):
        """Notes that a part of the gradients is posted now."""
        self._posted.append(time.monotonic())

    def note_average(self, *_):
        """Notes that an average is ready now."""
        self._done.append(time.monotonic())

    def note_operation(self, operation):
        """Notes when the average of a finished collective was ready."""
        self._done.append(operation.timing.ready_ns / 1e9)

    def end_step(self):
        """Ends the measurement of a step."""
        if self._posted and self._done:
            first, last, end = min(self._posted), max(self._posted), max(self._done)
            self._steps.append((end - first, end - last))
        self._begin_step()

    def report(self):
        """Returns the seconds of communication in the median step.

        ``exposed`` is the time from the last post to the last average. ``hidden`` is the time from
        the first post to the last one.
        """
        steps = sorted(self._steps)
        total, exposed = steps[len(steps) // 2] if steps else (0.0, 0.0)
        return {"hidden": total - exposed, "exposed": exposed}


def print_result(result):
    """Prints some losses of a trainer's result, its score, and the times of its clock."""
    losses = result["losses"]
    for step, loss in enumerate(losses):
        if step % max(len(losses) // 8, 1) == 0:
            print(f"step {step:4}: loss {loss:.4f}")
    print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}, {result['label']} {result['score']:.3f}")
    print(f"communication in a step: hidden {result['hidden'] * 1e3:.1f} ms, "
          f"exposed {result['exposed'] * 1e3:.1f} ms")  # fmt: skip


def exit_by_difference(what, found, allowed):
    """Prints a difference, and ends the process: with code 0 if it is allowed, else 1."""
    good = found <= allowed
    print(f"{what}: {found:.2e}, allowed {allowed:.0e}: {'pass' if good else 'FAIL'}")
    sys.exit(0 if good else 1)
