"""Messages of the relay: what is written is read, and what is not a message is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import PEER_BYTES
from meshd.wire.message import pack
from meshd.wire.relay import (
    BOX_BYTES,
    MAX_BOX_SECONDS,
    MAX_MAIL_BYTES,
    MAX_RELAY_MESSAGE_BYTES,
    TICKET_BYTES,
    Call,
    Called,
    FromNode,
    FromRelay,
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
    encode,
)

numbers = st.integers(0, (1 << 32) - 1)
peers = st.binary(min_size=PEER_BYTES, max_size=PEER_BYTES)
boxes = st.binary(min_size=BOX_BYTES, max_size=BOX_BYTES)
tickets = st.binary(min_size=TICKET_BYTES, max_size=TICKET_BYTES)
blobs = st.binary(max_size=MAX_MAIL_BYTES)
words = st.text(st.characters(codec="utf-8", categories=("L", "N")), max_size=16)
to = peers | boxes

of_node: st.SearchStrategy[FromNode] = (
    st.builds(Call, numbers, to)
    | st.builds(HangUp, tickets)
    | st.builds(OpenBox, boxes, st.integers(1, MAX_BOX_SECONDS))
    | st.builds(ShutBox, boxes)
    | st.builds(Post, numbers, to, blobs)
    | st.builds(RelayPing, numbers)
)
of_relay: st.SearchStrategy[FromRelay] = (
    st.builds(Ready, words, numbers, numbers)
    | st.builds(Called, numbers, tickets)
    | st.builds(Ring, tickets, peers, st.just(b"") | boxes)
    | st.builds(Posted, numbers, st.booleans())
    | st.builds(RelayRefusal, numbers, words, words, words)
    | st.builds(Mail, peers, st.just(b"") | boxes, blobs)
    | st.builds(RelayPong, numbers)
)


@given(of_node)
def test_what_a_node_says_is_read(message: FromNode) -> None:
    data = encode(message)
    assert decode_from_node(data) == message
    assert len(data) <= MAX_RELAY_MESSAGE_BYTES


@given(of_relay)
def test_what_a_relay_says_is_read(message: FromRelay) -> None:
    data = encode(message)
    assert decode_from_relay(data) == message
    assert len(data) <= MAX_RELAY_MESSAGE_BYTES


@given(st.binary(max_size=200))
def test_noise_is_refused_or_read(data: bytes) -> None:
    for decode in (decode_from_node, decode_from_relay):
        try:
            decode(data)
        except RemoteProtocolError:
            continue


@given(of_node, st.data())
def test_a_broken_message_is_refused_or_read(message: FromNode, data: st.DataObject) -> None:
    good = bytearray(encode(message))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    try:
        decode_from_node(bytes(good))
    except RemoteProtocolError:
        return


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "call", "number": 1, "to": bytes(20)},
        {"type": "call", "number": -1, "to": bytes(32)},
        {"type": "call", "to": bytes(32)},
        {"type": "post", "number": 1, "to": bytes(32), "blob": bytes(MAX_MAIL_BYTES + 1)},
        {"type": "open_box", "box": bytes(16), "seconds": 0},
        {"type": "open_box", "box": bytes(16), "seconds": MAX_BOX_SECONDS + 1},
        {"type": "hang_up", "ticket": bytes(15)},
        {"type": "ready", "seen": "x", "circuits": 1, "rate": 1},
    ],
)
def test_limits_hold_for_nodes(fields: dict[str, str | int | bytes]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_from_node(pack(fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "ring", "ticket": bytes(16), "caller": bytes(31), "box": b""},
        {"type": "ring", "ticket": bytes(16), "caller": bytes(32), "box": bytes(3)},
        {"type": "refused", "number": 1, "code": "x" * 65, "text": ""},
        {"type": "refused", "number": 1, "code": "x", "text": "line\nbreak"},
        {"type": "mail", "sender": bytes(32), "box": b"", "blob": bytes(MAX_MAIL_BYTES + 1)},
    ],
)
def test_limits_hold_for_relays(fields: dict[str, str | int | bytes]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_from_relay(pack(fields))


def test_a_later_version_of_a_relay_may_say_more() -> None:
    assert decode_from_relay(pack({"type": "weather", "rain": True})) is None
    with pytest.raises(RemoteProtocolError, match="unknown type `weather`"):
        decode_from_node(pack({"type": "weather", "rain": True}))


def test_reasons_are_made_to_fit() -> None:
    long = RelayRefusal(1, "full", "no\nroom " + "x" * 5000)
    read = decode_from_relay(encode(long))
    assert isinstance(read, RelayRefusal)
    assert read.text.startswith("no?room")
