"""Decide which of several models is loaded or unloaded, and which requests go ahead or wait. Pure.

The rules, in the order in which they decide:

- Models of one group may be loaded together; a model of another group, or of none, is alone. Two models of a
  group that were found not to fit together are apart for a while.
- One model is loaded at a time, and none while another is unloaded: each plans with the memory that is free.
- Next is the model whose oldest request has waited longest. Nothing that it excludes is loaded before it.
- A model whose room is wanted still takes new requests for as long as its load took, and at least
  `LEAST_TURN_SECONDS`, so that loading never takes more than about half of the time. Then they wait, the
  answers under way end, and it is unloaded. A model with an answer under way is never unloaded.
- A model that was lost under its answers, and fits no more, keeps them waiting for workers only until a
  request needs its room, or waits for it where another model could make room. Then they end.

So every request goes ahead as long as answers end: those that wait for a model go ahead together once it is
ready, and a request waits for no more than one turn of each model that is older than it in the queue.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

LEAST_TURN_SECONDS = 5.0
IDLE_TURN_SECONDS = 1.0  # without a request, before its turn is over: the next one of a client comes at once
PATIENCE_SECONDS = 30.0  # of requests, with a model that waits for workers
APART_SECONDS = 600.0  # two models that did not fit together: other memory may be free then


class ModelStage(Enum):
    """Name what a model is at, as far as requests and memory are concerned."""

    UNLOADED = auto()
    LOADING = auto()
    WAITING = auto()  # for workers, or for better luck: perhaps for ever
    NO_ROOM = auto()  # the plan finds too little memory
    REFUSING = auto()  # failed, or out of reach: requests are told why
    READY = auto()
    UNLOADING = auto()


@dataclass(frozen=True, slots=True)
class ModelRule:
    """Hold what the user decided for a model. It is unloaded `ttl` seconds after a request; 0: never."""

    name: str
    group: str = ""
    ttl: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadDecision:
    """Say what is to be done now: models by name, requests by number. `load` never waits for `unload`."""

    load: str | None = None
    unload: tuple[str, ...] = ()
    begin: tuple[int, ...] = ()
    refuse: tuple[int, ...] = ()


@dataclass(slots=True)
class _Model:
    rule: ModelRule
    wanted: bool = False  # by no request: at the start, or by the user
    stage: ModelStage = ModelStage.UNLOADED
    since: float = 0.0  # of the stage
    tried_since: float = 0.0  # to be ready
    load_seconds: float = 0.0  # of the last load
    used_at: float = 0.0  # the last time
    waiting: dict[int, float] = field(default_factory=dict)  # since when, oldest first
    running: set[int] = field(default_factory=set)

    @property
    def is_there(self) -> bool:
        """Return True if it holds memory, or is about to."""
        return self.stage is not ModelStage.UNLOADED

    @property
    def oldest(self) -> float:
        """Return when the request came that has waited longest."""
        return next(iter(self.waiting.values()), math.inf)

    def turn_is_over(self, now: float) -> bool:
        return now >= self.since + max(LEAST_TURN_SECONDS, self.load_seconds)


class LoadPolicy:
    """Take note of what happens; `decide` says what is to be done. Times are of one clock, in seconds."""

    def __init__(self, rules: Sequence[ModelRule], preload: Iterable[str] = ()) -> None:
        """Load nothing yet. `preload`: loaded at the start, as long as no request wants their room."""
        wanted = set(preload)
        self._models = {rule.name: _Model(rule, wanted=rule.name in wanted) for rule in rules}
        self._of: dict[int, _Model] = {}  # the model of each request
        self._apart: dict[frozenset[str], float] = {}  # until when
        self._last = 0

    def asked(self, name: str, now: float) -> int:
        """Note a new request, which waits; return its number."""
        self._last += 1
        model = self._of[self._last] = self._models[name]
        model.waiting[self._last] = now
        return self._last

    def ended(self, number: int, now: float) -> None:
        """Note that a request is over, or its client has gone. Idempotent."""
        if (model := self._of.pop(number, None)) is not None:
            model.waiting.pop(number, None)
            model.running.discard(number)
            model.used_at = now

    def not_wanted(self, name: str) -> None:
        """Note that it need not be loaded at the start any more."""
        self._models[name].wanted = False

    def want(self, name: str) -> None:
        """Load a model without a request, as at the start."""
        model = self._models[name]
        model.wanted = model.stage is not ModelStage.READY

    def in_the_way(self, name: str) -> Sequence[str]:
        """Return the models that must be unloaded before this one is loaded; none if it is there."""
        model = self._models[name]
        return [] if model.is_there else [other.rule.name for other in self._in_the_way(model)]

    def is_at(self, name: str, stage: ModelStage, now: float) -> None:
        """Note what has become of a model."""
        model = self._models[name]
        if stage is model.stage:
            return
        if stage is ModelStage.READY:
            model.wanted = False
            if model.stage is ModelStage.LOADING:
                model.load_seconds = now - model.tried_since
            model.used_at = now
        elif model.stage in (ModelStage.READY, ModelStage.UNLOADED):
            model.tried_since = now
        model.stage, model.since = stage, now

    def counts(self, name: str) -> tuple[int, int]:
        """Count the requests of a model: under way, and waiting."""
        model = self._models[name]
        return len(model.running), len(model.waiting)

    @property
    def has_waiting(self) -> bool:
        """Return True if requests wait for their models."""
        return any(model.waiting for model in self._models.values())

    @property
    def last_used(self) -> str | None:
        """Return the model that holds memory and has a request now, or had the last one."""
        there = [model for model in self._models.values() if model.is_there]
        last = max(there, key=lambda other: (bool(other.running), other.used_at), default=None)
        return None if last is None else last.rule.name

    def waits_for(self, number: int) -> str:
        """Return the model whose room a waiting request's own model needs; empty if there is none."""
        model = self._of.get(number)
        others = self._in_the_way(model) if model is not None else []
        return others[0].rule.name if others else ""

    def wanted_instead(self, name: str) -> str:
        """Return the model that a request waits for and that cannot be beside this one; empty if none is."""
        model = self._models[name]
        wanted = [
            other
            for other in self._models.values()
            if other is not model
            and other.stage in (ModelStage.UNLOADED, ModelStage.UNLOADING)
            and other.waiting
            and self._excludes(other, model)
        ]
        first = min(wanted, key=lambda other: other.oldest, default=None)
        return "" if first is None else first.rule.name

    def have_a_group(self, name: str, other: str) -> bool:
        """Return True if only memory can keep them apart; else they are never loaded together."""
        return self._have_a_group(self._models[name], self._models[other])

    def decide(self, now: float) -> LoadDecision:
        """Decide what is to be done; the policy takes it as done."""
        self._apart = {pair: until for pair, until in self._apart.items() if until > now}
        self._find_apart(now)
        begin, refuse = self._requests(now)
        unload = [name for name, model in self._models.items() if self._should_go(model, now)]
        for name in unload:
            self.is_at(name, ModelStage.UNLOADING, now)
            self._models[name].wanted = False
        load = self._next_load()
        if load is not None:
            self.is_at(load, ModelStage.LOADING, now)
        return LoadDecision(load, tuple(unload), tuple(begin), tuple(refuse))

    def _find_apart(self, now: float) -> None:
        """Keep a model without room beside others apart from the one of them used least lately."""
        for model in self._models.values():
            if model.stage is ModelStage.NO_ROOM and (others := self._beside(model)):
                least = min(others, key=lambda other: (bool(other.running), other.used_at))
                self._apart[frozenset({model.rule.name, least.rule.name})] = now + APART_SECONDS

    def _beside(self, model: _Model) -> list[_Model]:
        return [other for other in self._models.values() if other is not model and other.is_there]

    # Requests.

    def _requests(self, now: float) -> tuple[list[int], list[int]]:
        """Return those that go ahead, and those that are refused."""
        begin: list[int] = []
        refuse: list[int] = []
        for model in self._models.values():
            if model.stage is ModelStage.READY and self._is_open(model, now):
                begin += model.waiting
                model.running.update(model.waiting)
                model.waiting.clear()
            elif self._is_hopeless(model, now):
                refuse += model.waiting
        for number in refuse:
            self.ended(number, now)
        return begin, refuse

    def _is_open(self, model: _Model, now: float) -> bool:
        """Return True if it takes new requests."""
        return not model.turn_is_over(now) or not self._room_is_wanted(model)

    def _is_hopeless(self, model: _Model, now: float) -> bool:
        """Return True if nothing that is decided here can make it ready."""
        match model.stage:
            case ModelStage.REFUSING:
                return True
            case ModelStage.NO_ROOM:
                return not self._beside(model)
            case ModelStage.WAITING:
                return now - model.tried_since >= PATIENCE_SECONDS
            case _:
                return False

    # Models.

    def _excludes(self, model: _Model, other: _Model) -> bool:
        """Return True if they are never loaded together."""
        apart = frozenset({model.rule.name, other.rule.name}) in self._apart
        return apart or not self._have_a_group(model, other)

    def _have_a_group(self, model: _Model, other: _Model) -> bool:
        return bool(model.rule.group) and model.rule.group == other.rule.group

    def _in_the_way(self, model: _Model) -> list[_Model]:
        return [other for other in self._beside(model) if self._excludes(model, other)]

    def _room_is_wanted(self, model: _Model) -> bool:
        return bool(self.wanted_instead(model.rule.name))

    def _should_go(self, model: _Model, now: float) -> bool:
        if model.stage in (ModelStage.UNLOADED, ModelStage.UNLOADING):
            return False
        if model.stage is ModelStage.NO_ROOM and self._beside(model) and (model.waiting or not model.running):
            return True  # it is loaded again when there is room
        if model.running and (model.stage is not ModelStage.NO_ROOM or not self._room_is_wanted(model)):
            return False
        if self._room_is_wanted(model):
            if model.stage is not ModelStage.READY:
                return not model.waiting
            lingers = now - model.used_at < IDLE_TURN_SECONDS
            return model.turn_is_over(now) or (not model.waiting and not lingers)
        ttl = model.rule.ttl
        return bool(ttl) and not model.waiting and not model.wanted and now - model.used_at >= ttl

    def _next_load(self) -> str | None:
        """Choose the oldest first; none overtakes one that it would be in the way of."""
        if any(other.stage in (ModelStage.LOADING, ModelStage.UNLOADING) for other in self._models.values()):
            return None
        absent = [
            other for other in self._models.values() if not other.is_there and (other.waiting or other.wanted)
        ]
        before: list[_Model] = []
        for model in sorted(absent, key=lambda other: other.oldest):
            if not self._in_the_way(model) and not any(self._excludes(model, other) for other in before):
                return model.rule.name
            before.append(model)
        return None
