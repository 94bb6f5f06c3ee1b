"""Targets that somebody on the network reaches before a link is there: STUN, the signals of punching."""

import random
import zlib
from collections.abc import Sequence

from meshd.base.errors import RemoteProtocolError
from meshd.wire import signal
from meshd.wire.address import Candidate
from meshd.wire.netfacts import NetFacts
from meshd.wire.stun import Endpoint, StunKind, StunMessage, decode, encode

from tests.fuzz.mutate import either, flip
from tests.fuzz.target import Target

KEY = b"a key of thirty-two bytes, or so"
SEEN = Endpoint("203.0.113.7", 40_000)
MESSAGES = (
    StunMessage(kind=StunKind.REQUEST, transaction=bytes(12), change_ip=True, username=b"me:you"),
    StunMessage(kind=StunKind.SUCCESS, transaction=bytes(12), mapped=SEEN, other=SEEN, origin=SEEN),
    StunMessage(kind=StunKind.SUCCESS, transaction=bytes(12), mapped=Endpoint("2001:db8::7", 7)),
    StunMessage(kind=StunKind.ERROR, transaction=bytes(12), error=420, reason="no", unknown=(7, 9)),
)


def _make_stun(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    good = rng.choice(samples)
    if rng.random() < 0.3:
        return flip(rng, good, samples)
    # attributes broken under a head that is right and, half the time, a fingerprint that is
    body = flip(rng, good[20:-8], samples)[:2000]
    body += bytes(-len(body) % 4)
    kind = good[:2] if rng.random() < 0.9 else rng.randbytes(2)
    if rng.random() < 0.5:
        return kind + len(body).to_bytes(2, "big") + good[4:20] + body
    covered = kind + (len(body) + 8).to_bytes(2, "big") + good[4:20] + body
    return covered + b"\x80\x28\x00\x04" + (zlib.crc32(covered) ^ 0x5354554E).to_bytes(4, "big")


def _feed_stun(data: bytes) -> None:
    read = decode(data)
    assert read.unknown or decode(encode(read)) == read


PLACES = tuple(Candidate(f"10.0.0.{number}", number, "tcp", "srflx") for number in range(1, 9))
WORDS: tuple[signal.Punching, ...] = (
    signal.Knock(attempt=bytes(16)),
    signal.PunchReady(attempt=bytes(16), candidates=PLACES, waited_ms=9),
    signal.PunchGo(attempt=bytes(16), candidates=PLACES[:2]),
    signal.No(attempt=bytes(16), code="busy", text="too many"),
)

SEARCHES: tuple[signal.PortSearchMessage, ...] = (
    signal.Ask(attempt=bytes(16), key=KEY[:32].ljust(32), facts=NetFacts(), here=Endpoint("20.1.0.2", 9)),
    signal.OnePort(attempt=bytes(16), place=Endpoint("20.1.0.2", 65535)),
    signal.OpenedPorts(attempt=bytes(16), seen=Endpoint("20.1.0.2", 40_000), step=-1, count=256),
)


def _make_word(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    return either(rng, rng.choice(samples), samples)


def _feed_word(data: bytes) -> None:
    word = signal.decode_punching(data)
    assert signal.decode_punching(word.encode()) == word


def _feed_search(data: bytes) -> None:
    word = signal.decode_search(data)
    assert signal.decode_search(word.encode()) == word


TARGETS = (
    Target(
        name="stun",
        samples=tuple(encode(message, key=key) for message in MESSAGES for key in (b"", KEY)),
        make=_make_stun,
        feed=_feed_stun,
        allowed=(RemoteProtocolError,),
        share=6,
    ),
    Target(
        name="punching",
        samples=tuple(word.encode() for word in WORDS),
        make=_make_word,
        feed=_feed_word,
        allowed=(RemoteProtocolError,),
        share=4,
    ),
    Target(
        name="searching",
        samples=tuple(word.encode() for word in SEARCHES),
        make=_make_word,
        feed=_feed_search,
        allowed=(RemoteProtocolError,),
        share=4,
    ),
)
