"""What one run of the model on a head is given: the model, and what earlier runs found out (model_run.py)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meshd.base.tasks import Owner, first_error
from meshd.head.arrivals import Arrivals
from meshd.head.device_exclusions import DeviceExclusions
from meshd.head.late_measuring import LateMeasuring, own_timed
from meshd.head.own_devices import OwnDevices
from meshd.head.quiet_moments import QuietMoments
from meshd.head.speculation import Speculation
from meshd.head.survey import MachineSpeeds, Surveyor
from meshd.head.worker_backoff import WorkerBackoff
from meshd.identity.keys import PeerId
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.weights_index import WeightsIndex
from meshd.plan.machines import PlainRpc
from meshd.plan.split import Plan
from meshd.plan.wishes import HeadOptions, MayDraft
from meshd.store.interface import WeightsFile
from meshd.wire.lease import OfferedDevice


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model, how its user wants it run, and where its llama-server answers."""

    file: WeightsFile
    index: WeightsIndex
    layers: ModelLayers
    options: HeadOptions
    plain_rpc: Sequence[PlainRpc]
    """The rpc-servers without meshd, as they answered just now."""
    alias: str
    socket: Path

    @property
    def plain_endpoints(self) -> list[str]:
        return [server.endpoint for server in self.plain_rpc]

    def plain_bytes(self, plan: Plan) -> int:
        """Weights that they get over the network."""
        plain = self.plain_endpoints
        return sum(share.weights for share in plan.shares if share.device.node in plain)


Looked = tuple[tuple[tuple[OfferedDevice, ...], Mapping[str, str]], MachineSpeeds]
"""This machine's devices, why some cannot be used; and how fast all are, as far as that is known."""


@dataclass(slots=True)
class RunHistory:
    """What the runs of one model share: each adds what it has found out about workers and devices."""

    own_devices: OwnDevices
    backoff: WorkerBackoff
    moments: QuietMoments
    arrivals: Arrivals
    late_measuring: LateMeasuring
    speculation: Speculation = field(default_factory=lambda: Speculation(MayDraft()))
    surveyor: Surveyor | None = None
    """Asks how fast machines are; None: nobody wants to know."""
    exclusions: DeviceExclusions = field(default_factory=DeviceExclusions)
    late_before: set[PeerId] = field(default_factory=set)
    """Workers that were late the last time they were asked (ask_workers.py)."""
    used: set[PeerId] = field(default_factory=set)
    """Workers with which the model was ready."""

    async def look(
        self,
        names: Mapping[PeerId, str],
        operations: Sequence[str],
        work: LayerWork,
        options: HeadOptions,
        on_progress: Callable[[str], None],
    ) -> Looked:
        """Look at this machine, and at the nodes of these names; nothing is measured. Raises MeshdError."""

        async def tell(text: str) -> None:
            on_progress(f"{options.node_name}: {text}")

        if self.surveyor is None:
            return await self.own_devices.find(operations, tell), MachineSpeeds({}, {}, {})
        try:
            async with Owner() as owner:
                asking = owner.start(self.surveyor.ask_known(names, work.texts), name="known speeds")
                own = await self.own_devices.find(operations, tell)
        except ExceptionGroup as group:
            raise first_error(group) from None
        speeds = self.surveyor.known_speeds(
            names,
            asking.result(),
            own[0],
            work.texts,
            options.node_name,
            own_timed=own_timed(work, options),
        )
        return own, speeds
