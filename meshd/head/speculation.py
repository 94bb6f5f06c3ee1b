"""Choice of drafts for llama-server: by the round of the split, and by what was gained. Pure.

llama-server takes the length of drafts at its start and no request can change it, so a change is a load. Its
own rules make drafts follow the text all the same: repeated tokens are drafted where the last twelve have
been there before, and as many as were accepted there the last time. So texts that repeat nothing are made as
without. What is decided here is of a whole life of the model: at each load, and at a quiet moment once the
answers show clearly that another choice is better.

What a round takes without drafts is measured after a load, and by answers in which nothing was drafted. What
a draft model costs is measured before anybody is told that the model is ready, and by answers; a length with
which text would lose of which little is accepted is not used (model/drafts.py). Before that, a round is
estimated: as predicted for the split, else by its paths and weights, at the rates of model/output.py.

`forecast` says how fast a plan would be with drafts, for text that repeats itself and for prose. A round that
checks n drafted tokens takes what a token of 1 + n answers at once does: the same layers compute as many
tokens, and as many cross. Prose repeats nothing, so only a draft model drafts it.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

from meshd.gateway.interface import AnswerTimings
from meshd.model.drafts import (
    LEAST_POOR_GAIN,
    MOST_FREE,
    MOST_MODEL,
    POOR_ACCEPTANCE,
    Drafts,
    acceptance_of,
    best_length,
    best_safe_length,
    gain,
    tokens_of_round,
)
from meshd.model.layers import ModelLayers
from meshd.model.output import CPU_RATE, GPU_RATE
from meshd.model.status import SpeculationStatus
from meshd.plan.plan_prediction import PlanPredictor
from meshd.plan.prediction import PlanOutcome
from meshd.plan.split import Plan
from meshd.plan.wishes import DraftModel, MayDraft

_KEPT = 0.25  # of drafting: the draft model computes once more what was made, several tokens at once

RoundSeconds = Callable[[int], float]
"""Seconds of a round that computes so many tokens of an answer."""

_CHECKED_AT_ONCE = (
    4  # tokens in the time that a CPU takes to read the weights for one: it computes longer then
)

ENOUGH_TOKENS = 1000  # in answers made alone, before they outweigh what is assumed

ENOUGH_OF_MODEL = 200  # the same of a draft model: it costs time in text in which nothing is accepted, too

MADE_GOOD_SECONDS = 600.0  # of answers: what a load takes must be saved in these

BETWEEN_LOADS_SECONDS = 600.0  # from one load to the next for this alone

FORGOTTEN_SECONDS = 24 * 3600.0  # after that what did not pay is tried again: texts change

# Acceptance, before anything is measured. That of a draft model is low: a draft that is too short for a text
# gains a little less, one that is too long may lose.
ASSUMED_FREE, ASSUMED_MODEL = 0.9, 0.6

_LEAST_GAIN = 1.05  # of a draft model that is not measured: its rounds are an estimate

_LOSS = 0.97  # a gain below this is a loss, and not noise

_CLEARLY = 1.15  # times as fast: worth a load

_ALIKE = 0.25  # estimates of rounds that differ by less are of one split

_REMEMBERED_TOKENS = 8192

_ENOUGH_DRAFTED = 100  # tokens, before the share that was accepted is told

_LEAST_GENERATED = 16  # tokens of an answer that tells what a round takes


@dataclass(frozen=True, slots=True)
class RoundEstimate:
    """Estimate seconds: of a round with one token, of checking and of drafting one more token.

    For each round the draft model computes the token which was made, too, in the time of a drafted one.
    `checks`: of checking one, two, … tokens, as far as that is known better.
    """

    round: float
    check: float
    draft: float = 0.0
    checks: tuple[float, ...] = ()

    def checking(self, count: int) -> float:
        """Return the seconds of checking so many drafted tokens in one round."""
        return self.checks[count - 1] if 0 < count <= len(self.checks) else count * self.check

    @property
    def token(self) -> float:
        """Return those of one more token that the draft model drafts."""
        return self.check + (1 + _KEPT) * self.draft


def round_estimate(
    plan: Plan, weights: int, seconds: RoundSeconds | None, draft: DraftModel | None
) -> RoundEstimate:
    """Estimate a round over the split of `plan`.

    `weights`: bytes of the model; `seconds`: of rounds of this plan as predicted, None if they are not.
    A CPU may need for four tokens at once four times as long as for one, and for 32 of them eight times: each
    length has its own time.
    """
    drafting = draft.layers.weight_bytes / CPU_RATE if draft is not None else 0.0
    if seconds is not None:
        single = seconds(1)
        checks = tuple(max(0.0, seconds(1 + length) - single) for length in range(1, MOST_FREE + 1))
        each = max(check / length for length, check in enumerate(checks[:MOST_MODEL], start=1))
        return RoundEstimate(single, each, drafting, checks)
    devices = [share.device for share in plan.taking]
    rate = GPU_RATE if devices and all(device.is_gpu for device in devices) else CPU_RATE
    paths = [device.path.rtt for device in devices if device.path is not None]
    travel = (
        sum(paths) / len(paths) * (len(paths) + 1) / 2 if paths else 0.0
    )  # from each to the next, and back
    computing = weights / rate
    return RoundEstimate(travel + computing, computing / _CHECKED_AT_ONCE, drafting)


def never_a_model(plan: Plan) -> str:
    """Return why nothing can be drafted by a draft model over this split; empty if it can."""
    return "llama.cpp loads none beside a model that is split by tensors" if plan.by_tensors else ""


@dataclass(slots=True)
class _Observed:
    """Sum up answers of one kind of run; older ones count less.

    `round`: seconds of a round without drafts then; `length`: of drafts, in tokens.
    """

    round: float = 0.0
    length: int = 0
    rounds: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    seconds: float = 0.0
    last: float = 0.0  # when it was added to

    @property
    def tokens(self) -> float:
        return self.rounds + self.accepted

    def add(self, timings: AnswerTimings, now: float) -> None:
        if self.tokens > _REMEMBERED_TOKENS:
            self.rounds, self.drafted = self.rounds / 2, self.drafted / 2
            self.accepted, self.seconds = self.accepted / 2, self.seconds / 2
        accepted = min(timings.accepted, timings.drafted, timings.generated_tokens - 1)
        self.rounds += timings.generated_tokens - 1 - accepted  # the first token is the prompt's
        self.drafted += timings.drafted
        self.accepted += accepted
        self.seconds += timings.generated_seconds
        self.last = now

    def is_enough(self, now: float, tokens: int) -> bool:
        return self.tokens >= tokens and now - self.last < FORGOTTEN_SECONDS

    def tells_acceptance(self, now: float) -> bool:
        return self.is_enough(now, ENOUGH_TOKENS) and self.drafted >= _ENOUGH_DRAFTED

    def gain(self, round_seconds: float) -> float:
        """Return the gain against rounds that take `round_seconds` now."""
        taken = self.seconds + self.rounds * (round_seconds - self.round)
        return self.tokens * round_seconds / taken if taken > 0 else 1.0

    def times_dearer(self, estimate: RoundEstimate) -> float:
        """Return how much dearer drafts of a draft model are than estimated."""
        estimated = self.rounds * estimate.draft + self.drafted * estimate.token
        return max(0.0, self.seconds - self.rounds * self.round) / estimated if estimated > 0 else 1.0

    @property
    def acceptance(self) -> float:
        accepted, length = self.accepted, self.length
        return acceptance_of(accepted * length / self.drafted, length) if self.drafted else 0.0


@dataclass(slots=True)
class _Life:
    """Hold the present run, and what a round took in the last one with drafts of its kind."""

    drafts: Drafts = field(default_factory=Drafts)
    began: float = 0.0
    why_no_model: str = ""
    load_seconds: float = 0.0
    tokens: float = 0.0
    drafted: int = 0
    accepted: int = 0


class Speculation:
    """Choose drafts for one model.

    `begin` with each load, then `round_took` and `answered`; `better` asks for another load.
    """

    def __init__(self, may: MayDraft) -> None:
        self._may = may
        self._estimate, self._most = RoundEstimate(0.0, 0.0), MOST_FREE
        self._never_model = ""  # why no draft model can be used over this split
        self._measured: float | None = None  # of a round with one token
        self._free, self._model = _Observed(), _Observed()
        self._dearer, self._is_tried = 1.0, False  # the draft model, than estimated; over this split
        self._life = _Life()

    @property
    def drafts(self) -> Drafts:
        """Return the drafts of the present run."""
        return self._life.drafts

    def begin(
        self, estimate: RoundEstimate, now: float, *, most: int = MOST_FREE, never_model: str = ""
    ) -> Drafts:
        """Begin a run over a split of which this is known; return its drafts, at most `most` tokens long.

        `never_model`: why there can be none by a draft model.
        """
        if abs(estimate.round - self._estimate.round) > _ALIKE * self._estimate.round:
            self._measured, self._is_tried = None, False  # of another split
        self._estimate, self._most, self._never_model = estimate, most, never_model
        self._life = _Life(self._choose(now), now)
        self._life.why_no_model = self._why_no_model(now)
        self._free.length = self._life.drafts.free
        self._model.length = self._life.drafts.model or self._model.length
        return self._life.drafts

    def would_begin(
        self, estimate: RoundEstimate, now: float, *, most: int, never_model: str = ""
    ) -> "Speculation":
        """Return a copy as after `begin`; here nothing begins."""
        begun = deepcopy(self)
        begun.begin(estimate, now, most=most, never_model=never_model)
        return begun

    def acceptances(self, now: float) -> tuple[float | None, float | None]:
        """Return the shares of repeated tokens and of the draft model's that answers accepted.

        None before there are enough of them.
        """
        life = self._life.drafts
        free = life.free and not life.model and self._free.tells_acceptance(now)
        model = self._model.length and self._model.tells_acceptance(now)
        return self._free.acceptance if free else None, self._model.acceptance if model else None

    @property
    def why_no_model(self) -> str:
        """Return why the draft model is not used in the present run; empty if it is, or there is none."""
        return self._life.why_no_model

    @property
    def why_nothing(self) -> str:
        """Return why nothing is drafted, for status; meaningful only while that is so."""
        return self._may.why or "drafts gain nothing here"

    def round_took(self, seconds: float) -> None:
        """Note a round without drafts, with nothing beside it. A draft model computes its token, too."""
        if seconds > 0:
            self._measured = self._without_model(seconds)

    @property
    def is_tried(self) -> bool:
        """Return True if the cost of the draft model beside this split is known, or there is none."""
        return self._is_tried or not self._life.drafts.model

    def loaded(self, seconds: float) -> None:
        """Note that the present run was loaded after so many seconds."""
        self._life.load_seconds = seconds

    def tried(self, seconds: float | None, timings: AnswerTimings | None) -> str:
        """Note a round without drafts, and an answer with them, before anybody asks.

        Returns why the model should be loaded again at once; empty if it should not.
        """
        if not seconds or timings is None:
            return ""
        tried, life = _Observed(), self._life
        tried.add(timings, 0.0)
        more = max(0.0, tried.seconds - tried.rounds * seconds)
        if (estimated := tried.drafted * self._estimate.token) > 0:
            self._dearer, self._is_tried = more / estimated, True
        self.round_took(seconds)
        _, base, token = self._of_model(life.began)
        poor = gain(self._round, token, POOR_ACCEPTANCE, life.drafts.model, base)
        if poor >= LEAST_POOR_GAIN or (1 - poor) * MADE_GOOD_SECONDS < life.load_seconds:
            return ""
        wanted = self._choose(life.began).text
        times = f"{token * 1000:.0f} ms, a round {self._round * 1000:.0f} ms"
        return f"drafts would cost more than they gain (a drafted token takes {times}): now {wanted}"

    def answered(self, timings: AnswerTimings, now: float) -> None:
        """Count an answer that was made alone."""
        life, count = self._life, timings.generated_tokens - 1
        if count < 1:
            return
        if timings.drafted == 0:
            if count >= _LEAST_GENERATED:
                seconds = self._without_model(timings.generated_seconds / count)
                self._measured = seconds if self._measured is None else (self._measured + seconds) / 2
            if not life.drafts.longest:
                life.tokens += count
                return
        life.tokens += count
        life.drafted += timings.drafted
        life.accepted += min(timings.accepted, timings.drafted)
        self._observed.add(timings, now)
        self._observed.round = self._round

    @property
    def _observed(self) -> _Observed:
        return self._model if self._life.drafts.model else self._free

    @property
    def gain(self) -> float | None:
        """Return how much faster than without drafts answers of this kind of run are; None: not known."""
        if not self._life.drafts.longest:
            return 1.0
        if self._measured is None or not self._observed.tokens:
            return None
        return self._observed.gain(self._measured)

    def status(self) -> SpeculationStatus:
        """Return the status of drafts."""
        life, gained = self._life, self.gain
        return SpeculationStatus(
            free=life.drafts.free,
            model=life.drafts.model,
            drafted=life.drafted,
            accepted=life.accepted,
            gain=round(gained, 2) if gained is not None else None,
            why=self._may.why or f"drafts: {life.drafts.text}",
            why_no_model=life.why_no_model,
        )

    def better(self, now: float) -> str:
        """Return why the model should be loaded again with other drafts; empty if it should not."""
        life, now_gain = self._life, self.gain
        if now_gain is None:
            return ""
        wanted = self._choose(now)
        is_known = now - life.began >= BETWEEN_LOADS_SECONDS and life.tokens >= ENOUGH_TOKENS
        is_soon = life.drafts.model and life.tokens >= ENOUGH_OF_MODEL
        pays_soon = (1 - now_gain) * MADE_GOOD_SECONDS > life.load_seconds
        if now_gain < _LOSS and wanted != life.drafts and (is_known or (is_soon and pays_soon)):
            return f"drafts cost more than they gain ({now_gain:.2f} times as fast): now {wanted.text}"
        if is_known and self._expected(wanted, now) > _CLEARLY * now_gain:
            return f"other drafts gain more: now {wanted.text}"
        return ""

    def _without_model(self, seconds: float) -> float:
        """Estimate such a round without a loaded draft model."""
        base = self._dearer * self._estimate.draft if self._life.drafts.model else 0.0
        return max(seconds - base, seconds / 2)

    @property
    def _round(self) -> float:
        return self._measured if self._measured is not None else self._estimate.round

    def _choose(self, now: float) -> Drafts:
        free = self._free_length(now, min(self._most, MOST_FREE)) if self._may.free else 0
        may_model = self._may.model and not self._never_model
        model = self._model_best(now, min(self._most, MOST_MODEL)) if may_model else 0
        return Drafts(free, model)

    def _free_length(self, now: float, most: int) -> int:
        if self._free.is_enough(now, ENOUGH_TOKENS) and self._free.gain(self._round) < _LOSS:
            return 0
        return best_length(self._round, self._estimate.checking, ASSUMED_FREE, most)

    def _model_best(self, now: float, most: int) -> int:
        acceptance, base, token = self._of_model(now)
        length = best_safe_length(self._round, token, acceptance, most, base)
        return length if gain(self._round, token, acceptance, length, base) >= _LEAST_GAIN else 0

    def _why_no_model(self, now: float) -> str:
        """Return what speaks against its drafts, with the times that decide."""
        if not self._may.model or self._life.drafts.model:
            return ""
        if self._never_model:
            return f"draft model not used: {self._never_model}"
        acceptance, base, token = self._of_model(now)
        most = min(self._most, MOST_MODEL)
        is_safe = best_safe_length(self._round, token, acceptance, most, base) > 0
        would = "gain less than 5 %" if is_safe or most == 0 else "slow prose down"
        known = "timed" if self._is_tried else "estimated"
        times = f"{(base + token) * 1000:.1f} ms, a round without drafts {self._round * 1000:.1f} ms"
        return f"draft model not used: it would {would} (drafting and checking a token: {times}, {known})"

    def _of_model(self, now: float) -> tuple[float, float, float]:
        """Return acceptance, seconds of a round that drafts, and of a drafted token.

        They are assumed until enough is measured.
        """
        acceptance, times, estimate = ASSUMED_MODEL, self._dearer, self._estimate
        if self._model.length and self._model.is_enough(now, ENOUGH_OF_MODEL):
            acceptance = self._model.acceptance
            times = self._model.times_dearer(estimate)
        return acceptance, times * estimate.draft, times * estimate.token

    def _expected(self, drafts: Drafts, now: float) -> float:
        """Return the gain of runs with these; 1 where nothing tells."""
        if drafts.model:
            acceptance, base, token = self._of_model(now)
            return gain(self._round, token, acceptance, drafts.model, base)
        if drafts.free and self._free.is_enough(now, ENOUGH_TOKENS):
            return self._free.gain(self._round)
        return 1.0


def uses_a_model(
    speculation: Speculation,
    layers: ModelLayers,
    draft: DraftModel | None,
    now: float,
    plan: Plan,
    rounds: RoundSeconds | None,
) -> bool:
    """Tell whether a run of this plan would begin with the draft model.

    `rounds`: its predicted seconds, if known.
    """
    estimate = round_estimate(plan, layers.weight_bytes, rounds, draft)
    begun = speculation.would_begin(
        estimate, now, most=plan.shape.most_drafted, never_model=never_a_model(plan)
    )
    return begun.drafts.model > 0


@dataclass(frozen=True, slots=True)
class Drafting:
    """Tell how a model is drafted for: what its answers have shown, and its draft model."""

    speculation: Speculation
    draft_model: DraftModel | None = None

    @property
    def snapshot(self) -> "Drafting":
        """Return a copy for another thread."""
        return Drafting(deepcopy(self.speculation), self.draft_model)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftForecast:
    """Forecast the speed of a plan with drafts.

    `free`, `model`: tokens of a draft, at most (model.drafts.Drafts), and the share that is accepted.

    `measured`: that share was, in answers. `why` nothing is drafted, `why_no_model` nothing by the draft
    model; else empty.
    """

    free: int
    model: int
    free_acceptance: float
    model_acceptance: float
    measured: bool
    repetitive_tok_s: float
    prose_tok_s: float
    why: str = ""
    why_no_model: str = ""


def forecast(
    plan: Plan,
    predictor: PlanPredictor,
    outcome: PlanOutcome,
    drafting: Drafting,
    weights: int,
    now: float,
) -> DraftForecast:
    """Forecast with the drafts that a load of this plan would begin with; `weights`: bytes of the model."""
    prediction, draft = outcome.prediction, drafting.draft_model
    estimate = round_estimate(plan, weights, predictor.rounds_of(plan), draft)
    begun = drafting.speculation.would_begin(
        estimate, now, most=plan.shape.most_drafted, never_model=never_a_model(plan)
    )
    drafts = begun.drafts
    shown_free, shown_model = drafting.speculation.acceptances(now)
    free = shown_free if shown_free is not None else ASSUMED_FREE
    model = shown_model if shown_model is not None else ASSUMED_MODEL
    base = estimate.draft if drafts.model else 0.0

    def rate(length: int, acceptance: float, token_s: float) -> float:
        """Return the rate of rounds with so long drafts; `token_s`: to draft one token."""
        seconds = predictor.round_seconds(plan, 1 + length) + base + length * token_s
        return tokens_of_round(acceptance, length) / seconds

    plain = prediction.generate_tok_s
    prose = rate(drafts.model, model, estimate.token - estimate.check) if drafts.model else plain
    used = [shown_free] if drafts.free else []
    used += [shown_model] if drafts.model else []
    return DraftForecast(
        free=drafts.free,
        model=drafts.model,
        free_acceptance=free,
        model_acceptance=model,
        measured=bool(used) and all(rate is not None for rate in used),
        repetitive_tok_s=rate(drafts.free, free, 0.0) if drafts.free else prose,
        prose_tok_s=prose,
        why="" if drafts.longest else begun.why_nothing,
        why_no_model=begun.why_no_model,
    )
