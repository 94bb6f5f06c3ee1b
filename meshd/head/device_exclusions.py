"""Devices that cannot run this head's model, and why. Pure.

A device whose server crashed in the load may have had bad luck once, and is left out after the worker's
second crash, until the worker's native part or its devices are others: nothing else makes another device of
it. What its devices are is the worker's own word, so its crashes are counted on across such a change: then
one more is enough.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshd.identity.keys import PeerId
from meshd.wire.lease import OfferedDevice, WorkerOffer
from meshd.wire.native import NativeVersion

_CRASHES = 2


@dataclass(frozen=True, slots=True)
class Equipment:
    """Describe a worker's devices, apart from what is free of them."""

    native: NativeVersion | None
    devices: tuple[tuple[str, str, str, int], ...]

    @classmethod
    def of(cls, native: NativeVersion | None, devices: Sequence[OfferedDevice]) -> "Equipment":
        """Describe those of a worker that runs `native` and offers `devices`."""
        return cls(native, tuple((d.name, d.kind, d.description, d.total_bytes) for d in devices))


class DeviceExclusions:
    """Remember what was found out of the workers' devices, for one model."""

    def __init__(self) -> None:
        self._equipment: dict[PeerId, Equipment] = {}
        self._out: dict[PeerId, dict[str, str]] = {}
        self._crashes: dict[PeerId, int] = {}  # since the last load that it was of use for

    def crashed(self, peer: PeerId, equipment: Equipment, devices: Iterable[str], why: str) -> None:
        """Note that the server with these devices ended by its own fault before the model was loaded."""
        crashes = self._crashes[peer] = self._crashes.get(peer, 0) + 1
        if crashes >= _CRASHES:
            text = f"its server crashed {crashes} times while the model was loaded ({why})"
            self._of(peer, equipment).update(dict.fromkeys(devices, text))

    def worked(self, peers: Iterable[PeerId]) -> None:
        """Note that the model is loaded with these: what is left in had bad luck before."""
        for peer in peers:
            self._crashes.pop(peer, None)

    def excluded(self, peer: PeerId, equipment: Equipment) -> Mapping[str, str]:
        """Return the devices that are left out, by name, each with the reason."""
        return dict(self._of(peer, equipment))

    def _of(self, peer: PeerId, equipment: Equipment) -> dict[str, str]:
        if self._equipment.get(peer) != equipment:  # new, or another machine now
            self._equipment[peer] = equipment
            self._out[peer] = {}
        return self._out[peer]


class DevicesInUse:
    """Remember the devices of one run: what each worker offered, and which of it its server runs."""

    def __init__(self, exclusions: DeviceExclusions) -> None:
        self._exclusions = exclusions
        self._equipment: dict[PeerId, Equipment] = {}
        self._used: dict[PeerId, tuple[str, ...]] = {}
        self.failed = False  # a device did

    def offered(self, peer: PeerId, native: NativeVersion | None, offer: WorkerOffer) -> Mapping[str, str]:
        """Return the devices of this offer that are left out, by name, each with the reason.

        What the worker itself says of them (Offer.unfit) holds for this offer alone.
        """
        self._equipment[peer] = Equipment.of(native, offer.devices)
        unfit = {device.name: why for device, why in zip(offer.devices, offer.unfit, strict=False) if why}
        return {**unfit, **self._exclusions.excluded(peer, self._equipment[peer])}

    def uses(self, peer: PeerId, devices: Sequence[OfferedDevice], wanted: Sequence[int]) -> None:
        """Note the bytes reserved of each device; the server runs those that are not 0, in their order."""
        pairs = zip(devices, wanted, strict=True)
        self._used[peer] = tuple(device.name for device, count in pairs if count)

    def crashed(self, peer: PeerId, why: str) -> None:
        """Note that its server ended by its own fault before the model was loaded."""
        self.failed = True
        self._exclusions.crashed(peer, self._equipment[peer], self._used[peer], why)
