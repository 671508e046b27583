"""NumPy: a pipeline of two stages in two regions. Micro-batches pass by send and receive.

The stage in east sends the activations of a micro-batch while it computes the next ones. The stage
in west sends back the gradient of each. So the link carries activations and gradients of
activations, and no gradient of a weight.
"""

import pathlib
import sys

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import local_run  # noqa: E402

import landbridge  # noqa: E402

STEPS, LEARNING_RATE = 60, 0.05
#: Micro-batches of a step, samples in each, and values of a sample before and between the stages.
MICRO_BATCHES, SAMPLES, INPUTS, HIDDEN = 8, 32, 16, 64
#: Tags of the two ways. Sends with different tags wait for nothing of each other.
ACTIVATIONS, GRADIENTS = 0, 1


def make_micro_batches(step):
    """Returns the micro-batches of a step, equal in every process: inputs and targets."""
    rng = numpy.random.default_rng(step)
    inputs = rng.normal(size=(MICRO_BATCHES, SAMPLES, INPUTS))
    return inputs, numpy.sin(inputs.sum(2, keepdims=True))


def make_weights():
    """Returns the first weights of both stages."""
    rng = numpy.random.default_rng(99)
    first = rng.normal(scale=INPUTS**-0.5, size=(INPUTS, HIDDEN))
    return first, rng.normal(scale=HIDDEN**-0.5, size=(HIDDEN, 1))


def compute_activations(weights, inputs):
    """Returns the output of the first stage."""
    return numpy.tanh(inputs @ weights)


def compute_first_slope(inputs, activations, gradient):
    """Returns the gradient of the first stage's weights, from that of its output."""
    return inputs.T @ (gradient * (1 - activations**2))


def compute_second_stage(weights, activations, targets):
    """Returns the loss of a micro-batch, and the gradients of weights and activations."""
    error = activations @ weights - targets
    slope = 2 * error / (SAMPLES * MICRO_BATCHES)
    return (error**2).mean(), activations.T @ slope, slope @ weights.T


def train_first_stage(group, weights):
    """Trains the stage in east."""
    for step in range(STEPS):
        inputs, _ = make_micro_batches(step)
        gradients = [
            group.receive_async(numpy.empty((SAMPLES, HIDDEN)), src=1, tag=GRADIENTS)
            for _ in range(MICRO_BATCHES)
        ]
        outputs, sends = [], []
        for samples in inputs:
            outputs.append(compute_activations(weights, samples))
            # On its way while the next micro-batch is computed.
            sends.append(group.send_async(outputs[-1], dst=1, tag=ACTIVATIONS))
        slope = sum(
            compute_first_slope(samples, output, gradient.wait())
            for samples, output, gradient in zip(inputs, outputs, gradients)
        )
        for send in sends:
            send.wait()
        weights -= LEARNING_RATE * slope
    return {"weights": weights}


def train_second_stage(group, weights):
    """Trains the stage in west."""
    losses = []
    for step in range(STEPS):
        _, targets = make_micro_batches(step)
        arrivals = [
            group.receive_async(numpy.empty((SAMPLES, HIDDEN)), src=0, tag=ACTIVATIONS)
            for _ in range(MICRO_BATCHES)
        ]
        slope, loss, sends = numpy.zeros_like(weights), 0.0, []
        for arrival, wanted in zip(arrivals, targets):
            part, change, gradient = compute_second_stage(weights, arrival.wait(), wanted)
            sends.append(group.send_async(gradient, dst=0, tag=GRADIENTS))
            slope, loss = slope + change, loss + part / MICRO_BATCHES
        for send in sends:
            send.wait()
        weights -= LEARNING_RATE * slope
        losses.append(loss)
    return {"weights": weights, "losses": losses}


def train(config, rank, folder):
    """Trains one stage."""
    with landbridge.connect(config=config, rank=rank, arena="64 MiB") as group:
        return (train_first_stage, train_second_stage)[rank](group, make_weights()[rank])


def train_alone():
    """Returns the weights of both stages after training in one process."""
    first, second = make_weights()
    for step in range(STEPS):
        slopes = [numpy.zeros_like(first), numpy.zeros_like(second)]
        for inputs, targets in zip(*make_micro_batches(step)):
            activations = compute_activations(first, inputs)
            _, slope, gradient = compute_second_stage(second, activations, targets)
            slopes[1] += slope
            slopes[0] += compute_first_slope(inputs, activations, gradient)
        first -= LEARNING_RATE * slopes[0]
        second -= LEARNING_RATE * slopes[1]
    return first, second


def main():
    stages, carried = local_run.run_trainers_and_link(train, ranks=(1, 1), preload=["numpy"])
    losses = stages[1]["losses"]
    print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}")
    one_way = STEPS * MICRO_BATCHES * SAMPLES * HIDDEN * 8
    for way, found in zip(("east to west", "west to east"), carried):
        print(f"{way}: {one_way / 1e6:.2f} MB sent, the link carried {found / 1e6:.2f} MB")
    local_run.exit_by_difference(
        "largest difference of a weight from one process",
        max(abs(stage["weights"] - alone).max() for stage, alone in zip(stages, train_alone())),
        1e-12,
    )


if __name__ == "__main__":
    main()
