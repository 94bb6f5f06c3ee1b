"""Revocation: a grow-only set of signed bans of node keys and of invites. Pure.

Whether a ban is valid depends on that ban alone (its signature, its issuer's chain), never on other bans
and never on a date. So the set converges whatever the order of arrival, and nobody comes back because
the one who banned it was banned later. Root and admins ban for the whole mesh; an inviter's ban takes back
its own admissions only: it could certify any key it likes, and must not throw out others' members so.

Only the root lifts bans. Its statements about one target are numbered (`epoch`), and the newest counts: if
that lifts, no other issuer's ban of this target has an effect, whenever it was made. Numbers begin at the
clock, so that a founder that was restored, or two that have not heard of each other yet, do not number below
statements that they do not know.

The set is bounded: one ban for each issuer and target, a share for each issuer other than the root, and
a total in which the root's come first. What does not fit is decided by hash, the same on every node.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from meshd.base.change_journal import Journal
from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.identity.keys import KEY_BYTES, KeyPair, MeshId, PeerId
from meshd.identity.membership import (
    INVITE_ID_BYTES,
    MAX_CERTIFICATE_BYTES,
    MAX_CHAIN_CERTIFICATES,
    Certificate,
    Chain,
    Role,
    Statement,
    check_chain,
)
from meshd.wire.limits import MAX_BAN_BYTES, MAX_CHAIN_BYTES, MAX_TIME
from meshd.wire.message import pack, unpack

MAX_BANS = 4096
MAX_EPOCH = 2**32 - 1
_LAST_DATED_EPOCH = MAX_EPOCH - 2**16  # the numbers above it are for statements after a wrong clock
MAX_BANS_PER_ISSUER = 256  # of an admin or inviter; the root may fill the set
MAX_SET_BYTES = MAX_BANS * MAX_BAN_BYTES + 1024

_CONTEXT = "meshd ban v1"

BanKind = Literal["node", "invite"]
_ROOT, _ADMIN, _INVITER = range(3)


@dataclass(frozen=True, slots=True)
class Ban:
    """`issuer` bans a node key (32 bytes) or an invite id (8 bytes). Made by `ban` and `decode` only.

    `issuer_chain` is None when the root itself signed. `evidence`: the certificate by which an inviter
    admitted the node that it bans. `issued_at` (unix seconds) is for people only. The root's statement with
    the highest `epoch` counts; one that `lifts` ends all bans of the target.
    """

    mesh: MeshId
    kind: BanKind
    target: bytes
    issuer: PeerId
    issuer_chain: Chain | None
    evidence: Certificate | None
    issued_at: int
    statement: Statement = field(repr=False)
    epoch: int = 0
    lifts: bool = False

    def encode(self) -> bytes:
        """Return at most 3 KiB, usually 300 to 1100 bytes."""
        return self.statement.encode()

    @classmethod
    def decode(cls, data: bytes) -> "Ban":
        """Read the output of `encode`; authority: `RevocationSet.add`. Raises RemoteProtocolError."""
        statement = Statement.decode(data, limit=MAX_BAN_BYTES)
        fields = statement.fields()
        kind, size = _kind(fields.text("kind", most=16))
        chain = fields.raw("chain", most=MAX_CHAIN_BYTES)
        evidence = fields.raw("evidence", most=MAX_CERTIFICATE_BYTES)
        return cls(
            mesh=MeshId(fields.raw("mesh", exact=KEY_BYTES)),
            kind=kind,
            target=fields.raw("target", exact=size),
            issuer=PeerId(fields.raw("issuer", exact=KEY_BYTES)),
            issuer_chain=Chain.decode(chain) if chain else None,
            evidence=Certificate.decode(evidence) if evidence else None,
            issued_at=fields.number("at", low=0, high=MAX_TIME),
            statement=statement,
            epoch=fields.number("epoch", low=0, high=MAX_EPOCH, default=0),
            lifts=fields.flag("lifts", default=False),
        )


def _kind(text: str) -> tuple[BanKind, int]:
    if text == "node":
        return "node", KEY_BYTES
    if text == "invite":
        return "invite", INVITE_ID_BYTES
    raise RemoteProtocolError("a ban has an unknown kind", code="ban")


def ban(
    *,
    signer: KeyPair,
    chain: Chain | None,
    mesh: MeshId,
    kind: BanKind,
    target: bytes,
    issued_at: int,
    evidence: Certificate | None = None,
    epoch: int = 0,
    lifts: bool = False,
) -> Ban:
    """Return a ban by `signer`; `chain` is the signer's own, None when it signs with the root's key.

    An inviter who bans a node gives the certificate by which it admitted it. `epoch` and `lifts` are the
    root's alone: see `RevocationSet.next_epoch`. Raises RemoteProtocolError (code `ban` or `chain`) when the
    signer may not ban that target.
    """
    if len(target) != _kind(kind)[1]:
        raise LocalProtocolError(f"target of {len(target)} bytes for a ban of kind {kind}")
    # Only statements of the root have these fields.
    body: dict[str, bytes | str | int | bool] = {
        "mesh": mesh.raw,
        "kind": kind,
        "target": target,
        "issuer": signer.peer.raw,
        "chain": chain.encode() if chain is not None else b"",
        "evidence": evidence.encode() if evidence is not None else b"",
        "at": issued_at,
    }
    if epoch or lifts:
        body |= {"epoch": epoch, "lifts": lifts}
    # Decode our own ban and check it as any other node will.
    made = Ban.decode(Statement.make(signer, _CONTEXT, pack(body)).encode())
    _rank(made)
    return made


def _rank(ban: Ban) -> int:
    """Return the right by which the issuer bans the target. Raises RemoteProtocolError when it has none."""
    if not ban.statement.holds(ban.issuer, _CONTEXT):
        raise _bad("its signature is wrong")
    if ban.kind == "node" and MeshId.of(PeerId(ban.target)) == ban.mesh:
        raise _bad("the root of a mesh cannot be banned from it")
    if ban.issuer_chain is None:
        if MeshId.of(ban.issuer) != ban.mesh:
            raise _bad("its issuer is not the root of the mesh")
        return _ROOT
    if ban.epoch or ban.lifts:
        raise _bad("only the root of the mesh lifts bans")
    issuer = check_chain(ban.issuer_chain, ban.mesh, ban.issuer)
    if issuer.may(Role.ADMIN):
        return _ADMIN
    if not issuer.may(Role.INVITE) or len(ban.issuer_chain.certificates) >= MAX_CHAIN_CERTIFICATES:
        raise _bad("its issuer is neither an admin nor an inviter")
    if ban.kind == "node":
        _check_evidence(ban)
    return _INVITER


def _check_evidence(ban: Ban) -> None:
    shown = ban.evidence
    if (
        shown is None
        or shown.mesh != ban.mesh
        or shown.node.raw != ban.target
        or shown.issuer != ban.issuer
        or not shown.is_signed()
    ):
        raise _bad("an inviter can only ban nodes that it admitted")


def _bad(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"ban refused: {why}", code="ban")


def digest_of(entry: bytes) -> bytes:
    """Return the hash by which the set knows an encoded ban."""
    return hashlib.sha256(entry).digest()


def _age(ban: Ban, digest: bytes) -> tuple[int, bool, bytes]:
    """Return the sort key of the bans of one slot: the least is kept; of the root's bans, the newest."""
    return -ban.epoch, ban.lifts, digest


@dataclass(frozen=True, slots=True, order=True)
class _Slot:
    """The slot of one ban: a second one of the same issuer and target says nothing new."""

    rank: int
    issuer: PeerId
    kind: str
    target: bytes

    def is_of_root(self, kind: str, target: bytes) -> bool:
        """Return True if the root speaks about this target in it."""
        return (self.rank, self.kind, self.target) == (_ROOT, kind, target)


class RevocationSet:
    """All bans of one mesh that are known here. Members exchange `entries` when `digest` differs."""

    def __init__(self, mesh: MeshId) -> None:
        self.mesh = mesh
        self._kept: dict[_Slot, tuple[bytes, Ban]] = {}
        self._known: dict[bytes, _Slot] = {}
        self.journal: Journal[bytes] = Journal()  # hashes of the bans that came last
        self._per_issuer: Counter[tuple[int, PeerId]] = Counter()
        self._digest: bytes | None = None
        # who is refused: for the whole mesh, and among the admissions of one inviter
        self._wide: Counter[tuple[str, bytes]] = Counter()
        self._scoped: Counter[tuple[str, bytes, PeerId]] = Counter()
        self._lifted: set[tuple[str, bytes]] = set()  # by the root: nobody else bans those

    def add(self, ban: Ban) -> bool:
        """Add a ban; True when the set changed. Raises RemoteProtocolError (code `ban`, `chain`)."""
        if ban.mesh != self.mesh:
            raise _bad("it is of another mesh")
        digest = digest_of(ban.encode())
        if digest in self._known:
            return False
        slot = _Slot(_rank(ban), ban.issuer, ban.kind, ban.target)
        present = self._kept.get(slot)
        if present is not None and _age(present[1], present[0]) <= _age(ban, digest):
            return False
        if present is not None:
            self._drop(slot)
        self._keep(slot, digest, ban)
        self._trim(slot)
        return digest in self._known

    def merge(self, entries: Iterable[bytes]) -> int:
        """Add encoded bans, in any order; return how many were new. Raises RemoteProtocolError at the first
        invalid one (those before it stay).
        """
        # Known ones cost a hash, no signature check: members send whole sets.
        return sum(digest_of(entry) not in self._known and self.add(Ban.decode(entry)) for entry in entries)

    def entries(self) -> tuple[bytes, ...]:
        """Return every ban, encoded; the root's first."""
        kept = sorted((slot.rank, digest, ban) for slot, (digest, ban) in self._kept.items())
        return tuple(ban.encode() for _, _, ban in kept)

    def entry(self, digest: bytes) -> bytes | None:
        """Return the encoded ban with that hash (`digest_of`), or None if it is not in the set (any more)."""
        slot = self._known.get(digest)
        return None if slot is None else self._kept[slot][1].encode()

    def digests(self) -> Collection[bytes]:
        """Return the hashes of all bans."""
        return self._known.keys()

    def __len__(self) -> int:
        return len(self._kept)

    def bans(self) -> tuple[Ban, ...]:
        """Return every ban that is in force, the oldest (as their issuers say) first."""
        kept = sorted(self._kept.values(), key=lambda item: (item[1].issued_at, item[0]))
        return tuple(ban for _, ban in kept if (ban.kind, ban.target) not in self._lifted)

    def is_lifted(self, kind: BanKind, target: bytes) -> bool:
        """Return True if the root has lifted the bans of this target: only the root can ban it again."""
        return (kind, target) in self._lifted

    def next_epoch(self, kind: BanKind, target: bytes, *, now: int) -> int:
        """Return the epoch of a statement of the root that replaces its present one about this target.

        `now` (Unix seconds) puts it above statements that are unknown here as well, unless clocks are wrong.
        """
        kept = [ban.epoch for slot, (_, ban) in self._kept.items() if slot.is_of_root(kind, target)]
        return max(max(kept, default=-1) + 1, min(now, _LAST_DATED_EPOCH))

    def digest(self) -> bytes:
        """Return 32 bytes that are equal on two nodes exactly when their sets are."""
        if self._digest is None:
            self._digest = hashlib.sha256(b"meshd bans v1\0" + b"".join(sorted(self._known))).digest()
        return self._digest

    def why_banned(self, chain: Chain) -> str | None:
        """Return why the node of `chain` is out (a ban of it, of its inviter, or of the invite),
        else None.
        """
        for place, certificate in enumerate(chain.certificates):
            if self._refuses("node", certificate.node.raw, certificate.issuer):
                who = "" if place == 0 else ", who admitted it,"
                return f"node `{certificate.node.short}`{who} is banned from this mesh"
            if certificate.invite and self._refuses("invite", certificate.invite, certificate.issuer):
                whose = "it" if place == 0 else "the node that admitted it"
                return f"the invite by which {whose} joined was revoked"
        return None

    def why_node_banned(self, node: PeerId, *, issuer: PeerId | None = None) -> str | None:
        """Return why `node` must not be admitted by `issuer` (its node key; None for the root), else None."""
        if self._refuses("node", node.raw, issuer):
            return f"node `{node.short}` is banned from this mesh"
        return None

    def why_invite_banned(self, invite_id: bytes, *, issuer: PeerId | None = None) -> str | None:
        """Return why nobody may be admitted by `issuer` (as above) with this invite, else None."""
        if self._refuses("invite", invite_id, issuer):
            return "this invite was revoked"
        return None

    def encode(self) -> bytes:
        """Encode the set for the key store."""
        return pack({"mesh": self.mesh.raw, "bans": list(self.entries())})

    @classmethod
    def decode(cls, data: bytes) -> "RevocationSet":
        """Read the output of `encode`; every ban is checked again. Raises RemoteProtocolError."""
        fields = unpack(data, limit=MAX_SET_BYTES)
        found = cls(MeshId(fields.raw("mesh", exact=KEY_BYTES)))
        found.merge(fields.raws("bans", most=MAX_BAN_BYTES, count=MAX_BANS))
        return found

    def _refuses(self, kind: BanKind, target: bytes, issuer: PeerId | None) -> bool:
        if (kind, target) in self._lifted:
            return False
        return (kind, target) in self._wide or (issuer is not None and (kind, target, issuer) in self._scoped)

    def _keep(self, slot: _Slot, digest: bytes, ban: Ban) -> None:
        self._kept[slot] = (digest, ban)
        self._known[digest] = slot
        self.journal.touch(digest)
        self._per_issuer[slot.rank, slot.issuer] += 1
        self._digest = None
        if ban.lifts:
            self._lifted.add((slot.kind, slot.target))
        elif slot.rank == _INVITER:
            self._scoped[slot.kind, slot.target, slot.issuer] += 1
        else:
            self._wide[slot.kind, slot.target] += 1

    def _drop(self, slot: _Slot) -> None:
        digest, ban = self._kept.pop(slot)
        del self._known[digest]
        self.journal.drop(digest)
        self._per_issuer[slot.rank, slot.issuer] -= 1
        self._digest = None
        if ban.lifts:
            self._lifted.discard((slot.kind, slot.target))
        elif slot.rank == _INVITER:
            del self._scoped[slot.kind, slot.target, slot.issuer]
        else:
            key = slot.kind, slot.target
            self._wide[key] -= 1
            if not self._wide[key]:
                del self._wide[key]

    def _trim(self, added: _Slot) -> None:
        """Trim to the limits after one was added: the largest hash goes, the same one on every node."""
        if added.rank != _ROOT and self._per_issuer[added.rank, added.issuer] > MAX_BANS_PER_ISSUER:
            mine = (s for s in self._kept if (s.rank, s.issuer) == (added.rank, added.issuer))
            self._drop(max(mine, key=lambda slot: self._kept[slot][0]))
        if len(self._kept) > MAX_BANS:
            # By age as within a slot: otherwise an older statement could come back in place of a dropped one.
            kept = ((slot.rank, *_age(ban, digest), slot) for slot, (digest, ban) in self._kept.items())
            self._drop(max(kept)[-1])
