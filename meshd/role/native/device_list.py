"""The devices of this machine and what is free of them, asked of the program by one at a time."""

import asyncio
from collections.abc import Callable, Sequence

from meshd.process.interface import RunToEnd
from meshd.role.interface import ListedDevices, NativeBuild, RolePaths
from meshd.role.native.devices import list_devices
from meshd.wire.lease import OfferedDevice

Choose = Callable[[Sequence[OfferedDevice]], tuple[OfferedDevice, ...]]


class Listing:
    """Those who ask while a listing runs share the next one: it was begun after they asked."""

    def __init__(
        self,
        native: NativeBuild,
        run_to_end: RunToEnd,
        paths: RolePaths,
        *,
        machine: str,
        choose: Choose,
    ) -> None:
        """`choose` picks those of interest, and raises MeshdError where one is missing."""
        self._native = native
        self._run_to_end = run_to_end
        self._log = paths.logs / "devices.log"
        self._machine = machine
        self._choose = choose
        self._running = asyncio.Lock()
        self._asked = 0
        self._covers = 0
        self.last = ListedDevices()

    async def recent(self) -> tuple[OfferedDevice, ...]:
        """As they were listed last. Raises MeshdError."""
        return self.last.devices or await self.devices()

    async def devices(self) -> tuple[OfferedDevice, ...]:
        """As they are now. Raises MeshdError."""
        self._asked += 1
        mine = self._asked
        async with self._running:
            if self._covers < mine:
                covers = self._asked
                listed = await list_devices(
                    self._native.mesh_server,
                    machine=self._machine,
                    run_to_end=self._run_to_end,
                    log=self._log,
                )
                self.last = ListedDevices(self._choose(listed), asyncio.get_running_loop().time())
                self._covers = covers
            return self.last.devices
