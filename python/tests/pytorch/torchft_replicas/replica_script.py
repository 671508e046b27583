"""A replica as users of torchft write it, over landbridge: DDP's average, or DiLoCo.

`replica_script.py KIND LIGHTHOUSE REPLICA STEPS DIES_AT` trains as the replica until torchft has
counted the steps, or ends in the middle of one of them. Prints the weights as JSON.
"""

import json
import os
import sys
from datetime import timedelta

import torch

#: Inner steps between two synchronizations of DiLoCo.
INNER_STEPS = 3


def make_model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def backward(model, replica, *place):
    """Makes the gradients of a batch that a replica has at a place of the training. Returns the
    loss."""
    generator = torch.Generator().manual_seed(hash((replica, *place)) % 2**31)
    inputs = torch.randn(8, 6, generator=generator)
    loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
    loss.backward()
    return loss.item()


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def make_inner_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def weights_of(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()


def make_lone_manager(replica, lighthouse, model, optimizer):
    """Returns torchft's manager of a replica that is one process, and the store that it needs."""
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    place = {"rank": 0, "world_size": 1, "store_addr": "localhost", "store_port": store.port}
    return make_manager(replica, lighthouse, model, optimizer, {"rank": replica}, **place), store


def make_manager(replica, lighthouse, model, optimizer, group_place, **place):
    """Returns torchft's manager of a replica. The place of this process among those of the replica
    is that of its launcher, unless it is given; and so is its rank of the fabric."""
    import torchft

    import landbridge.torchft

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    return torchft.Manager(
        pg=landbridge.torchft.ProcessGroup(timeout=timedelta(seconds=30), **group_place),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=2,
        use_async_quorum=False,
        # All replicas begin with the same weights.
        init_sync=False,
        timeout=timedelta(seconds=30),
        lighthouse_addr=lighthouse,
        # torchft numbers replicas by their names, here against the order of the fabric.
        replica_id=f"replica_{1 - replica}",
        hostname="localhost",
        **place,
    )


def train_with_average(manager, model, optimizer, replica, steps, dies_at):
    from torchft import Optimizer

    optimizer = Optimizer(manager, optimizer)
    while manager.current_step() < steps:
        optimizer.zero_grad()
        step = manager.current_step()
        backward(model, replica, step)
        if step == dies_at:
            os._exit(3)
        works = [manager.allreduce(each.grad) for each in model.parameters()]
        for work in works:
            work.wait()
        optimizer.step()


def train_with_diloco(manager, model, optimizer, replica, steps, dies_at):
    from torchft.local_sgd import DiLoCo

    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    count = 0
    with DiLoCo(manager, [model], optimizer, outer, sync_every=INNER_STEPS):
        while manager.current_step() < steps:
            step = manager.current_step()
            optimizer.zero_grad()
            backward(model, replica, step, count % INNER_STEPS)
            if step == dies_at and count % INNER_STEPS == INNER_STEPS - 1:
                os._exit(3)
            optimizer.step()
            count += 1


def main():
    kind, lighthouse = sys.argv[1:3]
    replica, steps, dies_at = map(int, sys.argv[3:6])
    model = make_model()
    optimizer = make_optimizer(model) if kind == "average" else make_inner_optimizer(model)
    manager, store = make_lone_manager(replica, lighthouse, model, optimizer)
    train = train_with_average if kind == "average" else train_with_diloco
    train(manager, model, optimizer, replica, steps, dies_at)
    print(json.dumps({"rank": replica, "weights": weights_of(model)}), flush=True)
    manager.shutdown(wait=False)
    os._exit(0)


if __name__ == "__main__":
    main()
