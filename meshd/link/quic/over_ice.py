"""QUIC over a path that ICE found: for peers behind NATs, when the webrtc link does not come about.

Signals and candidates are those of ice/links.py, under a separate topic; on the path QUIC replaces DTLS and
SCTP. It sees one path that never changes: where the datagrams really go is ICE's concern. The answerer is
QUIC's listener, and tells the hash of its certificate in its signed answer too.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshd.base.errors import Broken, RemoteProtocolError
from meshd.identity.tls_certificate import LinkCertificate, make_link_certificate
from meshd.link.ice.links import IceLinks, IceSession
from meshd.link.interface import LinkKind, Transport
from meshd.link.net.udp_sockets import ETHERNET_MTU, Address, Origin
from meshd.link.quic.links import IDLE_SECONDS
from meshd.link.quic.pipe import QuicPipe
from meshd.wire.address import CandidateKind
from meshd.wire.dialable import Dialable
from meshd.wire.signal import Terms

if TYPE_CHECKING:
    from meshd.link.quic.engine import QuicEngine, Reception

_PATH = Origin(("ice", 0))  # what QUIC takes for the other side's address


class QuicOverIce(IceLinks):
    """Makes and takes in QUIC links over ICE; as `IceLinks` says."""

    transport = Transport.QUIC_ICE
    kind = LinkKind.QUIC
    idle_seconds = IDLE_SECONDS
    _certificate: LinkCertificate | None = None

    async def _session(self, *, dialler: bool, user: str, password: str) -> "QuicSession":
        await asyncio.to_thread(_load)
        if self._certificate is None:
            self._certificate = make_link_certificate()
        return QuicSession(
            self._certificate, dialler=dialler, user=user, password=password, idle_seconds=self.idle_seconds
        )


def _load() -> None:
    """Import what this kind needs; the first time takes half a second."""
    from meshd.link.ice import agent as _agent  # noqa: F401
    from meshd.link.quic import engine as _engine  # noqa: F401


class QuicSession(IceSession):
    """One side of one try, and the port of its pipe (quic/pipe.py)."""

    def __init__(
        self,
        certificate: LinkCertificate,
        *,
        dialler: bool,
        user: str,
        password: str,
        idle_seconds: float,
    ) -> None:
        from meshd.link.ice.agent import IcePath
        from meshd.link.quic import engine

        self._certificate = certificate
        self._dialler = dialler
        self._idle_seconds = idle_seconds
        self._loop = asyncio.get_running_loop()
        self._reception: Reception | None = None
        self.ice: IcePath = IcePath(controlling=dialler, user=user, password=password)
        self.ice.on_lost = self._lost
        self.pipe: QuicPipe | None = None
        self._pair: tuple[Address, Address, CandidateKind | None] | None = None  # outlives the path
        self._begun = asyncio.Event()  # there is a pipe
        if dialler:
            self._settings = engine.dialler_settings(idle_seconds=idle_seconds)
        else:
            self._settings = engine.listener_settings(certificate, idle_seconds=idle_seconds)
            self._reception = engine.Reception(self._settings)

    # --- as IceLinks asks

    @property
    def fingerprint(self) -> bytes:
        """The SHA-256 of our certificate."""
        return self._certificate.sha256

    @property
    def pair(self) -> tuple[Address, Address, CandidateKind | None] | None:
        """Our address, theirs, and the kind that they announced."""
        return self.ice.pair or self._pair

    async def connect(self, terms: Terms, places: Sequence[Dialable]) -> None:
        """Find a path and run the handshake over it. Raises Broken, RemoteProtocolError."""
        ice = self.ice
        await ice.reach(terms, places)
        self._pair = ice.pair
        if self._dialler:
            from meshd.link.quic import engine

            self._begin(engine.start_dialling(self._settings, _PATH, self._loop.time()))
        ice.take_over(self._take)
        ice.on_batch_end = self._advance
        self._advance()
        await self._begun.wait()
        if self.pipe is None:
            raise Broken("the path to the other side is lost")
        await self.pipe.secure()
        self.binding = self.pipe.binding() if self._dialler else self._certificate.sha256
        if self._dialler and self.binding != terms.fingerprint:
            raise RemoteProtocolError(
                "the certificate differs from the one in the signed answer", code="signature"
            )

    def shut(self) -> list[asyncio.Task[None]]:
        """End everything at once; return tasks that end in the next turns. Idempotent."""
        if self.pipe is not None:
            self.pipe.abort()  # says goodbye, and then comes by `forget`
        return self._end_path()

    # --- as the pipe's port

    @property
    def full(self) -> bool:
        """Never true: what the kernel does not take is lost on its way."""
        return False

    def send(self, datagrams: Sequence[bytes], origin: Origin) -> None:
        """Send over the pair that ICE chose."""
        self.ice.send_now(datagrams)

    def probe(self, datagram: bytes, origin: Origin) -> None:
        """Send one datagram that arrives whole or not at all."""
        self.ice.probe_now(datagram)

    def mtu(self, origin: Origin) -> int:
        """Return Ethernet's MTU, which nearly every way through a NAT takes."""
        return ETHERNET_MTU

    def renamed(self, pipe: QuicPipe, new: Sequence[bytes], old: Sequence[bytes]) -> None:
        """Do nothing: every datagram that comes is for the one pipe."""

    def forget(self, pipe: QuicPipe) -> None:
        """End the path with its connection."""
        self._end_path()

    # --- inside

    def _begin(self, engine: "QuicEngine") -> None:
        self.pipe = QuicPipe(engine, self, place="ICE path", idle_seconds=self._idle_seconds)
        self._begun.set()

    def _end_path(self) -> list[asyncio.Task[None]]:
        return [] if self.ice.is_shut else self.ice.shut()

    def _advance(self) -> None:
        if self.pipe is not None:
            self.pipe.advance()

    def _lost(self) -> None:
        self._begun.set()
        if self.pipe is not None:
            self.pipe.fail("the path to the other side is lost")

    def _take(self, data: bytes) -> None:
        now = self._loop.time()
        if self.pipe is not None:
            self.pipe.datagram(data, _PATH, now)
        elif self._reception is not None:
            answer = self._reception.first(data, _PATH, now, busy=False)
            if isinstance(answer, bytes):
                self.ice.send_now((answer,))
            elif answer is not None:
                self._begin(answer[0])
