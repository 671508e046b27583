"""All-reduces with Gloo: rank, address of rank 0, bytes, iterations. Prints a line of JSON when
it begins, and one for each with its post, its result, this process's processor time and its
wake-ups: voluntary context switches."""

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


rank, address, size, iterations = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group(
    "gloo",
    init_method=f"tcp://{address}:29500",
    rank=rank,
    world_size=2,
    timeout=datetime.timedelta(seconds=60),
)
tensor = torch.full((size // 4,), float(rank + 1))
dist.all_reduce(torch.ones(1 << 18))
print(json.dumps({"posted_ns": [], "ready_ns": []}), flush=True)
for _ in range(iterations):
    tensor.fill_(rank + 1)
    dist.barrier()
    wakeups_begin = wakeups()
    posted, cpu_begin = time.monotonic_ns(), time.process_time()
    dist.all_reduce(tensor)
    ready, cpu_seconds = time.monotonic_ns(), time.process_time() - cpu_begin
    woken = wakeups() - wakeups_begin
    assert torch.all(tensor == 3.0), "wrong sum"
    line = {"posted_ns": [posted], "ready_ns": [ready], "cpu_seconds": cpu_seconds}
    print(json.dumps({**line, "wakeups": woken}), flush=True)
