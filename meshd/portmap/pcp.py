"""PCP (RFC 6887) with the gateway."""

import hashlib
from collections.abc import Sequence

from meshd.portmap.exchange import ask
from meshd.portmap.interface import GatewayRoute, Language, NotMapped, Pulse
from meshd.wire import portmap as wire
from meshd.wire.address import Proto
from meshd.wire.portmap import Granted, MapRefused, Wish


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
