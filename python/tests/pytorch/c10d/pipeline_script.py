"""A training script as users of pipelines write it: each rank has one stage of the model.

Prints the largest difference of a weight of the stage from training in one process.
"""

import copy
import json

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

STEPS = 10
SAMPLES = 8
MICRO_BATCHES = 4


def train_whole(model):
    """Trains all stages in this process, on whole batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, wanted in make_batches():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()


def make_batches():
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        inputs = torch.randn(SAMPLES, 6, generator=generator)
        yield inputs, inputs.roll(1, 1).tanh()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    stages = [torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()) for _ in range(world)]
    whole = copy.deepcopy(torch.nn.Sequential(*stages))
    stage = PipelineStage(stages[rank], rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stages[rank].parameters(), lr=0.1)
    for inputs, wanted in make_batches():
        optimizer.zero_grad()
        given = (inputs,) if rank == 0 else ()
        schedule.step(*given, target=wanted if rank == world - 1 else None)
        optimizer.step()
    train_whole(whole)
    pairs = zip(stages[rank].parameters(), whole[rank].parameters())
    apart = max((one - other).abs().max().item() for one, other in pairs)
    print(json.dumps({"rank": rank, "apart": apart}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
