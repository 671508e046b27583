"""Every other call of c10d, in a group of ranks of several sites: served, or refused with a text.

Prints, for each call, whether it was served, or the text by which it was refused.
"""

import json
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager

import landbridge

#: Types of elements that collectives without a reduction move.
MOVED = (
    torch.bool, torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
#: Types of integers that Gloo does not add.
ADDED = (torch.bool, torch.int16, torch.uint16, torch.uint32, torch.uint64)


class Calls:
    """The calls. Each has the name of the table in docs/pytorch.md, and checks its results."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def row(self, count=2, dtype=torch.float32, rank=None):
        """Returns a tensor that differs by rank."""
        return torch.full((count,), float(self.rank if rank is None else rank)).to(dtype)

    def all_to_all(self):
        received = [torch.zeros(2) for _ in range(self.world)]
        dist.all_to_all(received, [self.row() + 10 * other for other in range(self.world)])
        assert [one[0].item() for one in received] == [
            other + 10.0 * self.rank for other in range(self.world)
        ]

    def barrier(self):
        dist.barrier()
        assert dist.barrier(async_op=True).wait()

    def monitored_barrier(self):
        dist.monitored_barrier(timeout=timedelta(seconds=60))

    def gather_object(self):
        every = [None] * self.world if self.rank == 1 else None
        dist.gather_object({"rank": self.rank}, every, dst=1)
        assert every is None or [one["rank"] for one in every] == list(range(self.world))

    def _coalescing_manager(self):
        total = sum(range(self.world))
        for options in ({}, {"async_ops": True}):
            tensors = [self.row(), self.row(3)]
            with _coalescing_manager(**options) as manager:
                for tensor in tensors:
                    dist.all_reduce(tensor)
            if options:
                manager.wait()
            assert [tensor.tolist() for tensor in tensors] == [[total] * 2, [total] * 3]
        gathered = [torch.zeros(self.world * count) for count in (1, 2)]
        with _coalescing_manager():
            for count, tensor in enumerate(gathered, 1):
                dist.all_gather_into_tensor(tensor, self.row(count))
        assert gathered[0].tolist() == list(range(self.world)) and gathered[1].sum() == 2 * total
        scattered = [torch.zeros(count) for count in (1, 2)]
        with _coalescing_manager():
            for count, tensor in enumerate(scattered, 1):
                dist.reduce_scatter_tensor(tensor, self.row(self.world * count))
        assert [tensor.tolist() for tensor in scattered] == [[total], [total] * 2]

    def functional_coalesced(self):
        total, world = sum(range(self.world)), self.world
        group, wait = dist.group.WORLD, functional.wait_tensor
        sums = functional.all_reduce_coalesced([self.row(), self.row(1)], "sum", group)
        assert [wait(one).tolist() for one in sums] == [[total] * 2, [total]]
        parts = functional.all_gather_into_tensor_coalesced([self.row(1)], group)
        assert wait(parts[0]).tolist() == list(range(world))
        rows = [self.row(world)]
        parts = functional.reduce_scatter_tensor_coalesced(rows, "sum", [0], group)
        assert wait(parts[0]).tolist() == [total]

    def dtypes_moved(self):
        for dtype in MOVED:
            tensor = self.row(3, dtype, self.rank % 2)
            dist.broadcast(tensor, 1)
            assert tensor.to(torch.complex128).tolist() == [1] * 3, dtype
            parts = [torch.zeros(3).to(dtype) for _ in range(self.world)]
            dist.all_gather(parts, self.row(3, dtype, self.rank % 2))
            found = [part.to(torch.complex128)[0].item() for part in parts]
            assert found == [other % 2 for other in range(self.world)], dtype

    def dtypes_added(self):
        for dtype in ADDED:
            tensor = self.row(3, dtype, 1)
            dist.all_reduce(tensor)
            assert tensor.tolist() == torch.full((3,), self.world).to(dtype).tolist(), dtype

    def average_of_integers(self):
        dist.all_reduce(torch.ones(2, dtype=torch.int64), dist.ReduceOp.AVG)

    def sum_of_float8(self):
        dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn))

    def sparse(self):
        dist.all_reduce(torch.ones(2).to_sparse())

    def send_and_recv(self):
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        for dtype in (torch.float32, torch.bfloat16, *MOVED):
            given, got = self.row(3, dtype, self.rank % 2), torch.zeros(3).to(dtype)
            if self.rank % 2:
                assert dist.recv(got, before) == before
                dist.send(given, after)
            else:
                dist.send(given, after)
                assert dist.recv(got, group_src=before) == before
            assert got.to(torch.complex128).tolist() == [before % 2] * 3, dtype
        whole = torch.zeros(4, self.world)
        works = [dist.isend(self.row(4), after), dist.irecv(whole[:, before], before)]
        assert all(work.wait() for work in works)
        assert whole[:, before].eq(before).all() and whole.sum() == 4 * before
        works = [dist.isend(torch.zeros(0), after), dist.irecv(torch.zeros(0), before)]
        assert all(work.wait() for work in works)

    def isend_irecv_with_tags(self):
        others = [other for other in range(self.world) if other != self.rank]
        got = {(other, tag): torch.zeros(2) for tag in range(3) for other in others}
        works = [dist.irecv(tensor, other, tag=tag) for (other, tag), tensor in got.items()]
        # A collective ends while receives wait.
        dist.barrier()
        for tag in reversed(range(3)):
            works += [dist.isend(self.row() + 10 * tag, other, tag=tag) for other in others]
        assert all(work.wait() for work in works)
        for (other, tag), tensor in got.items():
            assert tensor.tolist() == [other + 10.0 * tag] * 2

    def send_in_a_group(self):
        part = dist.new_group([0, self.world - 1])
        if self.rank in (0, self.world - 1):
            other, got = self.world - 1 - self.rank, torch.zeros(2)
            # The same tag in the other group is another one.
            early = dist.irecv(torch.zeros(2), other)
            works = [dist.isend(self.row(), other, part), dist.irecv(got, other, part)]
            assert all(work.wait() for work in works) and got.eq(other).all()
            assert not early.get_future().done()
            # The other rank sends only once both have looked.
            dist.barrier(part)
            dist.send(self.row(), other)
            early.wait()
            dist.destroy_process_group(part)

    def batch_isend_irecv(self):
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        got = [torch.zeros(2), torch.zeros(3)]
        pairs = [dist.P2POp(dist.irecv, tensor, before) for tensor in got]
        pairs += [dist.P2POp(dist.isend, self.row(count), after) for count in (2, 3)]
        for work in dist.batch_isend_irecv(pairs):
            work.wait()
        assert [tensor.tolist() for tensor in got] == [[before] * 2, [before] * 3]

    def coalesced_sends(self):
        got, other = torch.zeros(2), self.world - 1 - self.rank
        with _coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
            dist.isend(self.row(), other)
            dist.irecv(got, other)
        manager.wait()
        assert got.eq(other).all()

    def send_object_list(self):
        other, got = self.world - 1 - self.rank, [None, None]
        if self.rank % 2:
            dist.send_object_list([{"rank": self.rank}, "x" * self.rank], other)
            dist.recv_object_list(got, other)
        else:
            assert dist.recv_object_list(got, other) == other
            dist.send_object_list([{"rank": self.rank}, "x" * self.rank], other)
        assert got == [{"rank": other}, "x" * other]

    def recv_anysource(self):
        dist.recv(torch.ones(2))

    def isend_to_itself(self):
        dist.isend(torch.ones(2), self.rank)

    def high_tag(self):
        dist.isend(torch.ones(2), (self.rank + 1) % self.world, tag=1 << 16)

    def coalesced_on_a_device(self):
        tensors, cpu = [self.row(), self.row(3)], torch.device("cpu")
        with _coalescing_manager(device=cpu, async_ops=True) as manager:
            dist.broadcast(tensors[0], 1)
            dist.broadcast(tensors[1], 2)
        manager.wait()
        assert [tensor.tolist() for tensor in tensors] == [[1.0] * 2, [2.0] * 3]


def outcome(call):
    """Returns whether a call was served, or why not."""
    try:
        call()
    except (landbridge.LandbridgeError, RuntimeError, TypeError, ValueError) as failure:
        return f"{type(failure).__name__}: {failure}".splitlines()[0]
    return "served"


def main():
    dist.init_process_group("landbridge", timeout=timedelta(seconds=60))
    calls = Calls()
    names = [name for name in vars(Calls) if name not in ("row",) and name[:2] != "__"]
    outcomes = {name: outcome(getattr(calls, name)) for name in names}
    dist.barrier()
    print(json.dumps({"rank": calls.rank, "outcomes": outcomes}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
