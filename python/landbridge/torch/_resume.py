"""Continuing after a failure or a restart, with the same weights on every rank."""

from __future__ import annotations

import io
import time
from typing import Any

import torch

from .._exchange import exchange_integers
from .._group import Group
from .._operation import DEFAULT_TIMEOUT_S
from ..errors import CollectiveFailed, ConfigError, RanksDisagree
from ._sync import (
    broadcast_tensors,
    check_overwritable,
    names_digest,
    parameters_digest,
    strip_ddp,
    sync_module,
)


def resume(
    group: Group,
    step: int,
    module: torch.nn.Module,
    *others: Any,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> int:
    """Brings all ranks to the same step and the same weights, and returns that step.

    Every rank calls it before its first step and after each ``recover``. A failure may reach one
    rank before the end of a step and another rank after it, and a rank that was started again has
    an old checkpoint or none. Ranks that are behind get the state of the first rank that is ahead,
    which is right because every rank contributed to it. If no rank has finished a step, all get
    the parameters and buffers of rank 0.

    It recovers from failures that happen meanwhile. Ranks that are behind need memory for the
    state twice more, and other ranks once. With a process group in each site (see ``State``), all
    trainers of a site pass the same step.

    Args:
        group: The ranks.
        step: The number of steps that this rank has finished, after which its optimizer has
            stepped. At the start, the step of the loaded checkpoint, or 0.
        module: The model, with or without DDP around it.
        others: The optimizer, and anything else with ``state_dict`` and ``load_state_dict``.
        timeout: How long all of it may take, in seconds.

    Returns:
        The number of finished steps, the same on every rank.

    Raises:
        UnsupportedArray: A parameter or buffer cannot be sent or overwritten, as for
            ``sync_module``. Nothing was sent.
        RanksDisagree: Modules differ in names, shapes or dtypes, ``others`` in type, or the
            parameters of ranks after the same step.
        LandbridgeError: As ``Group.recover``.
    """
    if not 0 <= step < 1 << 63:
        raise ConfigError(f"step {step}: accepted: 0 to 2^63 - 1")
    check_overwritable(module)
    parts = [strip_ddp(module), *others]
    layout = names_digest(module, *(type(part).__qualname__ for part in others))
    deadline = time.monotonic() + timeout

    def remaining_s() -> float:
        """Returns the seconds until the deadline, at least 1 ms."""
        return max(deadline - time.monotonic(), 0.001)

    while True:
        try:
            digest = parameters_digest(module) if step else 0
            rows = exchange_integers(group, [step, digest], layout=layout, timeout=remaining_s())
            steps, most = rows[0], max(rows[0])
            if most == 0:
                sync_module(module, group)
                return 0
            _check_equal_parameters(most, *rows)
            if min(steps) == most:
                return step
            state = _broadcast_training_state(parts, group, root=steps.index(most))
            if step < most:
                _load_training_state(parts, state)
                step = most
        except CollectiveFailed as failure:
            group.recover(failure, remaining_s())


def _check_equal_parameters(most: int, steps: list[int], digests: list[int]) -> None:
    """Raises ``RanksDisagree`` unless the ranks that are ahead, at step ``most``, have the same
    parameters."""
    ahead = [rank for rank, step in enumerate(steps) if step == most]
    unlike = [rank for rank in ahead if digests[rank] != digests[ahead[0]]]
    if unlike:
        ranks = ", ".join(map(str, unlike))
        raise RanksDisagree(
            f"after step {most} the parameters of rank {ahead[0]} are not those of rank {ranks}: "
            "load the same checkpoint everywhere, or call `sync_module` with the rank that is right"
        )


def _broadcast_training_state(parts: list[Any], group: Group, root: int) -> io.BytesIO:
    """Returns the state of module, optimizer and others of rank ``root``. Nothing is overwritten
    before it is complete."""
    state = io.BytesIO()
    if group.rank == root:
        torch.save([part.state_dict() for part in parts], state)
    length = group.broadcast(torch.tensor([state.getbuffer().nbytes]), root)
    if group.rank != root:
        state.write(bytes(int(length)))
    broadcast_tensors([torch.frombuffer(state.getbuffer(), dtype=torch.uint8)], group, root)
    state.seek(0)
    return state


def _load_training_state(parts: list[Any], state: io.BytesIO) -> None:
    """Loads the state of another rank into module, optimizer and others."""
    loaded = torch.load(state, map_location="cpu", weights_only=True)
    for part, part_state in zip(parts, loaded):
        part.load_state_dict(part_state)
