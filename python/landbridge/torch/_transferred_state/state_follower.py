"""A rank that takes part in steps while its state is still on its way.

It computes with weights that are not the others', so its gradients have no weight in averages. It
keeps the averages of each step. Once the state has come whole it loads that, and lets its
optimizers repeat the steps that the others have taken meanwhile.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..._group import Group, check_group_argument
from ..._state_transfer.transfer_round import TransferRound
from ...errors import CollectiveFailed, EpochEnded, StateNotTransferred


class _FollowedStep(NamedTuple):
    """A step of an optimizer that is to be repeated."""

    optimizer: torch.optim.Optimizer
    #: The averaged gradient of each parameter, in the order of the optimizer; ``None`` where the
    #: parameter has none.
    gradients: list[torch.Tensor | None]
    #: The options of each group of parameters, such as the learning rate.
    options: list[dict[str, Any]]

    def set_gradients(self) -> None:
        """Gives the optimizer the gradients and the options of the step."""
        for group, own in zip(self.optimizer.param_groups, self.options):
            group.update(own)
        for parameter, gradient in zip(_optimized_parameters(self.optimizer), self.gradients):
            parameter.grad = gradient


class StateFollower:
    """The steps of this rank until it has caught up with the others."""

    def __init__(
        self,
        group: Group,
        optimizers: list[torch.optim.Optimizer],
        attempt: TransferRound,
        load: Callable[[], Exception | None],
        steps: tuple[int, int],
    ) -> None:
        """Begins to follow.

        Args:
            group: The ranks.
            optimizers: All that change the weights.
            attempt: The transfer of the state.
            load: Loads the state once it is complete, and returns the error of one that it cannot
                load.
            steps: The number of finished steps, and how many more the others may take meanwhile.
        """
        self._group = group
        self._optimizers = optimizers
        self._attempt, self._load = attempt, load
        self._begun, self._most = steps
        self._steps: list[_FollowedStep] = []
        self._is_repeating = False
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._make_step_hook())
        group._follower = self

    def catch_up(self) -> None:
        """Waits for the state, loads it, and repeats the steps that the others have taken.

        Raises:
            CollectiveFailed: The state has not come whole, as where the ranks that sent it were
                lost. Recover, and call ``resume`` again.
            StateNotTransferred: This rank cannot load the state.
        """
        self._attempt.finish_round()
        if not self._attempt.has_received_all:
            text = "the state of the others has not come whole; recover, and call `resume` again"
            raise self._attempt.failure or EpochEnded(text)
        # Loading and repeating change gradients and options, which belong to the step under way.
        now = [_note_followed_step(optimizer) for optimizer in self._optimizers]
        trouble = self._load()
        if trouble is not None:
            text = "this rank cannot load the state of the others"
            raise StateNotTransferred(f"{text}: {type(trouble).__name__}: {trouble}") from trouble
        self._is_repeating = True
        for step in self._steps:
            step.set_gradients()
            step.optimizer.step()
        for step in now:
            step.set_gradients()
        self.end()

    def catch_up_to_step(self, step: int) -> bool:
        """Stops following the others. Returns whether this rank has the state after ``step`` then,
        for which it catches up."""
        if len(self._steps) == (step - self._begun) * len(self._optimizers):
            with contextlib.suppress(CollectiveFailed):
                self.catch_up()
                return True
        self.end()
        return False

    def end(self) -> None:
        """Follows no longer: gradients of this rank count, and nothing is kept."""
        self._attempt.cancel_round()
        self._steps = []
        self._group._follower = None

    def _make_step_hook(self) -> Any:
        """Returns the hook that an optimizer calls before each step. It does nothing once this
        object is gone: an optimizer cannot lose a hook while it calls it."""
        weakly = weakref.ref(self)

        def handle_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            """Hands the optimizer to the object, if that is still there and follows."""
            follower = weakly()
            if follower is not None and follower._group._follower is follower:
                follower._handle_step(optimizer)

        return handle_step

    def _handle_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Keeps the averages before a step of an optimizer. Catches up instead once the state has
        come, or where the others may take no more steps."""
        if self._is_repeating:
            return
        is_full = len(self._steps) >= self._most * len(self._optimizers)
        if is_full or not self._attempt.is_running:
            return self.catch_up()
        step = _note_followed_step(optimizer)
        kept = [None if gradient is None else gradient.clone() for gradient in step.gradients]
        self._steps.append(step._replace(gradients=kept))


def catch_up(group: Group) -> None:
    """Returns once this rank has the weights of the others, if it has ``follow``ed them.

    Call it before weights are read, as for a checkpoint or an evaluation. ``resume`` does the same.

    Args:
        group: The ranks.

    Raises:
        CollectiveFailed: The state has not come whole. Recover, and call ``resume`` again.
        StateNotTransferred: This rank cannot load the state.
        ConfigError: ``group`` is not the group that ``connect`` returned.
    """
    check_group_argument(group)
    follower = group._follower
    if follower is not None:
        follower.catch_up()


def can_follow_with(others: tuple[Any, ...]) -> bool:
    """Returns whether a rank can follow with these parts beside its model. At least one must be an
    optimizer. No other part may be a module, or hold weights in its state."""
    rest = [other for other in others if not isinstance(other, torch.optim.Optimizer)]
    if len(rest) == len(others) or any(isinstance(other, torch.nn.Module) for other in rest):
        return False
    try:
        return not any(_holds_weights(other.state_dict()) for other in rest)
    except Exception:  # A part of the caller failed, which is told where its state is needed.
        return False


def light_state_of_parts(others: tuple[Any, ...]) -> list[Any]:
    """Returns what a rank needs before it follows: the options of optimizers, and the states of
    other parts."""
    return [
        _options_of_optimizer(other)
        if isinstance(other, torch.optim.Optimizer)
        else other.state_dict()
        for other in others
    ]


def load_light_state(others: tuple[Any, ...], states: list[Any]) -> None:
    """Loads what ``light_state_of_parts`` returned on another rank."""
    for other, state in zip(others, states):
        if isinstance(other, torch.optim.Optimizer):
            for group, options in zip(other.param_groups, state):
                group.update(options)
        else:
            other.load_state_dict(state)


def _note_followed_step(optimizer: torch.optim.Optimizer) -> _FollowedStep:
    """Returns the gradients and options with which an optimizer steps now."""
    gradients = [parameter.grad for parameter in _optimized_parameters(optimizer)]
    return _FollowedStep(optimizer, gradients, _options_of_optimizer(optimizer))


def _optimized_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns the parameters of an optimizer, in its order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _options_of_optimizer(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Returns a copy of the options of each group of parameters."""
    return [
        {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


def _holds_weights(value: Any) -> bool:
    """Returns whether a state holds tensors of several floats, as an average of weights does."""
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() and value.numel() > 1
    if isinstance(value, dict):
        return any(_holds_weights(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(_holds_weights(item) for item in value)
