"""NAT-PMP (RFC 6886) with the gateway."""

from collections.abc import Sequence
from dataclasses import replace

from meshd.portmap.exchange import ask
from meshd.portmap.interface import GatewayRoute, Language, NotMapped, Pulse
from meshd.wire import portmap as wire
from meshd.wire.portmap import Granted, MapRefused, Wish


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
