"""Gradients that lie in the arena, where the gateway reads them without a copy."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from .._arguments import check_integer_argument, check_timeout_argument, check_weight_argument
from .._group import Group, resolve_group
from .._memory.arrays import parse_array_dtype
from .._memory.plain_memory import check_plain_cpu_memory
from .._operations.operation import DEFAULT_TIMEOUT_S, Operation
from ..errors import ConfigError, LandbridgeError, UnsupportedArray, error_on_disagreement_with
from ._local_ranks import LocalRanks
from ._module_sync import check_module_argument
from ._trained_parameters import describe_trained_bucket

#: 25 MiB: the most bytes of gradients that ``FlatGrads`` averages in one all-reduce by default,
#: unless one parameter has more. PyTorch's DDP has the same.
_DEFAULT_BUCKET_BYTES = 25 << 20


class FlatGrads:
    """Lays out the gradients of a module in the arena, and averages them without a copy.

        grads = landbridge.torch.FlatGrads(model)
        for batch in batches:
            grads.zero()
            loss(model, batch).backward()  # posts each bucket as soon as it is complete
            grads.wait()
            optimizer.step()

    A parameter that is added to the module or unfrozen later is averaged from the next ``zero`` on,
    on all ranks at the same step. One that got a gradient before that makes ``wait`` raise. One
    that is frozen or removed has no gradient from the next ``zero`` on, and a rank that is started
    again then joins with the parameters that are trained by now.

    The arena holds each gradient twice: ``backward`` adds to one copy, and the average arrives in
    the other. From ``wait`` to ``zero`` the average is ``p.grad``; it may be clipped or written.
    Call ``zero`` instead of ``optimizer.zero_grad``, which drops gradients by default. Between
    ``zero`` and ``wait`` write gradients in place: ``wait`` refuses another tensor in ``p.grad``,
    and a gradient that was written after ``backward`` had posted it.

    When ``wait`` raises, ``p.grad`` are this rank's own gradients, intact. After ``Group.recover``,
    and if ``resume`` continues with the same step, ``wait`` posts them again, so ``backward`` need
    not be repeated. When ``backward`` raises, gradients are incomplete: begin the step again with
    ``zero``.

    Attributes:
        group: The ranks that average.
        weight: The weight of this rank in the average.
        timeout: How long to wait for the other ranks' gradients, in seconds.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        group: Group | None = None,
        *,
        weight: float = 1.0,
        bucket_bytes: int = _DEFAULT_BUCKET_BYTES,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Lays out the gradients.

        Args:
            module: The module whose parameters are trained.
            group: The ranks that average. The default is the only group of this process.
            weight: The weight of this rank in the average, as for ``Group.all_reduce``.
            bucket_bytes: The most bytes of gradients that are averaged together.
            timeout: How long to wait for the other ranks' gradients, in seconds.

        Raises:
            ArenaFull: The arena has no room for all gradients twice.
            UnsupportedArray: A parameter is no plain memory on the CPU, or its dtype is not
                supported. The error names it.
            ConfigError: An argument cannot be used; or no group was given, and the process has none
                or several.
        """
        check_module_argument(module)
        group = resolve_group(group)
        # Each trainer is a rank of the fabric: nothing is reduced inside a site first.
        LocalRanks(group, None)
        check_timeout_argument(timeout)
        bucket_bytes = check_integer_argument("bucket_bytes", bucket_bytes, 1 << 63, 1)
        weight = check_weight_argument(weight)
        self.group = group
        self.weight = weight
        self.timeout = timeout
        self._sending = True
        # Whether `backward` failed while it posted a bucket.
        self._incomplete = False
        # Whether `wait` was called since `zero`.
        self._was_awaited = False
        # The group's agreements at `zero`.
        self._agreements = 0
        self._module, self._bucket_bytes = module, bucket_bytes
        self._buckets: list[_GradientBucket] = []
        # The parameters in the buckets, in the module's order: name, identity, shape and dtype.
        self._layout: list[tuple[str, int, torch.Size, torch.dtype]] = []
        self._hooks: list[Any] = []
        self._next = 0
        self.zero()
        # The end of the training is told of a last step without `wait`.
        group._add_step_check(self._check_awaited)

    def __del__(self) -> None:
        """Removes the hooks from the module's parameters."""
        for hook in getattr(self, "_hooks", ()):
            hook.remove()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Returns a context in which ``backward`` adds to the gradients, but posts none of them."""
        self._sending = False
        try:
            yield
        finally:
            self._sending = True

    def zero(self) -> None:
        """Begins a step: sets ``p.grad`` to zeros in the arena.

        Waits until the gateway no longer reads the last step's gradients. From here on exactly
        those parameters are averaged that are in the module and not frozen now.

        Raises:
            ArenaFull, UnsupportedArray: A new parameter cannot be averaged, as in the constructor.
            ConfigError: Weights were changed after ``backward`` without ``wait``. The next call
                begins a step.
        """
        try:
            self._check_awaited()
        except ConfigError:
            self._was_awaited = True
            raise
        self._next, self._incomplete, self._was_awaited = 0, False, False
        self._agreements = self.group._state.agreements
        self._follow_module()
        for bucket in self._buckets:
            bucket.zero_gradients()

    def wait(self) -> None:
        """Ends a step: waits until ``p.grad`` are the averages and may be written.

        It first posts the buckets that ``backward`` left incomplete because some parameter was
        not used.

        Raises:
            ConfigError: ``backward`` has failed since ``zero``; or a parameter has a gradient
                that was not averaged, because it was added or unfrozen since ``zero``, or was
                written after it had been sent; or weights were changed since ``backward``, as by
                an optimizer that stepped before.
            UnsupportedArray: A gradient is not in the arena, because ``p.grad`` is another tensor
                or ``None``.
            LandbridgeError: As ``Group.all_reduce``.
        """
        self._was_awaited = True
        if self._incomplete:
            text = "`backward` failed, and its gradients are incomplete"
            raise ConfigError(f"{text}: begin the step again with `FlatGrads.zero`")
        if self._buckets and self._buckets[0].was_posted_before_recovery(self.group):
            # After a recovery all ranks post all buckets of the step again.
            self._next = 0
        for index, bucket in enumerate(self._buckets):
            bucket.check_gradients(is_sent=index < self._next)
        try:
            while self._next < len(self._buckets):
                self._post_next_bucket()
        except BaseException:
            # Ctrl-C too: it is unknown whether the bucket was posted.
            self._next = 0
            raise
        try:
            for bucket in self._buckets:
                with error_on_disagreement_with(functools.partial(bucket.describe, self._module)):
                    bucket.wait_for_averages()
        except LandbridgeError:
            self._next = 0
            raise
        # After all posts and waits, so that the ranks stay in the same order.
        self._check_all_averaged()
        self._check_unchanged_weights(is_sent=False)
        for bucket in self._buckets:
            bucket.show_averages()

    def _follow_module(self) -> None:
        """Lays out all gradients anew when the trained parameters have changed: others, other names
        or another order, shape or dtype. Drops the gradients of frozen parameters.

        The layout follows from the module alone, so that a rank that starts now makes the same.
        """
        trained: list[tuple[str, torch.nn.Parameter]] = []
        parameter: Any
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad:
                if torch.nn.parameter.is_lazy(parameter):
                    # It has no shape that could be compared.
                    _check_flat_parameter(name, parameter)
                trained.append((name, parameter))
            else:
                # An optimizer would go on with a frozen parameter whose gradient is zeros.
                parameter.grad = None
        layout = [(name, id(p), p.shape, p.dtype) for name, p in trained]
        if layout != self._layout:
            for name, parameter in trained:
                _check_flat_parameter(name, parameter)
            self._drop_layout()
            self._lay_out_gradients(trained)
            self._layout = layout

    def _drop_layout(self) -> None:
        """Drops all buckets, with their memory, and the hooks of their parameters."""
        for hook in self._hooks:
            hook.remove()
        for bucket in self._buckets:
            bucket.drop_gradients()
        self._hooks, self._buckets, self._layout = [], [], []

    def _lay_out_gradients(self, named: list[tuple[str, torch.nn.Parameter]]) -> None:
        """Makes the buckets of these parameters, and registers the hooks that post them."""
        names = {id(parameter): name for name, parameter in named}
        # `backward` completes the last parameters first.
        parameters = [parameter for _, parameter in named][::-1]
        buckets = [
            _GradientBucket(self.group, part, [names[id(parameter)] for parameter in part], index)
            for index, part in enumerate(
                _split_into_gradient_buckets(parameters, self._bucket_bytes)
            )
        ]
        for bucket in buckets:
            parameter: Any
            for parameter in bucket.parameters:
                handle = self._make_gradient_hook(bucket)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(handle))
        self._buckets = buckets

    def _check_awaited(self) -> None:
        """Raises ``ConfigError`` when weights were changed by gradients that were posted and never
        awaited."""
        if not (self._was_awaited or self._incomplete):
            self._check_unchanged_weights(is_sent=True)

    def _check_unchanged_weights(self, is_sent: bool) -> None:
        """Raises ``ConfigError`` when a weight was written since its gradient was complete, or was
        sent where ``is_sent``, and gradients are not averages yet."""
        # After a recovery the weights may be those of another rank.
        if self._agreements != self.group._state.agreements:
            return
        for bucket in self._buckets:
            changed = bucket.find_changed_weight(is_sent)
            if changed is not None:
                raise ConfigError(
                    f"parameter `{changed}` was changed after `backward` without `FlatGrads.wait`, "
                    "by gradients that are this rank's own: call `wait` before the optimizer's "
                    "`step`, and make weights equal again with `sync_module`"
                )

    def _check_all_averaged(self) -> None:
        """Raises ``ConfigError`` when a parameter outside the buckets has a gradient."""
        averaged = {identity for _, identity, _, _ in self._layout}
        for name, parameter in self._module.named_parameters():
            if parameter.grad is not None and id(parameter) not in averaged:
                raise ConfigError(
                    f"the gradient of parameter `{name}` was not averaged, because it was added or "
                    "unfrozen after `FlatGrads.zero`; `p.grad` are this rank's own gradients: "
                    "begin the step again with `FlatGrads.zero`, which takes the parameter in"
                )

    def _make_gradient_hook(self, bucket: _GradientBucket) -> Any:
        """Returns the hook that autograd calls when a gradient of the bucket is accumulated."""
        # The module outlives this object, whose place another one may take.
        weakly = weakref.ref(self)

        def handle_gradient(parameter: torch.Tensor) -> None:
            """Hands the parameter to the object, if that is still there."""
            grads = weakly()
            if grads is not None:
                grads._handle_gradient(bucket, parameter)

        return handle_gradient

    def _handle_gradient(self, bucket: _GradientBucket, parameter: torch.Tensor) -> None:
        """Marks a parameter's gradient as complete, and posts the buckets that are complete."""
        self._incomplete = True
        bucket.check_gradient(parameter)
        bucket.note_gradient(parameter, self._sending)
        if not self._sending:
            self._incomplete = False
            return
        # Buckets are posted in their order, because all ranks must post in the same order.
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._post_next_bucket()
        self._incomplete = False

    def _post_next_bucket(self) -> None:
        """Posts the first bucket of gradients that is not posted yet."""
        self._buckets[self._next].post_gradients(self.group, self.weight, self.timeout)
        self._next += 1


class _GradientBucket:
    """Gradients that are averaged together by one collective."""

    def __init__(
        self, group: Group, parameters: list[torch.nn.Parameter], names: list[str], index: int
    ) -> None:
        """Allocates the gradients of these parameters twice in the arena. ``index`` is the number
        of the bucket. Raises ``ArenaFull``."""
        self.parameters, self._names = parameters, names
        elements = sum(p.numel() for p in parameters)
        dtype = parameters[0].dtype
        self._flats = [group.empty(elements, dtype) for _ in range(2)]
        self._views = [_flat_parameter_views(flat, parameters) for flat in self._flats]
        # The address of each view. `p.grad.data = ...` gives the view itself other memory.
        self._addresses = [[view.data_ptr() for view in views] for views in self._views]
        # The index of each parameter in the bucket, by identity.
        self._places = {id(parameter): at for at, parameter in enumerate(parameters)}
        shapes = [(name, tuple(p.shape)) for name, p in zip(names, parameters)]
        text = f"flat {index} {shapes}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        self._layout = int.from_bytes(digest, "big")
        # The index of the tensor that `backward` adds to. Averages arrive in the other one.
        self._own = 0
        self._operation: Operation | None = None
        # The group's agreements when the operation was posted.
        self._agreements = 0
        self._is_posted = False
        # Whether `p.grad` are the averages.
        self._is_averaged = False
        # The version of the gradients when they were posted. PyTorch counts writes by it.
        self._posted_version = 0
        # The version of each parameter when its gradient was complete, by identity.
        self._weight_versions: dict[int, int] = {}
        self.missing: set[int] = set()

    def zero_gradients(self) -> None:
        """Waits until the gateway is done with the bucket, and sets its gradients to zeros in the
        arena."""
        if self._operation is not None:
            # The gateway may still read from both tensors.
            self._operation.wait_free()
        self._flats[self._own].zero_()
        self._set_parameter_gradients(self._own)
        self._is_posted = self._is_averaged = False
        self._weight_versions = {}
        self.missing = {id(p) for p in self.parameters}

    def drop_gradients(self) -> None:
        """Waits until the gateway is done with the bucket, and takes its memory from the
        parameters."""
        if self._operation is not None:
            self._operation.wait_free()
        for parameter in self.parameters:
            parameter.grad = None

    def check_gradient(self, parameter: torch.Tensor) -> None:
        """Raises an error if a gradient was added to after the bucket was posted, or is not in the
        arena."""
        if self._is_posted:
            raise ConfigError(
                "a gradient was added to while it was being sent: call `backward` once after each "
                "`FlatGrads.zero`, and earlier calls of the step inside `no_sync`"
            )
        self._check_in_arena(parameter)

    def check_gradients(self, is_sent: bool) -> None:
        """Raises an error if a gradient is not in the arena, or was written although the bucket is
        sent. Averages may be written."""
        if self._is_averaged:
            return
        for parameter in self.parameters:
            self._check_in_arena(parameter)
        if is_sent and self._flats[self._own]._version != self._posted_version:
            raise ConfigError(
                f"a gradient of {', '.join(self._names)} was written after `backward` had posted "
                "it: scale or clip the averages after `FlatGrads.wait`, and begin the step again "
                "with `FlatGrads.zero`"
            )

    def _check_in_arena(self, parameter: torch.Tensor) -> None:
        """Raises ``UnsupportedArray`` unless the gradient of a parameter is the memory that is
        posted."""
        grad, address = parameter.grad, self._addresses[self._own][self._places[id(parameter)]]
        is_strided = grad is not None and grad.layout is torch.strided
        if grad is None or not is_strided or grad.data_ptr() != address or not grad.is_contiguous():
            raise UnsupportedArray(
                "a gradient is not in the arena: begin a step with `FlatGrads.zero` in place of "
                "`zero_grad`, and write gradients in place"
            )

    def note_gradient(self, parameter: torch.Tensor, is_complete: bool) -> None:
        """Keeps the version of the weights that the gradient of a parameter belongs to, and marks
        it as complete where it ``is_complete``."""
        if is_complete:
            self.missing.discard(id(parameter))
        self._weight_versions[id(parameter)] = parameter._version

    def find_changed_weight(self, is_sent: bool) -> str | None:
        """Returns the name of a parameter that was written since it got its gradient, or ``None``.
        Where ``is_sent`` it asks for complete gradients alone. Averages may be applied."""
        if self._is_averaged:
            return None
        for name, parameter in zip(self._names, self.parameters):
            noted = self._weight_versions.get(id(parameter))
            if is_sent and id(parameter) in self.missing:
                continue
            if noted is not None and noted != parameter._version:
                return name
        return None

    def post_gradients(self, group: Group, weight: float, timeout: float) -> None:
        """Posts the all-reduce of the bucket's gradients."""
        self._is_posted, self._agreements = True, group._state.agreements
        self._posted_version = self._flats[self._own]._version
        self._operation = group.all_reduce_async(
            self._flats[self._own],
            weight=weight,
            out=self._flats[1 - self._own],
            layout=self._layout,
            timeout=timeout,
        )

    def was_posted_before_recovery(self, group: Group) -> bool:
        """Returns whether the group has recovered since the bucket was posted."""
        state = group._state
        recovered = state.agreements != self._agreements
        return self._operation is not None and state.is_epoch_agreed and recovered

    def wait_for_averages(self) -> None:
        """Waits until the bucket's averages have come and may be written."""
        if self._operation is not None:
            self._operation.wait()
            # The caller may write the averages, so the gateway must be done with them.
            self._operation.wait_free()

    def describe(self, module: torch.nn.Module) -> str:
        """Returns the bucket's parameters and the frozen ones of the module, for errors."""
        return describe_trained_bucket(self._names, self.parameters, module)

    def show_averages(self) -> None:
        """Makes the averages the gradients of the bucket's parameters."""
        self._is_averaged = True
        self._set_parameter_gradients(1 - self._own)

    def _set_parameter_gradients(self, which: int) -> None:
        """Makes one of the bucket's two tensors, by its index, the gradients of the parameters."""
        if [view.data_ptr() for view in self._views[which]] != self._addresses[which]:
            self._views[which] = _flat_parameter_views(self._flats[which], self.parameters)
        for parameter, view in zip(self.parameters, self._views[which]):
            parameter.grad = view


def _check_flat_parameter(name: str, parameter: torch.Tensor) -> None:
    """Raises ``UnsupportedArray``, with the parameter's name, when its gradient cannot lie in the
    arena."""
    check_plain_cpu_memory(torch, parameter, f"parameter `{name}`")
    try:
        parse_array_dtype(parameter.dtype)
    except UnsupportedArray as error:
        raise UnsupportedArray(f"parameter `{name}`: {error}") from error


def _flat_parameter_views(
    flat: torch.Tensor, parameters: list[torch.nn.Parameter]
) -> list[torch.Tensor]:
    """Returns a view of the flat tensor for each parameter, in the parameter's shape."""
    views, at = [], 0
    for parameter in parameters:
        views.append(flat[at : at + parameter.numel()].view(parameter.shape))
        at += parameter.numel()
    return views


def _split_into_gradient_buckets(
    parameters: list[torch.nn.Parameter], bucket_bytes: int
) -> Iterator[list[torch.nn.Parameter]]:
    """Yields buckets of parameters of one dtype, in order, of at most ``bucket_bytes`` bytes unless
    one parameter has more."""
    bucket: list[torch.nn.Parameter] = []
    for parameter in parameters:
        full = sum(p.nbytes for p in bucket) + parameter.nbytes > bucket_bytes
        if bucket and (full or bucket[0].dtype != parameter.dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
