"""Answers `meshd plan` and `meshd capacity`: looks at the machines, plans for a model, and loads nothing."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from meshd.admin.plan_api import CapacityReply, PlanReply, PlanRequest
from meshd.base import log
from meshd.base.errors import Refused, UserError
from meshd.config import Config
from meshd.daemon.asked_options import asked_memory, asked_options
from meshd.daemon.member_node import MemberNode
from meshd.daemon.plan_view import capacity_reply, plan_reply
from meshd.daemon.planned_model import planned_model
from meshd.daemon.role_kind import BuiltRole, RoleKind
from meshd.daemon.role_runtime import device_speeds
from meshd.daemon.serve_role import head_options
from meshd.model.gguf import Header
from meshd.model.layer_work import LayerWork, layer_work
from meshd.model.layers import ModelLayers, read_layers
from meshd.model.reference_layer import REFERENCE_LAYERS
from meshd.role.head.draft_forecast import DraftForecast, Drafting, forecast
from meshd.role.head.draft_model import draft_model
from meshd.role.head.fixed_layers import named_by, with_fixed_layers
from meshd.role.head.given_back import Held, with_given_back
from meshd.role.head.longest_context import lengthened, with_largest
from meshd.role.head.measured_machines import Measured, measured_machines
from meshd.role.head.measuring import own_timed
from meshd.role.head.memory_limits import with_memory_limits
from meshd.role.head.missing_weights import lacking_shares, marks_of
from meshd.role.head.plan_prediction import Machines, PlanPredictor
from meshd.role.head.speculation import Speculation
from meshd.role.head.split_choice import SplitChoice, choose_split
from meshd.role.head.split_plan import HeadOptions, may_draft, shape_of
from meshd.role.head.survey import Surveyor
from meshd.role.head.worker_choice import Roster, ServedAs, roster_of
from meshd.role.interface import RoleRuntime
from meshd.role.native.device_speeds import DeviceSpeeds
from meshd.store.hash_cache import HashCache

_NO_LAYERS = "this node computes no layers: it is a client, or has `--device none`"
LOG = log.get("daemon")
Choices = list[tuple[SplitChoice, DraftForecast]]


class Planning:
    """Of one daemon, whatever its role. `options`: what the user decided for serving."""

    def __init__(
        self,
        surveyor: Surveyor,
        speeds: DeviceSpeeds,
        options: HeadOptions,
        cache: HashCache,
        held: Callable[[], Held],
        serving: Callable[[Path], ServedAs],
        drafting: Callable[[Path], Drafting | None],
    ) -> None:
        """`held`: memory that this node's own model takes, which counts as free for another plan.

        `serving`: how a model with this file is, or would be, served. `drafting`: of the model with this
        file; None where this node does not serve it.
        """
        self._held = held
        self._serving = serving
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
        surveyed = await self._surveyor.survey(REFERENCE_LAYERS, _tell, own_timed=own)
        machines, left_out = surveyed.machines, surveyed.left_out
        if not computes:
            machines, left_out = replace(machines, own=()), ((me, _NO_LAYERS), *left_out)
        return capacity_reply(machines, me, left_out, surveyed.unmeasured)

    async def plan(self, request: PlanRequest) -> PlanReply:
        """Raises UserError for a file that is no model, and where the model fits nowhere."""
        (options, roster), path = self._asked(request), Path(request.model)
        limits = asked_memory(request)
        model = await planned_model(path, self._cache)
        headers, index = model.headers, model.index
        layers = read_layers(headers, name=model.name)
        drafting = await self._drafts(request, options, headers, layers)
        options = replace(options, draft_model=drafting.draft_model)
        work = layer_work(headers, shape_of(layers, options), layers.count)
        marks = marks_of(index) if index is not None else b""
        surveyed = await self._surveyor.survey(
            work.texts,
            _tell,
            roster=roster,
            devices=options.devices,
            own_timed=own_timed(work, options),
            marks=marks,
        )
        machines = with_given_back(surveyed.machines, self._held(), options.node_name)
        if index is not None:
            machines = replace(machines, lacking=lacking_shares(index, machines.offers))
        machines = with_memory_limits(machines, limits, options.node_name)
        now = asyncio.get_running_loop().time()

        def choices(spared: Collection[str]) -> Choices:
            offers = tuple(one for one in machines.offers if one.node not in spared)
            there, fixed = with_fixed_layers(replace(machines, offers=offers), options, layers.count)
            measured = measured_machines(work, there, fixed)
            return _choices(layers, work, measured, there, fixed, drafting, now)

        # in a thread: other links and streams are not to wait for it
        found, spared = await asyncio.to_thread(with_fewest, choices, surveyed.spared)
        named = {*dict(spared), *(node for choice, _ in found for node in choice.nodes)}
        unmeasured = measured_machines(work, machines, options).unmeasured.items()
        not_compared = [one for one in unmeasured if one[0] not in named]
        return plan_reply(model.name, found, [*surveyed.left_out, *spared, *not_compared])

    async def _drafts(
        self, request: PlanRequest, options: HeadOptions, headers: Sequence[Header], layers: ModelLayers
    ) -> Drafting:
        """With what the answers of this node have shown, if it serves the model with such drafts."""
        served, asked = self._drafting(Path(request.model)), None
        if request.draft_model:
            drafts = await planned_model(Path(request.draft_model), self._cache)
            asked = draft_model(request.draft_model, drafts.name, drafts.headers, headers[0])
        if served is not None and (asked is None or asked == served.draft_model):
            return served.snapshot
        draft = asked if options.speculate else None
        return Drafting(Speculation(may_draft(layers, replace(options, draft_model=draft))), draft)

    def _asked(self, request: PlanRequest) -> tuple[HeadOptions, Roster]:
        """With whom a head would be that does what was asked. Raises UserError."""
        served = self._serving(Path(request.model))
        options = asked_options(request, served.options)
        roster = served.roster
        if _named(options) != _named(served.options):
            roster = roster.naming(options)
        if request.workers and (unknown := roster.unknown_names()):
            raise UserError(unknown[0], hint="give names or ids as `meshd status` shows them")
        return options, roster


def _named(options: HeadOptions) -> tuple[Sequence[str], str]:
    """The workers, and by which option."""
    return options.workers, named_by(options)


def make_planning(
    config: Config, member: MemberNode, runtime: RoleRuntime, role: RoleKind, built: BuiltRole
) -> Planning:
    """With the devices that this node uses in its role as its own."""
    options = replace(head_options(config, member), devices=tuple(role.devices(config)))
    speeds = device_speeds(runtime, role.threads(config))
    cache = HashCache(config.paths.cache / "weights")
    surveyor = Surveyor(runtime, options, speeds, built.lendable)
    otherwise = ServedAs(options, roster_of(runtime.mesh, options))

    def serving(file: Path) -> ServedAs:
        return built.serving(file) or otherwise

    return Planning(surveyor, speeds, options, cache, built.held, serving, built.drafting)


def with_fewest(
    choices: Callable[[Collection[str]], Choices], spared: Sequence[tuple[str, str]]
) -> tuple[Choices, Sequence[tuple[str, str]]]:
    """Without the spared workers, if the model can be run so, as `meshd serve` tries it; else with them."""
    try:
        return choices([node for node, _ in spared]), spared
    except (UserError, Refused):
        if spared:
            with suppress(UserError, Refused):  # then the first reason is the better one
                return choices(()), ()
        raise


def _choices(
    layers: ModelLayers,
    work: LayerWork,
    measured: Measured,
    machines: Machines,
    options: HeadOptions,
    drafting: Drafting,
    now: float,
) -> Choices:
    """The chosen one first, with the context that it has when served.

    Of the machines that were measured, as `meshd serve` compares them; of all where the model needs them.
    """

    def choose(given: HeadOptions) -> list[SplitChoice]:
        if options.picks_by_speed and measured.unmeasured:
            with suppress(UserError, Refused):
                return choose_split(layers, work, measured.machines, given)
        return choose_split(layers, work, machines, given)

    best, *others = with_largest(choose, layers, options)
    best = replace(best, plan=lengthened(layers, machines, best.options, best.plan, best.offers))
    predictor, weights = PlanPredictor(layers, work, machines, options), layers.weight_bytes
    return [
        (one, forecast(one.plan, predictor, predictor.predict(one.plan), drafting, weights, now))
        for one in (best, *others)
    ]


def _tell(text: str) -> None:
    LOG.info("surveying", why=text)
