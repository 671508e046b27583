"""Collectives with Gloo: rank, address of rank 0, operation, bytes, iterations. Prints a line of
JSON when it begins, and one for each with its post, its result, this process's processor time and
its wake-ups: voluntary context switches."""

import datetime
import json
import resource
import sys
import time

import torch
import torch.distributed as dist


def wakeups() -> int:
    """Return the voluntary context switches of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


rank, address, operation = int(sys.argv[1]), sys.argv[2], sys.argv[3]
size, iterations = int(sys.argv[4]), int(sys.argv[5])
dist.init_process_group(
    "gloo",
    init_method=f"tcp://{address}:29500",
    rank=rank,
    world_size=2,
    timeout=datetime.timedelta(seconds=60),
)
elements = size // 4
own = float(rank + 1)
given = torch.empty(elements // 2 if operation == "all-gather" else elements)
got = given if operation == "all-reduce" else torch.empty(elements)
run = {
    "all-reduce": lambda: dist.all_reduce(given),
    "all-gather": lambda: dist.all_gather_into_tensor(got, given),
    "all-to-all": lambda: dist.all_to_all_single(got, given),
}[operation]
expected = torch.tensor([3.0, 3.0] if operation == "all-reduce" else [1.0, 2.0])
dist.all_reduce(torch.ones(1 << 18))
print(json.dumps({"posted_ns": [], "ready_ns": []}), flush=True)
for _ in range(iterations):
    given.fill_(own)
    dist.barrier()
    wakeups_begin = wakeups()
    posted, cpu_begin = time.monotonic_ns(), time.process_time()
    run()
    ready, cpu_seconds = time.monotonic_ns(), time.process_time() - cpu_begin
    woken = wakeups() - wakeups_begin
    assert torch.all(got.view(2, -1) == expected[:, None]), "wrong result"
    line = {"posted_ns": [posted], "ready_ns": [ready], "cpu_seconds": cpu_seconds}
    print(json.dumps({**line, "wakeups": woken}), flush=True)
