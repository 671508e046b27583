"""The codec, compared with the bytes that the daemon's codec wrote."""

import random

import pytest

from conftest import read_golden
from landbridge import errors
from landbridge._protocol.collective_types import Dtype, Op
from landbridge._protocol.fields import DecodeError
from landbridge._protocol.frames import FrameDecoder
from landbridge._protocol.wire import (
    MESSAGE_MAX_BYTES,
    REQUESTS,
    RESPONSES,
    ContributionFree,
    FailureCode,
    RefusalReason,
    Refused,
)

LINES = read_golden("local_protocol.jsonl")
CODECS = {"request": REQUESTS, "response": RESPONSES}


def message_of(line):
    """Returns the message of a line of the golden file."""
    classes = {cls.__name__: cls for cls in CODECS[line["side"]].messages.values()}
    fields = dict(line["fields"])
    if "token" in fields:
        fields["token"] = bytes.fromhex(fields["token"])
    if "shape" in fields:
        fields["shape"] = tuple(fields["shape"])
    for name in ("request", "answer", "response", "ranks"):
        if name in fields:
            fields[name] = bytes.fromhex(fields[name])
    if "counts" in fields:
        fields["counts"] = tuple(tuple(counts) for counts in fields["counts"])
    return classes[line["message"]](**fields)


@pytest.mark.parametrize("line", [line for line in LINES if "message" in line])
def test_messages_have_the_daemons_bytes(line):
    codec, expected = CODECS[line["side"]], bytes.fromhex(line["bytes"])
    message = message_of(line)
    assert codec.encode(message) == expected
    assert codec.decode(expected) == message
    assert type(codec.decode(expected)) is type(message)


@pytest.mark.parametrize("line", [line for line in LINES if "refused" in line])
def test_messages_that_the_gateway_refuses_are_refused(line):
    with pytest.raises(DecodeError):
        CODECS[line["side"]].decode(bytes.fromhex(line["refused"]))


def test_every_message_and_code_is_in_the_daemons_file():
    for side, codec in CODECS.items():
        named = {line["message"] for line in LINES if line["side"] == side and "message" in line}
        assert named == {cls.__name__ for cls in codec.messages.values()}
    posts = [line["fields"] for line in LINES if line.get("message") == "Post"]
    assert {(post["op"], post["dtype"]) for post in posts} == {(o, d) for o in Op for d in Dtype}
    failed = [line["fields"]["code"] for line in LINES if line.get("message") == "Failed"]
    assert sorted(failed) == sorted(FailureCode) == sorted(errors.FAILURES)
    refused = [line["fields"]["reason"] for line in LINES if line.get("message") == "Refused"]
    assert sorted(refused) == sorted(RefusalReason)


def test_a_shape_too_long_for_a_message_is_not_sent():
    line = next(line for line in LINES if line.get("message") == "Post")
    with pytest.raises(ValueError, match="too many sizes: 9"):
        REQUESTS.encode(message_of(line)._replace(shape=(1,) * 9))


def test_no_bytes_but_messages_decode():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    whole = [bytes.fromhex(line["bytes"]) for line in LINES if "bytes" in line]
    for _ in range(20_000):
        data = bytearray(rng.choice(whole) if rng.random() < 0.7 else rng.randbytes(40))
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        data = bytes(data[: rng.randrange(len(data) + 1)]) if rng.random() < 0.3 else bytes(data)
        for codec in CODECS.values():
            try:
                message = codec.decode(data)
            except DecodeError:
                continue
            assert codec.encode(message) == data


def test_frames_come_out_whole_however_the_stream_is_cut():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    texts = ["x" * rng.randrange(300) for _ in range(50)]
    sent = [Refused(RefusalReason.VERSION, text) for text in texts] + [ContributionFree(1)]
    stream = b"".join(RESPONSES.encode_frame(message) for message in sent)
    frames, came = FrameDecoder(), []
    while stream:
        cut = rng.randrange(1, 400)
        came += [RESPONSES.decode(data) for data in frames.decode_frames(stream[:cut])]
        stream = stream[cut:]
    assert came == sent


def test_frames_keep_messages_not_taken_yet():
    frames = FrameDecoder()
    first, second = (Refused(RefusalReason.VERSION, text) for text in ("first", "second"))
    stream = RESPONSES.encode_frame(first) + RESPONSES.encode_frame(second)
    assert RESPONSES.decode(next(frames.decode_frames(stream))) == first
    assert [RESPONSES.decode(data) for data in frames.decode_frames(b"")] == [second]


def test_a_message_too_long_is_refused_before_it_arrives():
    with pytest.raises(DecodeError, match=f"{MESSAGE_MAX_BYTES + 1} bytes"):
        list(FrameDecoder().decode_frames((MESSAGE_MAX_BYTES + 1).to_bytes(4, "big")))
    text = "x" * (MESSAGE_MAX_BYTES - 3)
    with pytest.raises(ValueError, match=f"{MESSAGE_MAX_BYTES} allowed"):
        RESPONSES.encode_frame(Refused(RefusalReason.VERSION, text))
