"""The hook for ``DistributedDataParallel``."""

# No postponed annotations here: DDP compares those of the hook with its own types.
import contextlib
import functools
import hashlib
from typing import Any, Callable, Iterator, List, Optional

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from .. import errors
from .._group import Group, chosen
from .._operation import DEFAULT_TIMEOUT_S, Latch, Operation
from ._local_ranks import LocalRanks
from ._site_reduction import Site


class State:
    """What ``all_reduce_hook`` needs; one for each model. ``group`` is the only one that this
    process has connected, where it is not given.

    Without ``process_group`` every rank hands its gradients to the gateway directly, which adds
    up those of its host: the way for one or two ranks a host.

    With it, gradients are reduced inside the site first, each rank taking a shard across, and
    gathered inside the site afterwards. Then each rank of the process group has a job of its
    own in the region's file, so that shards with the same number meet: the fabric has one rank
    for each site, and local rank ``i`` connects with ``job=f"train-{i}"``. ``UnevenSampler`` gets
    the process group as well. When one of them dies, the others of its site have ``SiteFailed``,
    and all of them must be started anew.

    The process group is the default one or a part of it. Its ranks make their states at the same
    point of the program; in the case of a part, they are in equally many process groups then.

    ``weight`` is what this rank counts in the average: 1, or its samples in a step when they
    are unequal.

    DDP makes other buckets after its first step. Where a trainer may be started anew while the
    others go on, give DDP ``find_unused_parameters=True``: its buckets then stay as they are at
    first. Otherwise ``RanksDisagree`` says that they differ.
    """

    def __init__(
        self,
        group: Optional[Group] = None,
        process_group: Optional[Any] = None,
        *,
        weight: float = 1.0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.group = group = chosen(group)
        #: How long to wait for the other ranks' gradients, in seconds.
        self.timeout = timeout
        #: Why gradients were not averaged, until ``recover``.
        self.failure: Optional[errors.LandbridgeError] = None
        # Failures of buckets that were begun before the last `recover` may still come.
        self._recoveries = 0
        self._weight = weight
        local = LocalRanks(group, process_group)
        self._shard = str(local)
        self._site = None if process_group is None else Site(group, local, weight)

    @property
    def weight(self) -> float:
        """What this rank counts in the average. All ranks of a site set theirs at the same
        point of the program, for with a process group they tell each other."""
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        self._weight = weight
        if self._site is not None:
            self._site.set_weight(weight)

    @contextlib.contextmanager
    def typed_errors(self) -> Iterator[None]:
        """Around ``backward``: raises the ``LandbridgeError`` itself, where autograd only has a
        ``RuntimeError`` with its text."""
        try:
            yield
        except RuntimeError as error:
            if self.failure is None or isinstance(error, errors.LandbridgeError):
                raise
            raise self.failure from error

    def recover(
        self,
        failure: Optional[errors.LandbridgeError] = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """After a failed step: returns once every rank is ready to begin one, from its
        ``forward``. Which one ``resume`` says. See ``Group.recover``; ``failure`` is what was
        raised elsewhere than in ``backward``.

        Without any failure, as after Ctrl-C, raises ``SiteFailed`` where there is a process
        group: the others of the site may wait for what this rank has not begun.
        """
        failure = self.failure or failure
        if failure is None and self._site is not None:
            raise errors.SiteFailed("a step was given up: start all trainers of this site anew")
        self.failure = None
        self._recoveries += 1
        if self._site is not None:
            self._site.begin_anew()
        self.group.recover(failure, timeout)

    def start(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begins to average a bucket."""
        future: torch.futures.Future[None] = torch.futures.Future()
        # What came is not the future's value, for the garbage collector does not see into that:
        # a failure holds frames, which hold futures.
        came: List[Any] = []

        def done(what: Any) -> None:
            came.append(what)
            future.set_result(None)

        # What it raises surfaces in `backward`, with its text.
        result = future.then(functools.partial(self._result, self._recoveries, came))
        self._begin(bucket, done)
        return result

    def _begin(self, bucket: GradBucket, done: Callable[[Any], None]) -> None:
        gradients, layout = bucket.buffer(), layout_of(bucket, self._shard)
        if self._site is not None:
            # Also after a failure, for the others of the site may have begun this bucket.
            return self._site.start(gradients, layout, self.timeout, done)
        if self.failure is not None:
            # Every rank begins the step anew, so what is left of this one is not sent.
            return done(self.failure)
        try:
            operation = self.group.all_reduce_async(
                gradients,
                weight=self._weight,
                # DDP reads the result where it was received.
                out=self.group.empty(gradients.numel(), gradients.dtype),
                layout=layout,
                timeout=self.timeout,
            )
            operation.add_done_callback(done)
        except errors.LandbridgeError as failure:
            done(failure)

    def _result(self, recoveries: int, came: List[Any], _: Any) -> torch.Tensor:
        what = came.pop()
        try:
            if isinstance(what, errors.LandbridgeError):
                raise what
            tensor: torch.Tensor = what.wait() if isinstance(what, Operation) else what
            return tensor
        except errors.LandbridgeError as failure:
            if self.failure is None and recoveries == self._recoveries:
                self.failure = failure
            name = type(failure).__name__
            raise RuntimeError(
                f"gradients were not averaged: landbridge.{name}: {failure}"
            ) from failure


def all_reduce_hook(state: State, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients over all sites; for ``register_comm_hook``."""
    future = state.start(bucket)
    # DDP waits for it where no signal is handled. This waits before, when all buckets have been
    # begun, in Python: Ctrl-C ends it.
    answered = Latch()
    future.add_done_callback(lambda _: answered.open())
    wait: Any = functools.partial(answered.wait, None)
    torch.autograd.Variable._execution_engine.queue_callback(wait)
    return future


def layout_of(bucket: GradBucket, shard: str) -> int:
    """What ranks must agree on beside the length: also which ``shard`` of it they bring."""
    shapes = [tuple(parameter.shape) for parameter in bucket.parameters()]
    text = f"{bucket.index()} {bucket.is_last()} {shapes} {shard}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
