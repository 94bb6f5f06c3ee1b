"""Answer `meshd plan` and `meshd capacity`: survey the machines, plan for a model, and load nothing."""

import asyncio
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.admin.plan_api import CapacityReply, FitsReply, FitsRequest, PlanReply, PlanRequest
from meshd.base import log
from meshd.base.errors import Refused, UserError
from meshd.config.tree import Config
from meshd.daemon.member_node import MemberNode
from meshd.daemon.native import find_native, runner
from meshd.daemon.plan_view import asked_memory, asked_options, capacity_reply, fits_reply, plan_reply
from meshd.daemon.role_kind import BuiltRole, RoleKind
from meshd.daemon.role_runtime import device_speeds
from meshd.daemon.roles import head_options
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.devices.devices import list_devices, pick_for_head
from meshd.devices.interface import RoleRuntime
from meshd.head.served_files import lacking_shares, marks_of
from meshd.head.speculation import DraftForecast, Drafting, Speculation, forecast
from meshd.head.survey import Surveyor
from meshd.head.worker_choice import Roster, ServedAs
from meshd.model.device_speed import REFERENCE_LAYERS
from meshd.model.gguf import Header
from meshd.model.gguf_names import GGUF_SUFFIX, HEADER_SUFFIX
from meshd.model.layer_work import layer_work
from meshd.model.layers import ModelLayers, read_layers
from meshd.model.short_names import short_layers
from meshd.model.weights_index import WeightsIndex
from meshd.plan.auto_way import AutoWay
from meshd.plan.choose_split import SplitChoice, both_ways, ranked_splits
from meshd.plan.machines import (
    Held,
    Machines,
    measured_machines,
    with_given_back,
    with_memory_limits,
)
from meshd.plan.over_offers import fits
from meshd.plan.plan_prediction import PlanPredictor
from meshd.plan.two_ways import OneWay, TwoWays
from meshd.plan.wishes import HeadOptions, draft_model, may_draft, named_by, shape_of
from meshd.store.hash_cache import HashCache
from meshd.store.header_file import HeaderFile, note_path
from meshd.store.model_file import ModelFile, close_all, is_header, opened

_NO_LAYERS = "this node computes no layers: it is a client, or has `--device none`"
LOG = log.get("daemon")
Choices = list[tuple[SplitChoice, DraftForecast]]


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model to plan for. `name`: its file's name; `index` None: it was never hashed here."""

    name: str
    headers: Sequence[Header]
    index: WeightsIndex | None = None


async def planned_model(path: Path, cache: HashCache) -> PlannedModel:
    """Open a model for a plan: a whole one, a header that a head serves, or headers fetched for a plan.

    Raises UserError.
    """
    if is_header(path) and not note_path(path).exists():
        shards = await opened(path, header_only=True)
        close_all(shards)
        name = path.name.removesuffix(HEADER_SUFFIX) + GGUF_SUFFIX
        return PlannedModel(name, [shard.header for shard in shards])
    if is_header(path):
        file: ModelFile = await HeaderFile.open_header(path)
    else:
        file = await ModelFile.open(path, cache=cache)
    try:
        return PlannedModel(file.name, file.headers, file.known_index())
    finally:
        file.close()


class Planning:
    """The planning of one daemon in any role. `options`: the user's settings for serving."""

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
        """Take `held`: the memory that this node's own model takes, which counts as free for another plan.

        `serving`: returns how a file's model is, or would be, served. `drafting`: returns the drafts of a
        file's model; None if this node does not serve it.
        """
        self._held = held
        self._serving = serving
        self._drafting = drafting
        self._surveyor = surveyor
        self._speeds = speeds
        self._options = options
        self._cache = cache

    async def capacity(self, *, again: bool) -> CapacityReply:
        """Survey all machines. `again`: first forget the measured speeds of this machine's devices.

        Raises MeshdError if this node's own devices cannot be listed.
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

    async def fits(self, request: FitsRequest) -> FitsReply:
        """Say which models with short names fit.

        Raises MeshdError if this node's own devices cannot be listed.
        """
        surveyed = await self._surveyor.survey((), _tell, measure=False)
        machines = with_given_back(surveyed.machines, self._held(), self._options.node_name)
        sizes = {known.name: known.bytes for known in request.known}
        found = await asyncio.to_thread(fits, short_layers(sizes), machines, self._options)
        workers = tuple(offer.node for offer in machines.offers)
        return fits_reply(found, workers, surveyed.left_out)

    async def plan(self, request: PlanRequest) -> PlanReply:
        """Plan for a model. Raises UserError if the file is not a model, or the model fits nowhere."""
        # The model and the options.
        (options, roster), path = self._asked(request), Path(request.model)
        ways_before = self._serving(path).ways
        limits = asked_memory(request)
        model = await planned_model(path, self._cache)
        headers, index = model.headers, model.index
        layers = read_layers(headers, name=model.name)
        drafting = await self._drafts(request, options, headers, layers)
        options = replace(options, draft=drafting.draft_model)
        # The machines.
        work = layer_work(headers, shape_of(layers, options), layers.count)
        marks = marks_of(index) if index is not None else b""
        surveyed = await self._surveyor.compared(work, options, roster, self._held(), _tell, marks=marks)
        machines, now = surveyed.machines, asyncio.get_running_loop().time()
        if index is not None:
            machines = replace(machines, lacking=lacking_shares(index, machines.offers))
        machines = with_memory_limits(machines, limits, options.node_name)
        # The splits.

        def choices(spared: Collection[str]) -> Choices:
            offers = tuple(offer for offer in machines.offers if offer.node not in spared)
            there = replace(machines, offers=offers)
            return [forecasted(split, there) for split in ranked_splits(layers, work, there, options)]

        def forecasted(split: SplitChoice, there: Machines) -> tuple[SplitChoice, DraftForecast]:
            predictor, weights = PlanPredictor(layers, work, there, options), layers.weight_bytes
            outcome = predictor.predict(split.plan)
            return split, forecast(split.plan, predictor, outcome, drafting, weights, now)

        def both(found: Choices, spared: Collection[str]) -> tuple[Choices, TwoWays | OneWay | None]:
            """Return the splits, first the one by tensors if that is chosen, and the comparison."""
            offers = tuple(offer for offer in machines.offers if offer.node not in spared)
            there = replace(machines, offers=offers)
            first = found[0][1]
            auto = AutoWay(lambda _plan, _rounds: first.model > 0, ways_before.failed)
            ways, chosen = both_ways(layers, work, there, options, [split for split, _ in found], auto)
            return ([forecasted(chosen, there)] if chosen is not None else []) + found, ways

        # In a thread, so that links and streams need not wait.
        found, spared = await asyncio.to_thread(with_fewest, choices, surveyed.spared)
        found, ways = await asyncio.to_thread(both, found, [node for node, _ in spared])
        named = {*dict(spared), *(node for choice, _ in found for node in choice.plan.nodes)}
        unmeasured = measured_machines(work, machines, options).unmeasured.items()
        not_compared = [(node, str(why)) for node, why in unmeasured if node not in named]
        left_out = [*surveyed.left_out, *spared, *not_compared]
        return plan_reply(model.name, options.node_name, found, left_out, ways)

    async def _drafts(
        self, request: PlanRequest, options: HeadOptions, headers: Sequence[Header], layers: ModelLayers
    ) -> Drafting:
        """Return the drafts, with measurements of this node's answers if it serves the model with them."""
        served, asked = self._drafting(Path(request.model)), None
        if request.draft_model:
            drafts = await planned_model(Path(request.draft_model), self._cache)
            asked = draft_model(request.draft_model, drafts.name, drafts.headers, headers[0])
        if served is not None and (asked is None or asked == served.draft_model):
            return served.snapshot
        draft = asked if options.speculate == "auto" else None
        return Drafting(Speculation(may_draft(layers, replace(options, draft=draft))), draft)

    def _asked(self, request: PlanRequest) -> tuple[HeadOptions, Roster]:
        """Return the options and workers of a head that serves as requested. Raises UserError."""
        served = self._serving(Path(request.model))
        options = asked_options(request, served.options)
        roster = served.roster
        if _named(options) != _named(served.options):
            roster = roster.naming(options)
        if request.workers and (unknown := roster.unknown_names()):
            raise UserError(unknown[0], hint="give names or ids as `meshd status` shows them")
        return options, roster


def _named(options: HeadOptions) -> tuple[Sequence[str], str]:
    """Return the named workers, and the option that names them."""
    return options.workers, named_by(options)


def make_planning(
    config: Config, member: MemberNode, runtime: RoleRuntime, role: RoleKind, built: BuiltRole
) -> Planning:
    """Make the planning; this node's own devices are those that its role uses."""
    options = replace(head_options(config, member), devices=tuple(role.devices(config)))
    speeds = device_speeds(runtime, role.threads(config))
    cache = HashCache(config.paths.cache / "weights")
    surveyor = Surveyor(runtime, options, speeds, built.lendable)
    otherwise = ServedAs(options, Roster(runtime.mesh, options))

    def serving(file: Path) -> ServedAs:
        return built.serving(file) or otherwise

    return Planning(surveyor, speeds, options, cache, built.held, serving, built.drafting)


async def fits_alone(config: Config, request: FitsRequest) -> FitsReply:
    """Answer for this machine alone, where no node runs.

    Raises MeshdError if its devices cannot be listed.
    """
    native = find_native(config.paths)
    with tempfile.TemporaryDirectory(prefix="meshd-devices-") as logs:
        log = Path(logs) / "devices.log"
        run = runner(config.node.sandbox)
        devices = await list_devices(native.mesh_server, machine="", run_to_end=run, log=log)
    sizes = {known.name: known.bytes for known in request.known}
    options = HeadOptions(node_name=config.node.name, devices=config.serve.devices)
    machines = Machines((), pick_for_head(devices, options.devices))
    return fits_reply(fits(short_layers(sizes), machines, options), ())


def with_fewest(
    choices: Callable[[Collection[str]], Choices], spared: Sequence[tuple[str, str]]
) -> tuple[Choices, Sequence[tuple[str, str]]]:
    """Choose splits without the spared workers if possible, as `meshd serve` does, else with them."""
    try:
        return choices([node for node, _ in spared]), spared
    except (UserError, Refused):
        if spared:
            with suppress(UserError, Refused):  # the first error is the better one
                return choices(()), ()
        raise


def _tell(text: str) -> None:
    LOG.info("surveying", why=text)
