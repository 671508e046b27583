"""Process groups of torchft over landbridge, and trainings in which a replica dies and is back."""

import contextlib
from datetime import timedelta
from pathlib import Path

import pytest

import landbridge
from conftest import call_for_all
from landbridge._local_regions import LocalRegions

torch = pytest.importorskip("torch")
pytest.importorskip("torchft", reason="long: cargo xtask test --long, which installs torchft")

from torchft.coordination import LighthouseServer  # noqa: E402

import landbridge.torchft  # noqa: E402
import replica_script  # noqa: E402
from site_processes import Trainer, free_port, results_of  # noqa: E402

#: Steps of each training, and the one in which a replica dies before it sends.
STEPS = 6
DIES_AT = 3


@pytest.fixture(scope="module")
def regions():
    """Three regions of a rank each."""
    with LocalRegions(ranks=(1, 1, 1)) as running:
        yield running


class Replicas:
    """The process groups of some ranks, in this process."""

    def __init__(self, regions, ranks):
        make, limit = landbridge.torchft.ProcessGroup, timedelta(seconds=20)
        self.store = torch.distributed.TCPStore(
            "localhost", 0, is_master=True, wait_for_workers=False
        )
        self.groups = {
            rank: make(regions.region_file_of_rank(rank), rank=rank, arena="8 MiB", timeout=limit)
            for rank in ranks
        }
        self._quorum = 0

    def configure(self, ranks):
        """Makes a group of ranks, numbered in the order of the list."""
        self._quorum += 1
        address = f"localhost:{self.store.port}/{self._quorum}"

        def join(number):
            self.groups[ranks[number]].configure(address, "any", number, len(ranks), self._quorum)

        call_for_all(range(len(ranks)), join)
        return [self.groups[rank] for rank in ranks]

    def close(self):
        for group in self.groups.values():
            group.shutdown()


@pytest.fixture
def replicas(regions):
    """The process groups of all three ranks, which no `configure` has reached."""
    made = Replicas(regions, [0, 1, 2])
    yield made
    made.close()


def sums_of(groups):
    """Returns what each group has after an all-reduce of its number from 1 on."""

    def reduce(group):
        tensor = torch.full((3,), float(group.rank() + 1))
        group.allreduce([tensor], torch.distributed.ReduceOp.SUM).wait()
        return tensor.tolist()

    return call_for_all(groups, reduce)


def test_any_ranks_make_a_group_while_others_are_absent(replicas):
    for ranks in ([1], [0, 1], [2, 0, 1], [1, 2]):
        groups = replicas.configure(ranks)
        assert [group.rank() for group in groups] == list(range(len(ranks)))
        assert [group.size() for group in groups] == [len(ranks)] * len(ranks)
        total = float(sum(range(len(ranks) + 1)))
        assert sums_of(groups) == [[total] * 3] * len(ranks)


def test_ranks_have_the_numbers_of_torchft_in_every_call(replicas):
    def check(group):
        rank, both = group.rank(), [torch.zeros(2) for _ in range(3)]
        group.allgather([both], [torch.full((2,), float(rank))], None).wait()
        assert [each[0].item() for each in both] == [0, 1, 2]
        flat = torch.zeros(6)
        group.allgather_into_tensor_coalesced([flat], [torch.full((2,), float(rank))], None).wait()
        assert flat.tolist() == [0, 0, 1, 1, 2, 2]
        given = torch.full((2,), float(rank))
        group.broadcast_one(given, 2).wait()
        assert given.tolist() == [2, 2]
        part = torch.zeros(1)
        options = torch.distributed.ReduceScatterOptions()
        blocks = [torch.full((1,), float(number)) for number in range(3)]
        group.reduce_scatter([part], [blocks], options).wait()
        assert part.tolist() == [3.0 * rank]
        group.reduce_scatter_tensor_coalesced([part], [torch.arange(3.0)], options).wait()
        assert part.tolist() == [3.0 * rank]
        received = torch.zeros(3)
        group.alltoall_base(received, torch.arange(3.0) + 10 * rank, [], [], None).wait()
        assert received.tolist() == [rank, 10.0 + rank, 20.0 + rank]
        if rank == 0:
            group.send([torch.tensor([7.0])], 2, 4).wait()
        elif rank == 2:
            group.recv([given[:1]], 0, 4).wait()
            assert given[0].item() == 7.0

    call_for_all(replicas.configure([2, 0, 1]), check)


def test_a_lost_rank_is_an_error_until_the_next_configure(replicas):
    first, second, third = replicas.configure([0, 1, 2])
    assert first.errored() is None
    work = first.allreduce([torch.ones(2)], None)
    third._group.close()
    with pytest.raises(landbridge.RankLost, match="rank 2"):
        work.wait()
    assert isinstance(first.errored(), landbridge.RankLost)
    assert sums_of(replicas.configure([0, 1])) == [[3.0] * 3] * 2
    assert first.errored() is None
    assert sums_of(replicas.configure([0, 1, 2])) == [[6.0] * 3] * 3


def test_an_abort_ends_what_is_under_way_at_once(replicas):
    first, _ = replicas.configure([0, 1])
    work = first.allreduce([torch.ones(2)], None)
    first.abort()
    with pytest.raises(landbridge.Closed, match="aborted"):
        work.wait()
    assert sums_of(replicas.configure([0, 1])) == [[3.0] * 3] * 2


def test_a_configure_names_ranks_that_are_given_twice(replicas, regions):
    replicas.configure([0])
    again = Replicas(regions, [])
    again.groups = {0: replicas.groups[0], 1: replicas.groups[1]}
    again.groups[1]._exchange_places = lambda *_: [(0, 8 << 20, 1)] * 2
    with pytest.raises(landbridge.ConfigError, match="ranks 0, 0 of the fabric"):
        again.groups[1].configure("", "any", 1, 2)


@pytest.fixture
def lighthouse():
    """The address of a server that waits for two replicas."""
    server = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=100)
    yield server.address()
    server.shutdown()


@pytest.mark.parametrize("kind", ["average", "diloco"])
def test_a_replica_that_dies_and_comes_back_trains_on(regions, lighthouse, kind):
    weights = train_two_replicas(regions, lighthouse, kind, DIES_AT)
    if kind == "average":
        expected = torch.tensor(averaged_weights(2))
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-6)
    else:
        # In its first exchange the replica gives what it has trained without the others' weights.
        assert loss_with(weights) < loss_with(weights_at_start())


def test_diloco_without_failures_has_the_weights_of_one_process(regions, lighthouse):
    weights = train_two_replicas(regions, lighthouse, "diloco", -1)
    torch.testing.assert_close(weights, torch.tensor(outer_weights()), rtol=0, atol=1e-6)


def test_a_sharded_replica_that_dies_and_comes_back_trains_on(lighthouse):
    """A replica of HSDP is a site of two processes. One of them dies, and the other fails by it."""
    with LocalRegions(ranks=(2, 2)) as regions, contextlib.ExitStack() as stack:

        def start(replica, region, dies_at):
            return started_shards(stack, regions.region_file(region), lighthouse, replica, dies_at)

        first, second = start(0, "east", -1), start(1, "west", DIES_AT)
        for process in second:
            process.fail()
        second = start(1, "west", -1)
        results = results_of([*first, *second])
    assert [result["rank"] for result in results] == [0, 1, 2, 3]
    weights = [result["weights"] for result in results]
    assert weights == [weights[0]] * 4
    expected = torch.tensor(averaged_weights(4))
    torch.testing.assert_close(torch.tensor(weights[0]), expected, rtol=0, atol=1e-6)


def started_shards(stack, config, lighthouse, replica, dies_at):
    """Returns the two processes of a replica of HSDP, with the variables of torchrun."""
    script = Path(replica_script.__file__).with_name("sharded_replica_script.py")
    places = {"LANDBRIDGE_CONFIG": str(config), "LANDBRIDGE_ARENA": "8 MiB", "WORLD_SIZE": "2"}
    places.update(MASTER_ADDR="localhost", MASTER_PORT=str(free_port()))
    words, processes = [script, lighthouse, replica, STEPS, dies_at], []
    for rank in range(2):
        processes.append(Trainer(words, {**places, "RANK": str(rank), "LOCAL_RANK": str(rank)}))
        stack.callback(processes[-1].kill)
    return processes


def train_two_replicas(regions, lighthouse, kind, dies_at):
    """Returns the weights of two replicas, which are equal. The second dies in a step and is
    started again, unless the step is below 0."""
    running = []

    def start(replica, dies_at):
        script = Path(replica_script.__file__)
        places = {"LANDBRIDGE_CONFIG": str(regions.region_file_of_rank(replica))}
        words = [script, kind, lighthouse, replica, STEPS, dies_at]
        running.append(Trainer(words, {**places, "LANDBRIDGE_ARENA": "8 MiB"}))
        return running[-1]

    try:
        first, second = start(0, -1), start(1, dies_at)
        if dies_at >= 0:
            second.fail()
            second = start(1, -1)
        weights = [each.wait()[-1]["weights"] for each in (first, second)]
    finally:
        for trainer in running:
            trainer.kill()
    assert weights[0] == weights[1]
    return torch.tensor(weights[0])


def weights_at_start():
    return torch.tensor(replica_script.weights_of(replica_script.make_model()))


def loss_with(weights):
    """Returns the loss of a model with some weights in a batch of each replica and step."""
    model = replica_script.make_model()
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    places = [(replica, step, 0) for replica in range(2) for step in range(STEPS)]
    return sum(replica_script.backward(model, *place) for place in places)


def averaged_weights(processes):
    """Returns the weights of a training with the mean gradient of some processes."""
    model = replica_script.make_model()
    optimizer = replica_script.make_optimizer(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(processes):
            replica_script.backward(model, number, step)
        for each in model.parameters():
            each.grad /= processes
        optimizer.step()
    return replica_script.weights_of(model)


def outer_weights():
    model = replica_script.make_model()
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    for step in range(STEPS):
        outer.zero_grad()
        for replica in range(2):
            local = replica_script.make_model()
            local.load_state_dict(model.state_dict())
            optimizer = replica_script.make_inner_optimizer(local)
            for inner in range(replica_script.INNER_STEPS):
                optimizer.zero_grad()
                replica_script.backward(local, replica, step, inner)
                optimizer.step()
            for ours, each in zip(model.parameters(), local.parameters()):
                moved = (ours.detach() - each.detach()) / 2
                ours.grad = moved if ours.grad is None else ours.grad + moved
        outer.step()
    return replica_script.weights_of(model)
