"""Trains a transformer with Accelerate and DDP over two sites of two processes each.

Usage, beside a gateway, in each site with the region file of the site:
torchrun --rdzv-backend=landbridge --rdzv-endpoint=east.toml --nproc-per-node=2 \\
    accelerate_ddp.py FOLDER
"""

import os
import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import landbridge.torch  # noqa: F401  # From PyTorch 2.15 on it finds the backend without this.
from hsdp import BATCH, LENGTH, STEPS, TOKENS, Transformer


def main():
    # Accelerate takes the process group that it finds; on a CPU it would make one of Gloo.
    torch.distributed.init_process_group("landbridge")
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(TOKENS, (STEPS * BATCH, LENGTH - 1), generator=generator)
    loader = DataLoader(TensorDataset(tokens), BATCH // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (batch,) in loader:
        loss = torch.nn.functional.cross_entropy(model(batch), batch.amax(1))
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    # The first process of each site has a disk for it.
    if accelerator.is_local_main_process:
        os.makedirs(sys.argv[1], exist_ok=True)
        site = accelerator.process_index // int(os.environ["LOCAL_WORLD_SIZE"])
        weights = accelerator.unwrap_model(model).state_dict()
        torch.save(weights, os.path.join(sys.argv[1], f"site-{site}.pt"))
    # It destroys the process group.
    accelerator.end_training()


if __name__ == "__main__":
    main()
