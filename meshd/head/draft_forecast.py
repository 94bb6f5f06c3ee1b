"""Forecast of a plan's speed with drafts, for text that repeats itself and for prose (model/drafts.py). Pure.

A round that checks n drafted tokens takes what a token of 1 + n answers at once does: the same layers compute
as many tokens, and as many cross. Text that repeats itself drafts in each round what was there before; prose
repeats nothing, so only a draft model drafts it.
"""

from copy import deepcopy
from dataclasses import dataclass

from meshd.head.speculation import ASSUMED_FREE, ASSUMED_MODEL, Speculation, round_estimate
from meshd.model.drafts import tokens_of_round
from meshd.plan.prediction import PlanOutcome, PlanPredictor
from meshd.plan.split import Plan
from meshd.plan.wishes import DraftModel


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
    begun = drafting.speculation.would_begin(estimate, now, most=plan.shape.most_drafted)
    drafts = begun.drafts
    shown = drafting.speculation.shown(now)
    free = shown.free if shown.free is not None else ASSUMED_FREE
    model = shown.model if shown.model is not None else ASSUMED_MODEL
    base = estimate.base if drafts.model else 0.0

    def rate(length: int, acceptance: float, token_s: float) -> float:
        """Return the rate of rounds with so long drafts; `token_s`: to draft one token."""
        seconds = predictor.round_seconds(plan, 1 + length) + base + length * token_s
        return tokens_of_round(acceptance, length) / seconds

    plain = prediction.generate_tok_s
    prose = rate(drafts.model, model, estimate.token - estimate.check) if drafts.model else plain
    used = [shown.free] if drafts.free else []
    used += [shown.model] if drafts.model else []
    return DraftForecast(
        free=drafts.free,
        model=drafts.model,
        free_acceptance=free,
        model_acceptance=model,
        measured=bool(used) and all(one is not None for one in used),
        repetitive_tok_s=rate(drafts.free, free, 0.0) if drafts.free else prose,
        prose_tok_s=prose,
        why="" if drafts.longest else begun.why_nothing,
        why_no_model=begun.why_no_model,
    )
