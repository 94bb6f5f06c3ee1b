"""Keys: names are strict, signatures are bound to their context."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, UserError
from meshd.identity import keys
from meshd.identity.keys import KeyPair, MeshId, PeerId, from_base32, joined, to_base32, verify

from tests.unit.identity.cast import FOUNDER, GUEST, brief, thorough

# RFC 8032 7.1, test 1: the key that grows from this seed
RFC_SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
RFC_PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")


def test_a_key_grows_from_its_seed_as_the_rfc_says() -> None:
    assert KeyPair.from_seed(RFC_SEED).peer.raw == RFC_PUBLIC
    assert KeyPair.from_seed(RFC_SEED).seed == RFC_SEED


@given(st.binary(min_size=32, max_size=32))
@brief
def test_an_id_is_read_back_from_its_text(raw: bytes) -> None:
    peer = PeerId(raw)
    assert len(str(peer)) == 52
    assert PeerId.parse(str(peer)) == peer
    assert PeerId.parse(f" {str(peer).upper()}\n") == peer
    assert str(peer).startswith(peer.short)
    assert len(peer.short) == 10


@given(st.text(max_size=60))
@thorough
def test_any_other_text_is_a_user_error(text: str) -> None:
    try:
        found = PeerId.parse(text)
    except UserError as error:
        assert error.hint
    else:
        assert str(found) == text.strip().lower()


def test_left_over_bits_are_no_second_name() -> None:
    text = str(PeerId(bytes(32)))
    assert text.endswith("a")
    with pytest.raises(UserError):
        PeerId.parse(text[:-1] + "b")


def test_an_id_of_another_kind_is_not_equal() -> None:
    names: list[object] = [PeerId(bytes(32)), MeshId(bytes(32))]
    assert names[0] != names[1]
    with pytest.raises(UserError, match="not a mesh id"):
        MeshId.parse("x")


def test_wrong_lengths_are_our_own_fault() -> None:
    with pytest.raises(LocalProtocolError):
        PeerId(b"short")
    with pytest.raises(LocalProtocolError):
        KeyPair.from_seed(b"short")


def test_the_mesh_is_not_its_root() -> None:
    mesh = MeshId.of(FOUNDER.peer)
    assert mesh.raw != FOUNDER.peer.raw
    assert mesh != MeshId.of(GUEST.peer)


def test_a_signature_holds_for_its_signer_context_and_data_only() -> None:
    signature = FOUNDER.sign("one", b"data")
    assert verify(FOUNDER.peer, "one", b"data", signature)
    assert not verify(GUEST.peer, "one", b"data", signature)
    assert not verify(FOUNDER.peer, "two", b"data", signature)
    assert not verify(FOUNDER.peer, "one", b"Data", signature)
    assert not verify(FOUNDER.peer, "one", b"data", signature[:-1])
    assert not verify(FOUNDER.peer, "one", b"data", bytes(64))
    assert not verify(PeerId(b"\xff" * 32), "one", b"data", signature)  # not a point on the curve


def test_context_and_data_do_not_run_into_each_other() -> None:
    signature = FOUNDER.sign("ab", b"c")
    assert not verify(FOUNDER.peer, "a", b"bc", signature)


@given(st.lists(st.binary(max_size=5), max_size=4), st.lists(st.binary(max_size=5), max_size=4))
@thorough
def test_joined_parts_are_unambiguous(one: list[bytes], two: list[bytes]) -> None:
    assert (joined(*one) == joined(*two)) == (one == two)


@given(st.binary(max_size=40))
@brief
def test_base32_is_read_back(raw: bytes) -> None:
    assert from_base32(to_base32(raw)) == raw


def test_the_secret_half_is_not_shown() -> None:
    shown = repr(FOUNDER)
    assert FOUNDER.peer.short in shown
    assert FOUNDER.seed.hex() not in shown
    assert "founder" not in shown  # the seed of the test key, as text


@pytest.mark.parametrize("sign", [0, 0x80])
@pytest.mark.parametrize("key", sorted(keys.SMALL_ORDER), ids=bytes.hex)
def test_nothing_holds_of_a_key_for_which_anybody_can_sign(key: bytes, sign: int) -> None:
    """With S = 0 the equation is R = -hA, which is one of eight points whatever the message is."""
    key = key[:-1] + bytes([key[-1] | sign])
    for r in sorted(keys.SMALL_ORDER):
        for number in range(32):
            assert not verify(PeerId(key), "context", bytes([number]), r + bytes(32))
