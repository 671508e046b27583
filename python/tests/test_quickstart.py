"""The quickstart, as a user runs it."""

import json
import subprocess
import sys


def test_the_quickstart_passes_its_own_checks():
    words = ["--json", "--size", "4 MiB", "--steps", "5", "--iterations", "2", "--ranks", "2,1"]
    line = [sys.executable, "-m", "landbridge.quickstart", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["identical"] and report["steps"] == 5
    assert 0 < report["allreduce"]["eta"] < 1
    assert len(report["allreduce"]["seconds"]) == 2


def test_a_wrong_option_is_told():
    line = [sys.executable, "-m", "landbridge.quickstart", "--ranks", "3"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode and "two numbers" in done.stderr
