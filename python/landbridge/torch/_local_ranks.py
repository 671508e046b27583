"""The trainers of a site that share one rank of the fabric.

A site is the trainers of one region that share a process group.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist

from .. import errors
from .._argument_errors import argument_error
from .._group import Group

#: For each group, the number of trainers that share its rank.
_site_sizes: weakref.WeakKeyDictionary[Group, int] = weakref.WeakKeyDictionary()


class LocalRanks:
    """The trainers of a process group, seen from one of them. Without a process group, one trainer
    alone."""

    def __init__(self, group: Group, process_group: Any | None) -> None:
        """Notes how many trainers share the rank of ``group``.

        Raises:
            ConfigError: There is no such process group, or this trainer is not in it; or something
                else over the same group was made for another number of trainers. They would train
                on the same samples, or leave gradients out.
        """
        self.process_group = process_group
        self.size, self.index = 1, 0
        if process_group is not None:
            try:
                self.size = dist.get_world_size(process_group)
                self.index = dist.get_rank(process_group)
            except (AttributeError, TypeError, ValueError, RuntimeError) as error:
                accepted = "a process group of torch.distributed that this process has made"
                raise argument_error("process_group", process_group, accepted) from error
        if self.size < 1:
            raise errors.ConfigError(
                "this trainer is not in its `process_group`; pass the one it is in"
            )
        other = _site_sizes.setdefault(group, self.size)
        if other != self.size:
            raise errors.ConfigError(
                f"one group is used for {other} trainers of a site and for {self.size}: give "
                "`State` and `UnevenSampler` the same process group"
            )

    def __str__(self) -> str:
        """Returns this trainer's number and the number of all, such as ``0 of 4``."""
        return f"{self.index} of {self.size}"

    def split_samples(self, samples: int) -> tuple[int, int]:
        """Returns the start and the length of this trainer's part of the site's samples, split
        evenly."""
        least, more = divmod(samples, self.size)
        return self.index * least + min(self.index, more), least + (self.index < more)

    def reduce_max(
        self, value: float, failure: errors.LandbridgeError | None = None, digest: int = 0
    ) -> float:
        """Returns the largest value of all trainers of the site, by a collective among them.

        Args:
            value: This trainer's value.
            failure: The reason why this trainer has no value.
            digest: A hash of anything on which the trainers must agree, of at most 53 bits, which
                a 64-bit float holds.

        Raises:
            LandbridgeError: ``failure``, on the trainer that has one.
            EpochEnded: Another trainer has a failure.
            RanksDisagree: Trainers have different digests.
            SiteFailed: A trainer of the site is gone.
        """
        if self.size > 1:
            failed = 0 if failure is None else self.size - self.index
            told = torch.tensor([value, failed, digest, -digest], dtype=torch.float64)
            try:
                dist.all_reduce(told, dist.ReduceOp.MAX, group=self.process_group)
            except RuntimeError as error:
                raise errors.SiteFailed(
                    "the trainers of this site can no longer end a step together, start all of "
                    f"them again: {error}"
                ) from error
            value, first, largest, least = told.tolist()
            if failure is None and first:
                text = f"rank {self.size - round(first)} of this site could not end the step"
                failure = errors.EpochEnded(text)
            if failure is None and largest != -least:
                failure = errors.RanksDisagree("trainers of this site have different arguments")
        if failure is not None:
            raise failure
        return value
