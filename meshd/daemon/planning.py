"""Answers `meshd plan` and `meshd capacity`: looks at the machines, plans for a model, and loads nothing."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from meshd.admin.plan_api import CapacityReply, PlanReply, PlanRequest
from meshd.base import log
from meshd.config import Config
from meshd.daemon.member_node import MemberNode
from meshd.daemon.plan_view import capacity_reply, plan_reply
from meshd.daemon.role_kind import RoleKind
from meshd.daemon.role_runtime import device_speeds
from meshd.daemon.serve_role import head_options
from meshd.model.gguf import Header
from meshd.model.layer_work import REFERENCE_LAYERS, layer_work
from meshd.model.layers import read_layers
from meshd.role.head.split_choice import choose_split
from meshd.role.head.split_plan import HeadOptions, shape_of
from meshd.role.head.survey import Surveyor
from meshd.role.interface import RoleRuntime
from meshd.role.native.device_speeds import DeviceSpeeds
from meshd.store.hash_cache import HashCache
from meshd.store.model_file import ModelFile

LOG = log.get("daemon")


class Planning:
    """Of one daemon, whatever its role. `options`: what the user decided for serving."""

    def __init__(
        self, surveyor: Surveyor, speeds: DeviceSpeeds, options: HeadOptions, cache: HashCache
    ) -> None:
        self._surveyor = surveyor
        self._speeds = speeds
        self._options = options
        self._cache = cache

    async def capacity(self, *, again: bool) -> CapacityReply:
        """`again`: what is known of the speed of this machine's devices is forgotten first.

        Raises MeshdError when this node's own devices cannot be listed.
        """
        if again:
            self._speeds.forget()
        surveyed = await self._surveyor.survey(REFERENCE_LAYERS, _tell)
        me = self._options.node_name
        return capacity_reply(surveyed.machines, me, surveyed.left_out, surveyed.unmeasured)

    async def plan(self, request: PlanRequest) -> PlanReply:
        """Raises UserError for a file that is no model, and where the model fits nowhere."""
        options = replace(
            self._options,
            ctx_size=request.ctx_size or self._options.ctx_size,
            slots=request.streams or self._options.slots,
        )
        headers, name = await self._headers(Path(request.model))
        layers = read_layers(headers, name=name)
        work = layer_work(headers, shape_of(layers, options), layers.count)
        surveyed = await self._surveyor.survey(work.texts, _tell)
        choices = choose_split(layers, work, surveyed.machines, options)
        return plan_reply(name, choices, surveyed.left_out)

    async def _headers(self, path: Path) -> tuple[Sequence[Header], str]:
        file = await ModelFile.open(path, cache=self._cache)
        try:
            return file.headers, file.name
        finally:
            file.close()


def make_planning(config: Config, member: MemberNode, runtime: RoleRuntime, role: RoleKind) -> Planning:
    """With the devices that this node uses in its role as its own."""
    options = replace(head_options(config, member), devices=tuple(role.devices(config)))
    speeds = device_speeds(runtime, role.threads(config))
    cache = HashCache(config.paths.cache / "weights")
    return Planning(Surveyor(runtime, options, speeds), speeds, options, cache)


def _tell(text: str) -> None:
    LOG.info("surveying", why=text)
