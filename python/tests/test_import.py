"""Importing the package has no effect."""

import subprocess
import sys

SCRIPT = """
import sys, threading, os
before = set(os.listdir("/proc/self/fd"))
import landbridge
assert set(os.listdir("/proc/self/fd")) == before, "a descriptor"
assert threading.active_count() == 1, "a thread"
third = {m.split(".")[0] for m in sys.modules} & {"numpy", "torch", "jax", "ml_dtypes"}
assert not third, third
"""


def test_importing_neither_connects_nor_imports_array_libraries():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
