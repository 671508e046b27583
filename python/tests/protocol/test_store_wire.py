"""Requests to the store and its answers, compared with the bytes of the daemon's codec."""

import pytest

from conftest import read_golden
from landbridge import errors
from landbridge._protocol import store_encoding
from landbridge._protocol.fields import DecodeError

LINES = [line for line in read_golden("local_protocol.jsonl") if "message" in line]
KEY = "straße".encode()
BOTH = [KEY, b"b"]
REQUESTS = [
    store_encoding.encode_store_set([(KEY, b"value"), (b"b", b"")]),
    store_encoding.encode_store_add(KEY, -2),
    store_encoding.encode_store_compare_set(KEY, b"", bytes((0, 255))),
    store_encoding.encode_store_delete(KEY),
    store_encoding.encode_store_append(KEY, b"more"),
    store_encoding.encode_store_push(KEY, b"item"),
    store_encoding.encode_store_pop(KEY),
    store_encoding.encode_store_get(BOTH),
    store_encoding.encode_store_wait(BOTH),
    store_encoding.encode_store_check(BOTH),
    store_encoding.encode_store_count(),
    store_encoding.encode_store_list(b"a/", b"a/b"),
    store_encoding.encode_store_queue_length(KEY, 1),
    store_encoding.encode_store_queue_length(KEY, 0),
]
ANSWERS = [
    None,
    True,
    -5,
    [b"value", b""],
    store_encoding.ListedKeys([KEY], False),
    *(
        store_encoding.StoreFailure(code, f"gateway straße {code}")
        for code in store_encoding.StoreFailureCode
    ),
]


def fields_of(message, name):
    """Returns a field of all messages of a kind, in the order of their numbers."""
    found = [line["fields"] for line in LINES if line["message"] == message]
    return [bytes.fromhex(f[name]) for f in sorted(found, key=lambda f: f["number"])]


def test_requests_have_the_daemons_bytes():
    assert fields_of("StoreRequest", "request") == REQUESTS


def test_requests_wait_where_the_daemon_says_so():
    told = {line["fields"]["request"]: line["may_wait"] for line in LINES if "may_wait" in line}
    ours = {data.hex(): store_encoding.store_request_may_wait(data) for data in REQUESTS}
    assert ours == told


def test_the_daemons_answers_are_decoded():
    answers = fields_of("StoreAnswered", "answer")
    assert [store_encoding.decode_store_answer(data) for data in answers] == ANSWERS
    for data in answers:
        for end in range(len(data)):
            with pytest.raises(DecodeError):
                store_encoding.decode_store_answer(data[:end])
        with pytest.raises(DecodeError):
            store_encoding.decode_store_answer(data + b"x")


@pytest.mark.parametrize(
    "encode",
    [
        lambda: store_encoding.encode_store_get([]),
        lambda: store_encoding.encode_store_get([b"k"] * 1025),
        lambda: store_encoding.encode_store_delete(b""),
        lambda: store_encoding.encode_store_delete(b"k" * 1025),
        lambda: store_encoding.encode_store_append(
            b"k", b"v" * (store_encoding.VALUE_MAX_BYTES + 1)
        ),
        lambda: store_encoding.encode_store_compare_set(b"k", b"v" * 30_000, b"v" * 30_000),
        lambda: store_encoding.encode_store_list(b"k" * 1025, b""),
    ],
)
def test_requests_beyond_a_limit_are_not_sent(encode):
    with pytest.raises(errors.ConfigError, match="not"):
        encode()
