"""Batches of unequal size for sites of unequal speed."""

from __future__ import annotations

from typing import Iterator, List, Sized

import torch

from ..errors import ConfigError
from ..group import Group


class UnevenSampler:
    """Yields this rank's part of every global batch; for ``DataLoader(batch_sampler=...)``.

    A global batch is split in proportion to the fabric's ``speeds``, so that all ranks take
    the same time. ``share`` is this rank's part of it: as ``weight`` of the average it makes a
    mean loss over the local batch into one over the global batch.

    All ranks shuffle alike, by ``seed`` and epoch; samples beyond the last whole global batch
    are left out. Raises ``ConfigError`` when a rank would get nothing.
    """

    def __init__(
        self,
        dataset: Sized,
        group: Group,
        global_batch: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        shares = group.batch_shares(global_batch)
        if 0 in shares:
            text = f"rank {shares.index(0)} gets no sample of a global batch of {global_batch}"
            raise ConfigError(f"{text}: use a larger one, or give the rank a higher speed")
        #: This rank's samples of a global batch.
        self.share = shares[group.rank]
        self._first = sum(shares[: group.rank])
        self._samples = len(dataset)
        self._global_batch = global_batch
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Which order of the samples to yield; the same on all ranks."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._samples // self._global_batch

    def __iter__(self) -> Iterator[List[int]]:
        if self._shuffle:
            generator = torch.Generator()
            generator.manual_seed(self._seed * 1_000_003 + self._epoch)
            order = torch.randperm(self._samples, generator=generator)
        else:
            order = torch.arange(self._samples)
        for step in range(len(self)):
            begin = step * self._global_batch + self._first
            yield order[begin : begin + self.share].tolist()
