"""Trained parameters whose gradients DDP does not average, or not on all ranks.

DDP chooses its parameters when the wrapper is made. One that is unfrozen or added later keeps the
gradient of its own rank, and the ranks' weights part. So they do where only other ranks have used
a parameter, since DDP knows of the uses in its own process group alone. ``State`` asks here at the
last bucket of each ``backward``, in autograd's thread.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]

_log = logging.getLogger("landbridge")


#: 16 parameters: the most that an error lists, so that the error stays readable. Of further
#: parameters it says only how many there are.
_DESCRIBED_MAX = 16
#: The options of DDP with any of which a step may leave parameters unused. Ranks then also tell
#: each other which parameters each has used.
_UNUSED_OPTIONS = ("find_unused_parameters", "static_graph")


def describe_trained_bucket(
    names: Sequence[str], parameters: Sequence[torch.Tensor], module: torch.nn.Module | None
) -> str:
    """Returns what this rank averages by one collective, for ``RanksDisagree``: ranks compare it by
    a hash. ``names`` may be unknown, and so may the module, whose frozen parameters are listed."""
    shapes = [describe_parameter_shape(parameter) for parameter in parameters]
    each = [f"`{name}` {shape}" for name, shape in zip(names, shapes)] or shapes
    text = f"the bucket of this rank has {list_trained_words(each)}"
    if module is not None:
        every = module.named_parameters()
        frozen = [f"`{name}`" for name, parameter in every if not parameter.requires_grad]
        text = f"{text}; frozen parameters of its module: {list_trained_words(frozen)}"
    return f"{text}; a layout is a hash of names, shapes, strides and frozen parameters"


def describe_parameter_shape(parameter: torch.Tensor) -> str:
    """Returns the shape of a parameter, with the strides of elements that lie in another order than
    by rows."""
    strides, shape = dense_parameter_strides(parameter), tuple(parameter.shape)
    # The stride of a dimension of one element moves nothing.
    if strides is None or parameter.is_contiguous():
        return str(shape)
    moving = [stride for stride, size in zip(strides, shape) if size != 1]
    return f"{shape} with strides {tuple(moving)}"


def list_trained_words(words: Sequence[str]) -> str:
    """Returns words with commas, and only the number of those beyond ``_DESCRIBED_MAX``."""
    more = len(words) - _DESCRIBED_MAX
    text = ", ".join(words[:_DESCRIBED_MAX]) or "none"
    return f"{text} and {more} more" if more > 0 else text


def dense_parameter_strides(parameter: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the strides of a parameter whose elements fill their memory, as DDP keeps them in a
    bucket; ``None`` for another one, which DDP lays out by rows."""
    filled = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape)):
        if size != 1 and stride != filled:
            return None
        filled *= size
    return tuple(parameter.stride())


def _may_leave_parameters_unused(wrapper: Any) -> bool:
    """Returns whether a wrapper lets a step leave parameters unused."""
    return any(getattr(wrapper, option, False) for option in _UNUSED_OPTIONS)


class ParameterUses:
    """The uses of all parameters in one ``backward``.

    Attributes:
        flags: For each parameter whether it was used: by this rank, until the largest flag of all
            ranks takes its place.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], used: Sequence[bool]) -> None:
        """Begins with the uses of this rank."""
        self._parameters, self._used = parameters, used
        self.flags = torch.tensor(used, dtype=torch.uint8)

    def list_used_elsewhere(self) -> set[int]:
        """Returns the identities of the parameters that only other ranks have used."""
        told = zip(self._parameters, self._used, self.flags.tolist())
        return {id(parameter) for parameter, is_used, flag in told if flag and not is_used}


class _UseWatch:
    """The parameters of wrappers that have got a gradient since the last averages.

    DDP counts a parameter as used on the same event, but tells nobody.
    """

    def __init__(self) -> None:
        """Begins without parameters."""
        self._hooks: dict[int, Any] = {}
        self._used: set[int] = set()

    def __del__(self) -> None:
        """Removes the hooks from the parameters."""
        for hook in self._hooks.values():
            hook.remove()

    def watch_parameters(self, module: torch.nn.Module) -> None:
        """Notes from now on when a trained parameter of the module gets a gradient."""
        used = self._used  # The hooks outlive this object where it ends in a cycle.
        parameter: Any
        for parameter in module.parameters():
            if parameter.requires_grad and id(parameter) not in self._hooks:
                hook = parameter.register_post_accumulate_grad_hook(
                    lambda parameter: used.add(id(parameter))
                )
                self._hooks[id(parameter)] = hook

    def take_uses(self, parameters: Sequence[torch.Tensor]) -> ParameterUses:
        """Returns which of these parameters were used, and forgets it."""
        used = [
            id(one) in self._used or (id(one) not in self._hooks and one.grad is not None)
            for one in parameters
        ]
        self.forget_uses()
        return ParameterUses(parameters, used)

    def forget_uses(self) -> None:
        """Forgets all uses, as those of a step that was given up."""
        self._used.clear()


class TrainedParameters:
    """The parameters that DDP averages in one ``backward``, compared with those of its module.

    A communication hook does not learn its wrapper. ``register_comm_hook`` tells it here."""

    def __init__(self) -> None:
        """Begins without wrappers, and without buckets of a ``backward``."""
        #: Whether DDP lets this ``backward`` leave parameters unused.
        self._may_be_unused = False
        #: Parameters in the buckets of this ``backward``, in the order of the buckets, by identity.
        self._averaged: dict[int, torch.Tensor] = {}
        self._watch = _UseWatch()
        #: Wrappers that have the hook.
        self._wrappers: list[weakref.ref[Any]] = []
        #: Whether the log has said that a wrapper is unknown.
        self._has_told = False
        #: The names of the parameters in each bucket, by the identities of the parameters.
        self._bucket_names: dict[tuple[int, ...], list[str]] = {}

    def note_wrapper(self, wrapper: Any) -> None:
        """Adds a wrapper to which the hook was added."""
        alive = [known for known in self._wrappers if known() is not None]
        self._wrappers = [*alive, weakref.ref(wrapper)]
        self._bucket_names = {}
        if _may_leave_parameters_unused(wrapper):
            self._watch.watch_parameters(wrapper.module)

    def take_uses(self, bucket: GradBucket) -> ParameterUses | None:
        """Returns the uses of all parameters at the last bucket of a ``backward`` that may leave
        some unused; ``None`` at other buckets."""
        if not (bucket.is_last() and self._may_be_unused):
            return None
        return self._watch.take_uses(list(self._averaged.values()))

    def forget_uses(self) -> None:
        """Forgets the uses of a step that was given up."""
        self._watch.forget_uses()

    def bucket_names(self, bucket: GradBucket) -> list[str]:
        """Returns the names of a bucket's parameters in their module, on which ranks must agree:
        parameters of one shape may stand in another order on one rank. Returns none where the
        wrapper is unknown."""
        return self._names_of(bucket.parameters())

    def describe(self, parameters: Sequence[torch.Tensor]) -> str:
        """Returns a text with the names and shapes of a bucket's parameters, and the frozen
        parameters of their module, for ``RanksDisagree``."""
        wrapper = self._wrapper_with(id(parameters[0])) if parameters else None
        module = None if wrapper is None else wrapper.module
        return describe_trained_bucket(self._names_of(parameters), parameters, module)

    def _names_of(self, parameters: Sequence[torch.Tensor]) -> list[str]:
        """Returns the names of a bucket's parameters in their module; none where it is unknown."""
        identities = tuple(map(id, parameters))
        if not identities:
            return []
        names = self._bucket_names.get(identities)
        if names is None:
            wrapper = self._wrapper_with(identities[0])
            named = [] if wrapper is None else wrapper.module.named_parameters()
            by_identity = {id(parameter): name for name, parameter in named}
            names = [by_identity[one] for one in identities if one in by_identity]
            self._bucket_names[identities] = names
        return names

    def note_bucket(self, bucket: GradBucket) -> list[str]:
        """Adds the parameters of a bucket to those averaged. At the last bucket of a ``backward``,
        returns the names of the trained parameters that were in no bucket; at others, none."""
        if bucket.index() == 0:
            self._averaged, self._may_be_unused = {}, False
        parameters = bucket.parameters()
        self._averaged.update((id(parameter), parameter) for parameter in parameters)
        if not bucket.is_last() or not parameters:
            return []
        wrapper = self._find_wrapper(id(parameters[0]))
        if wrapper is None:
            return []
        self._may_be_unused = _may_leave_parameters_unused(wrapper)
        return list(self._list_others(wrapper))

    def _list_others(self, wrapper: Any) -> Iterator[str]:
        """Yields the names of a wrapper's trained parameters that were in no bucket, without those
        that DDP was told to ignore."""
        # DDP averages some of the ignored ones itself, but only in its own process group.
        delayed = {id(parameter) for parameter in getattr(wrapper, "_delay_all_reduce_params", ())}
        ignored = getattr(wrapper, "parameters_to_ignore", ())
        for name, parameter in wrapper.module.named_parameters():
            if name in ignored and id(parameter) not in delayed:
                continue
            if parameter.requires_grad and id(parameter) not in self._averaged:
                yield name

    def _find_wrapper(self, first: int) -> Any:
        """Returns the wrapper with a parameter, given by identity, or ``None``, of which it warns
        the first time."""
        found = self._wrapper_with(first)
        if found is None and not self._has_told:
            self._has_told = True
            _log.warning(
                "no DistributedDataParallel with the averaged parameters has registered this "
                "state, so none that is unfrozen or added later is noticed; add the hook by "
                "`register_comm_hook`, or compare weights with `check_module`"
            )
        return found

    def _wrapper_with(self, first: int) -> Any:
        """Returns the wrapper of the smallest module that has a parameter, given by identity, among
        the noted wrappers; ``None`` if there is none."""
        best, best_size = None, 0
        for reference in self._wrappers:
            wrapper = reference()
            if wrapper is None:
                continue
            members = [id(parameter) for parameter in wrapper.module.parameters()]
            if first in members and (best is None or len(members) < best_size):
                best, best_size = wrapper, len(members)
        return best
