"""The limits of the system on memory, address space, file sizes and descriptors.

An arena is checked against them before it is made, because the kernel kills a process that meets
some of them. A limit that cannot be read, as in a container without ``/proc``, is not checked.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

#: The least limit of a version 1 cgroup that means no limit, in bytes.
_UNLIMITED_BYTES = 1 << 62
#: Errors of a system call that mean that a process or the system has no descriptor left.
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class MemoryLimit(NamedTuple):
    """A limit on memory, and what it leaves."""

    #: The limit, as a phrase that follows "by".
    name: str
    #: The bytes that it leaves.
    available: int
    #: The advice to the operator who wants more.
    remedy: str


class _CgroupFiles(NamedTuple):
    """The names of a memory cgroup's files and fields, which differ by the version of cgroups."""

    folder: str
    limit: str
    usage: str
    reclaimable: tuple[str, str]


_CGROUP_V2 = _CgroupFiles(
    "sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file")
)
_CGROUP_V1 = _CgroupFiles(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)


def tightest_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """Returns the limit that leaves the fewest bytes for an arena, or ``None`` where no limit can
    be read. ``root`` is the folder with the system's files."""
    limits = [*_host_limits(root), *_cgroup_limits(root), *_process_limits(root)]
    return min(limits, key=lambda limit: limit.available, default=None)


def describe_os_error(error: OSError) -> str:
    """Returns the text of a system call's error, with the limit and the remedy where the process
    has no descriptor left."""
    if error.errno not in _NO_DESCRIPTOR:
        return str(error)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"{error}: the limit is {soft} descriptors (ulimit -n, LimitNOFILE=); raise it"


def is_descriptor_limit(error: OSError) -> bool:
    """Returns whether a system call failed because there is no descriptor left."""
    return error.errno in _NO_DESCRIPTOR


def _host_limits(root: Path) -> Iterator[MemoryLimit]:
    """Yields the kernel's estimate of the memory that is available without swapping."""
    for line in _read_lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
            yield MemoryLimit("the host's memory", available, "free memory on the host")


def _cgroup_limits(root: Path) -> Iterator[MemoryLimit]:
    """Yields the limits of this process's memory cgroup and of the cgroups around it."""
    found = False
    for line in _read_lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers in ("", "memory") or "memory" in controllers.split(","):
            found = True
            files = _CGROUP_V1 if controllers else _CGROUP_V2
            yield from _limits_from(root, files, path)
    if not found:
        for files in (_CGROUP_V2, _CGROUP_V1):
            yield from _limits_from(root, files, "/")


def _limits_from(root: Path, files: _CgroupFiles, path: str) -> Iterator[MemoryLimit]:
    """Yields the limits of the cgroup at ``path`` and of those around it.

    Inside a container the path may be one of the host's, which the container does not show. The
    container's own cgroup is then the root of what it shows.
    """
    inner = PurePosixPath(path)
    for group in (inner, *inner.parents):
        folder = root / files.folder / str(group).lstrip("/")
        limit, usage = _read_number(folder / files.limit), _read_number(folder / files.usage)
        if limit is None or usage is None or limit >= _UNLIMITED_BYTES:
            continue
        fields = (line.split() for line in _read_lines(folder / "memory.stat"))
        cached = sum(int(field[1]) for field in fields if field[0] in files.reclaimable)
        available = max(limit - max(usage - cached, 0), 0)
        name = f"{files.limit} of cgroup {group}, which is {limit}"
        yield MemoryLimit(name, available, "raise the memory of the container or service")


def _process_limits(root: Path) -> Iterator[MemoryLimit]:
    """Yields the limits of this process on its address space and on the size of files."""
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        pages = next(iter(_read_lines(root / "proc/self/statm")), "0").split()[0]
        available = max(space - int(pages) * resource.getpagesize(), 0)
        name = f"the limit on address space (ulimit -v), which is {space}"
        yield MemoryLimit(name, available, "raise it")
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY:
        name = f"the limit on the size of files (ulimit -f), which is {size}"
        yield MemoryLimit(name, size, "raise it")


def _read_lines(path: Path) -> list[str]:
    """Returns the lines of a file of the system that are not empty; none if it cannot be read."""
    try:
        return [line for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return []


def _read_number(path: Path) -> int | None:
    """Returns the number that a file holds, or ``None``, as for the word ``max``."""
    text = "".join(_read_lines(path)).strip()
    return int(text) if text.isdigit() else None
