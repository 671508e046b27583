"""Trains a transformer with Lightning and DDP over two sites of two processes each.

Usage, beside a gateway, in each site with the region file of the site:
torchrun --rdzv-backend=landbridge --rdzv-endpoint=east.toml --nproc-per-node=2 \\
    lightning_ddp.py FOLDER
"""

import os
import sys

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import landbridge.torch  # noqa: F401  # From PyTorch 2.15 on it finds the backend without this.
from hsdp import BATCH, LENGTH, STEPS, TOKENS, Transformer


class TransformerModule(lightning.LightningModule):
    """The transformer as Lightning trains it."""

    def __init__(self):
        super().__init__()
        self.transformer = Transformer()

    def training_step(self, batch, _):
        (tokens,) = batch
        return torch.nn.functional.cross_entropy(self.transformer(tokens), tokens.amax(1))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def main():
    torch.manual_seed(0)
    module = TransformerModule()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        num_nodes=2,
        strategy=DDPStrategy(process_group_backend="landbridge"),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        # Lightning's own sampler shuffles, so that no two numbers of processes train alike.
        use_distributed_sampler=False,
    )
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(TOKENS, (STEPS * BATCH, LENGTH - 1), generator=generator)
    data, places = TensorDataset(tokens), (trainer.world_size, trainer.global_rank)
    sampler = DistributedSampler(data, *places, shuffle=False)
    trainer.fit(module, DataLoader(data, BATCH // trainer.world_size, sampler=sampler))
    # The first process of each site has a disk for it.
    if trainer.local_rank == 0:
        os.makedirs(sys.argv[1], exist_ok=True)
        name = f"site-{trainer.global_rank // 2}.pt"
        torch.save(module.transformer.state_dict(), os.path.join(sys.argv[1], name))


if __name__ == "__main__":
    main()
