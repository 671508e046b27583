"""Limits of the system: the tightest is named with its remedy before the kernel kills for it."""

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from landbridge import errors
from landbridge._config import program, region_file
from landbridge._local_regions import LocalRegions
from landbridge._memory import arena, host_limits
from landbridge._protocol import credential_file
from landbridge._rounding import round_both

MIB = 1 << 20


def write_files(root, files):
    """Writes the files of a system below a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


HOST = {"proc/meminfo": "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n"}


def test_the_memory_of_the_host_is_a_limit(tmp_path):
    write_files(tmp_path, HOST)
    limit = host_limits.tightest_host_limit(tmp_path)
    assert (limit.name, limit.available) == ("the host's memory", 2048 * MIB)


@pytest.mark.parametrize("at", ["service/", ""])
def test_a_version_2_cgroup_leaves_what_it_does_not_use(tmp_path, at):
    """The limit is that of the process's cgroup, or of one around it."""
    cgroup = {
        "proc/self/cgroup": "0::/service/trainer\n",
        "sys/fs/cgroup/service/trainer/memory.max": "max\n",
        "sys/fs/cgroup/service/trainer/memory.current": "1\n",
        f"sys/fs/cgroup/{at}memory.max": f"{200 * MIB}\n",
        f"sys/fs/cgroup/{at}memory.current": f"{100 * MIB}\n",
        f"sys/fs/cgroup/{at}memory.stat": f"anon 5\ninactive_file {20 * MIB}\nactive_file 0\n",
    }
    write_files(tmp_path, {**HOST, **cgroup})
    limit = host_limits.tightest_host_limit(tmp_path)
    assert limit.available == 120 * MIB, "the page cache can be reclaimed"
    assert limit.name.startswith(f"memory.max of cgroup /{at}".rstrip("/"))


def test_a_cgroup_that_is_slowed_has_a_limit_too(tmp_path):
    cgroup = {
        "proc/self/cgroup": "0::/service\n",
        "sys/fs/cgroup/service/memory.max": f"{300 * MIB}\n",
        "sys/fs/cgroup/service/memory.high": f"{200 * MIB}\n",
        "sys/fs/cgroup/service/memory.current": f"{50 * MIB}\n",
    }
    write_files(tmp_path, {**HOST, **cgroup})
    limit = host_limits.tightest_host_limit(tmp_path)
    assert (limit.name, limit.available) == (
        "memory.high of cgroup /service, which is 200 MiB",
        150 * MIB,
    )


def test_limits_on_threads_are_named_with_their_values(tmp_path):
    cgroup = {
        "proc/self/cgroup": "3:pids:/service\n",
        "sys/fs/cgroup/pids/service/pids.max": "9\n",
        "sys/fs/cgroup/pids/service/pids.current": "8\n",
    }
    write_files(tmp_path, cgroup)
    named = host_limits.host_limits_on_threads(tmp_path)
    assert named[0].startswith("pids.max of cgroup /service is 9, of which 8 are in use"), named


def test_a_version_1_container_is_limited_by_its_visible_root(tmp_path):
    folder = "sys/fs/cgroup/memory"
    cgroup = {
        "proc/self/cgroup": "4:memory:/docker/8ff97f\n3:cpuset:/docker/8ff97f\n0::/\n",
        f"{folder}/memory.limit_in_bytes": f"{200 * MIB}",
        f"{folder}/memory.usage_in_bytes": f"{150 * MIB}",
        f"{folder}/memory.stat": f"total_inactive_file {MIB}\ntotal_active_file {MIB}\n",
    }
    write_files(tmp_path, {**HOST, **cgroup})
    assert host_limits.tightest_host_limit(tmp_path).available == 52 * MIB
    write_files(tmp_path, {f"{folder}/memory.limit_in_bytes": "9223372036854771712"})
    assert host_limits.tightest_host_limit(tmp_path).name == "the host's memory"


def test_a_system_without_proc_has_limits_that_can_be_read(tmp_path):
    assert host_limits.tightest_host_limit(tmp_path) is None
    cgroup = {
        "sys/fs/cgroup/memory.max": f"{200 * MIB}",
        "sys/fs/cgroup/memory.current": f"{50 * MIB}",
    }
    write_files(tmp_path, cgroup)
    assert host_limits.tightest_host_limit(tmp_path).available == 150 * MIB


def test_an_arena_above_the_tightest_limit_names_it(monkeypatch):
    limit = host_limits.HostMemoryLimit("memory.max of cgroup /x, which is 200", 100, "raise it")
    monkeypatch.setattr(host_limits, "tightest_host_limit", lambda: limit)
    with pytest.raises(errors.ArenaFull, match="only 100 B are available by memory.max of cg"):
        arena.Arena(101)


def test_a_limit_on_pages_counts_the_tables_of_an_arena():
    """The rule is that of Rust's client, in ``gateway/src/limits``."""
    limit = host_limits.HostMemoryLimit("memory.max", (128 + 1 + 4) * MIB, "raise it", True)
    assert limit.arena_bytes == 128 * MIB
    assert limit._replace(available=4 * MIB).arena_bytes == 0
    assert limit._replace(counts_pages=False).arena_bytes == limit.available


def test_sizes_that_are_compared_look_different():
    assert round_both(300 * MIB, 1) == ("300 MiB", "1 B")
    assert round_both(300 * MIB, 300 * MIB + 1) == ("314572800 B", "314572801 B")


@pytest.mark.parametrize(
    ("kind", "value", "error", "words"),
    [
        ("RLIMIT_AS", "vm + (64 << 20)", "ArenaFull", "ulimit -v"),
        ("RLIMIT_FSIZE", "1 << 20", "ArenaFull", "ulimit -f"),
        ("RLIMIT_NOFILE", "len(os.listdir('/proc/self/fd')) - 1", "LimitReached", "ulimit -n"),
    ],
)
def test_limits_of_a_process_are_errors_of_this_package(kind, value, error, words):
    script = f"""
import os, resource
import landbridge
from landbridge._memory.arena import Arena
vm = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = {value}
resource.setrlimit(resource.{kind}, (limit, limit))
try:
    Arena(256 << 20)
except landbridge.{error} as error:
    assert {words!r} in str(error), error
else:
    raise AssertionError("no error")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_a_refused_thread_names_the_limits():
    script = """
import resource, threading
import landbridge
from landbridge._memory.host_limits import start_thread_within_host_limits
vm = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (vm + (1 << 20), vm + (1 << 20)))
try:
    start_thread_within_host_limits(threading.Thread(target=print, name="reader"))
except landbridge.LimitReached as error:
    assert "no thread reader" in str(error) and "ulimit -v" in str(error), error
else:
    raise AssertionError("no error")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_a_trainer_needs_none_of_the_other_limits():
    script = """
import resource
from landbridge import connect
from landbridge._local_regions import LocalRegions
with LocalRegions(ranks=(1,)) as regions:
    for name in ("CORE", "MEMLOCK", "MSGQUEUE", "SIGPENDING", "NICE", "RTPRIO", "RSS"):
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (0, 0))
    with connect(config=regions.region_file("east"), rank=0, arena="1 MiB", timeout=60) as group:
        numbers = memoryview(bytearray(8)).cast("q")
        numbers[0] = 7
        assert group.all_reduce(numbers, "sum")[0] == 7
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


class Cgroup:
    """A memory cgroup of the test's own, of the version that the machine has."""

    def __init__(self, limit):
        root = Path("/sys/fs/cgroup")
        is_v2 = (root / "cgroup.controllers").exists()
        self.folder = (root if is_v2 else root / "memory") / f"landbridge-python-{os.getpid()}"
        if is_v2:
            with contextlib.suppress(OSError):
                (root / "cgroup.subtree_control").write_text("+memory")
        try:
            self.folder.mkdir()
            name = "memory.max" if is_v2 else "memory.limit_in_bytes"
            (self.folder / name).write_text(str(limit))
        except OSError as error:
            self.remove()
            pytest.skip(f"no cgroup with memory: {error}")

    def run(self, script):
        """Runs a Python script inside. Returns its result."""
        text = f"open({str(self.folder / 'cgroup.procs')!r}, 'w').write('0')\n{script}"
        return run_script(text)

    def remove(self):
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def run_script(text):
    """Runs a Python script with this package. Returns its result."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True
    )


@pytest.fixture
def cgroup():
    """A cgroup of 200 MiB that a process finds as its own."""
    made = Cgroup(200 * MIB)
    try:
        inside = "from landbridge._memory import host_limits; print(host_limits.tightest_host_limit().name)"
        found = made.run(inside).stdout
        if made.folder.name not in found:
            pytest.skip(f"processes do not see their cgroup: {found}")
        yield made
    finally:
        made.remove()


@pytest.mark.parametrize("below_kib", [-1024, 0, 64, 1024, 4096, 8192])
def test_an_arena_at_the_edge_of_a_cgroup_ends_nobody(below_kib, cgroup):
    """The arena ends so far below the memory that is available."""
    script = f"""
import landbridge
from landbridge._memory import arena, host_limits
from landbridge._protocol import credential_file
nbytes = host_limits.tightest_host_limit().available - ({below_kib} << 10)
try:
    made = arena.Arena(nbytes)
except landbridge.ArenaFull as error:
    print("refused", error)
else:
    made.allocate_slot(nbytes).view()[-1] = 1
    print("works")
"""
    done = cgroup.run(script)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout.startswith("works" if below_kib >= 8192 else "refused"), done.stdout
    assert "cgroup" in done.stdout or below_kib >= 8192


#: A script that connects to a running region under a limit, and prints how that ends.
CONNECTING = """
import os, resource, sys
import landbridge
vm = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
descriptors = len(os.listdir("/proc/self/fd")) - 1
limit = {limit}
resource.setrlimit(resource.{kind}, (limit, limit))
try:
    landbridge.connect(config={config!r}, rank=0, arena="1 MiB", timeout=60).close()
except (landbridge.LimitReached, landbridge.ArenaFull) as error:
    assert {words!r} in str(error), error
    print("refused")
else:
    print("works")
"""


def connect_under(regions, kind, limit, words):
    """Returns how `connect` ends under a limit, an expression."""
    config = str(regions.region_file("east"))
    done = run_script(CONNECTING.format(kind=kind, limit=limit, words=words, config=config))
    assert done.returncode == 0, (limit, done.returncode, done.stderr)
    return done.stdout.strip()


def test_connect_names_every_limit_that_it_meets():
    with LocalRegions(ranks=(1,)) as regions:
        for free in range(20):
            ended = connect_under(regions, "RLIMIT_NOFILE", f"descriptors + {free}", "ulimit -n")
            if ended == "works":
                break
        assert 4 <= free < 19, "it needs a few descriptors"
        for mib in (1, 4, 16, 64):
            connect_under(regions, "RLIMIT_AS", f"vm + ({mib} << 20)", "ulimit -v")


def test_limits_without_memory_to_read_them_are_left_out(monkeypatch):
    def read_nothing(*_):
        raise MemoryError

    monkeypatch.setattr(Path, "read_text", read_nothing)
    with pytest.raises(errors.LimitReached, match="no memory left"):
        with host_limits.named_host_limits():
            raise MemoryError


@pytest.mark.parametrize(
    ("failure", "named"),
    [
        (MemoryError(), True),
        (SystemError("error return without exception set"), True),
        (SystemError("bad argument to internal function"), False),
    ],
)
def test_memory_that_ends_within_python_is_named(failure, named):
    with pytest.raises(errors.LimitReached if named else SystemError):
        with host_limits.named_host_limits():
            raise failure


def test_a_limit_of_no_descriptors_ends_every_wait():
    """The socket cannot be polled. The thread that reads would end, and the call would wait on."""
    script = """
import resource
import landbridge
group = landbridge.connect(config={config!r}, rank=0, arena="1 MiB", timeout=60)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
try:
    group.all_reduce(bytearray(8), "sum", timeout=60)
except landbridge.GatewayLost as failure:
    assert "ulimit -n" in str(failure), failure
else:
    raise AssertionError("no error")
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
group.recover(timeout=60)
group.all_reduce(bytearray(8), "sum", timeout=60)
"""
    with LocalRegions(ranks=(1,)) as regions:
        done = run_script(script.format(config=str(regions.region_file("east"))))
    assert done.returncode == 0 and "Exception in thread" not in done.stderr, done.stderr


def test_a_refused_process_names_the_limits(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(program.subprocess, "run", refuse)
    monkeypatch.setattr(host_limits, "host_limits_on_threads", lambda: ["ulimit -u is 3"])
    monkeypatch.setenv("LANDBRIDGE_BIN", "/bin/true")
    with pytest.raises(errors.LimitReached, match="raise the limit that is met: ulimit -u is 3"):
        program.read_config_by_program(tmp_path / "east.toml")


def test_a_program_ended_by_a_signal_names_the_limits(monkeypatch, tmp_path):
    script = tmp_path / "landbridge"
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    script.chmod(0o755)
    monkeypatch.setenv("LANDBRIDGE_BIN", str(script))
    with pytest.raises(errors.LimitReached, match="ended by signal 9; limits of this process: "):
        program.read_config_by_program(tmp_path / "east.toml")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("libc.so.6: failed to map segment from shared object", "limits of this process: "),
        ("libm.so.6: cannot allocate memory in static TLS block", "limits of this process: "),
        ("libgcc_s.so.1: cannot open shared object file: Error 24", "ulimit -n"),
    ],
)
def test_a_program_that_cannot_be_loaded_names_the_limit(monkeypatch, tmp_path, reason, words):
    script = tmp_path / "landbridge"
    loader = f"landbridge: error while loading shared libraries: {reason}"
    script.write_text(f"#!/bin/sh\necho '{loader}' >&2\nexit 127\n")
    script.chmod(0o755)
    monkeypatch.setenv("LANDBRIDGE_BIN", str(script))
    with pytest.raises(errors.LimitReached, match=words):
        program.read_config_by_program(tmp_path / "east.toml")


def test_a_token_without_a_descriptor_is_a_limit(monkeypatch, tmp_path):
    def refuse(_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(credential_file, "check_credential_file", refuse)
    with pytest.raises(errors.LimitReached, match="ulimit -n"):
        region_file.read_region_file_token(tmp_path / "train.token")
