"""Measure how fast this machine's devices compute a model's layers, with mesh-server, and remember it.

The key of a time contains what the time depends on: the program, device, driver and kernel (through the
machine, whose id changes with a restart), the threads, and the variables that choose a device.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from meshd.base import log
from meshd.base.peer_limits import SPEEDS_FAILED
from meshd.base.tasks import Owner, first_error
from meshd.base.wakeful_loop import Waiting
from meshd.devices import command_lines
from meshd.devices.device_trial import device_key
from meshd.devices.interface import NativeBuild, RolePaths
from meshd.devices.processors import core_set, usable_cores
from meshd.devices.speed_cache import Points, SpeedCache, with_kind
from meshd.model.device_speed import is_plausible, read_line
from meshd.process.interface import ChildSpec, Ended, RunToEnd
from meshd.wire.capacity import WHOLE_SHARE, TimedLayer
from meshd.wire.lease import OfferedDevice

NO_LINE_SECONDS = 300.0  # without a line of output: a driver may compile its kernels for the first one
_TELL_SECONDS = 2.0
# Memory that must be free beside a model: weights, results and caches of a measurement, and a driver's
# context.
BESIDE_BYTES = {"cpu": 768 << 20, "gpu": 2 << 30}
LOG = log.get("worker")

OnProgress = Callable[[str], Awaitable[None]]


@dataclass(slots=True)
class _Underway:
    """The progress of measuring a device: its times by kind and tokens, and the number of kinds."""

    device: str
    kinds: int = 0
    found: dict[int, dict[int, int]] = field(default_factory=dict)

    def text(self, seconds: float) -> str:
        """Return the progress for people, who may wait for half a minute."""
        if seconds < _TELL_SECONDS:
            return f"measuring {self.device}"
        parts = f": {max(0, len(self.found) - 1)} of {self.kinds} parts" if self.kinds else ""
        return f"measuring {self.device} for {seconds:.0f} s, once for each kind of model{parts}"


class DeviceSpeeds:
    """The times of this machine's devices. One device is measured at a time."""

    def __init__(
        self, native: NativeBuild, run_to_end: RunToEnd, paths: RolePaths, *, machine: str, threads: int
    ) -> None:
        """Read the cache. `threads` is the number of threads with which a CPU computes."""
        self._native = native
        self._run_to_end = run_to_end
        self._log = paths.logs / "device-speed.log"
        self._machine = machine
        self._threads = threads
        self._cache = SpeedCache(paths.speed_cache)
        # Failed measurements, the newest ones: not tried again before a restart.
        self._failed: dict[str, None] = {}
        self._running = asyncio.Lock()

    @property
    def cpu_share(self) -> int:
        """The share of usable cores that the CPU computes with, in thousandths."""
        return min(WHOLE_SHARE, max(1, self._threads * WHOLE_SHARE // usable_cores()))

    @property
    def core_set(self) -> str:
        """The processors that this process may use (processors.py)."""
        return core_set()

    def known(self, device: OfferedDevice, timed: Sequence[str]) -> tuple[TimedLayer, ...]:
        """Return the times of this device that were measured before."""
        found = [self._cache.find(key) or () for key in self._keys(device, timed)]
        return tuple(time for kind, points in enumerate(found) for time in with_kind(kind, points))

    def lacks(self, devices: Sequence[OfferedDevice], timed: Sequence[str]) -> bool:
        """Say whether something remains to be measured."""
        return any(self._unknown(key) for device in devices for key in self._keys(device, timed))

    def forget(self) -> None:
        """Forget the times of this machine's devices for all models; they are measured again when needed."""
        self._cache.clear()
        self._failed.clear()

    async def measure(
        self,
        devices: Sequence[OfferedDevice],
        timed: Sequence[str],
        on_progress: OnProgress,
        *,
        asker: str = "",
        beside_model: bool = False,
    ) -> None:
        """Measure what is not measured yet. A device that cannot be measured gets no times; that is no error.

        `asker` as in SpeedCache. `beside_model`: a loaded model occupies memory of the devices. A device with
        too little free memory is not measured now, and a device that fails is tried again.
        """
        for device in devices:
            if beside_model and device.free_bytes < BESIDE_BYTES[device.kind]:
                continue
            try:
                async with Owner() as owner:
                    underway = _Underway(device.name)
                    owner.start(_keep_telling(on_progress, underway), name="speed told")
                    async with self._running:
                        await self._measure(device, timed, asker, underway, is_last=not beside_model)
                    owner.cancel()
            except ExceptionGroup as group:
                raise first_error(group) from None

    async def _measure(
        self,
        device: OfferedDevice,
        timed: Sequence[str],
        asker: str,
        underway: _Underway,
        *,
        is_last: bool,
    ) -> None:
        """Measure one device and keep its times. With `is_last`, a failed device is not tried again."""
        # Measure what is missing.
        missing = [text for text in timed if self._unknown(self._key(device, text))]
        if not missing:
            return
        found = await self._times(device, missing, underway)
        # Remember a failure.
        if found is None:
            LOG.warning("device_not_measured", device=device.name)
            if not is_last:
                return
            failed = self._failed | dict.fromkeys(self._keys(device, missing))
            self._failed = dict.fromkeys(list(failed)[-SPEEDS_FAILED.most :])
            return
        # Measure implausible times once more, and take the shorter ones.
        doubtful = [text for text, points in found.items() if not is_plausible(points)]
        second = await self._times(device, doubtful, underway) if doubtful else None
        for text, points in (second or {}).items():
            found[text] = _shortest(found[text], points)
        for text, points in found.items():
            self._cache.add(self._key(device, text), points, asker)
        LOG.info("device_measured", device=device.name, count=len(missing))

    async def _times(
        self, device: OfferedDevice, timed: Sequence[str], underway: _Underway
    ) -> dict[str, Points] | None:
        """Return the times of each kind of layer, or None if the device cannot be measured."""
        found = underway.found = {}
        underway.kinds = len(timed)
        ended = await self._run(device, timed, found)
        if ended is None or ended.signal is not None or ended.code != 0:
            return None
        return {text: tuple(sorted(found.get(kind, {}).items())) for kind, text in enumerate(timed)}

    async def _run(
        self, device: OfferedDevice, timed: Sequence[str], found: dict[int, dict[int, int]]
    ) -> Ended | None:
        """Run the measurement and collect times in `found`, by kind and tokens. Returns None if it hangs."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(NO_LINE_SECONDS) as still:

                def see(line: str) -> None:
                    time = read_line(line)
                    if time is not None and not still.expired():
                        found.setdefault(time.kind, {})[time.tokens] = time.nanoseconds
                        still.reschedule(loop.time() + NO_LINE_SECONDS)

                argv = command_lines.timing(str(self._native.mesh_server), device.name, self._threads, timed)
                spec = ChildSpec(
                    name="device speed",
                    argv=argv,
                    log=self._log,
                    on_line=see,
                    env=command_lines.mesh_server_environment(Waiting.SLEEP),
                )
                return await self._run_to_end(spec)
        except TimeoutError:
            return None

    def _unknown(self, key: str) -> bool:
        return self._cache.find(key) is None and key not in self._failed

    def _keys(self, device: OfferedDevice, timed: Sequence[str]) -> list[str]:
        return [self._key(device, text) for text in timed]

    def _key(self, device: OfferedDevice, text: str) -> str:
        """Return the cache key of a layer, which does not depend on the number of layers."""
        computing = f"{self._threads} of {_processors()}" if device.kind == "cpu" else ""
        device = replace(device, total_bytes=0)  # a limit on lent memory makes no device faster or slower
        return device_key(self._native, device, self._machine, ["speed 1", computing, text])


def _shortest(first: Points, second: Points) -> Points:
    """Return the shorter time of each pair: other work on the machine makes times longer, never shorter."""
    found = dict(first)
    for tokens, took in second:
        found[tokens] = min(took, found.get(tokens, took))
    return tuple(sorted(found.items()))


def _processors() -> str:
    """Return the processors that a child may use, if known: not all of them need be equally fast."""
    return str(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ""


async def _keep_telling(on_progress: OnProgress, underway: _Underway) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        await on_progress(underway.text(loop.time() - began))
        await asyncio.sleep(_TELL_SECONDS)
