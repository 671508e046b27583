"""Batches of unequal size for sites of unequal speed."""

from __future__ import annotations

from collections import deque
from typing import Deque, Iterator, List, Optional, Sequence, Sized

import torch

from ..errors import ConfigError, RanksDisagree
from ..group import Group


class UnevenSampler:
    """Yields this rank's part of every global batch; for ``DataLoader(batch_sampler=...)``.

    A global batch is split in proportion to the fabric's ``speeds``, and within ``limits``,
    samples for each rank, so that all ranks take the same time. ``share`` is this rank's part
    of it: as ``weight`` of the average it makes a mean loss over the local batch into one over
    the global batch.

    All ranks shuffle alike, by ``seed`` and epoch; samples beyond the last whole global batch
    are left out. Raises ``ConfigError`` when a rank would get nothing.

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
        shuffle: bool = True,
        seed: int = 0,
        limits: Optional[Sequence[int]] = None,
        ahead: int = 0,
    ) -> None:
        if ahead < 0:
            raise ConfigError(f"{ahead} batches ahead: accepted: 0 or more")
        self._split = group.batch_split(global_batch, limits)
        shares = self._split.shares
        if 0 in shares:
            text = f"rank {shares.index(0)} gets no sample of a global batch of {global_batch}"
            raise ConfigError(f"{text}: use a larger one, or give the rank a higher speed")
        self._rank = group.rank
        self._ahead = ahead
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
        """This rank's samples of the global batch of the step under way."""
        return self._known[0][self._rank]

    def end_step(self, computed_seconds: float) -> bool:
        """The step under way is over, and this rank computed for so long, waits for others not
        counted: a collective of three numbers for each rank. True if batches drawn from now on
        are split in another way; each rank keeps at least one sample.

        Raises what ``BatchSplit.end_step`` raises; ``ConfigError`` when the loader drew farther
        ahead than was said; ``RanksDisagree`` when ``ahead`` differs, and when ranks had unlike
        splits, as when one was started anew and the others went on with their samplers.
        """
        ahead = self._drawn - self._ended - 1
        if ahead > self._ahead:
            raise ConfigError(_too_far(ahead, self._ahead))
        changed = self._split.end_step(computed_seconds, self.share, layout=self._ahead)
        if not self._split.was_alike:
            text = "ranks had unlike splits of the global batch in the last step"
            raise RanksDisagree(f"{text}: make a new sampler on every rank")
        self._ended += 1
        self._known.append(_with_one_each(self._split.shares))
        return changed

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
            begin = batch * self._global_batch + sum(shares[: self._rank])
            yield order[begin : begin + shares[self._rank]].tolist()

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


def _with_one_each(shares: List[int]) -> List[int]:
    """A rank that has become too slow for a sample gets one of the rank that has most, for every
    rank has a gradient."""
    while 0 in shares:
        shares[shares.index(max(shares))] -= 1
        shares[shares.index(0)] += 1
    return shares
