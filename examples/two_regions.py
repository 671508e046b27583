"""Trains a model in two regions. Usage, beside a gateway: RANK=0 python two_regions.py east.toml"""

import gc
import os
import sys

import torch

import landbridge
import landbridge.torch as lb

torch.manual_seed(0)
inputs = torch.randn(2048, 20)
dataset = torch.utils.data.TensorDataset(inputs, inputs[:, :1] * inputs[:, 1:2])
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
# DDP needs a process group. This trainer is alone in it: Landbridge does the averaging.
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
# Ranks count through all regions, in alphabetical order: such as east 0 to 2, west 3.
group = landbridge.connect(config=sys.argv[1], rank=int(os.environ["RANK"]), arena="64 MiB")
step, finished = 0, False  # The number of finished steps: here, or in your checkpoint.
while not finished:
    # Ranks that are behind, or new, get step, weights and optimizer of one that is ahead.
    step = lb.resume(group, step, model, optimizer)
    batches = lb.UnevenSampler(dataset, group, global_batch=64)  # Faster ranks take more.
    epoch, done = divmod(step, len(batches))
    if epoch == 8:  # `finish` raises unless all ranks have equal weights, and recovers if it must.
        finished = group.finish(layout=lb.module_digest(model))
        continue
    batches.set_epoch(epoch, done)
    # The option keeps DDP's buckets the same in a trainer that was started again. DDP warns of it.
    ddp = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    state = lb.State(group, weight=batches.share)
    ddp.register_comm_hook(state, lb.all_reduce_hook)
    try:
        for samples, targets in torch.utils.data.DataLoader(dataset, batch_sampler=batches):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(ddp(samples), targets)
            with state.typed_errors():  # Raises CollectiveFailed instead of RuntimeError.
                loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    except landbridge.CollectiveFailed as failure:
        print(f"step {step + 1} failed: {failure}", flush=True)
        state.recover(failure)  # Returns when all ranks and gateways are back.
    del ddp  # Its hooks must leave the parameters before a new one adds others.
    gc.collect()
print(f"weights {lb.module_digest(model):016x}", flush=True)
