"""Measure how fast this machine's devices compute a model's layers, with mesh-server, and remember it.

The key of a time contains what the time depends on: the program, device, driver and kernel (through the
machine, whose id changes with a restart), the threads, and the variables that choose a device.
"""

import asyncio
import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshd.base import log
from meshd.base.files import replace_file
from meshd.base.peer_limits import SPEEDS_FAILED
from meshd.base.wakeful_loop import Waiting
from meshd.devices import command_lines
from meshd.devices.device_trial import OnProgress, device_key, run_until_still, while_telling
from meshd.devices.devices import core_set, usable_cores
from meshd.devices.interface import NativeBuild, RolePaths
from meshd.model.device_speed import is_plausible, read_line
from meshd.process.interface import ChildSpec, RunToEnd, Sandbox
from meshd.wire.capacity import MAX_POINTS, WHOLE_SHARE, TimedLayer, checked_time
from meshd.wire.lease import OfferedDevice

KEPT_SPEEDS = 256  # lines
_MOST_KEPT_FOR_ITSELF = KEPT_SPEEDS // 2  # lines of this node that no question of others displaces
_LINE_BYTES = 256  # at most, with key and line end
_ASKER_DIGITS = 32
_KEY = re.compile(r"[0-9a-f]{64}")
_POINTS = re.compile(r"[0-9]{1,4}:[0-9]{1,13}(,[0-9]{1,4}:[0-9]{1,13}){0,7}")
_ASKER = re.compile(rf"[0-9a-f]{{{_ASKER_DIGITS}}}")
LOG = log.get("worker")
_TELL_SECONDS = 2.0  # until it is told for how long
# Memory that must be free beside a model: weights, results and caches of a measurement, and a driver's
# context.
BESIDE_BYTES = {"cpu": 768 << 20, "gpu": 2 << 30}

Points = tuple[tuple[int, int], ...]
"""Pairs of tokens computed at once and the nanoseconds of one layer."""


@dataclass(frozen=True, slots=True)
class _Timed:
    """One entry. `asker`: a digest of the `asker` of SpeedCache.add."""

    points: Points
    asker: str


class SpeedCache:
    """A bounded cache of layer times, in a file with one line for each device and kind.

    If the file is lost or damaged, the times are measured again. Several daemons may share it, and each sees
    what another one adds: the newest counts.

    The asker with the most entries loses one first, so members do not displace those of others. Other threads
    may look times up: what they see is complete, and current or a moment old.
    """

    def __init__(self, path: Path | None) -> None:
        """Read the file at `path`; None keeps times only in this object."""
        self._path = path
        self._timed: dict[str, _Timed] = {}
        # The file's inode, size and time when last read or written.
        self._seen: tuple[int, int, int] | None = None
        self._refresh()

    def find(self, key: str) -> Points | None:
        """Return the points; none if the device has no time for the key, None if nothing was ever measured.

        Keys are made by `device_key`.
        """
        self._refresh()
        found = self._timed.get(key)
        return None if found is None else found.points

    def add(self, key: str, value: Points, asker: str = "") -> None:
        """Keep a time, so that it need not be measured again. A file that cannot be written is no error.

        `asker`: the node that admitted the member that asked; empty for this node.
        """
        digest = hashlib.sha256(asker.encode()).hexdigest()[:_ASKER_DIGITS] if asker else ""
        self._refresh()
        timed = {device: known for device, known in self._timed.items() if device != key}
        timed[key] = _Timed(value[:MAX_POINTS], digest)
        while len(timed) > KEPT_SPEEDS:
            del timed[_displaced(timed)]
        self._timed = timed
        self._write()

    def clear(self) -> None:
        """Forget all times, for other daemons as well."""
        self._timed = {}
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        lines = (f"{key} {_line(timed)}\n" for key, timed in self._timed.items())
        try:
            replace_file(self._path, "".join(lines).encode())
        except OSError as error:
            LOG.warning("speed_not_kept", why=error.strerror or str(error))

    def _refresh(self) -> None:
        """Read the file again if another daemon has changed it."""
        if self._path is None:
            return
        try:
            stat = self._path.stat()
        except OSError:
            return
        now = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if now != self._seen:
            self._seen = now
            self._timed = _read(self._path)


def _read(path: Path) -> dict[str, _Timed]:
    """Return the lines that this module may have written, by key."""
    try:
        with path.open("rb") as file:
            lines = file.read(KEPT_SPEEDS * _LINE_BYTES).decode("ascii", "replace").splitlines()
    except OSError:
        return {}
    found: dict[str, _Timed] = {}
    for line in lines:
        key, _, text = line.partition(" ")
        timed = _parsed(text) if _KEY.fullmatch(key) else None
        if timed is not None:
            found[key] = timed
    return found


def _displaced(values: Mapping[str, _Timed]) -> str:
    """Choose the oldest of the largest share; this node's own only beyond what others may not touch."""
    counts = Counter(timed.asker for timed in values.values())
    if counts[""] <= _MOST_KEPT_FOR_ITSELF:
        del counts[""]
    (largest, _), *_ = counts.most_common(1)
    return next(key for key, timed in values.items() if timed.asker == largest)


def _line(timed: _Timed) -> str:
    points = ",".join(f"{tokens}:{took}" for tokens, took in timed.points) or "-"
    return f"{points} {timed.asker}" if timed.asker else points


def _parsed(text: str) -> _Timed | None:
    listed, space, asker = text.partition(" ")
    if space and not _ASKER.fullmatch(asker):
        return None
    if listed == "-":
        return _Timed((), asker)
    if not _POINTS.fullmatch(listed):
        return None
    points = tuple(
        (int(tokens), int(took)) for tokens, took in (point.split(":") for point in listed.split(","))
    )
    is_one_each = len(dict(points)) == len(points)
    return _Timed(points, asker) if is_one_each and all(checked_time(0, *point) for point in points) else None


def with_kind(kind: int, points: Points) -> tuple[TimedLayer, ...]:
    """Return the points as wire messages carry them, for the kind at this index."""
    return tuple(TimedLayer(kind, tokens, took) for tokens, took in points)


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
        """The processors that this process may use (devices.py)."""
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
            underway = _Underway(device.name)
            work = self._measure(device, timed, asker, underway, is_last=not beside_model)
            await while_telling(on_progress, underway.text, work)

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
        async with self._running:
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

        def see(line: str) -> bool:
            time = read_line(line)
            if time is not None:
                found.setdefault(time.kind, {})[time.tokens] = time.nanoseconds
            return time is not None

        argv = command_lines.timing(str(self._native.mesh_server), device.name, self._threads, timed)
        env = command_lines.mesh_server_environment(Waiting.SLEEP)
        spec = ChildSpec(name="device speed", argv=argv, log=self._log, env=env, sandbox=Sandbox())
        ended = await run_until_still(self._run_to_end, spec, see)
        if ended is None or ended.signal is not None or ended.code != 0:
            return None
        return {text: tuple(sorted(found.get(kind, {}).items())) for kind, text in enumerate(timed)}

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
