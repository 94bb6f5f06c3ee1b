"""Messages of the relay: what is written is read, and what is not a message is refused."""

import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.wire.message import pack
from meshd.wire.relay import (
    RelayRefusal,
    decode_from_node,
    decode_from_relay,
)


def test_a_later_version_of_a_relay_may_say_more() -> None:
    assert decode_from_relay(pack({"type": "weather", "rain": True})) is None
    with pytest.raises(RemoteProtocolError, match="unknown type `weather`"):
        decode_from_node(pack({"type": "weather", "rain": True}))


def test_reasons_are_made_to_fit() -> None:
    long = RelayRefusal(1, "full", "no\nroom " + "x" * 5000)
    read = decode_from_relay(long.encode())
    assert isinstance(read, RelayRefusal)
    assert read.text.startswith("no?room")
