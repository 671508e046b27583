"""Trainers of two sites, each a process (`trainer.py`), and the same training in one process."""

import contextlib
import multiprocessing

import pytest
import torch

import trainer as trainers
from landbridge._testing import LinkSpec

PATIENCE_S = 120


#: Its server imports torch once, and each trainer is forked from it.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["trainer"])


class Process:
    """A trainer, and what it says."""

    def __init__(self, **spec):
        self.pipe, theirs = FORKS.Pipe()
        self.process = FORKS.Process(target=trainers.main, args=(spec, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def says(self, key):
        """The next message that has `key`, and those before it."""
        said = []
        while not said or key not in said[-1]:
            assert self.pipe.poll(PATIENCE_S), f"no {key} after {said}"
            try:
                said.append(self.pipe.recv())
            except EOFError:
                self.process.join()
                code = self.process.exitcode
                raise AssertionError(
                    f"a trainer ended with {code}, no {key} after {said}"
                ) from None
        return said

    def go_on(self):
        self.pipe.send("go on")

    def end(self):
        self.process.kill()
        self.process.join()
        self.pipe.close()


@contextlib.contextmanager
def trainers_of(specs):
    with contextlib.ExitStack() as stack:
        processes = []
        for spec in specs:
            processes.append(Process(**spec))
            stack.callback(processes[-1].end)
        yield processes


def outcome(process):
    """The loss of each step, the digest and the weights. A step that was begun again counts once,
    as it ended."""
    return outcome_of(process.says("weights"))


def outcome_of(lines):
    digest = next(line["digest"] for line in lines if "digest" in line)
    return losses_of(lines), digest, torch.tensor(lines[-1]["weights"])


def losses_of(lines):
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def one_process(parts, steps=trainers.STEPS):
    """The same training in one process: for each part of a batch the loss of each step, and the
    weights. `parts(step)`, lists of lists of batch sizes, say in which order gradients are added
    up: first inside each site."""
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


#: Between the sites, where a test says nothing else: far, and not without loss.
FAR = LinkSpec(rtt="80 ms", loss="0.1 %")


def specs_of(regions, mode, tmp_path, **more):
    """Two sites of two trainers each."""
    for trainer in range(4):
        site, local = divmod(trainer, 2)
        yield {
            "mode": mode,
            "config": str(regions.config(["east", "west"][site])),
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
    """Two sites of one trainer each."""
    for rank in range(2):
        yield {
            "mode": mode,
            "config": str(regions.config_of(rank)),
            "rank": rank,
            "local_rank": 0,
            "local_size": 1,
            "store": f"file://{tmp_path}/store-{rank}",
            **more,
        }


def assert_alike(outcomes, reference):
    """To rounding, which unequal weights bring about."""
    losses, weights = reference
    for (curve, _, _), expected in zip(outcomes, losses):
        # A trainer that lived through a failure tells the rest of its curve.
        assert curve.keys() == set(range(min(curve), len(expected)))
        for step, loss in curve.items():
            assert loss == pytest.approx(expected[step], rel=1e-4, abs=1e-6), step
    assert len({digest for _, digest, _ in outcomes}) == 1
    torch.testing.assert_close(outcomes[0][2], weights, rtol=1e-4, atol=1e-6)
