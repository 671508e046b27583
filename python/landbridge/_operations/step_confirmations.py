"""The commits of ranks that were confirmed last, which tell whose state counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StepConfirmation(NamedTuple):
    """The commit of a rank that was confirmed last. A rank that takes the state of another takes
    that one's confirmation with it. The later of two is the greater."""

    #: The epoch whose collectives the commit covers, or 0 where none was confirmed.
    epoch: int = 0
    #: The step of that commit, or 0.
    step: int = 0


class ExpectedConfirmation(NamedTuple):
    """The confirmation of a state that a rank is to take. It counts when the ranks compare their
    steps again in the same epoch, if no collective has failed before."""

    #: The epoch in which the ranks compared their steps.
    epoch: int
    #: The confirmation of the rank whose state it is.
    confirmation: StepConfirmation


def list_overtaken_ranks(confirmations: Sequence[StepConfirmation]) -> list[int]:
    """Returns the ranks whose last step others have done again without them: others have
    confirmed the same step in a later epoch. ``confirmations`` has one of each rank, by rank."""
    latest: dict[int, int] = {}
    for confirmation in confirmations:
        step = confirmation.step
        latest[step] = max(confirmation.epoch, latest.get(step, 0))
    return [
        rank
        for rank, confirmation in enumerate(confirmations)
        if 0 < confirmation.epoch < latest[confirmation.step]
    ]


def list_ranks_ahead(steps: Sequence[int], confirmations: Sequence[StepConfirmation]) -> list[int]:
    """Returns the ranks whose state the others take: of those that are not overtaken, the ranks
    that have finished the most steps. Both arguments have a value of each rank, by rank."""
    overtaken = list_overtaken_ranks(confirmations)
    others = [rank for rank in range(len(steps)) if rank not in overtaken]
    most = max(steps[rank] for rank in others)
    return [rank for rank in others if steps[rank] == most]


def find_latest_rank(ahead: Sequence[int], confirmations: Sequence[StepConfirmation]) -> int:
    """Returns the first of the ranks ``ahead`` with the latest confirmation. Epoch and step are
    taken from this one rank: those of two ranks may be of no commit."""
    return max(ahead, key=lambda rank: confirmations[rank])
