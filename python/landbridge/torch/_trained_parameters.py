"""The search for trained parameters whose gradients DDP does not average.

DDP chooses its parameters when the wrapper is made. One that is unfrozen or added later keeps the
gradient of its own rank, and the ranks' weights part. ``State`` asks here at the last bucket of
each ``backward``, in autograd's thread.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]

_log = logging.getLogger("landbridge")


class TrainedParameters:
    """The parameters that DDP averages in one ``backward``, compared with those of its module.

    A communication hook does not learn its wrapper's name. The wrapper is looked for among all
    objects of the process, once for each wrapper.

    Attributes:
        may_be_unused: Whether DDP lets a step leave parameters unused.
    """

    def __init__(self) -> None:
        self.may_be_unused = False
        #: Parameters in the buckets of this ``backward``, by identity.
        self._averaged: set[int] = set()
        #: Wrappers that were alive at the last search.
        self._wrappers: list[weakref.ref[Any]] = []
        #: The first parameter, by identity, of each module whose wrapper was looked for in vain.
        self._unfound: set[int] = set()

    def note_bucket(self, bucket: GradBucket) -> list[str]:
        """Notes the parameters of a bucket. At the last one of a ``backward``, returns the names of
        the trained parameters that were in none."""
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
        """Returns the wrapper with a parameter, given by identity, or ``None``."""
        found = self._wrapper_with(first)
        if found is None and first not in self._unfound:
            # By class and not by `isinstance`, which runs code of objects that stand for others.
            self._wrappers = [
                weakref.ref(one)
                for one in gc.get_objects()
                if issubclass(type(one), torch.nn.parallel.DistributedDataParallel)
            ]
            found = self._wrapper_with(first)
            if found is None:
                self._unfound.add(first)
                _log.warning(
                    "no DistributedDataParallel was found around the averaged parameters, so none "
                    "that is unfrozen or added later is noticed; call `gc.freeze` after the first "
                    "step, or compare weights with `check_module`"
                )
        return found

    def _wrapper_with(self, first: int) -> Any:
        """Returns the wrapper of the smallest module that has a parameter, given by identity, among
        those that were found; ``None`` if there is none."""
        best, best_size = None, 0
        for reference in self._wrappers:
            wrapper = reference()
            if wrapper is None:
                continue
            members = [id(parameter) for parameter in wrapper.module.parameters()]
            if first in members and (best is None or len(members) < best_size):
                best, best_size = wrapper, len(members)
        return best
