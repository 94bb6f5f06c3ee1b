"""Several models of one head: each is loaded when it is asked for, and unloaded for others or when idle.

`pool_policy.py` decides; here its decisions are carried out. A model that is loaded is one run of `Model`
(head/model.py), with its own llama-server and leases; cancelling it unloads the model.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.base.errors import MeshdError, UserError
from meshd.base.tasks import Owner
from meshd.base.units import in_number
from meshd.devices.interface import RoleStatus
from meshd.gateway.interface import ModelWish, Readiness
from meshd.head.explain import Explained
from meshd.head.model import TRY_AGAIN_SECONDS, Model
from meshd.head.pool_policy import LoadPolicy, ModelRule, ModelStage
from meshd.head.speculation import Drafting
from meshd.head.worker_choice import ServedAs
from meshd.model.status import ModelState, ModelStatus

_LOOK_SECONDS = 0.1  # at states while something is to be done: nobody tells when one changes
_REST_SECONDS = 1.0  # and while nothing is
_ALONE = "models without a common `group` are loaded one at a time"
_MANY_FAILURES = 3  # loads that came to nothing: another one is no reason to make requests wait
_STAGES = {
    ModelState.READY: ModelStage.READY,
    ModelState.WAITING: ModelStage.WAITING,
    ModelState.FAILED: ModelStage.REFUSING,
    ModelState.DEGRADED: ModelStage.REFUSING,
    ModelState.LOADING: ModelStage.LOADING,
    ModelState.UNLOADED: ModelStage.LOADING,  # its task has not run yet
}


@dataclass(frozen=True, slots=True)
class PooledModel:
    """Hold one of the models. `preload`: it is loaded at the start."""

    rule: ModelRule
    head: Model
    aliases: tuple[str, ...] = ()
    preload: bool = False


class PoolTurn:
    """Implement ModelTurn."""

    def __init__(self, pool: "ModelPool", model: "ModelOnDemand", number: int) -> None:
        self._pool = pool
        self.model = model
        self.number = number
        self._granted: asyncio.Future[Readiness | None] = asyncio.get_running_loop().create_future()

    def grant(self, refused: Readiness | None) -> None:
        """Let it go ahead, or refuse it. Its client may have gone a moment ago."""
        if not self._granted.done():
            self._granted.set_result(refused)

    @property
    def notice(self) -> str:
        """Return what the request waits for, in words; empty if it does not wait."""
        return "" if self._granted.done() else self._pool.reason_to_wait(self)

    async def begin(self) -> Readiness | None:
        """Wait until the model may be asked. Returns its state if it cannot be used, else None."""
        return await self._granted

    def end(self) -> None:
        """End the use. Idempotent."""
        self._pool.ended(self)


class ModelOnDemand:
    """Implement NamedModel."""

    def __init__(self, pool: "ModelPool", given: PooledModel) -> None:
        self._pool = pool
        self.name = given.rule.name
        self.given = given
        self.upstream = given.head
        self._life: asyncio.Task[None] | None = None
        self._is_leaving = False
        self._why_gone = "meshd is stopping"

    def turn(self) -> PoolTurn:
        """Return a turn for a new request."""
        return self._pool.asked(self)

    @property
    def stage(self) -> ModelStage:
        """Return its stage as the policy knows it."""
        if self._life is None or self._life.done():
            return ModelStage.UNLOADED
        if self._is_leaving:
            return ModelStage.UNLOADING
        now = self.upstream.readiness
        if now.no_room:
            return ModelStage.NO_ROOM
        if now.state is ModelState.LOADING and self.upstream.failures >= _MANY_FAILURES:
            return ModelStage.WAITING
        return _STAGES[now.state]

    def unload_unused(self) -> str:
        """Unload it unless requests need it; return why not, or ""."""
        return self._pool.unload_unused(self)

    def load(self, owner: Owner) -> None:
        """Begin its life; the one before has ended."""
        self._is_leaving = False
        self._life = owner.start(self._live(), name=f"model {self.name}")

    def unload(self, why: str) -> None:
        """Begin to end its life."""
        self._is_leaving, self._why_gone = True, why
        if self._life is not None:
            self._life.cancel()

    async def _live(self) -> None:
        """Serve until cancelled: what cannot be loaded now is tried again."""
        try:
            while True:
                try:
                    await self.upstream.serve()
                except MeshdError as error:
                    why = error.with_hint
                    self.upstream.rests(ModelState.FAILED, why)
                await asyncio.sleep(TRY_AGAIN_SECONDS)
        finally:
            self.upstream.rests(ModelState.UNLOADED, self._why_gone)


class ModelPool:
    """Implement RunningRole, and gateway.interface.Models. The first model is the default."""

    only = None
    on_demand = True

    def __init__(self, models: Sequence[PooledModel]) -> None:
        self._models = [ModelOnDemand(self, pooled) for pooled in models]
        self._names = {
            name: on_demand
            for on_demand in self._models
            for name in (on_demand.name, *on_demand.given.aliases)
        }
        preload = [pooled.rule.name for pooled in models if pooled.preload]
        self._policy = LoadPolicy([pooled.rule for pooled in models], preload)
        self._turns: dict[int, PoolTurn] = {}
        self._woken = asyncio.Event()
        for model in self._models:
            model.upstream.rests(ModelState.UNLOADED, "nobody has asked for it")

    # Models.

    @property
    def all(self) -> Sequence[ModelOnDemand]:
        """Return all models."""
        return self._models

    @property
    def readiness(self) -> Readiness:
        """Return the readiness of all together."""
        if any(model.upstream.readiness.state is not ModelState.FAILED for model in self._models):
            return Readiness(ModelState.READY, "")
        return Readiness(ModelState.FAILED, "no model can be served")

    def find(self, wish: ModelWish) -> ModelOnDemand | None:
        """Find the model by name or alias; the default for an empty name."""
        return self._names.get(wish.model) if wish.model else self._models[0]

    @property
    def statuses(self) -> Sequence[ModelStatus]:
        """Return the statuses in the order of `all`."""
        return [self._status(model) for model in self._models]

    def _status(self, model: ModelOnDemand) -> ModelStatus:
        status, (running, waiting) = model.upstream.model_status, self._policy.counts(model.name)
        rule = model.given.rule
        of_requests = replace(status, running=running, waiting=waiting)
        return replace(of_requests, aliases=model.given.aliases, group=rule.group, ttl_s=int(rule.ttl))

    # Turns.

    def asked(self, model: ModelOnDemand) -> PoolTurn:
        """Note a new request for it; return its turn."""
        turn = PoolTurn(self, model, self._policy.asked(model.name, asyncio.get_running_loop().time()))
        self._turns[turn.number] = turn
        self._woken.set()
        return turn

    def ended(self, turn: PoolTurn) -> None:
        """Note that the request is over."""
        self._turns.pop(turn.number, None)
        self._policy.ended(turn.number, asyncio.get_running_loop().time())
        self._woken.set()

    def unload_unused(self, model: ModelOnDemand) -> str:
        """Unload a model unless requests need it; return why not, or ""."""
        if needed := sum(self._policy.counts(model.name)):
            return f"{in_number(needed, 'request')} under way or waiting for it"
        self._policy.not_wanted(model.name)
        if model.stage not in (ModelStage.UNLOADED, ModelStage.UNLOADING):
            model.unload("a user has unloaded it")
        self._woken.set()
        return ""

    def reason_to_wait(self, turn: PoolTurn) -> str:
        """Return why that request waits."""
        model = turn.model
        if model.stage is ModelStage.READY:
            other = self._policy.wanted_instead(model.name)
            return f"{model.name} makes room for {other}; this request is for its next turn" if other else ""
        if model.stage not in (ModelStage.UNLOADED, ModelStage.UNLOADING):
            return f"{model.name}: {model.upstream.readiness.reason}"
        other = self._policy.waits_for(turn.number)
        if not other:
            return f"{model.name} is to be loaded"
        running, _ = self._policy.counts(other)
        answers = f", which has {in_number(running, 'request')} under way" if running else ""
        if self._policy.have_a_group(model.name, other):
            return f"{model.name} waits for the memory of {other}{answers}"
        return f"{model.name} waits for {other}{answers}: {_ALONE}"

    # The user.

    def load(self, name: str) -> None:
        """Load a model without a request, in place of idle ones. Raises UserError."""
        model = self._known(name)
        others = self._policy.in_the_way(model.name)
        for other in others:
            if count := sum(self._policy.counts(other)):
                raise UserError(
                    f"{model.name} needs the room of {other}, which has {in_number(count, 'request')}",
                    hint="try again when these have ended",
                )
        for other in others:
            self.unload_unused(self._names[other])
        self._policy.want(model.name)
        self._woken.set()

    def unload(self, name: str) -> None:
        """Unload a model that has no requests. Raises UserError."""
        model = self._known(name)
        if why := self.unload_unused(model):
            raise UserError(f"{model.name} stays: {why}", hint="try again when these have ended")

    def _known(self, name: str) -> ModelOnDemand:
        if (model := self._names.get(name)) is None:
            names = ", ".join(f"`{model.name}`" for model in self._models)
            raise UserError(f"this node has no model `{name[:80]}`", hint=f"choose one of {names}")
        return model

    # RunningRole.

    @property
    def status(self) -> RoleStatus:
        """Return the status of all models together."""
        roles = [model.upstream.status for model in self._models]
        last = self._policy.last_used
        return RoleStatus(
            children=[child for role in roles for child in role.children],
            tunnels=[tunnel for role in roles for tunnel in role.tunnels],
            model=self._status(self._names[last]) if last is not None else None,
            models=tuple(self.statuses),
            unfit=tuple(dict.fromkeys(note for role in roles for note in role.unfit)),
            unknown=tuple(dict.fromkeys(note for role in roles for note in role.unknown)),
            is_computing=any(role.is_computing for role in roles),
            listed=max((role.listed for role in roles), key=lambda listed: listed.at),
        )

    @property
    def held(self) -> Mapping[tuple[str, str], int]:
        """Return the memory that all models take now, by node and device."""
        found: Counter[tuple[str, str]] = Counter()
        for model in self._models:
            found.update(model.upstream.held)
        return found

    def serving(self, file: Path) -> ServedAs | None:
        """Return how a model with this file is served; None where none has it."""
        served = (model.upstream for model in self._models)
        return next((upstream.serving for upstream in served if upstream.drafting(file) is not None), None)

    def drafting(self, file: Path) -> Drafting | None:
        """Return how a model with this file is drafted for; None where none has it."""
        found = (model.upstream.drafting(file) for model in self._models)
        return next((drafting for drafting in found if drafting is not None), None)

    async def explain(self) -> Explained | None:
        """Return where the time of tokens went, of the model asked last; None while none is loaded."""
        last = self._policy.last_used
        return await self._names[last].upstream.explain() if last is not None else None

    async def serve(self) -> None:
        """Load and unload models until cancelled."""
        async with Owner() as owner:
            while True:
                self._woken.clear()
                is_busy = self._step(owner)
                try:
                    async with asyncio.timeout(_LOOK_SECONDS if is_busy else _REST_SECONDS):
                        await self._woken.wait()
                except TimeoutError:
                    pass

    def _step(self, owner: Owner) -> bool:
        """Look once, and do what follows from it. Returns True if the next look is to be soon."""
        now = asyncio.get_running_loop().time()
        for model in self._models:
            self._policy.is_at(model.name, model.stage, now)
        decision = self._policy.decide(now)
        for number in decision.begin:
            self._turns[number].grant(None)
        for number in decision.refuse:
            turn = self._turns[number]
            turn.grant(turn.model.upstream.readiness)
        for name in decision.unload:
            self._names[name].unload(self._why_unloaded(self._names[name]))
        if decision.load is not None:
            self._names[decision.load].load(owner)
        stages = {model.stage for model in self._models}
        return not stages <= {ModelStage.READY, ModelStage.UNLOADED} or self._policy.has_waiting

    def _why_unloaded(self, model: ModelOnDemand) -> str:
        if other := self._policy.wanted_instead(model.name):
            if self._policy.have_a_group(model.name, other):
                return f"it made room for {other}"
            return f"{other} was asked for: {_ALONE}"
        if model.stage is ModelStage.NO_ROOM:
            return "there is no room for it beside the others"
        return "nobody has asked for it lately"
