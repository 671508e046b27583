"""The trainers of a site that share one rank of the fabric."""

from __future__ import annotations

import weakref
from typing import Any, Optional, Tuple

import torch
import torch.distributed as dist

from .. import errors
from .._group import Group

#: How many trainers share the rank, by what was made over each group.
_sizes: weakref.WeakKeyDictionary[Group, int] = weakref.WeakKeyDictionary()


class LocalRanks:
    """Those of ``process_group``, seen from one of them; without one, a trainer alone.

    Raises ``ConfigError`` where something else over the same group was made with another number
    of them: local ranks would train on the same samples, or leave gradients out.
    """

    def __init__(self, group: Group, process_group: Optional[Any]) -> None:
        self.process_group = process_group
        self.size, self.index = 1, 0
        if process_group is not None:
            self.size, self.index = dist.get_world_size(process_group), dist.get_rank(process_group)
        if self.size < 1:
            raise errors.ConfigError("this trainer is not in the process group that it was given")
        other = _sizes.setdefault(group, self.size)
        if other != self.size:
            raise errors.ConfigError(
                f"over one group, something is for {other} trainers of a site and something for "
                f"{self.size}: give `State` and `UnevenSampler` the same process group"
            )

    def __str__(self) -> str:
        return f"{self.index} of {self.size}"

    def part(self, samples: int) -> Tuple[int, int]:
        """Where this trainer's part of the site's samples begins, and how many it has."""
        least, more = divmod(samples, self.size)
        return self.index * least + min(self.index, more), least + (self.index < more)

    def most(self, value: float, failure: Optional[errors.LandbridgeError] = None) -> float:
        """The largest value of all local ranks; a collective of the process group.

        Where one of them has a failure all raise: that one its own, the others ``EpochEnded``.
        Raises ``SiteFailed`` when one is gone.
        """
        if self.size > 1:
            failed = 0 if failure is None else self.size - self.index
            both = torch.tensor([value, failed], dtype=torch.float64)
            try:
                dist.all_reduce(both, dist.ReduceOp.MAX, group=self.process_group)
            except RuntimeError as error:
                raise errors.SiteFailed(
                    "the trainers of this site cannot end a step together any more, start all of "
                    f"them anew: {error}"
                ) from error
            value, first = both.tolist()
            if failure is None and first:
                text = f"rank {self.size - round(first)} of this site could not end the step"
                failure = errors.EpochEnded(text)
        if failure is not None:
            raise failure
        return value
