"""Batches of unequal size for ranks of unequal speed."""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch

from .._argument_errors import argument_error
from .._arguments import check_integer_argument, check_timeout_argument
from .._batch_split import BATCH_SAMPLES_MAX, check_split_seconds
from .._group import Group
from .._operations.operation import DEFAULT_TIMEOUT_S
from ..errors import (
    ConfigError,
    LandbridgeError,
    RanksDisagree,
    error_on_disagreement_with,
)
from ._local_ranks import LocalRanks

#: 2^20 batches: the most that a caller may say a loader draws ahead, more than any does. A larger
#: number raises ``ConfigError``. The limit is chosen: each batch takes a list of shares.
_PREFETCH_BATCHES_MAX = 1 << 20
#: 6 bytes: the length of the hash by which trainers of a site compare their arguments. It goes as a
#: 64-bit float, which holds 53 bits exactly.
_SITE_HASH_BYTES = 6


class UnevenSampler:
    """Yields this rank's part of every global batch, for ``DataLoader(batch_sampler=...)``.

    A global batch is split in proportion to the fabric's ``speeds``, so that all ranks take the
    same time. All ranks shuffle alike, by ``seed`` and epoch. Samples beyond the last whole global
    batch are left out.

    ``share`` is the size of this trainer's part. Set it as the ``weight`` of the average, so that
    mean losses over local batches give the mean loss over the global batch.

    If ``end_step`` is called after every step, on all ranks, the split follows speeds that drift,
    and ranks compare their arguments. Without it nobody notices that ranks have different seeds.
    Set ``share`` as the weight before each step then. A loader with workers draws batches before
    the steps that use them; ``prefetch`` tells how many, and a step then has the split that was
    known ``prefetch + 1`` steps before it. Begin to iterate over an epoch after the last step of
    the previous one has ended. After ``recover`` all ranks make new samplers, because ranks may
    know different splits; ``set_epoch`` skips the batches that are done.
    """

    def __init__(
        self,
        dataset: Sized,
        group: Group,
        global_batch: int,
        *,
        process_group: Any | None = None,
        shuffle: bool = True,
        seed: int = 0,
        limits: Sequence[int] | None = None,
        prefetch: int | None = None,
        ahead: int | None = None,
    ) -> None:
        """Splits the global batch.

        Args:
            dataset: The samples, or anything of the same length.
            group: The ranks. All make the sampler with the same arguments.
            global_batch: The number of samples of all ranks together in a step.
            process_group: The process group of ``State``, if that has one. A rank of the fabric is
                then a site, whose part is split evenly among the trainers of the process group.
            shuffle: Whether to shuffle the samples in each epoch.
            seed: The seed of the shuffling.
            limits: The most samples of each rank, by rank, such as its memory holds.
            prefetch: How many batches the loader draws ahead: ``num_workers * prefetch_factor``.
                The default is 0.
            ahead: The former name of ``prefetch``, which still works.

        Raises:
            ConfigError: A trainer would get no sample, or an argument cannot be used.
        """
        if prefetch is not None and ahead is not None:
            raise ConfigError("`ahead` is the former name of `prefetch`: pass only `prefetch`")
        prefetch = next((value for value in (prefetch, ahead) if value is not None), 0)
        prefetch = check_integer_argument("prefetch", prefetch, _PREFETCH_BATCHES_MAX + 1)
        seed = check_integer_argument("seed", seed, 1 << 63, -(1 << 63))
        global_batch = check_integer_argument("global_batch", global_batch, BATCH_SAMPLES_MAX + 1)
        # Whatever splits batches will do, such as a stand-in for ranks that are not there.
        if not callable(getattr(group, "batch_split", None)):
            raise argument_error("group", group, "the group that `connect` returned")
        if not hasattr(dataset, "__len__"):
            raise argument_error("dataset", dataset, "anything with a length")
        self._local = LocalRanks(group, process_group)
        self._split = group.batch_split(global_batch, limits)
        shares = self._split.shares
        if min(shares) < self._local.size:
            raise ConfigError(_sampler_no_sample_text(shares, self._local.size))
        self._rank = group.rank
        self._prefetch = prefetch
        #: The number of steps that have ended.
        self._ended = 0
        #: The shares of the current step and of `prefetch` steps after it.
        self._known: deque[list[int]] = deque([shares] * (prefetch + 1), maxlen=prefetch + 1)
        #: The number of steps whose batches were drawn.
        self._drawn = 0
        self._samples = len(dataset)
        self._global_batch = global_batch
        self._shuffle = shuffle
        self._seed = seed
        #: The epoch, and its batches that are done: the next, and those that are being drawn.
        self._epoch = self._done = 0
        self._drawn_epoch = (0, 0)

    @property
    def share(self) -> int:
        """This trainer's samples of the global batch in the current step."""
        return self._local.split_samples(self._known[0][self._rank])[1]

    def end_step(self, computed_seconds: float, timeout: float = DEFAULT_TIMEOUT_S) -> bool:
        """Ends a step: exchanges the ranks' speeds, by one small collective.

        Each trainer keeps at least one sample. With a process group its slowest trainer counts.

        Args:
            computed_seconds: How long this trainer computed, without waits for other ranks.
            timeout: How long to wait for the other ranks, in seconds. Inside a site the timeout of
                the process group counts.

        Returns:
            Whether batches drawn from now on are split differently.

        Raises:
            ConfigError: ``computed_seconds`` is invalid, or the loader drew more batches ahead
                than ``prefetch``.
            RanksDisagree: Ranks had different splits, as when one was started again and others
                kept their samplers; or ranks or trainers of the site draw other samples or in
                another order, because they differ in epoch, the length of ``dataset`` or another
                argument.
            EpochEnded: Another trainer of the site failed.
            SiteFailed: A trainer of the site is gone.
            LandbridgeError: As ``BatchSplit.end_step``.
        """
        drawn_ahead = self._drawn - self._ended - 1
        failure: LandbridgeError | None = None
        if drawn_ahead > self._prefetch:
            failure = ConfigError(_sampler_prefetch_text(drawn_ahead, self._prefetch))
        else:
            try:
                check_timeout_argument(timeout)
                computed_seconds = check_split_seconds(computed_seconds)
            except ConfigError as error:
                failure = error
        with error_on_disagreement_with(self._describe):
            seconds = self._local.reduce_max(
                0.0 if failure else computed_seconds, failure, self._order_hash(_SITE_HASH_BYTES)
            )
        changed = self._exchange_speeds(seconds, timeout)
        self._ended += 1
        self._known.append(_raise_small_sampler_shares(self._split.shares, self._local.size))
        return changed

    def _exchange_speeds(self, computed_seconds: float, timeout: float) -> bool:
        """Exchanges the ranks' speeds over the job of each local rank. Returns whether the split
        changes."""
        changed = False
        failure: LandbridgeError | None = None
        samples = self._known[0][self._rank]
        try:
            with error_on_disagreement_with(self._describe):
                changed = self._split.end_step(
                    computed_seconds, samples, layout=self._order_hash(), timeout=timeout
                )
            if not self._split.was_alike:
                text = "ranks had different splits of the global batch in the last step"
                raise RanksDisagree(f"{text}: make a new sampler on every rank")
        except LandbridgeError as error:
            failure = error
        return bool(self._local.reduce_max(changed, failure))

    def _order_hash(self, size: int = 8) -> int:
        """Returns a hash of everything that decides which samples a batch has, and of the trainer
        where it has ``size`` 8 bytes."""
        trainer = self._local if size == 8 else ""
        text = f"{self._order_words()} {trainer}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "big")

    def _order_words(self) -> str:
        """Returns the arguments that decide which samples a batch has."""
        epoch, done = self._drawn_epoch
        return (
            f"{self._samples} samples, global_batch={self._global_batch}, shuffle={self._shuffle}, "
            f"seed={self._seed}, prefetch={self._prefetch}, epoch {epoch} after {done} batches"
        )

    def _describe(self) -> str:
        """Returns the arguments that ranks compare by a hash, for ``RanksDisagree``."""
        trainer = f"trainer {self._local} of its site"
        return f"this sampler has {self._order_words()}, and is of {trainer}"

    def set_epoch(self, epoch: int, done: int = 0) -> None:
        """Chooses the order of the samples, and skips batches. All ranks pass the same.

        Args:
            epoch: The number of the epoch, which the shuffling depends on.
            done: How many batches of the epoch are done and are skipped.

        Raises:
            ConfigError: The epoch has fewer batches.
        """
        batches = self._samples // self._global_batch
        epoch = check_integer_argument("epoch", epoch, 1 << 63)
        done = check_integer_argument("done", done, 1 << 63)
        if done > batches:
            raise ConfigError(f"{done} batches done: an epoch has {batches}")
        self._epoch, self._done = epoch, done

    def __len__(self) -> int:
        """Returns the number of batches that are left in the epoch."""
        return self._samples // self._global_batch - self._done

    def __iter__(self) -> Iterator[list[int]]:
        """Yields this trainer's indices of samples for each batch that is left in the epoch."""
        if self._shuffle:
            generator = torch.Generator()
            generator.manual_seed(self._seed * 1_000_003 + self._epoch)
            order = torch.randperm(self._samples, generator=generator)
        else:
            order = torch.arange(self._samples)
        self._drawn, self._drawn_epoch = self._ended, (self._epoch, self._done)
        for batch in range(self._done, self._done + len(self)):
            shares = self._draw_next_shares()
            before, mine = self._local.split_samples(shares[self._rank])
            begin = batch * self._global_batch + sum(shares[: self._rank]) + before
            yield order[begin : begin + mine].tolist()

    def _draw_next_shares(self) -> list[int]:
        """Returns the shares of the next step whose batch was not drawn yet, and counts the batch
        as drawn. Raises ``ConfigError`` where batches are drawn more than ``prefetch`` steps ahead,
        or behind the steps."""
        drawn_ahead = self._drawn - self._ended
        if drawn_ahead < 0:
            raise ConfigError("`end_step` was called for more steps than batches were drawn")
        # The split does not change before the first `end_step`.
        if drawn_ahead > self._prefetch and self._ended > 0:
            raise ConfigError(_sampler_prefetch_text(drawn_ahead, self._prefetch))
        self._drawn += 1
        return self._known[min(drawn_ahead, self._prefetch)]


def _sampler_prefetch_text(drawn_ahead: int, prefetch: int) -> str:
    """Returns the text of the error for a loader that draws more batches ahead than
    ``prefetch``."""
    text = f"a batch was drawn {drawn_ahead} steps before its own, with prefetch={prefetch}"
    return f"{text}: pass `num_workers * prefetch_factor`, and call `end_step` after every step"


def _sampler_no_sample_text(shares: list[int], least: int) -> str:
    """Returns the text of the error for a rank that gets fewer samples than it has trainers."""
    rank = shares.index(min(shares))
    if least == 1:
        text = f"rank {rank} gets no sample"
    else:
        text = f"the {least} trainers of rank {rank} get {shares[rank]} samples"
    text += f" of a global batch of {sum(shares)}"
    return f"{text}: use a larger one, or give the rank a higher speed"


def _raise_small_sampler_shares(shares: list[int], least: int) -> list[int]:
    """Returns the shares with small ones raised to ``least`` samples, at the cost of the largest
    ones.

    Every trainer needs a sample, because every trainer has a gradient.
    """
    missing = sum(max(least - share, 0) for share in shares)
    shares = [max(least, share) for share in shares]
    # The lower rank comes first of two equals.
    most = [(-share, rank) for rank, share in enumerate(shares)]
    heapq.heapify(most)
    for _ in range(missing):
        share, rank = most[0]
        heapq.heapreplace(most, (share + 1, rank))
        shares[rank] -= 1
    return shares
