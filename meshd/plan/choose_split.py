"""Choose the split that a head serves with: the fastest that is predicted, or by memory over all workers.

Sets and orders of workers, each with a few ways to divide the layers, are ranked by a rough prediction
(candidates.py); the best of them are planned in full (over_offers.py), with their memory, and predicted once
more. Workers that were never measured take no part in the comparison, and where the model needs them, or the
user says how to split, the layers are divided by memory over all. What a worker says of its speed decides
only how fast the model is: an unexpected failure of the comparison, too, leads to the split by memory, with a
line in the log.

`advise` compares a plan that runs with what else it could be, for `meshd why`.

Without `--ctx-size` the context grows from the usual 8192 tokens towards what the model was trained for, as
long as nothing else of the plan changes (devices, layers, answers at once, where the output is), and no
memory gives more than half of what the plan leaves free: others want to use it as well. The price is that
memory on the head, which llama-server clears with each load; a CPU worker's is taken as it is used.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from meshd.base.errors import Refused, UserError
from meshd.base.fault_boundary import Contained, Fault
from meshd.base.units import in_number
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.output import FAR_RATE, NEAR_RATE, NEAR_SECONDS, DevicePath
from meshd.model.status import Speeds
from meshd.plan.auto_way import AutoWay, WhyByLayers, allowed_pairs, candidates, nearest_refusal
from meshd.plan.by_tensors import NoTensorSplit, by_tensors, for_layers
from meshd.plan.candidates import Division, RoughSplits
from meshd.plan.machines import (
    Machines,
    Measured,
    NodeOffer,
    measured_machines,
    one_for_each_card,
    with_fixed_layers,
)
from meshd.plan.over_offers import plan_over
from meshd.plan.plan_prediction import PlanPredictor
from meshd.plan.prediction import (
    ASSUMED_ANSWER,
    ASSUMED_PROMPT,
    PlanOutcome,
    Prediction,
    on_paths,
)
from meshd.plan.reasons import (
    AdviceBasis,
    Answers,
    ByMemory,
    ByTensors,
    Change,
    ComparisonFailed,
    ComputeTogether,
    Divide,
    Drop,
    HalfFloats,
    LeftOut,
    LetHeadCompute,
    NotByTensors,
    NotNeeded,
    NotTogether,
    OneAtOnce,
    RatedSplit,
    Reasons,
    Reorder,
    RunOn,
    SplitChange,
    SplitComparison,
    TogetherByChoice,
    Use,
    Without,
)
from meshd.plan.split import NoSplit, NotEnoughMemory, Plan
from meshd.plan.two_ways import (
    AUTO_CHOOSES,
    OneWay,
    SplitByLayers,
    TwoWays,
    WayAdvice,
    WaysCompared,
    auto_refuses,
)
from meshd.plan.ways import CLEARLY, WaysFound, among, compare_ways, surely
from meshd.plan.wishes import HeadOptions, read_llama_args

_PLACES = ("head", "worker")  # of the output
_LEAST_TOGETHER = 2  # workers
_WORTH = 0.97  # of the time on fewer machines: less than that is worth one more, as these are estimates
LEAST_GAIN = 0.03  # of an answer's time, of an advice: predictions are no more exact than that
T = TypeVar("T")
Changed = tuple[Change, PlanOutcome]
"""A change to a plan, and what is predicted with it."""
_MOST_TAKEN = 0.5  # of the memory that a plan leaves free


@dataclass(frozen=True, slots=True)
class SplitChoice:
    """Hold a split that fits, the offers that it uses, and what it is predicted to do on `machines`.

    The chosen one of several has a comparison with the others.
    """

    plan: Plan
    offers: tuple[NodeOffer, ...]
    options: HeadOptions
    outcome: PlanOutcome
    machines: Machines
    comparison: SplitComparison | None = None

    @property
    def speeds(self) -> Speeds | None:
        """Return the predicted rates; None where a device was never measured."""
        return self.outcome.speeds if self.outcome.prediction.is_measured else None

    @property
    def prediction(self) -> Prediction:
        """Return the predicted rates and times."""
        return self.outcome.prediction

    @property
    def seconds(self) -> float:
        """Return the predicted time of the answer by which splits are compared."""
        return self.outcome.answer_s

    @property
    def rated(self) -> RatedSplit:
        """Return the split as a comparison has it."""
        return RatedSplit(self.plan.nodes, self.seconds)

    @property
    def reasons(self) -> Reasons:
        """Tell why it was chosen; none for the others."""
        return (self.comparison,) if self.comparison is not None else ()

    @property
    def cost(self) -> float:
        """Rate the split: each further machine must be worth it."""
        return self.seconds / _WORTH ** (len(self.plan.nodes) - 1)

    def because(self, why: ByMemory | ComparisonFailed | NotByTensors) -> "SplitChoice":
        """Return the choice with this reason before all others."""
        return replace(self, plan=replace(self.plan, reasons=(why, *self.plan.reasons)))

    def besides(self, why: NotTogether) -> "SplitChoice":
        """Return the choice with this reason behind all others."""
        return replace(self, plan=replace(self.plan, reasons=(*self.plan.reasons, why)))


def plan_model(
    layers: ModelLayers,
    work: LayerWork,
    machines: Machines,
    options: HeadOptions,
    auto: AutoWay | None = None,
) -> SplitChoice:
    """Plan a model on these machines as the user wishes. Raises NotEnoughMemory, UserError, Refused.

    `auto`: what decides whether `--split auto` is by tensors; None: it is by layers.
    """
    if options.split == "tensor":
        return _plan_tensors(layers, work, machines, options)
    found = _plan_layers(layers, work, machines, options)
    if auto is None:
        return found
    chosen = choose_way(layers, work, machines, options, [found], auto)
    if isinstance(chosen, NotTogether):
        return found.besides(chosen)
    return chosen or found


def _plan_layers(
    layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions
) -> SplitChoice:
    """Plan by layers. Raises as plan_model."""
    # Layers given by node become an order of workers and a tensor split.
    machines, options = with_fixed_layers(machines, options, layers.count)

    # The context comes first: the longest if that is wished, a longer one afterwards where it costs nothing.
    def split(machines: Machines, options: HeadOptions) -> SplitChoice:
        found = _with_largest(lambda given: _split(layers, work, machines, given), layers, options)
        return replace(found, plan=_lengthened(layers, machines, options, found.plan, found.offers))

    try:
        with Contained("workers", "a comparison of splits"):
            return split(machines, options)
    except Fault as fault:  # of what a worker says of its speed, or its paths, most likely
        silent = replace(machines, speeds={}, paths={})
        found = split(silent, replace(options, split="always"))
        return found.because(ComparisonFailed(fault.what))


def _plan_tensors(
    layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions
) -> SplitChoice:
    """Plan by tensors, or else by layers with the reason. Raises as plan_model.

    Also by layers each worker takes part: the user demanded them, and the head waits until one is there.
    """
    try:
        if len(machines.offers) < _LEAST_TOGETHER:
            there = in_number(len(machines.offers), "worker")
            raise Refused(
                f"`--split tensor` needs two workers besides this node; it has {there}", code="workers"
            )
        return _together(layers, work, machines, options)
    except (NoSplit, Refused) as error:
        otherwise = plan_model(layers, work, machines, replace(options, split="always"))
        return otherwise.because(NotByTensors(error.what))


def _together(layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions) -> SplitChoice:
    """Plan by tensors over all of these workers. Raises NoSplit, UserError, Refused."""
    found = plan_model(layers, work, machines, replace(for_layers(options), split="always", tensor_split=()))
    predictor = PlanPredictor(layers, work, found.machines, options)
    by_speed = predictor.tensor_shares(found.plan)
    plan = by_tensors(layers, found.plan, options, by_speed, apart=machines.apart)
    return replace(found, plan=plan, options=options, outcome=predictor.predict(plan))


# What `auto` makes of it.


def choose_way(
    layers: ModelLayers,
    work: LayerWork,
    machines: Machines,
    options: HeadOptions,
    by_layers: Sequence[SplitChoice],
    auto: AutoWay,
) -> SplitChoice | NotTogether | None:
    """Return the split by tensors that `auto` prefers to these by layers, or why there is none.

    The first of these is what runs otherwise. None: the user wants it otherwise, or too few are there.
    """
    if options.split != "auto" or not options.picks_by_speed or len(candidates(machines)) < 2:
        return None
    try:
        with Contained("workers", "a comparison of two ways to split"):
            return _choose_way(layers, work, machines, options, by_layers, auto)
    except Fault as fault:
        return NotTogether(fault.what)


def _choose_way(
    layers: ModelLayers,
    work: LayerWork,
    machines: Machines,
    options: HeadOptions,
    by_layers: Sequence[SplitChoice],
    auto: AutoWay,
) -> SplitChoice | NotTogether:
    # 1. What rules it out at once.
    predictor = PlanPredictor(layers, work, machines, options)
    why = auto.failed or (WhyByLayers.IMAGES if options.mmproj is not None else "")
    if why := why or nearest_refusal(predictor, machines):
        return NotTogether(why)
    # 2. The best set of workers, compared with what would run, and then with all other splits by layers.
    least, runs = options.least_workers, by_layers[0].plan
    plans = [choice.plan for choice in by_layers]
    drafts = auto.would_draft(runs, options, predictor)
    may = allowed_pairs(predictor)
    ways = compare_ways(layers, work, machines, options, plans, drafts=drafts, may=may, least=least)
    if isinstance(ways, WaysFound) and ways.ways.advice is WayAdvice.WORTH:
        measured = measured_machines(work, machines, options).machines
        with suppress(UserError, Refused):
            plans += [choice.plan for choice in choose_split(layers, work, measured, options, least=least)]
        ways = compare_ways(layers, work, machines, options, plans, drafts=drafts, may=may, least=least)
    if not isinstance(ways, WaysFound):
        return NotTogether((ways.why if ways is not None else "") or WhyByLayers.MORE_WORKERS)
    if ways.ways.advice is not WayAdvice.WORTH:
        return NotTogether(ways.ways.advice)
    # 3. The plan in full: as long a context as otherwise, and still as fast.
    nodes = ways.ways.nodes
    there = replace(machines, offers=tuple(offer for offer in machines.offers if offer.node in nodes))
    try:
        found = _together(layers, work, there, options)
    except NoTensorSplit as error:
        return NotTogether(error.why)
    except (UserError, Refused) as error:
        return NotTogether(error.what)
    if _holds_less(found.plan, runs):
        return NotTogether(WhyByLayers.SHORTER)
    seconds, otherwise = predictor.conversation_seconds(found.plan), ways.ways.layers.seconds
    if surely(found.plan, seconds) > CLEARLY * otherwise:
        return NotTogether(WayAdvice.NO_GAIN)
    of_prompt = predictor.prompt_seconds(found.plan)
    reason = TogetherByChoice(
        found.plan.nodes, ways.ways.prompt, ways.ways.answer, seconds, of_prompt, otherwise
    )
    return _chosen_together(found, machines, reason)


def both_ways(
    layers: ModelLayers,
    work: LayerWork,
    machines: Machines,
    options: HeadOptions,
    by_layers: Sequence[SplitChoice],
    auto: AutoWay,
) -> tuple[TwoWays | OneWay | None, SplitChoice | None]:
    """Compare these splits by layers with the best by tensors, and return it where `auto` chooses it."""
    chosen = choose_way(layers, work, machines, options, by_layers, auto)
    nodes = chosen.plan.nodes if isinstance(chosen, SplitChoice) else ()
    may = among(nodes or [offer.node for offer in machines.offers])
    first = by_layers[0].plan
    drafts = auto.would_draft(first, options, PlanPredictor(layers, work, machines, options))
    plans = [choice.plan for choice in by_layers]
    found = compare_ways(layers, work, machines, options, plans, drafts=drafts, may=may, least=len(nodes))
    if not isinstance(found, WaysFound):
        return found, None
    says = ""
    if isinstance(chosen, SplitChoice):
        says = AUTO_CHOOSES
    elif chosen is not None and found.ways.advice is WayAdvice.WORTH:
        says = auto_refuses(chosen.why)
    return replace(found.ways, auto=says), chosen if isinstance(chosen, SplitChoice) else None


def _holds_less(plan: Plan, other: Plan) -> bool:
    """Tell whether answers of the first plan are shorter, or fewer at once."""
    shapes = plan.shape, other.shape
    return shapes[0].parallel < shapes[1].parallel or shapes[0].cells < shapes[1].cells


def _chosen_together(choice: SplitChoice, machines: Machines, reason: TogetherByChoice) -> SplitChoice:
    """Return the choice with its reason, and with the workers that it does without."""
    plan = choice.plan
    spared = tuple(
        LeftOut(offer.node, device.name, offer.exclusion_reason(device) or NotNeeded())
        for offer in machines.offers
        if offer.node not in plan.nodes
        for device in offer.offer.devices
    )
    reasons = tuple(other for other in plan.reasons if not isinstance(other, ByTensors))
    plan = replace(plan, reasons=(reason, *reasons), left_out=(*plan.left_out, *spared))
    return replace(choice, plan=plan, machines=machines)


def _split(layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions) -> SplitChoice:
    """Split by speed where that is wished and known, else by memory."""
    if not options.picks_by_speed:
        return _by_memory(layers, work, machines, options)
    measured = measured_machines(work, machines, options)
    why_not = measured.why_not
    if why_not is None:
        try:
            best = choose_split(layers, work, measured.machines, options, least=options.least_workers)[0]
            return _as_chosen(best, machines, measured)
        except (UserError, Refused) as error:
            if not measured.unmeasured:
                raise
            why_not = ByMemory(tuple(measured.unmeasured.items()), error.what)
    return _by_memory(layers, work, machines, options).because(why_not)


def _by_memory(layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions) -> SplitChoice:
    offers = one_for_each_card(machines.offers, machines, options, least=options.least_workers)
    plan, used = plan_over(layers, replace(machines, offers=offers), options)
    outcome = PlanPredictor(layers, work, machines, options).predict(plan)
    return SplitChoice(plan, tuple(used), options, outcome, machines)


def _as_chosen(choice: SplitChoice, machines: Machines, measured: Measured) -> SplitChoice:
    """Serve with a choice: workers that it does without are left out, too, and the reasons begin with it."""
    used = {offer.node for offer in choice.offers}
    known = {(left.node, left.device) for left in choice.plan.left_out}
    spared = tuple(
        LeftOut(offer.node, device.name, offer.exclusion_reason(device) or NotNeeded())
        for offer in measured.machines.offers
        if offer.node not in used
        for device in offer.offer.devices
        if (offer.node, device.name) not in known
    )
    without = (Without(node, why) for node, why in measured.unmeasured.items())
    plan = replace(
        choice.plan,
        left_out=(*choice.plan.left_out, *spared),
        reasons=(*choice.reasons, *without, *choice.plan.reasons),
    )
    return replace(choice, plan=plan, machines=machines)


def choose_split(
    layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions, *, least: int = 0
) -> list[SplitChoice]:
    """Plan some splits, the chosen one first: of those in which at least `least` workers take part.

    Raises NotEnoughMemory, UserError, Refused where nothing fits, with the reason of the plan by memory.
    """
    predictor = PlanPredictor(layers, work, machines, options)
    rough = RoughSplits(layers, machines, options, predictor, least)
    by_memory = rough.by_memory
    found: list[SplitChoice] = []
    error: UserError | Refused | None = None
    # Plan in full what promises most, with the output at either end.
    for candidate in [by_memory, *rough.ranked()]:
        for output in _PLACES if options.output == "auto" else (options.output,):
            try:
                found.append(_planned(layers, machines, options, predictor, candidate, output))
            except (UserError, Refused) as refusal:
                if candidate is by_memory or len(candidate.offers) >= least:
                    error = error or refusal
    # Choose the cheapest in which enough workers take part.
    of_split: dict[tuple[tuple[str, str, int], ...], SplitChoice] = {}
    for choice in sorted(found, key=lambda choice: choice.cost):
        of_split.setdefault(tuple(choice.plan.placed), choice)
    found = list(of_split.values())
    allowed = [choice for choice in found if len(choice.plan.workers) >= least]
    if not allowed:
        raise error or Refused(f"no split uses {least} workers", code="workers")
    return _compared(allowed[0], found, least)


def ranked_splits(
    layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions
) -> list[SplitChoice]:
    """Plan some splits, the chosen one first, with the context that it has when served.

    They are compared as plan_model does, whatever the user wishes of how the model is split. At least as many
    workers take part as the user demands, if so many are there. Workers that were never measured are left
    out, unless the model needs them. Raises NotEnoughMemory, UserError, Refused.
    """
    machines, options = with_fixed_layers(machines, options, layers.count)
    measured = measured_machines(work, machines, options)
    least = min(options.min_workers or 0, len(machines.offers))

    def choose(given: HeadOptions) -> list[SplitChoice]:
        if options.picks_by_speed and measured.unmeasured:
            with suppress(UserError, Refused):
                return choose_split(layers, work, measured.machines, given, least=least)
        return choose_split(layers, work, machines, given, least=least)

    best, *others = _with_largest(choose, layers, options)
    plan = _lengthened(layers, machines, best.options, best.plan, best.offers)
    return [replace(best, plan=plan), *others]


def _compared(best: SplitChoice, found: Sequence[SplitChoice], least: int) -> list[SplitChoice]:
    """Return all of `found`, `best` first and with its comparison."""
    others = [choice for choice in found if choice is not best]
    is_split = len(best.plan.nodes) > 1
    other = next((choice for choice in others if (len(choice.plan.nodes) > 1) != is_split), None)
    ruled_out = [
        choice
        for choice in others
        if len(choice.plan.workers) < least and round(choice.seconds / best.seconds, 2) < 1
    ]
    faster = min(ruled_out, key=lambda choice: choice.seconds, default=None)
    comparison = SplitComparison(
        best.rated,
        other.rated if other is not None else None,
        faster.rated if faster is not None else None,
        least,
    )
    return [replace(best, comparison=comparison), *others]


def _planned(
    layers: ModelLayers,
    machines: Machines,
    options: HeadOptions,
    predictor: PlanPredictor,
    candidate: Division,
    output: str,
) -> SplitChoice:
    """Plan a division of the layers in full, and predict it. Raises NotEnoughMemory, UserError, Refused."""
    split = tuple(map(float, candidate.counts)) or options.tensor_split
    options = replace(options, tensor_split=split, counts_chosen=bool(candidate.counts), output=output)
    there = replace(machines, offers=candidate.offers)
    plan, used = plan_over(layers, there, replace(options, min_workers=0))
    return SplitChoice(plan, tuple(used), options, predictor.predict(plan), there)


def _with_largest(solve: Callable[[HeadOptions], T], layers: ModelLayers, options: HeadOptions) -> T:
    """Return what `solve` makes of the options; with `--ctx-size max` for the longest context that fits.

    A longer context comes before answers at once. Raises what `solve` does.
    """
    if not options.wants_largest_context:
        return solve(options)
    try:
        longest = read_llama_args(options.llama_args).longest_answer(layers)
        return solve(replace(options, ctx_size=longest or layers.default_context))
    except NotEnoughMemory as error:
        if not error.largest_context:
            raise
        return solve(replace(options, ctx_size=error.largest_context))


def _lengthened(
    layers: ModelLayers, machines: Machines, options: HeadOptions, plan: Plan, offers: Sequence[NodeOffer]
) -> Plan:
    """Give the plan over these offers a longer context where nobody asked for one."""
    if options.ctx_size is not None or read_llama_args(options.llama_args).tokens is not None:
        return plan
    # Keep all else as it is: devices, layers, and the place of the output.
    counts = _counts(plan, machines, options, offers)
    options = replace(
        options,
        tensor_split=counts,
        counts_chosen=True,
        output="head" if plan.output_worker is None else "worker",
        min_workers=0,
        layers=(),
    )
    # Halve the trained context until it fits beside what others need.
    tokens = layers.trained_context
    while counts and tokens > plan.shape.cells:
        given = replace(options, ctx_size=tokens)
        with suppress(NotEnoughMemory, UserError, Refused):
            longer, _ = plan_over(layers, replace(machines, offers=tuple(offers)), given)
            if _unchanged(plan) == _unchanged(longer) and _leaves_enough(plan, longer):
                return _as_before(plan, longer)
        tokens //= 2
    return plan


def _counts(
    plan: Plan, machines: Machines, options: HeadOptions, offers: Sequence[NodeOffer]
) -> tuple[float, ...]:
    """Count the layers as `--tensor-split` does; empty where that cannot say it."""
    held = {(share.device.node, share.device.name): share.layers for share in plan.shares}
    names = [(offer.node, device.name) for offer in offers for device in offer.devices]
    names += [(server.endpoint, device.name) for server in machines.plain_rpc for device in server.devices]
    names += [(options.node_name, device.name) for device in machines.own_taking(options)]
    counts = tuple(float(held.get(name, 0)) for name in names)
    return counts if sum(counts) == sum(held.values()) else ()


def _unchanged(plan: Plan) -> tuple[object, ...]:
    """Return what may not change with the length of the context."""
    shape = plan.shape
    return (
        plan.placed,
        plan.devices,
        plan.tensor_split,
        plan.override_tensor,
        plan.input_device,
        (shape.parallel, shape.micro_batch, shape.batch, shape.unified, shape.full_windows),
    )


def _leaves_enough(plan: Plan, longer: Plan) -> bool:
    """Check each memory that devices have, or share; they do not offer that of a draft model."""
    before = plan.left
    return all(left >= (1 - _MOST_TAKEN) * before[memory] for memory, left in longer.left.items())


def _as_before(plan: Plan, longer: Plan) -> Plan:
    """Give the longer plan the reasons of the one that was chosen, but for the length of its answers."""
    reasons = tuple(
        replace(reason, at_once=longer.answers)
        if isinstance(reason, Answers) and longer.answers is not None
        else reason
        for reason in plan.reasons
    )
    return replace(longer, reasons=reasons, left_out=plan.left_out)


# Advice on a plan that runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitAdvice:
    """Hold the `change` that saves a share of `gain` of an answer's time, and the rate with it, `then_tok_s`.

    `change` None: nothing is worth it. `basis` has the comparison of splits that `meshd plan` shows.
    `now`: what is predicted of the split that runs, by the function and from the inputs of `meshd plan`.
    `ways`: by layers and by tensors; None without a worker.
    """

    change: Change | SplitByLayers | None
    gain: float
    basis: AdviceBasis | WaysCompared
    now: PlanOutcome
    then_tok_s: float
    ways: TwoWays | OneWay | None = None


def advise(
    layers: ModelLayers,
    work: LayerWork,
    machines: Machines,
    options: HeadOptions,
    plan: Plan,
    *,
    drafts: bool = False,
    only_by_layers: bool = False,
) -> SplitAdvice:
    """Find the one change to the plan that runs that would gain most, as it is predicted.

    Memory in `machines` is what it could have. `drafts`: it runs with some; predictions leave them out.
    `only_by_layers`: with such as a split by tensors cannot have.
    """
    plan = on_paths(plan, {offer.node: offer.path for offer in machines.offers}.get)
    now = PlanPredictor(layers, work, machines, options).predict(plan)
    # All splits, first the one that `meshd serve` and `meshd plan` choose; none where nothing fits.
    there, machines = machines, measured_machines(work, machines, options).machines
    free = replace(options, split="auto", tensor_split=(), layers=(), workers=(), min_workers=0)
    least = min(options.min_workers or 0, len(machines.offers))
    compared: Sequence[SplitChoice] = ()
    with suppress(UserError, Refused):
        compared = choose_split(layers, work, machines, free, least=least)
    # The best of those and of all other changes, if it is worth it.
    found = list(_changes(layers, work, machines, options, free, plan, compared))
    plans = [plan, *(choice.plan for choice in compared)]
    ways = compare_ways(layers, work, there, options, plans, drafts=only_by_layers)
    if isinstance(ways, WaysFound) and ways.ways.advice is WayAdvice.WORTH:
        refused = next((reason for reason in plan.reasons if isinstance(reason, NotTogether)), None)
        if refused is not None:
            ways = replace(ways, ways=replace(ways.ways, auto=auto_refuses(refused.why, at_load=True)))
        found.append((ComputeTogether(ways.ways.nodes, ways.all_workers), ways.outcome))
    change, then = min(found, key=lambda changed: changed[1].answer_s, default=(None, now))
    gain = 1 - then.answer_s / now.answer_s if now.answer_s > 0 else 0.0
    if gain < LEAST_GAIN:
        change, then, gain = None, now, 0.0
    basis = AdviceBasis(
        compared[0].comparison if compared else None,
        bool(compared) and compared[0].plan.nodes == plan.nodes,
        ASSUMED_PROMPT,
        ASSUMED_ANSWER,
        drafts=drafts,
        estimated=not now.prediction.is_measured,
    )
    return SplitAdvice(
        change=change,
        gain=gain,
        basis=basis,
        now=now,
        then_tok_s=then.prediction.generate_tok_s,
        ways=ways.ways if isinstance(ways, WaysFound) else ways,
    )


def _changes(
    layers: ModelLayers,
    work: LayerWork,
    machines: Machines,
    options: HeadOptions,
    free: HeadOptions,
    plan: Plan,
    compared: Sequence[SplitChoice],
) -> Iterator[Changed]:
    """Yield changes and their predictions; `free`: the options, but for how the model is split."""
    me = options.node_name

    def chosen(given: HeadOptions, change: Callable[[SplitChoice], Change]) -> Iterator[Changed]:
        with suppress(UserError, Refused):
            best = choose_split(layers, work, machines, given)[0]
            yield change(best), best.outcome

    if compared:
        best = min(compared, key=lambda choice: choice.cost)
        yield _change(plan, best, me), best.outcome
    if options.devices == ("none",):
        yield from chosen(replace(free, devices=()), lambda _: LetHeadCompute(me))
    if plan.shape.parallel > 1:
        yield from chosen(replace(free, slots=1), lambda choice: OneAtOnce(_change(plan, choice, me)))
    if options.activations == "f32" and any(node != me for node in plan.nodes):
        halved = on_paths(
            plan, {offer.node: _halved(offer.path) for offer in machines.offers if offer.path}.get
        )
        paths = {ends: _halved(path) for ends, path in machines.paths.items()}
        predictor = PlanPredictor(layers, work, replace(machines, paths=paths), options)
        yield HalfFloats(), predictor.predict(halved)


def _change(plan: Plan, best: SplitChoice, me: str) -> SplitChange:
    """Tell what leads from this split to that one."""
    now, then = plan.nodes, best.plan.nodes
    dropped = tuple(node for node in now if node not in then)
    added = tuple(node for node in then if node not in now)
    layers = tuple((node, count) for node, _, count in best.plan.placed)
    if len(then) == 1:
        return RunOn(then[0], then[0] == me)
    if dropped and not added:
        return Drop(dropped, layers)
    if added:
        return Use(added, dropped, layers)
    return Reorder(then, layers) if now != then else Divide(layers)


def _halved(path: DevicePath) -> DevicePath:
    """Double the rate: half the bytes take as long as all of them at twice the rate."""
    rate = path.rate or (NEAR_RATE if path.rtt < NEAR_SECONDS else FAR_RATE)
    return replace(path, rate=2 * rate)
