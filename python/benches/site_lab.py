"""Two sites that are network namespaces, with an emulated link between them.

`landbridge wan-sim lab` makes them, which needs root. All that runs in a site reaches the other by
the link alone.
"""

import contextlib
import json
import subprocess
import tempfile
import time
from pathlib import Path

from landbridge._local_regions import find_local_regions_program

#: The sites, which are also the regions of a fabric. Ranks count through them in this order.
SITES = ("east", "west")
#: The address of each site.
ADDRESSES = {"east": "10.77.0.1", "west": "10.77.0.2"}
#: The network device of each site.
DEVICE = "wan0"
#: Fewest, usual and most bytes of a TCP socket's buffer. The system's most holds less than the link
#: has in flight.
TCP_BUFFER = "4096 1048576 268435456"
#: Seconds in which a started gateway serves trainers; an idle machine needs one.
START_LIMIT_S = 30
#: The congestion controls of TCP that the kernel has, and those that namespaces may choose.
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


class SiteLabError(Exception):
    """The sites could not be made, or a program in one of them failed."""


class SiteLab:
    """The sites `east` and `west`, and a folder for their files. A context manager.

    `link` is a `RelayLink`. `ranks` is the number of ranks of each site.
    """

    def __init__(self, link, ranks=1):
        self._link, self._ranks = link, ranks
        self._program = find_local_regions_program()
        self._closing = contextlib.ExitStack()

    def __enter__(self):
        folder = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="landbridge-"))
        self.folder = Path(folder)
        self._fabric = self.folder / "fabric.toml"
        self._fabric.write_text(self._fabric_text(), "utf-8")
        try:
            self._run(self._lab("up"))
            self._closing.callback(subprocess.run, self._lab("down"), capture_output=True)
            for site in SITES:
                for name in ("tcp_rmem", "tcp_wmem"):
                    self._set(site, f"net.ipv4.{name}={TCP_BUFFER}")
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(self, *_):
        self._closing.close()

    def command(self, site, *words):
        """Returns the command line that runs a program in a site."""
        return [*self._lab("exec"), site, "--", *map(str, words)]

    def start(self, site, *words, **options):
        """Starts a program in a site, and kills it when the sites end. Returns the process."""
        process = subprocess.Popen(self.command(site, *words), **options)
        self._closing.callback(process.wait)
        self._closing.callback(process.kill)
        return process

    def set_congestion_control(self, name):
        """Chooses the congestion control of TCP in both sites."""
        for site in SITES:
            self._set(site, f"net.ipv4.tcp_congestion_control={name}")

    def start_gateways(self):
        """Starts a gateway in each site, and waits until all serve trainers."""
        keys = self.folder / "keys"
        words = ["--fabric", self._fabric, "--out", keys, "--job=train"]
        self._run([self._program, "certs", *map(str, words)])
        for site in SITES:
            self.region_file(site).write_text(region_text(site), "utf-8")
            words = (self._program, "run", "--config", self.region_file(site))
            with open(self.folder / f"{site}.log", "wb") as log:
                self.start(site, *words, stdout=log, stderr=log)
        deadline = time.monotonic() + START_LIMIT_S
        while not all((self.folder / f"{site}.sock").exists() for site in SITES):
            if time.monotonic() > deadline:
                logs = [(self.folder / f"{site}.log").read_text("utf-8") for site in SITES]
                raise SiteLabError("a gateway does not start:\n" + "\n".join(logs))
            time.sleep(0.05)

    def region_file(self, site):
        """Returns the path of the region file of a site."""
        return self.folder / f"{site}.toml"

    def void_reason(self):
        """Returns why the emulator calls all that it has seen void, or `None`."""
        try:
            status = json.loads(self._run(self._lab("status")))
            return ", ".join(map(str, status["fidelity"]["void"])) or None
        except (SiteLabError, ValueError, KeyError):
            return "the emulator does not answer"

    def _lab(self, word):
        """Returns the command line of a command of the lab."""
        return [self._program, "wan-sim", "lab", word, str(self._fabric)]

    def _set(self, site, setting):
        """Changes a setting of the kernel in a site."""
        self._run(self.command(site, "sysctl", "-q", "-w", setting))

    def _run(self, words):
        """Returns the output of a command. Raises `SiteLabError` where it fails."""
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SiteLabError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def _fabric_text(self):
        """Returns the fabric file, by which the sites are made too."""
        link = self._link
        lines = ['name = "bench"', "mtu = 1500"]
        for site in SITES:
            lines += [f"[region.{site}]", f"ranks = {self._ranks}"]
            lines += [f"[region.{site}.gateway.{site}-0]", f'wan = "{ADDRESSES[site]}:7400"']
            lines += [f'egress = "{link.rate}"', f'ingress = "{link.rate}"']
        lines += ["[link.east-west]", f'rate = "{link.rate}"', f'rtt = "{link.rtt}"']
        return "\n".join([*lines, f'loss = "{link.loss}"', ""])


def region_text(site):
    """Returns the region file of a site."""
    lines = ['fabric = "fabric.toml"', f"[gateway.{site}-0]", f'socket = "{site}.sock"']
    lines += [f'certificate = "keys/{site}-0.pem"', f'key = "keys/{site}-0.key"']
    # Each site has a loopback device of its own.
    lines += ['ca = "keys/ca.pem"', 'memory = "1 GiB"', 'status = "127.0.0.1:9400"']
    return "\n".join([*lines, "[job.train]", 'token = "keys/train.token"', 'memory = "4 GiB"', ""])


@contextlib.contextmanager
def all_congestion_controls():
    """Lets namespaces choose every congestion control that the kernel has, for a while."""
    before = ALLOWED.read_text("ascii")
    ALLOWED.write_text(AVAILABLE.read_text("ascii"), "ascii")
    try:
        yield
    finally:
        ALLOWED.write_text(before, "ascii")
