"""Landbridge: all-reduce across data centres, through the gateway on this host.

    import landbridge
    with landbridge.connect(config="east.toml", rank=0) as group:
        mean = group.all_reduce(gradients)

Nothing is imported but the standard library, and nothing is connected, before ``connect``.
"""

from ._batch_split import BatchSplit
from ._group import Group, connect, dump
from ._group.store import Store
from ._group.subgroup import Subgroup
from ._operations.commit import Commit
from ._operations.operation import Operation, Timing
from ._state_transfer.resume_state import resume_state
from .errors import (
    ArenaFull,
    AttachError,
    BadRequest,
    Closed,
    CollectiveFailed,
    ConfigError,
    EpochEnded,
    ForkedProcess,
    GatewayLost,
    GatewayShuttingDown,
    InCallback,
    LandbridgeError,
    LimitReached,
    MembershipChanged,
    NoEpoch,
    NoGateway,
    NotPermitted,
    NotSupported,
    PostTimedOut,
    RankLost,
    RanksDisagree,
    RanksTimedOut,
    Refused,
    RegionLost,
    SiteFailed,
    Stalled,
    StateNotTransferred,
    StepsDiffer,
    StoreDisconnected,
    StoreError,
    StoreRefused,
    StoreTimeout,
    UnsupportedArray,
    UntrustedSocket,
    WaitTimeout,
)

__all__ = [
    "ArenaFull",
    "AttachError",
    "BadRequest",
    "BatchSplit",
    "Closed",
    "CollectiveFailed",
    "Commit",
    "ConfigError",
    "EpochEnded",
    "ForkedProcess",
    "GatewayLost",
    "MembershipChanged",
    "GatewayShuttingDown",
    "Group",
    "InCallback",
    "LandbridgeError",
    "LimitReached",
    "NoEpoch",
    "NoGateway",
    "NotPermitted",
    "NotSupported",
    "Operation",
    "PostTimedOut",
    "RankLost",
    "RanksDisagree",
    "RanksTimedOut",
    "Refused",
    "RegionLost",
    "SiteFailed",
    "Stalled",
    "StateNotTransferred",
    "StepsDiffer",
    "Store",
    "StoreDisconnected",
    "StoreError",
    "StoreRefused",
    "StoreTimeout",
    "Subgroup",
    "Timing",
    "UnsupportedArray",
    "UntrustedSocket",
    "WaitTimeout",
    "connect",
    "dump",
    "resume_state",
]
