"""Peer records: a node's signed statement about itself, which others forward. Pure.

Which of two records of one node is newer is decided by its sequence number, which the node persists:
clocks lie. A record carries the node's chain, so that a node that got it from another can check membership.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.identity.keys import KEY_BYTES, KeyPair, MeshId, PeerId
from meshd.identity.membership import Chain, Member, Statement, check_chain
from meshd.wire.address import Candidate, pack_candidates, unpack_candidates
from meshd.wire.limits import MAX_CHAIN_BYTES, MAX_NAME_BYTES, MAX_RECORD_BYTES, MAX_SEQUENCE
from meshd.wire.message import Fields, pack

MAX_RELAYS = 4
MAX_RELAY_BYTES = 300
MAX_CAPABILITIES = 32
MAX_CAPABILITY_BYTES = 256
KEPT_RECORDS = 512  # as they were read; 4 KiB each at most

PAUSED_MARK = "paused"  # capability of a node that lends nothing for now, whose value says why:
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,32}", re.ASCII)
VERSION_MARK = "meshd"  # capability whose value is the node's version of meshd
BY_USER, BY_FETCH = "1", "fetching"
LEFT = MappingProxyType({"left": "1"})  # capabilities of the last record of a node that leaves the mesh

_CONTEXT = "meshd record v1"


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """Made by `sign` and `decode` only. `role` is for display (`worker`, `serve`), not a right."""

    peer: PeerId
    mesh: MeshId
    name: str
    role: str
    sequence: int
    candidates: tuple[Candidate, ...]
    relays: tuple[str, ...]
    capabilities: Mapping[str, str] = field(hash=False)
    chain: Chain = field(repr=False)
    statement: Statement = field(repr=False)

    @property
    def signature(self) -> bytes:
        """The node's signature, over the statement's body."""
        return self.statement.signature

    @property
    def has_left(self) -> bool:
        """True if it is the node's last word: kept and forwarded, so that older ones do not bring the node
        back.
        """
        return "left" in self.capabilities

    @property
    def software(self) -> str:
        """The node's version of meshd; empty: unknown."""
        said = self.capabilities.get(VERSION_MARK, "")
        return said if _VERSION.fullmatch(said) else ""  # it is shown to users

    @property
    def is_paused(self) -> bool:
        """True if it lends nothing for now: its user has paused it, or it is fetching a model."""
        return PAUSED_MARK in self.capabilities

    @property
    def is_fetching(self) -> bool:
        """True if it lends nothing before its models are here."""
        return self.capabilities.get(PAUSED_MARK) == BY_FETCH

    def encode(self) -> bytes:
        """Return at most 4 KiB."""
        return self.statement.encode()

    @classmethod
    def sign(
        cls,
        key: KeyPair,
        *,
        chain: Chain,
        name: str,
        role: str,
        sequence: int,
        candidates: tuple[Candidate, ...] = (),
        relays: tuple[str, ...] = (),
        capabilities: Mapping[str, str] = MappingProxyType({}),
    ) -> "PeerRecord":
        """Sign a record of `key`'s node. Raises LocalProtocolError when it breaks a limit."""
        body = pack(
            {
                "peer": key.peer.raw,
                "mesh": chain.leaf.mesh.raw,
                "name": name,
                "role": role,
                "seq": sequence,
                "at": pack_candidates(candidates),
                "relays": list(relays),
                "caps": dict(sorted(capabilities.items())),
                "chain": chain.encode(),
            }
        )
        try:
            return cls.decode(Statement.make(key, _CONTEXT, body).encode())
        except RemoteProtocolError as error:
            raise LocalProtocolError(f"record cannot be made: {error}") from error

    @classmethod
    def decode(cls, data: bytes) -> "PeerRecord":
        """Read the output of `encode`; nothing is proven before `verify`. Raises RemoteProtocolError."""
        return _read(data)

    def verify(self, mesh: MeshId) -> Member:
        """Return the member that signed it. Raises RemoteProtocolError (code `record` or `chain`).

        Bans are not checked: ask the RevocationSet with `chain`.
        """
        if self.mesh != mesh:
            raise RemoteProtocolError("a record of another mesh", code="record")
        if not self.statement.holds(self.peer, _CONTEXT):
            raise RemoteProtocolError("a record's signature is wrong", code="record")
        return check_chain(self.chain, mesh, self.peer)


@functools.lru_cache(maxsize=KEPT_RECORDS)
def _read(data: bytes) -> PeerRecord:
    """Decode a record. Cached: every session of a large mesh begins with all records, most of which are
    known.
    """
    statement = Statement.decode(data, limit=MAX_RECORD_BYTES)
    fields = statement.fields()
    return PeerRecord(
        peer=PeerId(fields.raw("peer", exact=KEY_BYTES)),
        mesh=MeshId(fields.raw("mesh", exact=KEY_BYTES)),
        name=fields.text("name", most=MAX_NAME_BYTES),
        role=fields.text("role", most=MAX_NAME_BYTES),
        sequence=fields.number("seq", low=0, high=MAX_SEQUENCE),
        candidates=unpack_candidates(fields.raw("at", most=MAX_RECORD_BYTES)),
        relays=fields.texts("relays", most=MAX_RELAY_BYTES, count=MAX_RELAYS),
        capabilities=_capabilities(fields.map("caps")),
        chain=Chain.decode(fields.raw("chain", most=MAX_CHAIN_BYTES)),
        statement=statement,
    )


def _capabilities(fields: Fields) -> Mapping[str, str]:
    names = fields.names()
    if len(names) > MAX_CAPABILITIES:
        raise RemoteProtocolError(f"a record has more than {MAX_CAPABILITIES} capabilities", code="message")
    for name in names:
        if not name.isprintable() or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
            raise RemoteProtocolError("a capability's name is too long or unprintable", code="message")
    return MappingProxyType({name: fields.text(name, most=MAX_CAPABILITY_BYTES) for name in names})
