"""Statements that are truly signed, by a key that may or may not say so: records, bans, chains, signals."""

import random
from collections import deque
from collections.abc import Callable
from typing import cast

from meshd.base.errors import MeshdError
from meshd.base.peer_limits import ADDRESSES
from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.membership import Chain, Role, Statement, issue
from meshd.identity.record import PeerRecord, Presence
from meshd.identity.signal import Signal
from meshd.wire.address import Candidate
from meshd.wire.message import pack
from meshd.wire.signal import SignalBody

from tests.fuzz.mutate import flip, repack
from tests.hostile.draw import HOSTS, RELAYS, Draw
from tests.hostile.words import UNSAYABLE, Speech

CONTEXTS = {
    "record": "meshd record v1",
    "ban": "meshd ban v1",
    "signal": "meshd signal v1",
    "certificate": "meshd certificate v1",
}
MOST_SYBILS = 300  # at once; more than a book has room for


class Pen:
    """Signs as `key` with `chain`; `victims` are whom signals are for. Sequence numbers go up."""

    def __init__(
        self,
        rng: random.Random,
        draw: Draw,
        speech: Speech,
        *,
        key: KeyPair,
        chain: Chain,
        mesh: MeshId,
        victims: tuple[PeerId, ...],
    ) -> None:
        self._rng = rng
        self._draw = draw
        self._speech = speech
        self._key = key
        self._chain = chain
        self._mesh = mesh
        self._victims = victims
        self.broken = 0.5  # of what is asked for by `some`
        self._sequence = 1
        self._mover: tuple[KeyPair, Chain] | None = None
        self._sybils: deque[tuple[KeyPair, Chain]] = deque(maxlen=2 * MOST_SYBILS)
        self.kinds: dict[str, Callable[[], bytes]] = {
            "record": self.record,
            "ban": self.ban,
            "signal": self.signal,
            "presence": self.presence,
            "chain": self._chain.encode,
        }

    def any(self) -> tuple[str, bytes]:
        """One of any kind, and which."""
        kind = self._rng.choice(list(self.kinds))
        return kind, self.some(kind)

    def some(self, kind: str) -> bytes:
        """Good; signed over a body that is not; or broken after it was signed."""
        good = self.kinds[kind]()
        if self._rng.random() >= self.broken:
            return good
        if self._rng.random() < 0.6 and kind in CONTEXTS:
            body = repack(self._rng, Statement.decode(good, limit=1 << 20).body)
            return Statement.make(self._key, CONTEXTS[kind], body).encode()
        return flip(self._rng, good, (good,))

    def next(self) -> int:
        """Rises, and now and then by far."""
        self._sequence += 1 if self._rng.random() < 0.999 else 1 << 20
        return self._sequence

    def candidates(self) -> tuple[Candidate, ...]:
        """Addresses anywhere, also where nobody may be sent."""
        found = []
        for _ in range(self._rng.choice((0, 1, 3, 32))):
            host, port = self._rng.choice(HOSTS), self._rng.randint(1, 65535)
            proto = "tcp" if self._rng.random() < 0.7 else "udp"
            try:
                found.append(Candidate(host, port, proto))  # type: ignore[arg-type]
            except MeshdError:
                continue
        return tuple(found)

    def _sybil(self) -> tuple[KeyPair, Chain]:
        """A node that is nowhere, admitted by the hostile one, which may invite."""
        if len(self._sybils) < MOST_SYBILS or self._rng.random() < 0.1:
            key = KeyPair.from_seed(self._rng.randbytes(32))
            leaf = issue(
                signer=self._key,
                mesh=self._mesh,
                node=key.peer,
                roles={Role.USE, Role.WORK},
                serial=self._rng.randbytes(16),
                invite=self._rng.randbytes(8),
                issued_at=0,
            )
            self._sybils.append((key, Chain((leaf, self._chain.leaf), self._chain.root)))
        return self._rng.choice(self._sybils)

    def record(self) -> bytes:
        """Its own or a sybil's, that names whatever it likes."""
        key, chain = self._sybil() if self._rng.random() < 0.3 else (self._key, self._chain)
        names = ("mallory", "anna", str(self._victims[0]), self._victims[0].short, "\u202eanna", "a" * 64)
        while True:
            try:
                return PeerRecord.sign(
                    key,
                    chain=chain,
                    name=self._rng.choice(names),
                    role=self._rng.choice(("worker", "serve", "client", "")),
                    sequence=self.next(),
                    candidates=self.candidates(),
                    relays=tuple(self._rng.sample(RELAYS, self._rng.choice((0, 1, 4)))),
                    capabilities=cast(dict[str, str], self._draw(dict[str, str])),
                ).encode()
            except UNSAYABLE:
                continue

    def moved(self) -> bytes:
        """Return records of one and the same node, at eight public addresses that nobody named before."""
        key, chain = self._mover = self._mover or self._sybil()
        hosts = [f"203.0.113.{self._rng.randrange(256)}" for _ in range(ADDRESSES.most)]
        return PeerRecord.sign(
            key,
            chain=chain,
            name="mover",
            role="worker",
            sequence=self.next(),
            candidates=tuple(Candidate(host, self._rng.randint(1024, 65535), "tcp") for host in hosts),
        ).encode()

    def ban(self) -> bytes:
        """Ban a victim, a sybil, an invite, nobody, itself: what its rank allows and what it does not."""
        peers = [*(victim.raw for victim in self._victims), self._key.peer.raw, self._rng.randbytes(32)]
        kind = self._rng.choice(("node", "node", "invite"))
        target, evidence = self._rng.choice(peers), self._rng.choice((b"", self._chain.leaf.encode()))
        if self._rng.random() < 0.5:
            leaf = self._sybil()[1].leaf
            target, evidence = leaf.node.raw, leaf.encode()
        body = pack(
            {
                "mesh": self._mesh.raw,
                "kind": kind,
                "target": target if kind == "node" else self._rng.randbytes(8),
                "issuer": self._key.peer.raw,
                "chain": self._chain.encode() if self._rng.random() < 0.9 else b"",
                "evidence": evidence,
                "at": self._rng.randrange(1 << 32),
            }
        )
        return Statement.make(self._key, CONTEXTS["ban"], body).encode()

    def signal(self) -> bytes:
        """With a payload of any topic, good or not."""
        payload = self._speech.say(self._speech.of("signal", "address", "netfacts"))
        body = SignalBody(
            sender=self._key.peer.raw,
            to=self._rng.choice(self._victims).raw,
            topic=self._rng.choice(("webrtc", "quic", "punch", "birthday", "", "x")),
            start=bytes(16),
            sequence=self.next(),
            at=self._rng.choice((0, 1_800_000_000, 1 << 40)),
            life=self._rng.choice((1, 30, 120)),
            cookie=self._rng.randbytes(8),
            echo=self._rng.choice((b"", self._rng.randbytes(8))),
            payload=payload[:4096],
            chain=self._chain.encode(),
        )
        return Signal.sign(self._key, body).encode()

    def presence(self) -> bytes:
        """Return a statement that it is there: for records that exist and for those that will."""
        return Presence.sign(
            self._key, mesh=self._mesh, sequence=self._sequence, count=self._rng.randrange(1 << 32)
        ).to_bytes()
