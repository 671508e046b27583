"""The all-reduce hook for FSDP2: each rank's shard of the gradients, averaged over sites."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ... import errors
from ..._arguments import check_timeout_argument, check_weight_argument
from ..._group import Group, resolve_group
from ..._operations.operation import DEFAULT_TIMEOUT_S
from .._c10d.flat_tensors import FlatTensor
from .shard import note_fsdp_shards, reduced_fsdp_shard


def fsdp_hook(
    group: Group | None = None, *, weight: float = 1.0, timeout: float = DEFAULT_TIMEOUT_S
) -> Callable[[torch.Tensor], None]:
    """Returns a hook for ``FSDPModule.set_all_reduce_hook``.

    Each site has a process group of its own, in which ``fully_shard`` shards the model alike. The
    fabric has one rank for each site, and each local rank ``i`` has a job of its own, such as
    ``job=f"train-{i}"``, so that equal shards meet. Set the hook on each module that was sharded,
    the root included.

    In a step all sites leave the same parameters without a gradient. Where they skip different
    ones, or mix up their shards, ``backward`` raises ``RanksDisagree``, with the names.

    Args:
        group: The ranks that hold the same shard, one of each site. The default is the only group
            of this process.
        weight: The weight of this site in the average: 1, or its samples in a step.
        timeout: How long to wait for the other sites' shards, in seconds.

    Raises:
        ConfigError: An argument cannot be used; or no group was given, and the process has none or
            several.
        NotSupported: This version of PyTorch does not tell which gradients a hook gets.
    """
    ranks = resolve_group(group)
    check_timeout_argument(timeout)
    weight = check_weight_argument(weight)
    note_fsdp_shards()

    def average_shard(gradients: torch.Tensor) -> None:
        """Averages a shard over sites, in place. Raises as ``Group.all_reduce``."""
        reduced = reduced_fsdp_shard()
        if reduced is None:
            raise errors.ConfigError(
                "`fsdp_hook` takes gradients from FSDP2 alone: pass it to "
                "`FSDPModule.set_all_reduce_hook`, and average other tensors by `Group.all_reduce`"
            )
        shard = FlatTensor(gradients, is_read=True, is_written=True)
        with errors.error_on_disagreement_with(reduced.describe):
            ranks.all_reduce(
                shard.flat,
                "avg",
                weight=weight,
                out=shard.flat,
                layout=reduced.layout_hash(),
                flat=True,
                timeout=timeout,
            )
        shard.copy_back()

    return average_shard
