"""Say whether models fit on this machine and in the mesh, from estimates of what they need."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, auto

from meshd.base.errors import Refused
from meshd.model.layers import ModelLayers
from meshd.plan.machines import Machines
from meshd.plan.over_offers import plan_over
from meshd.plan.split import NoSplit, Plan
from meshd.plan.wishes import HeadOptions


class Fit(StrEnum):
    """Say where a model's layers would be, the fastest first."""

    GPU = auto()
    PARTLY_CPU = auto()
    CPU = auto()
    NO = auto()


@dataclass(frozen=True, slots=True)
class ModelFit:
    """Hold whether a model fits on this machine alone, and on all machines together."""

    name: str
    here: Fit
    mesh: Fit


def fits(models: Sequence[ModelLayers], machines: Machines, options: HeadOptions) -> list[ModelFit]:
    """Plan each model for one request at a time, with the head's options but without wishes for a split."""
    options = replace(options, slots=1, min_workers=0, layers=(), tensor_split=(), workers=(), draft=None)
    alone = replace(machines, offers=())
    found = []
    for model in models:
        here = _fit(model, alone, options)
        mesh = here if here is Fit.GPU or not machines.offers else _fit(model, machines, options)
        found.append(ModelFit(model.name, here, min(here, mesh, key=list(Fit).index)))
    return found


def _fit(model: ModelLayers, machines: Machines, options: HeadOptions) -> Fit:
    """Try the GPUs first, then CPUs beside them."""
    found = Fit.NO
    for some in (_gpus_of(machines), machines):
        try:
            plan, _ = plan_over(model, some, options)
        except (NoSplit, Refused):
            continue
        found = _where(plan)
        if found is Fit.GPU:
            break
    return found


def _gpus_of(machines: Machines) -> Machines:
    """Return the machines without other machines' CPUs; the head's own always takes part."""
    offers = (
        replace(one, offer=replace(one.offer, devices=tuple(d for d in one.offer.devices if d.kind == "gpu")))
        for one in machines.offers
    )
    return replace(machines, offers=tuple(offers))


def _where(plan: Plan) -> Fit:
    on_gpu = [share.device.is_gpu for share in plan.shares if share.layers]
    return Fit.GPU if all(on_gpu) else Fit.PARTLY_CPU if any(on_gpu) else Fit.CPU
