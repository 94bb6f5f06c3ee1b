"""Which machines a model runs on, and how it is split over them: the fastest that is predicted. Pure.

Sets and orders of workers, each with a few ways to divide the layers, are ranked by a rough prediction; the
best of them are planned in full (split_plan.py), with their memory, and predicted once more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshd.base.errors import Refused, UserError
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.prediction import Prediction
from meshd.model.split_values import Plan
from meshd.role.head.plan_prediction import (
    CorrectedPart,
    Machines,
    PlanPredictor,
)
from meshd.role.head.rough_splits import Division, RoughSplits
from meshd.role.head.shared_memory import plan_over
from meshd.role.head.speed_corrections import SpeedCorrection
from meshd.role.head.split_plan import HeadOptions, NodeOffer, without_idle

_PLACES = ("head", "worker")  # of the output
_CLEARLY = 1.1  # times as fast, as predicted: worth a word to who has ruled it out
_WORTH = 0.97  # of the time on fewer machines: less than that is worth one more, as these are estimates


@dataclass(frozen=True, slots=True)
class SplitChoice:
    """A split that fits, and what it will do."""

    plan: Plan
    offers: tuple[NodeOffer, ...]
    options: HeadOptions
    prediction: Prediction
    seconds: float
    why: str = ""
    correction: SpeedCorrection | None = None
    parts: tuple[CorrectedPart, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that hold layers, in their order."""
        return tuple(dict.fromkeys(share.device.node for share in self.plan.shares if share.layers))


def choose_split(
    layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions, *, least: int = 0
) -> list[SplitChoice]:
    """All that were planned, the chosen one first. At least `least` workers take part.

    Raises NotEnoughMemory, UserError, Refused where nothing fits, with the reason of the plan by memory.
    """
    chooser = _SplitChooser(layers, work, machines, options, least)
    found: list[SplitChoice] = []
    error: UserError | Refused | None = None
    by_memory, *ranked = chooser.candidates()
    for candidate in [by_memory, *ranked]:
        for output in _PLACES if options.output == "auto" else (options.output,):
            try:
                found.append(chooser.planned(candidate, output))
            except (UserError, Refused) as refusal:
                if candidate is by_memory or len(candidate.offers) >= least:
                    error = error or refusal
    found = _without_twins(sorted(found, key=_cost))
    allowed = [one for one in found if _workers(one) >= least]
    if not allowed:
        raise error or Refused(f"no split uses {least} workers", code="workers")
    return _explained(allowed, [one for one in found if _workers(one) < least])


def _workers(choice: SplitChoice) -> int:
    return len(
        {share.device.node for share in choice.plan.shares if share.layers and not share.device.is_head}
    )


def _cost(choice: SplitChoice) -> float:
    """Each further machine must be worth it."""
    return choice.seconds / _WORTH ** (len(choice.nodes) - 1)


def _without_twins(choices: Sequence[SplitChoice]) -> list[SplitChoice]:
    """Of each division of the layers the first."""
    seen: dict[tuple[tuple[str, str, int], ...], SplitChoice] = {}
    for one in choices:
        shares = tuple((s.device.node, s.device.name, s.layers) for s in one.plan.shares if s.layers)
        seen.setdefault(shares, one)
    return list(seen.values())


def _explained(choices: Sequence[SplitChoice], ruled_out: Sequence[SplitChoice]) -> list[SplitChoice]:
    """`ruled_out`: with fewer workers than the user wants."""
    best = choices[0]
    others = [one for one in choices[1:] if (len(one.nodes) > 1) != (len(best.nodes) > 1)]
    if len(best.nodes) == 1:
        why = f"not split: it fits on `{best.nodes[0]}`"
        if others:
            cost = round(100 * (1 - best.seconds / others[0].seconds))
            why += f", a split costs {cost} %" if cost > 0 else ", and a split gains next to nothing"
    else:
        why = f"split over {' → '.join(f'`{node}`' for node in best.nodes)}"
        if others:
            slower = others[0].seconds / best.seconds
            why += f": {slower:.2f} times as fast as `{others[0].nodes[0]}` alone"
        elif len(choices) > 1 and not any(len(one.nodes) == 1 for one in ruled_out):
            why += ": it fits on no single machine"
    if ruled_out and (times := best.seconds / ruled_out[0].seconds) >= _CLEARLY:
        nodes = " → ".join(f"`{node}`" for node in ruled_out[0].nodes)
        alone = " alone" if len(ruled_out[0].nodes) == 1 else ""
        option = f"`--min-workers {_workers(ruled_out[0])}`"
        why += f"; {nodes}{alone} would be {times:.2f} times as fast: {option}"
    return [replace(best, why=why), *choices[1:]]


class _SplitChooser:
    def __init__(
        self,
        layers: ModelLayers,
        work: LayerWork,
        machines: Machines,
        options: HeadOptions,
        least: int,
    ) -> None:
        self._layers = layers
        self._machines = machines
        self._options = options
        self._plans = PlanPredictor(layers, work, machines, options)
        self._rough = RoughSplits(layers, machines, options, self._plans, least)

    def candidates(self) -> list[Division]:
        """Those that promise most; before them all workers, by memory."""
        return [self._rough.by_memory, *self._rough.ranked()]

    def planned(self, candidate: Division, output: str) -> SplitChoice:
        """Raises NotEnoughMemory, UserError, Refused."""
        split = tuple(map(float, candidate.counts)) or self._options.tensor_split
        options = replace(
            self._options, tensor_split=split, counts_chosen=bool(candidate.counts), output=output
        )
        machines = self._machines
        plan, offers = plan_over(
            self._layers,
            offers=candidate.offers,
            plain_rpc=machines.plain_rpc,
            own=machines.own,
            options=replace(options, min_workers=0),
            own_excluded=machines.own_excluded,
        )
        plan, used = without_idle(plan, offers)
        found = self._plans.predict(plan)
        return SplitChoice(
            plan,
            tuple(used),
            options,
            found.prediction,
            found.answer_s,
            correction=found.correction,
            parts=found.parts,
        )
