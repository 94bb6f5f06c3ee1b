"""The devices of the head's own machine: which may compute, and which cannot."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from meshd.devices.cpu_cache import CpuCache
from meshd.devices.device_list import Listing
from meshd.devices.device_trial import DeviceTrials, listing_key
from meshd.devices.devices import only_cpu, pick_for_head
from meshd.devices.interface import ListedDevices, NativeBuild, RolePaths
from meshd.plan.wishes import HeadOptions
from meshd.process.interface import RunToEnd
from meshd.wire.lease import OfferedDevice


class OwnDevices:
    """`find` for each run: what is free changes, and a trial that was passed is not made again."""

    def __init__(
        self, native: NativeBuild, run_to_end: RunToEnd, paths: RolePaths, options: HeadOptions
    ) -> None:
        choose = partial(pick_for_head, asked=options.devices)
        cpu = CpuCache(paths.cpu_cache, listing_key(native, options.machine))
        self._listing = Listing(
            native,
            run_to_end,
            paths,
            machine=options.machine,
            choose=choose,
            cpu=cpu if only_cpu(options.devices) else None,
        )
        self._trials = DeviceTrials(native, run_to_end, paths, machine=options.machine)

    @property
    def notes(self) -> tuple[str, ...]:
        """The devices that failed their last trial, a line each."""
        return self._trials.notes

    @property
    def listed(self) -> ListedDevices:
        """As they were found last."""
        return self._listing.last

    async def ahead(self) -> None:
        """List them for the next `find`, if that comes soon: nothing of an earlier run holds memory now."""
        await self._listing.ahead()

    async def find(
        self, operations: Sequence[str], on_progress: Callable[[str], Awaitable[None]]
    ) -> tuple[tuple[OfferedDevice, ...], Mapping[str, str]]:
        """The CPU and the GPUs that the head may use; and those of them that are unfit, each with the reason.

        Raises MeshdError.
        """
        found = await self._listing.as_ahead()
        gpus = [device for device in found if device.kind == "gpu"]
        reasons = await self._trials.unfit(gpus, operations, on_progress)
        return found, {device.name: why for device, why in zip(gpus, reasons, strict=True) if why}
