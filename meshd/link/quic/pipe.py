"""One QUIC connection as a byte pipe: back-pressure both ways, bounded buffers, timers, keep-alive.

The engine (engine.py) says what to send and when; the port (a socket of our own, the listener's, or a
path that ICE found) sends it. What waits where, at most: 4 KiB unread before the proof and 4 MiB after it,
which is what the other side is given credit for; on the way out 64 KiB plus one send that was never sent,
and 16 MiB that is not confirmed.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from meshd.base.errors import Broken, Closed, EndOfStream, RemoteProtocolError
from meshd.link.buffered_pipe import SEND_HIGH_BYTES, BufferedPipe
from meshd.link.net.udp_sockets import ETHERNET_MTU, Origin

if TYPE_CHECKING:
    from meshd.link.quic.engine import QuicEngine

SEND_LOW_BYTES = 32 << 10
MAX_HELD_BYTES = 16 << 20  # sent or not, and not confirmed
RECEIVE_BYTES = 256 << 10  # one call of receive
KEEP_ALIVE_PARTS = 3  # a sign of life is asked for after this part of the idle time
_SMALL_ON_AVERAGE = 4 << 10  # smaller pieces are put together first


class Port(Protocol):
    """The carrier of a pipe's datagrams."""

    @property
    def full(self) -> bool:
        """True while it takes no more; `QuicPipe.transmit` is called when that ends."""
        ...

    def send(self, datagrams: Sequence[bytes], origin: Origin) -> None: ...

    def probe(self, datagram: bytes, origin: Origin) -> None:
        """Send without being fragmented on the way."""
        ...

    def mtu(self, origin: Origin) -> int:
        """Return the bytes of an IP packet that the first hop towards `origin` takes."""
        ...

    def renamed(self, pipe: "QuicPipe", new: Sequence[bytes], old: Sequence[bytes]) -> None:
        """Route datagrams to the `new` ids to `pipe`, and those to `old` not any more."""
        ...

    def forget(self, pipe: "QuicPipe") -> None:
        """Forget `pipe`: nothing of it is sent or received any more."""
        ...


class QuicPipe(BufferedPipe):
    """A RawPipe (secure/handshake.py) over QUIC."""

    _breath_bytes = 256 << 10
    _code = "quic"

    def __init__(self, engine: "QuicEngine", port: Port, *, place: str, idle_seconds: float) -> None:
        super().__init__()
        self.engine = engine
        self.remote = place  # host:port, for people
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._keep_alive = idle_seconds / KEEP_ALIVE_PARTS
        self._heard = self._pinged = self._loop.time()
        self._came = bytearray()
        self._settled = asyncio.Event()  # nothing more will be sent or received
        self._dropped = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    # --- what the port calls

    def datagram(self, data: bytes, origin: Origin, now: float) -> None:
        """Handle one datagram; `advance` must follow."""
        self._heard = now
        try:
            self.engine.receive_datagram(data, origin, now)
        except Exception:
            self.fail(f"the connection to `{self.remote}` failed because of a bug")
            raise  # to be seen: no datagram may get so far

    def advance(self) -> None:
        """Pass on received data, and send due packets."""
        if self._dropped:
            return
        engine = self.engine
        engine.poll()
        if engine.new_ids or engine.old_ids:
            self._port.renamed(self, engine.new_ids, engine.old_ids)
            engine.new_ids, engine.old_ids = [], []
        if engine.inbox:
            self._take_in()
        if engine.secured and not self._secured:
            self._secured = True
            self._readable.set()
        self.transmit()
        if engine.ended:
            self._finish(EndOfStream, f"`{self.remote}` ended the link")
            self.engine.close()  # all has arrived; a link has no half that could stay open
            self.transmit()
            self._drop()
        elif engine.gone is not None:
            kind = Broken if engine.secured else RemoteProtocolError
            self._finish(kind, f"the connection to `{self.remote}` broke: {engine.gone}")
            self._drop()

    def transmit(self) -> None:
        """Send due packets, and set the timer."""
        if self._dropped or self._port.full:
            return
        engine = self.engine
        now = self._loop.time()
        if not engine.quiet(now):
            datagrams = engine.datagrams_to_send(now)
            if datagrams:
                self._send_out(datagrams)
            probe, origin = engine.path_probe(now), engine.get_peer_address()
            if probe is not None and origin is not None:
                self._port.probe(probe, origin)
        self._set_timer(now)
        if self._end is None:
            self._mark_room()
        elif engine.finished:
            self._settled.set()

    def fail(self, what: str) -> None:
        """End the pipe: the port cannot carry it any more."""
        self._finish(Broken, what)
        self._drop()

    # --- what the owner calls

    @property
    def origin(self) -> Origin | None:
        """The present address of the other side."""
        return self.engine.get_peer_address()

    async def secure(self) -> None:
        """Wait for the end of the handshake. Raises what ended the connection meanwhile, too."""
        await super().secure()
        self._check()

    def binding(self) -> bytes:
        """Return the SHA-256 of the listener's certificate; for the dialler, after `secure`.

        Raises RemoteProtocolError when the listener showed none.
        """
        binding = self.engine.binding()
        if not binding:
            raise RemoteProtocolError("the listener showed no certificate", code="quic")
        return binding

    def widen(self) -> None:
        """Open full windows: the other side has proven who it is."""
        if self._end is None:
            origin = self.origin
            self.engine.widen(ETHERNET_MTU if origin is None else self._port.mtu(origin))
            self.transmit()

    def abort(self) -> None:
        """Drop the connection at once; the other side is told, without waiting."""
        self._finish(Closed, "this link was closed")
        if not self._dropped:
            self.engine.close()
            self.transmit()
            self._drop()

    # --- inside

    async def _say_goodbye(self, *, ended: bool) -> None:
        self._came.clear()
        if not self._dropped:
            self.engine.finish()
            self.transmit()
            await self._settled.wait()

    def _take_in(self) -> None:
        engine = self.engine
        data = engine.inbox[0] if len(engine.inbox) == 1 else b"".join(engine.inbox)
        engine.inbox.clear()
        if self._end is not None:
            return  # closing: whatever comes now is thrown away, and no credit given for it
        if self._take is not None and not self._unread and self._take(data):
            engine.consume(len(data))
        else:
            self._came += data
            self._unread += len(data)
            self._readable.set()

    def _send_out(self, datagrams: list[tuple[bytes, Origin]]) -> None:
        first = datagrams[0][1]
        if all(origin is first for _, origin in datagrams):
            self._port.send([data for data, _ in datagrams], first)
            return
        for data, origin in datagrams:  # a path that is being validated
            self._port.send([data], origin)

    def _put(self, data: Sequence[bytes | memoryview], size: int) -> None:
        if len(data) > 1 and size < len(data) * _SMALL_ON_AVERAGE:
            data = [b"".join(data)]
        self.engine.write(data)
        self.transmit()
        self._mark_room()

    def _fetch(self) -> bytes:
        chunk = bytes(self._came[:RECEIVE_BYTES])
        del self._came[: len(chunk)]
        self._unread -= len(chunk)
        if self._end is None and self.engine.consume(len(chunk)):
            self.transmit()
        return chunk

    def _mark_room(self) -> None:
        unsent, held = self.engine.unsent, self.engine.held
        if unsent >= SEND_HIGH_BYTES or held >= MAX_HELD_BYTES:
            self._writable.clear()
        elif unsent <= SEND_LOW_BYTES:
            self._writable.set()

    def _set_timer(self, now: float) -> None:
        due = max(self._heard, self._pinged) + self._keep_alive
        engine_due = self.engine.get_timer()
        if engine_due is not None and engine_due < due:
            due = engine_due
        if self._timer is not None:
            if self._timer_at <= due:
                return  # it comes early, and is set again then: cheaper than a new one for each datagram
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = max(self._loop.time(), self._timer_at)
        if now >= max(self._heard, self._pinged) + self._keep_alive:
            self._pinged = now
            if self.engine.secured:
                self.engine.send_ping(0)
        self.engine.handle_timer(now)
        self.advance()

    def _drop(self) -> None:
        if self._dropped:
            return
        self._dropped = True
        if self._timer is not None:
            self._timer.cancel()
        self._settled.set()
        self._port.forget(self)
