"""Fixtures: gateways of two regions on this machine, and ranks attached to them.

The daemon is the one that LANDBRIDGE_BIN names, or the `landbridge` on the PATH. Without a daemon
the tests that need one fail.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import traceback
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

import landbridge
from landbridge._local_regions import LocalRegions
from landbridge._operations.waiting import thread_state

#: Limit on a wait of the tests, in seconds: far above their usual time, and far below the limit of
#: `call_for_all`.
DEADLINE_S = 40
#: Characters of a gateway's log that the report of a failed test ends with.
LOG_END = 8000


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the tests that take long as well")


def pytest_collection_modifyitems(config, items):
    """Skips the tests with the mark `long`, unless pytest has the option `--long`."""
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="long: cargo xtask test --long"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Adds to the report of a failed test what its gateways have logged and hold."""
    outcome = yield
    if call.excinfo is not None and call.excinfo.errisinstance(landbridge.LandbridgeError):
        for value in getattr(item, "funcargs", {}).values():
            for regions in value if isinstance(value, tuple) else (value,):
                if isinstance(regions, LocalRegions):
                    outcome.get_result().sections += region_states(regions)


def region_states(regions):
    """Returns the ends of the logs of all gateways and their dumps, as sections of a report."""
    files = [f"--config={regions.region_file(region)}" for region in regions.ranks]
    logs = [(f"log of {region}", regions.read_log(region)[-LOG_END:]) for region in regions.ranks]
    try:
        done = subprocess.run(
            [regions.program, "dump", *files],
            capture_output=True,
            check=False,
            text=True,
            timeout=DEADLINE_S,
        )
        dump = done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        dump = str(error)
    return [*logs, ("landbridge dump", dump)]


@pytest.fixture(scope="module")
def regions():
    """Running gateways of east with two ranks and west with one."""
    with LocalRegions(ranks=(2, 1), speeds=(1.0, 1.0, 2.0)) as running:
        yield running


@pytest.fixture
def groups(regions):
    """Every rank of `regions`, attached from this process."""
    with attached_groups(regions) as all_ranks:
        yield all_ranks


@pytest.fixture
def two_groups():
    """Two ranks, each in a region of its own, attached from this process."""
    with LocalRegions(ranks=(1, 1)) as running, attached_groups(running) as both:
        yield both


@pytest.fixture
def one_trainer(tmp_path):
    """A torch process group of this process alone."""
    dist = pytest.importorskip("torch.distributed")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def ctrl_c_interrupts():
    """Makes Ctrl-C interrupt tests that were started in the background too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def read_golden(name):
    """Returns the JSON lines of a golden file, which the gateway's tests write and check."""
    text = Path(__file__).with_name("golden").joinpath(name).read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


@contextlib.contextmanager
def attached_groups(regions, arena="8 MiB"):
    """Yields the groups of all ranks of some regions, attached from this process."""
    count = sum(regions.ranks.values())
    with contextlib.ExitStack() as stack:

        def attach(rank):
            config = regions.region_file_of_rank(rank)
            group = landbridge.connect(config=config, rank=rank, arena=arena, timeout=60)
            # Where another rank fails, this one must not stay attached.
            return stack.enter_context(group)

        yield call_for_all(range(count), attach)


def call_for_all(items, function):
    """Calls `function` for all items at once, each in its own thread. Returns the results."""
    results, failures = {}, []

    def call(index, item):
        try:
            results[index] = function(item)
        except BaseException as error:  # It is raised again below.
            failures.append(error)

    threads = [threading.Thread(target=call, args=pair, daemon=True) for pair in enumerate(items)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 300
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        if failures:
            # Other threads may wait for the failed one until their own timeouts.
            deadline = min(deadline, time.monotonic() + 30)
        for thread in threads:
            thread.join(0.02)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return [results[index] for index in range(len(threads))]


def exit_code_of_fork(function):
    """Returns the exit code of a forked process that calls `function`; below 0 if it hangs."""
    with warnings.catch_warnings():
        # Python warns of forks beside threads, which are the subject of the test.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        signal.alarm(DEADLINE_S // 2)
        try:
            function()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def resource_usage(readers):
    """Returns memory, descriptors and threads, once only `readers` reader threads are left."""
    deadline = time.monotonic() + DEADLINE_S
    while [thread.name for thread in threading.enumerate()].count("landbridge-reader") > readers:
        assert time.monotonic() < deadline, "a reader does not end"
        threading.Event().wait(0.01)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss": pages * os.sysconf("SC_PAGE_SIZE"),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def wait_until(predicate):
    """Waits until another thread has made a predicate true."""
    deadline = time.monotonic() + DEADLINE_S
    while not predicate():
        assert time.monotonic() < deadline, "it never comes true"
        threading.Event().wait(0.001)


def post_unread(group, *begins):
    """Begins collectives whose messages the next wait reads, not the reader thread."""
    connection = group._state.connection

    def nobody_reads():
        with connection._choosing:
            if connection._reading is None:
                connection._reading = SimpleNamespace(thread=None)
                return True

    wait_until(nobody_reads)
    thread_state.is_awaited = True
    try:
        return [begin() for begin in begins]
    finally:
        thread_state.is_awaited, connection._reading = False, None
