"""Reduction inside a site around the exchange between sites.

A bucket goes through three collectives, whose order must be the same on every rank of the
site: reduce-scatter in the order of the hook's calls, the exchange in the same order by one
thread, and the gathering in the same order by another, over a process group of its own.

So every rank takes every bucket through both collectives of the site, also after a failure:
only the exchange is left out then, and the gathering tells the others.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from typing import Any, Callable, NamedTuple, Optional, Union

import torch
import torch.distributed as dist

from .. import errors
from .._group import Group
from .._operation import Operation
from ._local_ranks import LocalRanks


class _Gathering(NamedTuple):
    """Another process group of the same trainers."""

    process_group: Any
    #: Whether it is of all trainers of the default group.
    is_whole: bool

    def let_go(self) -> None:
        # Otherwise its name follows from how many there are: the next one would have the same, and
        # find this one's addresses. It goes with the default group.
        if self.is_whole:
            # It may be gone, with all others.
            with contextlib.suppress(Exception):
                dist.destroy_process_group(self.process_group)


def _gathering(process_group: Any) -> _Gathering:
    ranks = dist.get_process_group_ranks(process_group)
    is_whole = len(ranks) == dist.get_world_size()
    made = dist.new_group(
        ranks,
        backend=dist.get_backend(process_group),
        # Trainers that are not in it need not know of it.
        use_local_synchronization=not is_whole,
    )
    return _Gathering(made, is_whole)


class _Scattered(NamedTuple):
    """A bucket whose reduction inside the site is under way."""

    work: Any
    shard: torch.Tensor
    elements: int
    layout: int
    timeout: float
    done: Callable[[Any], None]
    #: Set once its step has failed: nothing more of it is posted.
    over: threading.Event
    #: Why this rank cannot post it.
    failure: Optional[errors.LandbridgeError]


class _Posted(NamedTuple):
    """A bucket whose shard is under way between the sites."""

    bucket: _Scattered
    out: Optional[torch.Tensor]
    operation: Optional[Operation]
    failure: Optional[errors.LandbridgeError]


class Site:
    """The ranks of one site. Every one of them makes it, and calls everything, alike."""

    def __init__(self, group: Group, local: LocalRanks, weight: float) -> None:
        self._group = group
        self._process_group = local.process_group
        self._size = local.size
        self._stages = _Stages(group, _gathering(local.process_group), self._size)
        self._over = threading.Event()
        self._share = 1.0
        self.set_weight(weight)
        # They hold the stages, not the site, so that they end when nobody holds it any more.
        for name, run in (("exchange", self._stages.exchange), ("gather", self._stages.gather)):
            threading.Thread(target=run, name=f"landbridge-{name}", daemon=True).start()
        weakref.finalize(self, self._stages.scattered.put, None).atexit = False

    def set_weight(self, weight: float) -> None:
        """What this rank counts for, in the site and beyond."""
        total = torch.tensor([weight], dtype=torch.float64)
        dist.all_reduce(total, group=self._process_group)
        self._stages.weight = float(total)
        self._share = weight / self._stages.weight if self._stages.weight else 0.0

    def start(
        self, gradients: torch.Tensor, layout: int, timeout: float, done: Callable[[Any], None]
    ) -> None:
        """Begins to average; ``done`` gets the result or a ``LandbridgeError``."""
        stages, elements = self._stages, gradients.numel()
        try:
            stages.check()
            length = -(-elements // self._size)
            padded = gradients.new_zeros(length * self._size)
            torch.mul(gradients.reshape(-1), self._share, out=padded[:elements])
            shard, failure = self._shard(length, gradients)
            work = dist.reduce_scatter_tensor(
                shard, padded, op=dist.ReduceOp.SUM, group=self._process_group, async_op=True
            )
        except Exception as error:
            done(stages.broken_by(error))
        else:
            stages.scattered.put(
                _Scattered(work, shard, elements, layout, timeout, done, self._over, failure)
            )

    def begin_anew(self) -> None:
        """The step under way is over: on return nothing of it will be posted."""
        with self._stages.posting:
            self._over.set()
        self._over = threading.Event()

    def _shard(
        self, length: int, gradients: torch.Tensor
    ) -> tuple[torch.Tensor, Optional[errors.LandbridgeError]]:
        """Room for this rank's shard: in the arena when it is to be posted."""
        failure: Optional[errors.LandbridgeError] = None
        if not self._over.is_set():
            try:
                shard: torch.Tensor = self._group.empty(length, gradients.dtype)
                return shard, None
            except errors.LandbridgeError as error:
                failure = error
        return gradients.new_empty(length), failure


class _Stages:
    """What the threads of a site do. Whatever they meet, each bucket's ``done`` is called."""

    def __init__(self, group: Group, gathering: _Gathering, size: int) -> None:
        self.weight = 1.0
        #: Held while a bucket is posted.
        self.posting = threading.Lock()
        # `None` ends the threads; their `put` may be called by the garbage collector.
        self.scattered: queue.SimpleQueue[Optional[_Scattered]] = queue.SimpleQueue()
        self._posted: queue.SimpleQueue[Optional[_Posted]] = queue.SimpleQueue()
        # Why this rank cannot take part any more. The failure itself would hold frames.
        self._broken: Optional[str] = None
        self._group = group
        self._gathering = gathering
        self._size = size

    def check(self) -> None:
        """Raises ``SiteFailed`` once this rank cannot take part any more."""
        if self._broken is not None:
            raise errors.SiteFailed(self._broken)

    def broken_by(self, error: Exception) -> errors.SiteFailed:
        """Notes that this rank cannot take part any more. Others of the site that wait for it
        are told when its process ends."""
        if self._broken is None:
            self._broken = (
                "the trainers of this site cannot reduce together any more, start all of them "
                f"anew: {type(error).__name__}: {error}"
            )
        return errors.SiteFailed(self._broken)

    def exchange(self) -> None:
        """A thread: posts shards."""
        while True:
            bucket = self.scattered.get()
            if bucket is None:
                return self._posted.put(None)
            try:
                self._posted.put(self._post(bucket))
            except Exception as error:
                bucket.done(self.broken_by(error))
            del bucket

    def gather(self) -> None:
        """A thread: awaits shards and puts them together."""
        while True:
            posted = self._posted.get()
            if posted is None:
                return self._gathering.let_go()
            came: Union[torch.Tensor, errors.LandbridgeError]
            try:
                came = self._whole(posted)
            except Exception as error:
                came = self.broken_by(error)
            posted.bucket.done(came)
            del posted, came

    def _post(self, bucket: _Scattered) -> _Posted:
        self.check()
        bucket.work.wait()
        out, operation, failure = None, None, bucket.failure
        with self.posting:
            if failure is None and bucket.over.is_set():
                failure = errors.EpochEnded("not sent, for the step has failed already")
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
                except errors.LandbridgeError as error:
                    failure = error
        return _Posted(bucket, out, operation, failure)

    def _whole(self, posted: _Posted) -> Union[torch.Tensor, errors.LandbridgeError]:
        bucket, failure = posted.bucket, posted.failure
        if posted.operation is not None:
            try:
                posted.operation.wait()
            except errors.LandbridgeError as error:
                failure = error
        self.check()
        # One element more says whether the shard failed: the others must not wait for it.
        length = bucket.shard.numel()
        mine = bucket.shard.new_zeros(length + 1)
        if failure is not None:
            mine[length] = 1
        elif posted.out is not None:
            mine[:length] = posted.out
        every = mine.new_empty((self._size, length + 1))
        dist.all_gather_into_tensor(every.view(-1), mine, group=self._gathering.process_group)
        failed = every[:, length].nonzero()
        if len(failed) == 0:
            return every[:, :length].reshape(-1)[: bucket.elements].clone()
        # Before anybody hears of it.
        bucket.over.set()
        return failure or errors.EpochEnded(
            f"rank {int(failed[0])} of this site could not exchange its shard"
        )
