"""The one change to how a model runs that would gain most, as the planner predicts it. Pure."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from meshd.base.errors import Refused, UserError
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.output import FAR_RATE, NEAR_RATE, NEAR_SECONDS, DevicePath
from meshd.model.split_values import Plan
from meshd.role.head.measured_machines import measured_machines
from meshd.role.head.plan_prediction import ASSUMED_ANSWER, ASSUMED_PROMPT, Machines, PlanPredictor, on_paths
from meshd.role.head.split_choice import SplitChoice, choose_split
from meshd.role.head.split_plan import HeadOptions

_LEAST_GAIN = 0.03  # of an answer's time: predictions are no more exact than that
_OF_ANSWER = f"a prompt of {ASSUMED_PROMPT} tokens and an answer of {ASSUMED_ANSWER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitAdvice:
    """`gain`: the share of an answer's time that `change` saves; rates in tokens a second, predicted.

    `change` empty: nothing is worth it.
    """

    change: str
    gain: float
    why: str
    now_tok_s: float
    then_tok_s: float
    is_measured: bool


@dataclass(frozen=True, slots=True)
class _Option:
    change: str
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
    """`plan` is what runs; memory in `machines` is what it could have had. `drafts`: it runs with some, which
    these predictions leave out.
    """
    predictor = PlanPredictor(layers, work, machines, options)
    plan = on_paths(plan, {offer.node: offer.path for offer in machines.offers}.get)
    outcome = predictor.predict(plan)
    now, prediction = outcome.answer_s, outcome.prediction
    found = list(_options(layers, work, machines, options, plan))
    best = min(found, key=lambda one: one.seconds, default=None)
    gain = 1 - best.seconds / now if best is not None and now > 0 else 0.0
    why = f"predicted {'without drafts ' if drafts else ''}for {_OF_ANSWER}"
    if not prediction.is_measured:
        why += "; some devices were never measured (`meshd capacity` does that while nothing is served)"
    if best is None or gain < _LEAST_GAIN:
        return SplitAdvice(
            change="",
            gain=0.0,
            why=f"{_best_of(plan)}, {why}",
            now_tok_s=prediction.generate_tok_s,
            then_tok_s=prediction.generate_tok_s,
            is_measured=prediction.is_measured,
        )
    return SplitAdvice(
        change=best.change,
        gain=gain,
        why=why,
        now_tok_s=prediction.generate_tok_s,
        then_tok_s=best.tok_s,
        is_measured=prediction.is_measured,
    )


def _options(
    layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions, plan: Plan
) -> Iterator[_Option]:
    """Each with what it is predicted to take."""
    machines = measured_machines(work, machines, options).machines
    free = replace(options, split="auto", tensor_split=(), layers=(), workers=(), min_workers=0)
    current = _nodes(plan)

    def chosen(given: HeadOptions, change: Callable[[SplitChoice], str]) -> Iterator[_Option]:
        with suppress(UserError, Refused):
            best = choose_split(layers, work, machines, given)[0]
            yield _Option(change(best), best.seconds, best.prediction.generate_tok_s)

    yield from chosen(free, lambda one: _change(plan, one, options.node_name))
    if options.devices == ("none",):
        local = replace(free, devices=())
        yield from chosen(
            local, lambda one: f"omit `--device none`, so that `{options.node_name}` computes, too"
        )
    if plan.shape.parallel > 1:
        yield from chosen(
            replace(free, slots=1),
            lambda one: f"one answer at a time (`-- -np 1`): {_change(plan, one, options.node_name)}",
        )
    if options.activations == "f32" and any(node != options.node_name for node in current):
        halved = on_paths(plan, {one.node: _halved(one.path) for one in machines.offers}.get)
        half = PlanPredictor(layers, work, _halved_machines(machines), options).predict(halved)
        yield _Option(
            "send activations as half floats (`--activations f16`)",
            half.answer_s,
            half.prediction.generate_tok_s,
        )


def _best_of(plan: Plan) -> str:
    nodes = _nodes(plan)
    return "this is the fastest split of those that exist" if len(nodes) > 1 else "no split is faster"


def _change(plan: Plan, best: SplitChoice, me: str) -> str:
    """From this split to that one, in words; with the options that ask for it."""
    now, then = _nodes(plan), best.nodes
    dropped = [node for node in now if node not in then]
    added = [node for node in then if node not in now]
    layers = ", ".join(f"`{share.device.node}` {share.layers}" for share in best.plan.shares if share.layers)
    if len(then) == 1:
        return f"do not split: run it on {'this node' if then[0] == me else f'`{then[0]}`'} alone"
    if dropped and not added:
        names = " and ".join(f"`{node}`" for node in dropped)
        return f"drop {names} (layers: {layers})"
    if added:
        names = " and ".join(f"`{node}`" for node in added)
        instead = f" instead of {' and '.join(f'`{node}`' for node in dropped)}" if dropped else ""
        return f"use {names}{instead} (layers: {layers})"
    if list(now) != list(then):
        return f"another order: {' → '.join(f'`{node}`' for node in then)} (layers: {layers})"
    return f"divide the layers otherwise: {layers}"


def _nodes(plan: Plan) -> tuple[str, ...]:
    return tuple(dict.fromkeys(share.device.node for share in plan.shares if share.layers))


def _halved_machines(machines: Machines) -> Machines:
    paths = {ends: halved for ends, path in machines.paths.items() if (halved := _halved(path)) is not None}
    return replace(machines, paths=paths)


def _halved(path: DevicePath | None) -> DevicePath | None:
    """Half the bytes take as long as all of them at twice the rate."""
    if path is None:
        return None
    rate = path.rate or (NEAR_RATE if path.rtt < NEAR_SECONDS else FAR_RATE)
    return DevicePath(path.rtt, 2 * rate)
