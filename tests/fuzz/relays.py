"""Targets of relays: what a node says to one (and what follows), what one says to a node, URLs, proxies."""

import itertools
import random
from collections.abc import Sequence

from meshd.base.errors import Broken, RemoteProtocolError, UserError
from meshd.identity.invite import RelayHint, parse_relay_url, relay_url
from meshd.identity.keys import KeyPair
from meshd.link.relayed.http_proxy import read_reply
from meshd.relay.switchboard import SMALL, NodeIdentity, Switchboard
from meshd.wire.message import LengthParser, framed
from meshd.wire.relay import (
    MAX_RELAY_MESSAGE_BYTES,
    Call,
    Called,
    HangUp,
    Mail,
    OpenBox,
    Post,
    Posted,
    Ready,
    RelayPing,
    RelayPong,
    RelayRefusal,
    Ring,
    ShutBox,
    decode_from_node,
    decode_from_relay,
)

from tests.fuzz.mutate import either, flip
from tests.fuzz.target import Target

ANN, BOB, GUEST = (bytes([number]) * 32 for number in (1, 2, 3))
MESH, BOX = b"m" * 32, b"b" * 16
FROM_NODE = tuple(
    framed(message.encode())
    for message in (
        Call(1, BOB),
        Call(2, BOX),
        HangUp((1).to_bytes(16, "big")),
        OpenBox(BOX, 600),
        ShutBox(BOX),
        Post(3, BOB, b"signal" * 100),
        Post(4, BOX, b"hello"),
        RelayPing(5),
    )
)
FROM_RELAY = tuple(
    message.encode()
    for message in (
        Ready("192.0.2.1:4711", 8, 1 << 20),
        Called(1, bytes(16)),
        Ring(bytes(16), ANN, BOX),
        Posted(3, True),
        RelayRefusal(1, "absent", "the node is not connected to this relay", "wait"),
        Mail(ANN, b"", b"signal" * 100),
        RelayPong(5),
    )
)
URL = relay_url(RelayHint("relay.example.org:443", KeyPair.from_seed(bytes(32)).peer)).encode()
REPLY = b"HTTP/1.1 200 Connection established\r\nVia: proxy\r\n\r\n"


def _make_talk(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """Some messages in any order, one of them broken."""
    row = [rng.choice(samples) for _ in range(rng.randint(1, 8))]
    at = rng.randrange(len(row))
    row[at] = flip(rng, row[at], samples)
    return b"".join(row)


def _make_one(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    return either(rng, rng.choice(samples), samples)


def _make_flipped(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    return flip(rng, rng.choice(samples), samples)


def _feed_talk(data: bytes) -> None:
    """The same words of a member and of a guest; whatever they were, little is held."""
    numbers = itertools.count(1)
    board = Switchboard(SMALL, random=lambda size: next(numbers).to_bytes(size, "big"))
    for client, who in enumerate(
        (NodeIdentity(ANN, MESH), NodeIdentity(GUEST, b""), NodeIdentity(BOB, MESH))
    ):
        board.enter(client, who, host="192.0.2.1", seen="192.0.2.1:1", now=0.0)
    try:
        for client in (0, 1):
            parser = LengthParser(limit=MAX_RELAY_MESSAGE_BYTES)
            parser.feed(data)
            for message in parser.messages():
                board.receive(client, decode_from_node(message), 0.0)
    finally:
        assert board.boxes <= SMALL.boxes_of_key
        assert board.circuits <= SMALL.circuits_of_key
        assert board.mail_bytes <= SMALL.mail_bytes


def _feed_from_relay(data: bytes) -> None:
    decode_from_relay(data)


def _feed_url(data: bytes) -> None:
    hint = parse_relay_url(data.decode("utf-8", "replace"))
    assert parse_relay_url(relay_url(hint)) == hint


def _feed_reply(data: bytes) -> None:
    read_reply(data, "proxy")


TARGETS = (
    Target(
        name="relay",
        samples=FROM_NODE,
        make=_make_talk,
        feed=_feed_talk,
        allowed=(RemoteProtocolError,),
        share=6,
    ),
    Target(
        name="from-relay",
        samples=FROM_RELAY,
        make=_make_one,
        feed=_feed_from_relay,
        allowed=(RemoteProtocolError,),
        share=4,
    ),
    Target(
        name="relay-url", samples=(URL,), make=_make_flipped, feed=_feed_url, allowed=(UserError,), share=1
    ),
    Target(
        name="proxy-reply", samples=(REPLY,), make=_make_flipped, feed=_feed_reply, allowed=(Broken,), share=1
    ),
)
