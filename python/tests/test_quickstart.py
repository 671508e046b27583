"""The quickstart, as a user runs it."""

import fcntl
import importlib.util
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from landbridge import quickstart
from landbridge._fidelity_verdict import FidelityTimes, describe_fidelity_verdict, reach_fidelity_verdict
from landbridge._rounding import RATES, SIZES, TIMES, round_percent, round_quantity

SCHEMA = Path(__file__).parents[2] / "docs/schemas/commands/quickstart-python.json"
#: Limit on one run of the quickstart, in seconds, far above its usual time.
RUN_TIMEOUT_S = 300
#: Names of the table's rows between the first one and the checks, as `landbridge quickstart` words
#: them.
ROW_NAMES = [
    "training steps",
    "samples of a batch per rank",
    "loss, last batch",
    "link",
    "2 all-reduces of",
    "median time",
    "bound T*",
    "eta",
    "goodput",
    "time in local reduce",
    "time in WAN",
    "time in deliver",
]


def test_the_quickstart_passes_its_own_checks():
    words = ["--json", "--size", "4 MiB", "--steps", "5", "--iterations", "2", "--ranks", "2,1"]
    line = [sys.executable, "-m", "landbridge.quickstart", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    schema = json.loads(SCHEMA.read_text("utf-8"))
    assert report["version"] == schema["properties"]["version"]["const"]
    timed = schema["properties"]["allreduce"]["properties"]
    for found, said in ((report, schema["properties"]), (report["allreduce"], timed)):
        assert set(found) == set(said)
    assert report["identical"] and report["steps"] == 5
    assert 0 < report["allreduce"]["eta"] < 1
    assert len(report["allreduce"]["seconds"]) == 2
    stages = report["allreduce"]["stage_seconds"].values()
    assert sum(stages) == pytest.approx(report["allreduce"]["seconds_median"])
    assert 0 <= report["fidelity"]["busy_by_others"] <= report["fidelity"]["machine_busy"] <= 1


def test_an_unread_rank_does_not_block_on_its_pipe():
    """A pipe holds 64 KiB, which is the progress of 900 steps."""
    words = ["--json", "--rtt", "1 ms", "--loss", "0 %", "--ranks", "1,1"]
    words += ["--size", "4 KiB", "--steps", "1200", "--iterations", "1"]
    line = [sys.executable, "-m", "landbridge.quickstart", *words]
    done = subprocess.run(line, stdout=subprocess.PIPE, timeout=RUN_TIMEOUT_S, check=False)
    assert done.returncode == 0


def test_a_report_that_is_not_written_exits_with_1():
    code = (
        "import sys; from landbridge.quickstart import _print_quickstart_report as p; "
        "sys.exit(not p('x'))"
    )
    line = [sys.executable, "-c", code]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("cannot write to standard output: "), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(line, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_quantities_are_rounded_as_the_program_rounds_them():
    """The same values stand in the tests of the crate ``units``."""
    sizes = {0: "0 B", 999: "999 B", 1000: "0.977 KiB", 56_316_576: "53.7 MiB", 1 << 30: "1 GiB"}
    for value, text in sizes.items():
        assert round_quantity(value, SIZES) == text
    times = {0: "0 ns", 76.373e-6: "76.4 us", 1.1804: "1.18 s", 90: "1.5 min", 86_399: "1 d"}
    for value, text in times.items():
        assert round_quantity(value, TIMES) == text
    assert round_quantity(447.4e6, RATES) == "447 Mbit/s"
    fractions = {0: "0 %", -0.0: "0 %", 1: "100 %", 0.123456: "12.3 %", 0.0001234: "0.0123 %",
                 0.00099996: "0.1 %", 0.99996: "100 %", 12.345: "1234 %", -0.0254: "-2.54 %",
                 1e-13: "0 %"}  # fmt: skip
    for value, text in fractions.items():
        assert round_percent(value) == text


def test_the_quickstart_shows_progress_and_a_table_on_a_terminal():
    code, output, shown = run_on_terminal("--size", "1 MiB", "--steps", "7", "--iterations", "2")
    assert code == 0, shown
    full = "[" + "#" * 30 + "]"
    for text in ("training   [####..", f"training   {full} 7/7 loss ", f"all-reduce {full} 2/2 "):
        assert text in shown
    assert shown.count("\r") >= 9, "each bar over the one before"
    assert shown.endswith("\r\033[K\r"), "none is left when the table comes"
    lines = output.splitlines()
    assert lines[0].split() == ["trained", "with", *expected_library().split()]
    names = [re.split("  +", line)[0] for line in lines[1:]]
    assert names[: len(ROW_NAMES)] == ROW_NAMES
    assert max(map(len, lines)) <= 80
    verdicts = [re.split("  +", line)[-1] for line in lines[len(ROW_NAMES) + 1 :]]
    assert [word for word in verdicts if word in ("pass", "FAIL")] == ["pass", "pass"]
    assert re.search(r"\n *fidelity  .*(good|VOID)", output), output


def test_the_quickstart_trains_with_torch_where_it_is_installed():
    pytest.importorskip("torch")
    assert expected_library() == "torch"
    test_the_quickstart_shows_progress_and_a_table_on_a_terminal()


def expected_library():
    """Returns what the quickstart says that it trains with."""
    return "torch" if importlib.util.find_spec("torch") else "plain Python"


def run_on_terminal(*words):
    """Runs the quickstart. Returns exit code, output, and the text that its terminal showed."""
    terminal, theirs = pty.openpty()
    line = [sys.executable, "-m", "landbridge.quickstart", *words]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        shown = b""
        try:
            while select.select([terminal], [], [], RUN_TIMEOUT_S)[0]:
                shown += os.read(terminal, 4096)
            process.kill()
        except OSError:
            pass  # The process has closed its end.
        os.close(terminal)
        output, _ = process.communicate()
    return process.returncode, output, shown.decode()


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_table_is_no_wider_than_its_terminal(columns):
    rows = [
        ("link", "RTT 80 ms, 500 Mbit/s, loss 0.1 %", ""),
        ("weights and results bit-identical on all ranks", "identical", "pass"),
        ("fidelity", "packets late by 400 us (p99.9), machine busy: 60 %", "good"),
    ]
    table = quickstart._wrap_quickstart_table(rows, columns)
    assert max(map(len, table.splitlines())) <= columns
    assert table.split().count("pass") == 1
    assert sorted(table.split()) == sorted(" ".join(map(" ".join, rows)).split())
    assert (len(table.splitlines()) == 3) == (columns == 200)


def test_the_table_is_as_wide_as_the_terminal():
    terminal, theirs = pty.openpty()
    code = "from landbridge import quickstart as q; print(q._quickstart_columns())"
    shown = {}
    for columns in (40, 133):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        subprocess.run([sys.executable, "-c", code], stdout=theirs, timeout=60, check=True)
        shown[columns] = int(os.read(terminal, 64))
    os.close(terminal)
    os.close(theirs)
    assert shown == {40: 40, 133: 133}
    line = [sys.executable, "-c", code]
    piped = subprocess.run(line, capture_output=True, timeout=60, check=True)
    assert int(piped.stdout) == 80


def test_a_machine_busy_with_others_voids_the_run():
    """The same values stand in the tests of ``landbridge quickstart``."""
    relay = {"lateness_ns": {"p999": 400_000}, "void": []}
    start = FidelityTimes(0, 0, 0, 0)

    def judge(total, idle, own):
        return reach_fidelity_verdict(relay, start, FidelityTimes(total, idle, 0, own))

    assert judge(1000, 0, 950)["void"] == [], "its own processes may use all"
    assert judge(1000, 300, 300)["void"] == [], "others do no harm beside idle processors"
    busy = judge(1000, 20, 600)
    assert busy["void"] == ["the machine was 98 % busy, 38 % with other programs"]
    assert describe_fidelity_verdict(busy) == busy["void"][0]
    good = describe_fidelity_verdict(judge(100, 40, 50))
    assert good == "packets late by 400 us (p99.9), machine busy: 60 %"
    void = reach_fidelity_verdict({**relay, "void": ["it stood still"]}, None, None)
    assert (describe_fidelity_verdict(void), void["machine_busy"]) == ("it stood still", None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_exits_with_130_and_leaves_nothing(number, tmp_path):
    words = ["--steps", "1000000", "--size", "4 KiB"]
    # Background jobs of a shell ignore SIGINT, and so does what they start.
    taking_signals = ["env", "--default-signal=INT"]
    line = [*taking_signals, sys.executable, "-m", "landbridge.quickstart", *words]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment) as process:
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while not list(tmp_path.glob("landbridge-*/west.sock")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        _, told = process.communicate(timeout=RUN_TIMEOUT_S)
    assert (process.returncode, told) == (130, "")
    assert not list(tmp_path.iterdir())


def test_a_wrong_option_is_refused():
    line = [sys.executable, "-m", "landbridge.quickstart", "--ranks", "3"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode and "two numbers" in done.stderr
