"""All-reduces with Gloo: rank, address of rank 0, bytes, iterations. Prints a line of JSON when
it begins, and one with the seconds of each and this process's processor time."""

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
print(json.dumps({"seconds": []}), flush=True)
for _ in range(iterations):
    tensor.fill_(rank + 1)
    dist.barrier()
    begin, cpu_begin = time.perf_counter(), time.process_time()
    dist.all_reduce(tensor)
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu_begin
    assert torch.all(tensor == 3.0), "wrong sum"
    print(json.dumps({"seconds": [seconds], "cpu_seconds": cpu_seconds}), flush=True)
