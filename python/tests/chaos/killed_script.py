"""A training that goes on from what each rank has saved, in DDP or HSDP over the backend.

The arguments are the mode, the number of steps, and a folder. Each rank saves its part after each
step, and writes a digest of the weights at the end.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import landbridge.torch  # noqa: F401

#: Seconds of each step beside its gradients, so that kills strike within steps.
STEP_S = 0.05


def make_model(mode):
    """Returns the module to train, and the one to call."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)]
    module = torch.nn.Sequential(*layers)
    if mode == "ddp":
        return module, DistributedDataParallel(module)
    shape, names = (2, dist.get_world_size() // 2), ("replicate", "shard")
    fully_shard(module, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    return module, module


def local_parts(module):
    """Returns the part of each parameter that this rank holds."""
    parts = [parameter.detach() for parameter in module.parameters()]
    return [part.to_local() if hasattr(part, "to_local") else part for part in parts]


class Saved:
    """The last two steps that this rank has saved, since ranks are at most one step apart."""

    def __init__(self, folder, rank):
        self.folder, self.rank = folder, rank

    def path(self, step):
        """Returns the path of a step."""
        return self.folder / f"saved-{self.rank}-{step}"

    def last_step(self):
        """Returns the last saved step, or 0."""
        found = self.folder.glob(f"saved-{self.rank}-*")
        return max((int(path.name.split("-")[2]) for path in found), default=0)

    def save(self, step, tensors):
        """Saves a step, whole or not at all."""
        partial = self.folder / f"partial-{self.rank}"
        torch.save(tensors, partial)
        partial.rename(self.path(step))
        self.path(step - 2).unlink(missing_ok=True)


def main():
    mode, steps, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    (folder / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()), "utf-8")
    dist.init_process_group("landbridge")
    rank, world = dist.get_rank(), dist.get_world_size()
    module, model = make_model(mode)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    saved = Saved(folder, rank)
    first = torch.tensor([saved.last_step()])
    dist.all_reduce(first, dist.ReduceOp.MIN)
    step = int(first)
    if step:
        for part, loaded in zip(local_parts(module), torch.load(saved.path(step))):
            part.copy_(loaded)
    while step < steps:
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(2 * world, 16, generator=generator)[rank::world]
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        time.sleep(STEP_S)
        optimizer.step()
        step += 1
        saved.save(step, local_parts(module))
    whole = [
        parameter.full_tensor() if mode == "hsdp" else parameter
        for parameter in module.parameters()
    ]
    numbers = torch.cat([parameter.detach().reshape(-1) for parameter in whole])
    digest = hashlib.sha256(numbers.numpy().tobytes()).hexdigest()
    (folder / f"weights-{rank}").write_text(digest, "utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
