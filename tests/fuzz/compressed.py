"""Target of compressed streams: broken frames, frames that lie about their size, bombs."""

import random
import struct
import zlib
from collections.abc import Sequence

from meshd.base.errors import RemoteProtocolError
from meshd.wire.compressed import MOST_RAW, PLANES, STREAM, Decoder, Encoder

from tests.fuzz.mutate import flip
from tests.fuzz.target import Target


def _floats(count: int) -> bytes:
    rng = random.Random(1)
    return struct.pack(f"<{count}f", *(rng.gauss(0, 1) for _ in range(count)))


def _bomb(kind: int) -> bytes:
    body = zlib.compress(bytes(4 << 20), 9)[2:-4]
    if kind == PLANES:
        body = struct.pack("<I", len(body)) + body
    return struct.pack("<II", kind << 24 | MOST_RAW, len(body)) + body


_TALK = Encoder()
SAMPLES = (
    _TALK.encode(b"GET tensor 1 " * 40) + _TALK.encode(b"GET tensor 2 " * 40),
    Encoder().encode(_floats(8 << 10)),
    Encoder().encode(bytes(40 << 10)),
    Encoder().encode(random.Random(2).randbytes(700)) + Encoder().encode(b"x" * 20),
)
_BOMBS = (_bomb(STREAM), _bomb(PLANES))


def _make(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    if rng.random() < 0.02:
        return rng.choice(_BOMBS)
    data = rng.choice(samples)
    if rng.random() < 0.3:  # another size or kind, behind which the body is good
        first, length = struct.unpack_from("<II", data)
        changed = (first ^ (1 << rng.randrange(26)), length)
        return struct.pack("<II", *changed) + data[8:]
    return flip(rng, data, samples)


def _feed(data: bytes) -> None:
    decoder = Decoder()
    cut = len(data) // 2
    for part in (data[:cut], data[cut:]):
        decoder.feed(part)
        while (made := decoder.next()) is not None:
            assert 0 < len(made) <= MOST_RAW


TARGETS = (
    Target(
        name="compressed",
        samples=SAMPLES,
        make=_make,
        feed=_feed,
        allowed=(RemoteProtocolError,),
        share=3,
    ),
)
