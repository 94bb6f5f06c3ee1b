"""Words that people paste are read back, and each fault is named; keys are as RFC 5869 gives them."""

import hmac
import re

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, UserError
from meshd.identity.invite import (
    MAX_PASTED_CHARS,
    MAX_REPLY_CANDIDATES,
    MAX_TOKEN_CHARS,
    REPLY,
    REPLY_MAC_BYTES,
    TOKEN,
    Armour,
    Invite,
    JoinKeys,
    RelayHint,
    Reply,
    derive,
    encode_reply,
    encode_token,
    expired_text,
    parse_relay_url,
    parse_reply,
    parse_token,
    refuse_expired,
    relay_url,
    split_place,
)
from meshd.identity.keys import KeyPair
from meshd.identity.recovery_code import write_code
from meshd.wire.address import Candidate, order

from tests.unit.identity.cast import GUEST, INVITER, MESH, brief, thorough

SECRET = b"sixteen bytes ok"
V4 = tuple(Candidate(f"192.168.1.{last}", 7000 + last) for last in range(1, 5))
V6 = (Candidate("fd00:1:2:3:4:5:6:7", 7000), Candidate("2001:db8:1:2:3:4:5:6", 7001, "udp"))
RELAY = RelayHint("relay.example.org:443", GUEST.peer)
INVITE = Invite(MESH, INVITER.peer, SECRET, 1_800_000_000, order(V4 + V6))
BODY = TOKEN.read(encode_token(INVITE))
KEYS = derive(bytes(range(16)))
JOINER = KeyPair.from_seed(bytes(32)).peer
OUTSIDE = Candidate("198.51.100.7", 40000, "udp", "srflx")
INSIDE = Candidate("192.168.1.9", 40000, "udp")


def test_a_token_with_six_addresses_is_read_back_and_fits() -> None:
    token = encode_token(INVITE)
    assert len(token) <= MAX_TOKEN_CHARS
    assert token.startswith("meshd1")
    assert token.isalnum()
    assert parse_token(token) == INVITE


def test_a_token_without_addresses_is_read_back() -> None:
    bare = Invite(MESH, INVITER.peer, SECRET, 5)
    assert parse_token(encode_token(bare)) == bare


def test_a_relay_goes_before_the_third_address() -> None:
    found = parse_token(encode_token(Invite(MESH, INVITER.peer, SECRET, 5, V4 + V6, (RELAY, RELAY))))
    assert found.relays == (RELAY,)
    assert found.candidates[:2] == order(V4 + V6)[:2]


def test_a_relay_with_an_endless_name_is_left_out() -> None:
    long = RelayHint("r" * 200 + ":443", GUEST.peer)
    found = parse_token(encode_token(Invite(MESH, INVITER.peer, SECRET, 5, V4, (long, RELAY))))
    assert found.relays == (RELAY,)


def test_near_addresses_stay_when_not_all_fit_and_loopback_goes_first() -> None:
    far = tuple(Candidate(f"2001:db8::{last:x}", 7000, "tcp", "srflx") for last in range(1, 9))
    loopback = Candidate("127.0.0.1", 7000)
    found = parse_token(encode_token(Invite(MESH, INVITER.peer, SECRET, 5, (loopback, *far, *V4))))
    assert set(V4) <= set(found.candidates)
    assert len(found.candidates) < 13


@given(
    st.lists(st.sampled_from(V4 + V6), max_size=40),
    st.lists(st.text("abc.", min_size=1, max_size=120).map(lambda host: f"{host}:1"), max_size=4),
    st.integers(0, (1 << 40) - 1),
)
@thorough
def test_no_token_is_too_long(candidates: list[Candidate], relays: list[str], expires: int) -> None:
    hints = tuple(RelayHint(place, GUEST.peer) for place in relays)
    token = encode_token(Invite(MESH, INVITER.peer, SECRET, expires, tuple(candidates), hints))
    assert len(token) <= MAX_TOKEN_CHARS
    found = parse_token(token)
    assert (found.mesh, found.inviter, found.secret) == (MESH, INVITER.peer, SECRET)
    assert found.expires_at == expires


def field(tag: int, value: bytes) -> bytes:
    return bytes([tag, len(value)]) + value


def test_an_unknown_field_is_skipped_unless_it_is_critical() -> None:
    assert parse_token(TOKEN.write(BODY + field(0x55, b"later"))) == INVITE
    with pytest.raises(UserError, match="newer version"):
        parse_token(TOKEN.write(BODY + field(0xD5, b"later")))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "mesh is missing"),
        (BODY[34:], "mesh is missing"),
        (BODY[:34] + BODY[68:], "inviter is missing"),
        (BODY[:68] + BODY[86:], "secret is missing"),
        (BODY[:86] + BODY[93:], "expiry is missing"),
        (BODY[:34] + BODY, "twice"),
        (BODY + b"\x55", "cut off"),
        (BODY + b"\x55\x09short", "cut off"),
        (field(0x81, b"short") + BODY[34:], "mesh is missing or has the wrong length"),
        (BODY[:93] + field(5, b"\0\1\2"), "candidate"),
    ],
)
def test_a_token_whose_content_is_wrong_says_what(body: bytes, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        parse_token(TOKEN.write(body))
    assert "meshd invite" in caught.value.hint


@pytest.mark.parametrize(
    "value",
    [
        b"",
        bytes(32),
        *(bytes(32) + place for place in (b"\xff:1", b"host", b".x:443", b"x..y:443")),
        b"short:1",
    ],
)
def test_a_relay_that_cannot_be_used_is_left_out(value: bytes) -> None:
    assert parse_token(TOKEN.write(BODY + field(6, value))).relays == ()


def test_the_roots_backup_is_not_taken_for_a_token() -> None:
    with pytest.raises(UserError, match="must stay secret"):
        parse_token(write_code(bytes(32)))


def test_the_secret_is_not_shown() -> None:
    for shown in (repr(INVITE), repr(derive(SECRET))):
        assert "sixteen" not in shown
        assert repr(derive(SECRET).join_key) not in shown
    damaged_token = encode_token(INVITE)[:-1]
    with pytest.raises(UserError) as caught:
        parse_token(damaged_token)
    assert damaged_token[60:90] not in str(caught.value) + caught.value.hint


def test_the_keys_are_those_of_the_rfc() -> None:
    keys = derive(SECRET)

    def hkdf(info: bytes, size: int) -> bytes:
        return HKDF(SHA256(), size, b"meshd invite v1", info).derive(SECRET)

    assert keys.join_key == hkdf(b"join key", 32)
    assert keys.mailbox == hkdf(b"mailbox", 16)
    assert keys.invite_id == hkdf(b"invite id", 8)


def test_ice_names_are_as_long_as_the_rfc_wants() -> None:
    keys = derive(SECRET)
    assert 4 <= len(keys.ice_user) <= 256  # RFC 8839 5.4
    assert 22 <= len(keys.ice_password) <= 256
    assert (keys.ice_user + keys.ice_password).isalnum()


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
@brief
def test_other_secrets_give_other_keys(one: bytes, two: bytes) -> None:
    assert (derive(one) == derive(two)) == (one == two)


def test_a_secret_has_sixteen_bytes() -> None:
    with pytest.raises(LocalProtocolError):
        derive(b"short")
    with pytest.raises(LocalProtocolError):
        encode_token(Invite(MESH, INVITER.peer, b"short", 5))


def test_expiry_is_said_in_words() -> None:
    assert expired_text(1000, 1030) == "expired less than a minute ago"
    assert expired_text(1000, 1060) == "expired 1 minute ago"
    assert expired_text(1000, 1000 + 2 * 3600) == "expired 2 hours ago"
    assert expired_text(0, 3 * 86400) == "expired 3 days ago"
    assert expired_text(1000, 0) == "expired less than a minute ago"


def test_a_token_is_refused_here_only_when_clocks_cannot_explain_it() -> None:
    end = INVITE.expires_at
    assert not INVITE.expired(end - 1)
    assert INVITE.expired(end)
    refuse_expired(INVITE, end + 3600)
    with pytest.raises(UserError, match="expired 1 day ago") as caught:
        refuse_expired(INVITE, end + 86400)
    assert "meshd invite" in caught.value.hint


def _accepted(text: str) -> bool:
    """Return True if `text` is taken for a token. Raises whatever `parse_token` raises besides UserError."""
    try:
        parse_token(text)
    except UserError:
        return False
    return True


def test_every_damage_to_one_character_is_found() -> None:
    """Every place, and every character that a token may have: changed, left out, doubled, inserted."""
    token = encode_token(INVITE)
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
    wrong: set[str] = set()
    for at, char in enumerate(token):
        wrong |= {token[:at] + other + token[at + 1 :] for other in alphabet if other != char}
        wrong |= {token[:at] + other + token[at:] for other in alphabet}
        wrong.add(token[:at] + token[at + 1 :])
    wrong.discard(token)
    assert len(wrong) > 60 * len(token)
    assert [text for text in wrong if _accepted(text)] == []


def reply(*candidates: Candidate) -> Reply:
    return Reply(KEYS.invite_id, JOINER, candidates)


def known(invite_id: bytes) -> JoinKeys | None:
    return KEYS if invite_id == KEYS.invite_id else None


def test_a_code_is_read_back() -> None:
    code = encode_reply(reply(OUTSIDE, INSIDE), KEYS)
    assert code.startswith("meshdreply1")
    assert len(code) < 200
    assert parse_reply(f' "{code.upper()}" \n', known) == reply(OUTSIDE, INSIDE)


def test_only_who_holds_the_token_can_make_one() -> None:
    with pytest.raises(UserError, match="another node's invite"):
        parse_reply(encode_reply(reply(OUTSIDE), derive(bytes(16))), known)
    with pytest.raises(UserError, match="another node's invite"):
        parse_reply(encode_reply(reply(OUTSIDE), KEYS), lambda _invite: None)
    payload = bytearray(REPLY.read(encode_reply(reply(OUTSIDE), KEYS)))
    payload[-1] ^= 1  # another port, with a checksum that fits
    with pytest.raises(UserError, match="another node's invite"):
        parse_reply(REPLY.write(bytes(payload)), known)


def test_addresses_that_nobody_may_be_made_to_send_to_are_left_out() -> None:
    loopback, linked = Candidate("127.0.0.1", 9, "udp"), Candidate("169.254.1.1", 9, "udp")
    tcp = Candidate("198.51.100.8", 9, "tcp")
    code = encode_reply(reply(loopback, OUTSIDE, linked, tcp), KEYS)
    assert parse_reply(code, known).candidates == (OUTSIDE,)
    with pytest.raises(UserError, match="no usable address"):
        parse_reply(encode_reply(reply(loopback), KEYS), known)


def test_a_reply_has_few_addresses() -> None:
    many = [Candidate("198.51.100.7", port, "udp") for port in range(1, MAX_REPLY_CANDIDATES + 2)]
    for candidates in ([], many):
        with pytest.raises(LocalProtocolError):
            encode_reply(reply(*candidates), KEYS)


@given(st.binary(max_size=200), st.booleans())
def test_any_payload_is_read_or_refused(body: bytes, sealed: bool) -> None:
    mac = (
        hmac.digest(KEYS.join_key, b"meshd reply v1\0" + body, "sha256")[:REPLY_MAC_BYTES] if sealed else b""
    )
    try:
        read = parse_reply(REPLY.write(mac + body), lambda _invite: KEYS)
    except UserError:
        return
    assert sealed
    assert 1 <= len(read.candidates) <= MAX_REPLY_CANDIDATES


WORD = Armour(what="test word", stem="meshd", version=1, remedy="copy it again")
PAYLOAD = bytes(range(60))
TEXT = WORD.write(PAYLOAD)


@given(st.binary(max_size=200))
@thorough
def test_a_payload_is_read_back(payload: bytes) -> None:
    word = WORD.write(payload)
    assert re.fullmatch("meshd1[a-z2-7]+", word)
    assert len(word) == WORD.overhead_chars(len(payload))
    assert WORD.read(word) == payload


@pytest.mark.parametrize(
    "pasted",
    [
        f"  {TEXT}\n",
        TEXT.upper(),
        f'"{TEXT}"',
        f"`{TEXT}`",
        f"“{TEXT}”",
        f"<{TEXT}>.",
        "\r\n".join(TEXT[at : at + 20] for at in range(0, len(TEXT), 20)),
        "\u200b".join(TEXT),
        f"\ufeff{TEXT[:30]}\u00a0{TEXT[30:]}",
        f"*{TEXT}*,",
    ],
)
def test_what_chats_do_is_forgiven(pasted: str) -> None:
    assert WORD.read(pasted) == PAYLOAD


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("hello", "does not begin with `meshd1`"),
        (TEXT[1:], "does not begin with `meshd1`"),
        ("meshd", "cut off"),
        ("meshd2" + TEXT[6:], "newer version"),
        ("meshd9", "newer version"),
        ("meshda" + TEXT[6:], "begins with `meshda`"),
        (TEXT[:6], "truncated"),
        (TEXT[:9], "truncated"),
        (TEXT[:-1], "1 character missing"),
        (TEXT[:-7], "7 characters missing"),
        (TEXT + "a", "1 character too many"),
        (TEXT + TEXT, "too many|is not allowed"),
        (TEXT[:8] + "q" + TEXT[9:], "or a character of its beginning is damaged"),
        (TEXT[:20] + "0" + TEXT[21:], "character 21, `0`"),
        (TEXT[:20] + "é" + TEXT[21:], "character 21, `é`"),
        (TEXT[:20] + ("b" if TEXT[20] == "a" else "a") + TEXT[21:], "checksum"),
        ("meshd1" + "7777" + TEXT[10:], "first characters are damaged"),
        ("x" * (MAX_PASTED_CHARS + 1), "far too many"),
    ],
)
def test_each_kind_of_damage_is_named(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        WORD.read(text)
    assert caught.value.hint
    assert TEXT[20:40] not in caught.value.what + caught.value.hint


@given(st.integers(6, len(TEXT) - 2))
@thorough
def test_two_swapped_characters_are_found(place: int) -> None:
    swapped = TEXT[:place] + TEXT[place + 1] + TEXT[place] + TEXT[place + 2 :]
    if swapped != TEXT:
        with pytest.raises(UserError):
            WORD.read(swapped)


def test_a_word_of_another_kind_is_refused() -> None:
    other = Armour(what="other", stem="meshdother", version=1, remedy="")
    with pytest.raises(UserError):
        WORD.read(other.write(PAYLOAD))
    with pytest.raises(UserError):
        other.read(TEXT)


RELAY_KEY = KeyPair.from_seed(bytes(32)).peer


@pytest.mark.parametrize("place", ["relay.example.org:443", "192.0.2.7:17443", "[2001:db8::7]:443"])
def test_a_relays_url_is_read_back(place: str) -> None:
    hint = RelayHint(place, RELAY_KEY)
    assert parse_relay_url(relay_url(hint)) == hint
    assert parse_relay_url(f"  {relay_url(hint)}/\n") == hint


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not begin"),
        ("https://relay.example.org", "does not begin"),
        ("relay://relay.example.org:443", "key is missing"),
        (f"relay://{RELAY_KEY}@relay.example.org", "host is missing"),
        (f"relay://{RELAY_KEY}@relay.example.org:0", "port"),
        (f"relay://{RELAY_KEY}@relay.example.org:70000", "port"),
        (f"relay://{RELAY_KEY}@:443", "host is missing"),
        (f"relay://{RELAY_KEY}@2001:db8::7:443", "brackets"),
        (f"relay://{RELAY_KEY}@host/path:443", "host is missing or wrong"),
        (f"relay://{str(RELAY_KEY)[:-1]}@h:443", "not a node id"),
        (f"relay://{RELAY_KEY}@{'h' * 120}:443", "host is missing or wrong"),
        (f"relay://{RELAY_KEY}@.x:443", "1 to 63 characters"),
        (f"relay://{RELAY_KEY}@{'h' * 64}.x:443", "1 to 63 characters"),
        (f"relay://{RELAY_KEY}@h:443 x", "form"),
        ("relay://" + "x" * 400, "form"),
    ],
)
def test_what_is_wrong_with_a_relays_url_is_said(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        parse_relay_url(text)


def test_places_are_split() -> None:
    assert split_place("[::1]:80") == ("::1", 80)
    assert split_place("name:80") == ("name", 80)
