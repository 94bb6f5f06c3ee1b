"""The devices of the head's own machine: which may compute, and which cannot."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from meshd.process.interface import RunToEnd
from meshd.role.head.split_plan import HeadOptions
from meshd.role.interface import NativeBuild, RolePaths
from meshd.role.native.device_list import Listing
from meshd.role.native.device_trial import DeviceTrials
from meshd.role.native.devices import pick
from meshd.wire.lease import OfferedDevice


class OwnDevices:
    """`find` for each run: what is free changes, and a trial that was passed is not made again."""

    def __init__(
        self, native: NativeBuild, run_to_end: RunToEnd, paths: RolePaths, options: HeadOptions
    ) -> None:
        self._listing = Listing(native, run_to_end, paths, machine=options.machine)
        self._trials = DeviceTrials(native, run_to_end, paths, machine=options.machine)
        self._asked = options.devices

    @property
    def notes(self) -> tuple[str, ...]:
        """The devices that failed their last trial, a line each."""
        return self._trials.notes

    async def find(
        self, operations: Sequence[str], on_progress: Callable[[str], Awaitable[None]]
    ) -> tuple[tuple[OfferedDevice, ...], Mapping[str, str]]:
        """The CPU and the GPUs that the head may use; and those of them that are unfit, each with the reason.

        Raises MeshdError.
        """
        listed = await self._listing.devices()
        cpu = tuple(device for device in listed if device.name == "CPU")
        if self._asked and set(self._asked) <= {"none", "CPU"}:
            return cpu, {}
        gpus = pick(listed, [name for name in self._asked if name != "CPU"])
        wanted = tuple(device for device in gpus if device.kind == "gpu")
        reasons = await self._trials.unfit(wanted, operations, on_progress)
        unfit = {device.name: why for device, why in zip(wanted, reasons, strict=True) if why}
        return (*cpu, *wanted), unfit
