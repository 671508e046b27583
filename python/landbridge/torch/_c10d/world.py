"""The ranks of this process's job, as its process groups see them.

A process attaches once, by the environment or by ``init_process_group``. Its process groups share
the attachment and its arena until the last of them is destroyed. Each has a group of its own at the
gateways, so none waits for another, and a failure stays in the groups of the failed rank.
"""

from __future__ import annotations

import collections
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ... import errors
from ..._arguments import check_path_argument
from ..._config.program import read_config_by_program
from ..._exchange_integers import exchange_integers
from ..._group import Group, connect
from .arena_room import ArenaRoom, choose_arena_piece_bytes
from .exchange import Exchange

#: The environment variable with the path of the region file, for callers that pass none.
CONFIG_VARIABLE = "LANDBRIDGE_CONFIG"


class WorldArguments(NamedTuple):
    """The arguments by which a process attaches to its gateway."""

    #: The path of the region file.
    config: Path
    #: The name of the job, where the region file has several.
    job: str | None
    #: The address of a gateway on another host of the site.
    address: str | None
    #: The size of the memory for contributions and results.
    arena: str

    @staticmethod
    def from_environment(variables: Mapping[str, str]) -> WorldArguments:
        """Returns the arguments that the environment has.

        Raises:
            ConfigError: The environment names no region file.
        """
        config = variables.get(CONFIG_VARIABLE)
        if not config:
            text = f"no region file: set {CONFIG_VARIABLE} to its path"
            raise errors.ConfigError(f"{text}, or call `landbridge.torch.init_process_group`")
        return WorldArguments(
            Path(config),
            variables.get("LANDBRIDGE_JOB"),
            variables.get("LANDBRIDGE_ADDRESS"),
            variables.get("LANDBRIDGE_ARENA", "256 MiB"),
        )

    @staticmethod
    def from_arguments(
        config: str | Path | None, job: str | None, address: str | None, arena: str | None
    ) -> WorldArguments:
        """Returns the arguments of a caller, and those of the environment for ``None``.

        Raises:
            ConfigError: An argument cannot be used, or nobody names a region file.
        """
        given = {
            CONFIG_VARIABLE: None if config is None else str(check_path_argument("config", config)),
            "LANDBRIDGE_JOB": job,
            "LANDBRIDGE_ADDRESS": address,
            "LANDBRIDGE_ARENA": arena,
        }
        named = {name: value for name, value in given.items() if value is not None}
        return WorldArguments.from_environment({**os.environ, **named})

    def connect_rank(self, rank: int, timeout_s: float) -> Group:
        """Attaches a rank of the fabric; see ``landbridge.connect``."""
        return connect(
            self.address,
            config=self.config,
            rank=rank,
            job=self.job,
            arena=self.arena,
            timeout=timeout_s,
        )


class World:
    """All ranks of the job.

    Attributes:
        group: The ranks, by their numbers in the fabric.
        regions: The region of each rank.
        number: A number that no other attachment of these ranks has.
    """

    def __init__(self, group: Group, timeout_s: float) -> None:
        """Agrees with all ranks on the number of this attachment, and on the length at which large
        tensors are cut, so that they fit every rank's arena.

        Raises:
            LandbridgeError: A rank did not come in time.
        """
        self.group = group
        self.regions: Sequence[str] = group._location.regions
        mine = [group._arena.nbytes, secrets.randbits(63)]
        arenas, numbers = exchange_integers(group, mine, timeout=timeout_s)
        self.number = numbers[0]
        self._room = ArenaRoom(group._arena, choose_arena_piece_bytes(arenas))
        # The process groups that use this world, which keeps them alive: in PyTorch's mode for
        # debugging, DETAIL, only the C++ half of a backend has an owner, and that has no methods.
        self._users: set[object] = set()
        # How many groups of each name were made. All ranks of a name make as many.
        self._makings: collections.Counter[str] = collections.Counter()

    def make_exchange(self, ranks: Sequence[int], name: str, timeout_s: float) -> Exchange:
        """Makes a group of these ranks, of several regions, and returns its exchange. They alone
        call it.

        Args:
            ranks: The ranks, by their numbers in the fabric.
            name: The name of the process group, the same on all its ranks.
            timeout_s: How long to wait for the ranks and their gateways, in seconds.

        Raises:
            NotSupported: They are not in the order of the fabric.
            LandbridgeError: As ``Group.new_group`` and ``Subgroup.barrier``.
        """
        if list(ranks) != sorted(ranks):
            text = f"a process group of the ranks {list(ranks)}: use them in ascending order"
            raise errors.NotSupported(text)
        with _lock:
            self._makings[name] += 1
            # Groups of an earlier attachment may have had the same names.
            whole = f"{self.number} {self._makings[name]} {name}"
        digest = hashlib.blake2b(whole.encode(), digest_size=8).digest()
        tag = int.from_bytes(digest, "big") >> 1
        deadline = time.monotonic() + timeout_s
        subgroup = self.group.new_group(ranks, tag=tag, timeout=timeout_s)
        assert subgroup is not None, "c10d makes a group on its ranks alone"
        try:
            # Gateways tell the loss of a rank at once where it has come to the group before.
            subgroup.barrier(max(deadline - time.monotonic(), 0.001))
        except BaseException:
            subgroup.close()
            raise
        return Exchange(subgroup, self._room)

    @property
    def is_used(self) -> bool:
        """Whether a process group uses this world."""
        return bool(self._users)

    def retain(self, user: object) -> None:
        """Notes one more process group that uses this world, and keeps it alive until it is
        released."""
        with _lock:
            self._users.add(user)

    def release(self, user: object) -> None:
        """Notes that a process group was destroyed or aborted. The last one detaches the rank."""
        with _lock:
            self._users.discard(user)
            is_last = not self._users
        if is_last:
            self.detach()

    def detach(self) -> None:
        """Detaches the rank, so that the next process group attaches anew. Everything under way
        fails."""
        with _lock:
            if self in _worlds:
                _worlds.remove(self)
        self.group.close()


#: Guards the world of this process, and in each world its users and the counts of groups made.
_lock = threading.RLock()


def _reset_world_lock_after_fork() -> None:
    """Replaces the lock in a forked process, where a thread that does not exist may hold it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_reset_world_lock_after_fork)


#: The world of this process; none before it attaches and after it has detached.
_worlds: list[World] = []


def attach_world(attachment: WorldArguments, rank: int, timeout_s: float) -> World:
    """Attaches this process as a rank of the fabric, and waits for all ranks.

    Raises:
        ConfigError: A process group of this process is attached already.
        LandbridgeError: As ``landbridge.connect``.
    """
    with _lock:
        if _worlds and _worlds[0].is_used:
            raise errors.ConfigError(
                "this process has process groups over landbridge already: call "
                "`torch.distributed.destroy_process_group` first"
            )
        for unused in list(_worlds):
            unused.detach()
        group = attachment.connect_rank(rank, timeout_s)
        try:
            _worlds.append(World(group, timeout_s))
        except BaseException:
            group.close()
            raise
        return _worlds[0]


def join_world(rank: int, size: int, timeout_s: float) -> World:
    """Returns the world of this process, which it attaches to by the environment if it has not.

    Args:
        rank: The number that PyTorch has for this process in its world.
        size: The number of processes of PyTorch's world, which is not looked at.
        timeout_s: How long to wait for the gateway and the other ranks, in seconds.

    Raises:
        ConfigError: The environment names no region file.
        LandbridgeError: As ``landbridge.connect``.
    """
    with _lock:
        if _worlds:
            return _worlds[0]
        return attach_world(WorldArguments.from_environment(os.environ), rank, timeout_s)


def attached_world_number() -> int:
    """Returns the number of this process's world, or 0 before it attaches."""
    with _lock:
        return _worlds[0].number if _worlds else 0


def is_world_inside_site(ranks: Sequence[int], rank: int, size: int) -> bool:
    """Returns whether all of some ranks are in one region.

    Args:
        ranks: The ranks.
        rank: The number that PyTorch has for this process in its world.
        size: The number of processes of PyTorch's world.

    Raises:
        ConfigError: The environment names no region file, or PyTorch and the fabric number ranks
            in different ways.
    """
    with _lock:
        if _worlds:
            world = _worlds[0]
            regions, where = world.regions, "the fabric"
            served = [world.group.rank]
        else:
            config = WorldArguments.from_environment(os.environ).config
            fabric = read_config_by_program(config)
            regions = [entry["region"] for entry in fabric["ranks"]]
            gateways = {gateway["gateway"] for gateway in fabric["gateways"]}
            served = [e["rank"] for e in fabric["ranks"] if e["gateway"] in gateways]
            where = f"the fabric of {config}"
    # Before anybody waits: a world that does not fit would never be complete.
    if size != len(regions):
        raise errors.ConfigError(
            f"PyTorch has a world of {size} ranks, and {where} one of {len(regions)}: with a "
            "`torchrun` for each site, call `landbridge.torch.init_process_group()` in place of "
            "`torch.distributed.init_process_group`"
        )
    if rank not in served:
        mine = ", ".join(map(str, served))
        raise errors.ConfigError(
            f"PyTorch calls this process rank {rank}, and in {where} it is one of {mine}: give "
            "hosts their numbers in the order of the fabric's regions, as by `--node-rank`"
        )
    return len({regions[number] for number in ranks}) == 1
