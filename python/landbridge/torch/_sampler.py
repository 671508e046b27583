"""Batches of unequal size for sites of unequal speed."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import deque
from typing import Any, Deque, Iterator, List, Optional, Sequence, Sized

import torch

from .._group import Group
from .._operation import DEFAULT_TIMEOUT_S
from ..errors import ConfigError, LandbridgeError, RanksDisagree
from ._local_ranks import LocalRanks


class UnevenSampler:
    """Yields this rank's part of every global batch; for ``DataLoader(batch_sampler=...)``.

    A global batch is split in proportion to the fabric's ``speeds``, and within ``limits``,
    samples for each rank, so that all ranks take the same time. ``share`` is this trainer's part
    of it: as ``weight`` of the average it makes a mean loss over the local batch into one over
    the global batch.

    Where ``State`` has a process group, this has the same: a rank of the fabric is a site then,
    whose part is split evenly among the trainers of the process group, who do all of this alike.

    All ranks shuffle alike, by ``seed`` and epoch; samples beyond the last whole global batch
    are left out. Raises ``ConfigError`` when a trainer would get nothing.

    Where ``end_step`` is called after every step, on all ranks, the split follows speeds that
    drift; ``share`` is then set as the weight anew before each step. A loader with workers draws
    batches before the steps that use them: ``ahead`` says how many, which is ``num_workers *
    prefetch_factor``, the same on all ranks. A step has the split that was known when the step
    ``ahead + 1`` before it had ended, on every rank, whenever its batch was drawn. Drawing
    farther ahead raises ``ConfigError``. Begin to iterate over an epoch when the last step
    before it has ended. After ``recover`` all ranks make new samplers, for each may have come
    to know another split; ``set_epoch`` leaves out what is done of an epoch.
    """

    def __init__(
        self,
        dataset: Sized,
        group: Group,
        global_batch: int,
        *,
        process_group: Optional[Any] = None,
        shuffle: bool = True,
        seed: int = 0,
        limits: Optional[Sequence[int]] = None,
        ahead: int = 0,
    ) -> None:
        if ahead < 0:
            raise ConfigError(f"{ahead} batches ahead: accepted: 0 or more")
        self._local = LocalRanks(group, process_group)
        self._split = group.batch_split(global_batch, limits)
        shares = self._split.shares
        if min(shares) < self._local.size:
            raise ConfigError(_too_few(shares, self._local.size))
        self._rank = group.rank
        self._ahead = ahead
        digest = hashlib.blake2b(f"{ahead} {self._local}".encode(), digest_size=8).digest()
        self._layout = int.from_bytes(digest, "big")
        #: Steps that have ended, and the shares of the step under way and of `ahead` after it.
        self._ended = 0
        self._known: Deque[List[int]] = deque([shares] * (ahead + 1), maxlen=ahead + 1)
        #: Steps of which batches were drawn.
        self._drawn = 0
        self._samples = len(dataset)
        self._global_batch = global_batch
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = 0
        self._done = 0

    @property
    def share(self) -> int:
        """This trainer's samples of the global batch of the step under way."""
        return self._local.part(self._known[0][self._rank])[1]

    def end_step(self, computed_seconds: float, timeout: float = DEFAULT_TIMEOUT_S) -> bool:
        """The step under way is over, and this rank computed for so long, waits for others not
        counted: a collective of three numbers for each rank. True if batches drawn from now on
        are split in another way; each trainer keeps at least one sample. With a process group
        the slowest of its trainers counts. ``timeout`` in seconds is how long to wait for the
        other ranks; inside a site, the process group's own counts.

        Raises what ``BatchSplit.end_step`` raises; ``ConfigError`` when the loader drew farther
        ahead than was said; ``RanksDisagree`` when ``ahead`` differs, and when ranks had unlike
        splits, as when one was started anew and the others went on with their samplers. With a
        process group, trainers of its that see nothing of that raise ``EpochEnded``, and
        ``SiteFailed`` when one of them is gone.
        """
        ahead = self._drawn - self._ended - 1
        failure: Optional[LandbridgeError] = None
        if ahead > self._ahead:
            failure = ConfigError(_too_far(ahead, self._ahead))
        elif not 0 <= computed_seconds < math.inf:
            failure = ConfigError(f"a step of {computed_seconds} s: accepted: finite, at least 0")
        seconds = self._local.most(0.0 if failure else computed_seconds, failure)
        changed = self._exchange(seconds, timeout)
        self._ended += 1
        self._known.append(_with_at_least(self._split.shares, self._local.size))
        return changed

    def _exchange(self, computed_seconds: float, timeout: float) -> bool:
        """Over the job of each local rank, which all have told the same."""
        changed = False
        failure: Optional[LandbridgeError] = None
        samples = self._known[0][self._rank]
        try:
            changed = self._split.end_step(
                computed_seconds, samples, layout=self._layout, timeout=timeout
            )
            if not self._split.was_alike:
                text = "ranks had unlike splits of the global batch in the last step"
                raise RanksDisagree(f"{text}: make a new sampler on every rank")
        except LandbridgeError as error:
            failure = error
        return bool(self._local.most(changed, failure))

    def set_epoch(self, epoch: int, done: int = 0) -> None:
        """Which order of the samples to yield, and how many of its batches are done already and
        left out; the same on all ranks. Raises ``ConfigError`` when it has not so many."""
        batches = self._samples // self._global_batch
        if not 0 <= done <= batches:
            raise ConfigError(f"{done} batches done: an epoch has {batches}")
        self._epoch, self._done = epoch, done

    def __len__(self) -> int:
        return self._samples // self._global_batch - self._done

    def __iter__(self) -> Iterator[List[int]]:
        if self._shuffle:
            generator = torch.Generator()
            generator.manual_seed(self._seed * 1_000_003 + self._epoch)
            order = torch.randperm(self._samples, generator=generator)
        else:
            order = torch.arange(self._samples)
        self._drawn = self._ended
        for batch in range(self._done, self._done + len(self)):
            shares = self._next_shares()
            before, mine = self._local.part(shares[self._rank])
            begin = batch * self._global_batch + sum(shares[: self._rank]) + before
            yield order[begin : begin + mine].tolist()

    def _next_shares(self) -> List[int]:
        """Of the next step of which no batch was drawn."""
        ahead = self._drawn - self._ended
        if ahead < 0:
            raise ConfigError("`end_step` was called for more steps than batches were drawn")
        # As long as no step was ended the split does not change.
        if ahead > self._ahead and self._ended > 0:
            raise ConfigError(_too_far(ahead, self._ahead))
        self._drawn += 1
        return self._known[min(ahead, self._ahead)]


def _too_far(is_ahead: int, may: int) -> str:
    text = f"a batch was drawn {is_ahead} steps before its own, with ahead={may}"
    return f"{text}: give `num_workers * prefetch_factor`, and call `end_step` after every step"


def _too_few(shares: List[int], least: int) -> str:
    rank = shares.index(min(shares))
    if least == 1:
        text = f"rank {rank} gets no sample"
    else:
        text = f"the {least} trainers of rank {rank} get {shares[rank]} samples"
    text += f" of a global batch of {sum(shares)}"
    return f"{text}: use a larger one, or give the rank a higher speed"


def _with_at_least(shares: List[int], least: int) -> List[int]:
    """A rank that has become too slow for so many samples gets some of the rank that has most,
    for every trainer has a gradient."""
    missing = sum(max(least - share, 0) for share in shares)
    shares = [max(least, share) for share in shares]
    # Of equals the lower rank.
    most = [(-share, rank) for rank, share in enumerate(shares)]
    heapq.heapify(most)
    for _ in range(missing):
        share, rank = most[0]
        heapq.heapreplace(most, (share + 1, rank))
        shares[rank] -= 1
    return shares
