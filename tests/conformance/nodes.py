"""Nodes of one mesh for link tests: keys, chains and what they show at a link's start."""

import itertools
from dataclasses import dataclass, replace

from meshd.identity.invite import JoinKeys
from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.membership import Chain, Role, issue
from meshd.identity.proof import Credentials
from meshd.link.secure.handshake import HandshakeContext

key_seeds = itertools.count(1)


def fresh_key() -> KeyPair:
    """A key that no other node of this run has."""
    return KeyPair.from_seed(next(key_seeds).to_bytes(32, "big"))


@dataclass
class Node:
    """A node whose handshake context a test may change at any time."""

    key: KeyPair
    handshake: HandshakeContext

    @property
    def peer(self) -> PeerId:
        return self.key.peer

    def now(self) -> HandshakeContext:
        """Return what dialers and listeners ask for."""
        return self.handshake

    def ban(self, other: PeerId) -> None:
        """Refuse `other` from here on."""

        def why(chain: Chain) -> str | None:
            return "it was banned by a test" if chain.leaf.node == other else None

        self.handshake = replace(self.handshake, why_banned=why)

    def invite(self, keys: JoinKeys) -> None:
        """Know this invite."""
        self.handshake = replace(self.handshake, invites={keys.invite_id: keys}.get)


class TestMesh:
    """A mesh whose root admits nodes."""

    __test__ = False

    def __init__(self) -> None:
        self.root = fresh_key()
        self.mesh = MeshId.of(self.root.peer)

    def node(self) -> Node:
        """A member."""
        node = self.stranger()
        self.admit(node)
        return node

    def admit(self, node: Node) -> None:
        """Make it a member."""
        certificate = issue(
            signer=self.root,
            mesh=self.mesh,
            node=node.peer,
            roles={Role.USE, Role.WORK},
            serial=bytes(16),
            invite=b"",
            issued_at=0,
        )
        chain = Chain((certificate,), self.root.peer)
        node.handshake = replace(node.handshake, credentials=Credentials(node.key, chain))

    def stranger(self) -> Node:
        """A node that knows of the mesh and is no member."""
        key = fresh_key()
        return Node(key, HandshakeContext(credentials=Credentials(key, None), mesh=self.mesh))
