"""Reduction inside a site, before and after the exchange between regions.

A bucket passes through three collectives, in the same order on every trainer of the site:

1. A reduce-scatter in the site, started by the hook.
2. The exchange of shards between regions, by the ``landbridge-exchange`` thread.
3. An all-gather in the site, by the ``landbridge-gather`` thread, over its own process group.

Unbounded queues connect them; DDP bounds the buckets of a step. After a failure every trainer still
takes every bucket through both collectives of the site. Only the exchange is left out, and the
all-gather carries the failure to the other trainers.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .. import errors
from .._group import Group
from .._memory.host_limits import start_thread_within_host_limits
from .._operations.operation import Operation
from ._local_ranks import LocalRanks
from ._trained_parameters import ParameterUses


class _SiteGatherGroup(NamedTuple):
    """A second process group of the same trainers, for the all-gather."""

    process_group: Any
    #: Whether it has all trainers of the default group.
    is_whole: bool

    def destroy_process_group(self) -> None:
        """Destroys the process group, unless it ends with the default group."""
        # The name of a group of a part counts the existing groups. The next one would have the
        # same name and find the addresses of this one.
        if self.is_whole:
            # The group may be gone already, together with all others.
            with contextlib.suppress(Exception):
                dist.destroy_process_group(self.process_group)


def _make_site_gather_group(process_group: Any) -> _SiteGatherGroup:
    """Makes a second process group of the same trainers, for the all-gather. All of them call
    it."""
    ranks = dist.get_process_group_ranks(process_group)
    is_whole = len(ranks) == dist.get_world_size()
    made = dist.new_group(
        ranks,
        backend=dist.get_backend(process_group),
        # Trainers outside the group need not take part in making it.
        use_local_synchronization=not is_whole,
    )
    return _SiteGatherGroup(made, is_whole)


class _ScatteredBucket(NamedTuple):
    """A bucket whose reduction inside the site is under way."""

    work: Any
    shard: torch.Tensor
    elements: int
    layout: int
    timeout: float
    done: Callable[[Any], None]
    #: Set when the step has failed, after which none of its shards is posted.
    step_failed: threading.Event
    #: The reason why this trainer cannot post the shard.
    failure: errors.LandbridgeError | None
    #: The uses of parameters at the last bucket of a step, and their reduction inside the site.
    uses: ParameterUses | None
    uses_work: Any


class _PostedBucket(NamedTuple):
    """A bucket whose shard is being exchanged between regions."""

    bucket: _ScatteredBucket
    out: torch.Tensor | None
    operation: Operation | None
    #: The exchange of the uses of parameters, at the last bucket of a step.
    told: Operation | None
    failure: errors.LandbridgeError | None


class SiteReduction:
    """The reduction of one site. All its trainers make it and call its methods in the same
    order."""

    def __init__(self, group: Group, local: LocalRanks, weight: float) -> None:
        """Sets the weight of the site and starts the threads for exchange and gather. All trainers
        of the site call it."""
        self._group = group
        self._process_group = local.process_group
        self._size = local.size
        self._stages = _ReductionStages(
            group, _make_site_gather_group(local.process_group), self._size
        )
        self._step_failed = threading.Event()
        self._share = 1.0
        self.set_weight(weight)
        # The threads hold the stages and not this object, so that they end when it is dropped.
        weakref.finalize(self, self._stages.scattered.put, None).atexit = False
        for name, run in (
            ("exchange", self._stages.run_exchange_thread),
            ("gather", self._stages.run_gather_thread),
        ):
            thread = threading.Thread(target=run, name=f"landbridge-{name}", daemon=True)
            start_thread_within_host_limits(thread)

    def set_weight(self, weight: float) -> None:
        """Sets the weight of this trainer, by a collective of the site."""
        total = torch.tensor([weight], dtype=torch.float64)
        dist.all_reduce(total, group=self._process_group)
        self._stages.weight = float(total)
        self._share = weight / self._stages.weight if self._stages.weight else 0.0

    def start_bucket(
        self,
        gradients: torch.Tensor,
        layout: int,
        timeout: float,
        done: Callable[[Any], None],
        uses: ParameterUses | None = None,
    ) -> None:
        """Starts averaging a bucket of gradients, and the exchange of ``uses``. ``done`` gets the
        average or a ``LandbridgeError``."""
        stages, elements = self._stages, gradients.numel()
        try:
            stages.check_not_broken()
            length = -(-elements // self._size)
            padded = gradients.new_zeros(length * self._size)
            torch.mul(gradients.reshape(-1), self._share, out=padded[:elements])
            shard, failure = self._allocate_shard(length, gradients)
            work = dist.reduce_scatter_tensor(
                shard, padded, op=dist.ReduceOp.SUM, group=self._process_group, async_op=True
            )
            uses_work: Any = None
            if uses is not None:
                uses_work = dist.all_reduce(
                    uses.flags, op=dist.ReduceOp.MAX, group=self._process_group, async_op=True
                )
        except Exception as error:
            done(stages.note_breakage(error))
        else:
            rest = (layout, timeout, done, self._step_failed, failure, uses, uses_work)
            stages.scattered.put(_ScatteredBucket(work, shard, elements, *rest))

    def give_up_step(self) -> None:
        """Ends the current step, after which none of its shards is posted."""
        with self._stages.posting:
            self._step_failed.set()
        self._step_failed = threading.Event()

    def _allocate_shard(
        self, length: int, gradients: torch.Tensor
    ) -> tuple[torch.Tensor, errors.LandbridgeError | None]:
        """Returns memory for this trainer's shard: in the arena, or elsewhere if the step has
        failed or the arena has no room. In the last case it returns that failure too."""
        failure: errors.LandbridgeError | None = None
        if not self._step_failed.is_set():
            try:
                shard: torch.Tensor = self._group.empty(length, gradients.dtype)
                return shard, None
            except errors.LandbridgeError as error:
                failure = error
        return gradients.new_empty(length), failure


class _ReductionStages:
    """The work of the threads for exchange and gather. Each bucket's ``done`` is called, whatever
    fails."""

    def __init__(self, group: Group, gather_group: _SiteGatherGroup, size: int) -> None:
        """Makes the stages without buckets, for ``size`` trainers of the site."""
        self.weight = 1.0
        #: Held while a bucket is posted.
        self.posting = threading.Lock()
        # `None` ends a thread. The garbage collector may put it, so these are simple queues.
        self.scattered: queue.SimpleQueue[_ScatteredBucket | None] = queue.SimpleQueue()
        self._posted: queue.SimpleQueue[_PostedBucket | None] = queue.SimpleQueue()
        # The reason why this trainer can no longer take part. An exception would hold frames.
        self._broken: str | None = None
        self._group = group
        self._gather_group = gather_group
        self._size = size

    def check_not_broken(self) -> None:
        """Raises ``SiteFailed`` if this trainer can no longer take part in the site's
        reductions."""
        if self._broken is not None:
            raise errors.SiteFailed(self._broken)

    def note_breakage(self, error: Exception) -> errors.SiteFailed:
        """Records that this trainer can no longer take part in the site's reductions, and returns
        the ``SiteFailed`` to raise.

        Trainers of the site that wait for it fail when its process ends.
        """
        if self._broken is None:
            self._broken = (
                "the trainers of this site can no longer reduce together, start all of them "
                f"again: {type(error).__name__}: {error}"
            )
        return errors.SiteFailed(self._broken)

    def run_exchange_thread(self) -> None:
        """Posts the shards of scattered buckets, until a ``None`` ends the thread."""
        while True:
            bucket = self.scattered.get()
            if bucket is None:
                return self._posted.put(None)
            try:
                self._posted.put(self._post_shard(bucket))
            except Exception as error:
                bucket.done(self.note_breakage(error))
            del bucket

    def run_gather_thread(self) -> None:
        """Waits for exchanged shards and gathers them to averages, until a ``None`` ends the
        thread."""
        while True:
            posted = self._posted.get()
            if posted is None:
                return self._gather_group.destroy_process_group()
            outcome: torch.Tensor | errors.LandbridgeError
            try:
                outcome = self._gather_average(posted)
            except Exception as error:
                outcome = self.note_breakage(error)
            posted.bucket.done(outcome)
            del posted, outcome

    def _post_shard(self, bucket: _ScatteredBucket) -> _PostedBucket:
        """Waits for the reduce-scatter of a bucket, and posts its shard unless the step has
        failed."""
        self.check_not_broken()
        bucket.work.wait()
        if bucket.uses is not None:
            bucket.uses_work.wait()
        out, operation, told, failure = None, None, None, bucket.failure
        with self.posting:
            if failure is None and bucket.step_failed.is_set():
                failure = errors.EpochEnded("not sent, because the step has failed already")
            if failure is None:
                try:
                    out = self._group.empty(bucket.shard.numel(), bucket.shard.dtype)
                    operation = self._group.all_reduce_async(
                        bucket.shard,
                        weight=self.weight,
                        out=out,
                        layout=bucket.layout,
                        timeout=bucket.timeout,
                    )
                    if bucket.uses is not None:
                        told = self._group.all_reduce_async(
                            bucket.uses.flags, "max", layout=bucket.layout, timeout=bucket.timeout
                        )
                except errors.LandbridgeError as error:
                    failure = error
        return _PostedBucket(bucket, out, operation, told, failure)

    def _gather_average(self, posted: _PostedBucket) -> torch.Tensor | errors.LandbridgeError:
        """Waits for a bucket's exchange, and gathers the average from all trainers of the site.
        Returns the average, or the failure of any of them."""
        bucket, failure = posted.bucket, posted.failure
        try:
            if posted.operation is not None:
                posted.operation.wait()
            if posted.told is not None and bucket.uses is not None:
                bucket.uses.flags = posted.told.wait()
        except errors.LandbridgeError as error:
            failure = error
        self.check_not_broken()
        # One more element tells the others whether this shard failed, so that they do not wait.
        length = bucket.shard.numel()
        mine = bucket.shard.new_zeros(length + 1)
        if failure is not None:
            mine[length] = 1
        elif posted.out is not None:
            mine[:length] = posted.out
        every = mine.new_empty((self._size, length + 1))
        dist.all_gather_into_tensor(every.view(-1), mine, group=self._gather_group.process_group)
        failed = every[:, length].nonzero()
        if len(failed) == 0:
            return every[:, :length].reshape(-1)[: bucket.elements].clone()
        # Set before `done` is called.
        bucket.step_failed.set()
        return failure or errors.EpochEnded(
            f"local rank {int(failed[0])} of this site could not exchange its shard"
        )
