"""The cast of the identity tests: a root, a founder, an admin, an inviter, and whom they admit."""

from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from meshd.identity.keys import KeyPair, MeshId
from meshd.identity.membership import ALL_ROLES, Certificate, Chain, Role, issue

thorough = settings(deadline=None, max_examples=300)
brief = settings(deadline=None, max_examples=50)


def key(name: str) -> KeyPair:
    """The key pair of somebody called so."""
    return KeyPair.from_seed(name.encode().ljust(32, b".")[:32])


def certificate(
    signer: KeyPair,
    node: KeyPair,
    roles: Iterable[Role] = (Role.USE,),
    *,
    mesh: MeshId | None = None,
    invite: bytes = b"",
    issued_at: int = 1000,
    serial: bytes = b"serial number 16",
) -> Certificate:
    return issue(
        signer=signer,
        mesh=mesh or MESH,
        node=node.peer,
        roles=roles,
        serial=serial,
        invite=invite,
        issued_at=issued_at,
    )


ROOT = key("root")
MESH = MeshId.of(ROOT.peer)
FOUNDER, ADMIN, INVITER, WORKER, GUEST, STRANGER = map(
    key, ("founder", "admin", "inviter", "worker", "guest", "stranger")
)
INVITE_ID = b"invite 8"

FOUNDER_CHAIN = Chain((certificate(ROOT, FOUNDER, ALL_ROLES),), ROOT.peer)
ADMIN_CHAIN = Chain((certificate(ROOT, ADMIN, [Role.ADMIN, Role.USE]),), ROOT.peer)
INVITER_CHAIN = Chain((certificate(ROOT, INVITER, [Role.INVITE, Role.USE, Role.WORK]),), ROOT.peer)
WORKER_CHAIN = Chain((certificate(ROOT, WORKER, [Role.WORK], invite=b"workers!"),), ROOT.peer)
GUEST_CHAIN = Chain(
    (certificate(INVITER, GUEST, [Role.USE], invite=INVITE_ID), INVITER_CHAIN.leaf), ROOT.peer
)


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """`good` with some bytes changed, cut out, put in or left off: never `good` itself."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        change = draw(st.sampled_from(["flip", "cut", "insert", "end"]))
        if change == "flip" and data:
            data[place] ^= draw(st.integers(1, 255))
        elif change == "cut":
            del data[place : place + draw(st.integers(1, 40))]
        elif change == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=8))
        else:
            del data[place:]
    if bytes(data) == good:
        data.append(0)
    return bytes(data)
