"""List the devices of this machine and their free memory. One listing runs at a time.

A listing starts the driver of each GPU, which takes most of a second, so a listing is reused where it must
still hold: the machine has the same hardware, and hardly any memory was used at the time of the listing. Less
may be free by now; a mesh-server that starts on such a listing reports how much is free (mesh_server.py).
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.files import replace_file
from meshd.base.resource_limits import memory_limit
from meshd.devices.devices import list_machine, nearly_free, parse_devices, within
from meshd.devices.interface import ListedDevices, NativeBuild, RolePaths
from meshd.process.interface import RunToEnd
from meshd.wire.lease import OfferedDevice

CPU = "CPU"
_MOST_BYTES = 1024
LOG = log.get("serve")
Choose = Callable[[Sequence[OfferedDevice]], tuple[OfferedDevice, ...]]
AHEAD_SECONDS = 3.0  # a listing that was begun ahead may be used for this long
_HARDWARE = (
    "sys/bus/pci/devices",
    "dev/dri",
    "dev/nvidia-caps",
)  # folders with a name for each card, or for each of its parts
_NODES = "nvidia*"  # in /dev; there is none while a driver is unloaded


class CpuCache:
    """The CPU as mesh-server listed it last, in a file, for a head that uses no other device.

    A listing starts the drivers of all GPUs. Without `path` nothing is kept. `key`: from
    device_trial.listing_key. If the file is lost or damaged, the CPU is listed again. Several daemons may
    share it: the last one to write wins.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self._path = path
        self._key = key
        self.cpu = self._read()
        """The CPU; None if this program has not listed it since this machine started."""

    def keep(self, listed: Sequence[OfferedDevice]) -> None:
        """Remember the CPU of a listing. A file that cannot be written is no error."""
        found = next((device for device in listed if device.name == CPU), None)
        if self._path is None or found is None or found == self.cpu:
            return
        self.cpu = found
        line = f"device {CPU} cpu - {found.total_bytes} {found.free_bytes} {found.description}"
        try:
            replace_file(self._path, f"{self._key}\n{line}\n".encode())
        except OSError as error:
            LOG.warning("device_not_kept", why=error.strerror)

    def _read(self) -> OfferedDevice | None:
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as file:
                key, *lines = file.read(_MOST_BYTES).decode("utf-8", "replace").splitlines() or [""]
        except OSError:
            return None
        listed = parse_devices(lines, "") if key == self._key else ()
        return next((device for device in listed if device.name == CPU), None)


def hardware_names(root: Path = Path("/")) -> tuple[str, ...]:
    """Return names that change when a card comes or goes; empty if they cannot be seen.

    Takes milliseconds.
    """
    names = [path.name for path in root.glob(f"dev/{_NODES}")]
    for folder in _HARDWARE:
        with suppress(OSError):
            names += [path.name for path in (root / folder).iterdir()]
    return tuple(sorted(names))


class Listing:
    """The listings of this machine's devices.

    Callers that ask while a listing runs share the next one, which begins after they asked. A listing that
    was begun `ahead` answers one question soon after it (`as_ahead`): the driver of a GPU takes most of a
    second to start, and the head has other things to do meanwhile. A lease may use a listing of any age
    (`for_lease`): one lease, and the next one after `held`.
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
        """Use `choose` to pick the relevant devices; it raises MeshdError if one is missing.

        `cpu`: only the CPU is relevant, and is listed only if this cache does not have it.
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
        self._listed: tuple[OfferedDevice, ...] = ()  # all devices of the machine, as listed last
        self._had: tuple[str, ...] = ()  # the hardware at that time
        self._may_hold = False  # for one more lease
        self.last = ListedDevices()

    async def ahead(self) -> None:
        """List the devices for the next question. Failures are reported to the callers that ask."""
        self._ahead = self._asked + 1, asyncio.get_running_loop().time()
        with suppress(MeshdError):
            await self.devices()

    async def recent(self) -> tuple[OfferedDevice, ...]:
        """Return the devices of the last listing, or list them if there is none. Raises MeshdError."""
        return self.last.devices or await self.devices()

    async def as_ahead(self) -> tuple[OfferedDevice, ...]:
        """Return the devices as they are now, or from a listing begun `ahead` a moment ago, once.

        Raises MeshdError.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and asyncio.get_running_loop().time() - ahead[1] < AHEAD_SECONDS:
            return await self._from_listing(ahead[0])
        return await self.devices()

    async def for_lease(self, *, alone: bool) -> tuple[tuple[OfferedDevice, ...], bool]:
        """Return the devices, and whether they come from an earlier listing: then less may be free now.

        `alone`: no lease is in force. A listing serves one lease; see `held`. Raises MeshdError.
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
        """Note that a lease was of use and ended as its head wanted: the next lease may reuse the listing."""
        self._may_hold = nearly_free(self._listed)

    async def devices(self) -> tuple[OfferedDevice, ...]:
        """Return the devices as they are now. Raises MeshdError."""
        self._asked += 1
        return await self._from_listing(self._asked)

    async def _from_listing(self, mine: int) -> tuple[OfferedDevice, ...]:
        """Return the devices from a listing that began after the question with this number.

        Raises MeshdError.
        """
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
