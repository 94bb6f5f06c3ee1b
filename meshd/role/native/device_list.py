"""The devices of this machine and what is free of them, asked of the program by one at a time."""

import asyncio

from meshd.role.interface import Kit
from meshd.role.native.devices import list_devices
from meshd.wire.lease import OfferedDevice


class Listing:
    """Those who ask while a listing runs share the next one: it was begun after they asked."""

    def __init__(self, kit: Kit, *, machine: str) -> None:
        self._kit = kit
        self._machine = machine
        self._running = asyncio.Lock()
        self._asked = 0
        self._covers = 0
        self._devices: tuple[OfferedDevice, ...] = ()

    async def devices(self) -> tuple[OfferedDevice, ...]:
        """As they are now. Raises MeshdError."""
        self._asked += 1
        mine = self._asked
        async with self._running:
            if self._covers < mine:
                covers = self._asked
                self._devices = await list_devices(
                    self._kit.native.rpc_server,
                    patched=self._kit.native.patched,
                    machine=self._machine,
                    run_to_end=self._kit.run_to_end,
                    log=self._kit.logs / "devices.log",
                )
                self._covers = covers
            return self._devices
