"""The records of a rank in the format of torch's flight recorder, which ``torchfrtrace`` reads."""

from __future__ import annotations

import math
import pickle
from typing import Any

from .._protocol.collective_types import CollectiveKind
from .flight_recorder import RecordedCollective

#: The version of the format that torch 2.15 writes.
_TRACE_VERSION = "2.10"
#: The name and the description of the job's process group.
_JOB_GROUP = ("0", "landbridge")
#: The names of element types in torch; others keep their own.
_TORCH_DTYPES = {
    "f32": "Float",
    "f64": "Double",
    "f16": "Half",
    "bf16": "BFloat16",
    "i32": "Int",
    "i64": "Long",
    "u8": "Byte",
    "i8": "Char",
    "i16": "Short",
    "u16": "UInt16",
    "u32": "UInt32",
    "u64": "UInt64",
    "bool": "Bool",
}
#: The names of operations on blocks of any length, where torch's differ.
_BLOCK_NAMES = {
    CollectiveKind.ALL_GATHER: "all_gather_v",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter_v",
}


def encode_torch_trace(records: list[RecordedCollective], world_size: int) -> bytes:
    """Returns the job's collectives in the last epoch of the records as torch pickles them.

    Those of groups are left out, since ranks know a group by different numbers. So are earlier
    epochs, of which ranks may have posted different parts, and sends, which torch counts otherwise.
    """
    of_job = [record for record in records if record.group == 0]
    entries = [_torch_entry(record) for record in of_job if record.epoch == of_job[-1].epoch]
    name, description = _JOB_GROUP
    ranks = str(list(range(world_size)))
    trace = {
        "version": _TRACE_VERSION,
        "pg_config": {name: {"name": name, "desc": description, "ranks": ranks}},
        "pg_status": {},
        "entries": entries,
    }
    # Protocol 2, which torch writes.
    return pickle.dumps(trace, protocol=2)


def _torch_entry(record: RecordedCollective) -> dict[str, Any]:
    """Returns a record as torch's flight recorder has it."""
    passed = record.passed
    kind = passed.options.kind
    name = kind.name.lower() if passed.all_elements is None else _BLOCK_NAMES.get(kind)
    sizes, dtype = _torch_sizes(record)
    return {
        "frames": [],
        # Torch drops what comes before the first record of any rank, so it counts for all ranks.
        "record_id": record.sequence,
        "pg_id": 0,
        "process_group": _JOB_GROUP,
        "collective_seq_id": record.sequence,
        "p2p_seq_id": 0,
        "op_id": record.sequence,
        # Torch's tool takes no other library than NCCL and XCCL.
        "profiling_name": f"nccl:{name or kind.name.lower()}",
        "time_created_ns": record.posted_ns,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": record.ended_ns if record.is_completed else None,
        "input_sizes": [sizes[0]],
        "input_dtypes": [dtype],
        "output_sizes": [sizes[1]],
        "output_dtypes": [dtype],
        "state": "completed" if record.is_completed else "scheduled",
        "timeout_ms": passed.options.timeout_ns // 1_000_000,
        "is_p2p": False,
        "retired": record.ended_ns is not None,
    }


def _torch_sizes(record: RecordedCollective) -> tuple[tuple[list[int], list[int]], str]:
    """Returns the sizes of contribution and result that ranks have to agree on, and the type."""
    passed = record.passed
    if passed.options.kind == CollectiveKind.ALL_TO_ALL:
        # Torch compares the sums of what all ranks send and receive.
        return ([record.slot_bytes[0]], [record.slot_bytes[1]]), "Byte"
    agreed = list(passed.shape)
    if passed.all_elements is not None:
        # Of blocks each rank may have another number, but all know that of all together.
        agreed = [passed.all_elements]
    elif passed.options.flat:
        agreed = [math.prod(agreed)]
    return (agreed, agreed), _TORCH_DTYPES.get(passed.dtype, passed.dtype)
