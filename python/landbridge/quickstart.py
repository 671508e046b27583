"""Trains a small model across two emulated regions on this machine.

It uses PyTorch if that is installed. Then it all-reduces a buffer several times, and compares the
time with the lower bound.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import textwrap
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ._config.region_file import parse_region_file_bytes
from ._fidelity_verdict import FidelityTimes, describe_fidelity_verdict, reach_fidelity_verdict
from ._group import Group, connect
from ._local_regions import LocalRegions, LocalRegionsError, RelayLink
from ._operations.operation import Timing
from ._rounding import RATES, SIZES, TIMES, round_percent, round_quantity
from .errors import LandbridgeError

#: 32 samples: the global batch of a training step of the quickstart, of all ranks together. The
#: number is chosen.
_BATCH_SAMPLES = 32
#: 16 numbers: the length of the input of one sample of the quickstart's model. The length is
#: chosen.
_SAMPLE_INPUTS = 16
#: 1,500 bytes: the size of a full IP packet between the regions, the MTU of the emulated link. The
#: lower bound of an all-reduce takes the link's rate in such packets.
_PACKET_BYTES = 1500
#: 67 bytes of headers in a full IP packet between the regions; docs/protocol.md lists them. The
#: lower bound of an all-reduce leaves them out of the payload.
_HEADER_BYTES = 67
#: 130: the exit code after SIGINT or SIGTERM, as of the ``landbridge`` program; docs/exit-codes.md.
_EXIT_INTERRUPTED = 130
#: 80 columns: the width of the quickstart's table where output is no terminal, as ``landbridge``
#: has it.
_COLUMNS_DEFAULT = 80
#: 1e-5: the largest difference of a model weight from training in one process with which the
#: quickstart passes its check. It is chosen, above what rounding makes.
_WEIGHT_DIFFERENCE_MAX = 1e-5
#: 1: the version of the keys of the quickstart's JSON; docs/schemas/commands/quickstart-python.json
#: has them.
_JSON_VERSION = 1


def main(arguments: Sequence[str] = ()) -> int:
    """Runs the quickstart or one of its trainers. Returns the exit code: 0 if every check passes
    and the report is written, else 1."""
    parser = argparse.ArgumentParser("python -m landbridge.quickstart", description=__doc__)
    parser.add_argument(
        "--rtt", default="80 ms", help="round-trip time between the regions (default: %(default)s)"
    )
    parser.add_argument(
        "--rate", default="500 Mbit/s", help="rate in each direction (default: %(default)s)"
    )
    parser.add_argument(
        "--loss", default="0.1 %", help="packet loss in each direction (default: %(default)s)"
    )
    parser.add_argument(
        "--ranks", default="3,1", help="ranks of the two regions (default: %(default)s)"
    )
    parser.add_argument(
        "--size", default="64 MiB", help="size of the buffer (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=60, help="training steps (default: %(default)s)"
    )
    parser.add_argument(
        "--iterations", type=int, default=5, help="all-reduces (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--config", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        _run_quickstart_trainer(options)
        return 0
    return _run_quickstart_regions(options)


def _run_quickstart_regions(options: argparse.Namespace) -> int:
    """Starts gateways, link and trainers of two regions, prints the report, and returns the exit
    code."""
    ranks = [int(count) for count in options.ranks.split(",")]
    if len(ranks) != 2 or min(ranks) < 1:
        sys.exit("--ranks: accepted: two numbers, such as 3,1")
    link = RelayLink(options.rate, options.rtt, options.loss)
    words = [f"--size={options.size}", f"--steps={options.steps}"]
    words += [f"--iterations={options.iterations}"]
    with LocalRegions(ranks=ranks, link=link) as regions:
        before = FidelityTimes.read(regions.process_ids())
        trainers: list[subprocess.Popen[str]] = []
        try:
            for rank in range(sum(ranks)):
                named = [f"--rank={rank}", f"--config={regions.region_file_of_rank(rank)}"]
                command = [sys.executable, "-m", __spec__.name, *words, *named]
                with _deferred_quickstart_interrupts():
                    trainers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            results = [
                _read_quickstart_result(rank, trainer) for rank, trainer in enumerate(trainers)
            ]
        finally:
            for trainer in trainers:
                trainer.kill()
                trainer.wait()
        after = FidelityTimes.read(regions.process_ids())
        fidelity = reach_fidelity_verdict(regions.stop_relay()["fidelity"], before, after)
    report = {**_make_quickstart_report(results, options), "fidelity": fidelity}
    if options.json:
        text = json.dumps(report)
    else:
        text = _format_quickstart_table(report, _quickstart_columns())
    is_good = _print_quickstart_report(text)
    is_good &= all(passed for _, _, passed in _list_quickstart_checks(report))
    return 0 if is_good else 1


@contextlib.contextmanager
def _deferred_quickstart_interrupts() -> Iterator[None]:
    """Raises ``KeyboardInterrupt`` of the block at its end. An interrupt between the start of a
    process and its place in a list would leave a process that nobody ends."""
    came: list[int] = []
    deferred = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is signal.default_int_handler
    ]
    for number in deferred:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number in deferred:
            signal.signal(number, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def _print_quickstart_report(text: str) -> bool:
    """Prints a report to stdout. Returns whether it was written whole, and says why it was not
    unless the reader has closed the pipe."""
    try:
        print(text, flush=True)
    except OSError as error:
        # The interpreter writes the rest again at its end, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            _print_quickstart_to_terminal(f"cannot write to standard output: {error}\n")
        return False
    return True


def _read_quickstart_result(rank: int, trainer: subprocess.Popen[str]) -> dict[str, Any]:
    """Returns the result that a trainer prints last. Shows the progress of rank 0 before that.
    Raises ``LocalRegionsError`` if the trainer ends without a result."""
    assert trainer.stdout is not None
    with trainer.stdout as lines:
        for line in map(json.loads, lines):
            is_shown = rank == 0 and sys.stderr is not None and sys.stderr.isatty()
            if "of" not in line:
                if is_shown:
                    _overwrite_quickstart_line("")
                result: dict[str, Any] = line
                return result
            if is_shown:
                _show_quickstart_progress(line)
    raise LocalRegionsError(f"rank {rank} ended with exit code {trainer.wait()}")


def _show_quickstart_progress(progress: dict[str, Any]) -> None:
    """Shows a progress bar on the terminal, from an object that rank 0 prints."""
    filled = 30 * progress["done"] // progress["of"]
    bar = "#" * filled + "." * (30 - filled)
    counts = f"{progress['done']}/{progress['of']}"
    _overwrite_quickstart_line(f"{progress['what']:10} [{bar}] {counts} {progress['note']}")


def _overwrite_quickstart_line(text: str) -> None:
    """Overwrites the current line of the terminal. The next output overwrites the text too."""
    _print_quickstart_to_terminal(f"\r{text}\033[K\r")


def _print_quickstart_to_terminal(text: str) -> None:
    """Writes a text to stderr. A terminal that is gone misses it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(text, end="", file=sys.stderr, flush=True)


def _run_quickstart_trainer(options: argparse.Namespace) -> None:
    """Trains and times all-reduces as one rank. Prints JSON objects, one a line: the progress of
    rank 0, then the result."""
    size = parse_region_file_bytes(options.size, "--size") // 4 * 4
    with connect(config=options.config, rank=options.rank, arena=2 * size + (8 << 20)) as group:
        weights, loss = _train_quickstart(group, options.steps)
        timings, digest = _time_quickstart_all_reduces(group, size, options.iterations)
        group.barrier()
        shares = group.batch_shares(_BATCH_SAMPLES)
    result = {
        "weights": weights, "loss": loss, "shares": shares, "timings": timings, "digest": digest
    }  # fmt: skip
    print(json.dumps(result), flush=True)


def _report_quickstart_progress(
    group: Group, what: str, done: int, of: int, note: str = ""
) -> None:
    """Prints, on rank 0 alone, that ``done`` of ``of`` units are done, as a JSON object for
    ``_read_quickstart_result``."""
    if group.rank:
        return  # The output of other ranks is read only after rank 0 ends, which waits for them.
    print(json.dumps({"what": what, "done": done, "of": of, "note": note}), flush=True)


def _train_quickstart(group: Group, steps: int) -> tuple[list[float], float]:
    """Trains the model over all ranks. Returns the final weights and the loss of the last batch."""
    shares = group.batch_shares(_BATCH_SAMPLES)
    first, mine = sum(shares[: group.rank]), shares[group.rank]
    model, loss = _make_quickstart_model(), 0.0
    for step in range(steps):
        gradient, mean_loss = model.compute_gradient(
            _make_quickstart_batch(step)[first : first + mine]
        )
        gradient.append(mean_loss)
        # Weighting by samples gives the gradient of the whole batch.
        means: list[float] = group.all_reduce(array("d", gradient), weight=mine).tolist()
        loss = means.pop()
        model.apply_gradient(means)
        _report_quickstart_progress(group, "training", step + 1, steps, f"loss {loss:.4f}")
    return model.weights_as_list(), loss


def _train_quickstart_in_one_process(steps: int) -> list[float]:
    """Returns the weights after the same training steps without any communication, to compare
    with."""
    model = _make_quickstart_model()
    for step in range(steps):
        gradient, _ = model.compute_gradient(_make_quickstart_batch(step))
        model.apply_gradient(gradient)
    return model.weights_as_list()


def _time_quickstart_all_reduces(
    group: Group, size: int, iterations: int
) -> tuple[list[list[int]], str]:
    """Times all-reduces of ``size`` bytes. Returns the ``Timing`` of each one, and a digest of the
    last result."""
    contribution, out = group.empty(size // 4, "f32"), group.empty(size // 4, "f32")
    piece = array("f", [(group.rank + 1) * 0.25 * (i % 7) for i in range(1 << 10)]).tobytes()
    raw = contribution.cast("B")
    for at in range(0, size, len(piece)):
        raw[at : at + len(piece)] = piece[: size - at]
    timings = []
    for iteration in range(iterations):
        group.barrier()
        operation = group.all_reduce_async(contribution, "sum", out=out)
        operation.wait()
        operation.wait_free()
        timing = operation.timing
        assert timing is not None
        timings.append(list(timing))
        _report_quickstart_progress(group, "all-reduce", iteration + 1, iterations)
    return timings, hashlib.blake2b(out.cast("B"), digest_size=8).hexdigest()


class _Sample(NamedTuple):
    """A sample of the training data."""

    inputs: list[float]
    target: float


def _make_quickstart_batch(step: int) -> list[_Sample]:
    """Returns the global batch of a training step, the same on every rank."""
    random = importlib.import_module("random").Random(step)
    batch = []
    for _ in range(_BATCH_SAMPLES):
        inputs = [random.uniform(-1, 1) for _ in range(_SAMPLE_INPUTS)]
        batch.append(_Sample(inputs, inputs[0] * inputs[1] + 0.5 * inputs[2] - inputs[3]))
    return batch


def _make_quickstart_model() -> _QuickstartLinearModel | _QuickstartTorchModel:
    """Returns a small network if PyTorch is installed, else a linear model."""
    return (
        _QuickstartTorchModel() if importlib.util.find_spec("torch") else _QuickstartLinearModel()
    )


class _QuickstartLinearModel:
    """A linear fit in plain Python, for machines without PyTorch."""

    def __init__(self) -> None:
        """Makes the model with all weights 0, equal on every rank."""
        self._weights = [0.0] * _SAMPLE_INPUTS

    def compute_gradient(self, batch: list[_Sample]) -> tuple[list[float], float]:
        """Returns the gradient of the mean squared error over a batch, and the error."""
        gradient, loss = [0.0] * _SAMPLE_INPUTS, 0.0
        for inputs, target in batch:
            off = sum(w * x for w, x in zip(self._weights, inputs)) - target
            loss += off * off / len(batch)
            for index, x in enumerate(inputs):
                gradient[index] += 2 * off * x / len(batch)
        return gradient, loss

    def apply_gradient(self, gradient: list[float]) -> None:
        """Takes one training step against the gradient."""
        self._weights = [w - 0.2 * g for w, g in zip(self._weights, gradient)]

    def weights_as_list(self) -> list[float]:
        """Returns the weights of the model as one list."""
        return self._weights


class _QuickstartTorchModel:
    """A small network in PyTorch."""

    def __init__(self) -> None:
        """Makes the network with weights from a fixed seed, equal on every rank."""
        torch = self._torch = importlib.import_module("torch")
        torch.manual_seed(0)
        torch.set_num_threads(1)
        layers = [torch.nn.Linear(_SAMPLE_INPUTS, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)]
        self._module = torch.nn.Sequential(*layers).double()

    def compute_gradient(self, batch: list[_Sample]) -> tuple[list[float], float]:
        """Returns the gradient of the mean squared error over a batch as one list, and the
        error."""
        torch, module = self._torch, self._module
        inputs = torch.tensor([s.inputs for s in batch], dtype=torch.float64)
        targets = torch.tensor([[s.target] for s in batch], dtype=torch.float64)
        module.zero_grad()
        loss = torch.nn.functional.mse_loss(module(inputs), targets)
        loss.backward()
        flat = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
        return flat.tolist(), loss.item()

    def apply_gradient(self, gradient: list[float]) -> None:
        """Takes one training step against the gradient, given as one list."""
        torch, at = self._torch, 0
        with torch.no_grad():
            for p in self._module.parameters():
                part = torch.tensor(gradient[at : at + p.numel()], dtype=p.dtype)
                p -= 0.1 * part.view(p.shape)
                at += p.numel()

    def weights_as_list(self) -> list[float]:
        """Returns the weights of the model as one list."""
        flat = self._torch.cat([p.detach().reshape(-1) for p in self._module.parameters()])
        weights: list[float] = flat.tolist()
        return weights


def _make_quickstart_report(
    results: list[dict[str, Any]], options: argparse.Namespace
) -> dict[str, Any]:
    """Returns the quickstart's report: training, times of all-reduces, and the link, from the
    results of all ranks."""
    size = parse_region_file_bytes(options.size, "--size") // 4 * 4
    by_iteration = zip(*(result["timings"] for result in results))
    stages = [
        _quickstart_stage_seconds([Timing(*timing) for timing in timings])
        for timings in by_iteration
    ]
    seconds = [sum(stage.values()) for stage in stages]
    # `median_high` is the time of one iteration, so that its stages add up to it.
    at = seconds.index(statistics.median_high(seconds))
    median = seconds[at]
    bound = _quickstart_lower_bound_s(size, options)
    alone = _train_quickstart_in_one_process(options.steps)
    weights = results[0]["weights"]
    return {
        "version": _JSON_VERSION,
        "identical": len({(str(r["weights"]), r["digest"]) for r in results}) == 1,
        "reference_max_abs_diff": max(abs(a - b) for a, b in zip(weights, alone)),
        "library": "torch" if importlib.util.find_spec("torch") else "none",
        "steps": options.steps,
        "loss": results[0]["loss"],
        "batch_shares": results[0]["shares"],
        "allreduce": {
            "bytes": size,
            "iterations": options.iterations,
            "seconds_median": median,
            "seconds": seconds,
            "bound_seconds": bound,
            "eta": bound / median,
            "goodput_bits_per_second": size * 8 / median,
            "stage_seconds": stages[at],
        },
        "link": {"rate": options.rate, "rtt": options.rtt, "loss": options.loss},
    }


def _quickstart_stage_seconds(timings: list[Timing]) -> dict[str, float]:
    """Returns the seconds of each stage of a collective, from the last post to the last result."""
    posted, ready = max(t.posted_ns for t in timings), max(t.ready_ns for t in timings)
    begin = min(max(min(t.wan_begin_ns for t in timings), posted), ready)
    end = min(max(max(t.wan_end_ns for t in timings), begin), ready)
    return {
        "local_reduce": (begin - posted) / 1e9,
        "wan": (end - begin) / 1e9,
        "deliver": (ready - end) / 1e9,
    }


def _quickstart_lower_bound_s(size: int, options: argparse.Namespace) -> float:
    """Returns the lower bound in seconds: the bytes at the link's payload rate, and one one-way
    delay."""
    rate, rtt = (
        _parse_quickstart_quantity(options.rate, _BITS_PER_SECOND_BY_UNIT),
        _parse_quickstart_quantity(options.rtt, _SECONDS_BY_UNIT),
    )
    return size * 8 / (rate * (_PACKET_BYTES - _HEADER_BYTES) / _PACKET_BYTES) + rtt / 2


def _parse_quickstart_quantity(text: str, units: dict[str, float]) -> float:
    """Returns the number of a text such as ``80 ms``, in the base unit of ``units``. Ends the
    process if it is malformed."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*(\S+)\s*", text)
    if not match or match.group(2) not in units:
        sys.exit(f"{text}: accepted: a number and one of {', '.join(units)}")
    return float(match.group(1)) * units[match.group(2)]


def _list_quickstart_checks(report: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yields each check of the report: the claim, the value found, and whether it passes."""
    found = "identical" if report["identical"] else "different"
    yield "weights and results bit-identical on all ranks", found, report["identical"]
    off = report["reference_max_abs_diff"]
    claim = f"within {_WEIGHT_DIFFERENCE_MAX:.0e} of training in one process"
    yield claim, f"{off:.1e}", off <= _WEIGHT_DIFFERENCE_MAX


def _quickstart_columns() -> int:
    """Returns the number of columns that output may use: those of the terminal, or 80."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _COLUMNS_DEFAULT
    except (AttributeError, OSError, ValueError):  # There is no output, or it is no terminal.
        return _COLUMNS_DEFAULT


def _format_quickstart_table(report: dict[str, Any], columns: int) -> str:
    """Returns the report as the table that the quickstart prints, at most ``columns`` wide."""
    timed = report["allreduce"]
    link, median = report["link"], timed["seconds_median"]
    shares = ", ".join(map(str, report["batch_shares"]))
    # The wording is that of `landbridge quickstart`.
    rows = [
        ("trained with", report["library"].replace("none", "plain Python"), ""),
        ("training steps", str(report["steps"]), ""),
        ("samples of a batch per rank", shares, ""),
        ("loss, last batch", f"{report['loss']:.4f}", ""),
        ("link", f"RTT {link['rtt']}, {link['rate']}, loss {link['loss']}", ""),
        (f"{timed['iterations']} all-reduces of", round_quantity(timed["bytes"], SIZES), ""),
        ("median time", round_quantity(median, TIMES), ""),
        ("bound T*", round_quantity(timed["bound_seconds"], TIMES), ""),
        ("eta", f"{timed['eta']:.3f}", ""),
        ("goodput", round_quantity(timed["goodput_bits_per_second"], RATES), ""),
    ]
    for stage, words in (("local_reduce", "local reduce"), ("wan", "WAN"), ("deliver", "deliver")):
        spent = timed["stage_seconds"][stage]
        found = f"{round_quantity(spent, TIMES)} ({round_percent(spent / median)})"
        rows.append((f"time in {words}", found, ""))
    rows += [
        (claim, found, "pass" if good else "FAIL")
        for claim, found, good in _list_quickstart_checks(report)
    ]
    verdict = "VOID" if report["fidelity"]["void"] else "good"
    rows.append(("fidelity", describe_fidelity_verdict(report["fidelity"]), verdict))
    return _wrap_quickstart_table(rows, columns)


def _wrap_quickstart_table(rows: list[tuple[str, str, str]], columns: int) -> str:
    """Returns a table of names, values on the right, and verdicts, at most ``columns`` wide. Long
    cells are wrapped."""
    names, values, verdicts = (max(len(row[index]) for row in rows) for index in range(3))
    room = max(columns - verdicts - 4, 2)
    # Names and values get half of the room each, and more where the other takes less.
    names = min(names, max(room - values, room // 2))
    values = min(values, room - names)
    lines = []
    for name, value, verdict in rows:
        cells = _wrap_quickstart_cell(name, names), _wrap_quickstart_cell(value, values), [verdict]
        for one, two, three in itertools.zip_longest(*cells, fillvalue=""):
            lines.append(f"{one:{names}}  {two:>{values}}  {three}".rstrip())
    return "\n".join(lines)


def _wrap_quickstart_cell(text: str, width: int) -> list[str]:
    """Returns the lines of a cell of a table."""
    return textwrap.wrap(text, width, break_on_hyphens=False)


#: The number of bits per second of each unit in which ``--rate`` may be given.
_BITS_PER_SECOND_BY_UNIT = {"Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3}
#: The number of seconds of each unit in which ``--rtt`` may be given.
_SECONDS_BY_UNIT = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def _run_quickstart_command() -> int:
    """Runs the quickstart as a command. Returns the exit code: that of ``main``, 1 after an error,
    130 after SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return main(sys.argv[1:])
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except LandbridgeError as error:
        _print_quickstart_to_terminal(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(_run_quickstart_command())
