"""The process group that torchft makes anew whenever replicas come or go."""

from __future__ import annotations

import importlib
import os
import secrets
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .. import errors
from .._arguments import check_timeout_argument
from .._config.program import read_config_by_program
from .._group import Group
from .._group.connecting import connect_alone
from ..torch._c10d.arena_room import ArenaRoom, choose_arena_piece_bytes
from ..torch._c10d.collectives import C10dCollectives
from ..torch._c10d.exchange import Exchange
from ..torch._c10d.exchange_work import ExchangeWork
from ..torch._c10d.launch import LaunchPlace
from ..torch._c10d.world import WorldArguments
from ._renumbered_group import RenumberedGroup

# Not a dependency, and not installed where types are checked.
_torchft: Any = importlib.import_module("torchft.process_group")
#: 62 bits: the length of the random tag by which the ranks of a quorum make their group. Such a tag
#: is below 2^63 - 1, the limit of ``Group.new_group``.
_TAG_BITS = 62
#: The beginning of the keys in torchft's store under which ranks tell their places; the rank's
#: number follows.
_STORE_KEY = "landbridge/"


class ProcessGroup(C10dCollectives, _torchft.ProcessGroup):  # type: ignore[misc]
    """A process group for ``torchft.Manager``.

    Each process is a rank of the fabric, which has one for each process that may ever join: a site
    for each replica, or several replicas in a site. Absent ranks are waited for by nobody.
    """

    # Names of torchft for the same calls.
    allgather_into_tensor_coalesced = C10dCollectives.all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = C10dCollectives.reduce_scatter_single_coalesced
    alltoall_base = C10dCollectives.all_to_all_single

    def __init__(
        self,
        config: str | Path | None = None,
        *,
        rank: int | None = None,
        job: str | None = None,
        address: str | None = None,
        arena: str | None = None,
        timeout: timedelta = timedelta(seconds=60),
    ) -> None:
        """Reads which rank of the fabric this process is. ``configure`` attaches it.

        Args:
            config: The path of the region file; by default that in ``LANDBRIDGE_CONFIG``.
            rank: The rank of this process in the fabric; by default by the numbers that its
                launcher, such as ``torchrun``, gave the processes of its site.
            job: The name of the job, where the region file has several; by default that in
                ``LANDBRIDGE_JOB``.
            address: The address of a gateway on another host of the site; by default that in
                ``LANDBRIDGE_ADDRESS``, or the gateway on this host.
            arena: The size of the memory for contributions and results; by default that in
                ``LANDBRIDGE_ARENA``, or 256 MiB.
            timeout: How long to wait for other ranks, in ``configure`` and in collectives that
                give no timeout.

        Raises:
            ConfigError: A file, an argument or the environment cannot be used.
        """
        super().__init__(0, 1)
        self._attachment = WorldArguments.from_arguments(config, job, address, arena)
        if rank is None:
            place = LaunchPlace.from_environment(os.environ)
            fabric = read_config_by_program(self._attachment.config)
            rank = place.find_rank(fabric, self._attachment.config)
        self._fabric_rank = rank
        self.set_timeout(timeout)
        self._group: Group | None = None
        self._room: ArenaRoom | None = None
        self._watched: _ProcessGroupExchange | None = None

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of ``configure``, and of collectives that have none of their own."""
        check_timeout_argument(timeout.total_seconds())
        super().set_timeout(timeout)

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: list[int] | None = None,
    ) -> None:
        """Ends the group of before with everything under way in it, and makes one of these ranks.

        Args:
            store_addr: The address of a store that these ranks share, and a prefix that no other
                call has: ``HOST:PORT/PREFIX``.
            replica_id: The name of this replica.
            rank: The number of this process in the group.
            world_size: The number of processes of the group.
            quorum_id: The number of the quorum.
            group_rank: The number of this process in its replica.
            group_world_size: The number of processes of its replica.
            global_ranks: The numbers of the processes over all replicas.

        Raises:
            LandbridgeError: A gateway or a rank did not come in time.
        """
        deadline = time.monotonic() + self._timeout.total_seconds()
        self.abort()
        group = self._attached_group()
        told = self._exchange_places(group, store_addr, rank, world_size)
        fabric_ranks = [place[0] for place in told]
        if len(set(fabric_ranks)) < world_size:
            ranks = ", ".join(map(str, fabric_ranks))
            raise errors.ConfigError(
                f"replicas are ranks {ranks} of the fabric: give each process a rank of its own"
            )
        assert self._room is not None, "the rank is attached"
        self._room.piece_bytes = choose_arena_piece_bytes([place[1] for place in told])
        left = max(deadline - time.monotonic(), 0.001)
        subgroup = group.new_group(fabric_ranks, tag=told[0][2], timeout=left)
        assert subgroup is not None, "this rank is one of them"
        try:
            # Gateways tell the loss of a rank at once where it has come to the group before.
            subgroup.barrier(max(deadline - time.monotonic(), 0.001))
        except BaseException:
            subgroup.close()
            raise
        places = [sorted(fabric_ranks).index(each) for each in fabric_ranks]
        self._watched = _ProcessGroupExchange(RenumberedGroup(subgroup, places), self._room)
        self.start_exchange(self._watched, self._timeout)

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> ExchangeWork:
        """Combines each tensor with those of all ranks, in place."""
        if isinstance(opts, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
            op, opts = opts, dist.AllreduceOptions()
            opts.reduceOp = op
        return super().allreduce(tensors, opts)

    def errored(self) -> Exception | None:
        """Returns the first failure since ``configure``, after which only another ``configure``
        helps; ``None`` without one."""
        return None if self._watched is None else self._watched.failure

    def abort(self) -> None:
        """Fails everything under way at once. Collectives raise ``Closed`` until ``configure``."""
        if self._watched is not None:
            self._watched.abort()

    def shutdown(self) -> None:
        """Aborts as ``abort``, and detaches the rank from its gateway."""
        self.abort()
        self._watched = None
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def size(self) -> int:
        """Returns the number of ranks: 1 before ``configure``."""
        return 1 if self._watched is None else self._watched.group.world_size

    def rank(self) -> int:
        """Returns the number of this rank: 0 before ``configure``."""
        return 0 if self._watched is None else self._watched.group.rank

    def getBackendName(self) -> str:
        """Returns the name of the backend."""
        return "landbridge-torchft"

    def _attached_group(self) -> Group:
        """Returns this rank's attachment to its gateway, a new one after the loss of the old."""
        if self._group is not None and self._group._state.ended is not None:
            self._group.close()
            self._group = None
        if self._group is None:
            self._group = connect_alone(
                self._attachment.address,
                config=self._attachment.config,
                rank=self._fabric_rank,
                job=self._attachment.job,
                arena=self._attachment.arena,
                timeout=self._timeout.total_seconds(),
            )
            self._room = ArenaRoom(self._group._arena, 0)
        return self._group

    def _exchange_places(
        self, group: Group, store_addr: str, rank: int, world_size: int
    ) -> list[tuple[int, ...]]:
        """Returns what each rank tells of itself through torchft's store: its number in the fabric,
        the bytes of its arena, and a random tag."""
        store = _torchft.create_store_client(store_addr, timeout=self._timeout)
        mine = (group.rank, group._arena.nbytes, secrets.randbits(_TAG_BITS))
        store.set(f"{_STORE_KEY}{rank}", " ".join(map(str, mine)))
        keys = [f"{_STORE_KEY}{each}" for each in range(world_size)]
        store.wait(keys, self._timeout)
        return [tuple(map(int, store.get(key).split())) for key in keys]


class _ProcessGroupExchange(Exchange):
    """An exchange that remembers its first failure.

    Attributes:
        failure: The failure, or ``None``.
    """

    def __init__(self, group: Any, room: ArenaRoom) -> None:
        """Starts the exchange as ``Exchange``, without a failure."""
        self.failure: Exception | None = None
        super().__init__(group, room)

    def start_call(self, *arguments: Any, **options: Any) -> ExchangeWork:
        """Starts a collective as ``Exchange.start_call``."""
        return self._watch(super().start_call(*arguments, **options))

    def start_send(self, *arguments: Any, **options: Any) -> ExchangeWork:
        """Starts a send or a receive as ``Exchange.start_send``."""
        return self._watch(super().start_send(*arguments, **options))

    def _watch(self, work: ExchangeWork) -> ExchangeWork:
        """Notes the failure of a work once it has ended, and returns it."""

        def note_failure() -> None:
            """Notes the failure if it is the first."""
            self.failure = self.failure or work.exception()

        work.call_at_end(note_failure)
        return work
