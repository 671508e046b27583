"""Takes DDP steps over Gloo at one of two sites, and prints the median step in seconds.

Arguments: rank, address of rank 0, seconds of computing in a step, number of steps, and `--quick`
as in `train.py`.
"""

import datetime
import statistics
import sys
import time

import torch
import torch.distributed as dist

from train import BUCKET_MB, LAYERS, Model


def main():
    rank, address, seconds, steps = sys.argv[1:5]
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{address}:29500",
        rank=int(rank),
        world_size=2,
        timeout=datetime.timedelta(seconds=300),
    )
    model = Model()
    model.seconds = float(seconds) / LAYERS
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
    times = []
    # DDP lays out its buckets in the first two steps.
    for _ in range(int(steps) + 2):
        dist.barrier()
        begun = time.perf_counter()
        ddp(torch.ones(1)).backward()
        times.append(time.perf_counter() - begun)
    print(statistics.median(times[2:]))


if __name__ == "__main__":
    main()
