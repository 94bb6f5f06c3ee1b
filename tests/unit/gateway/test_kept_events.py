"""What was sent of a stream is kept compressed, within bounds, and comes back as it was."""

import random

from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.kept_events import KeptEvents


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
