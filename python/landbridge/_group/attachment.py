"""Attaching a rank to its gateway, and meeting all other ranks in one epoch.

``connect`` and ``Group.recover`` use it, in the trainer's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .. import errors
from .._config.region_file import GatewayLocation
from .._memory.arena import Arena
from .._operation import Operation
from .._protocol.connection import attach_rank
from .._protocol.socket_access import trusted_users
from .._protocol.wire import LOCAL_PROTOCOL_VERSION, Attach
from .state import GroupState

#: 0.1 s: pause between two attempts to attach to a gateway. A lost gateway takes longer to come
#: back.
_RETRY_PAUSE_S = 0.1
#: 2 s: longest delay between a timeout and the report of a running gateway about it;
#: docs/failures.md.
_TIMEOUT_REPORT_DELAY_MAX_S = 2.0


class GatewayAttachment:
    """Attaches one rank to its gateway, also after the connection was lost."""

    def __init__(
        self, location: GatewayLocation, rank: int, arena: Arena, state: GroupState
    ) -> None:
        #: The name of the fabric, once attached.
        self.fabric = ""
        self._location = location
        self._rank = rank
        self._arena = arena
        self._state = state
        self._was_attached = False

    def meet_all_ranks(self, deadline: float, start_barrier: Callable[[float], Operation]) -> None:
        """Attaches the rank, and returns when all ranks are in one epoch, at the beginning of a
        step.

        Args:
            deadline: The latest return, in seconds of ``time.monotonic``.
            start_barrier: ``Group.barrier_async``.

        Raises:
            LandbridgeError: As ``connect``.
        """
        while True:
            self._attach_and_agree(deadline)
            try:
                left = max(deadline - time.monotonic(), 0.001)
                return self._await_barrier(start_barrier, left)
            except (errors.RanksDisagree, errors.BadRequest):
                raise
            except errors.CollectiveFailed as failure:
                # A gateway or a rank went away or came back, or another rank's timeout expired.
                # If the epoch has not ended, attaching again ends it.
                if time.monotonic() + _RETRY_PAUSE_S >= deadline:
                    raise
                time.sleep(_RETRY_PAUSE_S)
                if self._state.is_epoch_agreed:
                    self._state.end_connection(self._state.connection, f"given up after: {failure}")

    def _await_barrier(self, start_barrier: Callable[[float], Operation], timeout: float) -> None:
        """Waits until every rank has come to a barrier. Raises ``NoGateway`` soon after the timeout
        if the gateway is stopped."""
        connection = self._state.connection
        try:
            start_barrier(timeout).wait(timeout + _TIMEOUT_REPORT_DELAY_MAX_S)
        except errors.WaitTimeout as silence:
            text = "the gateway does not answer; is it stopped, or its host overloaded?"
            self._state.end_connection(connection, text)
            raise errors.NoGateway(f"{self._location.socket}: {text}") from silence

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
            raise errors.Refused(state.ended)
        if state.is_over or state.entries:
            raise errors.NoEpoch(
                "attached, but no epoch began in time: some gateway is missing; "
                "see `landbridge status`"
            )
        state.agree_to_epoch()

    def _connect_to_gateway(self, deadline: float) -> None:
        """Connects to the gateway and attaches the rank. Tries again while a gateway that answered
        once is away."""
        location = self._location
        self._state.finish_ending_connection()
        request = Attach(
            LOCAL_PROTOCOL_VERSION, self._rank, self._arena.nbytes, location.token, location.job
        )
        trusted = trusted_users(location.user)
        while True:
            try:
                connection = attach_rank(
                    location.socket, self._arena.fd, request, deadline, trusted
                )
                break
            except (errors.NoGateway, errors.Refused) as failure:
                # A gateway that answered once may be ending or starting again. A connection that
                # it ends without an answer is a `Refused` that an `OSError` caused.
                is_absent = isinstance(failure, errors.NoGateway)
                may_return = is_absent or isinstance(failure.__cause__, OSError)
                is_late = time.monotonic() + _RETRY_PAUSE_S >= deadline
                if not self._was_attached or not may_return or is_late:
                    raise
                time.sleep(_RETRY_PAUSE_S)
        theirs, ours = connection.attached.world_size, len(location.speeds)
        if theirs != ours:
            connection.shut_down_socket()
            text = f"{theirs} ranks at the gateway, {ours} in the config"
            raise errors.Refused(f"gateway and trainer have different fabrics: {text}")
        self.fabric, self._was_attached = connection.attached.fabric, True
        try:
            self._state.begin_connection(connection)
        except BaseException:
            self._state.end_connection(connection, "attaching was interrupted")
            raise
