"""Training with `fully_shard` inside each site, and landbridge between sites.

Gradients of two micro-batches cross together. The argument is the number of the site. Prints the
weights after the last step as JSON.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from ddp_script import make_batches, make_model
from torch.distributed.fsdp import fully_shard

import landbridge
import landbridge.torch


def main():
    site, (local_rank, local_size) = int(sys.argv[1]), (int(os.environ["RANK"]), 2)
    dist.init_process_group("gloo")
    config, job = os.environ["LANDBRIDGE_CONFIG"], f"train-{local_rank}"
    with landbridge.connect(config=config, rank=site, job=job, arena="16 MiB") as group:
        model = make_model(0)
        sharded = [fully_shard(layer) for layer in model if list(layer.parameters())]
        for module in [*sharded, fully_shard(model)]:
            module.set_all_reduce_hook(landbridge.torch.fsdp_hook(group))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        rank, world = site * local_size + local_rank, 2 * local_size
        for inputs, labels in make_batches():
            optimizer.zero_grad()
            mine, wanted = inputs[rank::world], labels[rank::world]
            half = len(mine) // 2
            for part in (slice(half), slice(half, None)):
                model.set_requires_gradient_sync(part.stop is None)
                loss = torch.nn.functional.cross_entropy(model(mine[part]), wanted[part])
                (loss * len(wanted[part]) / len(wanted)).backward()
            optimizer.step()
        whole = [parameter.full_tensor().detach().reshape(-1) for parameter in model.parameters()]
        group.barrier()
    print(json.dumps({"rank": rank, "weights": torch.cat(whole).tolist()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
