"""Membership: certificates with the roles of a node in a mesh, and chains of them. Pure.

A certificate is issued by the mesh's root, or by a member with `invite` whose own certificate the root
issued: nothing is deeper. An inviter gives at most its own roles, and neither `admin` nor `invite`.
Certificates have no end date (clocks lie); they end by a ban (revocation.py).

Signed statements: a body and a signature over it, kept as received.

Certificates, bans and records are statements. The signature covers the body's bytes, and they are never
encoded anew, so that a node passes on, unharmed, fields that a later version added. Only the outer
wrapping is made here, which leaves one encoding for one statement.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.identity.keys import KEY_BYTES, SIGNATURE_BYTES, KeyPair, MeshId, PeerId, verify
from meshd.wire.limits import MAX_CHAIN_BYTES, MAX_TIME
from meshd.wire.message import Fields, pack, unpack

SERIAL_BYTES = 16
INVITE_ID_BYTES = 8
MAX_CERTIFICATE_BYTES = 640
MAX_CHAIN_CERTIFICATES = 2
_CONTEXT = "meshd certificate v1"


@dataclass(frozen=True, slots=True)
class Statement:
    """`signature` is over `body` under the context its kind names."""

    body: bytes
    signature: bytes

    def encode(self) -> bytes:
        """Encode one statement."""
        return pack({"b": self.body, "s": self.signature})

    @classmethod
    def decode(cls, data: bytes, *, limit: int) -> "Statement":
        """Read the output of `encode`, at most `limit` bytes. Raises RemoteProtocolError (code `message`)."""
        fields = unpack(data, limit=limit)
        found = cls(fields.raw("b", most=limit), fields.raw("s", exact=SIGNATURE_BYTES))
        if found.encode() != data:
            raise RemoteProtocolError("a signed statement is not in its canonical encoding", code="message")
        return found

    @classmethod
    def make(cls, signer: KeyPair, context: str, body: bytes) -> "Statement":
        """Sign `body`."""
        return cls(body, signer.sign(context, body))

    def holds(self, signer: PeerId, context: str) -> bool:
        """Return True when `signer` signed it."""
        return verify(signer, context, self.body, self.signature)

    def fields(self) -> Fields:
        """Return the body's fields. Raises RemoteProtocolError (code `message`)."""
        return unpack(self.body)


class Role(StrEnum):
    """The right of a member to do something."""

    WORK = "work"  # lends its devices
    USE = "use"  # takes leases, calls the API
    INVITE = "invite"  # admits others
    ADMIN = "admin"  # bans anyone


ALL_ROLES = frozenset(Role)
INVITER_GIVES = frozenset({Role.WORK, Role.USE})


@dataclass(frozen=True, slots=True)
class Certificate:
    """`issuer` says that `node` is in `mesh` with `roles`. Made by `issue` and `decode` only.

    `invite` is the 8-byte id of the invite that admitted it, empty for the founder; `issued_at` is unix
    seconds, for people only: no decision depends on it.
    """

    mesh: MeshId
    node: PeerId
    roles: frozenset[Role]
    serial: bytes
    issuer: PeerId
    invite: bytes
    issued_at: int
    statement: Statement = field(repr=False)

    def encode(self) -> bytes:
        """Return at most 640 bytes, usually about 260."""
        return self.statement.encode()

    @classmethod
    def decode(cls, data: bytes) -> "Certificate":
        """Read the output of `encode`; the signature is not checked here. Raises RemoteProtocolError."""
        statement = Statement.decode(data, limit=MAX_CERTIFICATE_BYTES)
        fields = statement.fields()
        return cls(
            mesh=MeshId(fields.raw("mesh", exact=KEY_BYTES)),
            node=PeerId(fields.raw("node", exact=KEY_BYTES)),
            roles=read_roles(fields, "roles"),
            serial=fields.raw("serial", exact=SERIAL_BYTES),
            issuer=PeerId(fields.raw("issuer", exact=KEY_BYTES)),
            invite=read_invite_id(fields, "invite"),
            issued_at=fields.number("at", low=0, high=MAX_TIME),
            statement=statement,
        )

    def is_signed(self) -> bool:
        """Return True when `issuer` really signed it."""
        return self.statement.holds(self.issuer, _CONTEXT)


def read_roles(fields: Fields, name: str) -> frozenset[Role]:
    """Return the roles in field `name`; those of a later version are unknown here and left out."""
    known = {str(role) for role in Role}
    return frozenset(Role(text) for text in fields.texts(name, most=16, count=16) if text in known)


def read_invite_id(fields: Fields, name: str) -> bytes:
    """Return an invite id in field `name`: 8 bytes or none. Raises RemoteProtocolError (code `message`)."""
    invite = fields.raw(name, most=INVITE_ID_BYTES)
    if len(invite) not in (0, INVITE_ID_BYTES):
        raise RemoteProtocolError(f"field `{name}` must be empty or {INVITE_ID_BYTES} bytes", code="message")
    return invite


def issue(
    *,
    signer: KeyPair,
    mesh: MeshId,
    node: PeerId,
    roles: Iterable[Role],
    serial: bytes,
    invite: bytes,
    issued_at: int,
) -> Certificate:
    """Return a certificate by `signer`; `serial` is 16 random bytes. `may_give` and `check_chain` decide
    whether it may.
    """
    if len(serial) != SERIAL_BYTES or len(invite) not in (0, INVITE_ID_BYTES):
        raise LocalProtocolError("a serial has 16 bytes, an invite id 8 or none")
    body = pack(
        {
            "mesh": mesh.raw,
            "node": node.raw,
            "roles": sorted(roles),
            "serial": serial,
            "issuer": signer.peer.raw,
            "invite": invite,
            "at": issued_at,
        }
    )
    return Certificate.decode(Statement.make(signer, _CONTEXT, body).encode())


@dataclass(frozen=True, slots=True, order=True)
class Admitter:
    """The admitter of a node, as its chain says: an inviter, or the root by one of its invites.

    What one of them may fill (base/peer_limits.py) is counted by this: an inviter can certify any number of
    keys, and the bearer of a token of the root as many as that token has uses.
    """

    issuer: PeerId
    invite: bytes
    is_root: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """One node's certificates, its own first, and the root's key; nothing is proven before `check_chain`."""

    certificates: tuple[Certificate, ...]
    root: PeerId

    @property
    def leaf(self) -> Certificate:
        """The certificate of the node itself."""
        return self.certificates[0]

    @property
    def admitter(self) -> Admitter:
        """The admitter in whose share the node counts."""
        leaf = self.leaf
        is_root = leaf.issuer == self.root
        return Admitter(leaf.issuer, leaf.invite if is_root else b"", is_root)

    @property
    def place(self) -> bytes:
        """The place of its node among others (`place_of`)."""
        return place_of(self.leaf.node, self.leaf.serial)

    def encode(self) -> bytes:
        """Return at most 1536 bytes, usually about 600."""
        return pack({"root": self.root.raw, "certs": [item.encode() for item in self.certificates]})

    @classmethod
    def decode(cls, data: bytes) -> "Chain":
        """Read the output of `encode`; no signature is checked here. Raises RemoteProtocolError."""
        fields = unpack(data, limit=MAX_CHAIN_BYTES)
        parts = fields.raws("certs", most=MAX_CERTIFICATE_BYTES, count=MAX_CHAIN_CERTIFICATES)
        if not parts:
            raise RemoteProtocolError("the chain has no certificates", code="chain")
        root = PeerId(fields.raw("root", exact=KEY_BYTES))
        return cls(tuple(Certificate.decode(part) for part in parts), root)


@lru_cache(maxsize=8192)
def place_of(node: PeerId, serial: bytes = b"") -> bytes:
    """Return 32 bytes that order nodes in a way all agree on, and that none of them can choose.

    A node could generate keys until one sorts where it likes. The serial of its certificate is drawn by the
    issuer, which has the key before.
    """
    return hashlib.sha256(b"meshd place v1\0" + node.raw + serial).digest()


@dataclass(frozen=True, slots=True)
class Member:
    """A node whose chain was checked: what it may do in `mesh`."""

    peer: PeerId
    mesh: MeshId
    roles: frozenset[Role]
    chain: Chain

    def may(self, role: Role) -> bool:
        """Return True when it has `role`."""
        return role in self.roles


def may_give(chain: Chain, *, is_root: bool) -> frozenset[Role]:
    """Return the roles that the node of a checked `chain` may give to those it invites; none: it cannot
    invite.

    `is_root`: it holds the root's seed and signs with it.
    """
    if is_root:
        return ALL_ROLES
    if Role.INVITE not in chain.leaf.roles or len(chain.certificates) >= MAX_CHAIN_CERTIFICATES:
        return frozenset()
    return chain.leaf.roles & INVITER_GIVES


def check_chain(chain: Chain, mesh: MeshId, node: PeerId) -> Member:
    """Return the member that `chain` proves `node` to be. Raises RemoteProtocolError (code `chain`).

    Bans are checked elsewhere (`RevocationSet.why_banned`).
    """
    if MeshId.of(chain.root) != mesh:
        raise _bad("its root belongs to another mesh")
    if not 1 <= len(chain.certificates) <= MAX_CHAIN_CERTIFICATES:
        raise _bad(
            f"it has {len(chain.certificates)} certificates, at most {MAX_CHAIN_CERTIFICATES} are allowed"
        )
    holder = node
    for certificate in chain.certificates:
        if certificate.mesh != mesh:
            raise _bad("a certificate is for another mesh")
        if certificate.node != holder:
            raise _bad("a certificate is for another node")
        if not certificate.is_signed():
            raise _bad("a signature is wrong")
        holder = certificate.issuer
    if holder != chain.root:
        raise _bad("it does not end at the root of the mesh")
    if len(chain.certificates) == MAX_CHAIN_CERTIFICATES:
        _check_inviter(chain.leaf, chain.certificates[1])
    return Member(node, mesh, chain.leaf.roles, chain)


def _check_inviter(leaf: Certificate, inviter: Certificate) -> None:
    if Role.INVITE not in inviter.roles:
        raise _bad("its issuer cannot invite")
    wider = leaf.roles - (inviter.roles & INVITER_GIVES)
    if wider:
        raise _bad(f"its issuer cannot grant the role {', '.join(sorted(wider))}")


def _bad(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"certificate chain refused: {why}", code="chain")
