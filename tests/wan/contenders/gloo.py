"""All-reduces with Gloo: rank, address of rank 0, bytes, iterations. Prints a line of JSON when
it begins, and one for each with its post, its result and this process's processor time."""

import datetime
import json
import sys
import time

import torch
import torch.distributed as dist

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
    posted, cpu_begin = time.monotonic_ns(), time.process_time()
    dist.all_reduce(tensor)
    ready, cpu_seconds = time.monotonic_ns(), time.process_time() - cpu_begin
    assert torch.all(tensor == 3.0), "wrong sum"
    line = {"posted_ns": [posted], "ready_ns": [ready], "cpu_seconds": cpu_seconds}
    print(json.dumps(line), flush=True)
