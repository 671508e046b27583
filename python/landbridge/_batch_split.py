"""A global batch in whole samples, split among ranks of unequal speed, and anew as speeds drift.

The same splits as the daemon's own, to the bit, so that ranks of either language share a job.
"""

from __future__ import annotations

import heapq
import math
import operator
import struct
from typing import TYPE_CHECKING, Callable, Iterable, List, Optional, Sequence

from ._exchange import exchange
from ._operation import DEFAULT_TIMEOUT_S
from .errors import ConfigError, RanksDisagree

if TYPE_CHECKING:
    from ._group import Group

#: The largest global batch.
BATCH_MAX = 1 << 32
#: The limit of a rank that has none.
UNLIMITED = (1 << 64) - 1
#: Another split must have been better in so many steps one after the other,
STEPS = 5
#: by this part of the time of each.
GAIN = 0.05


def batch_shares(
    global_batch: int, speeds: Sequence[float], limits: Optional[Sequence[int]] = None
) -> List[int]:
    """Samples for each rank, adding up to ``global_batch``, in proportion to ``speeds``.

    No other split within ``limits``, samples of each rank, ends earlier, and among those that
    end with it each share is as near to its quota as whole samples allow. Raises ``ConfigError``.
    """
    allowed = _limits(limits, len(speeds))
    _check(global_batch, speeds, allowed)
    quotas = _quotas(global_batch, speeds, allowed)
    shares: List[int] = []
    left = global_batch
    for quota in quotas:
        shares.append(min(int(quota), left))
        left -= shares[-1]

    def time_of_next(rank: int, share: int) -> Optional[float]:
        return (share + 1) / speeds[rank] if share < allowed[rank] else None

    # Whole parts of quotas fit into every makespan, so starting from them loses nothing.
    soonest = list(shares)
    _hand_out(soonest, left, time_of_next)
    latest = _makespan(soonest, speeds)

    def remainder(rank: int, share: int) -> Optional[float]:
        time = time_of_next(rank, share)
        return None if time is None or time > latest else share - quotas[rank]

    # The largest remainder first.
    _hand_out(shares, left, remainder)
    return shares


class Split:
    """How a global batch is split, step by step.

    What it answers follows from what it was told alone, so that all ranks that tell it the same
    speeds have the same split. Speeds that breathe change nothing: another split must have been
    better in each of the last steps. Everything here raises ``ConfigError``, and then nothing
    has changed.
    """

    def __init__(
        self, global_batch: int, speeds: Sequence[float], limits: Optional[Sequence[int]] = None
    ) -> None:
        self._global_batch = operator.index(global_batch)
        self._limits = _limits(limits, len(speeds))
        self._expected = list(speeds)
        #: Each rank's samples of the next step, adding up to the global batch.
        self.shares = batch_shares(global_batch, speeds, self._limits)
        #: Speeds in the last steps, newest last.
        self._seen: List[List[float]] = []

    def handle_speeds(self, speeds: Sequence[float]) -> bool:
        """A step is over, in which ranks had these speeds, in samples per unit of time; for a
        rank without samples, the last that it had. True if the next step is split in another
        way."""
        # What cannot be split by is refused before it is remembered.
        _check(self._global_batch, speeds, self._limits)
        self._seen = [*self._seen[-(STEPS - 1) :], list(speeds)]
        if len(self._seen) < STEPS:
            return False
        # Medians.
        usual = [sorted(of_one)[STEPS // 2] for of_one in zip(*self._seen)]
        other = batch_shares(self._global_batch, usual, self._limits)
        if other == self.shares or not all(self._is_better(other, seen) for seen in self._seen):
            return False
        self.shares, self._seen = other, []
        return True

    def handle_exchange(
        self, speeds: Sequence[float], agreed: Sequence[int], states: Sequence[int]
    ) -> bool:
        """Every rank's speeds, 0 for those not measured yet, and what each says of its own split:
        ``agreed`` and ``state``. A collective of speeds that failed on some ranks and not on others
        leaves them with unlike splits, so that the next that succeeds splits anew, by its speeds
        alone. True if the next step is split in another way. Raises ``RanksDisagree`` as well."""
        for rank, one in enumerate(agreed):
            if one != agreed[0]:
                what = "another global batch, by other speeds, or within other limits, than rank 0"
                raise RanksDisagree(f"rank {rank} splits {what}")
        speeds = self._in_one_unit(speeds)
        if all(state == states[0] for state in states):
            return self.handle_speeds(speeds)
        self.shares = batch_shares(self._global_batch, speeds, self._limits)
        self._seen = []
        return True

    def agreed(self) -> int:
        """A name for what all ranks must have said alike: the global batch, the limits, and the
        speeds that were expected."""
        expected = [_bits(speed) for speed in self._expected]
        return _name([self._global_batch, *self._limits, *expected])

    def state(self) -> int:
        """A name for all that the next answers follow from, but for what is agreed."""
        seen = [_bits(speed) for speeds in self._seen for speed in speeds]
        return _name([*self.shares, *seen])

    def _in_one_unit(self, speeds: Sequence[float]) -> Sequence[float]:
        """A rank whose speed was not measured has what was expected of it, in proportion to what
        the others turned out to have, for speeds are expected in any unit."""
        if 0 not in speeds or len(speeds) != len(self._expected):
            return speeds
        measured = [(s, e) for s, e in zip(speeds, self._expected) if s != 0]
        if not measured:
            return self._expected
        total, expected = _sum(s for s, _ in measured), _sum(e for _, e in measured)
        return [s if s != 0 else e / expected * total for s, e in zip(speeds, self._expected)]

    def _is_better(self, other: Sequence[int], speeds: Sequence[float]) -> bool:
        return _makespan(other, speeds) <= (1.0 - GAIN) * _makespan(self.shares, speeds)


class BatchSplit:
    """A global batch that all ranks split alike, and anew as their speeds drift; from
    ``Group.batch_split``. All ranks make one alike, and end the same steps."""

    def __init__(
        self,
        group: Group,
        global_batch: int,
        speeds: Sequence[float],
        limits: Optional[Sequence[int]],
    ) -> None:
        self._group = group
        self._split = Split(global_batch, speeds, limits)
        #: This rank's speed when it last had samples, in samples per second; 0 before that.
        self._speed = 0.0
        #: Whether all ranks had the same split up to the last exchange.
        self.was_alike = True

    @property
    def samples(self) -> int:
        """This rank's samples of the next step. An average of gradients is weighted by it."""
        return self._split.shares[self._group.rank]

    @property
    def shares(self) -> List[int]:
        """Every rank's samples of the next step, by rank; they add up to the global batch."""
        return list(self._split.shares)

    def end_step(
        self,
        computed_seconds: float,
        samples: Optional[int] = None,
        *,
        layout: int = 0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> bool:
        """The step is over, and this rank computed for so long, waits for others not counted: a
        collective of three numbers for each rank, which costs about what a barrier does. True if
        the next step is split in another way, on all ranks alike.

        ``samples`` says how many this rank computed, where that was an earlier split's part;
        ``layout`` is a hash of whatever else the ranks must agree on, ``timeout`` in seconds how
        long to wait for the other ranks. Where the exchange failed on some ranks and not on
        others, they may split unlike; the next that succeeds splits anew on all of them, and
        ``was_alike`` is false after it.

        Raises ``ConfigError`` for a time that gives no speed, ``RanksDisagree`` where a rank
        splits another batch, by other speeds of the fabric or within other limits, and what
        ``Group.all_reduce`` and ``Operation.wait`` raise. The split is then as it was.
        """
        if not 0 <= computed_seconds < math.inf:
            text = "accepted: finite and not negative"
            raise ConfigError(f"a step of {computed_seconds} s: {text}")
        samples = self.samples if samples is None else samples
        if samples > 0 and computed_seconds > 0:
            self._speed = samples / computed_seconds
        given = [_bits(self._speed), self._split.agreed(), self._split.state()]
        bits, agreed, states = exchange(self._group, given, layout=layout, timeout=timeout)
        speeds = struct.unpack(f"={len(bits)}d", struct.pack(f"={len(bits)}Q", *bits))
        changed = self._split.handle_exchange(speeds, agreed, states)
        self.was_alike = len(set(states)) == 1
        return changed


def _bits(value: float) -> int:
    """The bits of a 64-bit float."""
    bits: int = struct.unpack("=Q", struct.pack("=d", value))[0]
    return bits


def _limits(limits: Optional[Sequence[int]], ranks: int) -> List[int]:
    if limits is None:
        return [UNLIMITED] * ranks
    for rank, limit in enumerate(limits):
        if not 0 <= limit <= UNLIMITED:
            raise ConfigError(f"rank {rank} has a limit of {limit}: accepted: 0 to 2^64 - 1")
    return [operator.index(limit) for limit in limits]


def _check(global_batch: int, speeds: Sequence[float], limits: Sequence[int]) -> None:
    if not speeds:
        raise ConfigError("a batch needs at least one rank")
    if not 0 <= global_batch <= BATCH_MAX:
        raise ConfigError(f"a batch of {global_batch} samples: accepted: 0 to {BATCH_MAX}")
    if len(speeds) != len(limits):
        raise ConfigError(f"{len(limits)} limits for {len(speeds)} ranks")
    for rank, speed in enumerate(speeds):
        if not (math.isfinite(speed) and speed > 0):
            raise ConfigError(f"rank {rank} has speed {speed}: it must be finite and above 0")
    if not math.isfinite(_sum(speeds)):
        raise ConfigError("the speeds add up to too much: give them in a larger unit")
    if sum(limits) < global_batch:
        room = f"the {sum(limits)} that all ranks hold together"
        raise ConfigError(f"a batch of {global_batch} samples is above {room}")


def _quotas(global_batch: int, speeds: Sequence[float], limits: Sequence[int]) -> List[float]:
    """What each rank would do of divisible samples, so that all below their limit end together.

    Few rounds: this is Newton's method on samples done by a time, a concave function, where in
    each round what is missing or the speed of the ranks left becomes half or less.
    """
    full = [False] * len(speeds)
    while True:
        left = float(global_batch - sum(limit for limit, is_full in zip(limits, full) if is_full))
        total = _sum(speed for speed, is_full in zip(speeds, full) if not is_full)
        quotas = [
            float(limit) if is_full else left * (speed / total)
            for speed, limit, is_full in zip(speeds, limits, full)
        ]
        over = [rank for rank, limit in enumerate(limits) if quotas[rank] > float(limit)]
        if not over:
            return quotas
        for rank in over:
            full[rank] = True


def _hand_out(shares: List[int], samples: int, key: Callable[[int, int], Optional[float]]) -> None:
    """Gives samples one by one to the rank of the least key, of equals the lower rank. A key
    follows from the rank's own share; a rank without one gets no more."""
    keys = ((key(rank, share), rank) for rank, share in enumerate(shares))
    waiting = [(of_one, rank) for of_one, rank in keys if of_one is not None]
    heapq.heapify(waiting)
    for _ in range(samples):
        rank = waiting[0][1]
        shares[rank] += 1
        following = key(rank, shares[rank])
        if following is None:
            heapq.heappop(waiting)
        else:
            heapq.heapreplace(waiting, (following, rank))


def _makespan(shares: Sequence[int], speeds: Sequence[float]) -> float:
    return max(share / speed for share, speed in zip(shares, speeds))


def _sum(values: Iterable[float]) -> float:
    """One after the other, for `sum` rounds less from Python 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total


def _name(values: Sequence[int]) -> int:
    """64-bit FNV-1a."""
    name = 0xCBF2_9CE4_8422_2325
    for byte in struct.pack(f">{len(values)}Q", *values):
        name = (name ^ byte) * 0x0100_0000_01B3 & 0xFFFF_FFFF_FFFF_FFFF
    return name
