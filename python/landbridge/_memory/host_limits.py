"""The limits of the system on memory, address space, file sizes, descriptors and threads.

An arena is checked against them before it is made, because the kernel kills a process that meets
some of them. A limit that cannot be read, as in a container without ``/proc``, is not checked.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from .._rounding import round_bytes
from ..errors import ArenaFull, LimitReached

#: 128: in addition to an arena, memory of a 128th of its size is left free, as the daemon's clients
#: do. The kernel counts an arena's page tables (8 bytes for each page of 4 KiB) and index of pages
#: (9 bytes).
_ARENA_OVERHEAD_DIVISOR = 128
#: 4 MiB of memory are left free in addition to an arena, for what a trainer allocates between the
#: check and its first collective. The size is chosen; above the limit the kernel kills the process.
_CLIENT_RESERVE_BYTES = 4 << 20
#: 2^62 bytes: a version 1 cgroup whose limit on memory is as high or higher has no limit. The
#: kernel writes a number near 2^63 then.
_UNLIMITED_BYTES = 1 << 62
#: The error numbers (``errno``) of a system call where the process or the system has no descriptor
#: left.
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
#: The error numbers (``errno``) of a system call where no process, thread or memory is left.
_OUT_OF_RESOURCES = (errno.EAGAIN, errno.ENOMEM)


class HostMemoryLimit(NamedTuple):
    """A limit on memory, and what it leaves."""

    #: The limit, as a phrase that follows "by".
    name: str
    #: The bytes that it leaves.
    available: int
    #: The advice to the operator who wants more.
    remedy: str
    #: Whether it counts pages in memory, and so those of the kernel for an arena too.
    counts_pages: bool = False

    @property
    def arena_bytes(self) -> int:
        """The largest arena for which the limit leaves room, in bytes. Where the limit counts pages
        in memory, the trainer's own needs and those of the kernel are subtracted."""
        if not self.counts_pages:
            return self.available
        left = max(self.available - _CLIENT_RESERVE_BYTES, 0)
        return left - -(-left // (_ARENA_OVERHEAD_DIVISOR + 1))


class _CgroupFiles(NamedTuple):
    """The names of a memory cgroup's files and fields, which differ by the version of cgroups."""

    limits: tuple[str, ...]
    usage: str
    reclaimable: tuple[str, str]


#: The names of a version 2 cgroup's files on memory. Above ``memory.high`` the kernel kills no
#: process, but slows it down to a standstill.
_CGROUP_V2 = _CgroupFiles(
    ("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file")
)
#: The names of a version 1 cgroup's files on memory; such a cgroup has one limit.
_CGROUP_V1 = _CgroupFiles(
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)


def tightest_host_limit(root: Path = Path("/")) -> HostMemoryLimit | None:
    """Returns the limit that leaves the fewest bytes for an arena, or ``None`` where no limit can
    be read. ``root`` is the folder with the system's files."""
    limits = [*_host_limits(root), *_cgroup_limits(root), *_process_limits(root)]
    return min(limits, key=lambda limit: limit.arena_bytes, default=None)


def describe_host_limit_error(error: OSError) -> str:
    """Returns the text of a system call's error, with the limit and the remedy where the process
    has no descriptor left, or may start no other process."""
    if error.errno in _OUT_OF_RESOURCES:
        return f"{error}; raise the limit that is met: {name_host_limits_on_threads()}"
    if error.errno not in _NO_DESCRIPTOR:
        return str(error)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"{error}: the limit is {soft} descriptors (ulimit -n, LimitNOFILE=); raise it"


def is_host_descriptor_limit(error: OSError) -> bool:
    """Returns whether a system call failed because there is no descriptor left."""
    return error.errno in _NO_DESCRIPTOR


def is_host_limit(error: OSError) -> bool:
    """Returns whether a system call failed because there is no descriptor, process or memory
    left."""
    return error.errno in (*_NO_DESCRIPTOR, *_OUT_OF_RESOURCES)


@contextlib.contextmanager
def named_host_limits() -> Iterator[None]:
    """Raises ``LimitReached`` with the limits and the remedy where Python itself has no memory
    left. ``ArenaFull`` passes: it names its limit already."""
    try:
        yield
    except ArenaFull:
        raise
    except (MemoryError, SystemError) as error:
        # CPython raises the latter, with this text, where memory ends within an import.
        if isinstance(error, SystemError) and "without exception set" not in str(error):
            raise
        text = "this process has no memory left; raise the limit that is met"
        raise LimitReached(f"{text}: {name_host_limits_on_threads()}") from error


def start_thread_within_host_limits(thread: threading.Thread) -> None:
    """Starts a thread. Raises ``LimitReached`` with the limits and the remedy where the system
    gives none."""
    try:
        thread.start()
    except RuntimeError as error:
        text = f"no thread {thread.name}: {error}; raise the limit that is met"
        raise LimitReached(f"{text}: {name_host_limits_on_threads()}") from error


def name_host_limits_on_threads() -> str:
    """Returns the limits on threads, processes and their memory as one text."""
    return "; ".join(host_limits_on_threads()) or "kernel.threads-max of sysctl"


def host_limits_on_threads(root: Path = Path("/")) -> list[str]:
    """Returns the limits on threads of this process, each with its value and its setting."""
    limits = []
    for _, group, folder in _cgroups_with_limits(root, "pids"):
        most = _read_limit_number(folder / "pids.max")
        if most is not None:
            used = _read_limit_number(folder / "pids.current")
            text = f"pids.max of cgroup {group} is {most}, of which {used} are in use"
            limits.append(f"{text} (TasksMax=, --pids-limit)")
    for kind, name, is_size in (
        (resource.RLIMIT_NPROC, "processes and threads of this user (ulimit -u)", False),
        (resource.RLIMIT_AS, "address space (ulimit -v)", True),
        (resource.RLIMIT_DATA, "private memory (ulimit -d)", True),
    ):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            limits.append(f"the limit on {name} is {round_bytes(soft) if is_size else soft}")
    return limits


def _host_limits(root: Path) -> Iterator[HostMemoryLimit]:
    """Yields the kernel's estimate of the memory that is available without swapping."""
    for line in _read_limit_lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
            yield HostMemoryLimit("the host's memory", available, "free memory on the host", True)


def _cgroup_limits(root: Path) -> Iterator[HostMemoryLimit]:
    """Yields the limits of this process's memory cgroup and of the cgroups around it."""
    for is_v2, group, folder in _cgroups_with_limits(root, "memory"):
        files = _CGROUP_V2 if is_v2 else _CGROUP_V1
        usage = _read_limit_number(folder / files.usage)
        if usage is None:
            continue
        fields = (line.split() for line in _read_limit_lines(folder / "memory.stat"))
        cached = sum(int(field[1]) for field in fields if field[0] in files.reclaimable)
        for file in files.limits:
            limit = _read_limit_number(folder / file)
            if limit is not None and limit < _UNLIMITED_BYTES:
                available = max(limit - max(usage - cached, 0), 0)
                name = f"{file} of cgroup {group}, which is {round_bytes(limit)}"
                remedy = "raise the memory of the container or service"
                yield HostMemoryLimit(name, available, remedy, True)


def _cgroups_with_limits(root: Path, controller: str) -> Iterator[tuple[bool, PurePosixPath, Path]]:
    """Yields the cgroups of this process for a controller such as ``memory``, each followed by
    those around it: whether it is of version 2, its path, and the folder of its files.

    Inside a container the path may be one of the host's, which the container does not show. The
    container's own cgroup is then the root of what it shows.
    """
    own = []
    for line in _read_limit_lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers or controller in controllers.split(","):
            own.append((not controllers, path))
    for is_v2, path in own or [(True, "/"), (False, "/")]:
        top = root / "sys/fs/cgroup" / ("" if is_v2 else controller)
        inner = PurePosixPath(path)
        for group in (inner, *inner.parents):
            yield is_v2, group, top / str(group).lstrip("/")


def _process_limits(root: Path) -> Iterator[HostMemoryLimit]:
    """Yields the limits of this process on its address space and on the size of files."""
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        pages = next(iter(_read_limit_lines(root / "proc/self/statm")), "0").split()[0]
        available = max(space - int(pages) * resource.getpagesize(), 0)
        name = f"the limit on address space (ulimit -v), which is {round_bytes(space)}"
        yield HostMemoryLimit(name, available, "raise it")
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY:
        name = f"the limit on the size of files (ulimit -f), which is {round_bytes(size)}"
        yield HostMemoryLimit(name, size, "raise it")


def _read_limit_lines(path: Path) -> list[str]:
    """Returns the lines of a file of the system that are not empty; none if it cannot be read, also
    for want of memory, which may be what the limits are named for."""
    try:
        return [line for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    except (OSError, MemoryError):
        return []


def _read_limit_number(path: Path) -> int | None:
    """Returns the number that a file holds, or ``None``, as for the word ``max``."""
    text = "".join(_read_limit_lines(path)).strip()
    return int(text) if text.isdigit() else None
