"""Messages of the relay: what is written is read, and what is not a message is refused."""

import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.wire.message import pack
from meshd.wire.relay import (
    MAX_BOX_SECONDS,
    MAX_MAIL_BYTES,
    RelayRefusal,
    decode_from_node,
    decode_from_relay,
)


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
    read = decode_from_relay(long.encode())
    assert isinstance(read, RelayRefusal)
    assert read.text.startswith("no?room")
