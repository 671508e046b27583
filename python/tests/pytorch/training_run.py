"""Trainers of two sites, each a process (`trainer.py`), and the same training in one process."""

import contextlib

import pytest
import torch

import trainer as trainers
from landbridge._local_regions import RelayLink
from torch_forks import FORKS, start_fork

#: Limit on the time until a trainer sends a message, in seconds.
MESSAGE_TIMEOUT_S = 120


class TrainerProcess:
    """A trainer as a process, and the messages that it sends."""

    def __init__(self, **spec):
        self.pipe, theirs = FORKS.Pipe()
        self.process = start_fork("trainer", spec, theirs)
        theirs.close()

    def read_until(self, key):
        """Returns the messages up to the next one that has `key`."""
        messages = []
        while not messages or key not in messages[-1]:
            assert self.pipe.poll(MESSAGE_TIMEOUT_S), f"no {key} after {messages}"
            try:
                messages.append(self.pipe.recv())
            except EOFError:
                self.process.join()
                code = self.process.exitcode
                raise AssertionError(
                    f"a trainer ended with {code}, no {key} after {messages}"
                ) from None
        return messages

    def release(self):
        """Lets a trainer continue that holds."""
        self.pipe.send("go on")

    def end(self):
        """Kills the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


@contextlib.contextmanager
def trainers_of(specs):
    """Yields a process for each specification, and kills them at the end."""
    with contextlib.ExitStack() as stack:
        processes = []
        for spec in specs:
            processes.append(TrainerProcess(**spec))
            stack.callback(processes[-1].end)
        yield processes


def outcome(process):
    """Returns the loss of each step, the digest and the weights of a trainer.

    A step that was begun again counts once, as it ended.
    """
    return outcome_of(process.read_until("weights"))


def outcome_of(messages):
    """Returns the losses, the digest and the weights in the messages of a trainer."""
    digest = next(message["digest"] for message in messages if "digest" in message)
    return losses_of(messages), digest, torch.tensor(messages[-1]["weights"])


def losses_of(messages):
    """Returns the loss of each step in the messages of a trainer."""
    return {message["step"]: message["loss"] for message in messages if "loss" in message}


def train_in_one_process(parts, steps=trainers.STEPS):
    """Returns losses and weights of the same training in one process, for each part of a batch.

    `parts(step)` is a list of batch sizes for each site. Gradients are added up inside each site
    first.
    """
    torch.set_num_threads(1)
    model = trainers.make_model(seed=0)
    optimizer, data = trainers.make_optimizer(model), trainers.make_data()
    losses = [{} for site in parts(0) for _ in site]
    for step in range(steps):
        begin, sites = step % trainers.STEPS * trainers.GLOBAL_BATCH, []
        curves = iter(losses)
        for site in parts(step):
            ranks = []
            for size in site:
                model.zero_grad()
                loss = trainers.loss_of(model, data, list(range(begin, begin + size)))
                loss.backward()
                next(curves)[step] = loss.item()
                ranks.append([p.grad * size for p in model.parameters()])
                begin += size
            sites.append([sum(grads[1:], grads[0]) for grads in zip(*ranks)])
        for parameter, *grads in zip(model.parameters(), *sites):
            parameter.grad = sum(grads[1:], grads[0]) / trainers.GLOBAL_BATCH
        optimizer.step()
    return losses, torch.cat([p.detach().reshape(-1) for p in model.parameters()])


#: The default link between sites, with a long delay and some loss.
LONG_LINK = RelayLink(rtt="80 ms", loss="0.1 %")


def specs_of(regions, mode, tmp_path, **more):
    """Yields the specifications of two sites of two trainers each."""
    for trainer in range(4):
        site, local = divmod(trainer, 2)
        yield {
            "mode": mode,
            "config": str(regions.region_file(["east", "west"][site])),
            "trainer": trainer,
            "ranks": 4,
            "rank": site if mode == "sharded" else trainer,
            "job": f"train-{local}" if mode == "sharded" else "train",
            "local_rank": local,
            "local_size": 2,
            "store": f"file://{tmp_path}/store-{site}",
            **more,
        }


def specs_of_two(regions, mode, tmp_path, **more):
    """Yields the specifications of two sites of one trainer each."""
    for rank in range(2):
        yield {
            "mode": mode,
            "config": str(regions.region_file_of_rank(rank)),
            "rank": rank,
            "local_rank": 0,
            "local_size": 1,
            "store": f"file://{tmp_path}/store-{rank}",
            **more,
        }


def assert_alike(outcomes, reference):
    """Asserts that losses and weights are those of the reference up to rounding."""
    losses, weights = reference
    for (curve, _, _), expected in zip(outcomes, losses):
        # A trainer that was started later has only the rest of the curve.
        assert curve.keys() == set(range(min(curve), len(expected)))
        for step, loss in curve.items():
            assert loss == pytest.approx(expected[step], rel=1e-4, abs=1e-6), step
    assert len({digest for _, digest, _ in outcomes}) == 1
    torch.testing.assert_close(outcomes[0][2], weights, rtol=1e-4, atol=1e-6)
