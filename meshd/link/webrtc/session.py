"""One attempt of the webrtc link, ICE, DTLS and SCTP put on top of each other without SDP; and its byte pipe.

Imports aiortc and aioice: import this module on demand (15 MB, a fifth of a second). aiortc's DTLS transport
does the handshake and checks the fingerprint; afterwards datagrams go through OpenSSL by one call each way,
without the tasks and queues between aiortc's layers.

What waits in the pipe, at most: 64 KiB and one send in our backlog, what the path holds on its way (the
window of bbr.py), and 4 MiB received: unread, or behind a hole. Beyond that the SCTP window closes, and the
other side's sends wait.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Sequence

from OpenSSL import SSL

from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.link.buffered_pipe import SEND_HIGH_BYTES, BufferedPipe
from meshd.link.ice.agent import IcePath
from meshd.link.ice.links import IceSession
from meshd.link.webrtc.aiortc_parts import (
    RTCCertificate,
    RTCDtlsFingerprint,
    RTCDtlsParameters,
    RTCDtlsTransport,
    State,
)
from meshd.link.webrtc.sctp_association import Association
from meshd.wire.dialable import Dialable
from meshd.wire.limits import MAX_FRAME_BYTES
from meshd.wire.signal import Terms

_READ_BYTES = 2048  # of one DTLS record
FLIGHT_SECONDS = (0.1, 0.15, 0.25, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5)  # before each repetition
_BINDING = b"meshd webrtc link 1"


class Identity:
    """The certificate of this process: made at the first use, trusted by nobody, told in each offer."""

    def __init__(self) -> None:
        self.certificate = RTCCertificate.generateCertificate()
        fingerprints = {
            fingerprint.algorithm: fingerprint.value for fingerprint in self.certificate.getFingerprints()
        }
        self.fingerprint = bytes.fromhex(fingerprints["sha-256"].replace(":", ""))


class Dtls(RTCDtlsTransport):
    """aiortc's, whose handshake can be cancelled at any moment, and which takes any certificate.

    aiortc waits for datagrams by asyncio.wait_for, which before Python 3.12 forgets a cancellation that comes
    in the same turn as the datagram (python/cpython#86296). And it parses the certificate, which raises what
    no caller foresees, for a version that does not exist say; here only its hash counts.
    """

    def _validate_peer_identity(self, parameters: RTCDtlsParameters) -> None:
        assert self._ssl is not None
        shown = self._ssl.get_peer_certificate()
        [fingerprint] = parameters.fingerprints
        if shown is None or shown.digest("sha256").decode() != fingerprint.value.upper():
            self._set_state(State.FAILED)

    async def _recv_next(self) -> None:
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        await super()._recv_next()
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


class _Below:
    """The part of RTCIceTransport that RTCDtlsTransport uses."""

    state = "completed"
    role = "controlling"

    def __init__(self, ice: IcePath) -> None:
        self._ice = ice
        self._recv_early = ice.recv
        self._flight: list[bytes] = []  # sent since something came
        self._heard = 0

    async def _recv(self) -> bytes:
        if self._ice.on_datagram is None:
            data = await self._recv_early()
            self._heard += 1
            self._flight.clear()
            return data
        never: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        return await never  # the session reads by itself now

    async def _send(self, data: bytes) -> None:
        self._flight.append(data)
        self._ice.send_now((data,))

    async def repeat(self) -> None:
        """Send the last flight of the handshake again and again until something comes back.

        OpenSSL does so after a second, and has no setting for it. A copy that was not needed is dropped by
        the other side as a replay (RFC 6347 4.1.2.6).
        """
        for wait in FLIGHT_SECONDS:
            before = self._heard
            await asyncio.sleep(wait)
            if before == self._heard:
                self._ice.send_now(self._flight)


class WebRtcSession(IceSession):
    """One side of one attempt. `open`, tell the terms, `connect` with the other side's; then `association`.

    `on_lost` is called when the path below is gone. `shut` in the end, always.
    """

    def __init__(self, identity: Identity, *, dialler: bool, user: str, password: str) -> None:
        self._identity = identity
        self._dialler = dialler
        self.ice = IcePath(controlling=dialler, user=user, password=password)
        self._below = _Below(self.ice)
        self._dtls = Dtls(self._below, [identity.certificate])  # type: ignore[arg-type]
        self._ssl: SSL.Connection | None = None
        self.association = Association(self._dtls, self._send, self._push, self._probe)
        self._out: list[bytes] = []  # encrypted, to be sent together
        self.on_lost: Callable[[], None] = lambda: None
        self.ice.on_lost = self._lost
        self.pipe = WebRtcPipe(self)  # now: bytes may come in the moment the association stands

    @property
    def fingerprint(self) -> bytes:
        """The SHA-256 of our certificate."""
        return self._identity.fingerprint

    async def connect(self, terms: Terms, places: Sequence[Dialable]) -> None:
        """Find a path, encrypt it, begin the association. Raises Broken; the caller sets the time limit."""
        await self.ice.reach(terms, places)
        both = (self._identity.fingerprint, terms.fingerprint)
        dialler, listener = both if self._dialler else both[::-1]
        self.binding = hashlib.sha256(_BINDING + dialler + listener).digest()
        try:
            async with Owner() as owner:
                repeat = owner.start(self._below.repeat(), name="dtls-repeat")
                await self._encrypt(terms.fingerprint)
                await self.association.begin()
                await self.association.opened.wait()
                repeat.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        if not self.association.is_open:
            raise Broken("the other side ended the connection before it was established")

    async def _encrypt(self, fingerprint: bytes) -> None:
        """Run the DTLS handshake. The dialler, whose ICE is done first, is its client. Raises Broken."""
        self._dtls._set_role("client" if self._dialler else "server")
        expected = RTCDtlsFingerprint(algorithm="sha-256", value=fingerprint.hex(":"))
        await self._dtls.start(RTCDtlsParameters(fingerprints=[expected]))
        if not self._dtls.encrypted:
            raise Broken("the DTLS handshake failed")
        if self._dtls.state != "connected":
            raise Broken("the other side's fingerprint differs from the offer")
        self._ssl = self._dtls._ssl
        self.ice.take_over(self._take)
        self.ice.on_batch_end = self.association.batch_ended

    def _lost(self) -> None:
        self.association.opened.set()  # `connect` need not wait any more
        self.on_lost()

    def _send(self, packet: bytes) -> None:
        ssl = self._ssl
        if ssl is None or self.ice.is_shut:
            return
        try:
            ssl.send(packet)
            self._out.append(ssl.bio_read(_READ_BYTES))
        except SSL.Error:
            self.on_lost()

    def _push(self) -> None:
        if self._out:
            out, self._out = self._out, []
            self.ice.send_now(out)

    def _probe(self, packet: bytes) -> None:
        """Send one packet that no router may fragment."""
        self._push()
        self._send(packet)
        if self._out:
            self.ice.probe_now(self._out.pop())

    def _take(self, datagram: bytes) -> None:
        ssl = self._ssl
        if ssl is None:
            return
        try:
            ssl.bio_write(datagram)
            packet = ssl.recv(_READ_BYTES)
        except SSL.ZeroReturnError:
            self.on_lost()  # goodbye of DTLS
        except SSL.Error:
            self._answer_handshake(ssl)  # repeated by the other side, or not for us
        else:
            self.association.take(packet)

    def _answer_handshake(self, ssl: SSL.Connection) -> None:
        try:
            while True:  # a flight has several records
                self.ice.send_now((ssl.bio_read(_READ_BYTES),))
        except SSL.Error:
            return

    def shut(self) -> list[asyncio.Task[None]]:
        """End everything at once; return tasks that end in the next turns. Idempotent."""
        if self.ice.is_shut:
            return []
        self.association.drop()
        tasks = []
        if self._ssl is not None:
            try:
                self._ssl.shutdown()
                self.ice.send_now((self._ssl.bio_read(_READ_BYTES),))
            except SSL.Error:
                pass
            self._ssl = None
        if isinstance(self._dtls._task, asyncio.Task):
            self._dtls._task.cancel()
            tasks.append(self._dtls._task)
        return [*tasks, *self.ice.shut()]


class WebRtcPipe(BufferedPipe):
    """A RawPipe (secure/handshake.py) over a connected session, which it ends."""

    def __init__(self, session: WebRtcSession) -> None:
        super().__init__()
        self._session = session
        self._association = session.association
        self._chunks: deque[bytes] = deque()
        self._settled = asyncio.Event()  # all is acknowledged, or the end
        self._tasks: list[asyncio.Task[None]] = []  # that end with the session
        session.on_lost = lambda: self._break("the path to the other side is lost")
        self._association.unread = lambda: self._unread
        self._association.on_bytes = self._arrived
        self._association.on_drained = self._drained
        self._association.on_end = self._ended

    def widen(self) -> None:
        """Open full buffers to a proven peer: 4 MiB may wait here instead of 64 KiB."""
        self._association.widen()

    # --- what the session calls

    def _arrived(self, data: bytes) -> None:
        if self._end is not None:
            return
        if self._take is None or self._chunks or not self._take(data):
            self._chunks.append(data)
            self._unread += len(data)
            self._readable.set()

    def _drained(self) -> None:
        self._writable.set()
        self._settled.set()

    def _ended(self, clean: bool) -> None:
        if clean:
            self._finish(EndOfStream, "the other side ended the link")
        else:
            self._break("the other side dropped the connection")

    def _break(self, what: str) -> None:
        """End at once, without a farewell that nobody would hear; what was received stays."""
        self._finish(Broken, what)
        self._shut()

    # --- what the owner calls

    def try_send(self, data: Sequence[bytes | memoryview]) -> bool:
        """Send as `Link.try_send`. The association reports its low-water mark only: here is room above it
        too.
        """
        if self._association.backlog_bytes < SEND_HIGH_BYTES:
            self._writable.set()
        return super().try_send(data)

    def abort(self) -> None:
        """Drop it at once, without a farewell."""
        self._finish(Closed, "this link was closed")
        self._shut()

    # --- inside

    def _put(self, data: Sequence[bytes | memoryview], size: int) -> None:
        self._association.write(data)
        if self._association.backlog_bytes >= SEND_HIGH_BYTES:
            self._writable.clear()

    def _fetch(self) -> bytes:
        """Return all that waits, up to the largest frame: many small chunks cost as much as one."""
        parts = [self._chunks.popleft()]
        size = len(parts[0])
        while self._chunks and size + len(self._chunks[0]) <= MAX_FRAME_BYTES:
            parts.append(self._chunks.popleft())
            size += len(parts[-1])
        self._unread -= size
        self._association.was_read()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _say_goodbye(self, *, ended: bool) -> None:
        """Say farewell, and wait until it is acknowledged."""
        self._chunks.clear()
        if not ended:
            self._association.say_farewell()
            while self._association.is_open and not self._association.is_done:
                self._settled.clear()
                await self._settled.wait()

    async def _wait_gone(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _finish(self, kind: type[MeshdError], what: str) -> None:
        super()._finish(kind, what)
        self._settled.set()

    def _shut(self) -> None:
        self._tasks += self._session.shut()
