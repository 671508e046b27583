"""NumPy: three ranks of two regions fit a line without a deep-learning library."""

import numpy
import local_run

import landbridge

TRUE, STEPS, BATCH = numpy.array([3.0, -2.0, 0.5]), 60, 40


def samples(step):
    """The global batch of a step, the same on every rank."""
    rng = numpy.random.default_rng(step)
    inputs = rng.normal(size=(BATCH, 3))
    return inputs, inputs @ TRUE + rng.normal(scale=0.01, size=BATCH)


def gradient(weights, inputs, targets):
    return 2 * inputs.T @ (inputs @ weights - targets) / len(targets)


def loss(weights, inputs, targets):
    return ((inputs @ weights - targets) ** 2).mean()


def score(weights):
    inputs, targets = samples(STEPS)
    return 1 - loss(weights, inputs, targets) / targets.var()


def train(config, rank, folder):
    with landbridge.connect(config=config, rank=rank, arena="1 MiB") as group:
        shares = group.batch_shares(BATCH)
        first, mine = sum(shares[:rank]), shares[rank]
        weights, losses, clock = numpy.zeros(3), [], local_run.Clock()
        for step in range(STEPS):
            inputs, targets = (part[first : first + mine] for part in samples(step))
            # Weighted by samples: as if one process had seen the whole batch.
            clock.posted()
            slope = group.all_reduce_async(gradient(weights, inputs, targets), weight=mine)
            # While that is under way.
            mean = numpy.array([loss(weights, inputs, targets)])
            clock.posted()
            mean = group.all_reduce_async(mean, weight=mine)
            weights -= 0.1 * slope.wait()
            losses.append(mean.wait()[0])
            clock.came(slope)
            clock.came(mean)
            clock.step()
    return {
        "weights": weights,
        "losses": losses,
        "label": "variance explained in samples not trained on",
        "score": score(weights),
        **clock.report(),
    }


def main():
    every = local_run.run(train, ranks=(2, 1), speeds=(2.0, 1.0, 1.0), preload=["numpy_sum"])
    alone = numpy.zeros(3)
    for step in range(STEPS):
        alone -= 0.1 * gradient(alone, *samples(step))
    local_run.print_result(every[0])
    print(f"found {every[0]['weights'].round(3)}, true {TRUE}")
    local_run.exit_by("largest difference from one process, and between ranks",
                  max(abs(one["weights"] - alone).max() for one in every), 1e-12)  # fmt: skip


if __name__ == "__main__":
    main()
