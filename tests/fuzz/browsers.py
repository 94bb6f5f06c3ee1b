"""Targets of browsers: WebSockets, the seal and what is in it, and the requests of a page."""

import json
import random
from collections.abc import Sequence

from meshd.base.errors import RemoteProtocolError
from meshd.base.peer_limits import (
    BROWSER_HELD_IN_ALL_KIB,
    BROWSER_HELD_KIB,
    BROWSER_REQUESTS,
    BROWSER_SENT_KIB,
)
from meshd.gateway.browser_frames import (
    MAX_MESSAGE_BYTES,
    Allow,
    Data,
    Forget,
    FromBrowser,
    HeadReader,
    Hello,
    Ping,
    Place,
    decode_from_browser,
    decode_from_node,
    encode,
    with_length,
)
from meshd.gateway.browser_requests import Arrived, Begun, BrowserShare, PageRequests
from meshd.identity.browser_seal import BROWSER_CONTEXT, SealDialler, answer
from meshd.identity.invite import JoinKeys, derive
from meshd.wire.browser import (
    MAX_FIRST_BYTES,
    BrowserHello,
    BrowserRefused,
    BrowserSignal,
    BrowserWelcome,
    decode_browser,
)
from meshd.wire.message import LengthParser, framed
from meshd.wire.websocket import MAX_FRAME_PAYLOAD, FrameReader, read_request, unmask

from tests.fuzz.mutate import either, flip, twist
from tests.fuzz.target import Target
from tests.unit.identity.cast import FOUNDER, STRANGER

KEYS = derive(b"b" * 16)
MASK = b"\x01\x02\x03\x04"

# --- a relay: the request, then frames

REQUEST = (
    b"GET /browser/abc HTTP/1.1\r\nHost: relay.example:443\r\nConnection: keep-alive, Upgrade\r\n"
    b"Upgrade: websocket\r\nOrigin: null\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)


def _masked(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return bytes([opcode | (0x80 if final else 0)]) + length + MASK + unmask(payload, MASK)


FRAMES = (
    _masked(2, b"sealed"),
    _masked(2, bytes(200), final=False) + _masked(0, b"the rest"),
    _masked(2, b""),
    _masked(9, b"ping"),
    _masked(10, b"pong"),
    _masked(8, b"\x03\xe8bye"),
)


def _make_websocket(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """A request and frames; mostly one of the frames is broken, else the request."""
    row = [REQUEST, *(rng.choice(samples) for _ in range(rng.randint(1, 6)))]
    at = rng.randrange(1, len(row)) if rng.random() < 0.7 else 0
    row[at] = flip(rng, row[at], samples)
    return b"".join(row)


def _feed_websocket(data: bytes) -> None:
    head, _, frames = data.partition(b"\r\n\r\n")
    read_request(head)
    reader, taken = FrameReader(), 0
    for at in range(0, len(frames), 100):
        payloads, reply = reader.feed(frames[at : at + 100])
        taken += sum(map(len, payloads))
        assert len(reply) <= 200  # no answer is larger than what asked for it
        assert len(reader._buffer) <= MAX_FRAME_PAYLOAD + 14
    assert taken <= len(frames)
    if reader.is_over:
        raise RemoteProtocolError("the WebSocket was ended")


# --- the seal, and the messages in it

FIRST = SealDialler(KEYS, FOUNDER.peer, ephemeral=b"e" * 32).first
MESSAGES = tuple(
    message.encode()
    for message in (
        BrowserHello(STRANGER.peer.raw, STRANGER.sign(BROWSER_CONTEXT, bytes(32))),
        BrowserWelcome("ann", ("stun.example:3478",)),
        BrowserRefused("used_up", "this invite was valid once and is used up", "ask for a new one"),
        BrowserSignal(b"an offer" * 20),
    )
)


def _make_flipped(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    good = framed(rng.choice(samples))
    return flip(rng, good, samples) if rng.random() < 0.9 else good


def _feed_seal(data: bytes) -> None:
    parser = LengthParser(limit=MAX_FIRST_BYTES)
    parser.feed(data)
    if (first := parser.next()) is None:
        raise RemoteProtocolError("the rest never comes")

    def invites(invite_id: bytes) -> JoinKeys | None:
        return KEYS if invite_id == KEYS.invite_id else None

    _, invite_id, seal = answer(first, key=FOUNDER, invites=invites, ephemeral=b"n" * 32)
    assert invite_id == KEYS.invite_id and first == FIRST
    try:
        seal.open(data)
    except RemoteProtocolError:
        return
    raise AssertionError("bytes of somebody without the key were opened")


def _make_message(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    return either(rng, rng.choice(samples), samples)


def _feed_message(data: bytes) -> None:
    message = decode_browser(data)
    assert message is None or decode_browser(message.encode()) == message


# --- a page: its messages, over channels that it begins and breaks as it likes

SESSION = bytes(16)
HEAD = with_length({"method": "POST", "path": "/v1/x?y=1", "headers": [["Accept", "b"], ["X-Api-Key", "k"]]})
_FROM_PAGE: tuple[FromBrowser, ...] = (
    Hello(SESSION),
    Hello(SESSION, (Place(1, 0, 256 << 10),)),
    Hello(SESSION, (Place(1, 3000, 256 << 10), Place(2, 0, 1))),
    Data(1, 0, HEAD, False),
    Data(1, len(HEAD), b"body" * 100, True),
    Data(2, 0, HEAD, True),
    Data(9, 0, HEAD[:3], False),
    Allow(Place(1, 3000, 1 << 20)),
    Allow(Place(2, 0, 1 << 50)),
    Forget(1),
    Forget(2),
    Ping(7),
)
FROM_PAGE = tuple(map(encode, _FROM_PAGE))


def _make_page(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """Begin with hello; then messages in any order, some of them broken, and further hellos."""
    row = [samples[0], *(rng.choice(samples) for _ in range(rng.randint(1, 30)))]
    for _ in range(rng.randint(0, 2)):
        at = rng.randrange(len(row))
        row[at] = flip(rng, row[at], samples)[:MAX_MESSAGE_BYTES]
    return b"".join(map(framed, row))


class _Node:
    """A node with one page, which answers each request with 5000 bytes, or fails at it."""

    def __init__(self) -> None:
        self.share = BrowserShare()
        self.requests = PageRequests(self.share, 0.0)
        self.unread: dict[int, int] = {}

    def take(self, data: bytes) -> None:
        """Take a message as `serve_browser` does, hellos also later: each is a new channel."""
        message = decode_from_browser(data)
        if isinstance(message, Hello):
            events = self.requests.connect(message)
        else:
            events = self.requests.receive(data) if self.requests.expires is None else []
        for event in events:
            if isinstance(event, Begun):
                self.unread[event.number] = 0
                self.requests.write(event.number, bytes(min(5000, self.requests.room(event.number))))
                if event.number % 3:
                    self.requests.end(event.number)
                else:
                    self.requests.fail(event.number, "no")
            elif isinstance(event, Arrived):
                self.unread[event.number] += len(event.data)

    def check(self) -> None:
        held = [request.answer.held for request in self.requests._requests.values()]
        assert self.share.requests == len(held) <= BROWSER_REQUESTS.most
        assert sum(held) <= BROWSER_HELD_IN_ALL_KIB.most << 10
        assert max(held, default=0) <= BROWSER_HELD_KIB.most << 10
        assert self.share.shared == sum(max(0, size - (32 << 10)) for size in held)
        assert all(count <= BROWSER_SENT_KIB.most << 10 for count in self.unread.values())


def _feed_page(data: bytes) -> None:
    node, broken = _Node(), list[RemoteProtocolError]()
    parser = LengthParser(limit=MAX_MESSAGE_BYTES)
    parser.feed(data)
    for message in parser.messages():
        try:
            node.take(message)
        except RemoteProtocolError as error:
            broken.append(error)
            node.requests.disconnect(1.0)
        for _ in range(1000):
            if (sent := node.requests.transmit()) is None:
                break
            assert len(sent) <= MAX_MESSAGE_BYTES
            decode_from_node(sent)
        else:
            raise AssertionError("it never stops to send")
        node.check()
    node.requests.disconnect(2.0)
    assert node.requests.expires is not None
    node.requests.close()
    assert (node.share.requests, node.share.shared) == (0, 0)
    if broken:
        raise broken[0]


def _make_head(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    good = rng.choice(samples)
    if rng.random() < 0.4:
        return flip(rng, good, samples)
    try:
        text = json.dumps(twist(rng, json.loads(good[4:]))).encode()
    except (TypeError, ValueError, RecursionError):
        return flip(rng, good, ())
    return len(text).to_bytes(4, "big") + text + b"body"


def _feed_head(data: bytes) -> None:
    reader, found = HeadReader(), None
    for at in range(0, len(data), 1 << 14):
        if found is None:
            found = reader.feed(data[at : at + (1 << 14)])
    if found is None:
        raise RemoteProtocolError("the rest never comes")
    words = (found[0].method, found[0].path, *(word for pair in found[0].headers for word in pair))
    assert all(" " <= letter <= "~" for word in words for letter in word)


TARGETS = (
    Target(
        name="websocket",
        samples=FRAMES,
        make=_make_websocket,
        feed=_feed_websocket,
        allowed=(RemoteProtocolError,),
        share=4,
    ),
    Target(
        name="browser-seal",
        samples=(FIRST,),
        make=_make_flipped,
        feed=_feed_seal,
        allowed=(RemoteProtocolError,),
        share=1,
    ),
    Target(
        name="browser",
        samples=MESSAGES,
        make=_make_message,
        feed=_feed_message,
        allowed=(RemoteProtocolError,),
        share=4,
    ),
    Target(
        name="browser-page",
        samples=FROM_PAGE,
        make=_make_page,
        feed=_feed_page,
        allowed=(RemoteProtocolError,),
        share=4,
    ),
    Target(
        name="browser-head",
        samples=(HEAD,),
        make=_make_head,
        feed=_feed_head,
        allowed=(RemoteProtocolError,),
        share=4,
    ),
)
