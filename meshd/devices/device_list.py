"""The devices of this machine and what is free of them, asked of the program by one at a time.

A listing starts the driver of each GPU, which takes most of a second, so one is used again where it must
still hold: the machine has the same hardware, and hardly any memory was used when it was made. Less may be
free by now; a mesh-server that is started on such a listing says at its start how much is (mesh_server.py).
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.base.resource_limits import memory_limit
from meshd.devices.cpu_cache import CpuCache
from meshd.devices.devices import list_machine, nearly_free, within
from meshd.devices.interface import ListedDevices, NativeBuild, RolePaths
from meshd.process.interface import RunToEnd
from meshd.wire.lease import OfferedDevice

Choose = Callable[[Sequence[OfferedDevice]], tuple[OfferedDevice, ...]]


AHEAD_SECONDS = 3.0  # for which a listing that was begun ahead may be used
_HARDWARE = (
    "sys/bus/pci/devices",
    "dev/dri",
    "dev/nvidia-caps",
)  # folders with a name for each card, or part
_NODES = "nvidia*"  # in /dev; of a driver that was unloaded there is none


def hardware_names(root: Path = Path("/")) -> tuple[str, ...]:
    """Return what tells that a card came or went, in some milliseconds; nothing where it cannot be seen."""
    names = [path.name for path in root.glob(f"dev/{_NODES}")]
    for folder in _HARDWARE:
        with suppress(OSError):
            names += [path.name for path in (root / folder).iterdir()]
    return tuple(sorted(names))


class Listing:
    """Those who ask while a listing runs share the next one: it was begun after they asked.

    One that was begun `ahead` answers one question soon after it (`as_ahead`): the driver of a GPU takes most
    of a second to start, and the head has other things to do meanwhile. For a lease a listing of any age may
    do (`for_lease`): one lease, and the next one if it has `held`.
    """

    def __init__(
        self,
        native: NativeBuild,
        run_to_end: RunToEnd,
        paths: RolePaths,
        *,
        machine: str,
        choose: Choose,
        hardware: Callable[[], tuple[str, ...]] = hardware_names,
        cpu: CpuCache | None = None,
    ) -> None:
        """`choose` picks those of interest, and raises MeshdError where one is missing.

        `cpu`: the CPU is all that is of interest, and is listed only if it is not known there.
        """
        self._native = native
        self._run_to_end = run_to_end
        self._log = paths.logs / "devices.log"
        self._machine = machine
        self._choose = choose
        self._hardware = hardware
        self._cpu = cpu
        self._running = asyncio.Lock()
        self._asked = 0
        self._covers = 0
        self._ahead: tuple[int, float] | None = None  # the number of its question, and when it was asked
        self._listed: tuple[OfferedDevice, ...] = ()  # all of the machine, as it was listed last
        self._had: tuple[str, ...] = ()  # hardware, then
        self._may_hold = False  # for one more lease
        self.last = ListedDevices()

    async def ahead(self) -> None:
        """List the devices for the next question. What fails is told to those who ask."""
        self._ahead = self._asked + 1, asyncio.get_running_loop().time()
        with suppress(MeshdError):
            await self.devices()

    async def recent(self) -> tuple[OfferedDevice, ...]:
        """As they were listed last. Raises MeshdError."""
        return self.last.devices or await self.devices()

    async def as_ahead(self) -> tuple[OfferedDevice, ...]:
        """As they are now, or were when a listing was begun `ahead` a moment ago, once. Raises MeshdError."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and asyncio.get_running_loop().time() - ahead[1] < AHEAD_SECONDS:
            return await self._from_listing(ahead[0])
        return await self.devices()

    async def for_lease(self, *, alone: bool) -> tuple[tuple[OfferedDevice, ...], bool]:
        """Return the devices, and whether they are as they were listed before: then less may be free now.

        `alone`: no lease is in force. A listing does for one lease; see `held`. Raises MeshdError.
        """
        holds, self._may_hold = self._may_hold, False
        if alone and holds and self._hardware() == self._had:
            devices = self._choose(within(self._listed, memory_limit()))
            self.last = replace(self.last, devices=devices)
            return devices, True
        devices = await self.devices()
        self._may_hold = False
        return devices, False

    def held(self) -> None:
        """Note that a lease was of use and ended as its head wanted: the next one may have the listing."""
        self._may_hold = nearly_free(self._listed)

    async def devices(self) -> tuple[OfferedDevice, ...]:
        """As they are now. Raises MeshdError."""
        self._asked += 1
        return await self._from_listing(self._asked)

    async def _from_listing(self, mine: int) -> tuple[OfferedDevice, ...]:
        """From a listing that was begun after the question with this number."""
        async with self._running:
            if self._covers < mine:
                covers = self._asked
                had = self._hardware()
                self._listed = await self._list()
                self._had, self._may_hold = had, nearly_free(self._listed)
                devices = self._choose(within(self._listed, memory_limit()))
                self.last = ListedDevices(devices, asyncio.get_running_loop().time())
                self._covers = covers
            return self.last.devices

    async def _list(self) -> tuple[OfferedDevice, ...]:
        if self._cpu is not None and self._cpu.cpu is not None:
            return (self._cpu.cpu,)
        listed = await list_machine(
            self._native.mesh_server, machine=self._machine, run_to_end=self._run_to_end, log=self._log
        )
        if self._cpu is not None:
            self._cpu.keep(listed)
        return listed
