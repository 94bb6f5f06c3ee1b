"""Answers `meshd plan` and `meshd capacity`: looks at the machines, plans for a model, and loads nothing."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from meshd.admin.plan_api import CapacityReply, PlanReply, PlanRequest
from meshd.base import log
from meshd.base.errors import UserError
from meshd.config import Config
from meshd.daemon.member_node import MemberNode
from meshd.daemon.plan_view import capacity_reply, plan_reply
from meshd.daemon.role_kind import RoleKind
from meshd.daemon.role_runtime import device_speeds
from meshd.daemon.serve_role import head_options
from meshd.model.gguf import Header
from meshd.model.layer_range import parse_layer_range
from meshd.model.layer_work import REFERENCE_LAYERS, LayerWork, layer_work
from meshd.model.layers import ModelLayers, read_layers
from meshd.role.head.fixed_layers import with_fixed_layers
from meshd.role.head.given_back import Held, with_given_back
from meshd.role.head.longest_context import lengthened, with_largest
from meshd.role.head.plan_prediction import Machines
from meshd.role.head.split_choice import SplitChoice, choose_split
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
        self,
        surveyor: Surveyor,
        speeds: DeviceSpeeds,
        options: HeadOptions,
        cache: HashCache,
        held: Callable[[], Held],
    ) -> None:
        """`held`: memory that this node's own model takes, which counts as free for another plan."""
        self._held = held
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
        options = self._asked(request)
        headers, name = await self._headers(Path(request.model))
        layers = read_layers(headers, name=name)
        work = layer_work(headers, shape_of(layers, options), layers.count)
        surveyed = await self._surveyor.survey(work.texts, _tell)
        given_back = with_given_back(surveyed.machines, self._held(), options.node_name)
        machines, options = with_fixed_layers(given_back, options, layers.count)
        # in a thread: other links and streams are not to wait for it
        choices = await asyncio.to_thread(_choices, layers, work, machines, options)
        return plan_reply(name, choices, surveyed.left_out)

    def _asked(self, request: PlanRequest) -> HeadOptions:
        """What the question says goes before what the user decided for serving. Raises UserError."""
        options = replace(self._options, slots=request.streams or self._options.slots)
        if request.largest_context or request.ctx_size:
            options = replace(
                options, ctx_size=request.ctx_size or None, largest_context=request.largest_context
            )
        if request.layers:
            try:
                ranges = tuple(parse_layer_range(one) for one in request.layers)
            except ValueError as error:
                raise UserError(f"`--layers`: {error}", hint="give NODE=FIRST-LAST") from None
            options = replace(options, layers=ranges, tensor_split=())
        return options

    async def _headers(self, path: Path) -> tuple[Sequence[Header], str]:
        file = await ModelFile.open(path, cache=self._cache)
        try:
            return file.headers, file.name
        finally:
            file.close()


def make_planning(
    config: Config,
    member: MemberNode,
    runtime: RoleRuntime,
    role: RoleKind,
    held: Callable[[], Held],
) -> Planning:
    """With the devices that this node uses in its role as its own."""
    options = replace(head_options(config, member), devices=tuple(role.devices(config)))
    speeds = device_speeds(runtime, role.threads(config))
    cache = HashCache(config.paths.cache / "weights")
    return Planning(Surveyor(runtime, options, speeds), speeds, options, cache, held)


def _choices(
    layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions
) -> list[SplitChoice]:
    """The chosen one first, with the context that it has when served."""
    best, *others = with_largest(lambda given: choose_split(layers, work, machines, given), layers, options)
    plan = lengthened(layers, machines, best.options, best.plan, best.offers)
    return [replace(best, plan=plan), *others]


def _tell(text: str) -> None:
    LOG.info("surveying", why=text)
