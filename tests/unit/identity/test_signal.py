"""Signals: who may have made one, that nobody has changed it, and which come too late or twice."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.identity.keys import KeyPair, MeshId
from meshd.identity.membership import Chain, Statement
from meshd.identity.signal import CLOCKS_AGREE, COOKIE_SECONDS, WINDOW, Signal, SignalGuard, SignalVerdict
from meshd.wire.signal import MAX_PAYLOAD_BYTES, SignalBody

from tests.unit.identity.cast import FOUNDER, GUEST, GUEST_CHAIN, MESH, STRANGER, WORKER_CHAIN, brief

WALL = 1_800_000_000
NOW = 5000.0


def signal(
    *,
    key: KeyPair = GUEST,
    chain: Chain = GUEST_CHAIN,
    start: int = 1,
    sequence: int = 1,
    at: int = WALL,
    echo: bytes = b"",
    payload: bytes = b"offer",
) -> Signal:
    body = SignalBody(
        sender=key.peer.raw,
        to=FOUNDER.peer.raw,
        topic="webrtc",
        start=start.to_bytes(16, "big"),
        sequence=sequence,
        at=at,
        life=30,
        cookie=b"cookie 8",
        echo=echo,
        payload=payload,
        chain=chain.encode(),
    )
    return Signal.sign(key, body)


GOOD = signal()


def test_a_member_is_known_by_its_signal() -> None:
    read = Signal.decode(GOOD.encode())
    assert read == GOOD
    assert (read.sender, read.to) == (GUEST.peer, FOUNDER.peer)
    assert read.verify(MESH).peer == GUEST.peer


def test_the_largest_can_be_made_and_one_byte_more_cannot() -> None:
    assert len(signal(payload=bytes(MAX_PAYLOAD_BYTES)).encode()) <= 6 << 10
    with pytest.raises(LocalProtocolError, match="at most 4096"):
        signal(payload=bytes(MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(LocalProtocolError, match="signed by its sender"):
        Signal.sign(STRANGER, GOOD.body)


def test_who_is_no_member_is_refused() -> None:
    for key, chain in ((STRANGER, GUEST_CHAIN), (GUEST, WORKER_CHAIN)):
        with pytest.raises(RemoteProtocolError, match="another node"):
            signal(key=key, chain=chain).verify(MESH)
    with pytest.raises(RemoteProtocolError, match="another mesh"):
        GOOD.verify(MeshId(bytes(32)))


def test_another_context_or_signer_is_refused() -> None:
    for key, context in ((STRANGER, "meshd signal v1"), (GUEST, "meshd record v1")):
        forged = Statement.make(key, context, GOOD.body.encode()).encode()
        with pytest.raises(RemoteProtocolError, match="signature"):
            Signal.decode(forged).verify(MESH)


def test_clocks_that_agree_are_enough_at_first_and_no_signal_comes_twice() -> None:
    guard = SignalGuard(b"salt")
    assert guard.take(GOOD, now=NOW, wall=WALL) is SignalVerdict.GOOD
    assert guard.take(GOOD, now=NOW, wall=WALL) is SignalVerdict.REPEATED
    for off in (30 + CLOCKS_AGREE, -30 - CLOCKS_AGREE):
        assert SignalGuard(b"salt").take(GOOD, now=NOW, wall=WALL + off) is SignalVerdict.GOOD
        far = off + (1 if off > 0 else -1)
        assert SignalGuard(b"salt").take(GOOD, now=NOW, wall=WALL + far) is SignalVerdict.STALE


def test_an_echo_proves_the_age_whatever_the_clocks_say() -> None:
    guard = SignalGuard(b"salt")
    cookie = guard.cookie(GUEST.peer, NOW)
    years = signal(at=WALL - 10**8, echo=cookie)
    assert guard.take(years, now=NOW + 2 * COOKIE_SECONDS + 1, wall=WALL) is SignalVerdict.STALE
    assert guard.take(years, now=NOW + COOKIE_SECONDS, wall=WALL) is SignalVerdict.GOOD
    other = guard.cookie(STRANGER.peer, NOW)
    assert guard.take(signal(at=0, sequence=2, echo=other), now=NOW, wall=WALL) is SignalVerdict.STALE
    assert SignalGuard(b"pepper").take(years, now=NOW, wall=WALL) is SignalVerdict.STALE


def test_an_earlier_start_is_refused_a_later_one_begins_anew() -> None:
    guard = SignalGuard(b"salt")
    assert guard.take(signal(start=5, sequence=9), now=NOW, wall=WALL) is SignalVerdict.GOOD
    assert guard.take(signal(start=4, sequence=10), now=NOW, wall=WALL) is SignalVerdict.OLD_START
    assert guard.take(signal(start=6, sequence=1), now=NOW, wall=WALL) is SignalVerdict.GOOD
    assert guard.take(signal(start=5, sequence=10), now=NOW, wall=WALL) is SignalVerdict.OLD_START


def test_a_state_folder_that_was_put_back_is_heard_again() -> None:
    guard = SignalGuard(b"salt")
    assert guard.take(signal(start=5), now=NOW, wall=WALL) is SignalVerdict.GOOD
    soon, late = NOW + COOKIE_SECONDS, NOW + 3 * COOKIE_SECONDS
    early = signal(start=4, sequence=2, echo=guard.cookie(GUEST.peer, soon))
    assert guard.take(early, now=soon, wall=WALL) is SignalVerdict.OLD_START
    assert guard.take(early, now=late, wall=WALL) is SignalVerdict.OLD_START  # its echo has had its time
    now_good = signal(start=4, sequence=3, echo=guard.cookie(GUEST.peer, late))
    assert guard.take(now_good, now=late, wall=WALL) is SignalVerdict.GOOD


@brief
@given(st.lists(st.integers(0, 400), min_size=1, max_size=60))
def test_each_sequence_is_taken_once_in_any_order(sequences: list[int]) -> None:
    guard = SignalGuard(b"salt")
    taken: list[int] = []
    for sequence in sequences:
        body = replace(GOOD.body, sequence=sequence)
        verdict = guard.take(replace(GOOD, body=body), now=NOW, wall=WALL)
        if verdict is SignalVerdict.GOOD:
            taken.append(sequence)
        else:
            assert sequence in taken or sequence <= max(taken) - WINDOW
    assert len(taken) == len(set(taken))


def test_only_so_many_senders_are_remembered() -> None:
    guard = SignalGuard(b"salt")
    sent = [
        replace(GOOD, sender=KeyPair.from_seed(bytes([9, *divmod(n, 256)]) + bytes(29)).peer)
        for n in range(600)
    ]
    for one in sent:
        assert guard.take(one, now=NOW, wall=WALL) is SignalVerdict.GOOD
    again = [guard.take(one, now=NOW, wall=WALL) is SignalVerdict.GOOD for one in reversed(sent)]
    assert again == [False] * 512 + [True] * 88
