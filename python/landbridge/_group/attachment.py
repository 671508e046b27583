"""Attaching a rank to its gateway, and meeting all other ranks in one epoch.

``connect`` and ``Group.recover`` use it, in the trainer's thread.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable
from typing import NoReturn

from .. import errors
from .._config.region_file import RegionFileGateway
from .._memory.arena import Arena
from .._operations.operation import Operation
from .._protocol.attach import attach_rank
from .._protocol.connection import Connection
from .._protocol.remote import attach_over_remote_connection
from .._protocol.socket_access import socket_access_users
from .._protocol.wire import LOCAL_PROTOCOL_VERSION, Attach
from .._rounding import TIMES, round_quantity
from .job_state import JobState

_log = logging.getLogger("landbridge")

#: 0.1 s: the first pause between two attempts to attach to a gateway, a chosen time. Each failure
#: to attach doubles it.
_RETRY_PAUSE_MIN_S = 0.1
#: 1 s: the longest pause between two attempts to attach to a gateway. It is chosen, so that a
#: gateway that is back is soon found.
_RETRY_PAUSE_MAX_S = 1.0
#: 2 s: how long a rank that was never attached retries when the socket's folder refuses it; then it
#: raises ``NotPermitted``. The time is chosen: a gateway that starts closes the folder for
#: microseconds.
_DENIED_RETRY_MAX_S = 2.0
#: 30 s: a rank that cannot attach for as long or longer logs the reason as a warning, and before at
#: level INFO. The time is chosen, since trainers and gateways may be started one after the other.
_WARNING_DELAY_S = 30.0
#: 600 s: the shortest pause between two warnings of a rank that cannot attach for reasons of one
#: kind, as gateways have it. Within it the log level is INFO.
_WARNING_PAUSE_S = 600.0
#: 5 s: a gateway silent for so long is reported as stopped. Of a shorter attempt that the deadline
#: cut off, the failure of the attempt before is reported. A running gateway answers within 2 s,
#: even while an earlier process of the rank is attached.
_SILENCE_TOLD_AFTER_S = 5.0
#: 2 s: the longest delay between a timeout and the report of a running gateway about it;
#: docs/failures.md. A gateway silent until then is taken for stopped: ``NoGateway``.
_TIMEOUT_REPORT_DELAY_MAX_S = 2.0


class GatewayAttachment:
    """Attaches one rank to its gateway, also after the connection was lost."""

    def __init__(
        self, location: RegionFileGateway, rank: int, arena: Arena, state: JobState
    ) -> None:
        """Prepares to attach the rank with its arena at a gateway. Nothing is connected yet."""
        #: The name of the fabric, once attached.
        self.fabric = ""
        #: The number of ranks of the job, once attached.
        self.world_size = len(location.speeds)
        self._location = location
        self._rank = rank
        self._arena = arena
        self._state = state
        self._was_attached = False
        #: When the system first denied access since the last other answer, in seconds of
        #: ``time.monotonic``; ``None`` if it has not.
        self._denied_since: float | None = None
        self._log = AttachmentLog(rank)

    def meet_all_ranks(self, deadline: float, start_barrier: Callable[[float], Operation]) -> None:
        """Attaches the rank, and returns when all ranks are in one epoch, at the beginning of a
        step.

        Tries again until the deadline, whatever gateways do meanwhile: start, end, refuse for a
        while, or not meet. Only an error that lasts ends it at once.

        Args:
            deadline: When to give up, in seconds of ``time.monotonic``. A gateway that does not
                answer is waited for 2 s longer.
            start_barrier: ``Group.barrier_async``.

        Raises:
            LandbridgeError: As ``connect``.
        """
        pause = _RETRY_PAUSE_MIN_S
        self._log.end_trouble()
        attempts = AttachmentFailures(self._rank, deadline - time.monotonic())
        has_disagreed = False
        while True:
            began = time.monotonic()
            try:
                self._attach_and_agree(deadline)
                left = max(deadline - time.monotonic(), 0.001)
                return self._await_barrier(start_barrier, left)
            except errors.CollectiveFailed as failure:
                if isinstance(failure, errors.POSTS_AT_FAULT):
                    # A rank that has ended may have left a post behind, which ends with this epoch.
                    if has_disagreed or not isinstance(failure, errors.RanksDisagree):
                        raise
                    has_disagreed = True
                # A gateway or a rank went away or came back, or another rank's timeout expired.
                # If the epoch has not ended, attaching again ends it.
                pause = _RETRY_PAUSE_MIN_S
                now = time.monotonic()
                if now + pause >= deadline:
                    attempts.raise_reason(failure, now - began)
                attempts.note_failure(failure)
                time.sleep(pause)
                if self._state.is_epoch_agreed:
                    self._state.end_connection(self._state.connection, f"given up after: {failure}")
            except errors.AttachError as failure:
                now = time.monotonic()
                if self._is_lasting(failure, now):
                    raise
                if now + pause >= deadline:
                    attempts.raise_reason(failure, now - began)
                attempts.note_failure(failure)
                self._log.note_trouble(failure, now, deadline)
                time.sleep(pause)
                pause = min(2 * pause, _RETRY_PAUSE_MAX_S)

    def attach_alone(self, deadline: float) -> None:
        """Attaches the rank, and waits for no other rank. Tries again as ``meet_all_ranks``, also
        while another process has the rank. Raises ``AttachError``."""
        pause = _RETRY_PAUSE_MIN_S
        while True:
            try:
                return self._connect_to_gateway(deadline)
            except errors.AttachError as failure:
                now = time.monotonic()
                if self._is_lasting(failure, now) or now + pause >= deadline:
                    raise
                self._log.note_trouble(failure, now, deadline)
                time.sleep(pause)
                pause = min(2 * pause, _RETRY_PAUSE_MAX_S)

    def _is_lasting(self, failure: errors.AttachError, now: float) -> bool:
        """Returns whether another attempt would fail too. A rank that was never attached retries a
        denied access for ``_DENIED_RETRY_MAX_S``, and one that was attached always."""
        if not isinstance(failure, errors.NotPermitted):
            self._denied_since = None
            return failure.is_final
        if self._denied_since is None:
            self._denied_since = now
        # A gateway that starts makes its folder first, and then opens it to other users.
        return not self._was_attached and now - self._denied_since >= _DENIED_RETRY_MAX_S

    def _await_barrier(self, start_barrier: Callable[[float], Operation], timeout: float) -> None:
        """Waits until every rank has come to a barrier. Raises ``NoGateway`` soon after the timeout
        if the gateway is stopped."""
        connection = self._state.connection
        try:
            start_barrier(timeout).wait(timeout + _TIMEOUT_REPORT_DELAY_MAX_S)
        except errors.WaitTimeout as silence:
            text = "the gateway does not answer; is it stopped, or its host overloaded?"
            self._state.end_connection(connection, text)
            raise errors.NoGateway(f"{self._location.address}: {text}") from silence

    def _attach_and_agree(self, deadline: float) -> None:
        """Attaches the rank unless it is attached, waits for an epoch, and agrees to post in that
        epoch."""
        state = self._state
        if state.closed:
            raise errors.Closed("the group was closed")
        if state.ended is not None:
            self._connect_to_gateway(deadline)
        # Failures of the previous epoch may still arrive.
        state.wait_until(
            lambda: (not state.is_over and not state.entries) or state.ended is not None, deadline
        )
        if state.ended is not None:
            raise errors.NoGateway(
                f"{self._location.address}: the gateway went away: {state.ended}"
            )
        if state.is_over or state.entries:
            why = state.awaited or "some gateway is missing"
            raise errors.NoEpoch(
                f"attached, but no epoch began in time: {why}; see `landbridge status`"
            )
        state.agree_to_epoch()

    def _connect_to_gateway(self, deadline: float) -> None:
        """Makes one attempt to connect to the gateway, and attaches the rank. Raises ``Refused``
        where the gateway's fabric has another number of ranks than the config."""
        location = self._location
        self._state.finish_ending_connection()
        request = Attach(
            LOCAL_PROTOCOL_VERSION, self._rank, self._arena.nbytes, location.token, location.job
        )
        connection = self._attach(request, deadline)
        theirs, ours = connection.attached.world_size, len(location.speeds)
        # Without a config, the gateway's number counts.
        if ours and theirs != ours:
            connection.shut_down_socket()
            text = f"{theirs} ranks at the gateway, {ours} in the config"
            text = f"gateway and trainer have different fabrics: {text}"
            raise errors.Refused(text, is_final=True)
        self.fabric, self.world_size = connection.attached.fabric, theirs
        recorder = self._state.recorder
        recorder.fabric, recorder.world_size = self.fabric, self.world_size
        self._was_attached = True
        self._log.end_trouble()
        try:
            self._state.begin_connection(connection)
        except BaseException:
            self._state.end_connection(connection, "attaching was interrupted")
            raise

    def _attach(self, request: Attach, deadline: float) -> Connection:
        """Connects to the gateway on this host or on another one, and sends the request."""
        location = self._location
        if location.tls is not None:
            return attach_over_remote_connection(
                location.tls, self._arena.view(), request, deadline
            )
        trusted = socket_access_users(location.user)
        return attach_rank(location.socket, self._arena.fd, request, deadline, trusted)


class AttachmentFailures:
    """The failures of one rank's attempts to meet the others within one timeout."""

    def __init__(self, rank: int, timeout_s: float) -> None:
        """Begins without failures, for a rank that tries for ``timeout_s`` seconds."""
        self._rank = rank
        self._timeout_s = timeout_s
        #: The failure of the last attempt that was followed by another one.
        self._last: errors.LandbridgeError | None = None
        #: The first failure that names ranks that did not come. Later ones also name the ranks
        #: that have given up because of it.
        self._first_wait: errors.RanksTimedOut | None = None

    def note_failure(self, failure: errors.CollectiveFailed | errors.AttachError) -> None:
        """Keeps the failure of an attempt that another one follows."""
        self._last = failure
        if self._first_wait is None and isinstance(failure, errors.RanksTimedOut):
            self._first_wait = failure

    def raise_reason(
        self, failure: errors.CollectiveFailed | errors.AttachError, attempt_s: float
    ) -> NoReturn:
        """Raises why the rank has not met the others by its deadline.

        Args:
            failure: The failure of the last attempt.
            attempt_s: The duration of that attempt, in seconds.
        """
        reason: errors.LandbridgeError = failure
        if (
            self._last is not None
            and attempt_s < _SILENCE_TOLD_AFTER_S
            and _was_attachment_cut_short(failure)
        ):
            reason = self._last
        first = self._first_wait
        if first and reason is not first and isinstance(reason, errors.CollectiveFailed):
            text = "ranks that gave up then are missing too in the last attempt"
            reason = errors.RanksTimedOut(f"{first.text}; {text}: {reason.text}")
        elif isinstance(reason, errors.Refused):
            waited = round_quantity(self._timeout_s, TIMES)
            text = f"rank {self._rank} could not attach within {waited}"
            reason = errors.Refused(f"{text}: {reason}", is_final=reason.is_final)
        if reason is failure:
            raise failure
        raise reason from failure


def _was_attachment_cut_short(failure: errors.LandbridgeError) -> bool:
    """Returns whether the caller's deadline ended an attempt, and not an answer."""
    is_silence = isinstance(failure.__cause__, (socket.timeout, errors.WaitTimeout))
    return is_silence or isinstance(failure, errors.NoEpoch)


class AttachmentLog:
    """The log of a rank that waits for its gateway: INFO at once, and a warning where the trouble
    lasts and an operator should look."""

    def __init__(self, rank: int) -> None:
        """Begins without trouble, for the rank of this number."""
        self._rank = rank
        #: The text of the last trouble, logged once however often it is met.
        self._told = ""
        #: When the trouble began, in seconds of ``time.monotonic``.
        self._since: float | None = None
        #: The time of the last warning of each kind.
        self._warned: dict[type[errors.AttachError], float] = {}

    def end_trouble(self) -> None:
        """Ends the trouble, because the gateway was met, or another wait for it begins."""
        self._told, self._since = "", None

    def note_trouble(self, failure: errors.AttachError, now: float, deadline: float) -> None:
        """Logs why the rank waits: a warning where the trouble lasts, else INFO, once for the same
        text in a row. Times are seconds of ``time.monotonic``."""
        if self._since is None:
            self._since = now
        words = "rank %d: %s; trying for %.0f s more"
        values = self._rank, failure, deadline - now
        warned = self._warned.get(type(failure), -math.inf)
        if now - self._since >= _WARNING_DELAY_S and now - warned >= _WARNING_PAUSE_S:
            self._warned[type(failure)] = now
            _log.warning(words, *values)
        elif str(failure) != self._told:
            _log.info(words, *values)
        self._told = str(failure)
