"""A global batch in whole samples, split among ranks of unequal speed.

The same split as the daemon's own: no other ends earlier, and among those each share is as
near to its quota as whole samples allow.
"""

from __future__ import annotations

import math
from typing import List, Sequence

#: The largest global batch.
BATCH_MAX = 1 << 32


def batch_shares(global_batch: int, speeds: Sequence[float]) -> List[int]:
    """Samples for each rank, adding up to ``global_batch``, in proportion to ``speeds``.

    Raises ``ValueError``.
    """
    total = _check(global_batch, speeds)
    quotas = [global_batch * (speed / total) for speed in speeds]
    shares: List[int] = []
    left = global_batch
    for quota in quotas:
        shares.append(min(int(quota), left))
        left -= shares[-1]
    makespan = _least_makespan(list(shares), left, speeds)
    for _ in range(left):
        in_time = [r for r in range(len(speeds)) if _next_ends(shares, speeds, r) <= makespan]
        # Of equals the lower rank.
        next_rank = max(in_time, key=lambda rank: (quotas[rank] - shares[rank], -rank))
        shares[next_rank] += 1
    return shares


def _check(global_batch: int, speeds: Sequence[float]) -> float:
    if not speeds:
        raise ValueError("a batch needs at least one rank")
    if not 0 <= global_batch <= BATCH_MAX:
        raise ValueError(f"a batch of {global_batch} samples: accepted: 0 to {BATCH_MAX}")
    for rank, speed in enumerate(speeds):
        if not (math.isfinite(speed) and speed > 0):
            raise ValueError(f"rank {rank} has speed {speed}: it must be finite and above 0")
    total = 0.0
    for speed in speeds:
        total += speed
    if not math.isfinite(total):
        raise ValueError("the speeds add up to too much: give them in a larger unit")
    return total


def _least_makespan(shares: List[int], left: int, speeds: Sequence[float]) -> float:
    for _ in range(left):
        first = min(range(len(speeds)), key=lambda rank: _next_ends(shares, speeds, rank))
        shares[first] += 1
    return max(share / speed for share, speed in zip(shares, speeds))


def _next_ends(shares: Sequence[int], speeds: Sequence[float], rank: int) -> float:
    return (shares[rank] + 1) / speeds[rank]
