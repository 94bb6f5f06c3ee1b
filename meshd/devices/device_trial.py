"""Try whether a device computes what a model needs, in a separate process, before it is used.

A device's own claims are trusted elsewhere (docs/native-backend.md). A trial that crashes, hangs or computes
nonsense ends nothing but itself.
"""

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable, Sequence

from meshd.base import log
from meshd.base.tasks import Owner, first_error
from meshd.devices import command_lines
from meshd.devices.devices import twin
from meshd.devices.interface import NativeBuild, RolePaths
from meshd.devices.trial_cache import TrialCache, trial_key
from meshd.devices.trial_report import TrialReport
from meshd.process.interface import ChildSpec, RunToEnd
from meshd.wire.lease import OfferedDevice

REFERENCE = "CPU"  # the device with which all others are compared
STILL_SECONDS = 300.0  # without a line of output: a driver may compile its kernels for the first one
AGAIN_SECONDS = 600.0  # until a device that failed is tried again: its memory may just have been taken
_TELL_SECONDS = 2.0
# Variables that choose a device and how it computes.
_DECIDING = ("GGML_", "CUDA_", "HIP_", "ROCR_", "VK_", "MESA_", "MTL_")
LOG = log.get("worker")

OnProgress = Callable[[str], Awaitable[None]]


class DeviceTrials:
    """The trials of this machine's devices. One trial runs at a time."""

    def __init__(self, native: NativeBuild, run_to_end: RunToEnd, paths: RolePaths, *, machine: str) -> None:
        """Read the cache. `machine` as in WorkerOffer: it changes with a restart."""
        self._native = native
        self._run_to_end = run_to_end
        self._log = paths.logs / "device-trial.log"
        self._machine = machine
        self._passed = TrialCache(paths.trial_cache)
        self._failed: dict[str, tuple[str, float]] = {}  # the reason and the time of each failure, by key
        self._unfit: dict[str, str] = {}  # the reason, by device
        self._running = asyncio.Lock()

    @property
    def notes(self) -> tuple[str, ...]:
        """The devices that failed their last trial, one line each."""
        return tuple(f"device {name} is not used: {why}" for name, why in self._unfit.items())

    async def unfit(
        self,
        devices: Sequence[OfferedDevice],
        operations: Sequence[str],
        on_progress: OnProgress,
        admit: Callable[[], None] = lambda: None,
    ) -> tuple[str, ...]:
        """Return for each device why it may not be used for these operations, or an empty string.

        If several devices are one card, the first fit one may be used, or a faster one if that is known.
        `on_progress` is called from time to time while a trial runs. `admit` is called before a device is
        tried, which takes seconds and makes all others wait; it may raise to refuse the trial.
        """
        reasons: dict[str, str] = {}
        used: list[OfferedDevice] = []
        for device in sorted(devices, key=lambda device: device.name in self._native.slower):
            if same := twin(device, used):
                why = self._unfit[device.name] = f"it is the same card as {same}"
            else:
                why = await self._of(device, operations, on_progress, admit)
            reasons[device.name] = why
            used += [] if why else [device]
        return tuple(reasons[device.name] for device in devices)

    async def _of(
        self,
        device: OfferedDevice,
        operations: Sequence[str],
        on_progress: OnProgress,
        admit: Callable[[], None],
    ) -> str:
        if not operations or device.name == REFERENCE:
            return ""
        key = self._key(device, operations)
        why = self._known(key)
        if why is None:
            admit()
            try:
                async with Owner() as owner:
                    owner.start(_keep_telling(on_progress, f"trying {device.name}"), name="trial told")
                    why = await self._try(key, device, operations)
                    owner.cancel()
            except ExceptionGroup as group:
                raise first_error(group) from None
        if why:
            self._unfit[device.name] = why
        else:
            self._unfit.pop(device.name, None)
        return why

    def _known(self, key: str) -> str | None:
        if self._passed.use(key):
            return ""
        why, when = self._failed.get(key, ("", 0.0))
        return why if why and asyncio.get_running_loop().time() - when < AGAIN_SECONDS else None

    async def _try(self, key: str, device: OfferedDevice, operations: Sequence[str]) -> str:
        async with self._running:
            if (known := self._known(key)) is not None:  # another lease has tried the device meanwhile
                return known
            why, tried = await self._run(device, operations)
            if why:
                LOG.warning("device_unfit", device=device.name, why=why)
                now = asyncio.get_running_loop().time()
                self._failed = {k: v for k, v in self._failed.items() if now - v[1] < AGAIN_SECONDS}
                self._failed[key] = (why, now)
            elif tried:
                LOG.info("device_tried", device=device.name, count=len(operations))
                self._passed.add(key)
            return why

    async def _run(self, device: OfferedDevice, operations: Sequence[str]) -> tuple[str, bool]:
        """Return why the device is unfit, and whether it was tried at all.

        Raises UserError if it cannot start.
        """
        report = TrialReport(operations)
        ended = None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(STILL_SECONDS) as still:

                def see(line: str) -> None:
                    if report.see(line) and not still.expired():
                        still.reschedule(loop.time() + STILL_SECONDS)

                argv = command_lines.trial(str(self._native.mesh_server), device.name, operations)
                ended = await self._run_to_end(
                    ChildSpec(name="device trial", argv=argv, log=self._log, on_line=see)
                )
        except TimeoutError:
            pass
        return report.why_unfit(ended), report.was_tried(ended)

    def _key(self, device: OfferedDevice, operations: Sequence[str]) -> str:
        return device_key(self._native, device, self._machine, operations)


def device_key(native: NativeBuild, device: OfferedDevice, machine: str, asked: Sequence[str]) -> str:
    """Return a key for a device and its question that holds while nothing changes that decides the answer.

    Driver and kernel change with a restart, which changes `machine`, or the release.
    """
    parts = [device.name, device.description, device.card, str(device.total_bytes)]
    return trial_key([*_program(native, machine), *parts, *asked])


def listing_key(native: NativeBuild, machine: str) -> str:
    """Return a key for what mesh-server lists of this machine's CPU; its memory may grow at run time."""
    return trial_key([*_program(native, machine), "list", str(os.sysconf("SC_PHYS_PAGES"))])


def _program(native: NativeBuild, machine: str) -> list[str]:
    """Return what decides the answers of mesh-server here, whatever the question."""
    version = native.version
    try:
        stat = native.mesh_server.stat()
        program = f"{stat.st_size} {stat.st_mtime_ns}"
    except OSError:
        program = ""
    chosen = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(_DECIDING))
    parts = [version.pin, version.sources, version.backend, program, machine, platform.release()]
    return [*parts, "\n".join(chosen)]


async def _keep_telling(on_progress: OnProgress, text: str) -> None:
    while True:
        await on_progress(text)
        await asyncio.sleep(_TELL_SECONDS)
