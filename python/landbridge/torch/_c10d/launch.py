"""The start of PyTorch's world over all sites, where each site has a launcher of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from ... import errors
from ..._argument_errors import argument_error
from ..._arguments import check_timeout_argument
from ..._config.program import read_config_by_program
from ..._group import Group
from ..._operations.operation import DEFAULT_TIMEOUT_S
from .site_store import make_site_store
from .world import WorldArguments, attach_world

#: The environment variables with a process's number and the number of processes, for each launcher.
#: The first launcher that has set both counts: torchrun, Slurm, Open MPI, other MPIs.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


class LaunchPlace(NamedTuple):
    """The place of this process among those that its launcher has started."""

    rank: int
    size: int
    #: The names of the variables that say so.
    names: tuple[str, str]

    @staticmethod
    def from_environment(variables: Mapping[str, str]) -> LaunchPlace:
        """Returns the place that a launcher has set.

        Raises:
            ConfigError: No launcher has, or a variable is no number.
        """
        for names in _LAUNCHERS:
            texts = [variables.get(name, "") for name in names]
            if not all(texts):
                continue
            if not all(text.isdecimal() for text in texts):
                text = ", ".join(f"{name}={text!r}" for name, text in zip(names, texts))
                raise errors.ConfigError(f"{text}: accepted: whole numbers from 0")
            return LaunchPlace(int(texts[0]), int(texts[1]), names)
        known = "; ".join(" and ".join(names) for names in _LAUNCHERS)
        raise errors.ConfigError(
            "no launcher has numbered this process: start it by torchrun, Slurm or MPI, which set "
            f"{known}"
        )

    def find_rank(self, fabric: Mapping[str, Any], config: Path) -> int:
        """Returns this process's rank in the fabric.

        Args:
            fabric: The answer of ``landbridge config`` about the region file.
            config: The path of the region file.

        Raises:
            ConfigError: The launcher has started neither the ranks of this site nor all ranks, or
                the region file does not tell the site.
        """
        ranks = fabric["ranks"]
        region, numbers = find_launch_site(fabric, config)
        if self.size == len(numbers):
            choices = numbers
        elif self.size == len(ranks):
            choices = list(range(len(ranks)))
        else:
            raise errors.ConfigError(
                f"{self.names[1]}={self.size}: region `{region}` has {len(numbers)} ranks, and the "
                f"fabric {len(ranks)}: start as many processes as the region has ranks"
            )
        if self.rank >= self.size or choices[self.rank] not in numbers:
            mine = ", ".join(map(str, numbers))
            raise errors.ConfigError(
                f"{self.names[0]}={self.rank}: region `{region}` has ranks {mine} of the fabric"
            )
        return int(choices[self.rank])


def find_launch_site(fabric: Mapping[str, Any], config: Path) -> tuple[str, list[int]]:
    """Returns the region whose ranks the gateways of a region file serve, and its ranks.

    Args:
        fabric: The answer of ``landbridge config`` about the region file.
        config: The path of the region file.

    Raises:
        ConfigError: The gateways serve ranks of no region, or of several.
    """
    ranks = fabric["ranks"]
    served = {gateway["gateway"] for gateway in fabric["gateways"]}
    regions = {entry["region"] for entry in ranks if entry["gateway"] in served}
    if len(regions) != 1:
        found = ", ".join(sorted(regions)) or "no region"
        raise errors.ConfigError(f"{config}: its gateways serve ranks of {found}, not of one")
    (region,) = regions
    return region, [entry["rank"] for entry in ranks if entry["region"] == region]


def init_process_group(
    config: str | Path | None = None,
    *,
    job: str | None = None,
    address: str | None = None,
    arena: str | None = None,
    timeout: timedelta = timedelta(seconds=DEFAULT_TIMEOUT_S),
) -> Group:
    """Makes PyTorch's default process group, of all ranks of all sites, over landbridge.

    It takes the place of ``torch.distributed.init_process_group`` where each site has a launcher of
    its own: ``torchrun``, Slurm or MPI, which numbers the processes of its site. No process needs
    to reach another site. ``torch.distributed.destroy_process_group`` ends it.

    Args:
        config: The path of the region file; by default that in ``LANDBRIDGE_CONFIG``.
        job: The name of the job, where the region file has several; by default that in
            ``LANDBRIDGE_JOB``.
        address: The address of a gateway on another host of the site, such as ``tls://HOST:PORT``;
            by default that in ``LANDBRIDGE_ADDRESS``, or the gateway on this host.
        arena: The size of the memory for contributions and results; by default that in
            ``LANDBRIDGE_ARENA``, or 256 MiB.
        timeout: How long to wait for other ranks, here and in collectives that give no timeout.

    Returns:
        The ranks, for ``resume``, ``UnevenSampler`` and ``Group.recover``.

    Raises:
        ConfigError: A file, an argument or the environment cannot be used.
        SiteFailed: A process of this site cannot be reached.
        LandbridgeError: As ``landbridge.connect``.
    """
    if not isinstance(timeout, timedelta):
        raise argument_error("timeout", timeout, "a span of time: datetime.timedelta")
    check_timeout_argument(timeout.total_seconds())
    attachment = WorldArguments.from_arguments(config, job, address, arena)
    place = LaunchPlace.from_environment(os.environ)
    rank = place.find_rank(read_config_by_program(attachment.config), attachment.config)
    world = attach_world(attachment, rank, timeout.total_seconds())
    try:
        store = make_site_store(world.group, world.regions, timeout)
        dist.init_process_group(
            "landbridge",
            store=store,
            rank=rank,
            world_size=world.group.world_size,
            timeout=timeout,
        )
    except BaseException:
        world.detach()
        raise
    return world.group
