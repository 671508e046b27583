"""Trains with hooks of PyTorch that wait for collectives in callbacks, over Landbridge and Gloo.

Prints how far apart the weights are after the last step, for each hook that an argument names.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook, quantization_hooks
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


def hook_of(name, group):
    """Returns the state and the function of a hook."""
    if name == "quantization":
        return group, quantization_hooks.quantization_pertensor_hook
    state = powerSGD_hook.PowerSGDState(
        process_group=group, matrix_approximation_rank=1, start_powerSGD_iter=2
    )
    return state, getattr(powerSGD_hook, name)


def train(name, group):
    """Returns the weights after some steps over a group."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)
    )  # fmt: skip
    wrapped = DistributedDataParallel(model, process_group=group)
    wrapped.register_comm_hook(*hook_of(name, group))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        wrapped(torch.randn(6, 8, generator=inputs)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def main():
    dist.init_process_group("landbridge")
    rank = dist.get_rank()
    gloo = dist.new_group(backend="gloo")
    apart = {}
    for name in sys.argv[1:]:
        weights = train(name, dist.group.WORLD)
        apart[name] = (weights - train(name, gloo)).abs().max().item()
    print(json.dumps({"rank": rank, "apart": apart}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
