"""A virtual clock, and a network outside that nobody answers: who is dialled is written down."""

import asyncio
import socket
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.sim.loop import VirtualLoop

SLOW_SECONDS = 2.0
_TYPES = {socket.SOCK_STREAM: "tcp", socket.SOCK_DGRAM: "udp"}


@dataclass(frozen=True, slots=True)
class Dial:
    """What left the node for the network."""

    proto: str
    host: str
    port: int


class OutsideLoop(VirtualLoop):
    """No packet leaves: every connection is refused, no name is known."""

    def __init__(self) -> None:
        super().__init__()
        self.dials: set[Dial] = set()  # that nobody has looked at yet
        self.slow: set[Dial] = set()  # connections there take their time before they are refused
        self._waiting: Counter[Dial] = Counter()
        self.most_waiting: Counter[Dial] = Counter()

    def _note(self, proto: str, address: Any) -> None:
        self.dials.add(Dial(proto, str(address[0]), int(address[1])))

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        self._note(_TYPES[sock.type], address)
        raise ConnectionRefusedError(111, "nobody is outside")

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **rest: Any
    ) -> Any:
        if host is None:
            return await super().create_connection(protocol_factory, host, port, **rest)
        self._note("tcp", (host, port))
        if (dial := Dial("tcp", host, port)) in self.slow:
            await self._wait(dial)
        raise ConnectionRefusedError(111, "nobody is outside")

    async def _wait(self, dial: Dial) -> None:
        self._waiting[dial] += 1
        self.most_waiting[dial] = max(self.most_waiting[dial], self._waiting[dial])
        try:
            await asyncio.sleep(SLOW_SECONDS)
        finally:
            self._waiting[dial] -= 1

    async def create_datagram_endpoint(self, *_args: Any, **_rest: Any) -> Any:
        raise OSError(101, "there is no network")

    async def getaddrinfo(self, host: Any, port: Any, **rest: Any) -> Any:
        """Addresses only, checked as the system's own does it."""
        return socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST, type=rest.get("type", 0))
