"""Reply codes: what is written is read back, and nothing else is believed."""

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, UserError
from meshd.identity.invite import JoinKeys, derive
from meshd.identity.keys import KeyPair
from meshd.identity.reply_code import (
    MAX_REPLY_CANDIDATES,
    REPLY,
    REPLY_MAC_BYTES,
    Reply,
    encode_reply,
    parse_reply,
)
from meshd.wire.address import Candidate

KEYS = derive(bytes(range(16)))
JOINER = KeyPair.from_seed(bytes(32)).peer
OUTSIDE = Candidate("198.51.100.7", 40000, "udp", "srflx")
INSIDE = Candidate("192.168.1.9", 40000, "udp")


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
