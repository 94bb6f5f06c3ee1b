"""Reply codes: what is written is read back, and nothing else is believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, UserError
from meshd.identity.invite import derive
from meshd.identity.keys import KeyPair
from meshd.identity.reply_code import MAX_REPLY_CANDIDATES, REPLY, Reply, encode_reply, genuine, parse_reply
from meshd.wire.address import Candidate

KEYS = derive(bytes(range(16)))
JOINER = KeyPair.from_seed(bytes(32)).peer
OUTSIDE = Candidate("198.51.100.7", 40000, "udp", "srflx")
INSIDE = Candidate("192.168.1.9", 40000, "udp")


def reply(*candidates: Candidate) -> Reply:
    return Reply(KEYS.invite_id, JOINER, candidates)


def test_a_code_is_read_back_and_shows_who_made_it() -> None:
    code = encode_reply(reply(OUTSIDE, INSIDE), KEYS)
    assert code.startswith("meshdreply1")
    assert len(code) < 200
    assert parse_reply(f' "{code.upper()}" \n')[0] == reply(OUTSIDE, INSIDE)
    assert genuine(code, KEYS)
    assert not genuine(code, derive(bytes(16)))


def test_what_was_changed_is_not_genuine() -> None:
    code = encode_reply(reply(OUTSIDE), KEYS)
    payload = bytearray(REPLY.read(code))
    payload[-1] ^= 1  # another port, with a checksum that fits
    assert not genuine(REPLY.write(bytes(payload)), KEYS)


def test_addresses_that_nobody_may_be_made_to_send_to_are_left_out() -> None:
    loopback, linked = Candidate("127.0.0.1", 9, "udp"), Candidate("169.254.1.1", 9, "udp")
    tcp = Candidate("198.51.100.8", 9, "tcp")
    code = encode_reply(reply(loopback, OUTSIDE, linked, tcp), KEYS)
    assert parse_reply(code)[0].candidates == (OUTSIDE,)
    with pytest.raises(UserError, match="no address that can be tried"):
        parse_reply(encode_reply(reply(loopback), KEYS))


def test_a_reply_has_few_addresses() -> None:
    many = [Candidate("198.51.100.7", port, "udp") for port in range(1, MAX_REPLY_CANDIDATES + 2)]
    for candidates in ([], many):
        with pytest.raises(LocalProtocolError):
            encode_reply(reply(*candidates), KEYS)


@given(st.binary(max_size=200))
def test_any_payload_is_read_or_refused(payload: bytes) -> None:
    try:
        read, _ = parse_reply(REPLY.write(payload))
    except UserError:
        return
    assert 1 <= len(read.candidates) <= MAX_REPLY_CANDIDATES
