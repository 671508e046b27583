"""Process groups of some of the ranks, one of which aborts, and a world made twice by one process.

The argument says how the world is made: `env` or `sites`. Prints which parts have passed.
"""

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _abort_process_group

import landbridge
import landbridge.torch

TIMEOUT = timedelta(seconds=120)


def make_world():
    if sys.argv[1] == "sites":
        landbridge.torch.init_process_group(timeout=TIMEOUT)
    else:
        dist.init_process_group("landbridge", timeout=TIMEOUT)


def total(group=None, value=1.0):
    tensor = torch.full((3,), value)
    dist.all_reduce(tensor, group=group)
    return tensor[0].item()


def check_orders_of_their_own():
    """Ranks call the collectives of two groups of all ranks in different orders."""
    other = dist.new_group()
    if dist.get_rank() == 0:
        early = dist.all_reduce(torch.ones(3), group=other, async_op=True)
        assert total() == 4.0
        early.wait()
    else:
        assert total() == 4.0 and total(other) == 4.0
    dist.destroy_process_group(other)


def check_abort_of_a_pair():
    """The abort ends what is under way in the pair on both of its ranks, and nothing else."""
    rank, pair = dist.get_rank(), dist.new_group([0, 3])
    kept = dist.new_group([0, 3])
    if rank == 0:
        tensor = torch.ones(3)
        work = dist.all_reduce(tensor, group=pair, async_op=True)
        received = dist.irecv(torch.zeros(3), 3, pair)
        _abort_process_group(pair)
        assert failure_of(work.wait) == "Closed" and tensor.tolist() == [1.0] * 3
        assert failure_of(received.wait) == "Closed"
    assert total() == 4.0
    if rank == 3:
        works = [dist.all_reduce(torch.ones(3), group=pair, async_op=True) for _ in range(2)]
        assert failure_of(lambda: [work.wait() for work in works]) in ("RanksDisagree", "RankLost")
        _abort_process_group(pair)
    if rank in (0, 3):
        assert total(kept) == 2.0
    assert total() == 4.0


def check_loss_of_a_rank():
    """The last rank ends. A group without it goes on, and one with it says who is missing."""
    rank = dist.get_rank()
    without, alone = dist.new_group([0, 2]), dist.new_group([1, 3])
    if rank in (1, 3):
        works = [dist.isend(torch.ones(3), 4 - rank), dist.irecv(torch.ones(3), 4 - rank)]
        assert all(work.wait() for work in works)
    assert total() == 4.0
    if rank == 3:
        return
    if rank == 1:
        text = str(failure_of(lambda: dist.recv(torch.ones(3), 3), is_text=True))
        assert "rank 3" in text, text
    text = str(failure_of(total, is_text=True))
    assert "rank 3" in text, text
    if rank in (0, 2):
        assert total(without) == 2.0
    if rank == 1:
        text = str(failure_of(lambda: total(alone), is_text=True))
        assert "rank 3" in text, text


def failure_of(function, *, is_text=False):
    """Returns the name or the text of the failure of a function."""
    try:
        function()
    except landbridge.LandbridgeError as failure:
        return f"{failure}" if is_text else type(failure).__name__
    return "nothing"


def main():
    make_world()
    check_orders_of_their_own()
    check_abort_of_a_pair()
    rank = dist.get_rank()
    # PyTorch's store at one port may still be the one of the earlier world.
    for _ in range(2 if sys.argv[1] == "sites" else 0):
        # The store of a site ends with the rank that keeps it.
        dist.barrier()
        dist.destroy_process_group()
        make_world()
        assert dist.get_rank() == rank and total(value=float(rank)) == 6.0
        pair = dist.new_group([1, 2])
        assert rank not in (1, 2) or total(pair) == 2.0
    check_loss_of_a_rank()
    print(json.dumps({"rank": rank}), flush=True)
    if rank != 3:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
