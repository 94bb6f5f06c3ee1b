"""The URL of a relay, as people paste it."""

import pytest
from meshd.base.errors import UserError
from meshd.identity.invite import RelayHint, parse_relay_url, relay_url, split_place
from meshd.identity.keys import KeyPair

KEY = KeyPair.from_seed(bytes(32)).peer


@pytest.mark.parametrize("place", ["relay.example.org:443", "192.0.2.7:17443", "[2001:db8::7]:443"])
def test_there_and_back(place: str) -> None:
    hint = RelayHint(place, KEY)
    assert parse_relay_url(relay_url(hint)) == hint
    assert parse_relay_url(f"  {relay_url(hint)}/\n") == hint


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not begin"),
        ("https://relay.example.org", "does not begin"),
        ("relay://relay.example.org:443", "key is missing"),
        (f"relay://{KEY}@relay.example.org", "host is missing"),
        (f"relay://{KEY}@relay.example.org:0", "port"),
        (f"relay://{KEY}@relay.example.org:70000", "port"),
        (f"relay://{KEY}@:443", "host is missing"),
        (f"relay://{KEY}@2001:db8::7:443", "brackets"),
        (f"relay://{KEY}@host/path:443", "host is missing or wrong"),
        (f"relay://{str(KEY)[:-1]}@h:443", "not a node id"),
        (f"relay://{KEY}@{'h' * 120}:443", "host is missing or wrong"),
        (f"relay://{KEY}@h:443 x", "form"),
        ("relay://" + "x" * 400, "form"),
    ],
)
def test_what_is_wrong_is_said(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        parse_relay_url(text)


def test_places_are_split() -> None:
    assert split_place("[::1]:80") == ("::1", 80)
    assert split_place("name:80") == ("name", 80)
