"""Try whether a device computes what a model needs, in a separate process, before it is used.

A device's own claims are trusted elsewhere (docs/native-backend.md). A trial that crashes, hangs or computes
nonsense ends nothing but itself. A passed trial is kept in a cache file and not repeated.
"""

import asyncio
import hashlib
import os
import platform
import re
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from meshd.base import log
from meshd.base.files import replace_file
from meshd.base.tasks import Owner, first_error
from meshd.devices import command_lines
from meshd.devices.devices import twin
from meshd.devices.interface import NativeBuild, RolePaths
from meshd.process.interface import ChildSpec, Ended, RunToEnd, Sandbox
from meshd.wire.lease import OfferedDevice

MAX_TRIALS = 256  # trials kept, the newest
_LINE = re.compile(r"[0-9a-f]{64}")  # of the cache file
_MOST_BYTES = MAX_TRIALS * 65
USAGE = 1  # exit code: the program does not know the option or the device, so nothing was tried
MOST_TEXT = 200  # letters of a report
REFERENCE = "CPU"  # the device with which all others are compared
STILL_SECONDS = 300.0  # without a line of output: a driver may compile its kernels for the first one
AGAIN_SECONDS = 600.0  # until a device that failed is tried again: its memory may just have been taken
_TELL_SECONDS = 2.0
# Variables that choose a device and how it computes.
_DECIDING = ("GGML_", "CUDA_", "HIP_", "ROCR_", "VK_", "MESA_", "MTL_")
LOG = log.get("worker")

OnProgress = Callable[[str], Awaitable[None]]
T = TypeVar("T")


def trial_key(parts: Sequence[str]) -> str:
    """Return a key for everything that decides how a trial ends."""
    digest = hashlib.sha256(b"meshd trial 1\0")
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()


class TrialCache:
    """Passed trials of devices and checks of programs, in a file with one line each.

    With `path` None they are kept only in this object. If the file is lost or damaged, it costs a trial.
    Several daemons may share it: the last one to write wins.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._keys = dict.fromkeys(self._read())

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def use(self, key: str) -> bool:
        """Say whether the trial was passed.

        A used entry moves to the end, so a head with many cannot displace it.
        """
        if key not in self._keys:
            return False
        if key not in list(self._keys)[-MAX_TRIALS // 2 :]:
            self.add(key)
        return True

    def add(self, key: str) -> None:
        """Note that the trial was passed. A file that cannot be written is no error."""
        others = [old for old in self._read() if old not in self._keys]
        kept = [*others, *(old for old in self._keys if old != key), key]
        self._keys = dict.fromkeys(kept[-MAX_TRIALS:])
        if self._path is None:
            return
        try:
            replace_file(self._path, "".join(f"{kept}\n" for kept in self._keys).encode())
        except OSError as error:
            LOG.warning("trial_not_kept", why=error.strerror)

    def _read(self) -> list[str]:
        if self._path is None:
            return []
        try:
            with self._path.open("rb") as file:
                lines = file.read(_MOST_BYTES).decode("ascii", "replace").splitlines()
        except OSError:
            return []
        return [line for line in lines if _LINE.fullmatch(line)]


class TrialReport:
    """The state of a trial, by the output of `--try-device`. `see` gets each line, also those of drivers."""

    def __init__(self, operations: Sequence[str]) -> None:
        self._operations = frozenset(operations)
        self._trying = ""
        self._faults: list[str] = []
        self.ended = False

    def see(self, line: str) -> bool:
        """Parse a line and say whether it belongs to the trial."""
        kind, _, rest = line.partition(" ")
        word, _, text = rest.partition(" ")
        # The trial as a whole.
        if kind == "tried" and rest.isdigit():
            self._trying, self.ended = "", True
            return True
        text = "".join(letter for letter in text if letter.isprintable())[:MOST_TEXT]
        if kind == "failed" and word == "device":
            self._faults.append(text or "it cannot be opened")
            return True
        # One operation.
        if word not in self._operations:
            return False
        match kind:
            case "trying":
                self._trying = word
            case "right" | "unknown":
                pass
            case "lacks":
                self._faults.append(f"it cannot compute {word} ({text})")
            case "wrong":
                error, _, allowed = text.partition(" ")
                self._faults.append(f"it computes {word} wrong (error {error}, {allowed} is allowed)")
            case "failed":
                self._faults.append(f"it fails to compute {word} ({text})")
            case _:
                return False
        return True

    def why_unfit(self, ended: Ended | None) -> str:
        """Return why the device may not be used; empty if it may. `ended` is None after a time-out."""
        at = f" while it computed {self._trying}" if self._trying else ""
        if self._faults:
            more = f", and {len(self._faults) - 1} more" if len(self._faults) > 1 else ""
            return f"{self._faults[0]}{more}"
        if ended is None:
            return f"its trial hung{at}"
        if ended.no_memory:
            return f"its trial was ended by the kernel{at}: {ended.no_memory}"
        if ended.signal is not None:
            return f"its trial was ended by {signal.Signals(ended.signal).name}{at}"
        if not self.ended and (ended.code != USAGE or self._trying):
            return f"its trial ended with exit code {ended.code}{at}"
        return ""

    def was_tried(self, ended: Ended | None) -> bool:
        """Say whether the trial ran; False if the program does not know it, so nothing can be said."""
        return self.ended or bool(self._trying or self._faults) or ended is None or ended.code != USAGE


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
        key = device_key(self._native, device, self._machine, operations)
        why = self._known(key)
        if why is None:
            admit()
            text = f"trying {device.name}"
            why = await while_telling(on_progress, lambda _: text, self._try(key, device, operations))
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
        argv = command_lines.trial(str(self._native.mesh_server), device.name, operations)
        spec = ChildSpec(name="device trial", argv=argv, log=self._log, sandbox=Sandbox())
        ended = await run_until_still(self._run_to_end, spec, report.see)
        return report.why_unfit(ended), report.was_tried(ended)


async def run_until_still(run_to_end: RunToEnd, spec: ChildSpec, see: Callable[[str], bool]) -> Ended | None:
    """Run a program to its end; None if it printed no line for STILL_SECONDS of which `see` says True."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(STILL_SECONDS) as still:

            def on_line(line: str) -> None:
                if not still.expired() and see(line):
                    still.reschedule(loop.time() + STILL_SECONDS)

            return await run_to_end(replace(spec, on_line=on_line))
    except TimeoutError:
        return None


async def while_telling(
    on_progress: OnProgress, text: Callable[[float], str], work: Coroutine[object, object, T]
) -> T:
    """Wait for `work`; tell its progress every two seconds, as `text` has it after so many seconds."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def keep_telling() -> None:
        while True:
            await on_progress(text(loop.time() - began))
            await asyncio.sleep(_TELL_SECONDS)

    try:
        async with Owner() as owner:
            owner.start(keep_telling(), name="progress told")
            found = await work
            owner.cancel()
    except ExceptionGroup as group:
        raise first_error(group) from None
    return found


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
