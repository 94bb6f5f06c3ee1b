"""A virtual clock, and a network outside that nobody answers: who is dialled, for whom, is written down."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import Context, ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVarTuple, Unpack

from meshd.base.admission import TokenBucket
from meshd.base.peer_limits import DIALS
from meshd.identity.keys import PeerId
from meshd.link.interface import Dialer, Link, Transport
from meshd.link.quic.sockets import DialPort
from meshd.wire.dialable import Dialable

from tests.hostile.turns import Turns
from tests.sim.loop import VirtualLoop

SLOW_SECONDS = 2.0
_Args = TypeVarTuple("_Args")
_TYPES = {socket.SOCK_STREAM: "tcp", socket.SOCK_DGRAM: "udp"}
_DIALLING: ContextVar[tuple[str, PeerId] | None] = ContextVar("dialling", default=None)


@dataclass(frozen=True, slots=True)
class Dial:
    """A place outside to which the node dialled."""

    proto: str
    host: str
    port: int


class Noted:
    """A dialer of `name`'s that lets the network know for which peer it dials."""

    def __init__(self, dialer: Dialer, name: str) -> None:
        self._dialer = dialer
        self._name = name

    @property
    def transport(self) -> Transport:
        """Return the transport of the dialer."""
        return self._dialer.transport

    async def dial(self, peer: PeerId, candidates: Sequence[Dialable]) -> Link:
        """As it does."""
        before = _DIALLING.set((self._name, peer))
        try:
            return await self._dialer.dial(peer, candidates)
        finally:
            _DIALLING.reset(before)


class OutsideLoop(VirtualLoop):
    """No packet leaves: every connection is refused, no name is known."""

    def __init__(self) -> None:
        self.turns = Turns()
        super().__init__()
        self.dials: set[Dial] = set()  # that nobody has looked at yet
        self.too_many: list[str] = []  # connections beyond the share of those they were made for
        self.dialled: Counter[tuple[str, PeerId]] = Counter()
        self.by_proto: Counter[str] = Counter()
        self.slow: set[Dial] = set()  # connections there take their time before they are refused
        self._shares: dict[tuple[str, PeerId], TokenBucket] = {}
        self._waiting: Counter[Dial] = Counter()
        self.most_waiting: Counter[Dial] = Counter()

    # The processor.

    def _turn(self) -> None:
        self.turns.end()

    def call_soon(
        self,
        callback: Callable[[Unpack[_Args]], object],
        *args: *_Args,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Also each step of each task."""
        return super().call_soon(partial(self.turns.run, callback, *args), context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Args]], object],
        *args: *_Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Also `call_later`."""
        return super().call_at(when, partial(self.turns.run, callback, *args), context=context)

    # The network.

    def _note(self, proto: str, address: Any) -> None:
        self.dials.add(Dial(proto, str(address[0]), int(address[1])))
        self.by_proto[proto] += 1

    def _count(self, host: str) -> None:
        whom = _DIALLING.get()
        if whom is None:
            return
        self.dialled[whom] += 1
        share = self._shares.setdefault(whom, DIALS.bucket(self.time()))
        if not share.spend(1, self.time()):
            name, peer = whom
            self.too_many.append(f"{name} dialled {host} and others for {peer.short} too often")

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        self._note(_TYPES[sock.type], address)
        self._count(str(address[0]))
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

    async def create_datagram_endpoint(
        self, protocol_factory: Any, local_addr: Any = None, remote_addr: Any = None, **_rest: Any
    ) -> Any:
        if remote_addr is not None:
            self._note("udp", remote_addr)
        raise OSError(101, "there is no network")

    def udp_port(self, candidate: Dialable) -> DialPort:
        """The socket for a QUIC dial, which there is none of. Raises OSError."""
        self._note("udp", (candidate.host, candidate.port))
        self._count(candidate.host)
        raise OSError(101, "there is no network")

    async def getaddrinfo(self, host: Any, port: Any, **rest: Any) -> Any:
        """Addresses only, checked as the system's own does it."""
        return socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST, type=rest.get("type", 0))
