"""The webrtc link beyond what every link does: signals, both sides dialling at once."""

import asyncio
import hashlib
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from aiortc import RTCCertificate
from aiortc.rtcdtlstransport import SRTPProtectionProfile, generate_certificate
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from meshd.base.errors import Broken
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.link.ice.agent import MAX_EARLY
from meshd.link.ice.links import MAX_ANSWERING_ONE
from meshd.link.interface import DialError, DialFailure, Signals
from meshd.link.webrtc.links import WebRtcLinks
from meshd.link.webrtc.session import Identity
from meshd.wire.address import Candidate
from meshd.wire.signal import Answer, More, Offer, OfferGone, OfferSignal
from OpenSSL import SSL
from OpenSSL.crypto import FILETYPE_ASN1

from tests.conformance.nodes import TestMesh
from tests.conformance.post import Post
from tests.conformance.run import until
from tests.conformance.street import LOOPBACK, Street, give_up

OUTER = Candidate("203.0.113.9", 4242, "udp", "srflx")


async def test_both_sides_dial_at_once() -> None:
    """Both attempts end in a link that both sides know; peer/links.py keeps one of each kind."""
    street = Street()
    async with street.open(), Owner() as owner:
        ours = owner.start(street.dial(), name="near")
        theirs = owner.start(street.far.links.dial(street.near.node.peer, ()), name="far")
        first, second = await ours, await theirs
        other_first, other_second = await street.far.accepted.get(), await street.near.accepted.get()
        for one, other in ((first, other_first), (second, other_second)):
            await one.send([b"hello"])
            assert await other.receive() == b"hello"
            assert (one.info.local, one.info.remote) == (other.info.remote, other.info.local)
            assert one.info.path == "loopback"
            await one.aclose()


async def test_another_certificate_than_the_signed_one_is_no_link() -> None:
    street = Street()

    def change(signal: OfferSignal) -> OfferSignal:
        if isinstance(signal, Answer):
            return replace(signal, terms=replace(signal.terms, fingerprint=bytes(32)))
        return signal

    street.change = change
    async with street.open():
        with pytest.raises(DialError) as caught:
            await street.dial()
        assert caught.value.failure is DialFailure.HANDSHAKE
        assert street.far.accepted.empty()


class OddCertificate(RTCCertificate):
    """A certificate of a version that does not exist: OpenSSL reads it, cryptography does not."""

    def __init__(self, file: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        made = generate_certificate(key)
        super().__init__(key=key, cert=made)
        der = made.public_bytes(Encoding.DER)
        at = der.index(bytes.fromhex("a003020102")) + 4
        self.der = der[:at] + b"\x05" + der[at + 1 :]
        self._file = file
        file.write_bytes(self.der)

    def _create_ssl_context(self, srtp_profiles: list[SRTPProtectionProfile]) -> SSL.Context:
        context = super()._create_ssl_context(srtp_profiles)
        context.use_certificate_file(str(self._file), FILETYPE_ASN1)
        return context


@pytest.mark.parametrize("dials", [True, False])
async def test_of_a_certificate_only_the_hash_counts(tmp_path: Path, dials: bool) -> None:
    odd = Identity()
    odd.certificate = shown = OddCertificate(tmp_path / "odd.der")
    odd.fingerprint = hashlib.sha256(shown.der).digest()
    street = Street(near=odd) if dials else Street(far=odd)
    async with street.open():
        link = await street.dial()
        await (await street.far.accepted.get()).aclose()
        await link.aclose()


async def test_a_stranger_that_finds_the_ports_ends_no_handshake() -> None:
    """Nothing of DTLS is secret before its handshake is done: anybody could forge an alert."""
    alert = bytes((21, 0xFE, 0xFD)) + bytes(8) + bytes((0, 2, 2, 40))  # fatal, handshake_failure

    street = Street()
    street.wire.stall()
    async with street.open():
        dial = asyncio.get_running_loop().create_task(street.dial())
        await until(lambda: bool(street.told(Answer)))
        with socket.socket(type=socket.SOCK_DGRAM) as stranger:
            for _ in range(MAX_EARLY):
                for sock in street.wire.sockets:
                    stranger.sendto(alert, sock.local)
        street.wire.flow()
        link = await dial
        await (await street.far.accepted.get()).aclose()
        await link.aclose()


async def test_a_dial_that_ends_ends_the_other_side_too() -> None:
    street = Street()
    async with street.dialling() as dial:
        assert street.far.links.answering == 1
        await give_up(dial)
        await until(lambda: not street.far.links.answering)


async def test_giving_up_before_the_answer_is_out_ends_the_attempt() -> None:
    sending, sent = asyncio.Event(), asyncio.Event()

    class Slowly:
        def __init__(self, signals: Signals) -> None:
            self._signals = signals
            self.receive = signals.receive

        async def send(self, peer: PeerId, payload: bytes) -> None:
            sending.set()
            await sent.wait()
            await self._signals.send(peer, payload)

    street = Street(far_signals=Slowly)
    far, caller = street.far, street.near.node.peer
    async with street.open():
        dial = asyncio.get_running_loop().create_task(street.dial())
        await sending.wait()
        (offer,) = street.told(Offer)
        gone = OfferGone(attempt=offer.attempt, why="changed its mind").encode()
        await street.post.signals(caller).send(far.node.peer, gone)
        await until(lambda: not far.links.answering)
        sent.set()
        await give_up(dial)
        assert far.accepted.empty()


async def test_an_offer_is_answered_once() -> None:
    street = Street()
    async with street.dialling():
        (offer,) = street.told(Offer)
        await street.post.signals(street.near.node.peer).send(street.far.node.peer, offer.encode())
        await until(lambda: len(street.told(Offer)) == 2)
        await until(lambda: street.post.box(street.far.node.peer).empty())
        assert len(street.told(Answer)) == 1


async def test_many_offers_of_one_peer_push_out_the_oldest() -> None:
    street = Street()
    async with street.dialling():
        (offer,) = street.told(Offer)
        signals = street.post.signals(street.near.node.peer)
        for number in range(2 * MAX_ANSWERING_ONE):
            again = replace(offer, attempt=number.to_bytes(16, "big"))
            await signals.send(street.far.node.peer, again.encode())
            await until(lambda number=number: len(street.told(Answer)) == number + 2)  # type: ignore[misc]
        await until(lambda: street.far.links.answering == MAX_ANSWERING_ONE)


async def test_signals_that_mean_nothing_here_change_nothing() -> None:
    street = Street()
    async with street.open():
        here, there = street.near.node.peer, street.far.node.peer
        box = street.post.box(there)
        for junk in (b"", b"\xc0", b"\x81\xa4type\xa4what"):
            await box.put((here, junk))
        await street.post.signals(here).send(there, More(attempt=bytes(16), candidates=()).encode())
        link = await street.dial()
        await link.aclose()


async def test_no_way_to_send_an_offer() -> None:
    class Nowhere:
        async def send(self, peer: PeerId, payload: bytes) -> None:
            raise Broken("no link, no relay")

        async def receive(self) -> tuple[PeerId, bytes]:
            raise AssertionError

    mesh = TestMesh()
    links = WebRtcLinks(mesh.node().now, Nowhere(), hosts=lambda: [LOOPBACK])
    with pytest.raises(DialError, match="no link, no relay") as caught:
        await links.dial(mesh.node().peer, ())
    assert caught.value.failure is DialFailure.UNREACHABLE


async def test_no_address_to_send_from() -> None:
    mesh, post = TestMesh(), Post()
    links = WebRtcLinks(mesh.node().now, post.signals(mesh.node().peer), hosts=lambda: ["192.0.2.77"])
    with pytest.raises(DialError, match="no address"):
        await links.dial(mesh.node().peer, ())


async def test_addresses_that_are_found_later_are_told() -> None:
    bases: list[Candidate] = []

    async def extra(given: Sequence[Candidate]) -> Sequence[Candidate]:
        bases.extend(given)
        return [OUTER, replace(OUTER, kind="mapped")]

    street = Street(extra=extra)
    street.wire.stall()  # so that the attempt lasts
    async with street.open():
        dialling = asyncio.get_running_loop().create_task(street.dial())
        await until(lambda: bool(street.told(More)))
        (more,) = street.told(More)
        assert isinstance(more, More)
        assert more.candidates == (OUTER, replace(OUTER, kind="mapped"))
        (offer,) = street.told(Offer)
        assert isinstance(offer, Offer)
        assert tuple(bases) == offer.terms.candidates
        assert [one.host for one in bases] == [LOOPBACK]
        street.wire.flow()
        await (await dialling).aclose()


async def test_attempts_with_one_peer_share_their_pace() -> None:
    street = Street()
    street.wire.stall()
    async with street.open(), Owner() as owner:
        dials = [owner.start(street.dial(), name=f"dial {number}") for number in range(3)]
        await until(lambda: len(street.told(Answer)) == 3)
        assert street.far.links.answering == 3
        paces = {id(session.ice.pace) for session in street.far.links.sessions}
        assert len(paces) == 1
        for dial in dials:
            dial.cancel()


def test_the_libraries_are_not_imported_before_they_are_used() -> None:
    libraries = "('aiortc', 'aioice', 'av')"
    script = f"import sys, meshd.link.webrtc.links; sys.exit(any(m in sys.modules for m in {libraries}))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
