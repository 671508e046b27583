"""Which gradients FSDP2 hands to a hook, or to the process group of replicas.

It hands over one flat tensor: the gradients of those parameters of a module that got one in this
step. It does not tell which, and ranks that skip different ones may have as many elements. So the
function of FSDP2 that reduces gradients is wrapped, and ranks compare names.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import logging
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ...errors import NotSupported
from .._trained_parameters import list_trained_words

_log = logging.getLogger("landbridge")

#: The module of PyTorch in which FSDP2 calls the function that reduces gradients.
_REDUCING_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
#: The parameters of that function that tell what it reduces.
_TELLING_NAMES = ("fsdp_params", "reduce_scatter_group")


class FsdpShard(NamedTuple):
    """This rank's shard of the gradients of some parameters of a module."""

    #: The name of each parameter in the root module, its shape, and that of its shard.
    parameters: Sequence[tuple[str, tuple[int, ...], tuple[int, ...]]]
    #: The number of the shard, and the number of shards.
    place: tuple[int, int]

    def layout_hash(self) -> int:
        """Returns a hash of all of it, on which the ranks that have this shard must agree."""
        return _shard_text_hash(f"fsdp {self.place} {list(self.parameters)}")

    def whole_layout_hash(self) -> int:
        """Returns a hash of the parameters, on which the ranks of all shards must agree."""
        whole = [(name, shape) for name, shape, _ in self.parameters]
        return _shard_text_hash(f"fsdp {self.place[1]} {whole}")

    def describe(self) -> str:
        """Returns what this rank averages, for ``RanksDisagree``."""
        names = list_trained_words([f"`{name}` {shape}" for name, shape, _ in self.parameters])
        index, size = self.place
        text = f"this rank has shard {index} of {size} of the gradients of {names}"
        return f"{text}; a layout is a hash of the shard, names and shapes"


class _ReducingThread(threading.local):
    """The reduction of FSDP2 in each thread."""

    #: The shard, or ``None`` where FSDP2 reduces nothing.
    shard: FsdpShard | None = None


_reducing = _ReducingThread()


def reduced_fsdp_shard() -> FsdpShard | None:
    """Returns the shard that FSDP2 hands over in this thread now, or ``None`` outside of it."""
    return _reducing.shard


@functools.lru_cache(maxsize=None)
def note_fsdp_shards() -> None:
    """Makes FSDP2 note each shard while it hands it over, from the next one on.

    Raises:
        NotSupported: This version of PyTorch has no such function.
    """
    module = importlib.import_module(_REDUCING_MODULE)
    reduce = getattr(module, "foreach_reduce", None)
    known = inspect.signature(reduce).parameters if callable(reduce) else {}
    if not set(_TELLING_NAMES) <= set(known):
        raise NotSupported(
            f"PyTorch {torch.__version__} does not tell which gradients FSDP2 hands over, so that "
            "sites could mix those of different parameters: use PyTorch 2.9 to 2.15"
        )
    module.foreach_reduce = _shard_noting_reduction(reduce)  # type: ignore[attr-defined]


def note_fsdp_shards_if_imported() -> None:
    """Notes shards where the program has imported FSDP2, since an import of it takes time. Another
    version of PyTorch is told in the log alone: the program may train without it."""
    if _REDUCING_MODULE not in sys.modules:
        return
    try:
        note_fsdp_shards()
    except NotSupported as error:
        _log.info("%s", error)


def _shard_noting_reduction(reduce: Any) -> Any:
    """Returns a function that reduces gradients as ``reduce``, and notes the shard meanwhile."""
    signature = inspect.signature(reduce)

    @functools.wraps(reduce)
    def note_and_reduce(*arguments: Any, **options: Any) -> Any:
        """Notes the shard, and reduces."""
        given = signature.bind(*arguments, **options).arguments
        before = _reducing.shard
        _reducing.shard = _fsdp_shard_of(*(given[name] for name in _TELLING_NAMES))
        try:
            return reduce(*arguments, **options)
        finally:
            _reducing.shard = before

    return note_and_reduce


def _shard_text_hash(text: str) -> int:
    """Returns a layout hash of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _fsdp_shard_of(parameters: Sequence[Any], process_group: Any) -> FsdpShard:
    """Returns the shard of some parameters of FSDP2 in a process group; without one there is a
    single shard."""
    place = (0, 1)
    if process_group is not None:
        place = (dist.get_rank(process_group), dist.get_world_size(process_group))
    # FSDP2 names parameters in its root module before the first step.
    return FsdpShard(
        [(one._param_fqn, tuple(one._orig_size), tuple(one.sharded_size)) for one in parameters],
        place,
    )
