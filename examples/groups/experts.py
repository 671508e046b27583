"""NumPy: a layer of experts, one on each rank of two regions. Tokens go to their experts and back.

Each rank sends each token to the expert that a gate chooses: an all-to-all with other counts
between each pair of ranks, also zero. The link carries only tokens for experts beyond it.
"""

import pathlib
import sys

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import local_run  # noqa: E402

import landbridge  # noqa: E402

#: Ranks of each region; an expert on each.
RANKS = (2, 2)
EXPERTS = sum(RANKS)
STEPS = 20
#: Tokens of a rank in a step, and values of a token.
TOKENS, WIDTH = 512, 64


def make_tokens(step, rank):
    """Returns the tokens of a rank in a step."""
    return numpy.random.default_rng((step, rank)).normal(size=(TOKENS, WIDTH))


def choose_experts(tokens):
    """Returns the expert of each token: the gate's highest score. The gate prefers some."""
    gate = numpy.random.default_rng(7).normal(size=(WIDTH, EXPERTS))
    return (tokens @ gate + numpy.arange(EXPERTS)).argmax(1)


def apply_expert(expert, tokens):
    """Returns what an expert makes of tokens."""
    weights = numpy.random.default_rng(100 + expert).normal(size=(WIDTH, WIDTH)) / WIDTH**0.5
    return numpy.tanh(tokens @ weights)


def run_layer(group, tokens):
    """Returns each token after its expert, and the number of tokens for each expert."""
    experts = choose_experts(tokens)
    order = experts.argsort(kind="stable")
    counts = numpy.bincount(experts, minlength=EXPERTS)
    # Each rank learns first how many tokens come from each other one.
    arriving = group.all_to_all(counts)
    mine = group.all_to_all(tokens[order], send=counts.tolist(), receive=arriving.tolist())
    done = apply_expert(group.rank, mine)
    back = group.all_to_all(done, send=arriving.tolist(), receive=counts.tolist())
    result = numpy.empty_like(tokens)
    result[order] = back
    return result, counts


def run(config, rank, folder):
    """Runs all steps of one rank. Returns the largest error, and the tokens for each expert."""
    worst, sent = 0.0, numpy.zeros(EXPERTS, dtype=numpy.int64)
    with landbridge.connect(config=config, rank=rank, arena="64 MiB") as group:
        for step in range(STEPS):
            tokens = make_tokens(step, rank)
            result, counts = run_layer(group, tokens)
            alone = [apply_expert(expert, tokens) for expert in range(EXPERTS)]
            alone = numpy.stack(alone)[choose_experts(tokens), numpy.arange(TOKENS)]
            worst, sent = max(worst, abs(result - alone).max()), sent + counts
    return {"worst": worst, "sent": sent}


def main():
    every, carried = local_run.run_trainers_and_link(run, ranks=RANKS, preload=["numpy"])
    sent = numpy.stack([one["sent"] for one in every])
    print("tokens by rank (row) and expert (column):", *sent, sep="\n  ")
    # Tokens beyond the link come back as results.
    east, token_bytes = slice(0, RANKS[0]), WIDTH * 8
    west = slice(RANKS[0], EXPERTS)
    beyond = int(sent[east, west].sum() + sent[west, east].sum()) * token_bytes
    print(f"all tokens {sent.sum() * token_bytes / 1e6:.2f} MB, beyond the link "
          f"{beyond / 1e6:.2f} MB")  # fmt: skip
    for way, found in zip(("east to west", "west to east"), carried):
        print(f"{way}: the link carried {found / 1e6:.2f} MB")
    # Headers, parity and retransmissions come on top; they are more for short blocks.
    if max(carried) > 1.25 * beyond:
        sys.exit("FAIL: the link carried more than tokens for experts beyond it")
    local_run.exit_by_difference(
        "largest difference from experts in one process", max(one["worst"] for one in every), 1e-12
    )


if __name__ == "__main__":
    main()
