"""Continuing after a failure with state of any library: bytes from a rank ahead to ranks behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .._argument_errors import argument_error
from .._arguments import check_integer_argument, check_timeout_argument
from .._exchange_integers import exchange_integers
from .._group import Group, check_group_argument
from .._operations.operation import DEFAULT_TIMEOUT_S
from .._operations.step_confirmations import (
    StepConfirmation,
    find_latest_rank,
    list_ranks_ahead,
)
from ..errors import CollectiveFailed, StateNotTransferred
from .pieces import ReceivedPieces
from .transfer_round import TransferRanks, TransferRound

#: 64 ranks, from 0 on: those that a rank can refuse by number, each by a bit of one integer. Where
#: it must refuse another rank it ends the transfer.
_REFUSABLE_RANKS = 64


class RefusedSenders:
    """The ranks from which pieces came that have another digest than was told."""

    def __init__(self, group: Group) -> None:
        """Begins without any."""
        self._group = group
        # By their numbers in the fabric, since ``recover`` may give ranks other ones.
        self._ranks: set[int] = set()

    def add_senders(self, ranks: list[int]) -> Exception | None:
        """Adds ranks. Returns an error where one cannot be named to the others."""
        self._ranks |= {self._group._rank_in_job(rank) for rank in ranks}
        beyond = [rank for rank in ranks if rank >= _REFUSABLE_RANKS]
        return refused_senders_error(beyond) if beyond else None

    def encode_refused_ranks(self) -> int:
        """Returns the ranks as bits, by their numbers now."""
        count = min(self._group.world_size, _REFUSABLE_RANKS)
        numbers = [self._group._rank_in_job(rank) for rank in range(count)]
        return sum(1 << rank for rank, number in enumerate(numbers) if number in self._ranks)


def list_refused_ranks(told: list[int]) -> set[int]:
    """Returns the ranks that any rank refuses. ``told`` has the bits of each rank."""
    return {at for at in range(_REFUSABLE_RANKS) if any(bits >> at & 1 for bits in told)}


def refused_senders_error(ranks: list[int]) -> StateNotTransferred:
    """Returns the error of a state that nobody is left to send."""
    named = ", ".join(map(str, ranks))
    return StateNotTransferred(
        f"the state that rank {named} sent does not have the digests that were told before: check "
        "the memory of that host and of its gateway, and start that rank again"
    )


class _ResumedRanks(NamedTuple):
    """The steps of all ranks, and how the last attempt of each ended, by rank."""

    steps: list[int]
    #: Whether a rank could not send its state or load another one.
    failed: list[int]
    refused: list[int]
    #: The epochs and the steps of the commits that were confirmed last; 0 where none was.
    epochs: list[int]
    confirmed: list[int]

    def plan_transfer(self) -> TransferRanks | None:
        """Returns who sends and who receives; ``None`` where all ranks are ahead. Raises
        ``StateNotTransferred`` where every rank that is ahead was refused."""
        ahead = self._ahead
        behind = [rank for rank in range(len(self.steps)) if rank not in ahead]
        if not behind:
            return None
        refused = list_refused_ranks(self.refused)
        senders = [rank for rank in ahead if rank not in refused]
        if not senders:
            raise refused_senders_error(ahead)
        return TransferRanks(senders, behind)

    def find_source(self) -> tuple[int, StepConfirmation]:
        """Returns the step and the latest confirmation of the ranks that are ahead."""
        rank = find_latest_rank(self._ahead, self._confirmations)
        return self.steps[rank], self._confirmations[rank]

    @property
    def _ahead(self) -> list[int]:
        """The ranks whose state all others get."""
        return list_ranks_ahead(self.steps, self._confirmations)

    @property
    def _confirmations(self) -> list[StepConfirmation]:
        """The commit of each rank that was confirmed last."""
        return list(map(StepConfirmation, self.epochs, self.confirmed))


def resume_state(
    group: Group,
    step: int,
    save: Callable[[], Any],
    load: Callable[[memoryview], None],
    *,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> int:
    """Brings all ranks to the same step and the same state, and returns that step.

    It is ``landbridge.torch.resume`` for state of any library, such as NumPy or JAX. Every rank
    calls it before its first step and after each ``recover``. A rank that has finished fewer steps
    than another receives what ``save`` returns on a rank that is ahead, and so does a rank whose
    last step others have committed again without it. Other ranks at one step need no transfer, and
    must have equal states. So give all ranks equal states before the first step.

    Up to four ranks that are ahead send at a time, each a part, over their own links. If one is
    lost, others send the rest, and what has come is kept. Every part is compared with a digest.
    Ranks that are behind need memory for the state, and each rank that sends for a copy of it.
    The other ranks wait for the transfer.

    Args:
        group: The ranks.
        step: The number of steps that this rank has finished.
        save: Returns the state after that step as bytes, or anything with the buffer protocol. The
            buffer must not change until ``resume_state`` returns.
        load: Takes the bytes of a rank that is ahead. It must copy what it keeps.
        timeout: How long all of it may take, in seconds.

    Returns:
        The number of finished steps, the same on every rank.

    Raises:
        StateNotTransferred: ``save`` or ``load`` has failed on some rank, or a rank has no memory
            for the state, or parts of every rank that is ahead have other digests than were told.
            Every rank raises it.
        ArenaFull: The arena of some rank has too little room. Every rank raises an error at once.
        ConfigError: ``step`` is no whole number from 0 to 2^63 - 1, or another argument cannot be
            used.
        LandbridgeError: As ``Group.recover``.
    """
    step = check_integer_argument("step", step, 1 << 63)
    check_timeout_argument(timeout)
    check_group_argument(group)
    for name, function in (("save", save), ("load", load)):
        if not callable(function):
            raise argument_error(name, function, "a function")
    deadline = time.monotonic() + timeout

    def remaining_s() -> float:
        """Returns the seconds until the deadline, at least 1 ms."""
        return max(deadline - time.monotonic(), 0.001)

    received, refused = ReceivedPieces(), RefusedSenders(group)
    trouble: Exception | None = None
    while True:
        try:
            told = [step, int(trouble is not None), refused.encode_refused_ranks()]
            told += group._state.confirmation
            ranks = _ResumedRanks(*exchange_integers(group, told, timeout=remaining_s()))
            _raise_failed_resume(group.rank, ranks.failed, trouble)
            plan = ranks.plan_transfer()
            if plan is None:
                return step
            attempt = TransferRound(group, plan, received, remaining_s)
            attempt.begin_round(save)
            attempt.finish_round()
            trouble = attempt.trouble or refused.add_senders(attempt.damaged)
            if attempt.has_received_all:
                trouble = _load_resumed_state(load, received)
                if trouble is None:
                    step, group._state.confirmation = ranks.find_source()
        except CollectiveFailed as failure:
            if time.monotonic() >= deadline:
                raise
            group.recover(failure, remaining_s())


def _load_resumed_state(
    load: Callable[[memoryview], None], received: ReceivedPieces
) -> Exception | None:
    """Gives a state to the caller. Returns the error of one that it cannot load, so that the other
    ranks are told first."""
    try:
        load(received.content)
    except Exception as error:
        return error
    return None


def _raise_failed_resume(me: int, failed: list[int], trouble: Exception | None) -> None:
    """Raises ``StateNotTransferred`` if this or another rank could not send or load a state.
    ``trouble`` is this rank's error."""
    if trouble is not None:
        text = f"rank {me} cannot send or load the state: {type(trouble).__name__}: {trouble}"
        raise StateNotTransferred(text) from trouble
    others = ", ".join(str(rank) for rank, has_failed in enumerate(failed) if has_failed)
    if others:
        text = f"rank {others} cannot send or load the state; the reason is in its own error"
        raise StateNotTransferred(text)
