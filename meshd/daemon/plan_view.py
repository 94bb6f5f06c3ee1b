"""Show plans and machines as `meshd plan`, `why` and `capacity` print them. Pure.

`asked_options` combines the options of a request for a plan with the settings for serving, which they
override.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshd.admin.plan_api import (
    AdviceView,
    AnswerTime,
    CapacityReply,
    DeviceCapacity,
    FitsReply,
    PathCapacity,
    PlannedNode,
    PlanPart,
    PlanReply,
    PlanRequest,
    PlanSpeculation,
    PlanView,
    ShortModelFit,
    WaysView,
    WhyReply,
)
from meshd.admin.snapshot import view_of
from meshd.admin.status import LeftOutView
from meshd.base.errors import UserError
from meshd.head.explain import Explained
from meshd.head.measures import RunningAnswer, TimedAnswer
from meshd.head.speculation import DraftForecast
from meshd.model.device_speed import DeviceSpeed, reference_rates
from meshd.model.layer_range import parse_layer_range
from meshd.model.output import DevicePath
from meshd.model.status import of_each_layer
from meshd.plan.choose_split import SplitChoice
from meshd.plan.machines import Machines
from meshd.plan.over_offers import ModelFit
from meshd.plan.prediction import ASSUMED_ANSWER, ASSUMED_PROMPT
from meshd.plan.reasons import in_words
from meshd.plan.two_ways import OneWay, TwoWays
from meshd.plan.wishes import HeadOptions, nodes_of
from meshd.wire.lease import OfferedDevice

LeftOut = Sequence[tuple[str, str]]


def plan_reply(
    model: str,
    head: str,
    choices: Sequence[tuple[SplitChoice, DraftForecast]],
    left_out: LeftOut,
    ways: TwoWays | OneWay | None = None,
) -> PlanReply:
    """Return the reply of `meshd plan`; the first of `choices` is the chosen one."""
    return PlanReply(
        model=model,
        head=head,
        choice=0,
        plans=tuple(_plan_view(*choice) for choice in choices),
        left_out=_left_out(left_out),
        ways=_ways_view(ways),
    )


def _ways_view(ways: TwoWays | OneWay | None) -> WaysView | None:
    if ways is None:
        return None
    rates = (ways.layers.tok_s, ways.tensors.tok_s) if isinstance(ways, TwoWays) else (None, None)
    return WaysView(layers_tok_s=rates[0], tensors_tok_s=rates[1], text=str(ways))


def _plan_view(choice: SplitChoice, drafts: DraftForecast) -> PlanView:
    plan, predicted = choice.plan, choice.prediction
    shares = plan.taking
    worker = plan.output_worker
    return view_of(
        PlanView,
        predicted,
        nodes=tuple(
            view_of(
                PlannedNode,
                share,
                node=share.device.node,
                device=share.device.name,
                memory_bytes=share.total,
            )
            for share in shares
        ),
        ctx_size=plan.answers.tokens if plan.answers is not None else plan.shape.cells,
        ctx_note=plan.answers.note if plan.answers is not None else "",
        slots=plan.shape.parallel,
        ubatch=plan.shape.step_tokens,
        output_on="all workers" if plan.by_tensors else worker.label if worker is not None else "head",
        by_tensors=plan.by_tensors,
        measured=predicted.is_measured,
        why=in_words(choice.reasons or plan.reasons),
        answer_s=choice.seconds,
        prompt_tokens=ASSUMED_PROMPT,
        answer_tokens=ASSUMED_ANSWER,
        parts=tuple(view_of(PlanPart, part, part=part.name) for part in choice.outcome.parts),
        speculation=view_of(PlanSpeculation, drafts, free_tokens=drafts.free, model_tokens=drafts.model),
    )


def fits_reply(found: Sequence[ModelFit], workers: tuple[str, ...], left_out: LeftOut = ()) -> FitsReply:
    """Return the reply of `meshd model ls --fits`."""
    models = tuple(view_of(ShortModelFit, fit, here=str(fit.here), mesh=str(fit.mesh)) for fit in found)
    return FitsReply(models=models, workers=workers, left_out=_left_out(left_out))


def _left_out(left_out: LeftOut) -> tuple[LeftOutView, ...]:
    return tuple(LeftOutView(node=node, why=why) for node, why in left_out)


def capacity_reply(machines: Machines, me: str, left_out: LeftOut, unmeasured: LeftOut = ()) -> CapacityReply:
    """Return the reply of `meshd capacity`. `me`: this node's name. Speeds are those of REFERENCE_LAYERS."""
    devices = [_device(me, device, machines.speeds.get((me, device.name))) for device in machines.own]
    devices += [
        _device(offer.node, device, machines.speeds.get((offer.node, device.name)))
        for offer in machines.offers
        for device in offer.offer.devices
    ]
    own = [(me, offer.node, offer.path) for offer in machines.offers if offer.path is not None]
    between = [(source, to, path) for (source, to), path in machines.paths.items()]
    paths = tuple(_path(*path) for path in [*own, *between])
    return CapacityReply(
        devices=tuple(devices), paths=paths, left_out=_left_out(left_out), unmeasured=_left_out(unmeasured)
    )


def _device(node: str, device: OfferedDevice, speed: DeviceSpeed | None) -> DeviceCapacity:
    rates = reference_rates(speed)
    return view_of(
        DeviceCapacity,
        device,
        node=node,
        device=device.name,
        weight_bytes_s=rates.weight_bytes_s,
        flops=rates.flops,
    )


def _path(source: str, to: str, path: DevicePath) -> PathCapacity:
    return PathCapacity(source=source, to=to, rtt_ms=path.rtt * 1000, bytes_s=path.rate)


def why_reply(model: str, found: Explained) -> WhyReply:
    """Return the reply of `meshd why`. `found` has at least one answer, finished or running."""
    answers = [_answer(timed, found.now) for timed in found.answers]
    if found.running is not None:
        answers.append(_running(found.running))
    advice, at_load = found.advice, found.facts.at_load
    now = advice.now.prediction
    return view_of(
        WhyReply,
        found,
        model=model,
        split=_split_in_words(found),
        by_tensors=found.facts.plan.by_tensors,
        requests=found.active,
        answers=tuple(answers),
        advice=AdviceView(
            change=str(advice.change) if advice.change is not None else "",
            gain=advice.gain,
            why=str(advice.basis),
            generate_tok_s=now.generate_tok_s,
            generate_tok_s_then=advice.then_tok_s,
            measured=now.is_measured,
        ),
        generate_tok_s_at_load=(
            at_load.prediction.generate_tok_s if at_load.prediction.is_measured else None
        ),
        since_load=tuple(map(str, advice.now.changes_since(at_load))),
        ways=_ways_view(advice.ways),
    )


def _split_in_words(found: Explained) -> str:
    held = [part for part in found.split if part.layers]
    if not found.facts.plan.by_tensors:
        return " → ".join(f"{part.node} {part.device}: {part.layers}" for part in held)
    shares = of_each_layer([part.layers for part in held])
    parts = [f"{part.node} {part.device} {share}" for part, share in zip(held, shares, strict=True)]
    return f"each layer: {', '.join(parts)}"


def _answer(timed: TimedAnswer, now: float) -> AnswerTime:
    return AnswerTime(
        running=False,
        alone=timed.alone,
        ended_s_ago=max(0.0, now - timed.ended),
        queue_s=timed.queue,
        prompt_tokens=timed.timings.prompt_tokens,
        prompt_s=timed.timings.prompt_seconds,
        generated_tokens=timed.timings.generated_tokens,
        generated_s=timed.timings.generated_seconds,
    )


def _running(answer: RunningAnswer) -> AnswerTime:
    return AnswerTime(
        running=True,
        alone=True,
        ended_s_ago=0.0,
        queue_s=0.0,
        prompt_tokens=0,
        prompt_s=0.0,
        generated_tokens=answer.tokens,
        generated_s=round(answer.seen - answer.begin, 4),
    )


def asked_options(request: PlanRequest, served: HeadOptions) -> HeadOptions:
    """Return the options for a plan; the verb has refused contradictory ones. Raises UserError for layers."""
    options = replace(served, slots=request.streams or served.slots)
    if request.largest_context or request.ctx_size:
        options = replace(options, ctx_size=0 if request.largest_context else request.ctx_size)
    if request.devices:
        options = replace(options, devices=request.devices)
    if request.tensor_split or request.layers or request.workers:
        options = _without_layers(options)
    if request.tensor_split:
        options = replace(options, tensor_split=request.tensor_split)
    if request.layers:
        options = _with_layers(options, request)
    if request.workers:
        options = replace(options, workers=request.workers, min_workers=None)  # of the head's workers
    return options


def _without_layers(served: HeadOptions) -> HeadOptions:
    """Remove `--layers` and what follows from it: the workers, and that all of them take part."""
    if not served.layers:
        return served
    named = nodes_of(served.layers, served.node_name)
    by_layers = served.workers == named
    least = served.min_workers if (served.min_workers or 0) > len(named) else None
    return replace(served, layers=(), workers=() if by_layers else served.workers, min_workers=least)


def _with_layers(options: HeadOptions, request: PlanRequest) -> HeadOptions:
    try:
        ranges = tuple(parse_layer_range(text) for text in request.layers)
    except ValueError as error:
        raise UserError(f"`--layers`: {error}", hint="give NODE=FIRST-LAST") from None
    workers = nodes_of(ranges, options.node_name)
    if request.workers and (others := [node for node in workers if node not in request.workers]):
        raise UserError(
            f"`--layers` gives layers to `{others[0]}`, which `--workers` does not name",
            hint="name it there as well, or leave out `--workers`: `--layers` already names the workers",
        )
    return replace(options, layers=ranges, tensor_split=(), workers=workers)


def asked_memory(request: PlanRequest) -> Mapping[str, int]:
    """Return the bytes per device, by node. Raises UserError for a node that is named twice."""
    found: dict[str, int] = {}
    for limit in request.memory:
        if limit.node in found:
            whose = f"of `{limit.node}`" if limit.node else "of all nodes"
            raise UserError(f"`--memory` says the memory {whose} twice", hint="give one size for each node")
        found[limit.node] = limit.bytes
    return found
