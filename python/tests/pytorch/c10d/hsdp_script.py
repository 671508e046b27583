"""A training script as users of HSDP write it: shards in a site, replicas over sites.

Gradients of two micro-batches cross together. Prints the weights after the last step as JSON, and
the number of elements of the shards of this rank.
"""

import json

import torch
import torch.distributed as dist
from ddp_script import make_batches, make_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    names, override = ("replicate", "shard"), {"replicate": "landbridge"}
    shape = (2, world // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names, backend_override=override)
    model = make_model(0)
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for inputs, labels in make_batches():
        optimizer.zero_grad()
        mine, wanted = inputs[rank::world], labels[rank::world]
        half = len(mine) // 2
        for part in (slice(half), slice(half, None)):
            model.set_requires_all_reduce(part.stop is None)
            loss = torch.nn.functional.cross_entropy(model(mine[part]), wanted[part])
            (loss * len(wanted[part]) / len(wanted)).backward()
        optimizer.step()
    shards = [parameter.to_local().numel() for parameter in model.parameters()]
    whole = [parameter.full_tensor().detach().reshape(-1) for parameter in model.parameters()]
    weights = torch.cat(whole).tolist()
    print(json.dumps({"rank": rank, "weights": weights, "shards": sum(shards)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
