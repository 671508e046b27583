"""HSDP whose replicas skip different parameters: each is at a site of its own.

Prints the gradient of the first layer after a step in which all replicas use it, and the error of
one in which each uses another layer.
"""

import json

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Branches(torch.nn.Module):
    """Layers of one shape, of which a step uses those that it names."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in "ab"})

    def forward(self, inputs, names):
        return sum(self.layers[name](inputs) for name in names)


def main():
    dist.init_process_group("landbridge")
    rank, model = dist.get_rank(), Branches()
    names = ("replicate", "shard")
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=names))
    inputs = torch.full((1, 3), rank + 1.0)
    model(inputs, "a").sum().backward()
    alike = model.layers["a"].weight.grad.full_tensor().reshape(-1).tolist()
    try:
        model(inputs, "ab"[rank]).sum().backward()
        error = "none"
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    print(json.dumps({"rank": rank, "alike": alike, "error": error}), flush=True)


if __name__ == "__main__":
    main()
