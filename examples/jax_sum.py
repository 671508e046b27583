"""JAX: two regions train a small network, each on its half of every batch."""

import sys

import numpy
import local_run

try:
    import jax
    from jax import numpy as jnp
except ImportError:
    sys.exit(77)

import landbridge

STEPS = 40
#: Samples in the global batch of a step.
BATCH_SAMPLES = 32


def compute_loss(parameters, inputs, targets):
    """Returns the mean squared error of the network."""
    first, second = parameters
    return jnp.mean((jnp.tanh(inputs @ first) @ second - targets) ** 2)


def initial_parameters():
    """Returns the parameters before training, equal on every rank."""
    rng = numpy.random.default_rng(1)
    shapes = [(4, 16), (16, 1)]
    return [jnp.asarray(rng.normal(size=shape, scale=0.5), "float32") for shape in shapes]


def make_batch(step):
    """Returns the global batch of a step, equal on every rank."""
    inputs = numpy.random.default_rng(step + 2).normal(size=(BATCH_SAMPLES, 4)).astype("float32")
    return inputs, numpy.sin(inputs[:, :1]) * inputs[:, 1:2]


def train(config, rank, folder):
    """Trains one rank, and returns its weights, losses, score and times."""
    parameters, gradient = initial_parameters(), jax.jit(jax.value_and_grad(compute_loss))
    losses, clock, half = [], local_run.CommunicationClock(), BATCH_SAMPLES // 2
    with landbridge.connect(config=config, rank=rank, arena="1 MiB") as group:
        for step in range(STEPS):
            inputs, targets = (part[rank * half :][:half] for part in make_batch(step))
            value, gradients = gradient(parameters, inputs, targets)
            under_way = []
            for array in [*gradients, value[None]]:
                clock.note_post()
                under_way.append(group.all_reduce_async(array))
            # Results are JAX arrays of their own, because the memory of the exchange is used again.
            *means, mean_loss = [operation.wait() for operation in under_way]
            parameters = [p - 0.1 * mean for p, mean in zip(parameters, means)]
            losses.append(float(mean_loss[0]))
            for operation in under_way:
                clock.note_operation(operation)
            clock.end_step()
    inputs, targets = make_batch(STEPS)
    return {
        "weights": [numpy.asarray(p) for p in parameters],
        "losses": losses,
        "label": "variance explained in samples not trained on",
        "score": 1 - float(compute_loss(parameters, inputs, targets)) / targets.var(),
        **clock.report(),
    }


def main():
    every = local_run.run_trainers(train, ranks=(1, 1))
    alone, gradient = initial_parameters(), jax.jit(jax.grad(compute_loss))
    for step in range(STEPS):
        alone = [p - 0.1 * g for p, g in zip(alone, gradient(alone, *make_batch(step)))]
    local_run.print_result(every[0])
    pairs = [pair for one in every for pair in zip(one["weights"], alone)]
    local_run.exit_by_difference(
        "largest difference from one process",
        max(float(abs(a - b).max()) for a, b in pairs),
        1e-5,
    )


if __name__ == "__main__":
    main()
