"""A byte-level transformer on the text of Python's own standard library: DDP over two regions."""

import sysconfig
from pathlib import Path

import training
from training import torch

SAMPLES, BATCH, STEPS, RATE, BUCKET_MB = 4096, 16, 40, 0.05, 0.5
LABEL = "bits for each byte not trained on"
LENGTH, WIDTH = 64, 128


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes = torch.nn.Embedding(256, WIDTH)
        self.places = torch.nn.Parameter(torch.zeros(LENGTH, WIDTH))
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.next = torch.nn.Linear(WIDTH, 256)
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        self.register_buffer("later", later)

    def forward(self, text):
        hidden = self.layers(self.bytes(text) + self.places, mask=self.later)
        return self.next(self.norm(hidden))


def model(seed):
    torch.manual_seed(seed)
    return Model()


def data():
    """Pieces of one byte more than the model reads; those after ``SAMPLES`` are for the score."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)[: (SAMPLES + 64) * (LENGTH + 1)]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(-1, LENGTH + 1)


def loss(model, data, indices):
    pieces = data[indices]
    told = model(pieces[:, :-1])
    return torch.nn.functional.cross_entropy(told.flatten(0, 1), pieces[:, 1:].flatten())


def score(model, data):
    with torch.no_grad():
        return loss(model, data, range(SAMPLES, SAMPLES + 64)).item() / 0.6931


if __name__ == "__main__":
    # Rounding differs between processors and grows along the way; batches weighted wrongly are off
    # by 1e-2.
    training.main("text", tolerance=1e-5)
