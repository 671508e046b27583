"""The flight recorder of ranks, and the files into which they write it."""

import json
import os
import stat
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy
import pytest

import landbridge
from conftest import DEADLINE_S, attached_groups, call_for_all, read_golden, wait_until
from landbridge._arguments import CollectiveOptions, PassedArguments
from landbridge._local_regions import LocalRegions
from landbridge._operations import failure_dumps
from landbridge._operations.failure_dumps import DUMP_FILES_MAX, FailureDumps
from landbridge._operations.flight_recorder import (
    RECORDED_COLLECTIVES_MAX,
    FlightRecorder,
    RecordedCollective,
)
from landbridge._protocol.collective_types import CollectiveKind, Op

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
    assert done["code"] is None and done["posted_seconds"] <= done["ended_seconds"]
    assert (failed["dtype"], failed["code"]) == ("f64", landbridge.RanksTimedOut.code)
    assert failed["error_text"].startswith("timed out waiting for ranks (cause: caller): ")
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


#: A send of rank 0 of its group with tag 7: the number of the first place in that series.
SEND_SEQUENCE = 1 << 61 | 7 << 44

#: The posts of the golden file: group, epoch, sequence, kind, reduction, type, elements and bytes of
#: an element.
GOLDEN_POSTS = [
    (0, 3, 17, CollectiveKind.ALL_REDUCE, Op.AVG, "f32", (6, 6), 4),
    (0, 3, 18, CollectiveKind.BARRIER, Op.SUM, "u8", (0, 0), 1),
    (0, 3, 19, CollectiveKind.ALL_GATHER, Op.SUM, "u8", (3, 9), 1),
    (0, 3, 20, CollectiveKind.REDUCE_SCATTER, Op.SUM, "i32", (9, 3), 4),
    (0, 3, 21, CollectiveKind.ALL_TO_ALL, Op.SUM, "f64", (6, 6), 8),
    (0, 3, 22, CollectiveKind.GATHER, Op.SUM, "u8", (2, 0), 1),
    (0, 3, 23, CollectiveKind.REDUCE, Op.MAX, "bf16", (5, 0), 2),
    (2, 1, 0, CollectiveKind.BROADCAST, Op.SUM, "i64", (4, 4), 8),
    (3, 1, SEND_SEQUENCE, CollectiveKind.SEND, Op.SUM, "i16", (0, 2), 2),
]


def test_a_dump_equals_that_of_the_client_in_rust():
    recorder = FlightRecorder()
    recorder.fabric, recorder.job, recorder.rank, recorder.world_size = "two", "train", 1, 3
    for second, (group, epoch, sequence, kind, op, dtype, elements, size) in enumerate(
        GOLDEN_POSTS
    ):
        options = CollectiveOptions(kind, 0, op, 1.0, 0, 0)
        passed = PassedArguments(options, dtype, 0, (elements[0] or elements[1],))
        slots = elements[0] * size, elements[1] * size
        record = RecordedCollective(group, (epoch, sequence), passed, slots)
        if kind == CollectiveKind.REDUCE:
            record.note_end(landbridge.RanksTimedOut("rank 2 has not posted"))
        elif group == 0:
            record.note_end(None)
        record.posted_ns = (1_700_000_000 + second) * 10**9
        if record.ended_ns is not None:
            record.ended_ns = record.posted_ns + 250_000_000
        recorder.add(record)
    told = json.loads(recorder.encode()) | {"dumped_seconds": 1_700_000_060.5}
    assert [told] == read_golden("client_dump.jsonl")


@pytest.fixture
def dumps(tmp_path):
    """Dumps of rank 1 of the job train, and their folder."""
    recorder = FlightRecorder()
    recorder.job, recorder.rank = "train", 1
    return FailureDumps(str(tmp_path / "new" / "dumps"), recorder), tmp_path / "new" / "dumps"


def test_failures_soon_after_a_dump_share_the_next(dumps, monkeypatch):
    pause = threading.Event()
    clock = SimpleNamespace(time=time.time, sleep=lambda _: pause.wait(DEADLINE_S))
    monkeypatch.setattr(failure_dumps, "time", clock)
    writer, folder = dumps
    for no_reason in (landbridge.EpochEnded, landbridge.BadRequest, landbridge.PostTimedOut):
        writer.note_failure(no_reason)
    assert not folder.exists()
    writer.note_failure(landbridge.RankLost)
    writer.finish(DEADLINE_S)
    (first,) = folder.iterdir()
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    first.unlink()
    for _ in range(3):
        writer.note_failure(landbridge.GatewayLost)
    assert not list(folder.iterdir())
    pause.set()
    writer.finish(DEADLINE_S)
    assert len(list(folder.iterdir())) == 1


def test_old_dumps_make_room_for_new_ones(dumps):
    writer, folder = dumps
    for second in range(DUMP_FILES_MAX + 2):
        writer._write_file(b"{}", second)
    others = ["train-rank-10-0.json", "train-rank-1-0.json.gz", "east-0-1.json"]
    for name in others:
        (folder / name).write_text("of others")
    writer._write_file(b"{}", 99)
    left = {path.name for path in folder.iterdir()}
    assert set(others) <= left and len(left) == DUMP_FILES_MAX + len(others)
    assert "train-rank-1-2.json" not in left and "train-rank-1-3.json" in left


def test_a_folder_that_takes_no_dump_harms_nobody(dumps, caplog):
    writer, folder = dumps
    folder.parent.mkdir()
    folder.write_text("no folder")
    writer.note_failure(landbridge.RankLost)
    writer.finish(DEADLINE_S)
    assert "its dump cannot be written" in caplog.text
    assert folder.read_text() == "no folder"


def test_a_failed_rank_leaves_a_dump_of_its_process(tmp_path):
    script = """
import sys, numpy, landbridge
group = landbridge.connect(config=sys.argv[1], rank=0, arena="1 MiB", timeout=60)
group.all_reduce(numpy.ones(4))
group.all_reduce(numpy.ones(4), timeout=0.2)
"""
    has_ended = threading.Event()
    with LocalRegions(ranks=(1, 1)) as running:
        configs = [running.region_file_of_rank(rank) for rank in range(2)]

        def run_script():
            try:
                return subprocess.run(
                    [sys.executable, "-c", script, configs[0]],
                    capture_output=True,
                    check=False,
                    env={**os.environ, "LANDBRIDGE_DUMPS": str(tmp_path / "dumps")},
                    timeout=DEADLINE_S,
                )
            finally:
                has_ended.set()

        def post_once():
            with landbridge.connect(config=configs[1], rank=1, arena="1 MiB", timeout=60) as group:
                group.all_reduce(numpy.ones(4))
                assert has_ended.wait(DEADLINE_S)

        ended, _ = call_for_all([run_script, post_once], lambda call: call())
    assert b"RanksTimedOut" in ended.stderr
    (path,) = (tmp_path / "dumps").iterdir()
    assert path.name.startswith("train-rank-0-")
    told = json.loads(path.read_text())
    assert told["collectives"][-1]["code"] == landbridge.RanksTimedOut.code
