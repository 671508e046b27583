"""The judgement whether the times of a quickstart are those of its link, or of a busy machine.

The rules and words are those of ``landbridge quickstart``. The quickstart reads processor times
before and after its trainers run, and the relay's own verdict at the relay's end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ._rounding import TIMES, round_percent, round_quantity

#: 5 % of the time of all processors: with less idle time processes wait for each other. Such a run
#: is void if other programs took more than ``_OTHERS_FRACTION_MAX``. The fraction is chosen.
_IDLE_FRACTION_MIN = 0.05
#: 10 % of the time of all processors: where other programs took more, a run with less idle time
#: than ``_IDLE_FRACTION_MIN`` is void. Its times then do not count. The fraction is chosen.
_OTHERS_FRACTION_MAX = 0.10


class FidelityTimes(NamedTuple):
    """Processor times so far, in ticks of the kernel."""

    #: Time of all processors.
    all: int
    #: Time in which they were idle.
    idle: int
    #: Time in which they served interrupts, which belongs to no program.
    interrupts: int
    #: Time of the quickstart's own processes.
    own: int

    @classmethod
    def read(cls, processes: Iterable[int]) -> FidelityTimes | None:
        """Reads the times of all processors, of these processes, and of this one with its children
        that have ended. Returns ``None`` where the system does not say."""
        try:
            words = Path("/proc/stat").read_text("ascii").splitlines()[0].split()
            ticks = [int(word) for word in words[1:9]]
            own = sum(map(_process_ticks_for_fidelity, processes))
        except (OSError, ValueError, IndexError):
            return None
        if words[0] != "cpu" or len(ticks) < 7:
            return None
        of_this = sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK")
        return cls(sum(ticks), ticks[3] + ticks[4], ticks[5] + ticks[6], own + int(of_this))


def reach_fidelity_verdict(
    relay: dict[str, Any], before: FidelityTimes | None, after: FidelityTimes | None
) -> dict[str, Any]:
    """Returns the fidelity of a run, with the keys that ``landbridge quickstart --json`` prints.

    Args:
        relay: The relay's verdict, as it prints it at its end.
        before: The processor times before the run, if known.
        after: The processor times after it, if known.
    """
    busy = others = None
    void = list(relay["void"])
    if before is not None and after is not None and after.all > before.all:
        total = after.all - before.all
        worked = total - (after.idle - before.idle)
        served = after.own - before.own + after.interrupts - before.interrupts
        busy, others = worked / total, max(worked - served, 0) / total
        if 1 - busy < _IDLE_FRACTION_MIN and others > _OTHERS_FRACTION_MAX:
            text = f"{round_percent(others)} with other programs"
            void.append(f"the machine was {round_percent(busy)} busy, {text}")
    return {
        "lateness_p999_seconds": relay["lateness_ns"]["p999"] / 1e9,
        "machine_busy": busy,
        "busy_by_others": others,
        "void": void,
    }


def describe_fidelity_verdict(fidelity: dict[str, Any]) -> str:
    """Returns the measurements, or the reasons why the times do not count, for a table."""
    if fidelity["void"]:
        return "; ".join(fidelity["void"])
    late = round_quantity(fidelity["lateness_p999_seconds"], TIMES)
    busy = fidelity["machine_busy"]
    share = "unknown" if busy is None else round_percent(busy)
    return f"packets late by {late} (p99.9), machine busy: {share}"


def _process_ticks_for_fidelity(process: int) -> int:
    """Returns the processor time of a process. Its name may hold spaces and stands in brackets."""
    text = Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
    words = text.rpartition(")")[2].split()
    return int(words[11]) + int(words[12])
