"""Trained parameters whose gradients DDP does not average.

DDP chooses its parameters when the wrapper is made. One that is unfrozen or added later keeps the
gradient of its own rank, and the ranks' weights part. ``State`` asks here at the last bucket of
each ``backward``, in autograd's thread.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]

_log = logging.getLogger("landbridge")


#: 16 parameters: the most that an error lists, so that it stays readable.
_DESCRIBED_MAX = 16


def describe_bucket(
    names: Sequence[str], parameters: Sequence[torch.Tensor], module: torch.nn.Module | None
) -> str:
    """Returns what this rank averages by one collective, for ``RanksDisagree``: ranks compare it by
    a hash. ``names`` may be unknown, and so may the module, whose frozen parameters are listed."""
    shapes = [str(tuple(parameter.shape)) for parameter in parameters]
    each = [f"`{name}` {shape}" for name, shape in zip(names, shapes)] or shapes
    text = f"the bucket of this rank has {_list_words(each)}"
    if module is not None:
        every = module.named_parameters()
        frozen = [f"`{name}`" for name, parameter in every if not parameter.requires_grad]
        text = f"{text}; frozen parameters of its module: {_list_words(frozen)}"
    return f"{text}; a layout is a hash of names, shapes and frozen parameters"


def _list_words(words: Sequence[str]) -> str:
    """Returns words with commas, and only the number of those beyond ``_DESCRIBED_MAX``."""
    more = len(words) - _DESCRIBED_MAX
    text = ", ".join(words[:_DESCRIBED_MAX]) or "none"
    return f"{text} and {more} more" if more > 0 else text


class TrainedParameters:
    """The parameters that DDP averages in one ``backward``, compared with those of its module.

    A communication hook does not learn its wrapper. ``register_comm_hook`` tells it here.

    Attributes:
        may_be_unused: Whether DDP lets a step leave parameters unused.
    """

    def __init__(self) -> None:
        """Begins without wrappers, and without buckets of a ``backward``."""
        self.may_be_unused = False
        #: Parameters in the buckets of this ``backward``, by identity.
        self._averaged: set[int] = set()
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

    def bucket_names(self, bucket: GradBucket) -> list[str]:
        """Returns the names of a bucket's parameters in their module, on which ranks must agree:
        parameters of one shape may stand in another order on one rank. Returns none where the
        wrapper is unknown."""
        return self._names_of(bucket.parameters())

    def describe(self, parameters: Sequence[torch.Tensor]) -> str:
        """Returns what a bucket with these parameters has, and what is frozen beside it."""
        wrapper = self._wrapper_with(id(parameters[0])) if parameters else None
        module = None if wrapper is None else wrapper.module
        return describe_bucket(self._names_of(parameters), parameters, module)

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
            self._averaged = set()
        parameters = bucket.parameters()
        self._averaged.update(map(id, parameters))
        if not bucket.is_last() or not parameters:
            return []
        wrapper = self._find_wrapper(id(parameters[0]))
        if wrapper is None:
            return []
        options = ("find_unused_parameters", "static_graph")
        self.may_be_unused = any(getattr(wrapper, option, False) for option in options)
        return list(self._list_others(wrapper))

    def _list_others(self, wrapper: Any) -> Iterator[str]:
        """Yields the names of a wrapper's trained parameters that were in no bucket."""
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
