"""The file of a kept answer: what was written is read, and what was damaged is not there."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.kept_journal import (
    MOST_RECORD_BYTES,
    KeptRequest,
    RecordKind,
    _record,
    encode_events,
    encode_request,
    encode_whole,
    look_through,
    parse_events,
    parse_whole,
    records,
    request_digest,
)

REQUEST = KeptRequest(bytes(range(32)), 7, bytes(32))
PIECE = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def content(data: bytes) -> tuple[int, bool, int] | None:
    """Events, whether it is over, and its size."""
    found = look_through(io.BytesIO(data).read)
    return None if found is None else (found.events, found.is_over, found.size)


def read(data: bytes) -> list[tuple[RecordKind, bytes]]:
    return list(records(io.BytesIO(data).read))


@pytest.mark.parametrize("seed", [None, 0, (1 << 31) - 1])
@pytest.mark.parametrize("weights", [b"", bytes(range(32))])
def test_a_stream_is_found_again(seed: int | None, weights: bytes) -> None:
    request = KeptRequest(bytes(32), seed, weights)
    data = encode_request(request) + encode_events(PIECE, 0.0) + encode_events(PIECE + PIECE, 31.25)
    found = look_through(io.BytesIO(data).read)
    assert found is not None and found.request == request
    assert content(data) == (3, False, len(data))
    kept = [parse_events(payload) for kind, payload in read(data) if kind is RecordKind.EVENTS]
    assert kept == [(PIECE, 0.0), (PIECE + PIECE, 31.25)]
    assert content(data + encode_events(DONE, 0.0)) == (4, True, len(data + encode_events(DONE, 0.0)))


def test_a_whole_answer_is_found_again() -> None:
    data = encode_request(REQUEST) + encode_whole("application/json; charset=utf-8", b'{"a":\n1}')
    assert content(data) == (0, True, len(data))
    assert parse_whole(read(data)[1][1]) == ("application/json; charset=utf-8", b'{"a":\n1}')


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"something else",
        encode_request(REQUEST),
        encode_request(REQUEST)[:-1] + encode_events(PIECE, 0.0),
        encode_request(REQUEST).replace(b"answer 1", b"answer 2") + encode_events(PIECE, 0.0),
        encode_request(REQUEST)[: len(b"meshd kept answer 1\n")] + encode_events(PIECE, 0.0),
        encode_request(REQUEST) + _record(RecordKind.REQUEST, b"{}") + encode_events(PIECE, 0.0),
        encode_request(REQUEST) + encode_events(PIECE, 0.0) + encode_whole("a", b"b"),
        encode_request(REQUEST) + encode_whole("a", b"b") + encode_whole("a", b"b"),
    ],
    ids=["empty", "foreign", "no events", "cut", "version", "headless", "twice", "both", "two wholes"],
)
def test_what_is_of_no_use(data: bytes) -> None:
    assert content(data) is None


@pytest.mark.parametrize(
    "fields",
    [
        [],
        {"digest": "00" * 32, "weights": "xy", "seed": 1},
        {"digest": "00" * 31, "weights": "", "seed": 1},
        {"digest": "00" * 32, "weights": "00" * 65, "seed": 1},
        {"digest": "00" * 32, "weights": "", "seed": -1},
        {"digest": "00" * 32, "weights": "", "seed": 1 << 32},
        {"digest": "00" * 32, "weights": "", "seed": "1"},
        {"digest": "00" * 32, "weights": "", "seed": True},
        {"digest": None, "weights": "", "seed": 1},
    ],
    ids=str,
)
def test_a_first_record_that_no_meshd_wrote(fields: object) -> None:
    magic = encode_request(REQUEST)[: len(b"meshd kept answer 1\n")]
    data = magic + _record(RecordKind.REQUEST, json.dumps(fields).encode()) + encode_events(PIECE, 0.0)
    assert content(data) is None


def test_a_record_that_claims_to_be_endless_is_not_read() -> None:
    head = encode_request(REQUEST) + encode_events(PIECE, 0.0)
    asked: list[int] = []
    file = io.BytesIO(head + b"E" + (MOST_RECORD_BYTES + 1).to_bytes(4, "big") + bytes(8 + 100))

    def read_some(count: int) -> bytes:
        asked.append(count)
        return file.read(count)

    assert [kind for kind, _ in records(read_some)] == [RecordKind.REQUEST, RecordKind.EVENTS]
    assert max(asked) < MOST_RECORD_BYTES


@given(st.lists(st.integers(1, 4), max_size=6), st.data())
def test_of_a_damaged_file_a_beginning_is_left(counts: list[int], data: st.DataObject) -> None:
    parts = [encode_request(REQUEST), *(encode_events(PIECE * count, 0.0) for count in counts)]
    whole = b"".join(parts)
    at = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(["cut", "flipped", "more"]))
    if kind == "cut":
        damaged = whole[:at]
    elif kind == "flipped":
        damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    else:
        damaged, at = whole + data.draw(st.binary(min_size=1, max_size=40)), len(whole)
    before, good, events = 0, 0, 0
    for number, part in enumerate(parts):
        before += len(part)
        if before > at:
            break
        good, events = before, events + (counts[number - 1] if number else 0)
    found = content(damaged)
    assert found == ((events, False, good) if events else None)


@given(st.binary(max_size=200))
def test_anything_may_be_read(data: bytes) -> None:
    magic = encode_request(REQUEST)[: len(b"meshd kept answer 1\n")]
    for start in (b"", magic, encode_request(REQUEST)):
        found = look_through(io.BytesIO(start + data).read)
        assert found is None or found.size <= len(start + data)


@given(st.text(), st.binary(), st.text(), st.binary())
def test_a_request_is_its_path_and_its_body(path: str, body: bytes, other: str, more: bytes) -> None:
    same = (path, body) == (other, more)
    if "\n" not in path and "\n" not in other:
        assert (request_digest(path, body) == request_digest(other, more)) is same
