"""The words of a search for ports: round trips, limits, and what is refused."""

import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.wire.address import Candidate, pack_candidates
from meshd.wire.message import Value, pack
from meshd.wire.netfacts import Mapping, NetFacts
from meshd.wire.signal import OnePort, decode_search, is_outer
from meshd.wire.stun import Endpoint

ID, KEY = bytes(range(16)), bytes(32)
FACTS = NetFacts(mapping=Mapping.ADDRESS_PORT, public_v4="20.1.0.2")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "192.168.1.7", "10.9.8.7", "172.16.0.1", "169.254.1.1", "240.0.0.1", "2001:db8::7", "::1"],
)
def test_no_search_goes_to_a_site_or_a_machine(host: str) -> None:
    assert not is_outer(Endpoint(host, 4000))
    with pytest.raises(RemoteProtocolError):
        decode_search(OnePort(attempt=ID, place=Endpoint(host, 4000)).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"t": "ask", "a": ID, "net": FACTS.to_bytes()},
        {"t": "ask", "a": ID, "net": FACTS.to_bytes(), "key": b"short"},
        {"t": "ask", "a": ID, "key": KEY},
        {"t": "ask", "a": ID, "key": KEY, "net": bytes(17)},
        {"t": "ask", "a": ID, "key": KEY, "net": FACTS.to_bytes(), "at": b"x"},
        {"t": "here", "a": ID},
        {"t": "here", "a": ID, "at": b""},
        {"t": "here", "a": ID, "at": pack_candidates([Candidate("1.1.1.1", 1), Candidate("1.1.1.2", 1)])},
        {"t": "opened", "a": ID, "at": Candidate("1.1.1.1", 1).to_bytes(), "step": 128, "n": 1},
        {"t": "opened", "a": ID, "at": Candidate("1.1.1.1", 1).to_bytes(), "step": 0, "n": 0},
        {"t": "opened", "a": ID, "at": Candidate("1.1.1.1", 1).to_bytes(), "step": 0, "n": 257},
        {"t": "here", "a": b"x", "at": Candidate("1.1.1.1", 1).to_bytes()},
        {"t": "there", "a": ID},
    ],
)
def test_what_is_refused(fields: dict[str, Value]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_search(pack(fields))
