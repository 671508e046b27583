"""A rank that forks while a receive, a collective and locks are under way, as a loader of data may.

Prints what each call in the forked process did, and how that process ended.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import warnings

import torch
import torch.distributed as dist

import landbridge
from landbridge.torch._c10d import world

#: Limit on the life of a forked process, in seconds.
CHILD_S = 30


def outcome(call):
    """Returns the name of the error of a call, or `returned`."""
    try:
        call()
    except landbridge.LandbridgeError as error:
        return type(error).__name__
    return "returned"


def calls_of_child(work, group):
    """Returns calls by name that a forked process makes, in their order."""
    return {
        "wait": work.wait,
        "get_future": lambda: work.get_future().wait(),
        "all_reduce": lambda: dist.all_reduce(torch.ones(3)),
        "subgroup": lambda: group.all_reduce(torch.ones(3)),
        "barrier": dist.barrier,
        "destroy": dist.destroy_process_group,
        "group close": group.close,
    }


@contextlib.contextmanager
def locked_by_another_thread(*locks):
    """Lets another thread hold some locks, as a thread may at any fork."""
    held, go_on = threading.Event(), threading.Event()

    def hold():
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        go_on.set()
        thread.join()


def main():
    dist.init_process_group("landbridge")
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    received = torch.zeros(3)
    work = dist.irecv(received, other)
    subgroup = world._worlds[0].group.new_group([0, 1])
    read, write = os.pipe()
    with locked_by_another_thread(world._lock, subgroup._posting, subgroup._state._lock):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            signal.alarm(CHILD_S)
            for name, call in calls_of_child(work, subgroup).items():
                os.write(write, json.dumps([name, outcome(call)]).encode() + b"\n")
            # The interpreter ends as that of any program does.
            sys.exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(write)
    with os.fdopen(read) as lines:
        outcomes = dict(map(json.loads, lines))
    # The parent is not disturbed.
    dist.send(torch.full((3,), rank + 1.0), other)
    work.wait()
    total = torch.ones(3)
    dist.all_reduce(total)
    result = {"received": received.tolist(), "total": total.tolist()}
    print(json.dumps({"rank": rank, "code": code, "outcomes": outcomes, **result}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
