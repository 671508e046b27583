"""NumPy: partition groups in each region, replication groups across. Only these use the link.

The ranks of a region hold one replica of the weights together, each a shard. They gather the
weights and scatter gradients inside the region. Ranks with the same shard average its gradient
over the link: a region's gradients cross it once a step, weights never.
"""

import pathlib
import sys

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import local_run  # noqa: E402

import landbridge  # noqa: E402

#: Ranks of each region: as many shards.
RANKS = (2, 2)
SHARDS = RANKS[0]
STEPS, LEARNING_RATE = 20, 0.5
#: Samples of a rank in a step, and values of a sample before and behind the hidden layer.
SAMPLES, INPUTS, OUTPUTS, HIDDEN = 32, 64, 32, 512
#: Weights of both layers; shards share them evenly.
WEIGHTS = (INPUTS + OUTPUTS) * HIDDEN


def make_batch(step, rank):
    """Returns the batch of a rank: inputs, and the outputs of a network to be found."""
    inputs = numpy.random.default_rng((step, rank)).normal(size=(SAMPLES, INPUTS))
    return inputs, numpy.sin(inputs[:, :OUTPUTS] + inputs[:, OUTPUTS:])


def make_weights():
    """Returns the first weights of both layers, one behind the other."""
    return numpy.random.default_rng(99).normal(scale=0.1, size=WEIGHTS)


def compute_loss_and_gradient(weights, inputs, targets):
    """Returns the loss of a batch, and the gradient of all weights."""
    first, second = numpy.split(weights, [INPUTS * HIDDEN])
    first, second = first.reshape(INPUTS, HIDDEN), second.reshape(HIDDEN, OUTPUTS)
    hidden = numpy.tanh(inputs @ first)
    error = hidden @ second - targets
    slope = 2 * error / error.size
    back = (slope @ second.T) * (1 - hidden**2)
    gradient = [(inputs.T @ back).ravel(), (hidden.T @ slope).ravel()]
    return (error**2).mean(), numpy.concatenate(gradient)


def train(config, rank, folder):
    """Trains one rank. Returns its shard and its losses."""
    region, shard = divmod(rank, SHARDS)
    losses = []
    with landbridge.connect(config=config, rank=rank, arena="64 MiB") as group:
        partition = group.split(color=region)
        replication = group.split(color=shard)
        mine = numpy.split(make_weights(), SHARDS)[shard]
        for step in range(STEPS):
            weights = partition.all_gather(mine)
            loss, gradient = compute_loss_and_gradient(weights, *make_batch(step, rank))
            part = partition.reduce_scatter(gradient, "avg")
            mine -= LEARNING_RATE * replication.all_reduce(part, "avg")
            losses.append(loss)
    return {"shard": mine, "losses": losses}


def train_alone():
    """Returns the weights after training on the batches of all ranks in one process."""
    weights = make_weights()
    for step in range(STEPS):
        batches = [make_batch(step, rank) for rank in range(sum(RANKS))]
        gradients = [compute_loss_and_gradient(weights, *batch)[1] for batch in batches]
        weights -= LEARNING_RATE * numpy.mean(gradients, 0)
    return weights


def main():
    every, carried = local_run.run_trainers_and_link(train, ranks=RANKS, preload=["numpy"])
    losses = every[0]["losses"]
    print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}")
    step_bytes = WEIGHTS * 8
    # A rank gathers and scatters what it has not: the shards of others.
    inside = 2 * STEPS * (SHARDS - 1) * step_bytes
    across = STEPS * step_bytes
    print(f"inside a region: {inside / 1e6:.2f} MB of weights and gradients")
    for way, found in zip(("east to west", "west to east"), carried):
        print(f"{way}: {across / 1e6:.2f} MB of gradients, the link carried {found / 1e6:.2f} MB")
    if max(carried) > 1.15 * across:
        sys.exit("FAIL: the link carried more than the replication groups sent")
    alone = numpy.split(train_alone(), SHARDS)
    local_run.exit_by_difference(
        "largest difference of a weight from one process, and between regions",
        max(abs(one["shard"] - alone[rank % SHARDS]).max() for rank, one in enumerate(every)),
        1e-12,
    )


if __name__ == "__main__":
    main()
