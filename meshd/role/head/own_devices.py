"""The devices of the head's own machine: which may compute, and which cannot."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from meshd.role.head.split_plan import HeadOptions
from meshd.role.native.device_list import Listing
from meshd.role.native.device_trial import DeviceTrials
from meshd.role.native.devices import pick
from meshd.wire.lease import OfferedDevice


async def own_devices(
    listing: Listing,
    options: HeadOptions,
    device_trials: DeviceTrials,
    operations: Sequence[str],
    on_progress: Callable[[str], Awaitable[None]],
) -> tuple[tuple[OfferedDevice, ...], Mapping[str, str]]:
    """The CPU and the GPUs that the head may use; and those of them that are unfit, each with the reason.

    Raises MeshdError.
    """
    listed = await listing.devices()
    cpu = tuple(device for device in listed if device.name == "CPU")
    asked = options.devices
    if asked and set(asked) <= {"none", "CPU"}:
        return cpu, {}
    gpus = pick(listed, [name for name in asked if name != "CPU"])
    wanted = tuple(device for device in gpus if device.kind == "gpu")
    reasons = await device_trials.unfit(wanted, operations, on_progress)
    unfit = {device.name: why for device, why in zip(wanted, reasons, strict=True) if why}
    return (*cpu, *wanted), unfit
