"""Targets of the QUIC link: a stranger's first datagram, and the frames of a peer that has keys."""

import random
from collections.abc import Sequence

from aioquic._buffer import Buffer
from aioquic.quic.connection import QuicConnectionError, QuicNetworkPath, QuicReceiveContext
from aioquic.tls import Epoch
from meshd.base.errors import RemoteProtocolError
from meshd.identity.tls_certificate import make_link_certificate
from meshd.link.net.udp_sockets import Origin
from meshd.link.quic.engine import (
    FIRST_CREDIT_BYTES,
    QuicEngine,
    Reception,
    dialler_settings,
    listener_settings,
    start_dialling,
)
from meshd.link.quic.sockets import destination

from tests.fuzz.mutate import flip
from tests.fuzz.target import Target

NEAR = Origin(("192.0.2.1", 1000))
LISTENER = listener_settings(make_link_certificate(), idle_seconds=15.0)
DIALLER = dialler_settings(idle_seconds=15.0)
RECEPTION = Reception(LISTENER)
HELLO = start_dialling(DIALLER, NEAR, 1.0).datagrams_to_send(1.0)[0][0]


def _frame(kind: int, *numbers: int, tail: bytes = b"") -> bytes:
    """A frame of variable-length numbers (RFC 9000 section 19)."""
    buffer = Buffer(2048)
    for number in (kind, *numbers):
        buffer.push_uint_var(number)
    return buffer.data + tail


FRAMES = (
    _frame(0x01),  # PING
    _frame(0x02, 3, 0, 0, 3),  # ACK
    _frame(0x02, 3, 0, 1, 0, 0, 1),
    _frame(0x04, 0, 7, 100),  # RESET_STREAM
    _frame(0x05, 0, 7),  # STOP_SENDING
    _frame(0x06, 0, 4, tail=b"\x01\x02\x03\x04"),  # CRYPTO
    _frame(0x07, 4, tail=b"none"),  # NEW_TOKEN
    _frame(0x0E, 0, 0, 5, tail=b"hello"),  # STREAM
    _frame(0x0F, 0, 5, 3, tail=b"end"),
    _frame(0x0E, 0, FIRST_CREDIT_BYTES - 4, 4, tail=b"far "),
    _frame(0x10, 1 << 20),  # MAX_DATA
    _frame(0x11, 0, 1 << 20),  # MAX_STREAM_DATA
    _frame(0x12, 8),  # MAX_STREAMS
    _frame(0x14, 5),  # DATA_BLOCKED
    _frame(0x18, 1, 0, 8, tail=bytes(8) + bytes(16)),  # NEW_CONNECTION_ID
    _frame(0x19, 0),  # RETIRE_CONNECTION_ID
    _frame(0x1A, tail=b"12345678"),  # PATH_CHALLENGE
    _frame(0x1B, tail=b"12345678"),  # PATH_RESPONSE
    _frame(0x1C, 1, 0, 3, tail=b"bye"),  # CONNECTION_CLOSE
)


def _make_hello(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """Broken in the header, or filled up to the length that a greeting must have."""
    broken = flip(rng, samples[0][:60], samples) + samples[0][60:]
    return broken.ljust(1200, b"\0") if rng.random() < 0.8 else broken


def _feed_hello(data: bytes) -> None:
    destination(data)
    answer = RECEPTION.first(data, NEAR, 1.0, busy=len(data) % 4 == 0)
    if answer is None:
        raise RemoteProtocolError("no greeting")
    if isinstance(answer, bytes):
        assert len(answer) < len(data), "an answer is never larger than what it answers"


def _make_frames(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    row = [rng.choice(samples) for _ in range(rng.randint(1, 6))]
    at = rng.randrange(len(row))
    row[at] = flip(rng, row[at], samples)
    return b"".join(row)[:1400]


def _feed_frames(data: bytes) -> None:
    """As `QuicEngine.receive_datagram` hands on what it has decrypted."""
    engine = QuicEngine(LISTENER, original_id=bytes(8))
    path = QuicNetworkPath(NEAR, is_validated=True)
    engine._network_paths, engine._version, engine._close_at = [path], 1, 100.0
    engine._initialize(bytes(8))
    engine._peer_cid.sequence_number = 0
    context = QuicReceiveContext(
        epoch=Epoch.ONE_RTT,
        host_cid=engine.host_cid,
        network_path=path,
        quic_logger_frames=None,
        time=1.0,
        version=1,
    )
    try:
        engine._payload_received(context, data)
    except QuicConnectionError as error:
        raise RemoteProtocolError(error.reason_phrase or "frame") from None
    engine.poll()
    assert sum(map(len, engine.inbox)) <= FIRST_CREDIT_BYTES
    if (reason := engine.gone) is not None:
        raise RemoteProtocolError(reason)


TARGETS = (
    Target(
        name="quic hello",
        samples=(HELLO,),
        make=_make_hello,
        feed=_feed_hello,
        allowed=(RemoteProtocolError,),
        share=2,
        most_bytes=4 << 20,
    ),
    Target(
        name="quic frames",
        samples=FRAMES,
        make=_make_frames,
        feed=_feed_frames,
        allowed=(RemoteProtocolError,),
        share=2,
        most_bytes=4 << 20,
    ),
)
