"""The frame of the PyTorch examples.

It trains with DDP in two regions of two trainers, with unequal batches, and then in one process to
compare the weights.
"""

import importlib
import sys
import types

import local_run

try:
    import torch
    import torch._dynamo  # Every optimizer imports it. Here it is imported once for all trainers.
    import torch.distributed as dist
except ImportError:
    sys.exit(77)

import landbridge
import landbridge.torch

#: Relative speed of each trainer: those of the first site are three times as fast.
SPEEDS = (3.0, 3.0, 1.0, 1.0)


def main(name, tolerance, *, ranks=(2, 2), speeds=SPEEDS):
    """Trains the task of a module in two regions and in one process, and compares the weights.

    Args:
        name: The module of the task, with ``make_model``, ``load_data``, ``compute_loss``,
            ``compute_score`` and the constants in capital letters.
        tolerance: The largest accepted difference of a weight.
        ranks: The number of trainers of each site.
        speeds: The relative speed of each trainer.
    """
    trainer = TaskTrainer(name, ranks[0])
    results = local_run.run_trainers(
        trainer, ranks=ranks, speeds=speeds, preload=["torch._dynamo"]
    )
    digests = {result["digest"] for result in results}
    first = results[0]
    local_run.print_result(first)
    if len(digests) != 1:
        sys.exit("FAIL: ranks ended with different weights")
    reference = train_in_one_process(importlib.import_module(name))
    difference = (torch.tensor(first["weights"]) - reference).abs().max().item()
    local_run.exit_by_difference(
        "largest difference of a weight from training in one process",
        difference,
        tolerance,
    )


class TaskTrainer:
    """Runs one trainer of a task. Each process gets a copy."""

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
    """Trains one rank, and returns its losses, score, weights and times."""
    data, module = task.load_data(), task.make_model(seed=group.rank)
    optimizer = torch.optim.SGD(module.parameters(), lr=task.LEARNING_RATE, momentum=0.9)
    landbridge.torch.resume(group, 0, module, optimizer)
    model = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=task.BUCKET_MB)
    batches = landbridge.torch.UnevenSampler(
        range(task.TRAINING_SAMPLES), group, task.BATCH_SAMPLES
    )
    state = landbridge.torch.State(group, weight=batches.share)
    clock = local_run.CommunicationClock()
    model.register_comm_hook((state, clock), timed_hook)
    losses = []
    for indices in batches_of_steps(batches, task.STEPS):
        optimizer.zero_grad()
        loss = task.compute_loss(model, data, indices)
        loss.backward()
        optimizer.step()
        clock.end_step()
        # The mean loss over the global batch is only printed.
        share = torch.tensor([loss.item()])
        losses.append(group.all_reduce(share, weight=batches.share).item())
    return {
        "losses": losses,
        "label": task.SCORE_LABEL,
        "score": task.compute_score(module, data) if group.rank == 0 else 0.0,
        "digest": landbridge.torch.check_module(module, group),
        "weights": flat_weights(module).tolist() if group.rank == 0 else None,
        **clock.report(),
    }


def timed_hook(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Calls the package's hook, and notes in a clock when it posts and when the average comes."""
    state, clock = state
    clock.note_post()
    future = landbridge.torch.all_reduce_hook(state, bucket)
    future.add_done_callback(clock.note_average)
    return future


def train_in_one_process(task):
    """Returns the weights after training on the same global batches in this process."""
    torch.set_num_threads(1)
    data, module = task.load_data(), task.make_model(seed=0)
    optimizer = torch.optim.SGD(module.parameters(), lr=task.LEARNING_RATE, momentum=0.9)
    batches = landbridge.torch.UnevenSampler(
        range(task.TRAINING_SAMPLES), LoneGroup(), task.BATCH_SAMPLES
    )
    for indices in batches_of_steps(batches, task.STEPS):
        optimizer.zero_grad()
        task.compute_loss(module, data, indices).backward()
        optimizer.step()
    return flat_weights(module)


class LoneGroup:
    """A stand-in for the group of one process, which gives a sampler whole batches."""

    rank = 0

    def batch_split(self, global_batch, limits):
        """Returns a split that gives the whole batch to this process."""
        return types.SimpleNamespace(shares=[global_batch])


def batches_of_steps(batches, count):
    """Yields the batches of ``count`` steps, over as many epochs as needed."""
    epoch, done = 0, 0
    while True:
        batches.set_epoch(epoch)
        for indices in batches:
            if done == count:
                return
            yield indices
            done += 1
        epoch += 1


def flat_weights(module):
    """Returns all parameters of a module in one dimension."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])
