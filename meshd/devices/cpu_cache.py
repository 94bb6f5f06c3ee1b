"""The CPU as mesh-server listed it last, kept in a cache file for a head that uses no other device.

A listing starts the drivers of all GPUs, which takes most of a second on a machine with a GPU. If the file is
lost or damaged, the CPU is listed again. Several daemons may share the file: the last one to write wins.
"""

from collections.abc import Sequence
from pathlib import Path

from meshd.base import log
from meshd.base.files import replace_file
from meshd.devices.devices import parse_devices
from meshd.wire.lease import OfferedDevice

CPU = "CPU"
_MOST_BYTES = 1024
LOG = log.get("serve")


class CpuCache:
    """The cache file at `path`; without a path nothing is kept. `key`: from device_trial.listing_key."""

    def __init__(self, path: Path | None, key: str) -> None:
        self._path = path
        self._key = key
        self._kept = self._read()

    @property
    def cpu(self) -> OfferedDevice | None:
        """The CPU; None if this program has not listed it since this machine started."""
        return self._kept

    def keep(self, listed: Sequence[OfferedDevice]) -> None:
        """Remember the CPU of a listing. A file that cannot be written is no error."""
        found = next((device for device in listed if device.name == CPU), None)
        if self._path is None or found is None or found == self._kept:
            return
        self._kept = found
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
