"""PyTorch over two sites: trainers that are processes, and what becomes of them when something
dies."""

import contextlib
import multiprocessing
from functools import partial

import pytest

from conftest import on_all
from landbridge._lab import Lab, LinkSpec

torch = pytest.importorskip("torch")

import trainer as trainers  # noqa: E402

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
    lines = process.says("weights")
    digest = next(line["digest"] for line in lines if "digest" in line)
    return losses_of(lines), digest, torch.tensor(lines[-1]["weights"])


def losses_of(lines):
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def one_process(parts):
    """The same training in one process: for each part of a batch the loss of each step, and the
    weights. `parts`, lists of lists of batch sizes, say in which order gradients are added up:
    first inside each site."""
    torch.set_num_threads(1)
    model = trainers.make_model(seed=0)
    optimizer, data = trainers.make_optimizer(model), trainers.make_data()
    total = sum(sum(site) for site in parts)
    losses = [{} for site in parts for _ in site]
    for step in range(trainers.STEPS):
        begin, sites = step * trainers.GLOBAL_BATCH, []
        curves = iter(losses)
        for site in parts:
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
            parameter.grad = sum(grads[1:], grads[0]) / total
        optimizer.step()
    return losses, torch.cat([p.detach().reshape(-1) for p in model.parameters()])


#: Between the sites, where a test says nothing else: far, and not without loss.
FAR = LinkSpec(rtt="80 ms", loss="0.1 %")


def specs_of(lab, mode, tmp_path, **more):
    """Two sites of two trainers each."""
    for trainer in range(4):
        site, local = divmod(trainer, 2)
        yield {
            "mode": mode,
            "config": str(lab.config(["east", "west"][site])),
            "trainer": trainer,
            "ranks": 4,
            "rank": site if mode == "sharded" else trainer,
            "job": f"train-{local}" if mode == "sharded" else "train",
            "local_rank": local,
            "local_size": 2,
            "store": f"file://{tmp_path}/store-{site}",
            **more,
        }


def specs_of_two(lab, mode, tmp_path, **more):
    """Two sites of one trainer each."""
    for rank in range(2):
        yield {
            "mode": mode,
            "config": str(lab.config_of(rank)),
            "rank": rank,
            "local_rank": 0,
            "local_size": 1,
            "store": f"file://{tmp_path}/store-{rank}",
            **more,
        }


@pytest.mark.parametrize("mode", ["ddp", "sharded", "flat"])
def test_two_sites_train_like_one_process_to_the_bit(mode, tmp_path):
    """The loss of each trainer in each step, and the weights at the end. Buckets of 10 kB, which
    DDP makes anew after the first step."""
    layout = {"ranks": (1, 1), "jobs": ("train-0", "train-1")} if mode == "sharded" else {
        "ranks": (2, 2)}  # fmt: skip
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab(link=FAR, **layout))
        processes = stack.enter_context(trainers_of(specs_of(lab, mode, tmp_path)))
        outcomes = on_all(processes, outcome)
    assert len({digest for _, digest, _ in outcomes}) == 1
    losses, weights = one_process([[4, 4], [4, 4]])
    assert [outcome[0] for outcome in outcomes] == losses
    assert torch.equal(outcomes[0][2], weights)


@pytest.mark.parametrize("mode", ["ddp", "flat"])
def test_unequal_sites_train_like_one_process(mode, tmp_path):
    with Lab(ranks=(1, 1), speeds=(3.0, 1.0), link=FAR) as lab:
        with trainers_of(specs_of_two(lab, mode, tmp_path)) as processes:
            outcomes = on_all(processes, outcome)
    assert outcomes[0][1] == outcomes[1][1]
    assert_alike(outcomes, one_process([[12], [4]]))


def assert_alike(outcomes, reference):
    """To rounding, which unequal weights bring about."""
    losses, weights = reference
    for (curve, _, _), expected in zip(outcomes, losses):
        # A trainer that lived through a failure tells the rest of its curve.
        assert curve.keys() == set(range(min(curve), trainers.STEPS))
        for step, loss in curve.items():
            assert loss == pytest.approx(expected[step], rel=1e-4, abs=1e-6), step
    torch.testing.assert_close(outcomes[0][2], weights, rtol=1e-4, atol=1e-6)


#: Within which `backward` tells of a failure.
TOLD_S = 60


def raised_of(process):
    """What `backward` raised, soon enough, and what the trainer said up to that."""
    said = process.says("raised")
    assert said[-1]["after_s"] < TOLD_S
    return said[-1]["raised"], said


@pytest.mark.parametrize("mode", ["ddp", "flat", "sharded"])
def test_a_trainer_killed_at_step_5_and_restarted_changes_nothing(mode, tmp_path):
    """With shards it takes its site with it, which is started anew as a whole."""
    sharded = mode == "sharded"
    more = {"jobs": ("train-0", "train-1")} if sharded else {"speeds": (3.0, 1.0)}
    with Lab(ranks=(1, 1), link=FAR, **more) as lab:

        def specs(run, hold_at=None):
            (tmp_path / run).mkdir()
            made = list((specs_of if sharded else specs_of_two)(lab, mode, tmp_path / run))
            for index, spec in enumerate(made):
                kept = tmp_path / ("whole" if run == "whole" else "broken")
                spec["checkpoint"] = f"{kept}-{index}"
            made[-1]["hold_at"] = hold_at
            return made

        with trainers_of(specs("first", hold_at=5)) as processes:
            east, west = halves(processes)
            begun = [west[-1].says("held")]
            west[-1].end()
            if sharded:
                text, said = raised_of(west[0])
                assert "landbridge.SiteFailed: the trainers of this site" in text
                begun.insert(0, said)
                west[0].end()
            begun = [survivor.says("failed") for survivor in east] + begun
            for told in (begun[index][-1] for index in range(len(east))):
                assert told["failed"] == "RankLost" and told["step"] == 5
                assert "rank 1" in told["text"]
            with trainers_of(specs("again")[len(east) :]) as again:
                outcomes = on_all([*east, *again], outcome)
        with trainers_of(specs("whole")) as processes:
            uninterrupted = on_all(processes, outcome)
    assert {o[1] for o in outcomes} == {o[1] for o in uninterrupted}
    for before, after, whole in zip(begun, outcomes, uninterrupted):
        assert {**losses_of(before), **after[0]} == whole[0]
    assert_alike(outcomes, one_process([[4, 4], [4, 4]] if sharded else [[12], [4]]))


def halves(items):
    """Those of the east, those of the west."""
    return items[: len(items) // 2], items[len(items) // 2 :]


@pytest.mark.parametrize("mode", ["ddp", "sharded"])
def test_a_killed_gateway_is_told_by_backward_and_training_goes_on(mode, tmp_path):
    with lab_of(mode) as lab, trainers_of(specs_for(lab, mode, tmp_path, hold_at=3)) as processes:
        said = [process.says("held") for process in processes]
        lab.kill("east")
        for process in processes:
            process.go_on()
        for process in halves(processes)[0]:
            text, _ = raised_of(process)
            assert "gradients were not averaged: landbridge.GatewayLost" in text
            assert "connection to the gateway ended" in text
            assert process.says("failed")[-1]["failed"] == "GatewayLost"
        lab.start("east")
        # All hold once more where they fell back to, for they begin the step again.
        for process in processes:
            process.says("held")
            process.go_on()
        outcomes = on_all(processes, outcome)
    assert_same(mode, said, outcomes)


@pytest.mark.parametrize("mode", ["ddp", "flat", "sharded"])
def test_a_gateway_killed_between_two_buckets_changes_nothing(mode, tmp_path):
    """All have the average of one bucket of the step, and nobody that of the other."""
    specs = partial(specs_for, mode=mode, tmp_path=tmp_path, hold_between=3)
    with lab_of(mode) as lab, trainers_of(specs(lab)) as processes:
        said = [process.says("held") for process in processes]
        restart_east(lab, processes)
        outcomes = on_all(processes, outcome)
    assert_same(mode, said, outcomes)


@pytest.mark.parametrize("mode", ["ddp", "flat", "sharded"])
def test_a_region_that_has_a_step_gives_it_to_the_one_that_has_not(mode, tmp_path):
    """If each went on from where it is, they would average gradients of different steps."""
    with lab_of(mode) as lab:
        specs = list(specs_for(lab, mode, tmp_path))
        for spec in halves(specs)[0]:
            spec["lose_at"] = 3
        with trainers_of(specs) as processes:
            east, west = halves(processes)
            said = [process.says("held") for process in east]
            said += [says_loss_of(process, 3) for process in west]
            restart_east(lab, east)
            outcomes = on_all(processes, outcome)
    assert_same(mode, said, outcomes, given=3)


def test_a_trainer_that_comes_back_with_nothing_is_given_what_the_others_have(tmp_path):
    """Its optimizer's momentum too."""
    with lab_of("flat") as lab:
        specs = list(specs_for(lab, "flat", tmp_path))
        specs[1]["hold_at"] = 5
        with trainers_of(specs) as (east, west):
            said = [[], west.says("held")]
            west.end()
            said[0] = east.says("failed")
            del specs[1]["hold_at"]
            with trainers_of(specs[1:]) as again:
                outcomes = on_all([east, *again], outcome)
    assert_same("flat", said, outcomes)


def lab_of(mode):
    jobs = ("train-0", "train-1") if mode == "sharded" else ("train",)
    return Lab(ranks=(1, 1), jobs=jobs)


def specs_for(lab, mode, tmp_path, **more):
    return (specs_of if mode == "sharded" else specs_of_two)(lab, mode, tmp_path, **more)


def restart_east(lab, held):
    """While these hold; then they go on."""
    lab.kill("east")
    for process in held:
        process.go_on()
    lab.start("east")


def says_loss_of(process, step):
    said = process.says("loss")
    while said[-1]["step"] < step:
        said += process.says("loss")
    return said


def assert_same(mode, said, outcomes, given=None):
    """As an uninterrupted run, to the bit. Ranks of the east, if they were given a step, do not
    tell its loss."""
    losses, weights = one_process([[4, 4], [4, 4]] if mode == "sharded" else [[8], [8]])
    if given is not None:
        for curve in halves(losses)[0]:
            del curve[given]
    assert [{**losses_of(lines), **one[0]} for lines, one in zip(said, outcomes)] == losses
    assert len({digest for _, digest, _ in outcomes}) == 1
    assert torch.equal(outcomes[0][2], weights)


def test_a_rank_that_cannot_post_its_shard_does_not_hold_up_its_site(tmp_path):
    with Lab(ranks=(1, 1), jobs=("train-0", "train-1")) as lab:
        specs = list(specs_of(lab, "sharded", tmp_path))
        specs[0]["fill_at"] = 3
        with trainers_of(specs) as processes:
            (full, _), (other, _) = [raised_of(process) for process in processes[:2]]
    assert "landbridge.ArenaFull" in full
    assert "landbridge.EpochEnded" in other
    assert "rank 0 of this site could not exchange its shard" in other
