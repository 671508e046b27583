"""What can go wrong, who is at fault, and what memory holds then.

Every exception of this package is a :class:`LandbridgeError`. The failures of collectives have
one class for each code of the daemon; a contribution is intact after any of them.
"""

from __future__ import annotations

from typing import ClassVar, Dict, Sequence, Type


class LandbridgeError(Exception):
    """Whatever this package raises."""


class ConfigError(LandbridgeError, ValueError):
    """A config file or an argument that cannot be used. The caller's fault."""


class UnsupportedArray(LandbridgeError, TypeError):
    """An array or a result buffer that cannot take part. The caller's fault."""


class AttachError(LandbridgeError):
    """Nothing is attached."""


class NoGateway(AttachError, ConnectionError):
    """Nothing answers at the gateway's socket."""


class Refused(AttachError, ConnectionError):
    """The gateway answered, and refused."""


class NoEpoch(AttachError, TimeoutError):
    """Attached, but the gateways have not met in time."""


class ArenaFull(LandbridgeError, MemoryError):
    """The arena has no room. The caller's fault: connect with a larger one."""


class Closed(LandbridgeError, RuntimeError):
    """The group was closed by this process. The caller's fault."""


class ForkedProcess(LandbridgeError, RuntimeError):
    """A group was used in a process forked from the one that connected. The caller's fault."""


class InCallback(LandbridgeError, RuntimeError):
    """A callback of a collective posted, or would have waited, or so did the handler of a signal
    that interrupts a wait. The caller's fault: leave that to another thread, or set a flag."""


class SiteFailed(LandbridgeError, ConnectionError):
    """The trainers of this site cannot reduce together any more, because one of them is gone or
    their process group failed. Start all of them anew, as ``torchrun`` does."""


class StepsDiffer(LandbridgeError):
    """Ranks have finished different numbers of steps, so that they have different weights. What
    those ahead have is right: every rank gave to it. See ``Group.agree``."""

    def __init__(self, steps: Sequence[int], regions: Sequence[str]) -> None:
        #: What each rank has finished, by rank.
        self.steps = list(steps)
        #: The first of those ranks that have finished most.
        self.furthest = self.steps.index(max(steps))
        told = ", ".join(
            f"rank {rank} ({region}) has finished {count}"
            for rank, (region, count) in enumerate(zip(regions, steps))
        )
        super().__init__(
            f"ranks are at different steps: {told}; give every rank the weights, and the state of "
            f"the optimizer, of rank {self.furthest}, and go on after step {max(steps)}"
        )


class WaitTimeout(LandbridgeError, TimeoutError):
    """A wait of this process ended before what it waited for. The collective goes on."""


class CollectiveFailed(LandbridgeError):
    """A collective failed. The contribution is intact; the result has no meaningful value."""

    #: The daemon's code; docs/protocol.md section 2.
    code: ClassVar[int] = 0
    #: Whose fault it is: ``caller``, ``peer``, ``link`` or ``us``.
    fault: ClassVar[str] = ""
    #: The daemon's words for the code.
    kind: ClassVar[str] = ""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        #: What happened and what to do, composed where the fault was seen.
        self.text = text

    def __str__(self) -> str:
        return f"{self.kind} ({self.fault}): {self.text}"


class RanksDisagree(CollectiveFailed):
    """Ranks posted different collectives under one number."""

    code, fault, kind = 1, "caller", "ranks disagree"


class BadRequest(CollectiveFailed):
    """What was posted is not defined or not allowed."""

    code, fault, kind = 2, "caller", "bad request"


class RanksTimedOut(CollectiveFailed, TimeoutError):
    """A rank did not post within this rank's timeout."""

    code, fault, kind = 3, "caller", "timed out waiting for ranks"


class RankLost(CollectiveFailed):
    """A rank that is awaited went away."""

    code, fault, kind = 4, "peer", "rank lost"


class RegionLost(CollectiveFailed):
    """A region cannot be reached any more."""

    code, fault, kind = 5, "link", "region lost"


class EpochEnded(CollectiveFailed):
    """The epoch ended under the collective."""

    code, fault, kind = 6, "peer", "epoch ended"


class Stalled(CollectiveFailed):
    """Every rank posted, but the exchange made no progress by its deadline."""

    code, fault, kind = 7, "link", "exchange stalled"


class GatewayShuttingDown(CollectiveFailed):
    """The gateway is shutting down."""

    code, fault, kind = 8, "us", "gateway shutting down"


class GatewayLost(CollectiveFailed, ConnectionError):
    """The connection to the gateway is gone. ``Group.recover`` attaches anew."""

    code, fault, kind = 9, "us", "gateway lost"


#: The class of each code.
FAILURES: Dict[int, Type[CollectiveFailed]] = {
    failure.code: failure
    for failure in (
        RanksDisagree,
        BadRequest,
        RanksTimedOut,
        RankLost,
        RegionLost,
        EpochEnded,
        Stalled,
        GatewayShuttingDown,
        GatewayLost,
    )
}
