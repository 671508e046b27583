"""A byte-level transformer on the text of Python's own standard library: DDP over two regions."""

import sysconfig
from pathlib import Path

import training
from training import torch

#: Pieces of text to train on. The pieces behind them are for the score.
TRAINING_SAMPLES = 4096
#: Pieces of text in the global batch of a step.
BATCH_SAMPLES = 16
#: Steps of the training, and the part of the gradient that each takes off the weights.
STEPS, LEARNING_RATE = 40, 0.05
#: Size of DDP's buckets of gradients, in MiB.
BUCKET_MB = 0.5
#: Meaning of the score, which is printed with it.
SCORE_LABEL = "bits for each byte not trained on"
#: Pieces of text for the score.
SCORED_SAMPLES = 64
#: Bytes that the model reads at once.
CONTEXT_BYTES = 64
#: Numbers that stand for a byte inside the model.
WIDTH = 128


class ByteTransformer(torch.nn.Module):
    """A transformer that predicts each next byte of a text."""

    def __init__(self):
        super().__init__()
        self.bytes = torch.nn.Embedding(256, WIDTH)
        self.places = torch.nn.Parameter(torch.zeros(CONTEXT_BYTES, WIDTH))
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.next = torch.nn.Linear(WIDTH, 256)
        later = torch.ones(CONTEXT_BYTES, CONTEXT_BYTES, dtype=torch.bool).triu(1)
        self.register_buffer("later", later)

    def forward(self, text):
        """Returns the logits of the byte behind each byte of the texts."""
        hidden = self.layers(self.bytes(text) + self.places, mask=self.later)
        return self.next(self.norm(hidden))


def make_model(seed):
    """Returns a transformer with random weights of this seed."""
    torch.manual_seed(seed)
    return ByteTransformer()


def load_data():
    """Returns pieces of the text as tensors of bytes, each one byte longer than the model reads."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)[
        : (TRAINING_SAMPLES + SCORED_SAMPLES) * (CONTEXT_BYTES + 1)
    ]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(-1, CONTEXT_BYTES + 1)


def compute_loss(model, data, indices):
    """Returns the mean cross-entropy of the next bytes in a batch of pieces, in nats."""
    pieces = data[indices]
    predicted = model(pieces[:, :-1])
    return torch.nn.functional.cross_entropy(predicted.flatten(0, 1), pieces[:, 1:].flatten())


def compute_score(model, data):
    """Returns the bits per byte of the pieces behind ``TRAINING_SAMPLES``."""
    with torch.no_grad():
        indices = range(TRAINING_SAMPLES, TRAINING_SAMPLES + SCORED_SAMPLES)
        return compute_loss(model, data, indices).item() / 0.6931  # From nats to bits.


if __name__ == "__main__":
    # Rounding differs between processors and grows with each step. A wrong weight of a batch would
    # make a difference of 1e-2.
    training.main("text", tolerance=1e-5)
