"""Splits of a global batch among ranks of unequal speed, which follow speeds that drift.

The gateway's Rust client computes the same splits bit for bit, so that ranks of both languages can
share a job.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Callable, Iterable, Sequence

from ._argument_errors import argument_error
from ._arguments import (
    check_integer_argument,
    check_sequence_argument,
    check_timeout_argument,
    number_argument_or_nan,
)
from ._exchange_integers import IntegerExchangeGroup, exchange_integers
from ._operations.operation import DEFAULT_TIMEOUT_S
from .errors import ConfigError, RanksDisagree, error_on_disagreement_with

#: 2^32 samples: the largest global batch that can be split among ranks; a larger one raises
#: ``ConfigError``. Fractions of it are still exact in a float to far less than one sample.
BATCH_SAMPLES_MAX = 1 << 32
#: 2^64 - 1 samples: the limit on a rank's share where the caller gives none. It is above any batch.
UNLIMITED_SAMPLES = (1 << 64) - 1
#: 5 consecutive steps: another split of the batch is adopted only if it would have saved time in
#: all of them. The number is chosen, since speeds of ranks fluctuate.
SPLIT_CHANGE_STEPS = 5
#: 0.05 of the time of a step with the current split. Another split replaces it only if it would
#: have saved as much or more in each of the last steps. The fraction is chosen.
SPLIT_CHANGE_GAIN = 0.05


def batch_split_shares(
    global_batch: int, speeds: Sequence[float], limits: Sequence[int] | None = None
) -> list[int]:
    """Returns each rank's samples of a global batch, in proportion to the ranks' speeds.

    No split within the limits ends earlier. Among the splits that end as early, each share is as
    near to its quota as whole samples allow.

    Args:
        global_batch: The number of samples of all ranks together.
        speeds: The speed of each rank, in any unit.
        limits: The most samples of each rank.

    Raises:
        ConfigError: A speed or a limit is invalid, or the batch exceeds all limits together.
    """
    allowed = _check_split_limits(limits, len(speeds))
    global_batch = check_integer_argument("global_batch", global_batch, BATCH_SAMPLES_MAX + 1)
    _check_batch(global_batch, speeds, allowed)
    quotas = _compute_split_quotas(global_batch, speeds, allowed)
    shares: list[int] = []
    left = global_batch
    for quota in quotas:
        shares.append(min(int(quota), left))
        left -= shares[-1]

    def split_time_with_next_sample(rank: int, share: int) -> float | None:
        """Returns when a rank ends with one sample more than ``share``; ``None`` at the rank's
        limit."""
        return (share + 1) / speeds[rank] if share < allowed[rank] else None

    # The whole parts of the quotas fit into every makespan, so the search starts from them.
    soonest = list(shares)
    _hand_out_split_samples(soonest, left, split_time_with_next_sample)
    latest = _split_makespan(soonest, speeds)

    def split_remainder_key(rank: int, share: int) -> float | None:
        """Returns the negative remainder of a rank's quota; ``None`` where one sample more would
        end too late."""
        time = split_time_with_next_sample(rank, share)
        return None if time is None or time > latest else share - quotas[rank]

    # Ranks with the largest remainder come first.
    _hand_out_split_samples(shares, left, split_remainder_key)
    return shares


class LocalBatchSplit:
    """The split of a global batch, step by step, as one rank computes it without communication.

    It depends only on the speeds that it is given, so ranks that give the same speeds have the same
    split. A method that raises ``ConfigError`` changes nothing.
    """

    def __init__(
        self, global_batch: int, speeds: Sequence[float], limits: Sequence[int] | None = None
    ) -> None:
        """Splits the batch by the expected speeds of all ranks, in any unit, within the limits of
        each in samples. Raises ``ConfigError``."""
        self._global_batch = check_integer_argument(
            "global_batch", global_batch, BATCH_SAMPLES_MAX + 1
        )
        self._limits = _check_split_limits(limits, len(speeds))
        self._expected = list(speeds)
        #: Each rank's samples of the next step.
        self.shares = batch_split_shares(self._global_batch, speeds, self._limits)
        #: The ranks' speeds in the last steps, newest last.
        self._recent: list[list[float]] = []

    def handle_speeds(self, speeds: Sequence[float]) -> bool:
        """Stores the ranks' speeds in a finished step. Changes the split where one by the medians
        of the last 5 steps would have saved enough time in each of them.

        Args:
            speeds: Samples per unit of time, by rank. A rank without samples has its last speed.

        Returns:
            Whether the split of the next step changes.
        """
        # Invalid speeds are refused before they are remembered.
        _check_batch(self._global_batch, speeds, self._limits)
        self._recent = [*self._recent[-(SPLIT_CHANGE_STEPS - 1) :], list(speeds)]
        if len(self._recent) < SPLIT_CHANGE_STEPS:
            return False
        medians = [sorted(of_rank)[SPLIT_CHANGE_STEPS // 2] for of_rank in zip(*self._recent)]
        other = batch_split_shares(self._global_batch, medians, self._limits)
        if other == self.shares or not all(
            self._saves_step_time(other, recent) for recent in self._recent
        ):
            return False
        self.shares, self._recent = other, []
        return True

    def handle_exchange(
        self, speeds: Sequence[float], agreed: Sequence[int], states: Sequence[int]
    ) -> bool:
        """Stores the speeds and hashes that all ranks exchanged after a step, and changes the split
        if needed.

        An exchange that fails on some ranks only leaves ranks with different splits. The next
        exchange that succeeds then makes a new split from its speeds alone.

        Args:
            speeds: The speed of each rank; 0 for one not measured yet.
            agreed: The ``arguments_hash()`` of each rank.
            states: The ``split_hash()`` of each rank.

        Returns:
            Whether the split of the next step changes. True as well where ranks had different
            splits.

        Raises:
            RanksDisagree: Ranks split another batch, or with other speeds or limits.
        """
        for rank, one in enumerate(agreed):
            if one != agreed[0]:
                what = "another global batch, by other speeds, or within other limits, than rank 0"
                text = "give every rank the same fabric file and the same arguments"
                raise RanksDisagree(f"rank {rank} splits {what}; {text}")
        speeds = self._fill_in_unmeasured_speeds(speeds)
        if all(state == states[0] for state in states):
            return self.handle_speeds(speeds)
        self.shares = batch_split_shares(self._global_batch, speeds, self._limits)
        self._recent = []
        return True

    def arguments_hash(self) -> int:
        """Returns a hash of the global batch, the limits and the expected speeds, which must be
        equal on all ranks."""
        expected = [_split_speed_bits(speed) for speed in self._expected]
        return _batch_split_hash([self._global_batch, *self._limits, *expected])

    def split_hash(self) -> int:
        """Returns a hash of the current shares and the recent speeds, which decide the next
        split."""
        recent = [_split_speed_bits(speed) for speeds in self._recent for speed in speeds]
        return _batch_split_hash([*self.shares, *recent])

    def _fill_in_unmeasured_speeds(self, speeds: Sequence[float]) -> Sequence[float]:
        """Returns the speeds with an expected speed for each rank that is not measured yet, whose
        speed is 0.

        Expected speeds are in any unit, so they are scaled by the measured speeds of the others.
        """
        if 0 not in speeds or len(speeds) != len(self._expected):
            return speeds
        measured = [(s, e) for s, e in zip(speeds, self._expected) if s != 0]
        if not measured:
            return self._expected
        total, expected = (
            _sum_split_in_order(s for s, _ in measured),
            _sum_split_in_order(e for _, e in measured),
        )
        return [s if s != 0 else e / expected * total for s, e in zip(speeds, self._expected)]

    def _saves_step_time(self, other: Sequence[int], speeds: Sequence[float]) -> bool:
        """Returns whether the shares ``other`` would have shortened a step at these speeds by at
        least ``SPLIT_CHANGE_GAIN``."""
        return _split_makespan(other, speeds) <= (1.0 - SPLIT_CHANGE_GAIN) * _split_makespan(
            self.shares, speeds
        )


class BatchSplit:
    """A split of a global batch that follows the ranks' speeds, from ``Group.batch_split``.

    All ranks make it with the same arguments, and end the same steps.

    Attributes:
        was_alike: Whether all ranks had the same split before the last exchange.
    """

    def __init__(
        self,
        group: IntegerExchangeGroup,
        global_batch: int,
        speeds: Sequence[float],
        limits: Sequence[int] | None,
    ) -> None:
        """Splits the batch by expected speeds; nothing is exchanged yet.

        Args:
            group: The ranks that share the batch.
            global_batch: The samples of all ranks together.
            speeds: The expected speed of each rank, in any unit.
            limits: The most samples of each rank, or ``None`` for no limits.
        """
        self._group = group
        self._split = LocalBatchSplit(global_batch, speeds, limits)
        #: This rank's speed when it last had samples, in samples per second, or 0.
        self._speed = 0.0
        self.was_alike = True

    @property
    def samples(self) -> int:
        """The samples of this rank in the next step, which are its weight in an average of
        gradients."""
        return self._split.shares[self._group.rank]

    @property
    def shares(self) -> list[int]:
        """The samples of each rank in the next step, by rank."""
        return list(self._split.shares)

    def end_step(
        self,
        computed_seconds: float,
        samples: int | None = None,
        *,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> bool:
        """Ends a step: exchanges the ranks' speeds, by one collective about as fast as a barrier.

        If an exchange fails on some ranks only, ranks may have different splits. The next one
        that succeeds makes a new split on all ranks, and ``was_alike`` is false after it.

        Args:
            computed_seconds: How long this rank computed, without waits for other ranks.
            samples: How many samples it computed, if not ``self.samples``.
            layout: A hash of anything else that the ranks must agree on.
            timeout: How long to wait for the other ranks, in seconds.

        Returns:
            Whether the split of the next step changes, which all ranks answer alike.

        Raises:
            ConfigError: ``computed_seconds`` is negative or not finite.
            RanksDisagree: Ranks split another batch, or with other speeds or limits.
            LandbridgeError: As ``Group.all_reduce``. The split is unchanged.
        """
        seconds = check_split_seconds(computed_seconds)
        check_timeout_argument(timeout)
        if samples is None:
            samples = self.samples
        samples = check_integer_argument("samples", samples, BATCH_SAMPLES_MAX + 1)
        if samples > 0 and seconds > 0:
            self._speed = samples / seconds
        given = [
            _split_speed_bits(self._speed),
            self._split.arguments_hash(),
            self._split.split_hash(),
        ]
        with error_on_disagreement_with(lambda: f"this rank passed layout {layout:#x} to end_step"):
            rows = exchange_integers(self._group, given, layout=layout, timeout=timeout)
        bits, agreed, states = rows
        speeds = struct.unpack(f"={len(bits)}d", struct.pack(f"={len(bits)}Q", *bits))
        changed = self._split.handle_exchange(speeds, agreed, states)
        self.was_alike = len(set(states)) == 1
        return changed


def check_split_seconds(computed_seconds: float) -> float:
    """Returns the time that a step took to compute. Raises ``ConfigError`` where it is negative or
    not finite."""
    seconds = number_argument_or_nan(computed_seconds)
    if not 0 <= seconds < math.inf:
        raise argument_error("computed_seconds", computed_seconds, "finite and not negative")
    return seconds


def _split_speed_bits(value: float) -> int:
    """Returns the bits of a 64-bit float as an integer, for an exchange of integers."""
    bits: int = struct.unpack("=Q", struct.pack("=d", value))[0]
    return bits


def _check_split_limits(limits: Sequence[int] | None, ranks: int) -> list[int]:
    """Returns the most samples of each rank as integers: ``UNLIMITED_SAMPLES`` of all where
    ``limits`` is ``None``. Raises ``ConfigError`` for a limit out of range."""
    if limits is None:
        return [UNLIMITED_SAMPLES] * ranks
    given = check_sequence_argument("limits", limits, "a list of one number for each rank")
    most = UNLIMITED_SAMPLES + 1
    return [
        check_integer_argument(f"limit of rank {rank}", limit, most)
        for rank, limit in enumerate(given)
    ]


def _check_batch(global_batch: int, speeds: Sequence[float], limits: Sequence[int]) -> None:
    """Raises ``ConfigError`` without speeds, for other numbers of limits than of speeds, and for
    limits that cannot hold the batch together. Each speed, and their sum, must be finite, and each
    above 0."""
    if not speeds:
        raise ConfigError("no speeds: a batch needs at least one rank")
    if len(speeds) != len(limits):
        raise ConfigError(f"{len(limits)} limits for {len(speeds)} ranks: give one for each rank")
    for rank, speed in enumerate(speeds):
        if not (math.isfinite(speed) and speed > 0):
            raise ConfigError(f"rank {rank} has speed {speed}: it must be finite and above 0")
    if not math.isfinite(_sum_split_in_order(speeds)):
        raise ConfigError("the sum of the speeds is infinite: give them in a larger unit")
    if sum(limits) < global_batch:
        text = f"is above the {sum(limits)} that all ranks hold together"
        raise ConfigError(f"a batch of {global_batch} samples {text}; raise their limits")


def _compute_split_quotas(
    global_batch: int, speeds: Sequence[float], limits: Sequence[int]
) -> list[float]:
    """Returns fractional shares with which all ranks below their limit end together.

    The loop is Newton's method on the samples done by a time, a concave function. Each round halves
    the missing samples or the speed of the remaining ranks, so few rounds are needed.
    """
    full = [False] * len(speeds)
    while True:
        left = float(global_batch - sum(limit for limit, is_full in zip(limits, full) if is_full))
        total = _sum_split_in_order(speed for speed, is_full in zip(speeds, full) if not is_full)
        quotas = [
            float(limit) if is_full else left * (speed / total)
            for speed, limit, is_full in zip(speeds, limits, full)
        ]
        over = [rank for rank, limit in enumerate(limits) if quotas[rank] > float(limit)]
        if not over:
            return quotas
        for rank in over:
            full[rank] = True


def _hand_out_split_samples(
    shares: list[int], samples: int, key: Callable[[int, int], float | None]
) -> None:
    """Gives samples one by one to the rank with the least key, and to the lower rank of two equals.

    A key depends only on the rank and its share. A rank whose key is ``None`` gets no more.
    """
    keys = ((key(rank, share), rank) for rank, share in enumerate(shares))
    waiting = [(one, rank) for one, rank in keys if one is not None]
    heapq.heapify(waiting)
    for _ in range(samples):
        rank = waiting[0][1]
        shares[rank] += 1
        following = key(rank, shares[rank])
        if following is None:
            heapq.heappop(waiting)
        else:
            heapq.heapreplace(waiting, (following, rank))


def _split_makespan(shares: Sequence[int], speeds: Sequence[float]) -> float:
    """Returns the time of a step with these shares: that of the rank that ends last."""
    return max(share / speed for share, speed in zip(shares, speeds))


def _sum_split_in_order(values: Iterable[float]) -> float:
    """Returns the sum of the values, added in order. The built-in ``sum`` rounds differently from
    Python 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total


def _batch_split_hash(values: Sequence[int]) -> int:
    """Returns the 64-bit FNV-1a hash of unsigned 64-bit integers, taken as bytes with the highest
    first."""
    hashed = 0xCBF2_9CE4_8422_2325
    for byte in struct.pack(f">{len(values)}Q", *values):
        hashed = (hashed ^ byte) * 0x0100_0000_01B3 & 0xFFFF_FFFF_FFFF_FFFF
    return hashed
