"""Ask the gateway for a port by PCP (RFC 6887) or NAT-PMP (RFC 6886): one UDP request, repeated until its
answer arrives.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from meshd.base.errors import RemoteProtocolError
from meshd.portmap.interface import GatewayRoute, Language, NotMapped, Pulse
from meshd.wire import portmap as wire
from meshd.wire.address import Proto
from meshd.wire.portmap import Granted, MapRefused, NotForUs, Wish

T = TypeVar("T")
_FIRST_SECONDS = 0.25  # RFC 6886, 3.1; then twice as long each time
_ASK_SECONDS = 3.75  # so four times in all; home routers answer in milliseconds or never
_MAX_DATAGRAMS = 16  # datagrams; more at once is no router's way


class NatPmpRouter:
    """Implements Router."""

    language = Language.NATPMP

    def __init__(self, route: GatewayRoute, *, port: int = wire.ROUTER_PORT) -> None:
        self._route = route
        self._at = (route.gateway, port)

    async def probe(self) -> Pulse:
        try:
            outside = await ask(
                wire.natpmp_ask_address(),
                at=self._at,
                local=self._route.local,
                read=wire.read_natpmp_address,
            )
        except MapRefused as refusal:
            raise NotMapped(refusal.what) from None
        return Pulse(outside.epoch, outside.host)

    async def map(self, wish: Wish) -> Granted:
        granted = await self._map(wish)
        outside = await self.probe()
        return replace(granted, external_host=outside.external_host)

    async def unmap(self, granted: Granted) -> None:
        await self._map(
            Wish(proto=granted.proto, internal_port=granted.internal_port, external_port=0, lifetime=0)
        )

    async def pulse(self, held: Sequence[Granted]) -> Pulse:
        """Ask for its epoch, which tells whether it forgot."""
        return await self.probe()

    async def _map(self, wish: Wish) -> Granted:
        try:
            return await ask(
                wire.natpmp_map(wish),
                at=self._at,
                local=self._route.local,
                read=lambda data: wire.read_natpmp_mapped(data, wish),
            )
        except MapRefused as refusal:
            raise NotMapped(refusal.what) from None


class _RouterReplies(asyncio.DatagramProtocol):
    """The queue of a few replies; an error (nobody listens there) ends the wait."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | Exception] = asyncio.Queue(_MAX_DATAGRAMS)

    def datagram_received(self, data: bytes, _address: object) -> None:
        if not self.queue.full():
            self.queue.put_nowait(data)

    def error_received(self, exc: Exception) -> None:
        if not self.queue.full():
            self.queue.put_nowait(exc)


async def ask(
    question: bytes,
    *,
    at: tuple[str, int],
    local: str,
    read: Callable[[bytes], T],
    seconds: float = _ASK_SECONDS,
) -> T:
    """Return the first reply that `read` accepts. Raises NotMapped: refused, or silent for so many seconds.

    The socket is connected: the kernel drops what comes from anywhere else.
    """
    loop = asyncio.get_running_loop()
    try:
        transport, inbox = await loop.create_datagram_endpoint(
            _RouterReplies, local_addr=(local, 0), remote_addr=at
        )
    except OSError as error:
        raise NotMapped(f"cannot reach the gateway: {error.strerror or error}", silent=True) from None
    try:
        # Repeat with doubled pauses, as datagrams get lost.
        async with asyncio.timeout(seconds):
            pause = _FIRST_SECONDS
            while True:
                transport.sendto(question)
                try:
                    async with asyncio.timeout(pause):
                        return await _answer(inbox, read)
                except TimeoutError:
                    pause *= 2
    except TimeoutError:
        raise NotMapped("the router does not answer", silent=True) from None
    finally:
        transport.close()


async def _answer(inbox: _RouterReplies, read: Callable[[bytes], T]) -> T:
    while True:
        came = await inbox.queue.get()
        if isinstance(came, Exception):
            raise NotMapped("the router does not support it", silent=True)
        try:
            return read(came)
        except NotForUs:
            continue
        except MapRefused:
            raise
        except RemoteProtocolError as error:
            raise NotMapped(f"the router's answer cannot be read: {error.what}") from None


class PcpRouter:
    """Implements Router. `secret` is the node's own and kept: a nonce from it is the same after a restart, so
    that the mapping of a node that was killed is still its own (RFC 6887, 11.2)."""

    language = Language.PCP

    def __init__(self, route: GatewayRoute, *, secret: bytes, port: int = wire.ROUTER_PORT) -> None:
        self._route = route
        self._at = (route.gateway, port)
        self._secret = secret

    async def probe(self) -> Pulse:
        question = wire.pcp_announce(client=self._route.local)
        try:
            epoch = await ask(question, at=self._at, local=self._route.local, read=wire.read_pcp_announced)
        except MapRefused as refusal:
            if refusal.result != wire.PCP_UNKNOWN_QUESTION or refusal.epoch is None:
                raise NotMapped(refusal.what) from None
            epoch = refusal.epoch  # PCP it is, only without this question
        return Pulse(epoch, "")

    async def map(self, wish: Wish) -> Granted:
        nonce = self._nonce(wish.proto, wish.internal_port)
        question = wire.pcp_map(wish, client=self._route.local, nonce=nonce)
        try:
            return await ask(
                question,
                at=self._at,
                local=self._route.local,
                read=lambda data: wire.read_pcp_mapped(data, wish, nonce=nonce),
            )
        except MapRefused as refusal:
            raise NotMapped(refusal.what) from None

    async def unmap(self, granted: Granted) -> None:
        await self.map(
            Wish(proto=granted.proto, internal_port=granted.internal_port, external_port=0, lifetime=0)
        )

    async def pulse(self, held: Sequence[Granted]) -> Pulse:
        """Ask for its epoch, which tells whether it forgot."""
        return await self.probe()

    def _nonce(self, proto: Proto, port: int) -> bytes:
        seed = b"meshd pcp nonce v1\0" + self._secret + f"{proto} {port} {self._route.local}".encode()
        return hashlib.sha256(seed).digest()[: wire.PCP_NONCE_BYTES]
