"""Trains a transformer with HSDP: its shards in each site, a replica of it in every site.

Usage, beside a gateway, in each site with the region file of the site:
torchrun --rdzv-backend=landbridge --rdzv-endpoint=east.toml --nproc-per-node=2 hsdp.py FOLDER
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import landbridge.torch  # noqa: F401  # From PyTorch 2.15 on it finds the backend without this.

#: Steps of the training, and sequences in the global batch of each.
STEPS, BATCH = 40, 24
#: Different tokens, and tokens in a sequence. The last is the greatest of those before it.
TOKENS, LENGTH = 48, 9
#: Elements of the vector of a token. Two and three ranks share them evenly.
WIDTH = 96


class Transformer(torch.nn.Module):
    """Tells the last token of sequences from the others."""

    def __init__(self):
        super().__init__()
        self.token = torch.nn.Embedding(TOKENS, WIDTH)
        layer = {"dim_feedforward": 2 * WIDTH, "dropout": 0.0, "activation": "gelu"}
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, 4, batch_first=True, **layer) for _ in range(3)
        )
        self.answer = torch.nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        hidden = self.token(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.answer(hidden.mean(1))


def main():
    dist.init_process_group("landbridge")
    rank, world, local = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    mesh = init_device_mesh(
        "cpu",
        (world // local, local),
        mesh_dim_names=("replicate", "shard"),
        backend_override={"replicate": "landbridge"},
    )
    torch.manual_seed(0)
    model = Transformer()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for step in range(1, STEPS + 1):
        tokens = torch.randint(TOKENS, (BATCH, LENGTH - 1), generator=generator)[rank::world]
        loss = torch.nn.functional.cross_entropy(model(tokens), tokens.amax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    # All ranks take part; the first of each site has a disk for it.
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank % local == 0:
        os.makedirs(sys.argv[1], exist_ok=True)
        torch.save(weights, os.path.join(sys.argv[1], f"site-{rank // local}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
