"""Join two ends of a UDP link by a wire under a test's control."""

from collections.abc import Callable, Sequence

from meshd.link.net.udp_sockets import Address, UdpSocket


class UdpWire:
    """All sockets of two nodes, `up` those of the dialling one. A Wire; what is stalled is lost."""

    def __init__(self) -> None:
        self.stalled = {"up": False, "down": False}
        self.sockets: list[WiredSocket] = []

    def opener(self, direction: str) -> Callable[[str], UdpSocket]:
        """Makes sockets that send in this direction."""
        return lambda host: WiredSocket(self, direction, host)

    def cut(self) -> None:
        """Every socket fails, as when its interface goes."""
        for sock in self.sockets:
            sock.fail(OSError(100, "network is down"))
        self.sockets.clear()

    def stall(self, *, up: bool = True, down: bool = True) -> None:
        self.stalled["up"] |= up
        self.stalled["down"] |= down

    def flow(self) -> None:
        self.stalled = {"up": False, "down": False}


class WiredSocket(UdpSocket):
    """A socket whose datagrams a test may lose."""

    def __init__(self, wire: UdpWire, direction: str, host: str) -> None:
        super().__init__(host)
        self._wire = wire
        self._direction = direction
        wire.sockets = [sock for sock in wire.sockets if sock.fileno >= 0]
        wire.sockets.append(self)

    def send_many(self, datagrams: Sequence[bytes], addr: Address) -> None:
        if not self._wire.stalled[self._direction]:
            super().send_many(datagrams, addr)

    def probe(self, datagram: bytes, addr: Address) -> None:
        if not self._wire.stalled[self._direction]:
            super().probe(datagram, addr)
