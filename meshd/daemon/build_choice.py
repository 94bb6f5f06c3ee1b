"""Choose among the builds of llama.cpp here the one whose device is fastest and computes right.

Several builds: compiled ones for different devices, and meshd-native. Each is tried in children, which may
crash or compute nonsense. What was chosen is kept until a build, a card or the machine's start changes; for
AGAIN_SECONDS only if a device failed, as its memory may just have been taken.
"""

import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.files import replace_file
from meshd.build.cache import locked
from meshd.build.interface import BuildProgress
from meshd.devices.device_list import hardware_names
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.devices.device_trial import AGAIN_SECONDS, DeviceTrials, listing_key, trial_key
from meshd.devices.devices import list_devices, pick, twin, usable_cores
from meshd.devices.interface import NativeBuild, RolePaths
from meshd.model.device_speed import REFERENCE_LAYERS, DeviceSpeed, reference_rates
from meshd.model.layer_work import USUAL
from meshd.process.interface import RunToEnd
from meshd.wire.lease import OfferedDevice

_MOST_BYTES = 4096
_SOUND, _DOUBTFUL = "sound", "doubtful"  # of a kept choice: did all devices compute right?
LOG = log.get("daemon")


@dataclass(frozen=True, slots=True)
class TriedDevice:
    """A device: why it is unfit, or how fast it reads weights, in bytes per second (0: not measured)."""

    device: OfferedDevice
    why_unfit: str = ""
    weight_bytes_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TriedBuild:
    """A build and what came of the devices that a worker uses; `others` are there, too.

    `why_not`: it lists none, and what helps.
    """

    native: NativeBuild
    devices: tuple[TriedDevice, ...] = ()
    others: tuple[OfferedDevice, ...] = ()
    why_not: str = ""
    hint: str = ""

    @property
    def best(self) -> TriedDevice | None:
        """The fastest fit device; None if all are unfit."""
        fit = [tried for tried in self.devices if not tried.why_unfit]
        return max(fit, key=lambda tried: tried.weight_bytes_s, default=None)

    @property
    def weight_bytes_s(self) -> float:
        """The speed of the fastest fit device; 0 if none was measured."""
        return self.best.weight_bytes_s if self.best is not None else 0.0

    @property
    def has_gpu(self) -> bool:
        """Say whether a fit device is a GPU."""
        return any(tried.device.kind == "gpu" and not tried.why_unfit for tried in self.devices)

    @property
    def is_measured(self) -> bool:
        """Say whether the speed of each fit device is known: one may have had no free memory."""
        return all(tried.why_unfit or tried.weight_bytes_s for tried in self.devices)

    @property
    def slower(self) -> tuple[str, ...]:
        """The names of devices that another one, which is the same card, beats."""
        return tuple(
            tried.device.name
            for tried in self.devices
            if any(
                twin(tried.device, [other.device]) and other.weight_bytes_s > tried.weight_bytes_s > 0
                for other in self.devices
                if other is not tried and not other.why_unfit
            )
        )


def choose(tried: Sequence[TriedBuild]) -> TriedBuild:
    """Return the build with the fastest fit device; of equals, the first.

    A device that was not measured may be faster than all others. Of the builds that may still win, one with a
    GPU beats one without; those left are compared if each has a measured device, or else the first one wins.
    """
    fit = [build for build in tried if build.best is not None]
    if not fit:
        return tried[0]
    fastest = max(fit, key=lambda build: build.weight_bytes_s)
    open_builds = [build for build in fit if build is fastest or not build.is_measured]
    preferred = [build for build in open_builds if build.has_gpu] or open_builds
    if all(build.weight_bytes_s for build in preferred):
        return max(preferred, key=lambda build: build.weight_bytes_s)
    return preferred[0]


async def try_build(native: NativeBuild, run_to_end: RunToEnd, logs: Path, *, machine: str) -> TriedBuild:
    """List, try and time the devices that a worker would use. Some seconds for each device."""
    paths = RolePaths(logs=logs, sockets=logs)
    try:
        listed = await list_devices(
            native.mesh_server, machine=machine, run_to_end=run_to_end, log=logs / "devices.log"
        )
        device_trials = DeviceTrials(native, run_to_end, paths, machine=machine)
        speeds = DeviceSpeeds(native, run_to_end, paths, machine=machine, threads=usable_cores())
        tried = []
        for device in pick(listed, ()):
            (why,) = await device_trials.unfit([device], USUAL, _silent)
            if not why:
                await speeds.measure([device], REFERENCE_LAYERS, _silent)
            rates = reference_rates(DeviceSpeed(speeds.known(device, REFERENCE_LAYERS)))
            tried.append(TriedDevice(device, why, rates.weight_bytes_s or 0.0))
    except MeshdError as error:
        return TriedBuild(native, why_not=error.what, hint=error.hint or "")
    used = [one.device for one in tried]
    return TriedBuild(native, tuple(tried), tuple(device for device in listed if device not in used))


async def choose_build(
    natives: Sequence[NativeBuild], run_to_end: RunToEnd, *, cache: Path, logs: Path, machine: str
) -> NativeBuild:
    """Return the kept choice, or try all builds and keep what comes of it, one node at a time."""
    if (kept := kept_choice(natives, cache, machine=machine)) is not None:
        return kept
    async with AsyncExitStack() as stack:
        with suppress(OSError):  # a cache that takes nothing is reported below
            lock = locked(_file(cache).with_suffix(".lock"), _say, "is trying the builds")
            await stack.enter_async_context(lock)
        kept = kept_choice(natives, cache, machine=machine)  # another node may have chosen
        return kept or await _find_out(natives, run_to_end, cache=cache, logs=logs, machine=machine)


async def _find_out(
    natives: Sequence[NativeBuild], run_to_end: RunToEnd, *, cache: Path, logs: Path, machine: str
) -> NativeBuild:
    tried = []
    for native in natives:
        LOG.info("build_tried", path=str(native.mesh_server.parent))
        tried.append(await try_build(native, run_to_end, logs, machine=machine))
    chosen = choose(tried)
    device = chosen.best.device.name if chosen.best is not None else ""
    LOG.info("build_chosen", path=str(chosen.native.mesh_server.parent), device=device)
    keep_choice(tried, chosen, cache, machine=machine)
    if not all(build.is_measured for build in tried):
        return chosen.native  # another start may find out
    return replace(chosen.native, slower=chosen.slower)


def keep_choice(tried: Sequence[TriedBuild], chosen: TriedBuild, cache: Path, *, machine: str) -> None:
    """Keep what was found out for the nodes of this machine, unless a device could not be timed."""
    if not all(build.is_measured for build in tried):
        return
    sound = all(not build.why_not and not any(one.why_unfit for one in build.devices) for build in tried)
    key = _key([build.native for build in tried], machine)
    lines = [key, _SOUND if sound else _DOUBTFUL, str(chosen.native.mesh_server), *chosen.slower]
    try:
        replace_file(_file(cache), ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))
    except OSError as error:
        LOG.warning("choice_not_kept", why=error.strerror)


def kept_choice(natives: Sequence[NativeBuild], cache: Path, *, machine: str) -> NativeBuild | None:
    """Return what was chosen of these builds on this machine; None if that has to be found out.

    There is nothing to choose of one build, unless its modules may show one card twice.
    """
    if len(natives) == 1 and not _has_several_modules(natives[0]):
        return natives[0]
    try:
        with _file(cache).open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "surrogateescape")
            age = time.time() - os.fstat(file.fileno()).st_mtime
        key, state, program, *slower = text.splitlines()
    except (OSError, ValueError):
        return None
    if key != _key(natives, machine) or (state != _SOUND and not 0 <= age < AGAIN_SECONDS):
        return None
    named = (native for native in natives if str(native.mesh_server) == program)
    return next((replace(native, slower=tuple(slower)) for native in named), None)


def _file(cache: Path) -> Path:
    return cache / "native-choice"


def _has_several_modules(native: NativeBuild) -> bool:
    return len({"cuda", "vulkan", "hip"} & set(native.backends)) > 1


def _key(natives: Sequence[NativeBuild], machine: str) -> str:
    """Return a key for all that decides the choice: builds, machine since its start, cards, variables."""
    programs = [part for one in natives for part in (str(one.mesh_server), listing_key(one, machine))]
    modules = sorted(path.name for one in natives for path in one.mesh_server.parent.glob("libggml-*.so"))
    return trial_key(["build choice 2", *programs, *modules, *hardware_names()])


def _say(progress: BuildProgress) -> None:
    LOG.info("build_choice_awaited", why=progress.text)


async def _silent(_text: str) -> None:
    """Ignore progress."""
