"""Ranks compare their finished steps and the commits that were confirmed last."""

import numpy
import pytest

import landbridge
from conftest import call_for_all
from landbridge._group import group as group_module
from landbridge._operations.step_confirmations import StepConfirmation


def agree_as(group, step, *confirmation):
    """Calls ``agree`` for a rank whose commit of ``confirmation``, an epoch and a step, was
    confirmed last. Returns the error."""
    if confirmation:
        group._state.confirmation = StepConfirmation(*confirmation)
    with pytest.raises(landbridge.StepsDiffer) as raised:
        group.agree(step)
    return raised.value


def test_ranks_agree_on_the_step_or_raise_their_steps(groups):
    def step(group):
        assert group.agree(5) == 5
        return agree_as(group, 7 if group.rank == 1 else 6)

    for differ in call_for_all(groups, step):
        assert (differ.steps, differ.furthest) == ([6, 7, 6], 1)
        assert "rank 1 (east) has finished 7, rank 2 (west) has finished 6" in str(differ)
        assert "of rank 1, and continue after step 7" in str(differ)
    with pytest.raises(landbridge.ConfigError, match="step -1"):
        groups[0].agree(-1)


def test_agree_names_a_rank_whose_step_was_done_again(groups):
    def step(group):
        # Rank 0 was lost as it heard that step 6 was complete, and rank 1 has committed nothing.
        differ = agree_as(group, 6, *((3, 6), (0, 0), (4, 6))[group.rank])
        assert group.agree(6) == 6, "all have the state of rank 2 by now"
        return differ

    for differ in call_for_all(groups, step):
        assert (differ.steps, differ.furthest) == ([6, 6, 6], 2)
        assert "rank 0 (east) has finished 6, whose last step others have done" in str(differ)
        assert "rank 2 (west) has finished 6; give every rank" in str(differ)


@pytest.mark.parametrize("ends_epoch", [True, False])
def test_a_state_that_did_not_come_is_asked_for_again(groups, ends_epoch):
    states = [numpy.full(4, group.rank) for group in groups]

    def broadcast(group, **kwargs):
        states[group.rank][:] = group.broadcast(states[group.rank], root=2, **kwargs)

    def broadcast_in_vain(group):
        with pytest.raises(landbridge.RanksTimedOut):
            broadcast(group, timeout=0.2)

    call_for_all(groups, lambda group: agree_as(group, 6, *((3, 6), (0, 0), (4, 6))[group.rank]))
    if ends_epoch:
        call_for_all(groups, lambda group: group.recover(timeout=30))
    else:
        broadcast_in_vain(groups[0])
        call_for_all(groups[1:], broadcast_in_vain)
    for differ in call_for_all(groups, lambda group: agree_as(group, 6)):
        assert (differ.steps, differ.furthest) == ([6, 6, 6], 2)
    call_for_all(groups, broadcast)
    assert call_for_all(groups, lambda group: group.agree(6)) == [6, 6, 6]
    assert all((state == 2).all() for state in states)


#: The finished steps and the last confirmed commits of three ranks: the first is behind, and the
#: second is ahead with a commit of step 6 that is not confirmed.
BEHIND_AND_AHEAD = (4, (1, 4)), (6, (1, 4)), (6, (3, 6))


def test_a_rank_behind_takes_over_one_whole_confirmation(groups):
    def step(group):
        finished, confirmation = BEHIND_AND_AHEAD[group.rank]
        assert agree_as(group, finished, *confirmation).furthest == 2
        assert group.agree(6) == 6
        return group._state.confirmation

    assert call_for_all(groups, step) == [(3, 6), (1, 4), (3, 6)]


def test_a_resumed_rank_takes_over_one_whole_confirmation(groups):
    def step(group):
        finished, confirmation = BEHIND_AND_AHEAD[group.rank]
        group._state.confirmation = StepConfirmation(*confirmation)
        state = numpy.full(100, finished)

        def load(content):
            state[:] = numpy.frombuffer(content, state.dtype)

        assert landbridge.resume_state(group, finished, lambda: state, load) == 6
        assert group.agree(6) == 6 and (state == 6).all()
        return group._state.confirmation

    assert call_for_all(groups, step) == [(3, 6), (1, 4), (3, 6)]


def test_resumed_state_replaces_a_step_that_others_did_again(groups):
    def step(group):
        group._state.confirmation = StepConfirmation(4 - (group.rank == 1), 6)
        loaded = []
        assert landbridge.resume_state(group, 6, lambda: b"%d" % group.rank, loaded.append) == 6
        assert group.agree(6) == 6
        return [bytes(content) for content in loaded]

    assert call_for_all(groups, step) == [[], [b"0"], []]


def test_a_commit_answered_during_agree_changes_no_comparison(groups, monkeypatch):
    exchange = group_module.exchange_integers

    def exchange_and_confirm(group, *args, **kwargs):
        exchanged = exchange(group, *args, **kwargs)
        group._state.confirmation = StepConfirmation(1, 99)
        return exchanged

    monkeypatch.setattr(group_module, "exchange_integers", exchange_and_confirm)
    for differ in call_for_all(groups, lambda group: agree_as(group, group.rank)):
        assert differ.furthest == 2
