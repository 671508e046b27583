"""The connection to a gateway on another host, which shares no memory with the trainer.

The bytes of a contribution are sent behind its post, so that the gateway exchanges the first while
the others are still to come. Those of a result come back before the message that it is ready. Both
lie at the same offsets of the arenas of trainer and gateway.
"""

from __future__ import annotations

import ssl
import time

from .. import errors
from .._signal_handlers import raise_if_from_signal_handler
from .attach import FIRST_RESPONSE_TIMEOUT_S, request_attach
from .collective_types import CollectiveKind
from .connection import Connection, ConnectionChannel, GroupPlace
from .frames import FrameDecoder
from .trainer_tls import (
    TrainerTlsGateway,
    connect_trainer_tls,
    load_trainer_tls_context,
    trainer_tls_error,
)
from .wire import (
    PIECE_MAX_BYTES,
    REQUESTS,
    Attach,
    Attached,
    ContributionPiece,
    Post,
    Request,
)


class RemoteConnection(Connection):
    """An attached connection that sends the bytes of contributions."""

    def __init__(
        self,
        connected: ConnectionChannel,
        attached: Attached,
        frames: FrameDecoder,
        rank: int,
        arena: memoryview,
    ) -> None:
        """Takes over a socket as ``Connection`` does, for a rank whose contributions and results
        are in ``arena``."""
        super().__init__(connected, attached, frames)
        self._rank = rank
        self._place = GroupPlace(0, rank, attached.world_size)
        self._arena = arena

    def enter_world(self, ranks: tuple[int, ...]) -> None:
        """Notes this rank's place among those that go on, by which the gateway counts bytes."""
        if self._rank in ranks:
            self._place = GroupPlace(0, ranks.index(self._rank), len(ranks))

    def send(self, request: Request, place: GroupPlace | None = None) -> None:
        """Sends one request, and behind a post the bytes that the gateway reads for it. Raises
        ``OSError`` when the connection is gone."""
        if not isinstance(request, Post):
            return super().send(request, place)
        elements = _remote_contribution_elements(request, place or self._place)
        nbytes = elements * request.dtype.element_bytes
        super().send(request._replace(streamed_bytes=nbytes), place)
        contribution = self._arena[request.contribution_offset :][:nbytes]
        for at in range(0, nbytes, PIECE_MAX_BYTES):
            piece = contribution[at : at + PIECE_MAX_BYTES]
            self._socket.sendall(REQUESTS.encode_frame(ContributionPiece(at, len(piece))))
            self._socket.sendall(piece)

    def write_to_arena(self, offset: int, part: memoryview) -> None:
        """Writes bytes of a result to the arena."""
        self._arena[offset : offset + len(part)] = part


def _remote_contribution_elements(post: Post, place: GroupPlace) -> int:
    """Returns how many elements the gateway reads of the contribution of a rank."""
    kind, is_root = post.operation, post.root == place.rank
    if kind in (CollectiveKind.BROADCAST, CollectiveKind.SCATTER, CollectiveKind.SEND):
        return post.elements if is_root else 0
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER):
        return post.counts[0][place.rank] if post.counts else post.elements // place.size
    if kind is CollectiveKind.ALL_TO_ALL and post.counts:
        return sum(post.counts[0])
    return post.elements


def attach_over_remote_connection(
    gateway: TrainerTlsGateway, arena: memoryview, request: Attach, deadline: float
) -> Connection:
    """Connects to a gateway on another host, and attaches a rank.

    Args:
        gateway: The gateway.
        arena: The memory for contributions and results.
        request: The rank, and the token that admits it.
        deadline: The latest return, in seconds of ``time.monotonic``.

    Raises:
        ConfigError: A file of the CA or of a certificate cannot be used.
        LimitReached: This process has no descriptor left to read one.
        NoGateway: No gateway answers, or the connection ended without an answer.
        UntrustedSocket: Whoever answers proves no gateway's name, or refuses this trainer's
            certificate.
        Refused: The gateway refused the rank.
    """
    context = load_trainer_tls_context(gateway)
    deadline = min(deadline, time.monotonic() + FIRST_RESPONSE_TIMEOUT_S)
    try:
        connected = connect_trainer_tls(gateway, context, deadline)
    except errors.AttachError:
        raise
    except OSError as error:
        raise_if_from_signal_handler(error)
        text = f"no gateway answers at {gateway.address}: {error or type(error).__name__}"
        raise errors.NoGateway(f"{text}; has its region file an `attach` address?") from error
    try:
        frames = FrameDecoder()
        attached = request_attach(connected, frames, request, deadline)
        connected.settimeout(None)
    except errors.AttachError:
        connected.close()
        raise
    except OSError as error:
        connected.close()
        raise_if_from_signal_handler(error)
        # In TLS 1.3 a client hears only now that its certificate was refused.
        judged = trainer_tls_error(gateway, error) if isinstance(error, ssl.SSLError) else error
        if isinstance(judged, errors.AttachError):
            raise judged from error
        text = f"the gateway at {gateway.address} ended the connection: {error}"
        raise errors.NoGateway(f"{text}; is it starting or ending?") from error
    except BaseException:
        connected.close()
        raise
    return RemoteConnection(connected, attached, frames, request.rank, arena)
