"""Every collective over landbridge, compared with Gloo's over the same ranks.

Prints the names of the cases that were compared, and how often each thread has waited for the
device meanwhile. With the argument `late` landbridge has tensors on the device of that name, and a
stream for each case; a second argument is a folder with the package to import.
"""

import contextlib
import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ReduceOp

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
#: More bytes than the arena of 4 MiB has, so that pieces wait for room.
LONG = 1_500_000


class Cases:
    """The cases. Each takes a process group and returns tensors."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def tensor(self, count, dtype=torch.float32, shift=0):
        """Returns small whole numbers that differ by rank, whose sums are exact in all dtypes."""
        return ((torch.arange(count) * 7 + self.rank * 3 + shift) % 5).to(dtype)

    def all_reduce(self, group):
        ops = (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX)
        results = [
            self.reduced(self.tensor(7, dtype), op, group)
            for dtype in FLOATS + INTEGERS
            for op in ops
            # Gloo has not all of these for all dtypes.
            if not (dtype == torch.bfloat16 and op == ReduceOp.PRODUCT)
        ]
        bits = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
        return results + [self.reduced(self.tensor(7, torch.int64), op, group) for op in bits]

    def reduced(self, tensor, op, group):
        dist.all_reduce(tensor, op, group=group)
        return tensor

    def shapes(self, group):
        tensors = [
            self.tensor(6).view(2, 3).t(),
            self.tensor(0),
            self.tensor(1).view(()),
            torch.complex(self.tensor(3), self.tensor(3, shift=1)),
        ]
        return [self.reduced(tensor, ReduceOp.SUM, group) for tensor in tensors]

    def long(self, group):
        received = torch.zeros(LONG // 8 * self.world)
        dist.all_gather_into_tensor(received, self.tensor(LONG // 8), group=group)
        sums = torch.zeros(LONG // 8)
        dist.reduce_scatter_tensor(sums, self.tensor(LONG // 8 * self.world), group=group)
        given = self.tensor(LONG, torch.float64)
        dist.broadcast(given, 1, group=group)
        return [self.reduced(self.tensor(LONG), ReduceOp.SUM, group), received, sums, given]

    def broadcast(self, group):
        results = []
        for root in range(self.world):
            for dtype in (*FLOATS, *INTEGERS, torch.bool, torch.complex64):
                tensor = self.tensor(5, dtype)
                dist.broadcast(tensor, root, group=group)
                results.append(tensor)
        return results

    def reduce(self, group):
        tensor = self.tensor(5)
        dist.reduce(tensor, 1, group=group)
        return [tensor] if self.rank == 1 else []

    def all_gather(self, group):
        even = [torch.zeros(2, 3) for _ in range(self.world)]
        dist.all_gather(even, self.tensor(6).view(2, 3), group=group)
        flat = torch.zeros(3 * self.world, dtype=torch.int64)
        dist.all_gather_into_tensor(flat, self.tensor(3, torch.int64), group=group)
        return [*even, flat]

    def overwritten(self, group):
        """Elements that are read before a call replaces them."""
        received = self.tensor(self.world)
        doubled = received * 2
        dist.all_gather_into_tensor(received, self.tensor(1), group=group)
        return [received, doubled]

    def reduce_scatter(self, group):
        flat = torch.zeros(3)
        dist.reduce_scatter_tensor(flat, self.tensor(3 * self.world), group=group)
        largest = torch.zeros(2)
        blocks = [self.tensor(2, shift=at) for at in range(self.world)]
        dist.reduce_scatter(largest, blocks, ReduceOp.MAX, group=group)
        return [flat, largest]

    def gather_and_scatter(self, group):
        gathered = [torch.zeros(4) for _ in range(self.world)] if self.rank == 2 else None
        dist.gather(self.tensor(4), gathered, 2, group=group)
        blocks = [self.tensor(3, shift=at) for at in range(self.world)]
        mine = torch.zeros(3)
        dist.scatter(mine, blocks if self.rank == 3 else None, 3, group=group)
        return [mine, *(gathered or [])]

    def all_to_all(self, group):
        even = torch.zeros(2 * self.world, 3)
        dist.all_to_all_single(even, self.tensor(6 * self.world).view(-1, 3), group=group)
        send = [(self.rank + 2 * other) % 3 for other in range(self.world)]
        receive = [(other + 2 * self.rank) % 3 for other in range(self.world)]
        uneven = torch.zeros(sum(receive), 2)
        rows = self.tensor(2 * sum(send)).view(-1, 2)
        dist.all_to_all_single(uneven, rows, receive, send, group=group)
        return [even, uneven]

    def objects(self, group):
        every = [None] * self.world
        dist.all_gather_object(every, {"rank": self.rank, "text": "x" * self.rank}, group=group)
        assert [one["rank"] for one in every] == list(range(self.world))
        listed = [("of", self.rank), None]
        dist.broadcast_object_list(listed, 2, group=group)
        assert listed == [("of", 2), None]
        mine = [None]
        dist.scatter_object_list(mine, list(range(self.world)), 1, group=group)
        assert mine == [self.rank]
        dist.barrier(group=group)
        return []

    def coalesced(self, group):
        tensors = [self.tensor(4), self.tensor(5, shift=1)]
        dist.all_reduce_coalesced(tensors, group=group)
        return tensors

    def functional(self, group):
        whole = self.tensor(2 * self.world)
        results = [
            functional.all_reduce(self.tensor(3), "sum", group),
            functional.all_gather_tensor(self.tensor(2), 0, group),
            functional.reduce_scatter_tensor(whole, "sum", 0, group),
            functional.all_to_all_single(whole, None, None, group),
            functional.broadcast(self.tensor(3), 1, group),
        ]
        return [result + 0 for result in results]

    def asynchronous(self, group):
        tensors = [self.tensor(5, shift=at) for at in range(20)]
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        assert all(work.wait(timedelta(seconds=60)) for work in reversed(works))
        return tensors

    def futures(self, group):
        tensors = [self.tensor(5, shift=at) for at in range(20)]
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        futures = [work.get_future() for work in works]
        for tensor, future in zip(tensors, futures):
            (value,) = future.wait()
            assert torch.equal(value, tensor)
        doubled = works[0].get_future().then(lambda future: future.value()[0] * 2).wait()
        return [*tensors, doubled]

    def inference(self, group):
        with torch.inference_mode():
            return [self.reduced(self.tensor(3), ReduceOp.SUM, group)]


def check_without_gloo():
    """Averages, sums of multiplied elements, and tensors with gaps, which Gloo does not do."""
    world = dist.get_world_size()
    whole = torch.arange(12.0).view(3, 4)
    dist.all_reduce(whole[:, 1:3])
    summed = torch.tensor([1, world, world, 1]) * torch.arange(12.0).view(3, 4)
    assert torch.equal(whole, summed)
    tensor = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(tensor, ReduceOp.AVG)
    assert tensor.tolist() == [(world - 1) / 2] * 3
    tensor = torch.ones(3)
    dist.all_reduce(tensor, torch._C._distributed_c10d._make_nccl_premul_sum(0.5))
    assert tensor.tolist() == [world / 2] * 3


def check_parts_of_sites():
    """Groups of ranks of two sites that are not all, each destroyed at its end."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for ranks in ([0, world - 1], [1, world - 1], list(range(1, world))):
        part = dist.new_group(ranks)
        if rank in ranks:
            tensor = torch.full((2,), float(1 << rank))
            dist.all_reduce(tensor, group=part)
            assert tensor.tolist() == [float(sum(1 << one for one in ranks))] * 2
            last = torch.tensor([rank])
            dist.broadcast(last, world - 1, group=part)
            assert last.item() == world - 1 and dist.get_rank(part) == ranks.index(rank)
            dist.destroy_process_group(part)
    dist.barrier()


@contextlib.contextmanager
def placed_on_late_device(device):
    """Lets tensors be made on the device and on a stream of their own, if there is a device."""
    if device is None:
        yield
        return
    with device.stream(), torch.device("late"):
        yield


def make_late_device():
    """Returns the device that the arguments ask for, or `None`."""
    if len(sys.argv) < 2:
        return None
    sys.path.insert(0, str(Path(__file__).parents[1] / "late_device"))
    sys.path.insert(0, sys.argv[2])
    from late_device import LateDevice

    device = LateDevice()
    # It registers the backend for PyTorch before 2.15, and for this device.
    import landbridge.torch  # noqa: F401

    device.install()
    return device


def main():
    device = make_late_device()
    dist.init_process_group("landbridge", timeout=timedelta(seconds=120))
    gloo, cases = dist.new_group(backend="gloo"), Cases()
    names = [name for name in vars(Cases) if name not in ("tensor", "reduced", "__init__")]
    # A future asks a device for a pool of streams, which one in Python cannot have.
    left_out = ("futures",) if device else ()
    names = [name for name in names if not name.startswith("__") and name not in left_out]
    for name in names:
        with placed_on_late_device(device):
            got = [one.cpu() for one in getattr(cases, name)(dist.group.WORLD)]
        expected = getattr(cases, name)(gloo)
        assert len(got) == len(expected), name
        for one, other in zip(got, expected):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, msg=name)
    waits = dict(device.host_waits) if device else {}
    with placed_on_late_device(device):
        check_without_gloo()
        check_parts_of_sites()
    result = {"rank": dist.get_rank(), "cases": names, "host_waits": waits}
    print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
