"""Plans and machines as `meshd plan` and `meshd capacity` show them. Pure."""

from collections.abc import Sequence

from meshd.admin.plan_api import (
    CapacityReply,
    DeviceCapacity,
    LeftOutView,
    PathCapacity,
    PlannedNode,
    PlanPart,
    PlanReply,
    PlanSpeculation,
    PlanView,
)
from meshd.head.draft_forecast import DraftForecast
from meshd.model.device_speed import DeviceSpeed
from meshd.model.output import DevicePath
from meshd.model.reference_layer import reference_rates
from meshd.plan.choice import SplitChoice
from meshd.plan.machines import Machines
from meshd.plan.prediction import ASSUMED_ANSWER, ASSUMED_PROMPT
from meshd.plan.words import in_words
from meshd.wire.lease import OfferedDevice

LeftOut = Sequence[tuple[str, str]]


def plan_reply(
    model: str, head: str, choices: Sequence[tuple[SplitChoice, DraftForecast]], left_out: LeftOut
) -> PlanReply:
    """Return the reply of `meshd plan`; the first of `choices` is the chosen one."""
    return PlanReply(
        model=model,
        head=head,
        choice=0,
        plans=tuple(_plan_view(*choice) for choice in choices),
        left_out=_left_out(left_out),
    )


def _plan_view(choice: SplitChoice, drafts: DraftForecast) -> PlanView:
    plan, predicted = choice.plan, choice.prediction
    shares = [share for share in plan.shares if share.layers]
    worker = plan.output_worker
    return PlanView(
        nodes=tuple(
            PlannedNode(
                node=share.device.node,
                device=share.device.name,
                layers=share.layers,
                memory_bytes=share.total,
            )
            for share in shares
        ),
        prompt_tok_s=round(predicted.prompt_tok_s, 2),
        generate_tok_s=round(predicted.generate_tok_s, 2),
        streams_tok_s=round(predicted.streams_tok_s, 2),
        first_token_s=round(predicted.first_token_s, 4),
        load_s=round(predicted.load_s, 3),
        load_bytes=predicted.load_bytes,
        bytes_per_token=predicted.bytes_per_token,
        ctx_size=plan.answers.tokens if plan.answers is not None else plan.shape.cells,
        ctx_note=plan.answers.note if plan.answers is not None else "",
        slots=plan.shape.parallel,
        ubatch=plan.shape.step_tokens,
        output_on=worker.label if worker is not None else "head",
        measured=predicted.is_measured,
        why=in_words(choice.reasons or plan.reasons),
        answer_s=round(choice.seconds, 3),
        prompt_tokens=ASSUMED_PROMPT,
        answer_tokens=ASSUMED_ANSWER,
        parts=tuple(
            PlanPart(
                part=part.name,
                token_s=round(part.token_s, 6),
                prompt_s=round(part.prompt_s, 6),
            )
            for part in choice.outcome.parts
        ),
        speculation=PlanSpeculation(
            free_tokens=drafts.free,
            model_tokens=drafts.model,
            free_acceptance=round(drafts.free_acceptance, 3),
            model_acceptance=round(drafts.model_acceptance, 3),
            measured=drafts.measured,
            repetitive_tok_s=round(drafts.repetitive_tok_s, 2),
            prose_tok_s=round(drafts.prose_tok_s, 2),
            why=drafts.why,
            why_no_model=drafts.why_no_model,
        ),
    )


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
    return DeviceCapacity(
        node=node,
        device=device.name,
        free_bytes=device.free_bytes,
        total_bytes=device.total_bytes,
        weight_bytes_s=rates.weight_bytes_s,
        flops=rates.flops,
    )


def _path(source: str, to: str, path: DevicePath) -> PathCapacity:
    return PathCapacity(source=source, to=to, rtt_ms=round(path.rtt * 1000, 3), bytes_s=path.rate)
