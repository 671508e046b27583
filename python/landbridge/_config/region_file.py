"""The parts of region file, token and fabric file that a trainer needs.

``landbridge check`` checks these files completely. This module checks only the keys that it reads.
"""

from __future__ import annotations

import importlib
import math
import pwd
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from .._protocol.wire import TOKEN_BYTES
from ..errors import ConfigError
from . import toml

#: Bytes of each unit in which a config file, or the parameter ``arena``, may give a size.
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

#: The spellings of a user: a name, or a number.
_ACCOUNT = re.compile(r"[A-Za-z0-9_.$@][A-Za-z0-9_.$@-]{0,63}")
#: The largest number of a user. The next one means "none" to the system.
_USER_MAX = (1 << 32) - 2


class GatewayLocation(NamedTuple):
    """The gateway that a trainer attaches to, its job, and the ranks of the fabric."""

    #: The gateway's socket.
    socket: Path
    #: The name of the job.
    job: str
    #: The secret that admits ranks to the job.
    token: bytes
    #: The relative computing speed of every rank of the fabric, by rank.
    speeds: list[float]
    #: The region of every rank, by rank.
    regions: list[str]
    #: The number of the user as whom the gateway runs; ``None`` if the file does not say.
    user: int | None = None


def read_location(path: str | Path, gateway: str | None, job: str | None) -> GatewayLocation:
    """Returns a trainer's gateway, token and ranks from a region file and the files that it names.

    Args:
        path: The region file.
        gateway: The name of the gateway, where the file has several.
        job: The name of the job, where the file has several.

    Raises:
        ConfigError: A file cannot be read, or a key is missing or has a wrong value.
    """
    path = Path(path)
    region = _read_toml_file(path)
    at = _choose_table_name(path, region, "gateway", gateway)
    named = _choose_table_name(path, region, "job", job)
    socket = path.parent / _read_path(path, region["gateway"][at], f"gateway.{at}", "socket")
    token = path.parent / _read_path(path, region["job"][named], f"job.{named}", "token")
    fabric = path.parent / _read_path(path, region, "", "fabric")
    speeds, regions = _read_ranks(fabric, _read_toml_file(fabric))
    user = _read_user(path, region["gateway"][at], f"gateway.{at}.user")
    return GatewayLocation(socket, named, _read_token(token), speeds, regions, user)


def parse_bytes(quantity: int | str) -> int:
    """Returns a number of bytes, from an integer or a text such as ``"256 MiB"``.

    Raises:
        ConfigError: The text is no number with a unit.
    """
    if isinstance(quantity, int) and not isinstance(quantity, bool):
        return quantity
    text = quantity if isinstance(quantity, str) else ""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*", text)
    if not found or found.group(2) not in _BYTES_PER_UNIT:
        units = ", ".join(_BYTES_PER_UNIT)
        raise ConfigError(f"`{quantity}`: accepted: a number and one of {units}, such as 256 MiB")
    return int(float(found.group(1)) * _BYTES_PER_UNIT[found.group(2)])


def _read_toml_file(path: Path) -> dict[str, Any]:
    """Returns the root table of a TOML file. Raises ``ConfigError`` with the path."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        return _parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _parse_toml(text: str) -> dict[str, Any]:
    """Returns the root table of a TOML text, by the standard library where that has a parser."""
    if sys.version_info >= (3, 11):
        table: dict[str, Any] = importlib.import_module("tomllib").loads(text)
        return table
    return toml.loads(text)


def _choose_table_name(path: Path, region: dict[str, Any], kind: str, name: str | None) -> str:
    """Returns ``name``, or the name of the only table ``[kind.NAME]`` of a region file."""
    tables = region.get(kind)
    if not isinstance(tables, dict) or not tables:
        raise ConfigError(f"{path}: {kind}: missing; accepted: a table such as [{kind}.NAME]")
    known = ", ".join(sorted(tables))
    if name is None:
        if len(tables) > 1:
            text = f"{path} has several tables [{kind}.NAME]"
            raise ConfigError(f"{text}; choose one with {kind}=: {known}")
        name = next(iter(tables))
    if not isinstance(tables.get(name), dict):
        raise ConfigError(f"{path} has no {kind} `{name}`; it has: {known}")
    return name


def _read_path(path: Path, table: dict[str, Any], where: str, key: str) -> str:
    """Returns a path that a key of a config file's table has. ``where`` is the table's name, for
    errors."""
    value = table.get(key)
    if not isinstance(value, str):
        key_path = f"{where}.{key}" if where else key
        raise ConfigError(f"{path}: {key_path}: missing or no path; accepted: a path in quotes")
    return value


def _read_user(path: Path, gateway: dict[str, Any], key_path: str) -> int | None:
    """Returns the number of the user that a gateway's table names, or ``None`` if it names none."""
    user = gateway.get("user")
    if user is None:
        return None
    if not isinstance(user, str) or not _ACCOUNT.fullmatch(user):
        accepted = 'the name or number of a Unix user, such as "landbridge" or "1000"'
        raise ConfigError(f"{path}: {key_path}: accepted: {accepted}")
    if user.isdigit():
        if int(user) <= _USER_MAX:
            return int(user)
        raise ConfigError(f"{path}: {key_path}: accepted: a number up to {_USER_MAX}")
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError as error:
        text = f"this host has no user `{user}`: make it, or correct `user`"
        raise ConfigError(f"{path}: {key_path}: {text}") from error


def _read_token(path: Path) -> bytes:
    """Returns the bytes of a token file, which holds hexadecimal digits."""
    try:
        text = path.read_text("ascii").strip()
        if len(text) == 2 * TOKEN_BYTES and " " not in text:
            return bytes.fromhex(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except ValueError:
        pass
    digits = 2 * TOKEN_BYTES
    accepted = f"a token of {digits} hexadecimal digits, as `landbridge certs` makes it"
    raise ConfigError(f"{path}: accepted: {accepted}")


def _read_ranks(path: Path, fabric: dict[str, Any]) -> tuple[list[float], list[str]]:
    """Returns the speed and the region of each rank of a fabric file, with regions in alphabetical
    order."""
    regions = fabric.get("region")
    if not isinstance(regions, dict) or not regions:
        raise ConfigError(f"{path}: region: missing; accepted: a table such as [region.east]")
    speeds: list[float] = []
    region_of: list[str] = []
    for name in sorted(regions):
        if not isinstance(regions[name], dict):
            raise ConfigError(f"{path}: region.{name}: accepted: a table such as [region.{name}]")
        ranks, given = regions[name].get("ranks"), regions[name].get("speeds")
        if type(ranks) is not int or ranks < 1:  # `bool` is a subclass of `int`.
            raise ConfigError(f"{path}: region.{name}.ranks: accepted: a whole number of ranks")
        given = [1.0] * ranks if given is None else given
        usable = isinstance(given, list) and len(given) == ranks
        if not usable or not all(type(v) in (int, float) and 0 < v < math.inf for v in given):
            raise ConfigError(f"{path}: region.{name}.speeds: accepted: {ranks} positive numbers")
        speeds += [float(value) for value in given]
        region_of += [name] * ranks
    return speeds, region_of
