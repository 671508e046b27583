"""The flight recorder of a rank: its last collectives, for the question why a step hangs.

``GroupState`` adds each collective as it is posted, and ``Operation`` notes how it ended. Nothing
here waits or takes a lock. A record keeps no array, no error and no operation alive.
"""

from __future__ import annotations

import collections
import json
import os
import time
from typing import Any

from .. import errors
from .._arguments import ROOTED_KINDS, PassedArguments
from .._protocol.collective_types import CollectiveKind

#: 512 collectives of one rank, in all its groups: the recorder forgets older ones. The number is
#: chosen: twice as many as may be under way, so that what came before them is seen too.
RECORDED_COLLECTIVES_MAX = 512
#: The version of the JSON format, which grows when a field goes away or changes its meaning.
#: docs/schemas/client/dump.json
_FORMAT_VERSION = 1


class RecordedCollective:
    """A collective of this rank, with the times of its post and of its end."""

    __slots__ = (
        "ended_ns",
        "epoch",
        "error",
        "group",
        "passed",
        "posted_ns",
        "sequence",
        "slot_bytes",
    )

    def __init__(
        self,
        group: int,
        place: tuple[int, int],
        passed: PassedArguments,
        slot_bytes: tuple[int, int],
    ) -> None:
        """Records a collective that is posted now.

        Args:
            group: The number by which this rank knows the group; 0 is the job itself.
            place: The epoch, and the number of the collective in its group.
            passed: What the caller passed.
            slot_bytes: The bytes of the contribution and of the result.
        """
        self.group = group
        self.epoch, self.sequence = place
        self.passed = passed
        self.slot_bytes = slot_bytes
        #: Both times are nanoseconds since 1970.
        self.posted_ns = time.time_ns()
        self.ended_ns: int | None = None
        #: The code of the failure and its text, or ``None``.
        self.error: tuple[int, str] | None = None

    def note_end(self, failure: errors.CollectiveFailed | None) -> None:
        """Records that the result is ready, or the failure."""
        if failure is not None:
            # Not the error itself, whose traceback keeps arrays alive.
            self.error = failure.code, str(failure)
        self.ended_ns = time.time_ns()

    @property
    def is_completed(self) -> bool:
        """Whether the collective has ended without a failure."""
        return self.ended_ns is not None and self.error is None

    def describe(self) -> dict[str, Any]:
        """Returns the record as an object of JSON."""
        passed = self.passed
        kind = passed.options.kind
        is_rooted = kind in ROOTED_KINDS or kind == CollectiveKind.SEND
        code, text = self.error or (None, None)
        return {
            "group": self.group,
            "epoch": self.epoch,
            "sequence": self.sequence,
            "operation": kind.name.lower(),
            "op": passed.options.op.name.lower() if kind.is_reduced else None,
            "root": passed.options.root if is_rooted else None,
            "dtype": passed.dtype,
            "shape": list(passed.shape),
            "contribution_bytes": self.slot_bytes[0],
            "result_bytes": self.slot_bytes[1],
            "posted_seconds": _seconds_of(self.posted_ns),
            "ended_seconds": None if self.ended_ns is None else _seconds_of(self.ended_ns),
            "code": code,
            "error_text": text,
        }


class FlightRecorder:
    """The last collectives of a rank, in the order of their posts.

    Attributes:
        fabric: The name of the fabric, once attached.
        job: The name of the job.
        rank: The number of the rank in the fabric.
        world_size: The number of ranks with which the job goes on.
    """

    def __init__(self) -> None:
        """Makes an empty recorder of a rank that is not attached."""
        self.fabric = self.job = ""
        self.rank = self.world_size = 0
        self._records: collections.deque[RecordedCollective]
        self._records = collections.deque(maxlen=RECORDED_COLLECTIVES_MAX)

    def add(self, record: RecordedCollective) -> None:
        """Adds a collective, and forgets the oldest one where there is no room."""
        self._records.append(record)

    def recorded_collectives(self) -> list[RecordedCollective]:
        """Returns the records, oldest first."""
        # One call, in which no other thread can append.
        return list(self._records)

    def encode(self) -> bytes:
        """Returns the records as JSON, in the format of the clients in all languages."""
        told = {
            "version": _FORMAT_VERSION,
            "fabric": self.fabric,
            "job": self.job,
            "rank": self.rank,
            "world_size": self.world_size,
            "dumped_seconds": time.time(),
            "collectives": [record.describe() for record in self.recorded_collectives()],
        }
        return json.dumps(told, indent=1).encode() + b"\n"


def _seconds_of(time_ns: int) -> float:
    """Returns a time in seconds. The quotient of two integers is rounded once."""
    return time_ns / 10**9


def write_flight_dump(path: str, data: bytes, unfinished: str | None = None) -> None:
    """Writes a dump, which only the user of this process can read. Replaces a file at the path.

    Args:
        path: The file.
        data: The dump.
        unfinished: The name of the file until it is whole, beside ``path``.

    Raises:
        OSError: The file cannot be written. The one that was there is as it was.
    """
    beside = unfinished or f"{path}.{os.getpid()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(beside, flags, 0o600), "wb") as file:
            file.write(data)
        os.replace(beside, path)
    except BaseException:
        if os.path.lexists(beside):
            os.unlink(beside)
        raise
