"""Records, signs of life and reports of absence: read back, signed, bounded; damage is refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.identity.keys import KeyPair, MeshId
from meshd.identity.membership import Chain, Statement
from meshd.identity.record import Away, PeerRecord, Presence
from meshd.wire.address import Candidate
from meshd.wire.limits import MAX_CANDIDATES, MAX_RECORD_BYTES, MAX_SEQUENCE
from meshd.wire.message import Value, pack
from meshd.wire.news import MAX_PRESENCES, AwayNews, PresenceNews, decode

from tests.unit.identity.cast import GUEST, GUEST_CHAIN, MESH, STRANGER, WORKER


def record(*, key: KeyPair = GUEST, chain: Chain = GUEST_CHAIN, sequence: int = 7) -> PeerRecord:
    return PeerRecord.sign(
        key,
        chain=chain,
        name="big machine",
        role="worker",
        sequence=sequence,
        candidates=(Candidate("192.168.1.2", 7000), Candidate("fd00::1", 7000, "udp", "mapped")),
        relays=("relay.example.org:443",),
        capabilities={"backend": "cuda", "memory": "24G"},
    )


def test_a_record_is_read_back_and_verified() -> None:
    made = record()
    found = PeerRecord.decode(made.encode())
    assert found == made
    assert hash(found) == hash(made)
    assert found.verify(MESH).peer == GUEST.peer
    assert found.peer == GUEST.peer
    assert found.name == "big machine"
    assert found.capabilities["backend"] == "cuda"
    assert found.candidates[1].kind == "mapped"
    assert len(found.statement.signature) == 64


@pytest.mark.parametrize(
    ("said", "shown"), [("0.2.0", "0.2.0"), ("0.2.0+mine", "0.2.0+mine"), ("9.9; run `this`", ""), ("", "")]
)
def test_a_version_is_shown_if_it_is_one(said: str, shown: str) -> None:
    assert replace(record(), capabilities={"meshd": said}).software == shown


def test_a_record_of_another_mesh_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="another mesh") as caught:
        record().verify(MeshId.of(STRANGER.peer))
    assert caught.value.code == "record"


def test_a_record_for_somebody_else_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="another node") as caught:
        record(key=STRANGER).verify(MESH)
    assert caught.value.code == "chain"


def test_a_record_that_somebody_else_signed_is_refused() -> None:
    genuine = record()
    forged = Statement.make(STRANGER, "meshd record v1", genuine.statement.body)
    with pytest.raises(RemoteProtocolError, match="signature"):
        PeerRecord.decode(forged.encode()).verify(MESH)


def test_the_largest_record_is_bounded() -> None:
    many = tuple(Candidate(f"fd00::{last:x}", 7000) for last in range(1, MAX_CANDIDATES + 1))
    big = PeerRecord.sign(
        GUEST,
        chain=GUEST_CHAIN,
        name="n" * 64,
        role="worker",
        sequence=MAX_SEQUENCE,
        candidates=many,
        relays=("r" * 290,) * 4,
    )
    assert len(big.encode()) <= MAX_RECORD_BYTES


@pytest.mark.parametrize(
    ("name", "relays", "capabilities"),
    [
        ("n" * 65, (), {}),
        ("two\nlines", (), {}),
        ("n", ("r",) * 5, {}),
        ("n", ("r" * 301,), {}),
        ("n", (), {"k" * 65: "v"}),
        ("n", (), {"a\nb": "v"}),
        ("n", (), {"k": "v" * 257}),
        ("n", (), {str(number): "v" for number in range(33)}),
        ("n", (), {str(number): "v" * 250 for number in range(20)}),
    ],
)
def test_a_record_beyond_the_limits_cannot_be_made(
    name: str, relays: tuple[str, ...], capabilities: dict[str, str]
) -> None:
    with pytest.raises(LocalProtocolError):
        PeerRecord.sign(
            GUEST,
            chain=GUEST_CHAIN,
            name=name,
            role="r",
            sequence=1,
            relays=relays,
            capabilities=capabilities,
        )


def test_fields_of_a_later_version_are_passed_on() -> None:
    extended: dict[str, Value] = {
        "peer": GUEST.peer.raw,
        "mesh": MESH.raw,
        "name": "n",
        "role": "r",
        "seq": 1,
        "at": b"",
        "relays": [],
        "caps": {},
        "chain": GUEST_CHAIN.encode(),
        "later": 5,
    }
    raw = Statement.make(GUEST, "meshd record v1", pack(extended)).encode()
    found = PeerRecord.decode(raw)
    assert found.verify(MESH).peer == GUEST.peer
    assert found.encode() == raw


def sign(sequence: int = 3, count: int = 7) -> Presence:
    return Presence.sign(WORKER, mesh=MESH, sequence=sequence, count=count)


AWAY = Away.sign(WORKER, mesh=MESH, peer=GUEST.peer, order=(3, 7))
STATEMENTS: list[Presence | Away] = [sign(), AWAY]
each_statement = pytest.mark.parametrize("made", STATEMENTS, ids=lambda made: type(made).__name__)


@pytest.mark.parametrize(("made", "size"), [(sign(), 108), (AWAY, 140)])
def test_a_statement_is_read_back_and_holds_in_its_mesh(made: Presence | Away, size: int) -> None:
    data = made.to_bytes()
    again = type(made).from_bytes(data)
    assert len(data) == size
    assert again == made and again.holds(MESH) and again.order == (3, 7)
    assert not again.holds(MeshId(bytes(32)))
    for other in (b"", data[:-1], data + b"x"):
        with pytest.raises(RemoteProtocolError):
            type(made).from_bytes(other)


def test_the_later_sign_of_life_is_greater() -> None:
    assert sign(3, 7).order < sign(3, 8).order < sign(4, 1).order


@each_statement
@given(at=st.integers(0, 139), bit=st.integers(0, 7))
def test_a_statement_with_a_flipped_bit_does_not_hold(made: Presence | Away, at: int, bit: int) -> None:
    data = bytearray(made.to_bytes())
    data[at % len(data)] ^= 1 << bit
    try:
        assert not type(made).from_bytes(bytes(data)).holds(MESH)
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize(
    "forged", [replace(sign(), peer=STRANGER.peer), replace(AWAY, reporter=STRANGER.peer)]
)
def test_a_statement_that_somebody_else_signed_does_not_hold(forged: Presence | Away) -> None:
    assert not forged.holds(MESH)


def test_statements_fit_in_messages() -> None:
    entries = tuple(sign(count=count).to_bytes() for count in range(MAX_PRESENCES))
    message = PresenceNews(entries).encode()
    assert len(message) < 64 << 10
    assert decode(message) == PresenceNews(entries)
    assert decode(AwayNews(AWAY.to_bytes()).encode()) == AwayNews(AWAY.to_bytes())
    with pytest.raises(RemoteProtocolError):
        decode(PresenceNews((b"x" * 107,)).encode())
