"""Compressed streams: what goes in comes out, whatever it is and however it is cut; what lies is refused."""

import random
import struct
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.wire.compressed import MOST_RAW, PLANES, STORED, STREAM, Decoder, Encoder

RNG = random.Random(7)
TEXT = b"blk.%d.attn_norm.weight "


def floats(count: int) -> bytes:
    return struct.pack(f"<{count}f", *(RNG.gauss(0, 1) for _ in range(count)))


PIECES = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda count, seed: random.Random(seed).randbytes(count), st.integers(0, 40_000), st.integers()
    ),
    st.builds(bytes, st.integers(0, 2 * MOST_RAW)),
    st.builds(floats, st.integers(0, 10_000)),
    st.builds(lambda count: b"".join(TEXT % n for n in range(count)), st.integers(0, 2000)),
)


def drained(decoder: Decoder) -> bytes:
    made = bytearray()
    while (piece := decoder.next()) is not None:
        assert 0 < len(piece) <= MOST_RAW
        made += piece
    return bytes(made)


def kinds(data: bytes) -> list[int]:
    found = []
    while data:
        first, length = struct.unpack_from("<II", data)
        found.append(first >> 24)
        data = data[8 + length :]
    return found


def frame(kind: int, size: int, body: bytes) -> bytes:
    return struct.pack("<II", kind << 24 | size, len(body)) + body


@given(st.lists(PIECES, max_size=6), st.integers(1, 70_000), st.booleans())
def test_what_goes_in_comes_out(pieces: list[bytes], cut: int, all_of_it: bool) -> None:
    encoder, decoder = Encoder(floats=all_of_it), Decoder()
    wire = b"".join(encoder.encode(piece) for piece in pieces)
    made = bytearray()
    for at in range(0, len(wire), cut):
        decoder.feed(memoryview(wire)[at : at + cut])
        made += drained(decoder)
    assert bytes(made) == b"".join(pieces)
    assert decoder.is_between


def test_each_kind_of_content_goes_its_way() -> None:
    assert kinds(Encoder().encode(bytes(100_000))) == [STREAM]
    assert kinds(Encoder().encode(b"".join(TEXT % n for n in range(5000)))) == [STREAM]
    assert kinds(Encoder().encode(floats(20_000))) == [PLANES]
    assert kinds(Encoder().encode(RNG.randbytes(100_000))) == [STORED]
    assert kinds(Encoder().encode(bytes(20))) == [STORED]
    assert kinds(Encoder().encode(bytes(MOST_RAW + 1))) == [STREAM, STORED]


def test_without_floats_what_repeats_is_made_smaller_and_nothing_else() -> None:
    def encoded(data: bytes) -> bytes:
        return Encoder(floats=False).encode(data)

    assert kinds(encoded(bytes(100_000))) == [STREAM]
    assert kinds(encoded(b"".join(TEXT % n for n in range(5000)))) == [STREAM]
    assert kinds(encoded(floats(20_000))) == [STORED]
    assert kinds(encoded(floats(1000))) == [STORED]
    assert kinds(encoded(bytes(4000))) == [STREAM]
    assert kinds(encoded(RNG.randbytes(100_000))) == [STORED]


def test_rows_that_come_again_in_a_piece_are_found_further_apart_than_a_window() -> None:
    rows = [floats(576) for _ in range(28)]
    data = b"header" + b"".join(rows + rows)
    wire = Encoder().encode(data)
    assert kinds(wire) == [PLANES]
    assert len(wire) < 0.55 * len(data)
    decoder = Decoder()
    decoder.feed(wire)
    assert drained(decoder) == data


def test_a_repeat_costs_next_to_nothing() -> None:
    encoder, message = Encoder(), RNG.randbytes(1500).hex().encode()
    first, second = encoder.encode(message), encoder.encode(message)
    assert len(first) > 1500
    assert len(second) < 60


def test_small_pieces_that_do_not_shrink_are_tried_ever_less_often_until_they_do() -> None:
    encoder = Encoder()
    tried = [kinds(encoder.encode(RNG.randbytes(2000))) == [STREAM] for _ in range(400)]
    assert tried[0]
    assert 5 < sum(tried) < 15
    again = [kinds(encoder.encode(TEXT * 80)) == [STREAM] for _ in range(100)]
    assert again[70:] == [True] * 30


def test_what_does_not_shrink_grows_by_little() -> None:
    encoder = Encoder()
    for size in (1, 31, 500, 5000, 20_000, MOST_RAW):
        assert len(encoder.encode(RNG.randbytes(size))) <= size + 40


def _bomb(kind: int) -> bytes:
    body = zlib.compress(bytes(256 << 20), 9)[2:-4][: MOST_RAW - 4]
    return frame(kind, MOST_RAW, body if kind == STREAM else struct.pack("<I", len(body)) + body)


@pytest.mark.parametrize("kind", [STREAM, PLANES])
def test_a_bomb_makes_no_more_than_its_frame_may(kind: int) -> None:
    bomb, decoder = _bomb(kind), Decoder()
    tracemalloc.start()
    try:
        decoder.feed(bomb)
        with pytest.raises(RemoteProtocolError, match="decompresses to"):
            decoder.next()
        assert tracemalloc.get_traced_memory()[1] < 8 * MOST_RAW
    finally:
        tracemalloc.stop()


DEFLATED = zlib.compress(b"abcd" * 10, 9)[2:-4]  # a stream that ends
HALF = zlib.compressobj(9, zlib.DEFLATED, -15)
OPEN = HALF.compress(b"abcd" * 10) + HALF.flush(zlib.Z_SYNC_FLUSH)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (frame(3, 1, b"x"), "kind 3"),
        (frame(255, 1, b"x"), "kind 255"),
        (frame(STORED, 0, b""), "cannot be"),
        (frame(STORED, 2, b"x"), "cannot be"),
        (struct.pack("<II", STORED << 24 | MOST_RAW + 1, MOST_RAW + 1), "cannot be"),
        (struct.pack("<II", STREAM << 24 | 1, MOST_RAW * 2), "cannot be"),
        (struct.pack("<II", STREAM << 24 | 1, 0), "cannot be"),
        (frame(STREAM, 40, b"\xff" * 9), "invalid"),
        (frame(STREAM, 39, OPEN[:-4]), "decompresses to"),
        (frame(STREAM, 41, OPEN[:-4]), "decompresses to"),
        (frame(STREAM, 40, DEFLATED), "decompresses to"),
        (frame(PLANES, 1, b"abc"), "middle of its planes"),
        (frame(PLANES, 4, struct.pack("<I", 1) + b"a"), "middle of its planes"),
        (frame(PLANES, 4, (struct.pack("<I", 1) + b"a") * 5), "after its planes"),
        (frame(PLANES, 4, struct.pack("<I", 1 << 31) + b"a"), "invalid|incomplete|decompresses to"),
        (frame(PLANES, 160, struct.pack("<I", len(OPEN)) + OPEN), "decompresses to"),
        (frame(PLANES, 160, struct.pack("<I", len(DEFLATED) + 1) + DEFLATED + b"x"), "decompresses to"),
    ],
)
def test_what_lies_is_refused(data: bytes, why: str) -> None:
    decoder = Decoder()
    decoder.feed(data)
    assert decoder.waits
    with pytest.raises(RemoteProtocolError, match=why):
        decoder.next()


@given(st.binary(max_size=400))
def test_noise_raises_only_the_declared_error(noise: bytes) -> None:
    decoder = Decoder()
    decoder.feed(noise)
    try:
        drained(decoder)
    except RemoteProtocolError as error:
        assert error.what.isprintable()


def test_it_is_drained_before_it_is_fed_again() -> None:
    decoder = Decoder()
    decoder.feed(Encoder().encode(b"first") + b"\0")
    with pytest.raises(LocalProtocolError):
        decoder.feed(b"more")
    assert drained(decoder) == b"first"
    assert not decoder.is_between
    decoder.feed(b"")
