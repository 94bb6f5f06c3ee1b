"""What was sent of a stream is kept compressed, within bounds, and comes back as it was."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.peer_limits import ANSWER_EVENTS
from meshd.gateway.events import whole_events
from meshd.gateway.kept_events import KeptEvents
from meshd.gateway.sent_events import SentEvents


@given(st.lists(st.binary(max_size=300_000), max_size=4))
def test_it_comes_back_in_pieces(parts: list[bytes]) -> None:
    kept = KeptEvents()
    assert all(kept.add(part) for part in parts)
    pieces = list(kept.read())
    assert b"".join(pieces) == b"".join(parts)
    assert all(len(piece) <= 64 << 10 for piece in pieces)


def test_what_compresses_badly_is_bounded_as_well_as_what_compresses_to_nothing() -> None:
    for piece, most in ((random.Random(1).randbytes(1 << 20), 5 << 20), (bytes(1 << 20), 65 << 20)):
        kept, sent = KeptEvents(), 0
        while kept.add(piece):
            sent += len(piece)
            assert sent < most


@pytest.mark.parametrize("event", [b":\n\n", b":\r\n\r\n", b":\r\r", b"data:1\n\n", b"\n\n\n"])
@pytest.mark.parametrize("at_once", [1, 5000])
def test_events_of_a_few_bytes_are_bounded_by_their_number(event: bytes, at_once: int) -> None:
    kept, added = KeptEvents(), b""
    while kept.add(event * at_once):
        added += event * at_once
    assert len(added) / len(event) <= ANSWER_EVENTS.most + at_once
    assert sum(1 for _ in whole_events(added)) <= ANSWER_EVENTS.most


@pytest.mark.parametrize("event", [b":\n\n", b"data:1\n\n"])
def test_a_million_events_are_not_looked_at(event: bytes) -> None:
    sent = SentEvents("/v1/chat/completions", own_seed=True)
    for _ in range(200):
        sent.unsent(event * 5000, 0.0)
    began = time.thread_time()
    assert sent.next_request(b'{"messages":[]}') is None
    assert time.thread_time() - began < 0.1
