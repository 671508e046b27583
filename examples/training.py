"""The frame of the PyTorch examples: DDP in two regions of two trainers, with unequal batches, and
the same training in one process beside it."""

import importlib
import sys
import types

import local_run

try:
    import torch
    import torch._dynamo  # what every optimizer imports: once, for all trainers
    import torch.distributed as dist
except ImportError:
    sys.exit(77)

import landbridge
import landbridge.torch

#: Trainers of the first site are three times as fast as those of the second.
SPEEDS = (3.0, 3.0, 1.0, 1.0)


def main(name, tolerance, *, ranks=(2, 2), speeds=SPEEDS):
    """Runs the task in the module ``name``: ``model()``, ``data()`` with indices for a batch,
    ``loss(model, data, indices)``, ``score(model, data)``, ``STEPS``, ``BATCH``, ``RATE``."""
    trainer = Trainer(name, ranks[0])
    results = local_run.run(trainer, ranks=ranks, speeds=speeds, preload=["training", name])
    digests = {result["digest"] for result in results}
    first = results[0]
    local_run.print_result(first)
    if len(digests) != 1:
        sys.exit("FAIL: ranks ended with different weights")
    reference = one_process(importlib.import_module(name))
    difference = (torch.tensor(first["weights"]) - reference).abs().max().item()
    local_run.exit_by("largest difference of a weight from training in one process",
                  difference, tolerance)  # fmt: skip


class Trainer:
    """One trainer, by the name of its task."""

    def __init__(self, name, per_site):
        self.name, self.per_site = name, per_site

    def __call__(self, config, rank, folder):
        torch.set_num_threads(1)
        task = importlib.import_module(self.name)
        # Each site has a process group of its own.
        site, local = divmod(rank, self.per_site)
        store = f"file://{folder}/site-{site}"
        dist.init_process_group("gloo", init_method=store, rank=local, world_size=self.per_site)
        with landbridge.connect(config=config, rank=rank, arena="512 MiB") as group:
            return train(task, group)


def train(task, group):
    """All steps of one trainer."""
    data, module = task.data(), task.model(seed=group.rank)
    optimizer = torch.optim.SGD(module.parameters(), lr=task.RATE, momentum=0.9)
    landbridge.torch.resume(group, 0, module, optimizer)
    model = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=task.BUCKET_MB)
    batches = landbridge.torch.UnevenSampler(range(task.SAMPLES), group, task.BATCH)
    state, clock = landbridge.torch.State(group, weight=batches.share), local_run.Clock()
    model.register_comm_hook((state, clock), timed_hook)
    losses = []
    for indices in steps_of(batches, task.STEPS):
        optimizer.zero_grad()
        loss = task.loss(model, data, indices)
        loss.backward()
        optimizer.step()
        clock.step()
        # For people: over the global batch, as the gradients are.
        share = torch.tensor([loss.item()])
        losses.append(group.all_reduce(share, weight=batches.share).item())
    return {
        "losses": losses,
        "label": task.LABEL,
        "score": task.score(module, data) if group.rank == 0 else 0.0,
        "digest": landbridge.torch.check_module(module, group),
        "weights": weights_of(module).tolist() if group.rank == 0 else None,
        **clock.report(),
    }


def timed_hook(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The package's hook, with a clock."""
    state, clock = state
    clock.posted()
    future = landbridge.torch.all_reduce_hook(state, bucket)
    future.add_done_callback(clock.done)
    return future


def one_process(task):
    """The weights after the same global batches."""
    torch.set_num_threads(1)
    data, module = task.data(), task.model(seed=0)
    optimizer = torch.optim.SGD(module.parameters(), lr=task.RATE, momentum=0.9)
    batches = landbridge.torch.UnevenSampler(range(task.SAMPLES), Alone(), task.BATCH)
    for indices in steps_of(batches, task.STEPS):
        optimizer.zero_grad()
        task.loss(module, data, indices).backward()
        optimizer.step()
    return weights_of(module)


class Alone:
    """A group of one, for the sampler."""

    rank = 0

    def batch_split(self, global_batch, limits):
        return types.SimpleNamespace(shares=[global_batch])


def steps_of(batches, count):
    epoch, done = 0, 0
    while True:
        batches.set_epoch(epoch)
        for indices in batches:
            if done == count:
                return
            yield indices
            done += 1
        epoch += 1


def weights_of(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])
