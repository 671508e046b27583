"""Restarts and kills of gateways under training; `cargo xtask chaos` runs more of them."""

from collections import Counter

import pytest

pytest.importorskip("torch")

from chaos_run import EVENT_STEPS, REGIONS, Plan, explain, parse_arguments, run_chaos  # noqa: E402

#: A run of half a minute: two rolling restarts and two kills.
SHORT = Plan(restarts=2, kills=2, seed=1)


def test_restarted_and_killed_gateways_leave_trainers_and_weights():
    report = run_chaos(SHORT)
    assert not report["wrong"], explain(SHORT, report)
    # An event between two collectives fails no step, so not every event counts.
    assert all(failed >= report["events"] // 2 for failed in report["failed_steps"]), report


def test_events_follow_from_the_seed_alone():
    plan = Plan(restarts=50, kills=50, seed=7)
    events = plan.make_events()
    assert events == plan.make_events()
    assert events != plan._replace(seed=8).make_events()
    kinds = Counter((event.kind, event.region) for event in events)
    assert all(kinds["restart", region] == 50 for region in REGIONS)
    assert sum(kinds["kill", region] for region in REGIONS) == 50
    steps = [event.step for event in events]
    assert steps == sorted(set(steps)), "one event after the other"
    assert plan.count_epochs() * 32 == steps[-1] >= steps[-2] + EVENT_STEPS, "the last at the end"
    assert all(0 <= event.moment < 1 and 0 <= event.pause_s <= 3 for event in events)


def test_a_failure_names_the_command_that_repeats_it():
    plan, as_json = parse_arguments(["--restarts", "3", "--kills", "4", "--seed", "5", "--json"])
    assert (plan, as_json) == (Plan(3, 4, 5), True)
    text = explain(plan, {"wrong": ["trainer 1 ended with code 1"]})
    assert text.startswith("seed 5: trainer 1 ended")
    assert text.endswith("cargo xtask chaos --restarts 3 --kills 4 --seed 5")
