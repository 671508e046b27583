"""The store of one site: PyTorch's ``TCPStore``, whose address ranks learn through the gateways.

Gloo groups inside the site find their addresses in it. No rank needs to reach another site, and
nobody configures an address.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from torch._C._distributed_c10d import TCPStore

from ... import errors
from ..._group import Group

#: 512 bytes: the length to which each rank fills up what it tells all others: its host's name and
#: address, and a port. Host names have 253 bytes at most.
_TOLD_BYTES = 512
#: The address of this host for ranks on it, by which they reach the store of their site.
_LOOPBACK = "127.0.0.1"


class SiteStoreAddress(NamedTuple):
    """The place of a site's store, as the rank that keeps it tells all others."""

    #: The name of the host, by which ranks on it know that they are.
    host: str
    #: The host's address in the site.
    address: str
    #: The TCP port; 0 of a rank that keeps no store.
    port: int

    def to_bytes(self) -> bytes:
        """Returns the place as bytes of one length."""
        return "\n".join((self.host, self.address, str(self.port))).encode().ljust(_TOLD_BYTES)

    @staticmethod
    def from_bytes(told: bytes) -> SiteStoreAddress:
        """Returns the place that a rank has told."""
        host, address, port = told.decode().rstrip().split("\n")
        return SiteStoreAddress(host, address, int(port))


def make_site_store(group: Group, regions: Sequence[str], timeout: timedelta) -> TCPStore:
    """Returns the store of this rank's site. All ranks of the job call it.

    Args:
        group: All ranks of the job.
        regions: The region of each rank.
        timeout: How long to wait for other ranks.

    Raises:
        SiteFailed: The rank that keeps the store cannot be reached.
        LandbridgeError: As ``Group.all_gather``.
    """
    keeper = regions.index(regions[group.rank])
    host, address = _name_site_host()
    kept: TCPStore | None = None
    if group.rank == keeper:
        kept = TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=timeout)
    mine = SiteStoreAddress(host, address, 0 if kept is None else kept.port)
    told = bytes(group.all_gather(mine.to_bytes(), timeout=timeout.total_seconds()))
    if kept is not None:
        return kept
    place = SiteStoreAddress.from_bytes(told[keeper * _TOLD_BYTES : (keeper + 1) * _TOLD_BYTES])
    at = _LOOPBACK if place.host == host else place.address
    try:
        return TCPStore(at, place.port, wait_for_workers=False, timeout=timeout)
    except RuntimeError as error:
        raise errors.SiteFailed(
            f"the store of this site does not answer: rank {keeper} keeps it on {place.host}, at "
            f"{at}:{place.port}; make that address reachable in the site: {error}"
        ) from error


def _name_site_host() -> tuple[str, str]:
    """Returns the name of this host, and its address as Gloo finds it."""
    name = socket.gethostname()
    try:
        return name, socket.gethostbyname(name)
    except OSError:
        # Gloo listens on loopback then too.
        return name, _LOOPBACK
