"""Trainers that torchrun starts in each site. In the first attempt the last rank fails.

Prints the place of the trainer, and writes it into a file of the folder that is the argument.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import landbridge.torch  # noqa: F401

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("landbridge")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.tensor([float(rank)])
dist.all_reduce(total)
assert total.item() == sum(range(world))
if attempt == 0:
    if rank == world - 1:
        os._exit(3)
    dist.all_reduce(total)
pair = dist.new_group([0, 1])
if rank < 2:
    dist.all_reduce(total, group=pair)
place = {"rank": rank, "world": world, "attempt": attempt, "total": total.item()}
Path(sys.argv[1], f"rank-{rank}").write_text(json.dumps(place), "utf-8")
dist.destroy_process_group()
