"""From which step training goes on, with the same weights everywhere."""

from __future__ import annotations

import io
import time
from typing import Any, List

import torch

from .._exchange import exchange
from .._group import Group
from .._operation import DEFAULT_TIMEOUT_S
from ..errors import CollectiveFailed, ConfigError, RanksDisagree
from ._sync import bare, broadcast, names_digest, parameters_digest, sync_module


def resume(
    group: Group,
    step: int,
    module: torch.nn.Module,
    *others: Any,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> int:
    """The steps that are finished, the same on every rank, which then has their weights.

    Every rank calls it before its first step, with the step of the checkpoint that it loaded or
    0, and after each ``recover``, with the steps that it has finished: those after which its
    optimizer has stepped. A failure may come to one rank before the end of a step and to another
    after it, and a rank that was started anew has an older checkpoint or none. Whoever is behind
    gets, of the first of those ranks that are ahead, the state of ``module`` and of ``others``:
    the optimizer, and what else has ``state_dict`` and ``load_state_dict``. What a rank has that
    is ahead is right, for every rank gave to it. Before anybody has finished a step, all get the
    parameters and buffers of rank 0.

    A failure that comes meanwhile is recovered from here; ``timeout`` is for all of it. Ranks
    that are behind need memory for the state twice more, the others once. With a process group
    in each site (see ``State``) trainers of one site come with one step.

    Raises ``RanksDisagree`` when modules differ in names, shapes or dtypes, ``others`` in kind,
    or parameters after the same step; and what ``Group.recover`` raises.
    """
    if not 0 <= step < 1 << 63:
        raise ConfigError(f"step {step}: accepted: 0 to 2^63 - 1")
    parts = [bare(module), *others]
    layout = names_digest(module, *(type(part).__qualname__ for part in others))
    deadline = time.monotonic() + timeout

    def left() -> float:
        return max(deadline - time.monotonic(), 0.001)

    while True:
        try:
            digest = parameters_digest(module) if step else 0
            words = exchange(group, [step, digest], layout=layout, timeout=left())
            steps, most = words[0], max(words[0])
            if most == 0:
                sync_module(module, group)
                return 0
            _check_alike(most, *words)
            if min(steps) == most:
                return step
            state = _state_of(parts, group, root=steps.index(most))
            if step < most:
                _load(parts, state)
                step = most
        except CollectiveFailed as failure:
            group.recover(failure, left())


def _check_alike(most: int, steps: List[int], digests: List[int]) -> None:
    """That no two ranks have different parameters after the same step."""
    ahead = [rank for rank, step in enumerate(steps) if step == most]
    unlike = [rank for rank in ahead if digests[rank] != digests[ahead[0]]]
    if unlike:
        ranks = ", ".join(map(str, unlike))
        raise RanksDisagree(
            f"after step {most} the parameters of rank {ahead[0]} are not those of rank {ranks}: "
            "load the same checkpoint everywhere, or choose by `sync_module` whose are right"
        )


def _state_of(parts: List[Any], group: Group, root: int) -> io.BytesIO:
    """Nothing is overwritten until all of it is there."""
    state = io.BytesIO()
    if group.rank == root:
        torch.save([part.state_dict() for part in parts], state)
    length = group.broadcast(torch.tensor([state.getbuffer().nbytes]), root)
    if group.rank != root:
        state.write(bytes(int(length)))
    broadcast([torch.frombuffer(state.getbuffer(), dtype=torch.uint8)], group, root)
    state.seek(0)
    return state


def _load(parts: List[Any], state: io.BytesIO) -> None:
    loaded = torch.load(state, map_location="cpu", weights_only=True)
    for part, of_one in zip(parts, loaded):
        part.load_state_dict(of_one)
