"""The communication hook for ``DistributedDataParallel``."""

# Annotations are not postponed here: DDP compares those of the hook with its own types.
import contextlib
import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from .. import errors
from .._argument_errors import argument_error
from .._arguments import check_timeout_argument, check_weight_argument
from .._group import Group, resolve_group
from .._memory.arrays import parse_array_dtype
from .._memory.plain_memory import check_plain_cpu_memory
from .._operations.operation import DEFAULT_TIMEOUT_S, Operation
from .._operations.waiting import Latch, check_not_waiting_after_fork
from ._local_ranks import LocalRanks
from ._site_reduction import SiteReduction
from ._trained_parameters import (
    ParameterUses,
    TrainedParameters,
    dense_parameter_strides,
    describe_parameter_shape,
)


class _BucketOperations:
    """The collectives of a bucket: its average, and at the last bucket the uses of parameters."""

    def __init__(
        self, average: Operation, uses: Optional[ParameterUses], told: Optional[Operation]
    ) -> None:
        """Notes the operation of the average, and that by which all ranks tell their uses."""
        self._average, self._uses, self._told = average, uses, told

    def add_done_callback(self, done: Callable[[Any], None]) -> None:
        """Calls ``done`` with this object when all operations have ended."""

        def handle_average(_: Operation) -> None:
            """Waits for the other operation in the same way."""
            if self._told is None:
                done(self)
            else:
                self._told.add_done_callback(lambda _: done(self))

        self._average.add_done_callback(handle_average)

    def wait(self) -> torch.Tensor:
        """Returns the average. Raises as ``Group.all_reduce``."""
        if self._uses is not None and self._told is not None:
            self._uses.flags = self._told.wait()
        average: torch.Tensor = self._average.wait()
        return average


class State:
    """The state of ``all_reduce_hook``. Make one for each model.

    Without ``process_group`` each trainer is a rank of the fabric and hands its gradients to the
    gateway, which adds up those of its host. Use this for one or two trainers a host.

    With ``process_group`` gradients are first reduced among the trainers of a site. Each trainer
    sends one shard across, and all gather the result. The layout is then:

    * The fabric has one rank for each site.
    * Each local rank ``i`` has a job of its own, such as ``job=f"train-{i}"``, in the region file,
      so that equal shards meet.
    * ``UnevenSampler`` gets the same process group.
    * The process group is the default one or a part of it. Its trainers make their states at the
      same point of the program. A trainer of a part is in as many process groups as the others.
    * When one trainer dies, the others of its site raise ``SiteFailed``. Start all of them again.

    DDP regroups its buckets after the first step. Pass ``find_unused_parameters=True`` to DDP where
    a trainer may be started again while others continue: buckets then stay the same. Otherwise
    such a trainer raises ``RanksDisagree``.

    DDP averages the parameters that were trained when the wrapper was made. ``backward`` raises
    ``ConfigError``, with the name, when the module has others; where only some ranks have them, the
    other ranks raise ``RanksDisagree``. Make a new wrapper after parameters are unfrozen or added.

    Attributes:
        group: The ranks that average.
        timeout: How long to wait for the other ranks' gradients, in seconds.
        failure: The reason why gradients were not averaged, until ``recover``, or ``None``.
    """

    def __init__(
        self,
        group: Optional[Group] = None,
        process_group: Optional[Any] = None,
        *,
        weight: float = 1.0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Prepares the hook.

        Args:
            group: The ranks that average. The default is the only group of this process.
            process_group: The trainers of this site, if they reduce gradients among themselves.
            weight: The weight of this rank in the average: 1, or its samples in a step.
            timeout: How long to wait for the other ranks' gradients, in seconds.

        Raises:
            ConfigError: No group was given, and the process has none or several; or
                ``process_group`` does not fit, or another argument cannot be used.
        """
        self.group = group = resolve_group(group)
        check_timeout_argument(timeout)
        weight = check_weight_argument(weight)
        self.timeout = timeout
        self._owner = os.getpid()
        self.failure: Optional[errors.LandbridgeError] = None
        # Buckets of before the last `recover` may still fail after it. This number tells.
        self._recoveries = 0
        self._weight = weight
        local = LocalRanks(group, process_group)
        self._shard = str(local)
        self._trained = TrainedParameters()
        # The averages of this `backward`, each with the parameters of its bucket.
        self._averages: list[tuple[list[torch.Tensor], torch.Tensor]] = []
        # The uses of its parameters, where a step may leave some unused.
        self._uses: Optional[ParameterUses] = None
        self._site = None if process_group is None else SiteReduction(group, local, weight)

    @property
    def weight(self) -> float:
        """The weight of this rank in the average, such as its number of samples.

        With a process group, all trainers of a site set it at the same point of the program,
        because setting it is a collective among them.
        """
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        """Sets the weight, by a collective of the site where there is a process group. Raises
        ``ConfigError`` for one that cannot be used."""
        weight = check_weight_argument(weight)
        self._weight = weight
        if self._site is not None:
            self._site.set_weight(weight)

    @contextlib.contextmanager
    def typed_errors(self) -> Iterator[None]:
        """Returns a context for ``backward`` that raises the ``LandbridgeError`` itself.

        Autograd alone raises a ``RuntimeError`` with its text.
        """
        try:
            yield
        except RuntimeError as error:
            if self.failure is None or isinstance(error, errors.LandbridgeError):
                raise
            raise self.failure from error

    def recover(
        self, failure: Optional[errors.LandbridgeError] = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Gives up the step, and waits until every rank can begin it again from ``forward``.

        ``resume`` then tells which step to begin.

        Args:
            failure: The exception of the failed step, if ``backward`` did not raise it.
            timeout: How long to wait for the gateway and the other ranks, in seconds.

        Raises:
            SiteFailed: There is a process group but no failure, as after Ctrl-C: other trainers
                of the site may wait for what this one has not begun.
            LandbridgeError: As ``Group.recover``.
        """
        failure = self.failure or failure
        if failure is None and self._site is not None:
            raise errors.SiteFailed("a step was given up: start all trainers of this site again")
        self.failure = None
        self._averages, self._uses = [], None
        self._trained.forget_uses()
        self._recoveries += 1
        if self._site is not None:
            self._site.give_up_step()
        self.group.recover(failure, timeout)

    def start_bucket(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Starts averaging a bucket of gradients. Returns a future of the average."""
        future: torch.futures.Future[None] = torch.futures.Future()
        # The outcome is not the future's value, because the garbage collector does not see into
        # futures: a failure holds frames, which hold futures.
        outcomes: list[Any] = []

        def complete_future(outcome: Any) -> None:
            """Stores an average, an operation or a failure, and completes the future."""
            outcomes.append(outcome)
            future.set_result(None)

        # `backward` raises the text of an exception of `_wait_for_average`.
        parameters = bucket.parameters()
        result = future.then(
            functools.partial(self._wait_for_average, self._recoveries, outcomes, parameters)
        )
        if bucket.index() == 0:
            self._averages, self._uses = [], None
        self._begin_bucket(bucket, complete_future)
        return result

    def give_unused_gradients(self) -> None:
        """Gives their average to parameters that only other ranks used in this step, at the end of
        ``backward``. DDP leaves the gradients of parameters alone that its own process group did
        not use."""
        averages, self._averages = self._averages, []
        uses, self._uses = self._uses, None
        # An average of zeros says nothing: a parameter may be used and have that gradient.
        given = set() if uses is None else uses.list_used_elsewhere()
        for parameters, average in averages if given else ():
            ends = itertools.accumulate(parameter.numel() for parameter in parameters)
            for parameter, end in zip(parameters, ends):
                if id(parameter) in given and parameter.requires_grad:
                    part = average.view(-1)[end - parameter.numel() : end]
                    _give_bucket_gradient(parameter, part)

    def _begin_bucket(self, bucket: GradBucket, done: Callable[[Any], None]) -> None:
        """Posts the bucket, or hands it to the reduction of the site. ``done`` gets an average, an
        operation or a failure."""
        gradients, others = bucket.buffer(), self._trained.note_bucket(bucket)
        # The other ranks hear of these parameters too. The bucket is posted, so that ranks that all
        # have them stay in the same order.
        names = self._trained.bucket_names(bucket)
        uses = self._uses = self._trained.take_uses(bucket)
        more = [] if uses is None else ["with uses"]
        layout = hook_bucket_layout_hash(bucket, " ".join([self._shard, *names, *others, *more]))
        if others:
            done = _report_instead_of_hook(done, _not_averaged_by_hook(others))
        try:
            # The threads that reduce inside a site are not there.
            check_not_waiting_after_fork(self._owner)
            check_plain_cpu_memory(torch, gradients, f"the gradient bucket {bucket.index()}")
            # The reduction inside a site would fail on them without saying why.
            parse_array_dtype(gradients.dtype)
        except (errors.ForkedProcess, errors.UnsupportedArray) as failure:
            return done(failure)
        if self._site is not None:
            if self.group._follower is not None:
                text = "a site with a process group cannot `follow` others: `resume` without it"
                return done(errors.ConfigError(text))
            # After a failure too, because other trainers of the site may have begun this bucket.
            return self._site.start_bucket(gradients, layout, self.timeout, done, uses)
        if self.failure is not None:
            # Every rank begins the step again, so the rest of it is not posted.
            return done(self.failure)
        try:
            operation = self.group.all_reduce_async(
                gradients,
                weight=self._weight,
                # DDP reads the result in the arena, where it was received.
                out=self.group.empty(gradients.numel(), gradients.dtype),
                layout=layout,
                timeout=self.timeout,
            )
            told: Optional[Operation] = None
            if uses is not None:
                told = self.group.all_reduce_async(
                    uses.flags, "max", layout=layout, timeout=self.timeout
                )
            _BucketOperations(operation, uses, told).add_done_callback(done)
        except errors.LandbridgeError as failure:
            done(failure)

    def _wait_for_average(
        self, recoveries: int, outcomes: list[Any], parameters: list[torch.Tensor], _: Any
    ) -> torch.Tensor:
        """Returns the average of a bucket, as the callback of its future. Stores a failure as
        ``failure``, and raises a ``RuntimeError`` with its text."""
        outcome = outcomes.pop()
        try:
            if isinstance(outcome, errors.LandbridgeError):
                raise outcome
            is_operation = isinstance(outcome, _BucketOperations)
            tensor: torch.Tensor = outcome.wait() if is_operation else outcome
            if recoveries == self._recoveries:
                self._averages.append((parameters, tensor))
            return tensor
        except errors.LandbridgeError as failure:
            if isinstance(failure, errors.RanksDisagree):
                failure.here = self._trained.describe(parameters)
            if self.failure is None and recoveries == self._recoveries:
                self.failure = failure
            name = type(failure).__name__
            raise RuntimeError(
                f"gradients were not averaged: landbridge.{name}: {failure}"
            ) from failure


def _give_bucket_gradient(parameter: torch.Tensor, part: torch.Tensor) -> None:
    """Makes a part of a bucket the gradient of a parameter. It is copied into the gradient that the
    parameter has, or is a new tensor."""
    # DDP lays a gradient into its bucket in the order of the parameter's own memory.
    strides = dense_parameter_strides(parameter)
    shape = parameter.shape
    gradient = part.view(shape) if strides is None else part.as_strided(shape, strides)
    if parameter.grad is None:
        parameter.grad = gradient.to(parameter.dtype, copy=True)
    else:
        with torch.no_grad():
            parameter.grad.copy_(gradient)


def _report_instead_of_hook(
    done: Callable[[Any], None], failure: errors.LandbridgeError
) -> Callable[[Any], None]:
    """Returns a function that reports a failure to ``done`` in place of any outcome."""

    def report_failure(outcome: Any) -> None:
        """Reports the failure, with the outcome as its cause where that is one too."""
        if isinstance(outcome, errors.LandbridgeError):
            failure.__cause__ = outcome
        done(failure)

    return report_failure


def _not_averaged_by_hook(names: list[str]) -> errors.ConfigError:
    """Returns the error of trained parameters that DDP does not average."""
    others = f" and {len(names) - 1} more" if names[1:] else ""
    return errors.ConfigError(
        f"the gradient of parameter `{names[0]}`{others} is not averaged, because it was unfrozen "
        "or added after DistributedDataParallel was made: delete that wrapper, make a new one with "
        "a new `State`, and begin the step again"
    )


def all_reduce_hook(state: State, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients over all regions.

    Pass it to ``DistributedDataParallel.register_comm_hook``, together with a ``State``.
    """
    if not isinstance(state, State):
        raise argument_error("state", state, "a landbridge.torch.State")
    future = state.start_bucket(bucket)
    # DDP waits for the future where no signal is handled. This callback waits first, in Python,
    # once all buckets have begun, so that Ctrl-C ends the wait.
    done = Latch()
    future.add_done_callback(lambda _: done.open())
    wait: Any = functools.partial(done.wait, None)
    engine = torch.autograd.Variable._execution_engine
    engine.queue_callback(wait)
    if bucket.is_last():
        # From inside of a callback, because DDP queues its own after the last bucket has begun.
        give: Any = functools.partial(engine.queue_callback, state.give_unused_gradients)
        engine.queue_callback(give)
    return future


def hook_bucket_layout_hash(bucket: GradBucket, shard: str) -> int:
    """Returns a hash of the bucket's place, shapes, strides and frozen parameters and of the shard,
    on which ranks must agree."""
    parameters = bucket.parameters()
    # DDP lays gradients into the bucket by the strides, as those of `channels_last`.
    shapes = [describe_parameter_shape(parameter) for parameter in parameters]
    # A parameter that is frozen on one rank only would be trained by the others.
    frozen = [at for at, parameter in enumerate(parameters) if not parameter.requires_grad]
    text = f"{bucket.index()} {bucket.is_last()} {shapes} {shard} {frozen}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _tell_hook_states_their_wrappers() -> None:
    """Makes ``register_comm_hook`` note its wrapper in a ``State``, because PyTorch does not tell
    hooks their wrappers."""
    register = DistributedDataParallel.register_comm_hook

    @functools.wraps(register)
    def register_and_note(self: DistributedDataParallel, state: Any, hook: Any) -> None:
        """Registers a hook as PyTorch does, and adds the wrapper to the hook's ``State``."""
        register(self, state, hook)
        if isinstance(state, State):
            state._trained.note_wrapper(self)

    DistributedDataParallel.register_comm_hook = register_and_note  # type: ignore[method-assign]


_tell_hook_states_their_wrappers()
