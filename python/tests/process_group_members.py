"""Ranks of a process group over the gateways, all of them in this process."""

from datetime import timedelta
from types import SimpleNamespace

import torch.distributed as dist

from conftest import DEADLINE_S
from landbridge.torch._c10d.arena_room import ArenaRoom
from landbridge.torch._c10d.collectives import C10dCollectives
from landbridge.torch._c10d.exchange import Exchange


class Member(C10dCollectives):
    """One rank's part of a process group."""

    def __init__(self, group, room, timeout_s=DEADLINE_S):
        self.rank = group.rank
        self.exchange = Exchange(group, room)
        self.start_exchange(self.exchange, timedelta(seconds=timeout_s))


def members_of(groups, piece_bytes=1 << 20, **more):
    """Makes a member of each group, with pieces of this length."""
    return [Member(group, ArenaRoom(group._arena, piece_bytes), **more) for group in groups]


def options(**given):
    """Returns options of c10d, without a timeout of their own."""
    reduction = dist.AllreduceOptions().reduceOp
    return SimpleNamespace(
        **{"reduceOp": reduction, "timeout": timedelta(milliseconds=-1), **given}
    )
