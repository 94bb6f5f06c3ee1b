"""Two ends of a proof on a table: messages are handed over by the test, which may change them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from meshd.identity.invite import JoinKeys, derive
from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.membership import Chain
from meshd.identity.proof import Credentials, DialProof, ListenProof, Proven, Purpose, frame, never_banned
from meshd.wire.message import Value

from tests.unit.identity.cast import FOUNDER, FOUNDER_CHAIN, GUEST, GUEST_CHAIN, MESH

SECRET = b"sixteen bytes ok"
KEYS = derive(SECRET)
BINDING = b"the listener's certificate, hash"
DIAL_NONCE, LISTEN_NONCE = b"d" * 32, b"l" * 32

Why = Callable[[Chain], str | None]


def known(invite_id: bytes) -> JoinKeys | None:
    """The listener's book: one invite."""
    return KEYS if invite_id == KEYS.invite_id else None


def dialler(
    *,
    key: KeyPair = GUEST,
    chain: Chain | None = GUEST_CHAIN,
    mesh: MeshId = MESH,
    expect: PeerId = FOUNDER.peer,
    purpose: Purpose = Purpose.MEMBER,
    binding: bytes = BINDING,
    nonce: bytes = DIAL_NONCE,
    join: JoinKeys | None = None,
    why_banned: Why = never_banned,
) -> DialProof:
    return DialProof(
        credentials=Credentials(key, chain),
        mesh=mesh,
        expect=expect,
        purpose=purpose,
        binding=binding,
        nonce=nonce,
        join=join,
        why_banned=why_banned,
    )


def joiner(*, key: KeyPair = GUEST, join: JoinKeys = KEYS, binding: bytes = BINDING) -> DialProof:
    return dialler(key=key, chain=None, purpose=Purpose.JOIN, join=join, binding=binding)


def listener(
    *,
    key: KeyPair = FOUNDER,
    chain: Chain | None = FOUNDER_CHAIN,
    mesh: MeshId | None = MESH,
    binding: bytes = BINDING,
    nonce: bytes = LISTEN_NONCE,
    why_banned: Why = never_banned,
    why_node_banned: Callable[[PeerId], str | None] | None = None,
    purposes: frozenset[Purpose] = frozenset({Purpose.JOIN, Purpose.MEMBER}),
) -> ListenProof:
    return ListenProof(
        credentials=Credentials(key, chain),
        mesh=mesh,
        binding=binding,
        nonce=nonce,
        invites=known,
        why_banned=why_banned,
        why_node_banned=why_node_banned,
        purposes=purposes,
    )


@dataclass
class Talk:
    """The bytes that crossed, each side's in order."""

    dialled: list[bytes] = field(default_factory=list)
    listened: list[bytes] = field(default_factory=list)


def converse(dial: DialProof, listen: ListenProof) -> Talk:
    """Hand messages over until both have a result; errors come out as they are raised."""
    talk = Talk([dial.start()])
    while True:
        answer = listen.receive(talk.dialled[-1])
        if listen.result is not None:
            return talk
        talk.listened.append(answer)
        talk.dialled.append(dial.receive(answer))


def proven(dial: DialProof, listen: ListenProof) -> tuple[Proven, Proven]:
    """Both results after a whole exchange."""
    converse(dial, listen)
    assert dial.result is not None
    assert listen.result is not None
    return dial.result, listen.result


def message(**fields: Value) -> bytes:
    """One message of the exchange, as a peer that breaks the rules would make it."""
    return frame(fields)
