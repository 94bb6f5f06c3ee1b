"""Find the one change to how a model runs that would gain most, as the planner predicts it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from meshd.base.errors import Refused, UserError
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.output import FAR_RATE, NEAR_RATE, NEAR_SECONDS, DevicePath
from meshd.plan.choice import SplitChoice, cheapest, choose_split
from meshd.plan.machines import Machines, measured_machines
from meshd.plan.prediction import ASSUMED_ANSWER, ASSUMED_PROMPT, PlanOutcome, PlanPredictor, on_paths
from meshd.plan.reasons import (
    AdviceBasis,
    Change,
    Divide,
    Drop,
    HalfFloats,
    LetHeadCompute,
    OneAtOnce,
    Reorder,
    RunOn,
    SplitChange,
    Use,
)
from meshd.plan.split import Plan
from meshd.plan.wishes import HeadOptions

_LEAST_GAIN = 0.03  # of an answer's time: predictions are no more exact than that


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitAdvice:
    """Hold the `change` that saves a share of `gain` of an answer's time, and the rate with it, `then_tok_s`.

    `change` None: nothing is worth it. `basis` has the comparison of splits that `meshd plan` shows.
    `now`: what is predicted of the split that runs, by the function and from the inputs of `meshd plan`.
    """

    change: Change | None
    gain: float
    basis: AdviceBasis
    now: PlanOutcome
    then_tok_s: float


@dataclass(frozen=True, slots=True)
class _Option:
    change: Change
    seconds: float
    tok_s: float


def advise(
    layers: ModelLayers,
    work: LayerWork,
    machines: Machines,
    options: HeadOptions,
    plan: Plan,
    *,
    drafts: bool = False,
) -> SplitAdvice:
    """Compare the plan that runs with what else it could be.

    Memory in `machines` is what it could have. `drafts`: it runs with some; predictions leave them out.
    """
    predictor = PlanPredictor(layers, work, machines, options)
    plan = on_paths(plan, {offer.node: offer.path for offer in machines.offers}.get)
    now = predictor.predict(plan)
    compared = _splits(layers, work, measured_machines(work, machines, options).machines, options)
    found = list(_options(layers, work, machines, options, plan, compared))
    best = min(found, key=lambda one: one.seconds, default=None)
    gain = 1 - best.seconds / now.answer_s if best is not None and now.answer_s > 0 else 0.0
    basis = AdviceBasis(
        compared[0].comparison if compared else None,
        ASSUMED_PROMPT,
        ASSUMED_ANSWER,
        drafts=drafts,
        estimated=not now.prediction.is_measured,
    )
    if best is None or gain < _LEAST_GAIN:
        then = now.prediction.generate_tok_s
        return SplitAdvice(change=None, gain=0.0, basis=basis, now=now, then_tok_s=then)
    return SplitAdvice(change=best.change, gain=gain, basis=basis, now=now, then_tok_s=best.tok_s)


def _free(options: HeadOptions) -> HeadOptions:
    """Leave all as the user wants it, but for how it is split."""
    return replace(options, split="auto", tensor_split=(), layers=(), workers=(), min_workers=0)


def _splits(
    layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions
) -> Sequence[SplitChoice]:
    """Plan all splits, the one first that `meshd serve` and `meshd plan` choose; none where nothing fits."""
    least = min(options.min_workers or 0, len(machines.offers))
    with suppress(UserError, Refused):
        return choose_split(layers, work, machines, _free(options), least=least)
    return ()


def _options(
    layers: ModelLayers,
    work: LayerWork,
    machines: Machines,
    options: HeadOptions,
    plan: Plan,
    compared: Sequence[SplitChoice],
) -> Iterator[_Option]:
    """Yield changes with what they are predicted to take; `compared`: other splits as the options are."""
    machines = measured_machines(work, machines, options).machines
    free = _free(options)
    current = _nodes(plan)

    def chosen(given: HeadOptions, change: Callable[[SplitChoice], Change]) -> Iterator[_Option]:
        with suppress(UserError, Refused):
            best = choose_split(layers, work, machines, given)[0]
            yield _Option(change(best), best.seconds, best.prediction.generate_tok_s)

    if compared:
        best = cheapest(compared)
        change = _change(plan, best, options.node_name)
        yield _Option(change, best.seconds, best.prediction.generate_tok_s)
    if options.devices == ("none",):
        local = replace(free, devices=())
        yield from chosen(local, lambda _: LetHeadCompute(options.node_name))
    if plan.shape.parallel > 1:
        yield from chosen(
            replace(free, slots=1),
            lambda one: OneAtOnce(_change(plan, one, options.node_name)),
        )
    if options.activations == "f32" and any(node != options.node_name for node in current):
        halved = on_paths(plan, {one.node: _halved(one.path) for one in machines.offers}.get)
        half = PlanPredictor(layers, work, _halved_machines(machines), options).predict(halved)
        yield _Option(HalfFloats(), half.answer_s, half.prediction.generate_tok_s)


def _change(plan: Plan, best: SplitChoice, me: str) -> SplitChange:
    """Tell what leads from this split to that one."""
    now, then = _nodes(plan), best.nodes
    dropped = tuple(node for node in now if node not in then)
    added = tuple(node for node in then if node not in now)
    layers = tuple((share.device.node, share.layers) for share in best.plan.shares if share.layers)
    if len(then) == 1:
        return RunOn(then[0], then[0] == me)
    if dropped and not added:
        return Drop(dropped, layers)
    if added:
        return Use(added, dropped, layers)
    return Reorder(then, layers) if now != then else Divide(layers)


def _nodes(plan: Plan) -> tuple[str, ...]:
    return tuple(dict.fromkeys(share.device.node for share in plan.shares if share.layers))


def _halved_machines(machines: Machines) -> Machines:
    paths = {ends: halved for ends, path in machines.paths.items() if (halved := _halved(path)) is not None}
    return replace(machines, paths=paths)


def _halved(path: DevicePath | None) -> DevicePath | None:
    """Double the rate: half the bytes take as long as all of them at twice the rate."""
    if path is None:
        return None
    rate = path.rate or (NEAR_RATE if path.rtt < NEAR_SECONDS else FAR_RATE)
    return replace(path, rate=2 * rate)
