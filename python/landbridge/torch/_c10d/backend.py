"""The classes that c10d takes as a backend, and their registration.

From PyTorch 2.14 on a backend is a subclass of c10d's ``Backend``; before that, of
``ProcessGroup``. Both are ``C10dCollectives`` under the names that c10d calls.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ... import errors
from .collectives import C10dCollectives
from .exchange import Exchange
from .world import World, attached_world_number, is_world_inside_site, join_world

#: The name of the backend, which a user passes to ``init_process_group`` of PyTorch.
BACKEND_NAME = "landbridge"
# Types of which PyTorch has other signatures in each version.
_Backend: Any = c10d.Backend
_ProcessGroup: Any = c10d.ProcessGroup


class LandbridgeBackend(C10dCollectives, _Backend):  # type: ignore[misc]
    """A group across sites, for versions of PyTorch whose ``Backend`` has subclasses in Python."""

    # PyTorch asks a subclass for these, and its own answer calls itself without end.
    supports_coalescing = False
    supports_reconfigure = False
    supports_shrinking = False
    supports_splitting = False
    supports_window = False
    _supports_time_estimate = False

    def __init__(self, world: World, exchange: Exchange, timeout: timedelta) -> None:
        """Starts the exchange, in which collectives without a timeout of their own have
        ``timeout``. The world keeps the group alive until it is shut down or aborted."""
        _Backend.__init__(self, exchange.group.rank, exchange.group.world_size)
        self._world: World | None = world
        self._options_of_c10d = _Backend.Options(BACKEND_NAME, timeout=timeout)
        self.start_exchange(exchange, timeout)
        world.retain(self)

    @property
    def options(self) -> Any:
        """The options of the group, of which c10d asks the timeout."""
        return self._options_of_c10d

    def getBackendName(self) -> str:
        """Returns the name of the backend."""
        return BACKEND_NAME

    def shutdown(self) -> None:
        """Waits until all collectives have ended. The last group of the process detaches it."""
        world, self._world = self._world, None
        if world is not None:
            self._exchange.close()
            world.release(self)

    def abort(self) -> None:
        """Fails everything under way in this group alone. The last group of the process detaches
        it."""
        world, self._world = self._world, None
        if world is not None:
            self._exchange.abort()
            world.release(self)

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: each group numbers its collectives from 1 on."""

    def _get_sequence_number_for_group(self) -> int:
        """Returns the number of collectives that this rank has called, which PyTorch compares over
        ranks with ``TORCH_DISTRIBUTED_DEBUG=DETAIL``."""
        return self._exchange.call_count


class LandbridgeProcessGroup(C10dCollectives, _ProcessGroup):  # type: ignore[misc]
    """A group across sites, for earlier versions of PyTorch."""

    # Names of c10d at that time.
    _allgather_base = C10dCollectives.all_gather_single
    allgather_into_tensor_coalesced = C10dCollectives.all_gather_single_coalesced
    _reduce_scatter_base = C10dCollectives.reduce_scatter_single
    reduce_scatter_tensor_coalesced = C10dCollectives.reduce_scatter_single_coalesced
    alltoall_base = C10dCollectives.all_to_all_single
    _start_coalescing = C10dCollectives.start_coalescing
    _end_coalescing = C10dCollectives.end_coalescing

    def __init__(self, world: World, exchange: Exchange, timeout: timedelta) -> None:
        """Starts the exchange, in which collectives without a timeout of their own have
        ``timeout``. The world keeps the group alive until it is shut down or aborted."""
        self._place = exchange.group.rank, exchange.group.world_size
        _ProcessGroup.__init__(self, *self._place)
        self._world: World | None = world
        self._names = {"group_name": "", "group_desc": ""}
        self.start_exchange(exchange, timeout)
        world.retain(self)

    def rank(self) -> int:
        """Returns the number of this process in the group."""
        return self._place[0]

    def size(self) -> int:
        """Returns the number of processes of the group."""
        return self._place[1]

    getRank, getSize = rank, size

    def getBackendName(self) -> str:
        """Returns the name of the backend."""
        return BACKEND_NAME

    @property
    def group_name(self) -> str:
        """The name by which functional collectives find the group."""
        return self._names["group_name"]

    @property
    def group_desc(self) -> str:
        """The description of the group."""
        return self._names["group_desc"]

    def _set_group_name(self, name: str) -> None:
        """Sets the name of the group."""
        self._names["group_name"] = name

    def _set_group_desc(self, desc: str) -> None:
        """Sets the description of the group."""
        self._names["group_desc"] = desc

    def getGroupName(self) -> str:
        """Returns the name of the group, for c10d's own code."""
        return self._names["group_name"]

    def getGroupDesc(self) -> str:
        """Returns the description of the group, for c10d's own code."""
        return self._names["group_desc"]

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    shutdown = LandbridgeBackend.shutdown
    abort = LandbridgeBackend.abort


def register_backend() -> None:
    """Registers the backend ``landbridge`` with ``torch.distributed``. It may be called again.

    PyTorch 2.15 calls it by an entry point when somebody names the backend; importing
    ``landbridge.torch`` calls it as well.

    Raises:
        ConfigError: Another package has registered a backend of this name.
    """
    plugins = dist.Backend._plugins
    known = plugins.get(BACKEND_NAME.upper())
    if known is not None:
        if known.creator_fn is not _create_backend:
            text = f"another package has registered a backend `{BACKEND_NAME}`"
            raise errors.ConfigError(f"{text}: {known.creator_fn.__module__}")
        return
    # The flight recorder asks each of these devices for its stream, and must find one.
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    devices = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
    dist.Backend.register_backend(BACKEND_NAME, _create_backend, extended_api=True, devices=devices)


def _create_backend(options: Any, _: Any) -> Any:
    """Returns the object that c10d asks a backend for: Gloo for a group inside one site, else a
    group over the gateways. c10d calls it on the members of the group."""
    is_default = not options.global_ranks_in_group
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    size = options.group_size if is_default else dist.get_world_size()
    rank, timeout = ranks[options.group_rank], options.timeout
    if is_world_inside_site(ranks, rank, size):
        # The store may have the addresses of a group of the same name that was destroyed.
        store = c10d.PrefixStore(f"landbridge-{attached_world_number()}", options.store)
        return dist.ProcessGroupGloo(store, options.group_rank, options.group_size, timeout=timeout)
    world = join_world(rank, size, timeout.total_seconds())
    kind: Any = LandbridgeBackend if _has_python_backends() else LandbridgeProcessGroup
    return kind(
        world, world.make_exchange(ranks, options.group_id, timeout.total_seconds()), timeout
    )


def _has_python_backends() -> bool:
    """Returns whether c10d's ``Backend`` may have subclasses in Python."""

    class Probe(_Backend):  # type: ignore[misc]
        """A subclass without methods."""

    try:
        Probe(0, 1)
    except TypeError:
        return False
    return True
