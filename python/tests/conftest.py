"""Fixtures: gateways of two regions on this machine, and ranks attached to them.

The daemon is the one that LANDBRIDGE_BIN names, or the `landbridge` on the PATH. Without one
these tests fail, for they would show nothing.
"""

import contextlib
import threading

import pytest

import landbridge
from landbridge._lab import Lab


@pytest.fixture(scope="module")
def lab():
    """East with two ranks, west with one."""
    with Lab(ranks=(2, 1), speeds=(1.0, 1.0, 2.0)) as running:
        yield running


@pytest.fixture
def groups(lab):
    """Every rank of `lab`, attached from this process."""
    with attached(lab) as all_ranks:
        yield all_ranks


@contextlib.contextmanager
def attached(lab, arena="8 MiB"):
    """Every rank of a lab, attached from this process."""
    count = sum(lab.ranks.values())
    with contextlib.ExitStack() as stack:

        def attach(rank):
            config = lab.config_of(rank)
            return landbridge.connect(config=config, rank=rank, arena=arena, timeout=60)

        yield [stack.enter_context(group) for group in on_all(range(count), attach)]


def on_all(items, function):
    """What `function` returns for each, called at once, each in a thread of its own."""
    results, failures = {}, []

    def call(index, item):
        try:
            results[index] = function(item)
        except BaseException as error:  # raised again below
            failures.append(error)

    threads = [threading.Thread(target=call, args=pair, daemon=True) for pair in enumerate(items)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive(), "a rank hangs"
    if failures:
        raise failures[0]
    return [results[index] for index in range(len(threads))]
