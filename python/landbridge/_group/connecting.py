"""Attaching a rank: ``connect``, by the config of a deployment or by the address of a gateway."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from .. import errors
from .._argument_errors import argument_error, describe_argument_in_error
from .._arguments import (
    check_integer_argument,
    check_path_argument,
    check_text_argument,
    check_timeout_argument,
)
from .._config.region_file import (
    RankChoice,
    RegionFileGateway,
    parse_region_file_bytes,
    read_region_file_token,
    read_region_location,
)
from .._memory.arena import Arena
from .._memory.host_limits import named_host_limits
from .._operations.operation import DEFAULT_TIMEOUT_S
from .._operations.waiting import check_not_waiting_at_end
from .._protocol.trainer_tls import (
    TrainerTlsGateway,
    load_trainer_tls_context,
    parse_trainer_tls_address,
)
from .group import Group

#: 4,096 bytes, one page: the size of the arena of a rank that attaches for the store alone, the
#: shortest possible.
_STORE_ARENA_BYTES = 4096
#: 63 letters: the longest name of a gateway or a job in a config file; docs/configuration.md. A
#: longer name as an argument raises ``ConfigError``.
_NAME_LETTERS_MAX = 63


def connect(
    address: str | None = None,
    *,
    config: str | Path | None = None,
    rank: int | None = None,
    region: str | None = None,
    local_rank: int | None = None,
    gateway: str | None = None,
    job: str | None = None,
    ca: str | Path | None = None,
    token: str | Path | None = None,
    identity: tuple[str | Path, str | Path] | None = None,
    arena: int | str = "256 MiB",
    timeout: float = DEFAULT_TIMEOUT_S,
    dumps: str | Path | None = None,
) -> Group:
    """Attaches a rank to its gateway, and waits until all ranks are attached.

    Without ``address`` the gateway is the one on this host, whose memory the trainer shares. With
    ``"tls://HOST:PORT"`` it is on another host of the site, and has ``attach`` in its region file.

    It tries until its timeout while the gateway does not run, starts, ends or refuses for a
    while. An error that lasts, such as a wrong token, ends it at once.

    Args:
        address: The address of a gateway on another host. Its certificate must prove the name of a
            gateway: of ``gateway`` if that is given.
        config: The path of the region file, as for ``landbridge run``. The ``landbridge`` program
            reads it, from this package's environment, the PATH, or ``LANDBRIDGE_BIN``. With
            ``address`` it may be left out: then ``rank``, ``job``, ``ca`` and ``token`` are needed,
            and batches cannot be split by the speeds of ranks.
        rank: The number of this rank, from 0. Ranks are numbered through the regions of the
            fabric in alphabetical order, so a new region may change the numbers of others.
        region: The name of this rank's region, instead of ``rank`` and with ``local_rank``.
        local_rank: The number of this rank in its region, from 0. It stays as it is when the
            fabric gets another region.
        gateway: The name of the gateway, where the region file has several and none of them
            serves this rank.
        job: The name of the job, where the region file has several.
        ca: The certificate of the deployment's CA, with ``address``; by default the ``ca`` of the
            gateway in ``config``.
        token: The file with the job's token, by default that in ``config``.
        identity: The files of a certificate and its key, both PEM, for a gateway that asks for one
            (``trainers_ca``).
        arena: The size of the memory for contributions and results: bytes, or a text such as
            ``"256 MiB"``. It must hold twice the bytes that are under way at once, and all arrays
            from ``Group.empty``. The call touches every page, so that no step waits for it.
        timeout: How long to wait for the gateway and the other ranks, in seconds, above 0.
        dumps: The folder into which the rank writes its flight recorder when a collective fails, as
            ``landbridge.dump`` does; by default that in ``LANDBRIDGE_DUMPS``, if it is set.

    Returns:
        The group, attached and in an epoch.

    Raises:
        ConfigError: A file or an argument cannot be used.
        AttachError: The gateway does not answer, refuses, or meets no other gateway; or this user
            may not read a file of credentials. Its ``is_final`` says whether to try again makes
            sense.
        ArenaFull: A limit, which the text names, leaves too little memory for the arena.
        LimitReached: This process has no descriptor, thread or memory left, or may start no
            program.
        RanksTimedOut: A rank did not connect in time.
        Closed: The interpreter is ending.
    """
    check_not_waiting_at_end()
    check_timeout_argument(timeout)
    choice = _check_connecting_rank_choice(rank, region, local_rank)
    nbytes = parse_region_file_bytes(arena, "arena")
    _check_connecting_name("gateway", gateway)
    _check_connecting_name("job", job)
    remote = _check_connecting_remote_arguments(address, ca, token, identity)
    config = None if config is None else check_path_argument("config", config)
    dumps = None if dumps is None else check_path_argument("dumps", dumps)
    deadline = time.monotonic() + timeout
    with named_host_limits():
        location, number = _locate_connecting_rank(remote, config, gateway, job, choice)
        group = Group(location, number, Arena(nbytes, deadline), dumps)
        try:
            group._meet_all_ranks(deadline)
        except BaseException:
            group.close()
            raise
    return group


def connect_to_store(
    address: str | None, *, config: str | Path, rank: int, job: str | None, timeout: float
) -> Group:
    """Attaches a rank for the store of its job alone, and waits for no other rank.

    Returns:
        The group, in no epoch. While it is open, no other process can attach the rank.

    Raises:
        LandbridgeError: As ``connect``.
    """
    return connect_alone(
        address, config=config, rank=rank, job=job, arena=_STORE_ARENA_BYTES, timeout=timeout
    )


def connect_alone(
    address: str | None,
    *,
    config: str | Path,
    rank: int,
    job: str | None,
    arena: str | int,
    timeout: float,
) -> Group:
    """Attaches a rank, and waits for no other rank.

    Returns:
        The group, in no epoch: it has a store, and makes groups with a ``tag``. While it is open,
        no other process can attach the rank.

    Raises:
        LandbridgeError: As ``connect``.
    """
    remote = _check_connecting_remote_arguments(address, None, None, None)
    config = check_path_argument("config", config)
    nbytes = parse_region_file_bytes(arena, "arena")
    with named_host_limits():
        location, number = _locate_connecting_rank(remote, config, None, job, RankChoice(rank))
        group = Group(location, number, Arena(nbytes))
        try:
            group._attachment.attach_alone(time.monotonic() + timeout)
        except BaseException:
            group.close()
            raise
    return group


def _check_connecting_name(name: str, value: Any) -> None:
    """Raises ``ConfigError`` unless the argument ``value`` is ``None`` or a text of at most 63
    letters, as the names in config files are."""
    accepted = f"the name of a {name}, at most {_NAME_LETTERS_MAX} letters long"
    if value is not None and len(check_text_argument(name, value, accepted)) > _NAME_LETTERS_MAX:
        raise argument_error(name, value, accepted)


def _check_connecting_rank_choice(rank: Any, region: Any, local_rank: Any) -> RankChoice:
    """Returns the rank that a caller asks for, by its number or by its region. Raises
    ``ConfigError`` for both, for neither, and for a region or a ``local_rank`` alone."""
    by_region = region is not None or local_rank is not None
    if (rank is not None) == by_region or (region is None) != (local_rank is None):
        raise errors.ConfigError(
            f"rank={rank!r}, region={region!r}, local_rank={local_rank!r}: accepted: either "
            "`rank`, or `region` and `local_rank`"
        )
    if not by_region:
        return RankChoice(
            _check_connecting_rank_number("rank", rank, "a rank of the fabric, from 0 on")
        )
    if not isinstance(region, str):
        raise argument_error("region", region, "the name of a region")
    accepted = "a rank of the region by its number there, from 0 on"
    return RankChoice(
        None, region, _check_connecting_rank_number("local_rank", local_rank, accepted)
    )


def _check_connecting_rank_number(name: str, value: Any, accepted: str) -> int:
    """Returns the argument ``value``, the number of a rank. How many ranks there are is not known
    yet."""
    return check_integer_argument(name, value, 1 << 32, accepted=accepted)


class _RemoteArguments(NamedTuple):
    """The checked arguments of ``connect`` about a gateway on another host."""

    address: str | None
    #: Host and port of the address.
    place: tuple[str, int] | None
    ca: Path | None
    token: Path | None
    #: The files of a certificate and of its key.
    identity: tuple[Path, Path] | None


def _check_connecting_remote_arguments(
    address: Any, ca: Any, token: Any, identity: Any
) -> _RemoteArguments:
    """Returns the arguments about a gateway on another host. Raises ``ConfigError`` for a ``ca``,
    ``token`` or ``identity`` without ``address``."""
    place = None if address is None else parse_trainer_tls_address(address)
    files: list[Path | None] = []
    for name, value in (("ca", ca), ("token", token), ("identity", identity)):
        if value is not None and address is None:
            text = "accepted with an address only: tls://HOST:PORT"
            raise errors.ConfigError(f"{name} {describe_argument_in_error(value)}: {text}")
        if name != "identity":
            files.append(None if value is None else check_path_argument(name, value))
    pair = None
    if identity is not None:
        if not isinstance(identity, (tuple, list)) or len(identity) != 2:
            accepted = "two paths: of a certificate and of its key"
            raise argument_error("identity", identity, accepted)
        certificate, key = (check_path_argument("identity", part) for part in identity)
        pair = certificate, key
    return _RemoteArguments(address, place, files[0], files[1], pair)


def _locate_connecting_rank(
    remote: _RemoteArguments,
    config: Path | None,
    gateway: str | None,
    job: str | None,
    choice: RankChoice,
) -> tuple[RegionFileGateway, int]:
    """Returns where a rank attaches, and its number."""
    if remote.place is None:
        if config is None:
            text = "accepted: `config`, or an address such as tls://HOST:PORT"
            raise errors.ConfigError(f"address None, config None: {text}")
        return read_region_location(config, gateway, job, choice)
    host, port = remote.place
    token = None if remote.token is None else read_region_file_token(remote.token, job)
    if config is not None:
        location, rank = read_region_location(config, gateway, job, choice)
    elif choice.rank is None or job is None or token is None or remote.ca is None:
        raise errors.ConfigError(
            f"{remote.address} without `config`: needed: `rank`, `job`, `ca` and `token`"
        )
    else:
        location, rank = RegionFileGateway(Path(), job, token, [], []), choice.rank
    ca = location.ca if remote.ca is None else remote.ca
    tls = TrainerTlsGateway(host, port, ca, gateway or location.gateway or None, remote.identity)
    load_trainer_tls_context(tls)  # Files at fault are told before anybody waits.
    return location._replace(tls=tls, token=token or location.token), rank
