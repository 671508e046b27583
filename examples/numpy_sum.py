"""NumPy: three ranks of two regions fit a line without a deep-learning library."""

import numpy
import local_run

import landbridge

#: Weights of the line that training should find.
TRUE_WEIGHTS = numpy.array([3.0, -2.0, 0.5])
STEPS = 60
#: Samples in the global batch of a step: few, so that the example takes a second.
BATCH_SAMPLES = 40


def make_batch(step):
    """Returns the global batch of a step, equal on every rank."""
    rng = numpy.random.default_rng(step)
    inputs = rng.normal(size=(BATCH_SAMPLES, 3))
    return inputs, inputs @ TRUE_WEIGHTS + rng.normal(scale=0.01, size=BATCH_SAMPLES)


def compute_gradient(weights, inputs, targets):
    """Returns the gradient of the mean squared error of a linear model with these weights."""
    return 2 * inputs.T @ (inputs @ weights - targets) / len(targets)


def compute_loss(weights, inputs, targets):
    """Returns the mean squared error."""
    return ((inputs @ weights - targets) ** 2).mean()


def compute_score(weights):
    """Returns the explained part of the variance of a batch that was not trained on."""
    inputs, targets = make_batch(STEPS)
    return 1 - compute_loss(weights, inputs, targets) / targets.var()


def train(config, rank, folder):
    """Trains one rank, and returns its weights, losses, score and times."""
    with landbridge.connect(config=config, rank=rank, arena="1 MiB") as group:
        shares = group.batch_shares(BATCH_SAMPLES)
        first, mine = sum(shares[:rank]), shares[rank]
        weights, losses, clock = numpy.zeros(3), [], local_run.CommunicationClock()
        for step in range(STEPS):
            inputs, targets = (part[first : first + mine] for part in make_batch(step))
            # Weighting by samples gives the gradient of the whole batch.
            clock.note_post()
            slope = group.all_reduce_async(compute_gradient(weights, inputs, targets), weight=mine)
            # The loss is computed while the gradient is under way.
            mean = numpy.array([compute_loss(weights, inputs, targets)])
            clock.note_post()
            mean = group.all_reduce_async(mean, weight=mine)
            weights -= 0.1 * slope.wait()
            losses.append(mean.wait()[0])
            clock.note_operation(slope)
            clock.note_operation(mean)
            clock.end_step()
    return {
        "weights": weights,
        "losses": losses,
        "label": "variance explained in samples not trained on",
        "score": compute_score(weights),
        **clock.report(),
    }


def main():
    every = local_run.run_trainers(
        train, ranks=(2, 1), speeds=(2.0, 1.0, 1.0), preload=["numpy"]
    )
    alone = numpy.zeros(3)
    for step in range(STEPS):
        alone -= 0.1 * compute_gradient(alone, *make_batch(step))
    local_run.print_result(every[0])
    print(f"found {every[0]['weights'].round(3)}, true {TRUE_WEIGHTS}")
    local_run.exit_by_difference(
        "largest difference from one process, and between ranks",
        max(abs(one["weights"] - alone).max() for one in every),
        1e-12,
    )


if __name__ == "__main__":
    main()
