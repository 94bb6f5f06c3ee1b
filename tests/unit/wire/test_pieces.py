"""Pieces on a stream, cut into chunks of any size, and whatever else a peer may send."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.base.peer_limits import PIECES_ASKED
from meshd.wire.pieces import GONE, HERE, PieceInbox, PieceRequests, piece_request

PIECES = st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=4)
CUTS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


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
