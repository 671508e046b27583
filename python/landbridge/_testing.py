"""Two or more regions on this machine: gateways as processes, and an emulated link between
them. For the quickstart, the examples and the tests; a deployment is started by its operators.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence

from .errors import LandbridgeError

#: UDP ports that a gateway takes at most.
_LANES_MAX = 16
# Blocks of ports below 32,768; processes of neighbouring ids begin 37 blocks apart.
_FIRST_PORT = 16_384
_BLOCKS = (32_768 - _FIRST_PORT) // _LANES_MAX
_next_block = itertools.count(37 * os.getpid())
_START_PATIENCE_S = 30.0
# Becomes the program, of the same id, and leaves behind in its process group who kills that when
# the pipe to us closes: also when we are killed, and no code of ours runs any more.
_UNTIL_WE_END = 'exec 3<&0; (read -r _ <&3; kill -9 0) & exec "$0" "$@" 3<&- </dev/null'


class LabError(LandbridgeError):
    """The emulated regions could not be started."""


class LinkSpec(NamedTuple):
    """The emulated long-haul link, in the words of ``landbridge wan-sim``."""

    rate: str = "500 Mbit/s"
    rtt: str = "80 ms"
    loss: str = "0 %"


class Lab:
    """Two regions, ``east`` and ``west``, in a folder that goes away with it; ``east`` alone
    where ``ranks`` has one number."""

    def __init__(
        self,
        *,
        ranks: Sequence[int] = (1, 1),
        speeds: Optional[Sequence[float]] = None,
        jobs: Sequence[str] = ("train",),
        link: Optional[LinkSpec] = None,
        program: Optional[str] = None,
    ) -> None:
        self.program = program or find_program()
        self._folder = tempfile.TemporaryDirectory(prefix="landbridge-")
        self._closing = contextlib.ExitStack()
        self._closing.callback(self._folder.cleanup)
        self.folder = Path(self._folder.name)
        self.ranks = dict(zip(("east", "west"), ranks))
        self._jobs = list(jobs)
        self._link = link
        self._processes: Dict[str, subprocess.Popen[bytes]] = {}
        self._ports = [_free_block() for _ in range(3)]
        self._status = {name: _free_block() for name in self.ranks}
        self._write_configs(list(speeds or [1.0] * sum(ranks)))
        made = [f"--job={job}" for job in self._jobs]
        fabric, keys = self.folder / "fabric.toml", self.folder / "keys"
        self._run("certs", "--fabric", str(fabric), "--out", str(keys), *made)

    def __enter__(self) -> Lab:
        try:
            if self._link is not None:
                self._start_relay(self._link)
            for name in self.ranks:
                self.start(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process, then removes the folder."""
        for name in list(self._processes):
            self.kill(name)
        self._closing.close()

    def config(self, region: str) -> Path:
        """The region's file."""
        return self.folder / f"{region}.toml"

    def config_of(self, rank: int) -> Path:
        """The file of the region that a rank is in."""
        return self.config("east" if rank < self.ranks["east"] else "west")

    def start(self, region: str) -> None:
        """Starts a region's gateway, and waits until it serves trainers."""
        self._spawn(region, "run", "--config", str(self.config(region)))
        path = f"http://127.0.0.1:{self._status[region]}/healthz"
        deadline = time.monotonic() + _START_PATIENCE_S
        while not (_answers(path) and (self.folder / f"{region}.sock").exists()):
            if self._processes[region].poll() is not None or time.monotonic() > deadline:
                raise LabError(f"the gateway of {region} did not start:\n{self.log(region)}")
            time.sleep(0.02)

    def kill(self, name: str) -> None:
        """Kills a region's gateway, or the ``relay``."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        assert process.stdin is not None
        # Ends who waited for it.
        process.stdin.close()

    def log(self, name: str) -> str:
        """What a process has said."""
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")

    def _run(self, *arguments: str) -> None:
        done = subprocess.run([self.program, *arguments], capture_output=True, check=False)
        if done.returncode:
            text = done.stderr.decode("utf-8", "replace")
            raise LabError(f"`landbridge {' '.join(arguments)}` failed: {text}")

    def _spawn(self, name: str, *arguments: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                ["sh", "-c", _UNTIL_WE_END, self.program, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                # Ctrl-C is for the trainer, which ends its gateways itself.
                start_new_session=True,
            )

    def _start_relay(self, link: LinkSpec) -> None:
        relay, west = self._ports[2], self._ports[1]
        forwards: List[str] = []
        for lane in range(_LANES_MAX):
            forwards += ["--forward", f"127.0.0.1:{relay + lane}=127.0.0.1:{west + lane}"]
        words = ["--rate", link.rate, "--rtt", link.rtt, "--loss", link.loss]
        self._spawn("relay", "wan-sim", "relay", *words, "--names", "east,west", *forwards)

    def _write_configs(self, speeds: List[float]) -> None:
        link = self._link or LinkSpec("4 Gbit/s", "1 ms", "0 %")
        east, west, relay = self._ports
        wan = {"east": east, "west": west if self._link is None else relay}
        fabric = ['name = "lab"', "mtu = 1500"]
        for name, ranks in self.ranks.items():
            own, speeds = speeds[:ranks], speeds[ranks:]
            fabric += [f"[region.{name}]", f"ranks = {ranks}", f"speeds = {own}"]
            fabric += [f"[region.{name}.gateway.{name}-0]", f'wan = "127.0.0.1:{wan[name]}"']
            fabric += [f'egress = "{link.rate}"', f'ingress = "{link.rate}"']
        if len(self.ranks) > 1:
            fabric += ["[link.east-west]", f'rate = "{link.rate}"', f'rtt = "{link.rtt}"']
            fabric += [f'loss = "{link.loss}"']
        (self.folder / "fabric.toml").write_text("\n".join([*fabric, ""]), "utf-8")
        for name, listen in zip(self.ranks, (east, west)):
            self._write_region(name, listen)

    def _write_region(self, name: str, listen: int) -> None:
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
        self.config(name).write_text("\n".join([*lines, ""]), "utf-8")


def find_program() -> str:
    """The daemon: what ``LANDBRIDGE_BIN`` names, or the one on the PATH. Raises ``LabError``."""
    program = os.environ.get("LANDBRIDGE_BIN") or shutil.which("landbridge")
    if not program:
        raise LabError("no `landbridge` on the PATH; `pip install .` puts it there")
    return program


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _free_block() -> int:
    """The first of a block of UDP ports, free for TCP as well.

    No block is given twice, and they are below those that Linux hands to whoever asks for any,
    so that nobody takes one in between.
    """
    for _ in range(_BLOCKS):
        first = _FIRST_PORT + next(_next_block) % _BLOCKS * _LANES_MAX
        if _all_free(first):
            return first
    raise LabError("no free ports on loopback")


def _all_free(first: int) -> bool:
    with contextlib.ExitStack() as stack:
        for port in range(first, first + _LANES_MAX):
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
