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
from meshd.daemon.role_kind import BuiltRole, RoleKind
from meshd.daemon.role_runtime import device_speeds
from meshd.daemon.serve_role import head_options
from meshd.model.gguf import Header
from meshd.model.layer_range import parse_layer_range
from meshd.model.layer_work import LayerWork, layer_work
from meshd.model.layers import ModelLayers, read_layers
from meshd.model.reference_layer import REFERENCE_LAYERS
from meshd.role.head.draft_forecast import DraftForecast, Drafting, forecast
from meshd.role.head.draft_model import draft_model
from meshd.role.head.fixed_layers import with_fixed_layers
from meshd.role.head.given_back import Held, with_given_back
from meshd.role.head.longest_context import lengthened, with_largest
from meshd.role.head.plan_prediction import Machines, PlanPredictor
from meshd.role.head.speculation import Speculation
from meshd.role.head.split_choice import SplitChoice, choose_split
from meshd.role.head.split_plan import HeadOptions, may_draft, shape_of
from meshd.role.head.survey import Surveyor
from meshd.role.interface import RoleRuntime
from meshd.role.native.device_speeds import DeviceSpeeds
from meshd.store.hash_cache import HashCache
from meshd.store.model_file import ModelFile

_NO_LAYERS = "this node computes no layers: it is a client, or has `--device none`"
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
        drafting: Callable[[Path], Drafting | None],
    ) -> None:
        """`held`: memory that this node's own model takes, which counts as free for another plan.

        `drafting`: of the model with this file; None where this node does not serve it.
        """
        self._held = held
        self._drafting = drafting
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
        me, computes = self._options.node_name, self._options.devices != ("none",)
        own = REFERENCE_LAYERS if computes else ()
        surveyed = await self._surveyor.survey(REFERENCE_LAYERS, _tell, own)
        machines, left_out = surveyed.machines, surveyed.left_out
        if not computes:
            machines, left_out = replace(machines, own=()), ((me, _NO_LAYERS), *left_out)
        return capacity_reply(machines, me, left_out, surveyed.unmeasured)

    async def plan(self, request: PlanRequest) -> PlanReply:
        """Raises UserError for a file that is no model, and where the model fits nowhere."""
        options, path = self._asked(request), Path(request.model)
        headers, name = await self._headers(path)
        layers = read_layers(headers, name=name)
        drafting = await self._drafts(request, options, headers, layers)
        options = replace(options, draft_model=drafting.draft_model)
        work = layer_work(headers, shape_of(layers, options), layers.count)
        surveyed = await self._surveyor.survey(work.texts, _tell)
        given_back = with_given_back(surveyed.machines, self._held(), options.node_name)
        machines, options = with_fixed_layers(given_back, options, layers.count)
        # in a thread: other links and streams are not to wait for it
        now = asyncio.get_running_loop().time()
        choices = await asyncio.to_thread(_choices, layers, work, machines, options, drafting, now)
        return plan_reply(name, choices, surveyed.left_out)

    async def _drafts(
        self, request: PlanRequest, options: HeadOptions, headers: Sequence[Header], layers: ModelLayers
    ) -> Drafting:
        """With what the answers of this node have shown, if it serves the model with such drafts."""
        served, asked = self._drafting(Path(request.model)), None
        if request.draft_model:
            drafts, name = await self._headers(Path(request.draft_model))
            asked = draft_model(request.draft_model, name, drafts, headers[0])
        if served is not None and (asked is None or asked == served.draft_model):
            return served.snapshot
        draft = asked if options.speculate else None
        return Drafting(Speculation(may_draft(layers, replace(options, draft_model=draft))), draft)

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
    config: Config, member: MemberNode, runtime: RoleRuntime, role: RoleKind, built: BuiltRole
) -> Planning:
    """With the devices that this node uses in its role as its own."""
    options = replace(head_options(config, member), devices=tuple(role.devices(config)))
    speeds = device_speeds(runtime, role.threads(config))
    cache = HashCache(config.paths.cache / "weights")
    surveyor = Surveyor(runtime, options, speeds, built.lendable)
    return Planning(surveyor, speeds, options, cache, built.held, built.drafting)


def _choices(
    layers: ModelLayers,
    work: LayerWork,
    machines: Machines,
    options: HeadOptions,
    drafting: Drafting,
    now: float,
) -> list[tuple[SplitChoice, DraftForecast]]:
    """The chosen one first, with the context that it has when served."""
    best, *others = with_largest(lambda given: choose_split(layers, work, machines, given), layers, options)
    best = replace(best, plan=lengthened(layers, machines, best.options, best.plan, best.offers))
    predictor, weights = PlanPredictor(layers, work, machines, options), layers.weight_bytes
    return [
        (one, forecast(one.plan, predictor, predictor.predict(one.plan), drafting, weights, now))
        for one in (best, *others)
    ]


def _tell(text: str) -> None:
    LOG.info("surveying", why=text)
