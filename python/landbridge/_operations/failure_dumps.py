"""Dumps of the flight recorder that a rank writes by itself when a collective fails.

A thread writes them, so that no collective waits for a disk. The rules are those of gateways, and of
the client in Rust.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import threading
import time
import weakref

from .. import errors
from .._memory.host_limits import start_thread_within_host_limits
from .flight_recorder import FlightRecorder, write_flight_dump

_log = logging.getLogger("landbridge")

#: The environment variable with the folder for dumps of all ranks of a process that name none
#: themselves. An empty one counts as none.
DUMPS_VARIABLE = "LANDBRIDGE_DUMPS"
#: 60 s: the least time between two dumps of a rank. Failures in between share the dump at its end.
#: The time is chosen: a trainer that fails again and again fills no disk.
_DUMP_INTERVAL_S = 60.0
#: 32 files: the most dumps of a rank in its folder. One more replaces the oldest. The number is
#: chosen.
DUMP_FILES_MAX = 32
#: 64 MiB: the most bytes of a rank's dumps in its folder. The oldest are removed, and a longer dump
#: is not written. The number is chosen, far above a dump.
_DUMP_BYTES_MAX = 64 << 20
#: 1 s: the longest wait for a dump at the end of the interpreter. A slower disk is left alone, and
#: the dump may be missing. The time is chosen: a disk that works takes milliseconds.
_END_WAIT_MAX_S = 1.0
#: The failures at which somebody should look. Of the others the caller knows, an operator asked for
#: them, or they follow another one. A gateway that is lost writes no dump itself.
_DUMPED_FAILURES = (
    errors.RanksDisagree,
    errors.RanksTimedOut,
    errors.RankLost,
    errors.RegionLost,
    errors.Stalled,
    errors.GatewayLost,
)


class FailureDumps:
    """The dumps of one rank in a folder, in which others may have theirs."""

    def __init__(self, folder: str, recorder: FlightRecorder) -> None:
        """Prepares dumps of a recorder. Nothing is written yet."""
        self._folder = folder
        self._recorder = recorder
        self._owner = os.getpid()
        # The lock is taken by itself, so that Ctrl-C cannot leave it taken. It guards everything below.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._is_due = self._is_running = self._is_writing = False
        _all_dumps.add(self)

    def note_failure(self, failure: type[errors.CollectiveFailed]) -> None:
        """Has the recorder written for a failure of that kind, if somebody should look at it. Waits
        for nothing."""
        if not issubclass(failure, _DUMPED_FAILURES):
            return
        with self._lock:
            self._is_due = True
            if self._is_running:
                return
            self._is_running = True
        thread = threading.Thread(target=self._write_due, name="landbridge-dump", daemon=True)
        try:
            start_thread_within_host_limits(thread)
        except errors.LimitReached as error:
            self._is_running = False
            _log.warning("a collective failed, and there is no thread to dump it: %s", error)

    def finish(self, timeout_s: float) -> None:
        """Waits until a dump that is due is written, at most for a time. Does nothing in a forked
        process, which has no such thread."""
        if self._owner != os.getpid():
            return
        with self._lock:
            self._changed.wait_for(
                lambda: not self._is_writing and not (self._is_due and self._is_running), timeout_s
            )

    def _write_due(self) -> None:
        """Writes a dump, and one more after each interval in which something failed."""
        while True:
            with self._lock:
                if not self._is_due:
                    self._is_running = False
                    return
                self._is_due, self._is_writing = False, True
            self._write()
            with self._lock:
                self._is_writing = False
                self._changed.notify_all()
            time.sleep(_DUMP_INTERVAL_S)

    def _write(self) -> None:
        """Writes one dump. A folder that takes none costs a warning."""
        try:
            path = self._write_file(self._recorder.encode(), int(time.time()))
        except OSError as error:
            _log.warning(
                "a collective failed, and its dump cannot be written into %s: %s",
                self._folder,
                error,
            )
        else:
            _log.info("a collective failed: `landbridge explain` reads %s", path)

    def _write_file(self, data: bytes, second: int) -> str:
        """Writes the file of a dump of this second since 1970, and removes the oldest ones. Returns
        its path. Raises ``OSError``."""
        if len(data) > _DUMP_BYTES_MAX:
            raise OSError(f"it has {len(data)} bytes, and {_DUMP_BYTES_MAX} are the most")
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        writer = f"{self._recorder.job}-rank-{self._recorder.rank}"
        self._make_room(writer, len(data))
        path = os.path.join(self._folder, f"{writer}-{second}.json")
        unfinished = os.path.join(self._folder, f".{writer}.unfinished")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
        write_flight_dump(path, data, unfinished)
        return path

    def _make_room(self, writer: str, more: int) -> None:
        """Removes the oldest dumps of the rank until one more of ``more`` bytes fits."""
        own = re.compile(re.escape(writer) + r"-(\d+)\.json")
        dumps = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                named = own.fullmatch(entry.name)
                if named and entry.is_file(follow_symlinks=False):
                    size = entry.stat(follow_symlinks=False).st_size
                    dumps.append((int(named[1]), size, entry.path))
        dumps.sort()
        total = more + sum(size for _, size, _ in dumps)
        while dumps and (len(dumps) >= DUMP_FILES_MAX or total > _DUMP_BYTES_MAX):
            _, size, path = dumps.pop(0)
            os.unlink(path)
            total -= size


_all_dumps: weakref.WeakSet[FailureDumps] = weakref.WeakSet()


def _finish_all_dumps() -> None:
    """Lets dumps under way be finished. Python calls it when the interpreter ends."""
    for dumps in list(_all_dumps):
        dumps.finish(_END_WAIT_MAX_S)


atexit.register(_finish_all_dumps)
