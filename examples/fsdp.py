"""Trains a transformer with FSDP2 inside each site, and averages each rank's shard over sites.

The fabric has one rank for each site, and a job `train-N` for each trainer of a site.

Usage, beside a gateway, in each site with its region file, the name of its region and a folder:
torchrun --standalone --nproc-per-node=2 fsdp.py east.toml east FOLDER
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard

import landbridge
import landbridge.torch
from hsdp import BATCH, LENGTH, STEPS, TOKENS, Transformer


def main():
    config, region, folder = sys.argv[1:]
    dist.init_process_group("gloo")
    local, size = dist.get_rank(), dist.get_world_size()
    group = landbridge.connect(config=config, region=region, local_rank=0, job=f"train-{local}")
    rank, world = group.rank * size + local, group.world_size * size
    torch.manual_seed(0)
    model = Transformer()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(landbridge.torch.fsdp_hook(group))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for step in range(1, STEPS + 1):
        tokens = torch.randint(TOKENS, (BATCH, LENGTH - 1), generator=generator)[rank::world]
        loss = torch.nn.functional.cross_entropy(model(tokens), tokens.amax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    # All ranks of the site take part; the first of each site has a disk for it.
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if local == 0:
        os.makedirs(folder, exist_ok=True)
        torch.save(weights, os.path.join(folder, f"site-{group.rank}.pt"))
    # No rank leaves before all have the last step.
    group.barrier()
    group.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
