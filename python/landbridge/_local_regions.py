"""Regions on this machine: gateways as processes, and an emulated link between two of them.

The quickstart, the examples, the benchmarks and the tests use them. Operators start a real
deployment with ``landbridge run``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ._config import program
from .errors import LandbridgeError

#: 16 UDP ports: the length of a block of ports for one gateway, one port for each of its at most 16
#: lanes.
_GATEWAY_PORTS_MAX = 16
#: UDP port 16,384: the lowest in any block of ports for a gateway, a chosen number. All blocks are
#: below 32,768, from where Linux chooses ports for others.
_FIRST_BLOCK_PORT = 16_384
#: 1,024 blocks of ports from which gateways can choose, each of ``_GATEWAY_PORTS_MAX`` ports. Where
#: none is free ``LocalRegionsError`` is raised.
_PORT_BLOCKS = (32_768 - _FIRST_BLOCK_PORT) // _GATEWAY_PORTS_MAX
# The sockets that claim blocks, which a forked process must not keep.
_port_claims: weakref.WeakSet[socket.socket] = weakref.WeakSet()
# Processes with consecutive ids begin 37 blocks apart, so that two of them rarely try one block.
_port_block_numbers = itertools.count(37 * os.getpid())
#: The names of the regions, by their number from one to three. Ranks count through the regions in
#: this order, which is the alphabetical one.
_REGION_NAMES = {1: ("east",), 2: ("east", "west"), 3: ("east", "north", "west")}
#: 30 s: the longest wait until a started gateway serves trainers, a chosen time. Then
#: ``LocalRegionsError`` is raised with the gateway's log.
_START_TIMEOUT_S = 30.0
#: The script for ``sh`` that runs a program until this process ends. ``sh`` becomes the program,
#: with one process id. A process that it leaves in its process group kills the group when the pipe
#: to this process closes, even if this process is killed.
_RUN_UNTIL_PARENT_ENDS = 'exec 3<&0; (read -r _ <&3; kill -9 0) & exec "$0" "$@" 3<&- </dev/null'


class LocalRegionsError(LandbridgeError):
    """The regions on this machine could not be started."""


class RelayLink(NamedTuple):
    """An emulated long-haul link. Values have the form that ``landbridge wan-sim`` takes."""

    rate: str = "500 Mbit/s"
    rtt: str = "80 ms"
    loss: str = "0 %"


class LocalRegions:
    """The regions ``east`` and ``west`` with one gateway each, in a temporary folder. With a third
    number of ranks there is a region ``north`` as well.

    A context manager: it starts the gateways, and on exit ends them and removes the folder.

    Attributes:
        program: The path of the ``landbridge`` program.
        folder: The folder with config files, keys, sockets and logs.
        ranks: The number of ranks of each region.
    """

    def __init__(
        self,
        *,
        ranks: Sequence[int] = (1, 1),
        speeds: Sequence[float] | None = None,
        jobs: Sequence[str] = ("train",),
        link: RelayLink | None = None,
        program: str | None = None,
    ) -> None:
        """Writes config files and keys.

        Args:
            ranks: The number of ranks of ``east`` and of ``west``. One number makes ``east`` only,
                three make ``east``, ``north`` and ``west``.
            speeds: The relative speed of each rank.
            jobs: The names of the jobs.
            link: The emulated link of two regions. Without one the gateways are connected over
                loopback.
            program: The path of the ``landbridge`` program.
        """
        self.program = program or find_local_regions_program()
        self._folder = tempfile.TemporaryDirectory(prefix="landbridge-")
        self._closing = contextlib.ExitStack()
        self._closing.callback(self._folder.cleanup)
        self.folder = Path(self._folder.name)
        self.ranks = dict(zip(_REGION_NAMES[len(ranks)], ranks))
        if link is not None and len(self.ranks) > 2:
            raise LocalRegionsError("an emulated link joins two regions, not three")
        self._jobs = list(jobs)
        self._link = link
        #: The gateways by region, and the `relay` that emulates the link.
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = {name: self.claim_port_block() for name in (*_REGION_NAMES[3], "relay")}
        self._status = {name: self.claim_port_block() for name in self.ranks}
        self._write_config_files(list(speeds or [1.0] * sum(ranks)))
        made = [f"--job={job}" for job in self._jobs]
        fabric, keys = self.folder / "fabric.toml", self.folder / "keys"
        self._run_program("certs", "--fabric", str(fabric), "--out", str(keys), *made)

    def __enter__(self) -> LocalRegions:
        """Starts the relay and all gateways. Ends them again if one does not start."""
        try:
            if self._link is not None:
                self._start_relay(self._link)
            for name in self.ranks:
                self.start_gateway(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the gateways and the relay, and removes the folder."""
        self.close()

    def close(self) -> None:
        """Ends the gateways and the relay, and removes the folder."""
        for name in list(self._processes):
            self.kill_process(name)
        self._closing.close()

    def claim_port_block(self) -> int:
        """Returns the first port of a free block of UDP ports. The first port is free for TCP as
        well.

        The block stays claimed until ``close``: nobody else gets it while a gateway is down.
        """
        first, claim = _find_local_port_block()
        self._closing.callback(claim.close)
        return first

    def region_file(self, region: str) -> Path:
        """Returns the path of a region's config file."""
        return self.folder / f"{region}.toml"

    def region_file_of_rank(self, rank: int) -> Path:
        """Returns the path of the config file of a rank's region."""
        for region, count in self.ranks.items():
            if rank < count:
                return self.region_file(region)
            rank -= count
        raise LocalRegionsError("there are fewer ranks")

    def start_gateway(self, region: str) -> None:
        """Starts the gateway of a region, and waits until it serves trainers. Raises
        ``LocalRegionsError`` if it ends, or after 30 s."""
        self._spawn_process(region, "run", "--config", str(self.region_file(region)))
        path = f"http://127.0.0.1:{self._status[region]}/healthz"
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not (_answers_local_http(path) and (self.folder / f"{region}.sock").exists()):
            if self._processes[region].poll() is not None or time.monotonic() > deadline:
                raise LocalRegionsError(
                    f"the gateway of {region} did not start:\n{self.read_log(region)}"
                )
            time.sleep(0.02)

    def stop_gateway(self, region: str) -> int:
        """Ends the gateway of a region by SIGTERM, as a restart does. Returns its exit code."""
        process = self._processes[region]
        process.terminate()
        code = process.wait()
        self.kill_process(region)
        return code

    def kill_process(self, name: str) -> None:
        """Kills the gateway of a region, or the ``relay``."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        assert process.stdin is not None
        # Ends the process that watches this pipe.
        process.stdin.close()

    def stop_relay(self) -> dict[str, Any]:
        """Ends the relay, and returns its report. The regions have no link then. Raises
        ``LocalRegionsError`` where the relay has printed no report."""
        process = self._processes["relay"]
        process.terminate()
        process.wait()
        self.kill_process("relay")
        lines = (self.folder / "relay.out").read_text("utf-8").splitlines()
        try:
            report: dict[str, Any] = json.loads(lines[-1])
        except (IndexError, ValueError) as error:
            text = f"the relay gave no report: {error}\n{self.read_log('relay')}"
            raise LocalRegionsError(text) from error
        return report

    def process_ids(self) -> list[int]:
        """Returns the numbers of the processes of the gateways and of the relay."""
        return [process.pid for process in self._processes.values()]

    def read_log(self, name: str) -> str:
        """Returns the text of the log of a region's gateway, or of the ``relay``."""
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")

    def _run_program(self, *arguments: str) -> None:
        """Runs the ``landbridge`` program to its end. Raises ``LocalRegionsError`` with its output
        if it fails."""
        done = subprocess.run([self.program, *arguments], capture_output=True, check=False)
        if done.returncode:
            text = done.stderr.decode("utf-8", "replace")
            raise LocalRegionsError(f"`landbridge {' '.join(arguments)}` failed: {text}")

    def _spawn_process(self, name: str, *arguments: str) -> None:
        """Starts the ``landbridge`` program in the background as ``name``, with a file for its log
        and one for its output."""
        log_path, out_path = (self.folder / f"{name}.{end}" for end in ("log", "out"))
        with open(log_path, "ab") as log, open(out_path, "ab") as out:
            self._processes[name] = subprocess.Popen(
                ["sh", "-c", _RUN_UNTIL_PARENT_ENDS, self.program, *arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=log,
                # Ctrl-C must reach only the trainer, which ends its gateways itself.
                start_new_session=True,
            )

    def _start_relay(self, link: RelayLink) -> None:
        """Starts ``landbridge wan-sim relay``, which emulates the link before every UDP port of the
        gateway of ``west``, to which the one of ``east`` connects."""
        relay, west = self._ports["relay"], self._ports["west"]
        forwards: list[str] = []
        for lane in range(_GATEWAY_PORTS_MAX):
            forwards += ["--forward", f"127.0.0.1:{relay + lane}=127.0.0.1:{west + lane}"]
        words = ["--json", "--rate", link.rate, "--rtt", link.rtt, "--loss", link.loss]
        self._spawn_process("relay", "wan-sim", "relay", *words, "--names", "east,west", *forwards)

    def _write_config_files(self, speeds: list[float]) -> None:
        """Writes the fabric file and a config file for each region. ``speeds`` has the relative
        speed of each rank, region by region."""
        link = self._link or RelayLink("4 Gbit/s", "1 ms", "0 %")
        wan = {name: self._ports[name] for name in self.ranks}
        if self._link is not None and "west" in wan:
            wan["west"] = self._ports["relay"]
        fabric = ['name = "lab"', "mtu = 1500"]
        for name, ranks in self.ranks.items():
            own, speeds = speeds[:ranks], speeds[ranks:]
            fabric += [f"[region.{name}]", f"ranks = {ranks}", f"speeds = {own}"]
            fabric += [f"[region.{name}.gateway.{name}-0]", f'wan = "127.0.0.1:{wan[name]}"']
            fabric += [f'egress = "{link.rate}"', f'ingress = "{link.rate}"']
        for one, other in itertools.combinations(self.ranks, 2):
            fabric += [f"[link.{one}-{other}]", f'rate = "{link.rate}"', f'rtt = "{link.rtt}"']
            fabric += [f'loss = "{link.loss}"']
        (self.folder / "fabric.toml").write_text("\n".join([*fabric, ""]), "utf-8")
        for name in self.ranks:
            self._write_region_file(name, self._ports[name])

    def _write_region_file(self, name: str, listen: int) -> None:
        """Writes the config file of a region whose gateway listens at the UDP port ``listen``."""
        lines = [
            'fabric = "fabric.toml"',
            f"[gateway.{name}-0]",
            f'socket = "{name}.sock"',
            f'listen = "127.0.0.1:{listen}"',
            f'status = "127.0.0.1:{self._status[name]}"',
            f'certificate = "keys/{name}-0.pem"',
            f'key = "keys/{name}-0.key"',
            'ca = "keys/ca.pem"',
            'memory = "1 GiB"',
        ]
        for job in self._jobs:
            lines += [f"[job.{job}]", f'token = "keys/{job}.token"', 'memory = "4 GiB"']
        self.region_file(name).write_text("\n".join([*lines, ""]), "utf-8")


def find_local_regions_program() -> str:
    """Returns the path of the ``landbridge`` program: ``LANDBRIDGE_BIN``, the one that was
    installed with this package, or the one on the PATH.

    Raises:
        LocalRegionsError: There is none.
    """
    found = program.find_landbridge_program()
    if not found:
        raise LocalRegionsError(
            "no `landbridge` program on the PATH; install it with `pip install .`"
        )
    return found


def _answers_local_http(url: str) -> bool:
    """Returns whether a GET of the URL succeeds within 1 s."""
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _find_local_port_block() -> tuple[int, socket.socket]:
    """Returns the first port of a free block, and the socket that claims the block while it is
    open.

    This process gets no block again before it has tried all others. Linux never chooses these
    ports itself, and no other process that looks for blocks gets one that is claimed.
    """
    for _ in range(_PORT_BLOCKS):
        first = _FIRST_BLOCK_PORT + next(_port_block_numbers) % _PORT_BLOCKS * _GATEWAY_PORTS_MAX
        claim = _claim_local_port_block(first)
        if claim is None:
            continue
        if not _are_local_ports_free(first):
            claim.close()
            continue
        _port_claims.add(claim)
        return first, claim
    raise LocalRegionsError("no free block of ports on loopback; end other local gateways")


def _close_port_claims_after_fork() -> None:
    """Closes the claims of this process's parent. Python calls it after each fork."""
    for claim in list(_port_claims):
        claim.close()


os.register_at_fork(after_in_child=_close_port_claims_after_fork)


def _claim_local_port_block(first: int) -> socket.socket | None:
    """Claims the block from ``first`` on for as long as the returned socket is open. Returns
    ``None`` where another process has claimed it. The Rust programs claim blocks by the same
    abstract address."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0landbridge-ports-{first}")
    except OSError:
        claim.close()
        return None
    return claim


def _are_local_ports_free(first: int) -> bool:
    """Returns whether a block of UDP ports from ``first`` on, and the TCP port ``first``, are free
    on loopback."""
    with contextlib.ExitStack() as stack:
        for port in range(first, first + _GATEWAY_PORTS_MAX):
            probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
        tcp = stack.enter_context(socket.socket())
        try:
            tcp.bind(("127.0.0.1", first))
        except OSError:
            return False
    return True
