"""A node that tells of its devices, and others that ask it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from meshd.base.tasks import Owner
from meshd.devices.capacity import CapacityTeller
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.identity.keys import PeerId
from meshd.identity.membership import Role
from meshd.wire.capacity import ComputedSpan
from meshd.wire.lease import OfferedDevice, as_bits, split_marks

from tests.unit.head.fake_mesh import FakeMesh, Net
from tests.unit.head.rig import Bench

KINDS = ("30=rms_norm:64", "1=mul_mat:q8_0:64:1000")
CPU = OfferedDevice("CPU", "cpu", "some processor", 5, 10)


class Teller:
    """One node with a CPU."""

    def __init__(self, net: Net, folder: Path, name: str, machine: str, seed: str = "") -> None:
        self.mesh = net.mesh(name, "worker", seed=seed)
        self.bench = Bench(self.mesh, folder)
        self.busy = self.lends = False
        self.here: set[bytes] = set()  # marks of tensors
        self.computed: tuple[ComputedSpan, ...] = ()  # what its leases have computed, by their word
        self.seals_with: set[PeerId] = set()
        self.on_wifi = False
        self.asked_spans: list[tuple[object, ...]] = []
        self.listed: list[bool] = []  # whether the last listing would do
        self.devices: Sequence[OfferedDevice] = (CPU,)
        runtime = self.bench.runtime
        paths = replace(runtime.paths, speed_cache=folder / f"speeds of {name}")
        CapacityTeller(
            self.mesh,
            DeviceSpeeds(runtime.native, runtime.processes.run_to_end, paths, machine=machine, threads=1),
            devices=self._listed,
            machine=machine,
            is_busy=lambda: self.busy,
            is_lending=lambda: self.lends,
            computed=self._computed,
            lacks=lambda marks: as_bits([one not in self.here for one in split_marks(marks)]),
            may_seal=self.seals_with.__contains__,
            are_wireless=lambda addresses: [self.on_wifi for _ in addresses],
        )

    def _computed(
        self, peer: PeerId, lease_id: bytes, spans: Sequence[tuple[float, float]]
    ) -> tuple[ComputedSpan, ...]:
        self.asked_spans.append((peer, lease_id, *spans))
        return self.computed

    async def _listed(self, *, recent: bool) -> Sequence[OfferedDevice]:
        self.listed.append(recent)
        return self.devices


class Scene:
    """`head` may use workers; `others` as a test makes them."""

    def __init__(self, net: Net, folder: Path) -> None:
        self._net, self._folder = net, folder
        self.head = net.mesh("head", "serve")

    def teller(self, name: str, *, machine: str = "", seed: str = "") -> Teller:
        return Teller(self._net, self._folder, name, machine or f"machine of {name}", seed)

    def stranger(self, roles: frozenset[Role]) -> FakeMesh:
        return self._net.mesh("stranger", "serve", roles=roles)


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    async with Owner() as owner:
        yield Scene(Net(owner), folder)
        owner.cancel()
