"""The exceptions of this package.

Every exception is a ``LandbridgeError``. Failures of collectives are ``CollectiveFailed``, with one
class for each code of the gateway. The contribution is intact after any of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar


class LandbridgeError(Exception):
    """The base of all exceptions of this package."""

    def __init__(self, *texts: Any) -> None:
        """Makes the error. Paths and names in its texts may have control characters, which a
        terminal would obey: they are escaped here."""
        super().__init__(*map(escape_error_text, texts))


class ConfigError(LandbridgeError, ValueError):
    """A config file or an argument cannot be used. The caller is at fault."""


class UnsupportedArray(LandbridgeError, TypeError):
    """An array cannot take part in a collective. The caller is at fault."""


class AttachError(LandbridgeError):
    """The rank could not be attached to its gateway.

    Attributes:
        is_final: Whether another attempt would fail too, until somebody changes a file or a
            program. ``connect`` and ``recover`` try until their timeout after any other error.
    """

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        """Makes the error. ``is_final`` says that another attempt would fail too."""
        super().__init__(text)
        self.is_final = is_final


class NoGateway(AttachError, ConnectionError):
    """No gateway answers at the socket, or the connection ended without an answer."""


class NotPermitted(AttachError, PermissionError):
    """This process's user may not connect to the gateway's socket, or may not read a token,
    certificate or key. Trying again does not help."""


class UntrustedSocket(AttachError, PermissionError):
    """A third user may listen at the gateway's socket, or may put another one there. At an address
    of another host, the program that answers proves no gateway's name, or refuses this trainer's
    certificate.

    The job's token was sent to nobody but a gateway of the CA.
    """


class Refused(AttachError, ConnectionError):
    """The gateway answered and refused the rank."""


class NoEpoch(AttachError, TimeoutError):
    """The rank is attached, but the gateways have not met in time."""


class ArenaFull(LandbridgeError, MemoryError):
    """The arena has no room, or the system has none for the arena. The text says which, names the
    limit, and whether to connect with a larger or a smaller ``arena``."""


class LimitReached(LandbridgeError, OSError):
    """A limit of the system on descriptors, threads or processes is reached. The text names it.

    Nothing was attached, and another attempt may succeed once the limit is raised.
    """


class Closed(LandbridgeError, RuntimeError):
    """This process has closed the group, or its interpreter is ending. The caller is at fault."""


class ForkedProcess(LandbridgeError, RuntimeError):
    """A forked process used a group that its parent connected. Connect in the process itself."""


class InCallback(LandbridgeError, RuntimeError):
    """A callback of a collective, or a signal handler that interrupts a wait, posted or waited.

    Use another thread instead, or set a flag.
    """


class SiteFailed(LandbridgeError, ConnectionError):
    """The process group of this site failed, or one of its trainers is gone.

    A site is the trainers of one region that share a process group. Start all of them again.
    """


class NotSupported(LandbridgeError, NotImplementedError):
    """Something that the caller asked for does not exist. The text says what to do instead."""


class StepsDiffer(LandbridgeError):
    """Ranks have finished different numbers of steps, so their weights differ.

    The weights of the ranks that are ahead are right: every rank contributed to them. A region
    that was lost is not ahead where the others have done its last step again without it.
    ``Group.agree`` raises it.

    Attributes:
        steps: The number of finished steps of each rank, by rank.
        furthest: Of the ranks that are ahead, the first one with the latest confirmed commit.
    """

    def __init__(
        self,
        steps: Sequence[int],
        regions: Sequence[str],
        overtaken: Sequence[int],
        furthest: int,
    ) -> None:
        """Makes the error from the finished steps and the regions of all ranks, both by rank, the
        ranks whose last step others have done again without them, and the rank ahead."""
        self.steps = list(steps)
        self.furthest = furthest
        again = ", whose last step others have done again without it"
        listed = ", ".join(
            f"rank {rank} ({region}) has finished {count}{again if rank in overtaken else ''}"
            for rank, (region, count) in enumerate(zip(regions, steps))
        )
        super().__init__(
            f"ranks are at different steps: {listed}; give every rank the weights and the "
            f"optimizer state of rank {self.furthest}, and continue after step "
            f"{steps[self.furthest]}"
        )


class StateNotTransferred(LandbridgeError, TypeError):
    """The training state of the rank ahead cannot be sent, or a rank that is behind cannot load it.

    ``landbridge.torch.resume`` raises it on every rank. The text names the rank, and on that rank
    the part of the state.
    """


class StoreError(LandbridgeError):
    """A request to the store of the job has no outcome."""


class StoreTimeout(StoreError, TimeoutError):
    """The store did not answer in time: the key was not there, or gateways could not be reached.

    Attributes:
        is_unconfirmed: Whether a change was sent that may have been made, or may still be.
            Otherwise nothing was changed.
    """

    def __init__(self, text: str, *, is_unconfirmed: bool) -> None:
        """Makes the error. ``is_unconfirmed`` says that a change may have been made
        nevertheless."""
        super().__init__(text)
        self.is_unconfirmed = is_unconfirmed


class StoreRefused(StoreError, ValueError):
    """The store refused a request, which has changed nothing. The text names the limit, or the
    value that is no number."""


class StoreDisconnected(StoreError, ConnectionError):
    """The connection to the gateway ended. A change may have been made. ``Group.recover`` attaches
    again."""


class WaitTimeout(LandbridgeError, TimeoutError):
    """A wait ended before the collective did. The collective continues."""


class CollectiveFailed(LandbridgeError):
    """A collective failed. The contribution is intact; the content of the result is undefined.

    Attributes:
        code: The gateway's code, docs/protocol.md section 2; 0 where nothing reached the gateway.
        fault: The party at fault: ``caller``, ``peer``, ``link`` or ``gateway``.
        kind: The gateway's words for the code.
        text: What happened and what to do.
    """

    code: ClassVar[int] = 0
    fault: ClassVar[str] = ""
    kind: ClassVar[str] = ""

    def __init__(self, text: str) -> None:
        """Makes the failure with the gateway's text about it."""
        super().__init__(text)
        self.text: str = escape_error_text(text)

    def __str__(self) -> str:
        """Returns kind, cause and text of the failure in one sentence."""
        return f"{self.kind} (cause: {self.fault}): {self.text}"


class RanksDisagree(CollectiveFailed):
    """Ranks posted different collectives at the same place of their order.

    Ranks compare some of what a caller passes by a hash, of which ``text`` can show no more. So
    each rank adds in ``here`` what it passed itself, to be compared with that of other ranks.

    Attributes:
        text: What differs, the same on all ranks.
        here: What this rank passed, or nothing where that is not known.
    """

    code, fault, kind = 1, "caller", "ranks disagree"

    def __init__(self, text: str, here: str = "") -> None:
        """Makes the failure with the gateway's text about it. ``here`` is what this rank passed."""
        super().__init__(text)
        self.here = here

    def __str__(self) -> str:
        """Returns kind, cause and text of the failure, and behind them what this rank passed, if
        known."""
        text = super().__str__()
        return f"{text}; {escape_error_text(self.here)}" if self.here else text


@contextlib.contextmanager
def error_on_disagreement_with(describe: Callable[[], str]) -> Iterator[None]:
    """Returns a context in which ``RanksDisagree`` says what the caller of a public function
    passed, as ``describe`` tells, and not what that function passed on."""
    try:
        yield
    except RanksDisagree as failure:
        failure.here = describe()
        raise


class BadRequest(CollectiveFailed):
    """The posted collective is not defined or not allowed."""

    code, fault, kind = 2, "caller", "bad request"


class RanksTimedOut(CollectiveFailed, TimeoutError):
    """Another rank did not post within this rank's timeout."""

    code, fault, kind = 3, "caller", "timed out waiting for ranks"


class RankLost(CollectiveFailed):
    """A rank went away before it posted."""

    code, fault, kind = 4, "peer", "rank lost"


class RegionLost(CollectiveFailed):
    """A region can no longer be reached."""

    code, fault, kind = 5, "link", "region lost"


class EpochEnded(CollectiveFailed):
    """The epoch ended before the collective did."""

    code, fault, kind = 6, "peer", "epoch ended"


class Stalled(CollectiveFailed):
    """Every rank posted, but the exchange made no progress by its deadline."""

    code, fault, kind = 7, "link", "exchange stalled"


class GatewayShuttingDown(CollectiveFailed):
    """The gateway is shutting down."""

    code, fault, kind = 8, "gateway", "gateway shutting down"


class GatewayLost(CollectiveFailed, ConnectionError):
    """The connection to this rank's own gateway is gone. ``Group.recover`` attaches again, unless
    this process closed the group."""

    code, fault, kind = 9, "gateway", "gateway lost"


class MembershipChanged(CollectiveFailed):
    """Regions were lost or are back, and the others go on. ``Group.recover`` gives the rank and the
    world size among those that go on; then begin the step again."""

    code, fault, kind = 10, "peer", "membership changed"


class PostTimedOut(CollectiveFailed, TimeoutError):
    """Earlier collectives of this rank left no room within the timeout, and nothing was posted.

    Contribution and result are as they were, and no other rank knows of the call. Make it again
    once earlier collectives are done.
    """

    fault, kind = "caller", "no room for a post"


#: The exceptions of posts that the caller must change, since the same posts would fail again.
#: ``Group.recover`` raises such an exception again.
POSTS_AT_FAULT = (RanksDisagree, BadRequest)
#: The exceptions of a failed collective after which its epoch is over, so that further posts raise
#: ``EpochEnded``.
EPOCH_ENDING_FAILURES = (EpochEnded, RegionLost, GatewayShuttingDown)

#: The exception class for each failure code of the gateway; docs/protocol.md section 2.
FAILURES: dict[int, type[CollectiveFailed]] = {
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
        MembershipChanged,
    )
}


def escape_error_text(text: Any) -> Any:
    """Returns a text with escapes in place of characters that are not printed, such as ESC. Ends of
    lines stay, and so does anything but a text."""
    if not isinstance(text, str) or text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1]
        for letter in text
    )
