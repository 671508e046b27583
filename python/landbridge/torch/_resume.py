"""Continuing after a failure or a restart, with the same weights on every rank."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from .._argument_errors import argument_error
from .._arguments import check_integer_argument, check_timeout_argument
from .._exchange_integers import exchange_integers
from .._group import Group, check_group_argument
from .._operations.operation import DEFAULT_TIMEOUT_S
from .._operations.step_confirmations import (
    StepConfirmation,
    find_latest_rank,
    list_ranks_ahead,
)
from .._state_transfer.pieces import ReceivedPieces
from .._state_transfer.resume_state import (
    RefusedSenders,
    list_refused_ranks,
    refused_senders_error,
)
from .._state_transfer.transfer_round import TransferRanks, TransferRound
from ..errors import (
    CollectiveFailed,
    RanksDisagree,
    StateNotTransferred,
    error_on_disagreement_with,
)
from ._module_sync import (
    check_module_overwritable,
    describe_module,
    load_module_state,
    module_names_digest,
    module_parameters_digest,
    module_state,
    module_without_ddp,
    sync_module,
)
from ._tensor_broadcast import BroadcastRoom, broadcast_tensors
from ._training_state import (
    UnpackableValue,
    check_training_state,
    decode_training_state,
    encode_training_state,
    list_state_values,
)
from ._transferred_state.state_follower import (
    StateFollower,
    can_follow_with,
    light_state_of_parts,
    load_light_state,
)

_log = logging.getLogger("landbridge")

#: The methods that each of ``others`` in ``resume`` must have. Without one of them ``ConfigError``
#: is raised.
_STATE_METHODS = ("state_dict", "load_state_dict")
#: The attributes by which optimizers and schedulers are known, also those of other libraries.
#: ``resume`` compares the states of what has one of them.
_COMPARED_ATTRIBUTES = ("param_groups", "get_last_lr")
#: The parts whose states are long, and still on their way while a rank follows the others.
_HEAVY_PARTS = (torch.nn.Module, torch.optim.Optimizer)
#: 0: the number by which a rank tells all others in ``resume`` that its state can be sent.
_IS_SENDABLE = 0
#: 1: the number by which a rank tells all others in ``resume`` that its state cannot be sent, so
#: that nobody waits for that state.
_IS_UNSENDABLE = 1
#: 2: the number by which a rank tells all others in ``resume`` that it could not send its state, or
#: could not load another rank's. All then raise ``StateNotTransferred``.
_HAS_FAILED = 2


def resume(
    group: Group,
    step: int,
    module: torch.nn.Module,
    *others: Any,
    follow: int = 0,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> int:
    """Brings all ranks to the same step and the same weights, and returns that step.

    Every rank calls it before its first step and after each ``recover``. A failure may reach one
    rank before the end of a step and another rank after it, and a rank that was started again has
    an old checkpoint or none. Ranks that are behind get the state of the first rank that is ahead,
    which is right because every rank contributed to it: of modules all parameters and buffers, also
    non-persistent ones, and of others what ``state_dict`` returns. Up to four ranks that are ahead
    send it, each a part; if one is lost, others send the rest. Each part is compared with a digest.
    If no rank has finished a step, all get the parameters and buffers of rank 0.

    With ``follow`` the others go on meanwhile. A rank that is behind takes part in their steps, but
    averages leave its gradients out. Its optimizers repeat these steps once the state has come. Its
    weights are not the others' before that: call ``catch_up`` before they are read, as for a
    checkpoint. Weights then change in the steps of optimizers alone, and no ``State`` has a process
    group.

    Ranks at the same step must have equal states of optimizers and schedulers too, and equal
    parameters of other modules, which at step 0 all get from rank 0. Anything else in ``others``
    may be each rank's own, such as a sampler or a generator of random numbers.

    It recovers from failures that happen meanwhile. States may hold tensors, numbers, texts,
    containers, and numbers and arrays of NumPy. Other objects must be declared on every rank with
    ``torch.serialization.add_safe_globals``. Ranks that are behind need memory for the state twice
    more, and ranks that send once; with ``follow`` also for the averages of each step that they
    follow, and all ranks for a quarter of the arena. With a process group in each site (see
    ``State``), all trainers of a site pass the same step.

    Args:
        group: The ranks.
        step: The number of steps that this rank has finished, after which its optimizer has
            stepped. At the start, the step of the loaded checkpoint, or 0.
        module: The model, with or without DDP around it.
        others: The optimizer, and anything else with ``state_dict`` and ``load_state_dict``.
        follow: How many steps ranks take while those behind receive the state; the least of all
            ranks counts. With 0 all ranks wait for the state. They also wait where ``others`` have
            no optimizer, or where one of ``others`` is a module or holds averages of weights.
        timeout: How long all of it may take, in seconds.

    Returns:
        The number of finished steps, the same on every rank.

    Raises:
        UnsupportedArray: A parameter or buffer cannot be sent or overwritten, as for
            ``sync_module``. Nothing was sent.
        StateNotTransferred: The state of every rank that is ahead holds an object that cannot be
            sent, or its parts come with other digests than were told; or a rank that is behind has
            no memory for the state or cannot load it. Every rank raises it at once.
        ArenaFull: The arena of some rank has too little room. Every rank raises an error at once.
        RanksDisagree: Modules differ in names, shapes or dtypes, ``others`` in type, or the
            parameters, optimizers or schedulers of ranks after the same step. It names the value.
        ConfigError: ``step`` is no whole number from 0 to 2^63 - 1, ``timeout`` is not above 0, or
            another argument cannot be used.
        LandbridgeError: As ``Group.recover``.
    """
    step = check_integer_argument("step", step, 1 << 63)
    check_timeout_argument(timeout)
    check_group_argument(group)
    check_module_overwritable(module)
    for other in others:
        has_methods = all(callable(getattr(other, name, None)) for name in _STATE_METHODS)
        if isinstance(other, type) or not has_methods:
            accepted = "an optimizer, or anything else with `state_dict` and `load_state_dict`"
            raise argument_error("others", other, accepted)
    follow = check_integer_argument("follow", follow, 1 << 32)
    parts = [module, *others]
    kinds = [type(part).__qualname__ for part in others]
    layout = module_names_digest(module, *kinds)
    deadline = time.monotonic() + timeout

    def remaining_s() -> float:
        """Returns the seconds until the deadline, at least 1 ms."""
        return max(deadline - time.monotonic(), 0.001)

    if group._follower is not None and not group._follower.catch_up_to_step(step):
        step = 0
    transfer = _ResumeTransfer(group, parts, follow, remaining_s)
    while True:
        try:
            room = BroadcastRoom(group)
            digest = module_parameters_digest(module) if step else 0
            sendable, unsendable = _sendability_for_resume(parts, step)
            lines = _list_resumed_values(others, step)
            told = [step, digest, transfer.tell_outcome(sendable), room.chunk_bytes]
            told += [_digest_resumed_values(lines), *transfer.tell_choices()]
            told += group._state.confirmation
            with error_on_disagreement_with(lambda: _describe_resumed_parts(module, kinds)):
                rows = exchange_integers(group, told, layout=layout, timeout=remaining_s())
            ranks = _ResumeRanks(*rows)
            ranks.raise_failed_transfer(group.rank, transfer.trouble)
            _check_equal_resumed_parameters(ranks)
            _check_equal_resumed_others(ranks, lines, group, room, remaining_s)
            if ranks.most == 0:
                room.release_memory()  # `sync_module` reserves its own.
                for part in parts:
                    if isinstance(part, torch.nn.Module):
                        sync_module(part, group, timeout=remaining_s())
                return 0
            if len(ranks.ahead) == len(ranks.steps):
                group._state.confirmation = ranks.latest_confirmation
                return step
            room.agree_on_chunk(ranks.chunks)
            if transfer.move_state(ranks, unsendable, room):
                step = ranks.most
                group._state.confirmation = ranks.latest_confirmation
                if transfer.has_begun_to_follow:
                    return step
        except CollectiveFailed as failure:
            room.release_memory()
            if time.monotonic() >= deadline:
                raise
            group.recover(failure, remaining_s())


def _describe_resumed_parts(module: torch.nn.Module, kinds: list[str]) -> str:
    """Returns what this rank has given to ``resume``, for ``RanksDisagree``."""
    return f"{describe_module(module)}; `others` here: {', '.join(kinds) or 'none'}"


class _ResumeRanks(NamedTuple):
    """The steps, digests and states that all ranks have told each other, by rank."""

    steps: list[int]
    digests: list[int]
    #: One of ``_IS_SENDABLE``, ``_IS_UNSENDABLE`` and ``_HAS_FAILED``.
    states: list[int]
    #: The longest chunk of a broadcast that each rank has room for, in bytes.
    chunks: list[int]
    #: The digests of what ranks at one step have in common in ``others``; 0 where it is unknown.
    others: list[int]
    #: The ranks whose pieces had other digests, as bits.
    refused: list[int]
    #: How many steps each rank takes while others receive the state.
    follows: list[int]
    #: The epochs and the steps of the commits that were confirmed last; 0 where none was.
    epochs: list[int]
    confirmed: list[int]

    @property
    def most(self) -> int:
        """The step of the ranks that are ahead."""
        return self.steps[self.ahead[0]]

    @property
    def ahead(self) -> list[int]:
        """The ranks whose state all others get: those that have finished the most steps.

        A region may be lost just as it hears that its last step is complete, and the others, which
        did not hear it, do that step again without it. Then it has another state after the same
        step, confirmed in an earlier epoch, and is behind.
        """
        most = max(self.steps)
        ahead = [rank for rank, step in enumerate(self.steps) if step == most]
        others = {self.others[rank] for rank in ahead} - {0}
        if len({self.digests[rank] for rank in ahead}) == 1 and len(others) <= 1:
            return ahead
        return list_ranks_ahead(self.steps, self._confirmations)

    @property
    def latest_confirmation(self) -> StepConfirmation:
        """The latest confirmation of the ranks that are ahead, whose states are equal."""
        return self._confirmations[find_latest_rank(self.ahead, self._confirmations)]

    @property
    def _confirmations(self) -> list[StepConfirmation]:
        """The commit of each rank that was confirmed last."""
        return list(map(StepConfirmation, self.epochs, self.confirmed))

    def raise_failed_transfer(self, me: int, trouble: Exception | None) -> None:
        """Raises ``StateNotTransferred`` if this or another rank could not send or load the state
        of the rank ahead. ``trouble`` is this rank's error."""
        step = f"the training state after step {self.most}"
        if trouble is not None:
            text = f"rank {me} cannot send or load {step}: {type(trouble).__name__}: {trouble}"
            raise StateNotTransferred(text) from trouble
        failed = [rank for rank, told in enumerate(self.states) if told == _HAS_FAILED]
        if failed:
            ranks = ", ".join(map(str, failed))
            text = f"rank {ranks} cannot send or load {step}; the reason is in its own error"
            raise StateNotTransferred(text)

    def plan_transfer(self, me: int, unsendable: str) -> TransferRanks:
        """Returns the ranks that are ahead and can send their state, and those that are behind.
        ``unsendable`` is why this rank cannot.

        Raises:
            StateNotTransferred: No rank can. Every rank raises it.
        """
        ahead = self.ahead
        senders = [rank for rank in ahead if self.states[rank] == _IS_SENDABLE]
        refused = list_refused_ranks(self.refused)
        if senders and refused.issuperset(senders):
            raise refused_senders_error(senders)
        if senders:
            behind = [rank for rank in range(len(self.steps)) if rank not in ahead]
            return TransferRanks([rank for rank in senders if rank not in refused], behind)
        where = f"it is in the error of rank {ahead[0]}"
        if me in ahead:
            where = f"{unsendable}; leave it out of `state_dict`, make it a number, a tensor or a "
            where += "container, or give its class to `torch.serialization.add_safe_globals`"
        ranks = ", ".join(map(str, ahead))
        raise StateNotTransferred(
            f"rank {ranks} has finished step {self.most}, which others have not, but its state "
            f"holds something that cannot be sent: {where}"
        )


class _ResumeTransfer:
    """The state on its way from ranks ahead to ranks behind, over all attempts of one ``resume``.

    Attributes:
        trouble: Why this rank could not send or load the state at the last attempt.
        has_begun_to_follow: Whether the state is still on its way while the others go on.
    """

    def __init__(
        self, group: Group, parts: list[Any], follow: int, remaining_s: Callable[[], float]
    ) -> None:
        """Prepares transfers of the state of ``parts``, during which ranks take ``follow``
        steps."""
        self.trouble: Exception | None = None
        self.has_begun_to_follow = False
        self._group, self._parts, self._remaining_s = group, parts, remaining_s
        self._others = tuple(parts[1:])
        self._follow = follow
        self._received = ReceivedPieces()
        self._refused = RefusedSenders(group)

    def tell_outcome(self, sendable: int) -> int:
        """Returns the number by which this rank tells how its last attempt ended, and whether its
        state can be sent."""
        return sendable if self.trouble is None else _HAS_FAILED

    def tell_choices(self) -> list[int]:
        """Returns the ranks that this one refuses, and how many steps it follows."""
        is_able = self._follow > 0 and can_follow_with(self._others)
        return [self._refused.encode_refused_ranks(), self._follow if is_able else 0]

    def move_state(self, ranks: _ResumeRanks, unsendable: str, room: BroadcastRoom) -> bool:
        """Makes one attempt. Returns whether this rank is at the step of the ranks ahead then, or
        follows them."""
        plan = ranks.plan_transfer(self._group.rank, unsendable)
        follow = min(ranks.follows)
        if follow and not self._move_light_state(plan, room):
            return False
        room.release_memory()
        attempt = TransferRound(
            self._group, plan, self._received, self._remaining_s, beside_steps=follow > 0
        )
        is_behind = self._group.rank in plan.receivers
        has_begun = attempt.begin_round(self._encode_state)
        if not (follow and has_begun):
            attempt.finish_round()
        self.trouble = attempt.trouble or self._refused.add_senders(attempt.damaged)
        if follow and has_begun:
            self.has_begun_to_follow = True
            if is_behind:
                self._begin_to_follow(attempt, (ranks.most, follow))
            return True
        if attempt.has_received_all:
            self.trouble = _load_state_to_resume(self._parts, self._received.content)
        return not is_behind or (attempt.has_received_all and self.trouble is None)

    def _encode_state(self) -> bytearray:
        """Returns a copy of the state of this rank."""
        return encode_training_state(_resume_state_of_parts(self._parts))

    def _begin_to_follow(self, attempt: TransferRound, steps: tuple[int, int]) -> None:
        """Lets this rank follow the others. ``steps`` are the finished ones, and how many it
        follows."""
        optimizers = [part for part in self._others if isinstance(part, torch.optim.Optimizer)]
        heavy = [part for part in self._parts if isinstance(part, _HEAVY_PARTS)]

        def load() -> Exception | None:
            """Loads the weights and the optimizers; the states of other parts have gone on."""
            return _load_state_to_resume(self._parts, self._received.content, heavy)

        StateFollower(self._group, optimizers, attempt, load, steps)

    def _move_light_state(self, plan: TransferRanks, room: BroadcastRoom) -> bool:
        """Gives ranks that are behind what they need before they follow, while all wait. Returns
        whether all could load it."""
        group, root = self._group, plan.senders[0]
        content = bytearray()
        if group.rank == root:
            try:
                content = encode_training_state(light_state_of_parts(self._others))
            except Exception as error:  # The others are told first.
                self.trouble = error
        told_length = torch.tensor([len(content)])
        length = int(group.broadcast(told_length, root, timeout=self._remaining_s()))
        if length:
            content = content or bytearray(length)
            told = torch.frombuffer(content, dtype=torch.uint8)
            broadcast_tensors([told], group, root, room=room, timeout=self._remaining_s())
            if group.rank in plan.receivers:
                try:
                    load_light_state(self._others, decode_training_state(memoryview(content)))
                except Exception as error:
                    self.trouble = error
        told_trouble = [int(self.trouble is not None)]
        (failed,) = exchange_integers(group, told_trouble, timeout=self._remaining_s())
        return not any(failed)


def _sendability_for_resume(parts: list[Any], step: int) -> tuple[int, str]:
    """Returns ``_IS_SENDABLE``, or ``_IS_UNSENDABLE`` with the reason, for the state of this rank.
    A rank without a finished step is never asked to send."""
    if step:
        try:
            check_training_state(_resume_state_of_parts(parts))
        except UnpackableValue as problem:
            return _IS_UNSENDABLE, str(problem)
        except Exception as error:  # A part of the caller failed; perhaps nobody needs its state.
            return _IS_UNSENDABLE, f"`state_dict` raised {type(error).__name__}: {error}"
    return _IS_SENDABLE, ""


def _resume_state_of_parts(parts: list[Any]) -> list[Any]:
    """Returns the state of the module, the optimizer and each other part. That of a module has all
    of its buffers."""
    return [
        module_state(part) if isinstance(part, torch.nn.Module) else part.state_dict()
        for part in parts
    ]


def _check_equal_resumed_parameters(ranks: _ResumeRanks) -> None:
    """Raises ``RanksDisagree`` unless the ranks that are ahead have the same parameters."""
    first, *rest = ranks.ahead
    unlike = [rank for rank in rest if ranks.digests[rank] != ranks.digests[first]]
    if unlike:
        named = ", ".join(map(str, unlike))
        raise RanksDisagree(
            f"after step {ranks.most} the parameters of rank {first} are not those of rank "
            f"{named}: load the same checkpoint everywhere, or call `sync_module` with the rank "
            "that is right"
        )


def _list_resumed_values(others: Sequence[Any], step: int) -> list[str]:
    """Returns a line for each value in ``others`` that ranks at one step have in common. Returns
    none where a state is not to be had."""
    lines: list[str] = []
    try:
        for at, other in enumerate(others):
            way = f"others[{at}] ({type(other).__qualname__})"
            if isinstance(other, torch.nn.Module):
                # Without a finished step it is overwritten.
                named = dict(module_without_ddp(other).named_parameters()) if step else {}
                lines += list_state_values(named, way)
            elif any(hasattr(other, name) for name in _COMPARED_ATTRIBUTES):
                lines += list_state_values(other.state_dict(), way)
    except Exception as error:  # A part of the caller failed, or holds itself.
        _log.warning("the states of `others` are not compared: %s: %s", type(error).__name__, error)
        return []
    return lines


def _digest_resumed_values(lines: list[str]) -> int:
    """Returns a digest of the lines of compared values; 0 where there are none."""
    content = "\n".join(lines).encode()
    digest = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
    return max(digest, 1) if lines else 0


def _check_equal_resumed_others(
    ranks: _ResumeRanks,
    lines: list[str],
    group: Group,
    room: BroadcastRoom,
    remaining_s: Callable[[], float],
) -> None:
    """Raises ``RanksDisagree``, with the first value that differs, unless the ranks that are ahead
    have equal optimizers and schedulers. ``lines`` are the values of this rank."""
    known = [rank for rank in ranks.ahead if ranks.others[rank]]
    unlike = [rank for rank in known if ranks.others[rank] != ranks.others[known[0]]]
    if not unlike:
        return
    # Only these two know their values, and every rank says which of them differ.
    room.agree_on_chunk(ranks.chunks)
    values = [
        _broadcast_resume_lines(lines, group, rank, room, remaining_s)
        for rank in (known[0], unlike[0])
    ]
    where, one, other = _find_unlike_resumed_value(*values)
    raise RanksDisagree(
        f"after step {ranks.most} {where} is {one} on rank {known[0]} and {other} on rank "
        f"{unlike[0]}: load the same checkpoint everywhere, or make optimizers and schedulers with "
        "the same arguments"
    )


def _broadcast_resume_lines(
    lines: list[str],
    group: Group,
    root: int,
    room: BroadcastRoom,
    remaining_s: Callable[[], float],
) -> dict[str, str]:
    """Returns the compared values of rank ``root``, by the way to each."""
    content = bytearray("\n".join(lines).encode()) if group.rank == root else bytearray()
    length = group.broadcast(torch.tensor([len(content)]), root, timeout=remaining_s())
    told = torch.zeros(int(length), dtype=torch.uint8)
    if group.rank == root:
        told = torch.frombuffer(content, dtype=torch.uint8)
    broadcast_tensors([told], group, root, room=room, timeout=remaining_s())
    text = bytes(told.tolist()).decode(errors="replace")
    return dict(line.partition("\t")[::2] for line in text.split("\n"))


def _find_unlike_resumed_value(one: dict[str, str], other: dict[str, str]) -> tuple[str, str, str]:
    """Returns the way to the first value that differs between two ranks, and both values."""
    for where in [*one, *other]:
        pair = one.get(where, "missing"), other.get(where, "missing")
        if pair[0] != pair[1]:
            return (where, *pair)
    return "the order of values in `others`", "one", "another"


def _load_state_to_resume(
    parts: list[Any], content: memoryview, only: list[Any] | None = None
) -> Exception | None:
    """Loads the state of another rank into module, optimizer and others, or into some of them
    ``only``. Returns the error of a state that this rank cannot load, so that the others are told
    first."""
    try:
        for part, part_state in zip(parts, decode_training_state(content)):
            if only is not None and not any(part is heavy for heavy in only):
                continue
            if isinstance(part, torch.nn.Module):
                load_module_state(part, part_state)
            else:
                part.load_state_dict(part_state)
    except Exception as error:
        return error
    return None
