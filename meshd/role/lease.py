"""Who may have what of a worker's memory: pure. All leases together stay within the worker's limit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meshd.identity.keys import PeerId
from meshd.wire.lease import Device

MAX_LEASES = 8


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted part: bytes by device name (only devices with more than 0)."""

    lease_id: bytes
    peer: PeerId
    memory: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The leases in force. `limit` is bytes per device, None for whatever the device has."""

    limit: int | None = None
    leases: tuple[Lease, ...] = ()

    def offer(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        """The devices with what is left of them: what is free, and no more than the limit leaves."""
        return tuple(
            replace(
                device,
                free_bytes=min(device.free_bytes, self._left(device)),
                total_bytes=min(device.total_bytes, self.limit or device.total_bytes),
            )
            for device in devices
        )

    def _left(self, device: Device) -> int:
        allowed = device.total_bytes if self.limit is None else min(self.limit, device.total_bytes)
        taken = sum(lease.memory.get(device.name, 0) for lease in self.leases)
        return max(0, allowed - taken)

    def why_not(self, offered: Sequence[Device], wanted: Sequence[int]) -> str | None:
        """Why this reservation cannot be had of what was offered, or None."""
        if len(self.leases) >= MAX_LEASES:
            return f"{MAX_LEASES} heads use this worker already"
        if len(wanted) != len(offered) or not any(wanted):
            return "the reservation does not fit the offer"
        for device, count in zip(self.offer(offered), wanted, strict=True):
            if count > device.free_bytes:
                left, asked = device.free_bytes >> 20, count >> 20
                return f"device {device.name} has {left} MiB left, {asked} MiB were asked"
        return None

    def take(self, lease: Lease) -> "Ledger":
        """With one lease more."""
        return replace(self, leases=(*self.leases, lease))

    def release(self, lease_id: bytes) -> "Ledger":
        """Without it."""
        return replace(self, leases=tuple(lease for lease in self.leases if lease.lease_id != lease_id))

    def of(self, lease_id: bytes, peer: PeerId) -> Lease | None:
        """The live lease with this id, if it is that peer's."""
        return next(
            (lease for lease in self.leases if lease.lease_id == lease_id and lease.peer == peer), None
        )
