"""Reduction inside a site around the exchange between sites.

A bucket goes through three collectives, whose order must be the same on every rank of the
site: reduce-scatter in the order of the hook's calls, the exchange in the same order by one
thread, and the gathering in the same order by another, over a process group of its own.
"""

from __future__ import annotations

import queue
import threading
from typing import Any, Callable, NamedTuple, Optional

import torch
import torch.distributed as dist

from .. import errors
from ..group import Group
from ..operation import Operation


class _Scattered(NamedTuple):
    """A bucket whose reduction inside the site is under way."""

    work: Any
    shard: torch.Tensor
    elements: int
    layout: int
    timeout: float
    done: Callable[[Any], None]


class _Posted(NamedTuple):
    """A bucket whose shard is under way between the sites."""

    bucket: _Scattered
    out: torch.Tensor
    operation: Optional[Operation]
    failure: Optional[errors.LandbridgeError]


class Site:
    """The ranks of one site. Every one of them makes it, and calls everything, alike."""

    def __init__(self, group: Group, process_group: Any, weight: float) -> None:
        self._group = group
        self._process_group = process_group
        self._size = dist.get_world_size(process_group)
        ranks = dist.get_process_group_ranks(process_group)
        self._gathering: Any = dist.new_group(ranks)
        self._scattered: queue.Queue[_Scattered] = queue.Queue()
        self._posted: queue.Queue[_Posted] = queue.Queue()
        self._share, self._total = 1.0, 1.0
        self.set_weight(weight)
        for name, run in (("exchange", self._exchange), ("gather", self._gather)):
            threading.Thread(target=run, name=f"landbridge-{name}", daemon=True).start()

    def set_weight(self, weight: float) -> None:
        """What this rank counts for, in the site and beyond."""
        total = torch.tensor([weight], dtype=torch.float64)
        dist.all_reduce(total, group=self._process_group)
        self._total = float(total)
        self._share = weight / self._total if self._total else 0.0

    def start(
        self, gradients: torch.Tensor, layout: int, timeout: float, done: Callable[[Any], None]
    ) -> None:
        """Begins to average; ``done`` gets the result or a ``LandbridgeError``."""
        elements = gradients.numel()
        length = -(-elements // self._size)
        padded = gradients.new_zeros(length * self._size)
        torch.mul(gradients.reshape(-1), self._share, out=padded[:elements])
        shard = self._group.empty(length, gradients.dtype)
        work = dist.reduce_scatter_tensor(
            shard, padded, op=dist.ReduceOp.SUM, group=self._process_group, async_op=True
        )
        self._scattered.put(_Scattered(work, shard, elements, layout, timeout, done))

    def _exchange(self) -> None:
        while True:
            bucket = self._scattered.get()
            bucket.work.wait()
            out = self._group.empty(bucket.shard.numel(), bucket.shard.dtype)
            operation, failure = None, None
            try:
                operation = self._group.all_reduce_async(
                    bucket.shard,
                    weight=self._total,
                    out=out,
                    layout=bucket.layout,
                    timeout=bucket.timeout,
                )
            except errors.LandbridgeError as error:
                failure = error
            self._posted.put(_Posted(bucket, out, operation, failure))
            del bucket, out, operation

    def _gather(self) -> None:
        while True:
            posted = self._posted.get()
            bucket, failure = posted.bucket, posted.failure
            if posted.operation is not None:
                try:
                    posted.operation.wait()
                except errors.LandbridgeError as error:
                    failure = error
            # One element more says whether the shard failed: the others must not wait for it.
            length = posted.out.numel()
            mine = posted.out.new_full((length + 1,), 1.0 if failure else 0.0)
            mine[:length] = posted.out
            every = mine.new_empty((self._size, length + 1))
            dist.all_gather_into_tensor(every.view(-1), mine, group=self._gathering)
            if failure is None and bool(every[:, length].any()):
                failure = errors.EpochEnded(
                    "another rank of this site could not exchange its shard"
                )
            whole = every[:, :length].reshape(-1)[: bucket.elements].clone()
            bucket.done(whole if failure is None else failure)
            del posted, bucket, mine, every, whole
