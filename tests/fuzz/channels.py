"""Targets of the webrtc link: its offers, and SCTP packets of a peer that has passed DTLS."""

import asyncio
import functools
import random
import zlib
from collections.abc import Sequence

from aiortc import RTCCertificate, RTCDtlsTransport
from aiortc.rtcsctptransport import CookieEchoChunk, ErrorChunk, InitAckChunk, InitChunk
from meshd.base.errors import RemoteProtocolError
from meshd.link.webrtc import sctp as wire
from meshd.link.webrtc.sctp_association import Association
from meshd.wire.address import Candidate
from meshd.wire.signal import Answer, More, Offer, OfferGone, OfferSignal, Terms, decode_offer

from tests.fuzz.mutate import either, flip
from tests.fuzz.target import Target

PLACES = tuple(Candidate(f"10.0.0.{number}", number, "udp", "srflx") for number in range(1, 9))
TERMS = Terms(user="abcd", password="p" * 24, fingerprint=bytes(32), candidates=PLACES)
SIGNALS: tuple[OfferSignal, ...] = (
    Offer(attempt=bytes(16), terms=TERMS, seconds=10.0),
    Answer(attempt=bytes(16), terms=TERMS),
    More(attempt=bytes(16), candidates=PLACES[:2]),
    OfferGone(attempt=bytes(16), why="no"),
)
TAG = 0x01020304
FIRST = 1000  # TSN of both sides


def _make_offer(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    return either(rng, rng.choice(samples), samples)


def _feed_offer(data: bytes) -> None:
    signal = decode_offer(data)
    assert signal is None or decode_offer(signal.encode()) == signal


def _beginning(kind: type[InitChunk] | type[InitAckChunk]) -> bytes:
    chunk = kind()
    chunk.initiate_tag, chunk.initial_tsn, chunk.advertised_rwnd = TAG, FIRST, 1 << 20
    chunk.inbound_streams = chunk.outbound_streams = 9
    chunk.params = [(7, bytes(24)), (0x8008, b"\x82")]
    return bytes(chunk)


def _cookie() -> bytes:
    chunk = CookieEchoChunk()
    chunk.body = bytes(24)
    return bytes(chunk)


def _error() -> bytes:
    chunk = ErrorChunk()
    chunk.params = [(3, bytes(8))]
    return bytes(chunk)


CHUNKS = (
    wire.data_chunk(FIRST, 0, wire.BINARY, b"bytes in order"),
    wire.data_chunk(FIRST + 3, 3, wire.BINARY, bytes(1000)),
    wire.data_chunk(FIRST, 0, wire.FAREWELL, b"end"),
    wire.sack_chunk(FIRST + 2, 1 << 20, [(2, 3), (5, 6)]),
    wire.sack_chunk(FIRST - 1, 0, [(2, 40)]) + wire.data_chunk(FIRST + 1, 1, wire.BINARY, b"more"),
    wire.probe_chunk(1404, bytes(8)),
    wire.heartbeat_ack(bytes(20)),
    bytes([wire.HEARTBEAT, 0, 0, 4]) * 150,
    _beginning(InitChunk),
    _beginning(InitAckChunk),
    _cookie(),
    _error(),
    bytes([wire.COOKIE_ACK, 0, 0, 4]),
    bytes([wire.ABORT, 0, 0, 4]),
)


def _make_packet(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """Mostly sealed again after it was broken, or nothing would get past the checksum."""
    body = rng.choice(samples)
    broken = flip(rng, body, samples) if rng.random() < 0.8 else body
    if rng.random() < 0.05:
        return flip(rng, wire.seal(TAG, broken), samples)
    first = broken[:1]
    return wire.seal(0 if first == bytes([wire.INIT]) else TAG, broken[:1400])


@functools.cache
def _certificate() -> RTCCertificate:
    return RTCCertificate.generateCertificate()


class _Below:
    state = "completed"
    role = "controlling"


async def _meet(data: bytes) -> None:
    established = bool(zlib.crc32(data) & 1)  # half of them meet an association that stands
    dtls = RTCDtlsTransport(_Below(), [_certificate()])  # type: ignore[arg-type]
    sent: list[bytes] = []
    one = Association(dtls, sent.append, lambda: None, sent.append)
    one._local_verification_tag, one._local_tsn = TAG, FIRST
    await one.begin()
    if established:
        one.take(wire.seal(0, _beginning(InitChunk)))
        one._set_state(one.State.ESTABLISHED)
        one.write([bytes(20_000)])
    before = len(sent)
    one.take(data)
    one.batch_ended()
    assert len(sent) - before < 100, "one packet makes many"
    one.drop()


def _feed_packet(data: bytes) -> None:
    asyncio.run(_meet(data))
    for _, _, body in wire.open_packet(data)[1]:
        wire.open_data(body)


TARGETS = (
    Target(
        name="offers",
        samples=tuple(signal.encode() for signal in SIGNALS),
        make=_make_offer,
        feed=_feed_offer,
        allowed=(RemoteProtocolError,),
        share=4,
    ),
    Target(
        name="sctp",
        samples=CHUNKS,
        make=_make_packet,
        feed=_feed_packet,
        allowed=(RemoteProtocolError,),
        share=1,
    ),
)
