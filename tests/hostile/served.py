"""The services of an honest node beside leases and tunnels: models, pieces, capacity, path probes, its API.

The handlers are the daemon's. The node has a small model on disk; its llama-server is always about to start.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from meshd.base.tasks import Owner
from meshd.devices.capacity import CapacityTeller
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.devices.interface import RoleRuntime
from meshd.devices.path_probe import ProbesTaken
from meshd.gateway.access import ApiPort
from meshd.gateway.interface import GatewayConfig, Readiness
from meshd.gateway.request import OneModel
from meshd.gateway.server import Gateway
from meshd.head.member_api import MemberApi
from meshd.library.members.give import ModelsTeller, OfferedModels, PieceGiver
from meshd.link.net.wireless import are_wireless
from meshd.model.status import ModelState
from meshd.store.hash_cache import PieceCache
from meshd.tunnel.joined import join
from meshd.wire.models import ApiModel, ToldDisk
from meshd.worker.lending import Worker

from tests.gguf_bytes import gguf, language_model
from tests.process.gateway_fake import FakeUpstream
from tests.sim.world import WorldNode
from tests.unit.library.members.exchange_scene import CACHES, stores_of
from tests.unit.library.models import put

MODEL = "tiny"


async def free_port() -> ApiPort:
    """A port for the API of one node."""
    return await ApiPort.claim(GatewayConfig(port=0))


class Served:
    """The handlers of one node; `start` begins what they need."""

    def __init__(
        self, node: WorldNode, runtime: RoleRuntime, worker: Worker, folder: Path, api: ApiPort
    ) -> None:
        self._serve_models(node, folder)
        speeds = DeviceSpeeds(
            runtime.native,
            runtime.processes.run_to_end,
            replace(runtime.paths, speed_cache=folder / "speeds"),
            machine="m",
            threads=1,
        )
        ProbesTaken(node.mesh)
        CapacityTeller(
            node.mesh,
            speeds,
            devices=worker.devices,
            machine="m",
            is_busy=lambda: worker.is_lending,
            are_wireless=are_wireless,
            lacks=worker.lacks,
        )
        starting = Readiness(ModelState.WAITING, "no worker is connected")
        upstream = FakeUpstream(folder / "none.sock", model_name=MODEL, readiness=starting)
        self._gateway = Gateway(api, OneModel(upstream), wall=time.time)
        MemberApi(node.mesh, join, self._gateway, self._told, me=node.peer)

    def _serve_models(self, node: WorldNode, folder: Path) -> None:
        put(folder / f"cache/models/{MODEL}.gguf", gguf(*language_model()))
        pieces = PieceCache.below(folder / "cache")
        offered = OfferedModels(lambda: stores_of(folder), folder / "cache/weights", pieces, sources=CACHES)
        ModelsTeller(node.mesh, offered, pieces, pieces.hashes, disk=lambda: ToldDisk(1 << 30))
        PieceGiver(node.mesh, offered, is_serving=lambda: False)

    def start(self, owner: Owner) -> None:
        owner.start(self._gateway.serve(), name="gateway")

    def _told(self) -> Sequence[ApiModel]:
        return [ApiModel(MODEL, "waiting", takes=False, requests=self._gateway.requests_of(MODEL))]
