"""The store of a job, through gateways and processes."""

import threading
import time
from datetime import timedelta

import pytest

import landbridge
from landbridge import errors


def test_two_ranks_share_keys_counters_and_queues(two_groups):
    east, west = (group.store for group in two_groups)
    east.set("greeting", "hello")
    assert west.get("greeting") == b"hello"
    assert [east.add("count", 2), west.add("count", -5), east.add("count", 0)] == [2, -3, -3]
    assert west.get("count") == b"-3"
    assert east.compare_set("leader", "", "east") == b"east"
    assert west.compare_set("leader", "", "west") == b"east"
    assert west.compare_set("leader", b"east", b"west") == b"west"
    east.multi_set(["a/1", "a/2"], ["x", b"y"])
    assert west.multi_get(["a/2", "a/1"]) == [b"y", b"x"]
    assert west.list_keys("a/") == ["a/1", "a/2"]
    east.append("a/1", "z")
    assert west.get("a/1") == b"xz"
    assert west.num_keys() == 5
    assert east.delete_key("a/1") and not east.delete_key("a/1")
    assert not west.check(["a/1", "a/2"]) and west.check(["a/2"])
    east.queue_push("work", "first")
    east.queue_push("work", b"second")
    assert [west.queue_len("work"), west.queue_pop("work"), east.queue_pop("work")] == [
        2,
        b"first",
        b"second",
    ]
    with pytest.raises(errors.StoreTimeout, match="empty"):
        east.queue_pop("work", block=False)


def test_requests_wait_for_the_key_that_they_name(two_groups):
    east, west = (group.store for group in two_groups)
    got = []

    def wait_for_keys():
        """Waits in a thread of its own, as a trainer may."""
        west.wait(["first", "second"], timedelta(seconds=60))
        got.append(west.queue_pop("queue"))

    waiting = threading.Thread(target=wait_for_keys)
    waiting.start()
    east.set("first", "1")
    east.set("second", "2")
    east.queue_push("queue", "item")
    waiting.join(60)
    assert got == [b"item"]
    east.set_timeout(0.2)
    assert east.timeout == 0.2
    with pytest.raises(errors.StoreTimeout, match="not there within") as caught:
        east.get("never")
    assert not caught.value.is_unconfirmed


def test_the_store_names_limits_and_its_own_end(two_groups):
    east = two_groups[0].store
    east.set("text", "no number")
    with pytest.raises(errors.StoreRefused, match="no number"):
        east.add("text", 1)
    with pytest.raises(landbridge.ConfigError, match="bytes of a value"):
        east.set("long", b"x" * (48 * 1024 + 1))
    with pytest.raises(errors.StoreTimeout):
        east.wait(["never"], 0.1)
    began = time.monotonic()
    two_groups[0].close()
    with pytest.raises(errors.Closed):
        east.get("text")
    assert time.monotonic() - began < 30
