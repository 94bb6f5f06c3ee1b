"""Test that what members say of their models is hostile until it is read."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.base.peer_limits import PIECES_ASKED
from meshd.wire.limits import (
    MAX_API_SLOTS,
    MAX_GIVEN_BYTES,
    MAX_MODEL_NAME_BYTES,
    MAX_MODEL_ROWS,
    MAX_PIECE_HASHES,
    MAX_SERVED_ALIASES,
    MAX_SERVED_MODELS,
    MAX_SERVED_REASON_BYTES,
)
from meshd.wire.models import (
    GONE,
    HERE,
    ApiModel,
    ModelsTold,
    PieceHashes,
    PieceInbox,
    PieceRequests,
    PiecesTold,
    ServingTold,
    ToldDisk,
    ToldModel,
    decode,
    decode_serving,
    piece_request,
)

TOLD = ToldModel(bytes(16), ("glm-Q4", "hf:a/b:Q4"), 1 << 34, 2, "Q4", "llama", b"f" * 32, b"c" * 32)
PIECES = st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=4)
CUTS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def test_an_earlier_version_tells_no_disk() -> None:
    said = msgpack.unpackb(ModelsTold((TOLD,), disk=ToldDisk(1, 1)).encode())
    del said["disk"]
    assert decode(msgpack.packb(said)) == ModelsTold((TOLD,))


def test_the_largest_messages_about_models_fit() -> None:
    whole = PieceHashes(bytes(32 * MAX_PIECE_HASHES))
    assert decode(whole.encode()) == whole and len(whole.encode()) < 64 << 10
    assert len(ModelsTold((TOLD,) * MAX_MODEL_ROWS).encode()) < 64 << 10


def test_files_that_no_model_has() -> None:
    with pytest.raises(RemoteProtocolError, match="sizes"):
        decode(PiecesTold((MAX_GIVEN_BYTES, 1)).encode())


def test_names_are_cut_to_what_may_be_told() -> None:
    long = ToldModel(bytes(16), ("ä" * 200, "b\nc", *"defg"), 1)
    told = decode(ModelsTold((long,)).encode())
    assert isinstance(told, ModelsTold)
    assert told.models[0].names[0] == "ä" * 127 and told.models[0].names[1:] == ("b?c", "d", "e")


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    chunks, at = [], 0
    for length in cuts:
        chunks.append(data[at : at + length])
        at += length
    return [chunk for chunk in [*chunks, data[at:]] if chunk]


@given(PIECES, CUTS)
def test_pieces_arrive_whole_however_they_are_cut(pieces: list[bytes], cuts: list[int]) -> None:
    inbox = PieceInbox()
    for number, piece in enumerate(pieces):
        inbox.expect(number, len(piece))
    found = []
    for chunk in cut(b"".join(HERE + piece for piece in pieces), cuts):
        found += inbox.feed(chunk)
    assert found == list(enumerate(pieces)) and inbox.expected == 0 and not inbox.is_gone


def test_what_nobody_asked_for() -> None:
    with pytest.raises(RemoteProtocolError, match="nobody asked"):
        PieceInbox().feed(HERE)
    inbox = PieceInbox()
    inbox.expect(0, 2)
    with pytest.raises(RemoteProtocolError, match="nobody asked"):
        inbox.feed(HERE + b"abc")


def test_a_file_that_is_gone() -> None:
    inbox = PieceInbox()
    inbox.expect(0, 2)
    inbox.expect(1, 2)
    assert inbox.feed(HERE + b"ab" + GONE) == [(0, b"ab")] and inbox.is_gone
    with pytest.raises(RemoteProtocolError):
        inbox.feed(HERE)


@given(st.binary(max_size=80), CUTS)
def test_any_bytes_are_pieces_or_refused(data: bytes, cuts: list[int]) -> None:
    inbox, requests = PieceInbox(), PieceRequests(7)
    for number in range(3):
        inbox.expect(number, 9)
    try:
        for chunk in cut(data, cuts):
            for _, piece in inbox.feed(chunk):
                assert len(piece) == 9
    except RemoteProtocolError:
        pass
    try:
        for chunk in cut(data, cuts):
            requests.feed(chunk)
            while (wanted := requests.next()) is not None:
                assert wanted < 7
    except RemoteProtocolError:
        pass


@given(st.lists(st.integers(0, 6), max_size=PIECES_ASKED.most), CUTS)
def test_requests_are_read_in_order(numbers: list[int], cuts: list[int]) -> None:
    requests = PieceRequests(7)
    for chunk in cut(b"".join(map(piece_request, numbers)), cuts):
        requests.feed(chunk)
    assert [requests.next() for _ in numbers] == numbers and requests.next() is None


def test_requests_for_too_much() -> None:
    with pytest.raises(RemoteProtocolError, match="no piece 7"):
        PieceRequests(7).feed(piece_request(7))
    waiting = PieceRequests(7)
    waiting.feed(piece_request(0) * PIECES_ASKED.most)
    with pytest.raises(RemoteProtocolError, match="too many"):
        waiting.feed(piece_request(0))
    with pytest.raises(RemoteProtocolError, match="too many"):
        PieceRequests(7).feed(piece_request(0) * 1000)


MODEL = ApiModel("glm-Q4", "ready", True, "loaded", 3, 4, b"f" * 32)


def test_what_is_too_long_is_cut_before_it_is_said() -> None:
    long = ApiModel("n" * 500, "ready", True, "r" * 500, MAX_API_SLOTS + 9, 0)
    [read] = decode_serving(ServingTold((long,)).encode()).models
    assert len(read.name) <= MAX_MODEL_NAME_BYTES and len(read.reason) <= MAX_SERVED_REASON_BYTES
    assert (read.requests, read.slots) == (MAX_API_SLOTS, 1)


def test_the_largest_message_fits() -> None:
    names = [f"{number:03}".ljust(MAX_MODEL_NAME_BYTES, "n") for number in range(MAX_SERVED_MODELS)]
    aliases = ("a" * MAX_MODEL_NAME_BYTES,) * MAX_SERVED_ALIASES
    reason = "r" * MAX_SERVED_REASON_BYTES
    models = tuple(ApiModel(name, "x" * 16, False, reason, aliases=aliases) for name in names)
    message = ServingTold(models).encode()
    assert decode_serving(message).models == models and len(message) < 64 << 10


def test_a_head_names_each_model_once() -> None:
    with pytest.raises(RemoteProtocolError, match="models"):
        decode_serving(ServingTold((MODEL, MODEL)).encode())


def test_the_next_piece_and_how_many_are_to_come() -> None:
    inbox = PieceInbox()
    assert (inbox.expected, inbox.first_length) == (0, 0)
    inbox.expect(4, 3)
    inbox.expect(5, 1)
    assert (inbox.expected, inbox.first_length) == (2, 3)
    assert inbox.feed(HERE + b"abc" + HERE) == [(4, b"abc")]
    assert (inbox.expected, inbox.first_length) == (1, 1)
    refused = PieceInbox()
    refused.expect(0, 1)
    with pytest.raises(RemoteProtocolError, match="neither 0 nor 1"):
        refused.feed(b"\x02")


def test_so_many_pieces_may_be_asked_for_at_once() -> None:
    requests = PieceRequests(7)
    many = piece_request(6) * PIECES_ASKED.most
    requests.feed(many)
    with pytest.raises(RemoteProtocolError, match="too many"):
        requests.feed(piece_request(0))
    requests = PieceRequests(7)
    requests.feed(many[:-1])
    assert requests.next() == 6
    requests.feed(many[-1:] + piece_request(5)[:1])
    for wrong in (7, 8):
        with pytest.raises(RemoteProtocolError, match="no piece"):
            PieceRequests(7).feed(piece_request(wrong))
    with pytest.raises(RemoteProtocolError, match="too many"):
        PieceRequests(7).feed(bytes(len(piece_request(0)) * (PIECES_ASKED.most + 1) + 1))
