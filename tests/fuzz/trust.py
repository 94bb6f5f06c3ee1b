"""Targets of trust: both sides of the proof, certificate chains, bans, records, signals.

Half of the inputs are signed anew after they were broken, by somebody who may: a member can be hostile too.
"""

import random
from collections.abc import Callable, Sequence
from typing import cast

import msgpack
from meshd.base.errors import MeshdError, Refused, RemoteProtocolError
from meshd.identity.keys import KeyPair
from meshd.identity.membership import Chain, Role, Statement, check_chain
from meshd.identity.proof import MAGIC, DialProof, ProofFailed
from meshd.identity.record import Away, PeerRecord, Presence
from meshd.identity.revocation import Ban, RevocationSet, ban
from meshd.identity.signal import Signal, SignalGuard
from meshd.wire.message import pack
from meshd.wire.signal import SignalBody

from tests.fuzz.mutate import either, flip, repack
from tests.fuzz.target import Feed, Make, Target
from tests.fuzz.texts import CANDIDATES
from tests.unit.identity.cast import (
    ADMIN,
    ADMIN_CHAIN,
    FOUNDER,
    FOUNDER_CHAIN,
    GUEST,
    GUEST_CHAIN,
    INVITER,
    INVITER_CHAIN,
    MESH,
    ROOT,
    STRANGER,
    WORKER_CHAIN,
)
from tests.unit.identity.ends import converse, dialler, joiner, listener

_LENGTH = 2


def _signed_anew(rng: random.Random, data: bytes, signers: Sequence[KeyPair], context: str) -> bytes:
    """A statement with another body, truly signed."""
    body = repack(rng, Statement.decode(data, limit=1 << 20).body)
    return Statement.make(rng.choice(signers), context, body).encode()


def _statements(signers: Sequence[KeyPair], context: str) -> Make:
    def make(rng: random.Random, samples: Sequence[bytes]) -> bytes:
        good = rng.choice(samples)
        if rng.random() < 0.5:
            return either(rng, good, samples)
        return _signed_anew(rng, good, signers, context)

    return make


def _make_chain(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    good = rng.choice(samples)
    if rng.random() < 0.5:
        return either(rng, good, samples)
    fields = cast(dict[str, list[bytes]], msgpack.unpackb(good))
    certificates = fields["certs"]
    at = rng.randrange(len(certificates))
    certificates[at] = _signed_anew(rng, certificates[at], (ROOT, INVITER), "meshd certificate v1")
    return pack(cast(dict[str, bytes], fields))


def _feed_chain(data: bytes) -> None:
    member = check_chain(Chain.decode(data), MESH, GUEST.peer)
    assert member.roles <= frozenset({Role.USE, Role.WORK})  # what its inviter may give


def _feed_ban(data: bytes) -> None:
    bans = RevocationSet(MESH)
    bans.add(Ban.decode(data))
    assert RevocationSet.decode(bans.encode()).digest() == bans.digest()


def _feed_record(data: bytes) -> None:
    record = PeerRecord.decode(data)
    record.verify(MESH)
    assert record.peer == GUEST.peer


def _feed_signal(data: bytes) -> None:
    signal = Signal.decode(data)
    signal.verify(MESH)
    assert signal.sender == GUEST.peer
    SignalGuard(b"salt").take(signal, now=1e6, wall=1_800_000_000)


def _break_message(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A message of the proof behind its length, broken before or behind it."""
    if rng.random() < 0.4:
        return flip(rng, data, others)
    head = MAGIC if data.startswith(MAGIC) else b""
    body = repack(rng, data[len(head) + _LENGTH :])
    return head + min(len(body), 0xFFFF).to_bytes(_LENGTH, "big") + body


def _make_side(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """The messages of one side up to one that is broken, or all of them."""
    row = list(samples)
    at = rng.randrange(len(row))
    row[at] = _break_message(rng, row[at], samples)
    return b"".join(row[: at + 1] if rng.random() < 0.7 else row)


def _talk(dial: DialProof) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    talk = converse(dial, listener())
    return tuple(talk.dialled), tuple(talk.listened)


_MEMBER_DIALLED, _MEMBER_LISTENED = _talk(dialler())
_JOIN_DIALLED, _JOIN_LISTENED = _talk(joiner())


def _feed_listener(data: bytes) -> None:
    side = listener()
    side.receive(data[:7])
    side.receive(data[7:])
    # an untouched first part with a broken end may still be a whole and true proof, never another's
    assert side.result is None or side.result.peer == GUEST.peer


def _to_dialler(make: Callable[[], DialProof]) -> Feed:
    def feed(data: bytes) -> None:
        side = make()
        side.start()
        side.receive(data)
        assert side.result is None or side.result.peer == FOUNDER.peer

    return feed


def _target(
    name: str, samples: tuple[bytes, ...], make: Make, feed: Feed, share: int, *more: type[MeshdError]
) -> Target:
    allowed: tuple[type[MeshdError], ...] = (RemoteProtocolError, *more)
    return Target(name=name, samples=samples, make=make, feed=feed, allowed=allowed, share=share)


_CHAINS = tuple(chain.encode() for chain in (GUEST_CHAIN, FOUNDER_CHAIN, WORKER_CHAIN))
_BANS = (
    ban(signer=ROOT, chain=None, mesh=MESH, kind="node", target=STRANGER.peer.raw, issued_at=1),
    ban(signer=ADMIN, chain=ADMIN_CHAIN, mesh=MESH, kind="invite", target=b"8 bytes!", issued_at=2),
    ban(
        signer=INVITER,
        chain=INVITER_CHAIN,
        mesh=MESH,
        kind="node",
        target=GUEST.peer.raw,
        issued_at=3,
        evidence=GUEST_CHAIN.leaf,
    ),
)
_RECORD = PeerRecord.sign(
    GUEST,
    chain=GUEST_CHAIN,
    name="garage",
    role="worker",
    sequence=7,
    candidates=CANDIDATES,
    relays=("relay.example:443",),
    capabilities={"backend": "cpu"},
)

_SIGNAL = Signal.sign(
    GUEST,
    SignalBody(
        sender=GUEST.peer.raw,
        to=FOUNDER.peer.raw,
        topic="webrtc",
        start=bytes(16),
        sequence=1,
        at=1_800_000_000,
        life=30,
        cookie=bytes(8),
        echo=b"",
        payload=b"an offer",
        chain=GUEST_CHAIN.encode(),
    ),
)

_PRESENCE = Presence.sign(GUEST, mesh=MESH, sequence=7, count=1)


_AWAY = Away.sign(GUEST, mesh=MESH, peer=FOUNDER.peer, order=(7, 1))


def _sized(size: int) -> Make:
    """Broken, and mostly of the size that is read at all."""

    def make(rng: random.Random, samples: Sequence[bytes]) -> bytes:
        broken = flip(rng, rng.choice(samples), samples)
        return broken[:size].ljust(size, b"\0") if rng.random() < 0.7 else broken

    return make


def _feed_away(data: bytes) -> None:
    away = Away.from_bytes(data)
    assert away.to_bytes() == data
    assert not away.holds(MESH) or away == _AWAY, "forged"


def _feed_presence(data: bytes) -> None:
    presence = Presence.from_bytes(data)
    assert presence.to_bytes() == data
    assert not presence.holds(MESH) or presence == _PRESENCE, "forged"


TARGETS = (
    _target("listen-member", _MEMBER_DIALLED, _make_side, _feed_listener, 5, ProofFailed, Refused),
    _target("listen-join", _JOIN_DIALLED, _make_side, _feed_listener, 4, ProofFailed, Refused),
    _target("dial-member", _MEMBER_LISTENED, _make_side, _to_dialler(dialler), 4, ProofFailed, Refused),
    _target("dial-join", _JOIN_LISTENED, _make_side, _to_dialler(joiner), 4, ProofFailed, Refused),
    _target("chain", _CHAINS, _make_chain, _feed_chain, 4),
    _target(
        "ban",
        tuple(one.encode() for one in _BANS),
        _statements((ROOT, ADMIN, INVITER), "meshd ban v1"),
        _feed_ban,
        4,
    ),
    _target("record", (_RECORD.encode(),), _statements((GUEST,), "meshd record v1"), _feed_record, 4),
    _target("presence", (_PRESENCE.to_bytes(),), _sized(108), _feed_presence, 2),
    _target("away", (_AWAY.to_bytes(),), _sized(140), _feed_away, 2),
    _target("signal", (_SIGNAL.encode(),), _statements((GUEST,), "meshd signal v1"), _feed_signal, 4),
)
