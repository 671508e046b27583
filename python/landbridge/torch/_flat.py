"""Gradients that are computed where the gateway reads them."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any, Iterator, List, Optional, Set

import torch

from .._group import Group, chosen
from .._operation import DEFAULT_TIMEOUT_S, Operation
from ..errors import ConfigError, LandbridgeError, UnsupportedArray
from ._local_ranks import LocalRanks

_BUCKET_BYTES = 25 << 20


class FlatGrads:
    """Lays the gradients of a module into the arena, and averages them without a copy.

        grads = landbridge.torch.FlatGrads(model)
        for batch in batches:
            grads.zero()
            loss(model, batch).backward()   # sends each bucket as soon as it is complete
            grads.wait()
            optimizer.step()

    There are two places for each gradient: ``backward`` adds up in one, the average comes into
    the other, which is ``p.grad`` from ``wait`` to ``zero``, and may be clipped or written in any
    other way. So ``zero`` takes the place of ``optimizer.zero_grad``, which by default would drop
    them. The arena needs room for all gradients twice, and nothing else of it is used.

    When ``wait`` raises, also ``KeyboardInterrupt``, ``p.grad`` are this rank's own gradients,
    intact. After ``Group.recover``, and where ``resume`` goes on with the same step, ``wait`` sends
    them again: no need to compute them anew. When ``backward`` raises, they are incomplete: begin
    the step again by ``zero``.

    ``group`` is the only one that this process has connected, where it is not given.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        group: Optional[Group] = None,
        *,
        weight: float = 1.0,
        bucket_bytes: int = _BUCKET_BYTES,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        group = chosen(group)
        # Nothing is reduced inside the site: each trainer is a rank of the fabric.
        LocalRanks(group, None)
        self.group = group
        #: What this rank counts in the average.
        self.weight = weight
        #: How long to wait for the other ranks' gradients, in seconds.
        self.timeout = timeout
        self._sending = True
        # Whether `backward` ended in a failure to send.
        self._incomplete = False
        trained = [p for p in module.parameters() if p.requires_grad]
        # Backward comes to the last ones first.
        self._buckets = [
            _Bucket(group, parameters, index)
            for index, parameters in enumerate(_buckets(trained[::-1], bucket_bytes))
        ]
        self._next = 0
        for bucket in self._buckets:
            parameter: Any
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(bucket))
        self.zero()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of the ``backward`` inside are added up, but not sent."""
        self._sending = False
        try:
            yield
        finally:
            self._sending = True

    def zero(self) -> None:
        """Begins a step: ``p.grad`` are zeros, to be added to."""
        self._next, self._incomplete = 0, False
        for bucket in self._buckets:
            bucket.zero()

    def wait(self) -> None:
        """Ends a step: ``p.grad`` are the averages, and the gateway needs them no more. Buckets
        that ``backward`` has not completed, because some parameter was not used, are sent now.

        Raises what ``Operation.wait`` and ``Group.all_reduce_async`` raise, and ``ConfigError``
        when ``backward`` has failed since ``zero``.
        """
        if self._incomplete:
            text = "`backward` failed, and its gradients are incomplete"
            raise ConfigError(f"{text}: begin the step again by `FlatGrads.zero`")
        if self._buckets and self._buckets[0].is_of_the_past(self.group):
            # All ranks begin the step's collectives anew, whatever became of some.
            self._next = 0
        try:
            while self._next < len(self._buckets):
                self._send_next()
        except BaseException:
            # Also Ctrl-C: what was to be sent then, nobody knows.
            self._next = 0
            raise
        try:
            for bucket in self._buckets:
                bucket.wait()
        except LandbridgeError:
            self._next = 0
            raise
        for bucket in self._buckets:
            bucket.show_averages()

    def _hook(self, bucket: _Bucket) -> Any:
        def ready(parameter: torch.Tensor) -> None:
            self._incomplete = True
            bucket.note(parameter)
            if not self._sending:
                self._incomplete = False
                return
            bucket.missing.discard(id(parameter))
            # In order, for all ranks must post in the same order.
            while self._next < len(self._buckets) and not self._buckets[self._next].missing:
                self._send_next()
            self._incomplete = False

        return ready

    def _send_next(self) -> None:
        self._buckets[self._next].send(self.group, self.weight, self.timeout)
        self._next += 1


class _Bucket:
    """Gradients that travel together."""

    def __init__(self, group: Group, parameters: List[torch.nn.Parameter], index: int) -> None:
        self.parameters = parameters
        elements = sum(p.numel() for p in parameters)
        dtype = parameters[0].dtype
        self._places = [group.empty(elements, dtype) for _ in range(2)]
        self._views = [_views(place, parameters) for place in self._places]
        text = f"flat {index} {[tuple(p.shape) for p in parameters]}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        self._layout = int.from_bytes(digest, "big")
        # Where gradients add up; averages come into the other.
        self._own = 0
        self._operation: Optional[Operation] = None
        # The group's agreements when that was sent.
        self._agreements = 0
        self._is_sent = False
        self.missing: Set[int] = set()

    def zero(self) -> None:
        if self._operation is not None:
            # The gateway may still send from both.
            self._operation.wait_free()
        self._places[self._own].zero_()
        self._show(self._own)
        self._is_sent = False
        self.missing = {id(p) for p in self.parameters}

    def note(self, parameter: torch.Tensor) -> None:
        if self._is_sent:
            raise ConfigError(
                "a gradient was added to while it was being sent: each `FlatGrads.zero` has one "
                "`backward`; those before it are inside `no_sync`"
            )
        grad, place = parameter.grad, self._places[self._own]
        if grad is None or grad.untyped_storage().data_ptr() != place.untyped_storage().data_ptr():
            raise UnsupportedArray(
                "a gradient is not in the arena: begin a step by `FlatGrads.zero`, "
                "in place of `zero_grad`"
            )

    def send(self, group: Group, weight: float, timeout: float) -> None:
        self._is_sent, self._agreements = True, group._state.agreements
        self._operation = group.all_reduce_async(
            self._places[self._own],
            weight=weight,
            out=self._places[1 - self._own],
            layout=self._layout,
            timeout=timeout,
        )

    def is_of_the_past(self, group: Group) -> bool:
        """Whether the group has recovered since it was sent."""
        state = group._state
        recovered = state.agreements != self._agreements
        return self._operation is not None and state.is_agreed and recovered

    def wait(self) -> None:
        if self._operation is not None:
            self._operation.wait()
            # The averages are shown to who may write them.
            self._operation.wait_free()

    def show_averages(self) -> None:
        self._show(1 - self._own)

    def _show(self, which: int) -> None:
        for parameter, view in zip(self.parameters, self._views[which]):
            parameter.grad = view


def _views(place: torch.Tensor, parameters: List[torch.nn.Parameter]) -> List[torch.Tensor]:
    views, at = [], 0
    for parameter in parameters:
        views.append(place[at : at + parameter.numel()].view(parameter.shape))
        at += parameter.numel()
    return views


def _buckets(
    parameters: List[torch.nn.Parameter], bucket_bytes: int
) -> Iterator[List[torch.nn.Parameter]]:
    """Of one dtype each, in order."""
    bucket: List[torch.nn.Parameter] = []
    for parameter in parameters:
        full = sum(p.nbytes for p in bucket) + parameter.nbytes > bucket_bytes
        if bucket and (full or bucket[0].dtype != parameter.dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
