"""The seal between a browser and a node: another implementation's bytes, and what each forgery meets."""

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.identity.browser_seal import (
    FIRST_BYTES,
    SECOND_BYTES,
    Seal,
    SealDialler,
    _Handshake,
    answer,
)
from meshd.identity.invite import JoinKeys, derive
from meshd.identity.keys import KeyPair

KEYS, OTHER = derive(b"s" * 16), derive(b"t" * 16)
HEAD, STRANGER = KeyPair.from_seed(b"h" * 32), KeyPair.from_seed(b"x" * 32)


def invites(invite_id: bytes) -> JoinKeys | None:
    return KEYS if invite_id == KEYS.invite_id else None


def dialler(keys: JoinKeys = KEYS) -> SealDialler:
    return SealDialler(keys, HEAD.peer, ephemeral=b"d" * 32)


def sealed(first: bytes, key: KeyPair = HEAD) -> tuple[bytes, Seal]:
    second, invite_id, seal = answer(first, key=key, invites=invites, ephemeral=b"l" * 32)
    assert invite_id == KEYS.invite_id
    return second, seal


def test_the_handshake_is_that_of_another_implementation() -> None:
    """Bytes of the Python package noiseprotocol 0.3.1, with these keys, prologue and payloads."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    up = X25519PrivateKey.from_private_bytes(hashlib.sha256(b"initiator").digest())
    down = X25519PrivateKey.from_private_bytes(hashlib.sha256(b"responder").digest())
    handshake = _Handshake(b"prologue", hashlib.sha256(b"psk").digest())
    shown = up.public_key().public_bytes_raw()
    handshake.mix_ephemeral(shown)
    assert (shown + handshake.seal(b"")).hex() == (
        "e64aa62d48f3616cd55387fbc482906f553765f45a54eb8de27ffaf9b7666344058c5b4d40d747c4b5297b4f72426f5b"
    )
    shown = down.public_key().public_bytes_raw()
    handshake.mix_ephemeral(shown)
    handshake.mix_key(down.exchange(X25519PublicKey.from_public_bytes(up.public_key().public_bytes_raw())))
    assert (shown + handshake.seal(b"payload")).hex() == (
        "aa06d590115f342d1c4cf1a7a010e4ece85422ccd389540c830046153485dd3a78f177478f7f092b599255027b115292"
        "b164ac1bf78eab"
    )
    assert handshake.hash.hex() == "52fdfc9cd27806b62a344baa9f0110b4973df5a4a6151468fdaee074a34143a3"
    ours, theirs = handshake.split()
    assert ours.seal(b"up").hex() == "bfb2b276d692831dbd2bba95020e31b7e2f6"
    assert theirs.seal(b"down").hex() == "41d3988e047d05ac41dacc14290b345f41d2a48f"
    assert ours.seal(b"up").hex() == "bab8747e87713b29c595b6c7152f997413e3"


def test_both_ends_have_one_seal() -> None:
    browser = dialler()
    second, theirs = sealed(browser.first)
    assert (len(browser.first), len(second)) == (FIRST_BYTES, SECOND_BYTES)
    ours = browser.finish(second)
    assert ours.binding == theirs.binding
    for message in (b"", b"hello", bytes(16 << 10)):
        assert theirs.open(ours.seal(message)) == message
        assert ours.open(theirs.seal(message)) == message


def test_who_does_not_hold_the_invite_gets_no_answer() -> None:
    forged = dialler(replace(KEYS, browser_key=OTHER.browser_key))
    for first in (forged.first, dialler(OTHER).first):
        with pytest.raises(RemoteProtocolError):
            sealed(first)


def test_another_holder_of_the_invite_cannot_be_the_listener() -> None:
    """It knows the key before all, and names the listener in its prologue, but cannot sign for it."""
    browser = dialler()
    second, _ = sealed_as_if(browser.first)
    with pytest.raises(RemoteProtocolError, match="another node"):
        browser.finish(second)


def sealed_as_if(first: bytes) -> tuple[bytes, Seal]:
    class Forged(KeyPair):
        """The stranger's key under the name of the listener."""

    key = Forged.from_seed(STRANGER.seed)
    key.peer = HEAD.peer
    return sealed(first, key)


def test_what_was_sealed_once_opens_once_and_in_order() -> None:
    browser = dialler()
    second, theirs = sealed(browser.first)
    ours = browser.finish(second)
    one, two = ours.seal(b"one"), ours.seal(b"two")
    assert theirs.open(one) == b"one"
    with pytest.raises(RemoteProtocolError):
        theirs.open(one)
    second, theirs = sealed(browser.first)
    with pytest.raises(RemoteProtocolError):
        theirs.open(two)


def test_two_runs_share_nothing() -> None:
    browser = dialler()
    second, _, _ = answer(browser.first, key=HEAD, invites=invites, ephemeral=b"m" * 32)
    again, _ = sealed(browser.first)
    assert second != again


@given(st.integers(0, FIRST_BYTES - 1), st.integers(1, 255))
def test_a_changed_first_message_is_refused(at: int, by: int) -> None:
    first = bytearray(dialler().first)
    first[at] ^= by
    with pytest.raises(RemoteProtocolError):
        sealed(bytes(first))


@given(st.integers(0, SECOND_BYTES - 1), st.integers(1, 127))
def test_a_changed_second_message_is_refused(at: int, by: int) -> None:
    browser = dialler()
    second = bytearray(sealed(browser.first)[0])
    second[at] ^= by
    with pytest.raises(RemoteProtocolError):
        browser.finish(bytes(second))


@given(st.binary(max_size=2 * FIRST_BYTES))
def test_anything_else_is_refused(first: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        sealed(first)
