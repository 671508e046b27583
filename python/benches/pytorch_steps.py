"""Takes steps of a training in one process of two sites, and prints a line of JSON for each.

`pytorch_steps.py ddp|hsdp landbridge|gloo BYTES SECONDS STEPS`: the size of all gradients, and the
seconds of computing in a step. Over landbridge a launcher numbers the processes of its site by the
variables of torchrun, and over Gloo those of both sites. All else is the same.
"""

import datetime
import json
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import landbridge.torch
from train import SleepInBackward

#: Layers of the model, which are sharded one by one, and number of processes of a site.
LAYERS, SITE_RANKS = 16, 2


class SleepingLayer(torch.nn.Module):
    """A layer whose backward pass sleeps, as while an accelerator computes."""

    def __init__(self, elements, seconds):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(elements))
        self._seconds = seconds

    def forward(self, inputs):
        return SleepInBackward.apply(inputs, self.weight, self._seconds)


def make_distributed_model(kind, size, seconds):
    """Returns the model, copied to all processes or sharded in each site."""
    elements = size // 4 // LAYERS
    layers = [SleepingLayer(elements, seconds / LAYERS) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers)
    if kind == "ddp":
        return DistributedDataParallel(model)
    shape, names = (dist.get_world_size() // SITE_RANKS, SITE_RANKS), ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    kind, backend, size, seconds, steps = sys.argv[1:]
    if backend == "landbridge":
        landbridge.torch.init_process_group()
    else:
        # The bench ends what takes long.
        dist.init_process_group(backend, timeout=datetime.timedelta(hours=1))
    model = make_distributed_model(kind, int(size), float(seconds))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(int(steps)):
        dist.barrier()
        begun = time.monotonic()
        print(json.dumps({"begun": begun}), flush=True)
        optimizer.zero_grad()
        model(torch.ones(1, requires_grad=True)).sum().backward()
        optimizer.step()
        print(json.dumps({"seconds": time.monotonic() - begun}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
