"""The flight recorder of ranks, and the files into which they write it."""

import json
import stat
import threading

import numpy
import pytest

import landbridge
from conftest import DEADLINE_S, attached_groups, call_for_all, wait_until
from landbridge._local_regions import LocalRegions
from landbridge._operations.flight_recorder import RECORDED_COLLECTIVES_MAX

#: How long ranks wait for one that does not post, in seconds.
MISSING_AFTER_S = 1.0


def read_dump(group, folder):
    """Returns the dump of a rank."""
    path = folder / "dump.json"
    landbridge.dump(path, group=group)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return json.loads(path.read_text())


def test_a_dump_says_what_was_posted_and_how_it_ended(two_groups, tmp_path):
    def post(group):
        group.all_reduce(numpy.ones((2, 3), "float32"))
        if group.rank == 0:
            with pytest.raises(landbridge.RanksTimedOut):
                group.all_reduce(numpy.ones(4), "sum", timeout=MISSING_AFTER_S)

    call_for_all(two_groups, post)
    told = read_dump(two_groups[0], tmp_path)
    assert (told["version"], told["rank"], told["world_size"]) == (1, 0, 2)
    done, failed = told["collectives"][-2:]
    assert (done["operation"], done["op"], done["dtype"]) == ("all_reduce", "avg", "f32")
    assert (done["shape"], done["contribution_bytes"], done["group"]) == ([2, 3], 24, 0)
    assert done["error"] is None and done["posted_seconds"] <= done["ended_seconds"]
    assert (failed["dtype"], failed["error"]) == ("f64", "RanksTimedOut")
    assert failed["sequence"] == done["sequence"] + 1
    assert failed["ended_seconds"] - failed["posted_seconds"] > MISSING_AFTER_S / 2


def test_a_dump_is_written_while_a_collective_hangs(two_groups, tmp_path):
    late = threading.Event()

    def is_under_way():
        return read_dump(two_groups[0], tmp_path)["collectives"][-1]["ended_seconds"] is None

    def look():
        wait_until(is_under_way)
        late.set()

    def post_late():
        assert late.wait(DEADLINE_S)
        two_groups[1].barrier()

    call_for_all([two_groups[0].barrier, post_late, look], lambda call: call())
    assert not is_under_way()


def test_groups_share_a_bounded_recorder(two_groups, tmp_path):
    def post(group):
        pair = group.new_group([0, 1])
        for _ in range(RECORDED_COLLECTIVES_MAX):
            pair.barrier()
        group.barrier()

    call_for_all(two_groups, post)
    told = read_dump(two_groups[0], tmp_path)["collectives"]
    assert len(told) == RECORDED_COLLECTIVES_MAX
    assert told[0]["group"] > 0 and told[-1]["group"] == 0


def test_wrong_arguments_are_refused(two_groups, tmp_path):
    for path, form in [(7, "json"), (tmp_path / "dump", "csv")]:
        with pytest.raises(landbridge.ConfigError):
            landbridge.dump(path, format=form, group=two_groups[0])
    assert not list(tmp_path.iterdir())


def test_no_secret_is_in_a_dump(tmp_path):
    with LocalRegions(ranks=(1, 1)) as running, attached_groups(running) as groups:
        elements = numpy.frombuffer(b"of a tensor.", "u1")
        call_for_all(groups, lambda group: group.all_reduce(elements, "max"))
        token = groups[0]._location.token
        secrets = [token, token.hex().encode(), elements.tobytes()]
        for form, name in [("json", "dump"), ("torch", "dump0")]:
            landbridge.dump(tmp_path / "dump", format=form, group=groups[0])
            data = (tmp_path / name).read_bytes()
            assert b"all_reduce" in data
            assert not any(secret in data for secret in secrets)
