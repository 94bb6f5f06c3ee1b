"""Two QUIC engines in memory and a wire between them, in virtual time."""

from collections.abc import Callable

from meshd.identity.tls_certificate import make_link_certificate
from meshd.link.net.udp_sockets import Origin
from meshd.link.quic.engine import QuicEngine, Reception, dialler_settings, listener_settings, start_dialling

NEAR, FAR = Origin(("192.0.2.1", 1000)), Origin(("192.0.2.2", 2000))
CERTIFICATE = make_link_certificate()
LISTENER = listener_settings(CERTIFICATE, idle_seconds=15.0)
DIALLER = dialler_settings(idle_seconds=15.0)


class Pair:
    """A dialling and an accepting engine; `passes` may lose datagrams, `near` is the dialler's address."""

    def __init__(self, *, busy: bool = False) -> None:
        self.now = 1.0
        self.busy = busy
        self.cheats = False  # a test sends what the engine never would
        self.near = NEAR
        self.passes: Callable[[bytes], bool] = lambda datagram: True
        self.reception = Reception(LISTENER)
        self.dialler = start_dialling(DIALLER, FAR, self.now)
        self.listener: QuicEngine | None = None
        self.answers: list[bytes] = []  # of the reception, without a connection
        self.sent_up = self.sent_down = 0

    @property
    def far(self) -> QuicEngine:
        """The listener's end."""
        assert self.listener is not None
        return self.listener

    def turn(self) -> bool:
        """Carry what both have to send, once; false when there was nothing."""
        self.now += 0.001
        moved = False
        for data, _ in self.due(self.dialler):
            moved = True
            self.sent_up += len(data)
            if self.passes(data):
                self.to_listener(data)
        if self.listener is not None:
            self.listener.poll()
            for data, origin in self.due(self.listener):
                moved = True
                self.sent_down += len(data)
                if self.passes(data) and origin == self.near:
                    self.dialler.receive_datagram(data, FAR, self.now)
        self.dialler.poll()
        return moved

    def due(self, engine: QuicEngine) -> list[tuple[bytes, Origin]]:
        at = engine.get_timer()
        if at is not None and at <= self.now:
            engine.handle_timer(self.now)
            engine.poll()
        quiet = engine.quiet(self.now)
        due = engine.datagrams_to_send(self.now)
        assert not (quiet and due) or self.cheats, "something was due"
        probe, origin = engine.path_probe(self.now), engine.get_peer_address()
        if probe is not None and origin is not None:
            due.append((probe, origin))
        return due

    def to_listener(self, data: bytes) -> None:
        if self.listener is not None:
            self.listener.receive_datagram(data, self.near, self.now)
            return
        answer = self.reception.first(data, self.near, self.now, busy=self.busy)
        if isinstance(answer, bytes):
            self.answers.append(answer)
            self.dialler.receive_datagram(answer, FAR, self.now)
        elif answer is not None:
            self.listener = answer[0]

    def run(self, seconds: float = 2.0) -> None:
        """Until nothing has moved for a while, or that time has passed."""
        end, still = self.now + seconds, 0
        while self.now < end and still < 100:
            still = 0 if self.turn() else still + 1

    def connect(self, *, proven: bool = True) -> None:
        """To the end of the handshake, and beyond the proof."""
        self.run()
        assert self.dialler.secured and self.far.secured
        self.dialler.write([b"hello"])
        self.run()
        assert b"".join(self.far.inbox) == b"hello"
        self.far.inbox.clear()
        self.far.consume(5)
        if proven:
            self.dialler.widen()
            self.far.widen()
            self.run()
