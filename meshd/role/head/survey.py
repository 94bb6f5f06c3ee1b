"""Looks at all machines of the mesh for a model: what they could lend, how fast they are, how far apart.

Nothing is reserved. What somebody computes meanwhile is not disturbed: then devices have no new times.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.identity.role_names import CLIENT_ROLE, WORKER_ROLE
from meshd.model.device_speed import DeviceSpeed
from meshd.model.output import DevicePath
from meshd.peer.interface import PeerState
from meshd.role.capacity.ask_capacity import CapacityAnswer, ask_all, lacks_times
from meshd.role.head.plan_prediction import Machines
from meshd.role.head.speed_corrections import SpeedCorrections
from meshd.role.head.split_plan import HeadOptions, NodeOffer, path_to
from meshd.role.interface import RoleRuntime
from meshd.role.native.device_list import Listing
from meshd.role.native.device_speeds import DeviceSpeeds
from meshd.role.native.devices import pick_for_head
from meshd.wire.capacity import WHOLE_SHARE, Capacity
from meshd.wire.lease import LEASE_ID_BYTES, OfferedDevice, WorkerOffer

LENDS_NOTHING = "it serves a model, and lends nothing"
ONLY_ASKS = "it is a client, and lends nothing"
BUSY = "it has a model loaded, and was not measured before; run `meshd capacity` there, or ask again later"
OnProgress = Callable[[str], None]
Lendable = Callable[[Sequence[OfferedDevice]], tuple[OfferedDevice, ...]]


@dataclass(frozen=True, slots=True)
class MachineSpeeds:
    """`speeds` by node and device, `paths` from node to node; what each node answered."""

    speeds: Mapping[tuple[str, str], DeviceSpeed]
    paths: Mapping[tuple[str, str], DevicePath]
    answers: Mapping[PeerId, CapacityAnswer]


@dataclass(frozen=True, slots=True)
class Surveyed:
    """`machines` for a plan; `left_out`: nodes that take no part, and why.

    `unmeasured`: those that lack the speed of a device, and why.
    """

    machines: Machines
    left_out: tuple[tuple[str, str], ...] = ()
    unmeasured: tuple[tuple[str, str], ...] = ()


class Surveyor:
    """Of one daemon; `speeds` are those of its own devices, and `lendable` what may be used of them."""

    def __init__(
        self,
        runtime: RoleRuntime,
        options: HeadOptions,
        speeds: DeviceSpeeds,
        lendable: Lendable = tuple,
    ) -> None:
        native, run_to_end, paths = runtime.native, runtime.processes.run_to_end, runtime.paths
        self._mesh = runtime.mesh
        self._options = options
        choose = partial(pick_for_head, asked=options.devices)
        self._listing = Listing(native, run_to_end, paths, machine=options.machine, choose=choose)
        self._speeds = speeds
        self._lendable = lendable
        self.corrections = SpeedCorrections(paths.correction_cache)

    async def survey(
        self, timed: Sequence[str], on_progress: OnProgress, own_timed: Sequence[str] | None = None
    ) -> Surveyed:
        """All that there is; `own_timed` as in `speeds_of`.

        Raises MeshdError when this node's own devices cannot be listed.
        """
        connected = [peer for peer in self._mesh.peers() if peer.state is PeerState.CONNECTED]
        peers = {peer.peer: peer for peer in connected if peer.role == WORKER_ROLE}
        own = self._lendable(await self._listing.devices())
        said = {str(peer): status.name for peer, status in peers.items()}
        called = naming.labels(said, (self._options.node_name,))
        names = {peer: called[str(peer)] for peer in peers}
        me = self._options.node_name
        found = await self.speeds_of(names, own, timed, me, on_progress, own_timed=own_timed)
        offers: list[NodeOffer] = []
        left_out = [
            (peer.name, ONLY_ASKS if peer.role == CLIENT_ROLE else LENDS_NOTHING)
            for peer in connected
            if peer.role != WORKER_ROLE
        ]
        unmeasured: list[tuple[str, str]] = []
        for peer, answer in found.answers.items():
            if answer.capacity is None:
                left_out.append((names[peer], answer.why_not))
            else:
                offer = _as_offer(answer.capacity)
                offers.append(NodeOffer(names[peer], offer, path_to(peers[peer].paths)))
                if answer.capacity.busy and lacks_times(answer.capacity, len(timed)):
                    unmeasured.append((names[peer], BUSY))
        offers.sort(key=lambda offer: offer.node)
        machines = Machines(
            tuple(offers), tuple(own), found.speeds, found.paths, corrections=self.corrections
        )
        return Surveyed(machines, tuple(left_out), tuple(unmeasured))

    async def speeds_of(
        self,
        names: Mapping[PeerId, str],
        own: Sequence[OfferedDevice],
        timed: Sequence[str],
        me: str,
        on_progress: OnProgress,
        *,
        own_timed: Sequence[str] | None = None,
        measure: bool = True,
        recent: bool = False,
    ) -> MachineSpeeds:
        """Of these nodes and this one, which is called `me`.

        `own_timed`: of `timed` what this node's own devices may compute, if not all. `measure`: now,
        where that was not done before. `recent`: how much memory is free is known from elsewhere.
        """

        async def tell(text: str) -> None:
            on_progress(f"{me}: {text}")

        if measure:
            await self._speeds.measure(own, timed if own_timed is None else own_timed, tell)
        answers = await ask_all(
            self._mesh,
            list(names),
            timed,
            lambda peer, text: on_progress(f"{names[peer]}: {text}"),
            measure=measure,
            recent=recent,
        )
        share = self._speeds.cpu_share / WHOLE_SHARE
        cores = self._speeds.core_set
        speeds = {
            (me, device.name): DeviceSpeed(self._speeds.known(device, timed), share=share, cores=cores)
            for device in own
        }
        paths: dict[tuple[str, str], DevicePath] = {}
        by_id = {peer.raw: name for peer, name in names.items()}
        for peer, answer in answers.items():
            if answer.capacity is None:
                continue
            share = answer.capacity.cpu_share / WHOLE_SHARE
            for one in answer.capacity.devices:
                speeds[names[peer], one.device.name] = DeviceSpeed(
                    one.times, share=share, cores=answer.capacity.core_set
                )
            for path in answer.capacity.paths:
                if path.peer in by_id:
                    paths[names[peer], by_id[path.peer]] = DevicePath(path.rtt_us / 1e6, path.rate or None)
        return MachineSpeeds(speeds, paths, answers)


def _as_offer(capacity: Capacity) -> WorkerOffer:
    return WorkerOffer(
        tuple(one.device for one in capacity.devices),
        has_model=False,
        machine=capacity.machine,
        lease_id=bytes(LEASE_ID_BYTES),
    )
