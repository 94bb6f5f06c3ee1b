"""Punched TCP links on one machine: the signals lead the dialler through a proxy of its own."""

import asyncio
from dataclasses import replace

from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.link.interface import Signals
from meshd.link.punch import PunchLinks
from meshd.wire.address import Candidate
from meshd.wire.signal import PunchGo, PunchReady, decode_punching

from tests.conformance.nodes import Node
from tests.conformance.wire import TcpProxy

LOOPBACK = "127.0.0.1"


class Proxies:
    """A Wire of many proxies: one for each attempt."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._proxies: list[TcpProxy] = []
        self._stalled: tuple[bool, bool] | None = None

    async def to(self, target: int) -> int:
        """The port of a new one in front of `target`."""
        proxy = TcpProxy(self._owner, LOOPBACK, target)
        ready = asyncio.Event()
        self._owner.start(proxy.serve(ready), name="proxy")
        await ready.wait()
        self._proxies.append(proxy)
        if self._stalled is not None:
            proxy.stall(up=self._stalled[0], down=self._stalled[1])
        return proxy.port

    def cut(self) -> None:
        for proxy in self._proxies:
            proxy.cut()

    def stall(self, *, up: bool = True, down: bool = True) -> None:
        self._stalled = (up, down)
        for proxy in self._proxies:
            proxy.stall(up=up, down=down)

    def flow(self) -> None:
        self._stalled = None
        for proxy in self._proxies:
            proxy.flow()


class ThroughProxies:
    """Signals that put a proxy before each address of the answering side and hide those of the dialler."""

    def __init__(self, signals: Signals, proxies: Proxies) -> None:
        self._signals = signals
        self._proxies = proxies

    async def send(self, peer: PeerId, payload: bytes) -> None:
        match decode_punching(payload):
            case PunchReady(candidates=(one, *_)) as ready:
                port = await self._proxies.to(one.port)
                payload = replace(ready, candidates=(Candidate(LOOPBACK, port),)).encode()
            case PunchGo() as go:
                payload = replace(go, candidates=()).encode()
            case _:
                pass
        await self._signals.send(peer, payload)

    async def receive(self) -> tuple[PeerId, bytes]:
        return await self._signals.receive()


def punching(node: Node, signals: Signals) -> PunchLinks:
    """Links of a node on this machine alone."""
    return PunchLinks(node.now, signals, servers=lambda: (), hosts=[LOOPBACK])
