"""The rendezvous ``landbridge`` of torchrun: the agents of all sites number their ranks together.

Torchrun finds it by an entry point and calls it in its agent. Agents meet in the store of the job.
An agent attaches as the first of its ranks, only while no trainer has that rank.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from ... import errors
from ..._config.program import read_config_by_program
from ..._group.connecting import connect_to_store
from ..._group.store import Store
from ..._operations.operation import DEFAULT_TIMEOUT_S
from .launch import find_launch_site
from .world import CONFIG_VARIABLE, WorldArguments

#: The name of the rendezvous, which a user passes to torchrun by ``--rdzv-backend``.
RENDEZVOUS_NAME = "landbridge"
#: 0.1 s: the pause before an agent asks again whether all others see the same agents. The time is
#: chosen.
_ASK_PAUSE_S = 0.1
#: The address of this host for processes on it, at which the first agent of a site keeps the site's
#: store.
_LOOPBACK = "127.0.0.1"


class RendezvousAgent(NamedTuple):
    """The place of an agent of torchrun."""

    #: The region of the agent.
    region: str
    #: The number of the agent among those of its region.
    number: int
    #: The number of agents of its region.
    site_size: int

    @property
    def name(self) -> str:
        """The name of the agent in keys of the store."""
        return f"{self.region}/{self.number}"


class RendezvousAgentStore:
    """The store of one meeting of agents, as torchrun's agent uses it. Each call attaches for its
    own duration, because a trainer has the rank between them."""

    def __init__(self, open_store: Callable[[], Any], prefix: str) -> None:
        """Makes the store. ``open_store`` attaches and yields the store of the job, in which all
        keys begin with ``prefix``."""
        self._open_store = open_store
        self._prefix = prefix
        #: How long a call waits, which torchrun reads and sets.
        self.timeout = timedelta(seconds=DEFAULT_TIMEOUT_S)

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets how long calls wait."""
        self.timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        """Gives a key a value."""
        self._call("set", self._prefix + key, value)

    def get(self, key: str) -> bytes:
        """Returns the value of a key, once it has one."""
        return bytes(self._call("get", self._prefix + key))

    def add(self, key: str, amount: int) -> int:
        """Adds to a number, and returns the sum."""
        return int(self._call("add", self._prefix + key, amount))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until keys have values."""
        self._call("wait", [self._prefix + key for key in keys], timeout)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Returns the values of keys, once all have one."""
        return list(self._call("multi_get", [self._prefix + key for key in keys]))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Gives keys their values."""
        self._call("multi_set", [self._prefix + key for key in keys], list(values))

    def _call(self, name: str, *arguments: Any) -> Any:
        """Attaches, calls a method of the job's store, and detaches."""
        with self._open_store() as store:
            store.set_timeout(self.timeout)
            return getattr(store, name)(*arguments)


class GatewayRendezvous(RendezvousHandler):
    """The handler by which an agent of torchrun meets those of all sites.

    Agents are numbered by region and by their number in it, as ranks are in the fabric. Each
    meeting is of agents that all see the same ones, so an agent that was started again meets the
    others once they restart their trainers too.
    """

    def __init__(
        self,
        attachment: WorldArguments,
        node: RendezvousAgent,
        rank: int,
        parameters: RendezvousParameters,
    ) -> None:
        """Makes the handler of the agent ``node``, which attaches as ``rank``. The program
        ``landbridge`` reads the fabric's regions."""
        self._attachment = attachment
        self._node = node
        self._rank = rank
        self._run_id = parameters.run_id
        self._timeout_s = float(parameters.get_as_int("timeout", int(DEFAULT_TIMEOUT_S)) or 0)
        self._address = parameters.local_addr
        fabric = read_config_by_program(attachment.config)
        self._regions = sorted({entry["region"] for entry in fabric["ranks"]})
        # The store of the site, which trainers use as long as they run.
        self._site_store: TCPStore | None = None

    @property
    def use_agent_store(self) -> bool:
        """Whether trainers use the store that the agents of their site keep: they do."""
        return True

    def get_backend(self) -> str:
        """Returns the name of the rendezvous."""
        return RENDEZVOUS_NAME

    def get_run_id(self) -> str:
        """Returns the name of the job in torchrun."""
        return str(self._run_id)

    def next_rendezvous(self) -> RendezvousInfo:
        """Meets the agents of all sites.

        Raises:
            RanksTimedOut: An agent did not come in time.
            LandbridgeError: As ``landbridge.connect``, and as the store of the job.
        """
        deadline = time.monotonic() + self._timeout_s
        with self._open_store() as store:
            nodes, digest = self._meet_agents(store, deadline)
        shared = RendezvousAgentStore(self._open_store, f"torchrun/{self._run_id}/{digest}/")
        shared.set_timeout(timedelta(seconds=self._timeout_s))
        # The agent calls methods of it alone.
        told: Any = shared
        return RendezvousInfo(told, nodes.index(self._node), len(nodes), self._open_site(shared))

    def is_closed(self) -> bool:
        """Returns ``False``: agents may meet again."""
        return False

    def set_closed(self) -> None:
        """Does nothing: other sites end by their own trainers."""

    def num_nodes_waiting(self) -> int:
        """Returns 0. With another number, torchrun's agent would restart its trainers to let
        waiting nodes in."""
        return 0

    def shutdown(self) -> bool:
        """Returns whether the rendezvous is shut down: it holds nothing."""
        return True

    @contextlib.contextmanager
    def _open_store(self) -> Iterator[Store]:
        """Yields the store of the job, for as long as the agent is attached."""
        config, job, address = self._attachment[:3]
        with connect_to_store(
            address, config=config, rank=self._rank, job=job, timeout=self._timeout_s
        ) as group:
            yield group.store

    def _meet_agents(self, store: Store, deadline: float) -> tuple[list[RendezvousAgent], str]:
        """Waits until all agents see the same ones. Returns them, and a name of their meeting.
        Raises ``RanksTimedOut`` at the deadline."""
        prefix = f"torchrun/{self._run_id}"
        come, seen = f"{prefix}/come/", f"{prefix}/seen/"
        store.set(come + self._node.name, f"{self._node.site_size} {secrets.token_hex(8)}")
        while True:
            store.set_timeout(max(deadline - time.monotonic(), 0.001))
            try:
                firsts = store.multi_get([f"{come}{region}/0" for region in self._regions])
                counts = [int(value.split()[0]) for value in firsts]
                nodes = [
                    RendezvousAgent(region, number, count)
                    for region, count in zip(self._regions, counts)
                    for number in range(count)
                ]
                given = store.multi_get([come + node.name for node in nodes])
                digest = hashlib.blake2b(b"\n".join(given), digest_size=8).hexdigest()
                store.set(seen + self._node.name, digest)
                others = store.multi_get([seen + node.name for node in nodes])
            except errors.StoreTimeout as error:
                text = f"the agents of torchrun in the regions {', '.join(self._regions)}"
                raise errors.RanksTimedOut(f"{text} have not all come: {error}") from error
            if all(other == digest.encode() for other in others):
                return nodes, digest
            if time.monotonic() > deadline:
                missing = [n.name for n, o in zip(nodes, others) if o != digest.encode()]
                text = f"agents of torchrun that have not come again: {', '.join(missing)}"
                raise errors.RanksTimedOut(text)
            time.sleep(_ASK_PAUSE_S)

    def _open_site(self, shared: RendezvousAgentStore) -> RendezvousStoreInfo:
        """Returns the place of the site's store, which its first agent keeps."""
        key = f"site/{self._node.region}"
        if self._node.number == 0:
            self._site_store = TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False)
            host = _LOOPBACK
            if self._node.site_size > 1:
                host = self._address or socket.getfqdn()
            shared.set(key, f"{host} {self._site_store.port}")
        host, port = shared.get(key).decode().split()
        return RendezvousStoreInfo(host, int(port))


def create_rendezvous(parameters: RendezvousParameters) -> GatewayRendezvous:
    """Returns the handler of an agent. ``--rdzv-endpoint`` is the path of the region file, by
    default that in ``LANDBRIDGE_CONFIG``; trainers get it in that variable.

    Raises:
        ConfigError: A file or an option cannot be used.
    """
    if parameters.min_nodes != parameters.max_nodes:
        nodes = f"{parameters.min_nodes}:{parameters.max_nodes}"
        raise errors.ConfigError(f"--nnodes={nodes}: accepted: the number of agents of this site")
    if parameters.endpoint:
        os.environ[CONFIG_VARIABLE] = str(Path(parameters.endpoint).absolute())
    attachment = WorldArguments.from_environment(os.environ)
    region, ranks = find_launch_site(read_config_by_program(attachment.config), attachment.config)
    number, count = parameters.get_as_int("node", 0) or 0, parameters.max_nodes
    if not 0 <= number < count <= len(ranks):
        raise errors.ConfigError(
            f"--rdzv-conf=node={number} of --nnodes={count}: region `{region}` has "
            f"{len(ranks)} ranks"
        )
    rank = ranks[number * len(ranks) // count]
    return GatewayRendezvous(attachment, RendezvousAgent(region, number, count), rank, parameters)


def load_rendezvous() -> Callable[[RendezvousParameters], GatewayRendezvous]:
    """Returns the function that makes handlers, for the entry point of torchrun."""
    return create_rendezvous
