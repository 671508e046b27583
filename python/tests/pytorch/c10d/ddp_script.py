"""A training script as users of DDP write it. Tests change one word of it.

Prints the weights after the last step as JSON.
"""

import json
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 50
GLOBAL_BATCH = 12


def make_model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(64, 40),
        torch.nn.Tanh(), torch.nn.Linear(40, 3),
    )  # fmt: skip


def make_batches():
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        inputs = torch.randn(GLOBAL_BATCH, 1, 6, 6, generator=generator)
        yield inputs, inputs[:, 0, :3, 0].argmax(1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    # DDP gives all ranks the weights of rank 0.
    model = DistributedDataParallel(make_model(int(os.environ["RANK"])), bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for inputs, labels in make_batches():
        optimizer.zero_grad()
        outputs = model(inputs[rank::world])
        torch.nn.functional.cross_entropy(outputs, labels[rank::world]).backward()
        optimizer.step()
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    print(json.dumps({"rank": rank, "weights": weights.tolist()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
