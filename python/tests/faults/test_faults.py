"""Lost trainers and gateways, forked processes, and expired timeouts."""

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import pytest

import landbridge
from conftest import DEADLINE_S, attached_groups, call_for_all, resource_usage
from landbridge._local_regions import LocalRegions, _claim_local_port_block

numpy = pytest.importorskip("numpy")
ONES = numpy.ones(1000, "float32")


@pytest.fixture
def own_regions():
    """Running gateways of two regions that a test may kill."""
    with LocalRegions(ranks=(1, 1)) as running:
        yield running


def test_gateways_end_with_the_process_that_started_them():
    """Gateways end even if the process is killed. Quickstart and benchmarks rely on that."""
    script = """
import sys
from landbridge._local_regions import LocalRegions, RelayLink
with LocalRegions(link=RelayLink()) as regions:
    print(regions.folder, *(process.pid for process in regions._processes.values()), flush=True)
    sys.stdin.read()
"""
    with run_python(script) as starter, contextlib.ExitStack() as stack:
        folder, *pids = starter.stdout.readline().decode().split()
        stack.callback(shutil.rmtree, folder)
        assert len(pids) == 3 and all(map(is_running, pids))
        starter.kill()
        deadline = time.monotonic() + DEADLINE_S
        while any(map(is_running, pids)):
            assert time.monotonic() < deadline, "a gateway is left behind"
            threading.Event().wait(0.01)


def test_ports_of_regions_stay_claimed_while_a_gateway_is_down():
    """Another test would take them, and the gateway could not start again."""
    with LocalRegions() as regions:
        blocks = [*regions._ports.values(), *regions._status.values()]
        regions.kill_process("east")
        assert not any(map(is_block_free, blocks))
    # Others may have claimed some of them by now.
    assert any(map(is_block_free, blocks))


def is_block_free(first):
    """Returns whether nobody has claimed a block of ports."""
    claim = _claim_local_port_block(first)
    if claim is not None:
        claim.close()
    return claim is not None


def is_running(pid):
    """Returns whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def run_python(script, *arguments):
    """Yields a process that runs a script with this package, and kills the process at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(landbridge.__file__).parents[1])},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def failure_of(operation):
    """Returns the failure of a collective, which must fail."""
    with pytest.raises(landbridge.CollectiveFailed) as raised:
        operation.wait(DEADLINE_S)
    return raised.value


def test_a_killed_gateway_is_named_and_attached_to_again(own_regions):
    with attached_groups(own_regions) as (east, west):
        under_way = east.all_reduce_async(ONES)
        kept = east.empty(1000, "float32")
        kept[:] = 7
        own_regions.kill_process("east")
        failure = failure_of(under_way)
        assert isinstance(failure, landbridge.GatewayLost) and failure.fault == "gateway"
        words = (
            "gateway lost (cause: gateway): this rank is no longer attached to its own gateway: "
        )
        assert str(failure).startswith(words)
        assert isinstance(failure, ConnectionError)
        assert "connection to the gateway ended" in str(failure)
        under_way.wait_free(DEADLINE_S)
        with pytest.raises(landbridge.GatewayLost, match="recover"):
            east.all_reduce(ONES)
        # Data that east had sent may complete this collective in the west, but not the next one.
        with pytest.raises(landbridge.CollectiveFailed) as raised:
            while True:
                west.all_reduce_async(ONES).wait(DEADLINE_S)
        kinds_in_west = (landbridge.RegionLost, landbridge.EpochEnded, landbridge.Stalled)
        assert isinstance(raised.value, kinds_in_west)

        def restart_gateway():
            time.sleep(0.5)
            own_regions.start_gateway("east")

        recoveries = [partial(east.recover, failure, 60), partial(west.recover, raised.value, 60)]
        call_for_all([restart_gateway, *recoveries], lambda call: call())
        results = call_for_all((east, west), lambda group: group.all_reduce(kept, "sum")[0])
        assert results == [14, 14], "memory from before the failure is good"


def test_a_killed_trainer_is_named_and_may_come_back(own_regions):
    """All ranks take the step of its death again, with an equal result."""
    script = f"""
import numpy, sys, landbridge
group = landbridge.connect(config={str(own_regions.region_file("west"))!r}, rank=1, arena="1 MiB")
step = int(sys.argv[1])
while True:
    print(group.all_reduce(numpy.full(4, step, "float32"), "sum")[0], flush=True)
    step += 1
    if step == 3 and len(sys.argv) > 2:
        sys.stdin.read()
"""

    with run_python(script, "1", "hold"):
        east = landbridge.connect(config=own_regions.region_file("east"), rank=0, arena="1 MiB")
        assert [take_step(east, step) for step in (1, 2)] == [2, 4]
        under_way = east.all_reduce_async(numpy.full(4, 3, "float32"), "sum")
    failure = failure_of(under_way)
    assert isinstance(failure, landbridge.RankLost) and "rank 1" in str(failure)
    with east, run_python(script, "3"):
        east.recover(failure, 60)
        assert [take_step(east, step) for step in (3, 4)] == [6, 8]


def take_step(group, step):
    """All-reduces the number of the step, and returns the sum."""
    return group.all_reduce(numpy.full(4, step, "float32"), "sum")[0]


def test_an_epoch_change_between_collectives_raises(own_regions):
    """A rank that did not notice the change would post at another place of its step."""
    with attached_groups(own_regions) as (east, west):
        call_for_all((east, west), lambda group: group.all_reduce(ONES))
        west._state.end_connection(west._state.connection, "for this test")

        def of_west():
            with pytest.raises(landbridge.GatewayLost) as raised:
                west.all_reduce(ONES)
            west.recover(raised.value, 60)

        def of_east():
            with pytest.raises(landbridge.CollectiveFailed) as raised:
                while True:
                    east.all_reduce_async(ONES).wait(DEADLINE_S)
            assert isinstance(raised.value, (landbridge.EpochEnded, landbridge.RankLost))
            east.recover(raised.value, 60)

        before = east.epoch
        call_for_all((of_west, of_east), lambda call: call())
        assert east.epoch == west.epoch > before
        assert call_for_all((east, west), lambda group: group.all_reduce(ONES, "sum")[0]) == [2, 2]


@contextlib.contextmanager
def stopped_gateway(regions, region):
    """Stops the gateway of a region by a signal. Its socket stays."""
    process = regions._processes[region]
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def raises_no_gateway():
    """Expects `NoGateway` for a gateway that is stopped, long before 30 s have passed."""
    begun = time.monotonic()
    with pytest.raises(landbridge.NoGateway, match="east.sock.* does not answer"):
        yield
    assert time.monotonic() - begun < 20, "of thirty and more seconds"


def test_a_stopped_gateway_outlasts_no_timeout(own_regions, monkeypatch):
    place = {"config": own_regions.region_file("east"), "rank": 0, "arena": "1 MiB"}
    with stopped_gateway(own_regions, "east"), raises_no_gateway():
        landbridge.connect(**place, timeout=1)
    with attached_groups(own_regions) as groups:
        with stopped_gateway(own_regions, "east"), raises_no_gateway():
            groups[0].recover(timeout=1)
        assert call_for_all(groups, recover_and_step) == [2, 2]
        barrier_async = landbridge.Group.barrier_async
        with contextlib.ExitStack() as stack, monkeypatch.context() as patch:

            def stop_and_post(group, timeout, **options):
                stack.enter_context(stopped_gateway(own_regions, "east"))
                return barrier_async(group, timeout, **options)

            patch.setattr(landbridge.Group, "barrier_async", stop_and_post)
            with raises_no_gateway():
                groups[0].recover(timeout=2)
        assert call_for_all(groups, recover_and_step) == [2, 2]


def recover_and_step(group):
    """Recovers until an all-reduce succeeds: another rank may first meet an old failure."""
    while True:
        try:
            group.recover(timeout=60)
            return group.all_reduce(ONES, "sum")[0]
        except landbridge.CollectiveFailed as failure:
            print(group.rank, failure)


def test_faults_of_the_caller_are_not_retried(own_regions):
    with attached_groups(own_regions) as groups:

        def step(group):
            with pytest.raises(landbridge.RanksDisagree) as raised:
                group.all_reduce(ONES, "sum" if group.rank else "max")
            with pytest.raises(landbridge.RanksDisagree):
                group.recover(raised.value)

        call_for_all(groups, step)


def test_a_forked_process_does_not_disturb_the_client(own_regions):
    with attached_groups(own_regions) as groups:
        east = groups[0]
        kept = east.empty(1000, "float32")
        kept[:] = 1
        under_way = east.all_reduce_async(kept, "sum")
        with warnings.catch_warnings():
            # Ignores the warning about forks and threads, which is the subject of this test.
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            os._exit(use_in_child(east, under_way))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert groups[1].all_reduce(ONES, "sum")[0] == 2
        assert under_way.wait(DEADLINE_S)[0] == 2
        assert call_for_all(groups, lambda group: group.all_reduce(ONES, "sum")[0]) == [2, 2]


def use_in_child(group, under_way):
    """Uses a group by mistake and drops it, as a DataLoader's worker may. Returns the exit code."""
    try:
        uses = [partial(group.all_reduce, ONES), partial(group.empty, 1, "f32"), group.barrier]
        for use in uses:
            with pytest.raises(landbridge.ForkedProcess):
                use()
        group.close()
        del group, under_way, uses, use
        gc.collect()
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        names = [os.readlink(link) for link in links if os.path.islink(link)]
        return any(name.startswith("socket:") for name in names)
    except BaseException:
        return 3


def test_a_dead_trainer_detaches_though_its_forked_children_live(own_regions):
    """A child that kept the socket open would keep the rank attached."""
    script = f"""
import numpy, os, sys, landbridge
group = landbridge.connect(config={str(own_regions.region_file("west"))!r}, rank=1, arena="1 MiB")
read, write = os.pipe()
if os.fork() == 0:
    print(os.getpid(), flush=True)
    os.read(read, 1)
os.read(read, 1)
"""
    east_of = partial(
        landbridge.connect, config=own_regions.region_file("east"), rank=0, arena="1 MiB"
    )
    with run_python(script) as trainer, east_of() as east:
        child = int(trainer.stdout.readline())
        under_way = east.all_reduce_async(ONES)
        trainer.kill()
        trainer.wait()
        try:
            assert isinstance(failure_of(under_way), landbridge.RankLost)
        finally:
            os.kill(child, signal.SIGKILL)


def test_ctrl_c_ends_a_wait_but_not_its_collective(own_regions, ctrl_c_interrupts):
    with attached_groups(own_regions) as (east, west):
        under_way = east.all_reduce_async(ONES, "sum")
        pressed = []

        def press_ctrl_c():
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        for wait in (under_way.wait, under_way.wait_free, east.barrier):
            timer = threading.Timer(0.3, press_ctrl_c)
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                wait()
            assert time.monotonic() - pressed[-1] < 5, "of thirty minutes"
            timer.join()
        assert west.all_reduce(ONES, "sum")[0] == 2
        assert under_way.wait(DEADLINE_S)[0] == 2
        west.barrier()


def test_a_callback_that_raises_harms_nobody_else(own_regions, caplog):
    with attached_groups(own_regions) as groups:

        def step(group):
            operation = group.all_reduce_async(ONES, "sum")
            operation.add_done_callback(lambda op: 1 / 0)
            operation.wait_free(DEADLINE_S)
            return group.all_reduce(ONES, "sum")[0]

        assert call_for_all(groups, step) == [2, 2]
    assert "ZeroDivisionError" in caplog.text


def test_a_thousand_steps_leak_nothing(own_regions):
    with attached_groups(own_regions) as groups:
        array = numpy.ones(4096, "float32")

        def steps(group, count):
            for _ in range(count):
                operation = group.all_reduce_async(array)
                out = group.empty(4096, "float32")
                operation.add_done_callback(lambda op: op.wait())
                group.all_reduce_async(array, out=out).wait(DEADLINE_S)
                operation.wait(DEADLINE_S)
            group.barrier()

        call_for_all(groups, lambda group: steps(group, 100))
        gc.collect()
        before = resource_usage(readers=2)
        call_for_all(groups, lambda group: steps(group, 1000))
        gc.collect()
        after = resource_usage(readers=2)
        call_for_all(
            groups, lambda group: group._state.wait_until(lambda: not group._state.entries, None)
        )
        assert after["descriptors"] == before["descriptors"]
        assert after["threads"] == before["threads"]
        # 2,000 results of 16 KiB for each of two ranks would take 64 MB.
        assert after["rss"] - before["rss"] < 4 << 20
        assert [group._arena.used_bytes for group in groups] == [0, 0]


def test_attaching_and_closing_leak_nothing(own_regions):
    def once():
        with attached_groups(own_regions, "1 MiB") as groups:
            call_for_all(groups, lambda group: group.all_reduce(ONES))

    once()
    gc.collect()
    before = resource_usage(readers=0)
    for _ in range(10):
        once()
    gc.collect()
    after = resource_usage(readers=0)
    assert after["descriptors"] == before["descriptors"]
    assert after["threads"] == before["threads"]


def test_a_dropped_group_detaches_once_its_work_is_done(own_regions):
    with attached_groups(own_regions) as groups:
        west = groups.pop()
        under_way = west.all_reduce_async(ONES, "sum")
        del west
        gc.collect()
        assert groups[0].all_reduce(ONES, "sum")[0] == 2
        assert under_way.wait(DEADLINE_S)[0] == 2
