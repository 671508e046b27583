"""A replica of HSDP as users of torchft write it: shards in its processes, averages by landbridge.

`sharded_replica_script.py LIGHTHOUSE REPLICA STEPS DIES_AT` is one process of the replica, which
torchrun has numbered. It trains until torchft has counted the steps. The last process of the
replica ends in the first exchange of a step. Prints the weights as JSON.
"""

import json
import os
import sys
import traceback

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard

from replica_script import backward, make_manager, make_model, make_optimizer


def make_sharded_model():
    """Returns the model, with a shard of each layer in each process of the replica."""
    model = make_model()
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer)
    return fully_shard(model)


def average_over_replicas(model, manager, dies_at):
    """Lets torchft average each shard of the gradients over the replicas."""

    def average_shard(gradients):
        if manager.current_step() == dies_at and dist.get_rank() == dist.get_world_size() - 1:
            os._exit(3)
        manager.allreduce(gradients).wait()

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(average_shard)


def main():
    from torchft import Optimizer

    lighthouse = sys.argv[1]
    replica, steps, dies_at = map(int, sys.argv[2:5])
    dist.init_process_group("gloo")
    model = make_sharded_model()
    inner = make_optimizer(model)
    manager = make_manager(replica, lighthouse, model, inner, {})
    average_over_replicas(model, manager, dies_at)
    optimizer = Optimizer(manager, inner)
    number = replica * dist.get_world_size() + dist.get_rank()
    while manager.current_step() < steps:
        optimizer.zero_grad()
        backward(model, number, manager.current_step())
        optimizer.step()
    whole = [each.full_tensor().detach().flatten() for each in model.parameters()]
    print(json.dumps({"rank": number, "weights": torch.cat(whole).tolist()}), flush=True)
    # No process leaves while the other asks the manager or the store, which are in the first.
    dist.barrier()
    manager.shutdown(wait=False)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # Threads of torchft do not end.
    os._exit(0)
