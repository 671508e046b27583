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

STEPS, BATCH = 40, 32


def loss(parameters, inputs, targets):
    first, second = parameters
    return jnp.mean((jnp.tanh(inputs @ first) @ second - targets) ** 2)


def start():
    rng = numpy.random.default_rng(1)
    shapes = [(4, 16), (16, 1)]
    return [jnp.asarray(rng.normal(size=shape, scale=0.5), "float32") for shape in shapes]


def samples(step):
    inputs = numpy.random.default_rng(step + 2).normal(size=(BATCH, 4)).astype("float32")
    return inputs, numpy.sin(inputs[:, :1]) * inputs[:, 1:2]


def train(config, rank, folder):
    parameters, gradient = start(), jax.jit(jax.value_and_grad(loss))
    losses, clock, half = [], local_run.Clock(), BATCH // 2
    with landbridge.connect(config=config, rank=rank, arena="1 MiB") as group:
        for step in range(STEPS):
            inputs, targets = (part[rank * half :][:half] for part in samples(step))
            value, gradients = gradient(parameters, inputs, targets)
            under_way = []
            for of_one in [*gradients, value[None]]:
                clock.posted()
                under_way.append(group.all_reduce_async(of_one))
            # Results are JAX arrays of their own: the memory of the exchange is used again.
            *means, mean_loss = [operation.wait() for operation in under_way]
            parameters = [p - 0.1 * mean for p, mean in zip(parameters, means)]
            losses.append(float(mean_loss[0]))
            for operation in under_way:
                clock.came(operation)
            clock.step()
    inputs, targets = samples(STEPS)
    return {
        "weights": [numpy.asarray(p) for p in parameters],
        "losses": losses,
        "label": "variance explained in samples not trained on",
        "score": 1 - float(loss(parameters, inputs, targets)) / targets.var(),
        **clock.report(),
    }


def main():
    every = local_run.run(train, ranks=(1, 1))
    alone, gradient = start(), jax.jit(jax.grad(loss))
    for step in range(STEPS):
        alone = [p - 0.1 * of_one for p, of_one in zip(alone, gradient(alone, *samples(step)))]
    local_run.print_result(every[0])
    pairs = [pair for one in every for pair in zip(one["weights"], alone)]
    local_run.exit_by("largest difference from one process",
                  max(float(abs(a - b).max()) for a, b in pairs), 1e-5)  # fmt: skip


if __name__ == "__main__":
    main()
