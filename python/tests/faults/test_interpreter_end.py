"""Calls while the interpreter ends, as from a ``__del__`` that runs then."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Limit on the life of a script, in seconds: far above its usual time.
SCRIPT_S = 60
#: A script that makes calls when Python drops its names, and prints a line for each outcome.
SCRIPT = """
import sys, numpy, landbridge
from stand_in_gateway import attach_group, ready

group, gateway = attach_group()
done = group.all_reduce_async(memoryview(bytearray(8)).cast("d"))
gateway.send(ready(gateway.receive()))
assert done.wait() is not None
array, buffer = numpy.ones(3), memoryview(bytearray(8)).cast("d")
late, commit = group.all_reduce_async(buffer), group.commit_async(1)
lock, exchange, work = group._state._lock, None, None
PREPARE


class Late:
    def __init__(self, *names):
        self.names = names

    def __del__(self, write=sys.stdout.write, is_ending=sys.is_finalizing):
        assert is_ending()
        group, gateway, landbridge, array, buffer, late, commit, done, exchange, work = self.names
        for call in [CALLS]:
            try:
                call()
                write("returned\\n")
            except landbridge.LandbridgeError as error:
                write(f"{type(error).__name__}: {error}\\n")
            except BaseException as error:
                write(f"raw {type(error).__name__}: {error}\\n")


last = Late(group, gateway, landbridge, array, buffer, late, commit, done, exchange, work)
"""
#: Calls that would post or wait.
WAITING_CALLS = [
    "group.all_reduce(array)",
    "group.all_reduce(buffer)",
    "group.reduce_async(array)",
    "group.broadcast(array)",
    "group.all_gather(array)",
    "group.all_to_all_async(array)",
    "group.barrier()",
    "group.commit(5)",
    "group.empty(3, 'f4')",
    "group.send(array, 0)",
    "group.receive(array, 0)",
    "group.agree(1)",
    "group.recover()",
    "group.finish()",
    "group.split(0)",
    "group.new_group([0])",
    "group.store.set('key', 'value')",
    "late.wait()",
    "late.wait_free(1)",
    "commit.wait()",
    "landbridge.connect(config='none.toml', rank=0)",
]


#: The start of a process group's exchange, with a call under way.
BEGIN_EXCHANGE = """
from landbridge.torch._c10d.arena_room import ArenaRoom
from landbridge.torch._c10d.exchange import Exchange

exchange = Exchange(group, ArenaRoom(group._arena, 1 << 10))
work = exchange.start_call([], lambda post: post(group.barrier_async))
"""


def outcomes_of(calls, prepare=""):
    """Returns a line for each of some calls that a program makes while its interpreter ends."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    listed = ", ".join(f"lambda: {call}" for call in calls)
    script = SCRIPT.replace("CALLS", listed).replace("PREPARE", prepare)
    words = [sys.executable, "-c", script]
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=SCRIPT_S, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout.splitlines()


def test_calls_while_the_interpreter_ends_raise_closed():
    outcomes = outcomes_of(WAITING_CALLS)
    assert len(outcomes) == len(WAITING_CALLS)
    for call, outcome in zip(WAITING_CALLS, outcomes):
        assert outcome.startswith("Closed: the interpreter is ending"), (call, outcome)


def test_calls_that_wait_for_nothing_return_while_the_interpreter_ends():
    calls = ["done.wait()", "late.is_ready()", "group.close()", "group.close()"]
    assert outcomes_of(calls) == ["returned"] * 4


def test_close_needs_no_lock_that_a_stopped_thread_holds():
    assert outcomes_of(["group.close()"], "lock.acquire()") == ["returned"]


def test_a_process_group_waits_for_no_thread_that_stopped():
    pytest.importorskip("torch")
    calls = ["work.wait()", "exchange.start_call([], None)", "exchange.start_send(0, 0, 1)"]
    outcomes = outcomes_of([*calls, "exchange.abort()", "exchange.close()"], BEGIN_EXCHANGE)
    for call, outcome in zip(calls, outcomes):
        assert outcome.startswith("Closed: the interpreter is ending"), (call, outcome)
    assert outcomes[3:] == ["returned"] * 2
