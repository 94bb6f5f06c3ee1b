"""A member that agrees on a webrtc link, completes ICE, and then does not speak DTLS as it should.

Each attempt ends within its time on the honest side, whichever side dials; it keeps no memory of what came,
writes nothing to the log, and the next link is made.
"""

import asyncio
import io
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import MethodType

import pytest
from meshd.base import log
from meshd.link.ice import links as ice_links
from meshd.link.interface import DialError
from meshd.link.webrtc.session import WebRtcSession
from meshd.wire.dialable import Dialable
from meshd.wire.signal import Terms

from tests.conformance.run import run, until
from tests.conformance.street import Side, Street
from tests.hostile.damage import resident_bytes, trim

SECONDS = 2.0  # of an attempt, in place of ten
DATAGRAMS = 4000
MOST_KEPT = 3 << 20  # bytes of memory, of up to 4 MB sent
HANDSHAKE, ALERT, DATA = 22, 21, 23

Attack = Callable[[WebRtcSession, Terms], Awaitable[None]]


def record(kind: int, body: bytes, *, number: int = 0, length: int | None = None) -> bytes:
    """A plain record of DTLS 1.2 (RFC 6347 4.1), whose length may be a lie."""
    size = len(body) if length is None else length
    return bytes((kind, 0xFE, 0xFD)) + number.to_bytes(8, "big") + size.to_bytes(2, "big") + body


def fragment(*, message: int, of: int, offset: int, body: bytes, kind: int = 1) -> bytes:
    """A piece of a handshake message (RFC 6347 4.2.3), of a ClientHello by default."""
    head = bytes((kind,)) + of.to_bytes(3, "big") + message.to_bytes(2, "big")
    return head + offset.to_bytes(3, "big") + len(body).to_bytes(3, "big") + body


def garbage() -> Iterator[bytes]:
    rng = random.Random(20261125)
    for _ in range(DATAGRAMS):
        yield bytes((rng.randrange(20, 256),)) + rng.randbytes(rng.randrange(1200))


def half_a_hello() -> Iterator[bytes]:
    body = fragment(message=0, of=300, offset=0, body=bytes(100))
    yield record(HANDSHAKE, body, length=300)
    yield record(HANDSHAKE, body[:5])
    yield record(HANDSHAKE, fragment(message=0, of=100, offset=0, body=bytes(100)))  # whole, and no hello


def fragments_without_end() -> Iterator[bytes]:
    """Begin large messages, one after the other; none is ever whole."""
    for number in range(DATAGRAMS):
        body = fragment(message=number % 16, of=60_000, offset=(number * 1100) % 50_000, body=bytes(1100))
        yield record(HANDSHAKE, body, number=number)


def fragments_that_lie() -> Iterator[bytes]:
    for number in range(DATAGRAMS):
        body = fragment(message=number % 8, of=(1 << 24) - 1, offset=(1 << 24) - 2, body=bytes(1100))
        yield record(HANDSHAKE, body, number=number)


def plain_data() -> Iterator[bytes]:
    for number in range(DATAGRAMS):
        yield record(DATA, bytes(1000), number=number)


def alerts() -> Iterator[bytes]:
    for number in range(DATAGRAMS):
        yield record(ALERT, bytes((1, number & 255)), number=number)  # warnings
    yield record(ALERT, bytes((2, 40)), number=DATAGRAMS)  # handshake_failure


def saying(datagrams: Callable[[], Iterator[bytes]]) -> Attack:
    """Send these in place of a handshake."""

    async def attack(session: WebRtcSession, _terms: Terms) -> None:
        for number, data in enumerate(datagrams()):
            session.ice.send_now((data,))
            if not number % 16:
                await asyncio.sleep(0.001)  # the other side runs in this process

    return attack


async def nothing(_session: WebRtcSession, _terms: Terms) -> None:
    """Never begin."""


class Renegotiating(WebRtcSession):
    """Completes the handshake, then begins new ones, and never an association."""

    async def renegotiate(self, terms: Terms) -> None:
        await self._encrypt(terms.fingerprint)
        ssl = self._ssl
        assert ssl is not None
        for _ in range(200):
            ssl.renegotiate()
            self._answer_handshake(ssl)
            await asyncio.sleep(0.002)


async def renegotiating(session: WebRtcSession, terms: Terms) -> None:
    session.__class__ = Renegotiating
    assert isinstance(session, Renegotiating)
    await session.renegotiate(terms)


ATTACKS = {
    "silence": nothing,
    "garbage": saying(garbage),
    "half a hello": saying(half_a_hello),
    "fragments without end": saying(fragments_without_end),
    "fragments that lie": saying(fragments_that_lie),
    "plain data": saying(plain_data),
    "alerts": saying(alerts),
    "renegotiation": renegotiating,
}


class Hostile:
    """Makes the sessions of one side: after ICE, each does `attack` and stays."""

    def __init__(self, side: Side, attack: Attack) -> None:
        self._links = side.links
        self._attack = attack
        self.begun = 0  # attacks
        side.links.change, side.links.says_gone = self._change, False

    def stop(self) -> None:
        """Make honest sessions again."""
        self._links.change = lambda session: None

    def _change(self, session: WebRtcSession) -> None:
        async def connect(it: WebRtcSession, terms: Terms, places: Sequence[Dialable]) -> None:
            await it.ice.reach(terms, places)
            self.begun += 1
            await self._attack(it, terms)
            await asyncio.Event().wait()

        session.connect = MethodType(connect, session)  # type: ignore[method-assign]


async def greet(street: Street) -> None:
    """Make an honest link, and use it."""
    link = await street.dial()
    other = await street.far.accepted.get()
    await link.send([b"hello"])
    assert await other.receive() == b"hello"
    await link.aclose()


@pytest.mark.parametrize("hostile_dials", [True, False])
@pytest.mark.parametrize("name", ATTACKS)
def test_the_attempt_ends_in_time_and_the_next_link_is_made(
    name: str, hostile_dials: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        street = Street()
        bad, good = (street.near, street.far) if hostile_dials else (street.far, street.near)
        async with street.open():
            await greet(street)
            trim()
            before = resident_bytes()
            hostile = Hostile(bad, ATTACKS[name])
            for _ in range(5):  # an attempt whose time is over before ICE has ended is repeated
                with monkeypatch.context() as patched, pytest.raises(DialError) as caught:
                    patched.setattr(ice_links, "_ATTEMPT_SECONDS", SECONDS)
                    await street.dial()
                await until(lambda: not good.links.attempts, seconds=3 * SECONDS)
                if hostile.begun:
                    break
            assert hostile.begun == 1
            assert name != "alerts" or hostile_dials or "the DTLS handshake failed" in caught.value.what
            assert good.accepted.empty()
            trim()
            assert resident_bytes() - before < MOST_KEPT
            hostile.stop()
            await greet(street)

    said = io.StringIO()
    log.set_up(stream=said)
    try:
        run(main())
    finally:
        log.set_up(level="warning")
    assert said.getvalue() == ""
