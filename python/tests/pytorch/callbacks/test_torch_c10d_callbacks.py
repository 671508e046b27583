"""Callbacks of futures that wait for other works, as compression hooks of PyTorch have them."""

import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

import landbridge
from conftest import DEADLINE_S, call_for_all, wait_until
from landbridge._local_regions import LocalRegions

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from landbridge.torch._c10d import exchange, send_exchange  # noqa: E402
from landbridge.torch._c10d.arena_room import ArenaRoom  # noqa: E402
from landbridge.torch._c10d.collectives import C10dCollectives  # noqa: E402
from landbridge.torch._c10d.exchange import Exchange  # noqa: E402
from site_processes import results_of, started_trainers  # noqa: E402

#: How long a work may take that waits for nothing.
LIMIT = timedelta(seconds=DEADLINE_S / 2)


class Member(C10dCollectives):
    """One rank's part of a process group."""

    def __init__(self, group):
        self.rank = group.rank
        self.exchange = Exchange(group, ArenaRoom(group._arena, 1 << 20))
        self.start_exchange(self.exchange, timedelta(seconds=DEADLINE_S))

    def all_reduce(self, tensor):
        reduction = dist.AllreduceOptions().reduceOp
        given = SimpleNamespace(reduceOp=reduction, timeout=timedelta(milliseconds=-1))
        return self.allreduce([tensor], given)


@pytest.fixture
def members(two_groups):
    """Both ranks."""
    return [Member(group) for group in two_groups]


def finish_threads(members):
    """Returns the most threads of a member that end works of one kind."""
    exchanges = [member.exchange for member in members]
    kinds = [each for one in exchanges for each in (one._finishing, one._sends._finishing)]
    return max(len(kind._threads) for kind in kinds)


#: How a callback waits for a work.
WAITS = {
    "wait": lambda work: work.wait(LIMIT),
    "future": lambda work: work.get_future().wait(),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_callback_waits_for_another_collective(wait, members):
    depth = 5

    def check(member):
        begun, sums, ended = [], [], threading.Event()

        def add_again(_):
            """Adds up once more, each time within the callback before."""
            tensor = torch.ones(3)
            work = member.all_reduce(tensor)
            if len(begun) < depth:
                begun.append(work)
                work.get_future().then(add_again)
            else:
                ended.set()
            WAITS[wait](work)
            sums.append(tensor[0].item())

        WAITS[wait](member.all_reduce(torch.ones(3)))
        last = member.all_reduce(torch.ones(3)).get_future().then(add_again)
        assert ended.wait(DEADLINE_S / 2)
        last.wait()
        wait_until(lambda: sums == [2.0] * (depth + 1))
        member.exchange.close()

    call_for_all(members, check)
    wait_until(lambda: finish_threads(members) == 0)


def test_a_callback_of_a_send_waits_for_another_send(members):
    def check(member):
        other, got = 1 - member.rank, []

        def receive_next(_):
            tensor = torch.zeros(2)
            member.recv([tensor], other, 1).get_future().wait()
            got.append(tensor[0].item())

        first = member.recv([torch.zeros(2)], other, 0)
        done = first.get_future().then(receive_next)
        works = [member.send([torch.ones(2)], other, tag) for tag in range(2)]
        done.wait()
        assert all(work.wait(LIMIT) for work in works) and got == [1.0]
        member.exchange.close()

    call_for_all(members, check)
    wait_until(lambda: finish_threads(members) == 0)


def test_a_callback_of_an_abort_waits_for_another_work(members):
    here, _ = members
    works = [here.all_reduce(torch.ones(3)) for _ in range(2)]
    futures, waited = [work.get_future() for work in works], []

    def wait_for_other(_, at):
        with pytest.raises(RuntimeError, match="aborted"):
            futures[at].wait()
        with pytest.raises(landbridge.Closed, match="aborted"):
            works[at].wait(LIMIT)
        waited.append(at)

    for at, future in enumerate(reversed(futures)):
        future.add_done_callback(lambda ended, at=at: wait_for_other(ended, at))
    here.exchange.abort()
    wait_until(lambda: len(waited) == 2)


def test_threads_that_no_callback_holds_end(members):
    def check(member):
        for _ in range(20):
            member.all_reduce(torch.ones(3)).get_future().then(lambda _: None).wait()

    call_for_all(members, check)
    # One that waits for works, and one that is idle.
    wait_until(lambda: finish_threads(members) <= 2)
    for member in members:
        member.exchange.close()
    wait_until(lambda: finish_threads(members) == 0)


def test_works_become_visible_in_their_order(members):
    def check(member):
        futures = [member.all_reduce(torch.ones(3)).get_future() for _ in range(100)]
        wrong = []

        def note_early(at):
            """Notes each work of before that is not done."""
            wrong.extend(other for other in range(at) if not futures[other].done())

        for at, future in enumerate(futures):
            future.add_done_callback(lambda _, at=at: note_early(at))
        futures[-1].wait()
        assert not wrong

    call_for_all(members, check)


def fail_thread(*_, **__):
    """Raises what nothing expects."""
    raise RuntimeError("of this test")


#: What ends each thread of an exchange, by the module and the name that it replaces.
BREAKAGES = {
    "finish": (exchange, "wait_for_arena_piece"),
    "post": (ArenaRoom, "begin_piece"),
    "sent": (send_exchange, "wait_for_arena_piece"),
    "send": (send_exchange._SendCall, "note_posted"),
}


@pytest.mark.parametrize("thread", BREAKAGES)
def test_an_error_that_ends_a_thread_fails_all_calls(thread, two_groups, monkeypatch):
    here, there = map(Member, call_for_all(two_groups, lambda group: group.new_group([0, 1])))
    monkeypatch.setattr(*BREAKAGES[thread], fail_thread)
    if thread == "post":
        # It gives up by another collective, which fails in this way too.
        monkeypatch.setattr(here.exchange, "_give_up", fail_thread)
    is_send = thread in ("sent", "send")
    start = [
        lambda: here.send([torch.ones(3)], 1, 0) if is_send else here.barrier(),
        lambda: there.recv([torch.ones(3)], 0, 0) if is_send else there.barrier(),
    ]
    work, _ = start[0](), start[1]()
    words = "the process group has failed: RuntimeError: of this test"
    with pytest.raises(landbridge.Closed, match=words):
        work.wait(LIMIT)
    with pytest.raises(landbridge.Closed, match=words):
        start[0]().wait(LIMIT)
    monkeypatch.undo()
    here.exchange.close()


def test_compression_hooks_that_wait_equal_those_of_gloo():
    script, hooks = Path(__file__).parent / "hooks_script.py", ["powerSGD_hook"]
    # The hook for quantization of earlier versions fails over Gloo itself, by an `IndexError`.
    hooks += ["quantization"] if torch.__version__ >= (2, 15) else []
    options = {"one_world": True, "arguments": hooks}
    with LocalRegions(ranks=(1, 1)) as regions:
        with started_trainers(regions, script, **options) as trainers:
            for result in results_of(trainers):
                assert list(result["apart"]) == hooks
                assert all(apart <= 1e-5 for apart in result["apart"].values()), result
