"""A small convolutional network on handwritten digits: DDP over two regions."""

import csv
import gzip
from pathlib import Path

import training
from training import torch

#: Images to train on. The images behind them are for the score.
TRAINING_SAMPLES = 1500
#: Images in the global batch of a step.
BATCH_SAMPLES = 64
#: Steps of the training, and the part of the gradient that each takes off the weights.
STEPS, LEARNING_RATE = 80, 0.1
#: Size of DDP's buckets of gradients, in MiB.
BUCKET_MB = 0.05
#: Meaning of the score, which is printed with it.
SCORE_LABEL = "accuracy on images not trained on"
#: Gzipped CSV of the images, which the program has too.
DIGITS_FILE = Path(__file__).parents[1] / "landbridge/data/digits.csv.gz"


def make_model(seed):
    """Returns the network with weights of this seed.

    It uses GELU and average pooling. ReLU and max-pooling branch on the last bit of a sum, which
    differs between CPUs, so runs would diverge.
    """
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.GELU(),
        torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.GELU(),
        torch.nn.AvgPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(1024, 40), torch.nn.GELU(), torch.nn.Linear(40, 10),
    )  # fmt: skip


def load_data():
    """Returns the images, of 8 by 8 pixels from 0 to 1, and their digits."""
    with gzip.open(DIGITS_FILE, "rt") as file:
        rows = torch.tensor([[int(value) for value in row] for row in csv.reader(file)])
    return rows[:, :64].reshape(-1, 1, 8, 8) / 16.0, rows[:, 64]


def compute_loss(model, data, indices):
    """Returns the mean cross-entropy of a batch of images, given by their indices."""
    images, digits = data
    return torch.nn.functional.cross_entropy(model(images[indices]), digits[indices])


def compute_score(model, data):
    """Returns the accuracy on the images behind ``TRAINING_SAMPLES``."""
    images, digits = data
    with torch.no_grad():
        predicted = model(images[TRAINING_SAMPLES:]).argmax(1)
    return (predicted == digits[TRAINING_SAMPLES:]).float().mean().item()


if __name__ == "__main__":
    training.main("digits", tolerance=1e-4)
