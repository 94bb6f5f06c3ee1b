"""Compare predicted with measured speed, and say whether the choice was good: `tests.bench.plan`. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from meshd.base.errors import MeshdError
from meshd.bench.figures import Table
from meshd.model.status import Speeds
from meshd.plan.prediction import ASSUMED_ANSWER, ASSUMED_PROMPT

from tests.bench.plan_setups import Setup

_SLOWER = 1.05  # times the fastest: measurements of the same differ by as much


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The shares by which predictions may be off."""

    generation: float
    prompts: float


@dataclass(frozen=True, slots=True)
class PlanRun:
    """The options of a head, and what it did: `nodes` have the layers."""

    nodes: tuple[str, ...]
    predicted: Speeds
    measured: Speeds

    @property
    def generation(self) -> float:
        """Predicted to measured. Raises MeshdError."""
        return _ratio(self.predicted.generate_tok_s, self.measured.generate_tok_s)

    @property
    def prompts(self) -> float:
        """The same."""
        return _ratio(self.predicted.prompt_tok_s, self.measured.prompt_tok_s)

    @property
    def answer_seconds(self) -> float:
        """Return the seconds of the answer by which splits are compared. Raises MeshdError."""
        prompt, generate = self.measured.prompt_tok_s, self.measured.generate_tok_s
        if not prompt or not generate:
            raise MeshdError("a speed is missing: nothing was answered")
        return ASSUMED_PROMPT / prompt + ASSUMED_ANSWER / generate

    def is_within(self, limits: Tolerance) -> bool:
        """Return True if the prediction holds."""
        return abs(self.generation - 1) <= limits.generation and abs(self.prompts - 1) <= limits.prompts


@dataclass(frozen=True, slots=True)
class SetupFigures:
    """`whole`: over all workers. `chosen` is among the `runs`; None: the head had no choice."""

    setup: Setup
    whole: PlanRun
    runs: tuple[PlanRun, ...]
    chosen: PlanRun | None = None

    @property
    def fastest(self) -> PlanRun:
        """Return the fastest of all that were measured."""
        return min(self.runs, key=lambda run: run.answer_seconds)

    @property
    def is_well_chosen(self) -> bool:
        """No other set of workers is more than 5 % faster."""
        chosen, fastest = self.chosen, self.fastest
        if chosen is None or {*chosen.nodes} == {*fastest.nodes}:
            return True
        return chosen.answer_seconds <= _SLOWER * fastest.answer_seconds

    def is_good(self, limits: Tolerance) -> bool:
        """Predictions hold, and the choice was right."""
        return self.whole.is_within(limits) and self.is_well_chosen


def run_line(run: PlanRun) -> str:
    """Return the line that is printed of a run as soon as it is over."""
    generation = _pair(run.predicted.generate_tok_s, run.measured.generate_tok_s)
    prompts = _pair(run.predicted.prompt_tok_s, run.measured.prompt_tok_s)
    return f"{_named(run)}: generation {generation}, prompts {prompts}"


def result_table(found: Sequence[tuple[int, SetupFigures]], limits: Tolerance) -> Table:
    """A row for each set-up, which stands with its number."""
    head = (
        "set-up",
        "generation: predicted, measured (ratio)",
        "prompts",
        f"within {limits.generation:.0%} and {limits.prompts:.0%}",
        "chosen, its answer",
        "fastest, its answer",
        "fastest or within 5%",
    )
    return head, [_row(number, one, limits) for number, one in found]


def _row(number: int, found: SetupFigures, limits: Tolerance) -> Sequence[str]:
    whole, chosen = found.whole, found.chosen
    row = [
        f"{number}. {found.setup.text}",
        _pair(whole.predicted.generate_tok_s, whole.measured.generate_tok_s),
        _pair(whole.predicted.prompt_tok_s, whole.measured.prompt_tok_s),
        "yes" if whole.is_within(limits) else "no",
    ]
    if chosen is None:
        return [*row, "-", "-", "-"]
    return [*row, _named(chosen), _named(found.fastest), "yes" if found.is_well_chosen else "no"]


def _named(run: PlanRun) -> str:
    return f"{'+'.join(run.nodes)}, {run.answer_seconds:.2f} s"


def _pair(predicted: float | None, measured: float | None) -> str:
    return f"{predicted:.1f}, {measured:.1f} ({_ratio(predicted, measured):.2f})"


def _ratio(predicted: float | None, measured: float | None) -> float:
    if not predicted or not measured:
        raise MeshdError("a speed is missing: a device could not be measured, or nothing was answered")
    return predicted / measured
