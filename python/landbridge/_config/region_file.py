"""The part of a region file that a trainer needs, and its token.

The ``landbridge`` program reads region and fabric file (``program``). This module chooses the
gateway, the job and the rank, and reads the job's token.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import pwd
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._argument_errors import argument_error
from .._arguments import is_boolean_argument
from .._protocol.credential_file import read_credential_file
from .._protocol.trainer_tls import TrainerTlsGateway
from .._protocol.wire import TOKEN_BYTES
from ..errors import ConfigError
from .program import read_config_by_program

_log = logging.getLogger("landbridge")

#: 0o004: the permission bit by which all users of a host may read a file.
_OTHERS_READ_BIT = 0o004
#: The number of bytes of each unit in which a config file, or the parameter ``arena``, may give a
#: size.
_BYTES_PER_UNIT = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
#: The characters around a token in its file that are no part of it: space, tab, form feed and ends
#: of lines. The gateway allows the same.
_TOKEN_SPACE = b" \t\n\x0c\r"
#: The pattern of a token in its file, without the space around it: 64 hexadecimal digits, two for
#: each byte. A file with another content is refused.
_TOKEN_TEXT = re.compile(rb"[0-9A-Fa-f]{%d}" % (2 * TOKEN_BYTES))


class RankChoice(NamedTuple):
    """The rank that a trainer asks for: its number, or its region and its number there."""

    #: The number of the rank in the fabric; ``None`` with a region.
    rank: int | None
    #: The name of the region; ``None`` with a number.
    region: str | None = None
    #: The number of the rank in its region; ``None`` with a number.
    local_rank: int | None = None


class RegionFileGateway(NamedTuple):
    """The gateway that a trainer attaches to, its job, and the ranks of the fabric."""

    #: The gateway's socket.
    socket: Path
    #: The name of the job.
    job: str
    #: The secret that admits ranks to the job.
    token: bytes
    #: The relative computing speed of every rank of the fabric, by rank; empty without a config.
    speeds: list[float]
    #: The region of every rank, by rank; empty without a config.
    regions: list[str]
    #: The number of the user as whom the gateway runs; ``None`` if the file does not say.
    user: int | None = None
    #: The certificate of the CA of the gateway.
    ca: Path = Path()
    #: The name of the gateway; empty without a config.
    gateway: str = ""
    #: The gateway on another host, in place of the socket.
    tls: TrainerTlsGateway | None = None

    @property
    def address(self) -> str:
        """The socket or the address, for messages."""
        return str(self.socket) if self.tls is None else self.tls.address


def read_region_location(
    path: str | Path,
    gateway: str | None,
    job: str | None,
    choice: RankChoice,
) -> tuple[RegionFileGateway, int]:
    """Returns a trainer's gateway, token and ranks, and the number of its rank.

    Args:
        path: The region file.
        gateway: The name of the gateway, where the file has several that do not serve the rank.
        job: The name of the job, where the file has several.
        choice: The rank that the trainer asks for.

    Raises:
        ConfigError: A file cannot be used, or has no such gateway, job or rank.
        NotPermitted: This user may not read the token.
        LimitReached: A limit of the system keeps this process from reading them.
    """
    path = Path(path)
    config = read_config_by_program(path)
    ranks = config["ranks"]
    rank = _choose_rank_in_region_file(path, ranks, choice)
    gateways = {entry["gateway"]: entry for entry in config["gateways"]}
    tokens = {entry["job"]: entry["token"] for entry in config["jobs"]}
    if gateway is None and ranks[rank]["gateway"] in gateways:
        gateway = ranks[rank]["gateway"]
    at = _choose_name_in_region_file(path, gateways, "gateway", gateway)
    named = _choose_name_in_region_file(path, tokens, "job", job)
    location = RegionFileGateway(
        Path(gateways[at]["socket"]),
        named,
        read_region_file_token(Path(tokens[named]), named),
        [float(entry["speed"]) for entry in ranks],
        [entry["region"] for entry in ranks],
        _find_region_file_user(path, at, gateways[at]["user"]),
        Path(gateways[at]["ca"]),
        at,
    )
    return location, rank


def _choose_rank_in_region_file(
    path: Path, ranks: Sequence[dict[str, Any]], choice: RankChoice
) -> int:
    """Returns the number of the rank that a trainer asks for. Raises ``ConfigError`` where the
    fabric has no such rank or region."""
    if choice.rank is not None:
        if choice.rank >= len(ranks):
            last = len(ranks) - 1
            raise ConfigError(f"rank {choice.rank}: the fabric has ranks 0 to {last}")
        return choice.rank
    region, local_rank = choice.region, choice.local_rank
    there = [entry["rank"] for entry in ranks if entry["region"] == region]
    if not there:
        known = ", ".join(dict.fromkeys(entry["region"] for entry in ranks))
        raise ConfigError(f"{path}: the fabric has no region `{region}`; it has: {known}")
    if local_rank is None or local_rank >= len(there):
        text = f"local_rank {local_rank}: region `{region}` has local ranks 0 to {len(there) - 1}"
        raise ConfigError(text)
    return int(there[local_rank])


def parse_region_file_bytes(quantity: int | str, name: str) -> int:
    """Returns the number of bytes of the argument ``name``: an integer, or a text such as
    ``"256 MiB"``.

    Raises:
        ConfigError: The text is no number with a unit, or the number is below 0, or 8 EiB or
            more.
    """
    if not isinstance(quantity, str) and not is_boolean_argument(quantity):
        with contextlib.suppress(TypeError):
            return _check_region_file_size(operator.index(quantity), quantity, name)
    text = quantity if isinstance(quantity, str) else ""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*", text)
    if not found or found.group(2) not in _BYTES_PER_UNIT:
        units = ", ".join(_BYTES_PER_UNIT)
        raise argument_error(name, quantity, f"a number and one of {units}, such as 256 MiB")
    return _check_region_file_size(
        float(found.group(1)) * _BYTES_PER_UNIT[found.group(2)], quantity, name
    )


def _check_region_file_size(size: float, quantity: int | str, name: str) -> int:
    """Returns a number of bytes as an integer, without the fraction of a byte. Raises
    ``ConfigError`` below 0, and from 8 EiB on, which no system has."""
    if not 0 <= size < 1 << 63:
        raise argument_error(name, quantity, "sizes from 0 bytes to below 8 EiB")
    return int(size)


def _choose_name_in_region_file(
    path: Path, tables: dict[str, Any], kind: str, name: str | None
) -> str:
    """Returns ``name``, or the name of the only gateway or job of a region file. Raises
    ``ConfigError`` where the file has no such one, or several and none is named."""
    known = ", ".join(sorted(tables))
    if name is None:
        if len(tables) > 1:
            text = f"{path} has several tables [{kind}.NAME]"
            raise ConfigError(f"{text}; choose one with {kind}=: {known}")
        name = next(iter(tables))
    if name not in tables:
        raise ConfigError(f"{path} has no {kind} `{name}`; it has: {known}")
    return name


def _find_region_file_user(path: Path, gateway: str, user: str | None) -> int | None:
    """Returns the number of the user that a gateway's table names, or ``None`` if it names none.
    Raises ``ConfigError`` if this host has no such user."""
    if user is None or user.isdigit():
        return None if user is None else int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError as error:
        text = f"this host has no user `{user}`: make it, or correct `user`"
        raise ConfigError(f"{path}: gateway.{gateway}.user: {text}") from error


def read_region_file_token(path: Path, job: str | None = None) -> bytes:
    """Returns the bytes of the token file of a job, which holds hexadecimal digits. Logs a warning
    where all users of the host may read it.

    Raises:
        ConfigError: The file is missing, cannot be read, or holds no token.
        NotPermitted: This user may not read it.
        LimitReached: This process has no descriptor or no memory left.
    """
    try:
        text = read_credential_file(path).strip(_TOKEN_SPACE)
    except ConfigError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        owner = "" if job is None else f" of job {job}"
        remedy = "copy it from the host that ran `landbridge certs`"
        raise ConfigError(f"token file {path}{owner} does not exist; {remedy}") from error
    if not _TOKEN_TEXT.fullmatch(text):
        digits = 2 * TOKEN_BYTES
        raise ConfigError(
            f"{path}: not a job token: {digits} hexadecimal digits; make one with "
            "`landbridge certs`"
        )
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & _OTHERS_READ_BIT:
            advice = "all users of this host may read the token; run `chmod 600"
            _log.warning("%s: mode %03o: %s %s`", path, mode, advice, path)
    return bytes.fromhex(text.decode("ascii"))
