"""The accounts of a worker's memory. All leases together stay within the worker's limit. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from meshd.base.peer_limits import LEASES, LEASES_OF_PEER
from meshd.identity.keys import PeerId
from meshd.model.status import LentMemory, LentState
from meshd.wire.lease import OfferedDevice

MAX_LEASES = LEASES.most


Held = Mapping[bytes, Mapping[str, int]]
"""Bytes of the buffers that each server holds, by lease and device, from its answers, not its head's
claims.
"""


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted part of the memory: bytes by device, in the order of the offer, without those of none.

    `model` is the name that the head uses; `is_standby`: the lease is kept for the loss of another worker.
    """

    lease_id: bytes
    peer: PeerId
    memory: Mapping[str, int]
    model: str = ""
    is_standby: bool = False

    def pending(self, device: str, looks: Sequence[Held]) -> int:
        """Return how many of the device's free bytes the lease may still take.

        Of the `looks`, the one counts at which the lease's server held least.
        """
        held = (look.get(self.lease_id, {}).get(device, 0) for look in looks)
        return max(0, self.memory.get(device, 0) - min(held, default=0))


def lent(
    leases: Sequence[Lease], held: Held, loaded: Collection[bytes], computed: Mapping[bytes, float]
) -> tuple[LentMemory, ...]:
    """Return for status which head has how much.

    `held`: running leases; `loaded`: leases whose model answers; `computed`: seconds, by lease.
    """
    found = []
    for lease in leases:
        runs = lease.lease_id in held
        state = LentState.LOADED if lease.lease_id in loaded else LentState.LOADING
        if lease.is_standby and not runs:
            state = LentState.STANDBY
        used = sum(held[lease.lease_id].values()) if runs else 0
        size = used or sum(lease.memory.values())
        seconds = round(computed.get(lease.lease_id, 0.0), 3)
        found.append(LentMemory(str(lease.peer), lease.model, size, state, computed_s=seconds))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The leases in force. `limit` is bytes per device, None for all that the device has."""

    limit: int | None = None
    leases: tuple[Lease, ...] = ()

    def offer(
        self, devices: Sequence[OfferedDevice], unfit: Sequence[str] = (), looks: Sequence[Held] = ()
    ) -> tuple[OfferedDevice, ...]:
        """Return the devices with their unreserved memory: free, not promised to a lease, within the limit.

        A device with a reason in `unfit` (at the same index) has no memory left. List `devices` after taking
        this ledger, and between the `looks` at what the servers hold. Memory that a lease takes or frees
        meanwhile is then held back twice, and never promised twice.
        """
        return tuple(
            replace(
                device,
                free_bytes=0 if why else self._free(device, looks),
                total_bytes=min(device.total_bytes, self.limit or device.total_bytes),
            )
            for device, why in zip(devices, unfit or ("",) * len(devices), strict=True)
        )

    def _free(self, device: OfferedDevice, looks: Sequence[Held]) -> int:
        pending = sum(lease.pending(device.name, looks) for lease in self.leases)
        return max(0, min(device.free_bytes - pending, self._left(device)))

    def _left(self, device: OfferedDevice) -> int:
        allowed = device.total_bytes if self.limit is None else min(self.limit, device.total_bytes)
        taken = sum(lease.memory.get(device.name, 0) for lease in self.leases)
        return max(0, allowed - taken)

    def refusal_reason(
        self, offered: Sequence[OfferedDevice], wanted: Sequence[int], *, before: "Ledger", peer: PeerId
    ) -> str | None:
        """Return why `peer` cannot have this reservation, or None.

        `before` is the ledger that made the offer.
        """
        if len(self.leases) >= MAX_LEASES:
            return f"{MAX_LEASES} heads already use this worker"
        # A head has one lease for each model that it serves, and for a moment one more: the former lease ends
        # only when its process is gone.
        if sum(lease.peer == peer for lease in self.leases) >= LEASES_OF_PEER.most:
            return f"this head already has {LEASES_OF_PEER.most} leases of this worker"
        if len(wanted) != len(offered) or not any(wanted):
            return "the reservation does not fit the offer"
        known = {lease.lease_id for lease in before.leases}
        newer = [lease for lease in self.leases if lease.lease_id not in known]
        for device, count in zip(offered, wanted, strict=True):
            taken = sum(lease.memory.get(device.name, 0) for lease in newer)
            free = max(0, device.free_bytes - taken)
            if count > free:
                left, asked = free >> 20, count >> 20
                return f"device {device.name} has {left} MiB left, {asked} MiB were requested"
        return None

    def take(self, lease: Lease) -> "Ledger":
        """Return the ledger with `lease` added."""
        return replace(self, leases=(*self.leases, lease))

    def release(self, lease_id: bytes) -> "Ledger":
        """Return the ledger without this lease."""
        return replace(self, leases=tuple(lease for lease in self.leases if lease.lease_id != lease_id))
