"""The driver of the proof over a pipe: whatever the chunks, within its limits, errors as promised."""

import errno
import ssl
from collections.abc import Callable

import pytest
from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError, Refused, RemoteProtocolError
from meshd.base.tasks import Owner
from meshd.identity.proof import ProofFailed, Proven, Purpose
from meshd.link.interface import DialError, DialFailure, LinkKind
from meshd.link.secure.handshake import (
    HandshakeContext,
    ProvenPipe,
    RawPipe,
    dial_error,
    member_of,
    prove_accepted,
    prove_dialled,
)

from tests.conformance.memory_link import MemoryPipe, MemoryWire
from tests.conformance.nodes import Node, TestMesh

BINDING = b"b" * 32
MAGIC = b"MESHD"


class Crumbs:
    """Gives what a pipe receives one byte at a time."""

    def __init__(self, pipe: MemoryPipe) -> None:
        self._pipe = pipe
        self._held = b""
        self.send = pipe.send
        self.try_send = pipe.try_send
        self.aclose = pipe.aclose

    def divert(self, take: Callable[[bytes], bool]) -> None:
        """Never asks."""

    async def receive(self) -> bytes:
        if not self._held:
            self._held = await self._pipe.receive()
        crumb, self._held = self._held[:1], self._held[1:]
        return crumb


async def meet(
    near: Node, far: Node, *, crumbs: bool = False, binding: bytes = BINDING
) -> tuple[Proven | MeshdError, Proven | MeshdError]:
    """Return what a dialler and a listener make of each other."""
    here, there = MemoryWire().pipes()
    left: RawPipe = Crumbs(here) if crumbs else here
    right: RawPipe = Crumbs(there) if crumbs else there

    async def dial() -> Proven | MeshdError:
        try:
            return await prove_dialled(
                left, handshake=near.handshake, expect=far.peer, purpose=Purpose.MEMBER, binding=binding
            )
        except MeshdError as error:
            return error
        finally:
            await left.aclose()

    async def accept() -> Proven | MeshdError:
        try:
            return await prove_accepted(right, handshake=far.handshake, binding=BINDING)
        except MeshdError as error:
            return error
        finally:
            await right.aclose()

    async with Owner() as owner:
        dialling = owner.start(dial(), name="dial")
        accepting = owner.start(accept(), name="accept")
    return dialling.result(), accepting.result()


@pytest.mark.parametrize("crumbs", [False, True])
async def test_both_sides_prove_themselves(crumbs: bool) -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    dialled, accepted = await meet(near, far, crumbs=crumbs)
    assert isinstance(dialled, Proven)
    assert isinstance(accepted, Proven)
    assert (dialled.peer, accepted.peer) == (far.peer, near.peer)
    assert member_of(dialled).peer == far.peer


@pytest.mark.parametrize("crumbs", [False, True])
async def test_another_binding_is_refused_on_both_sides(crumbs: bool) -> None:
    mesh = TestMesh()
    dialled, accepted = await meet(mesh.node(), mesh.node(), crumbs=crumbs, binding=b"x" * 32)
    assert isinstance(dialled, Refused)
    assert isinstance(accepted, ProofFailed)
    assert dialled.code == accepted.code == "signature"


async def test_a_ban_on_either_side_is_told_to_the_other() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    near.ban(far.peer)
    dialled, accepted = await meet(near, far)
    assert isinstance(dialled, ProofFailed)
    assert isinstance(accepted, Refused)
    assert dialled.code == accepted.code == "banned"


async def test_silence_times_out_on_both_sides() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    here, there = MemoryWire().pipes()
    with pytest.raises(TimeoutError):
        await prove_accepted(there, handshake=far.handshake, binding=BINDING, seconds=0.01)
    with pytest.raises(TimeoutError):
        await prove_dialled(
            here,
            handshake=near.handshake,
            expect=far.peer,
            purpose=Purpose.MEMBER,
            binding=BINDING,
            seconds=0.01,
        )


@pytest.mark.parametrize(
    "words", [b"x" * 6000, MAGIC + b"\x0f\xff" + b"x" * 6000, MAGIC + b"\x00\x02\x80\x80" * 1500]
)
async def test_the_listener_takes_four_kibibytes(words: bytes) -> None:
    here, there = MemoryWire().pipes()
    await here.send([words])
    with pytest.raises(RemoteProtocolError):
        await prove_accepted(there, handshake=TestMesh().node().handshake, binding=BINDING)


async def test_a_message_without_end_is_cut_at_four_kibibytes() -> None:
    """A frame within its own limit that never becomes whole, in crumbs."""
    here, there = MemoryWire().pipes()
    await here.send([MAGIC + b"\x10\x00" + b"x" * 4095])
    with pytest.raises(RemoteProtocolError):
        await prove_accepted(Crumbs(there), handshake=TestMesh().node().handshake, binding=BINDING)


async def test_leaving_in_the_middle_is_broken() -> None:
    here, there = MemoryWire().pipes()
    await here.send([MAGIC])
    await here.aclose()
    with pytest.raises(Broken):
        await prove_accepted(there, handshake=TestMesh().node().handshake, binding=BINDING)


async def test_leftover_comes_first() -> None:
    here, there = MemoryWire().pipes()
    await here.send([b"later"])
    pipe = ProvenPipe(there, b"first")
    assert [await pipe.receive(), await pipe.receive()] == [b"first", b"later"]
    await here.aclose()
    with pytest.raises(EndOfStream):
        await pipe.receive()
    await pipe.aclose()
    with pytest.raises(Closed):
        await pipe.send([b"x"])


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (TimeoutError(), DialFailure.TIMEOUT),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), DialFailure.TIMEOUT),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), DialFailure.REFUSED),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), DialFailure.UNREACHABLE),
        (OSError("Multiple exceptions"), DialFailure.UNREACHABLE),
        (ssl.SSLError(1, "bad"), DialFailure.UNREACHABLE),
        (RemoteProtocolError("no TLS", code="tls"), DialFailure.HANDSHAKE),
        (ProofFailed("another key", code="signature"), DialFailure.WRONG_PEER),
        (Refused("another node", code="target"), DialFailure.WRONG_PEER),
        (Broken("gone"), DialFailure.HANDSHAKE),
    ],
)
def test_failures_of_a_dial(error: Exception, failure: DialFailure) -> None:
    made = dial_error(error, kind=LinkKind.TCP, place="1.2.3.4:5")
    assert isinstance(made, DialError)
    assert (made.failure, made.kind) == (failure, LinkKind.TCP)
    assert "`1.2.3.4:5`" in made.what


def test_what_the_peer_said_stays_as_it_is() -> None:
    refused = Refused("it was banned", code="banned")
    assert dial_error(refused, kind=LinkKind.TCP, place="x") is refused
    known = DialError("x", kind=LinkKind.QUIC, failure=DialFailure.TIMEOUT)
    assert dial_error(known, kind=LinkKind.TCP, place="x") is known
    with pytest.raises(ZeroDivisionError):
        dial_error(ZeroDivisionError(), kind=LinkKind.TCP, place="x")


def test_a_joiner_is_no_member() -> None:
    with pytest.raises(RemoteProtocolError):
        member_of(Proven(TestMesh().root.peer, Purpose.JOIN, None, b"i" * 8, b""))


def test_a_context_without_invites_knows_none() -> None:
    handshake: HandshakeContext = TestMesh().node().handshake
    assert handshake.invites(b"i" * 8) is None
