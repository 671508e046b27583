"""A small convolutional network on handwritten digits: DDP over two regions."""

import csv
import gzip
from pathlib import Path

import training
from training import torch

SAMPLES, BATCH, STEPS, RATE, BUCKET_MB = 1500, 64, 80, 0.1, 0.05
LABEL = "accuracy on images not trained on"
FILE = Path(__file__).parents[1] / "landbridge/data/digits.csv.gz"


def model(seed):
    """Uses GELU and average pooling. ReLU and max-pooling branch on the last bit of a sum, which
    differs between CPUs, so runs would diverge."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.GELU(),
        torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.GELU(),
        torch.nn.AvgPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(1024, 40), torch.nn.GELU(), torch.nn.Linear(40, 10),
    )  # fmt: skip


def data():
    with gzip.open(FILE, "rt") as file:
        rows = torch.tensor([[int(value) for value in row] for row in csv.reader(file)])
    return rows[:, :64].reshape(-1, 1, 8, 8) / 16.0, rows[:, 64]


def loss(model, data, indices):
    images, digits = data
    return torch.nn.functional.cross_entropy(model(images[indices]), digits[indices])


def score(model, data):
    images, digits = data
    with torch.no_grad():
        told = model(images[SAMPLES:]).argmax(1)
    return (told == digits[SAMPLES:]).float().mean().item()


if __name__ == "__main__":
    training.main("digits", tolerance=1e-4)
