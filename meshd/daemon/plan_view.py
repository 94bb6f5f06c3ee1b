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
from meshd.model.device_speed import DeviceSpeed
from meshd.model.output import DevicePath
from meshd.model.reference_layer import reference_rates
from meshd.role.head.draft_forecast import DraftForecast
from meshd.role.head.plan_prediction import ASSUMED_ANSWER, ASSUMED_PROMPT, Machines
from meshd.role.head.split_choice import SplitChoice
from meshd.wire.lease import OfferedDevice

LeftOut = Sequence[tuple[str, str]]


def plan_reply(
    model: str, choices: Sequence[tuple[SplitChoice, DraftForecast]], left_out: LeftOut
) -> PlanReply:
    """The chosen one is the first."""
    return PlanReply(
        model=model,
        choice=0,
        plans=tuple(_plan_view(*one) for one in choices),
        left_out=_left_out(left_out),
    )


def _plan_view(choice: SplitChoice, drafts: DraftForecast) -> PlanView:
    plan, predicted = choice.plan, choice.prediction
    shares = [share for share in plan.shares if share.layers]
    worker, found = plan.output_worker, choice.correction
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
        ctx_size=plan.answers.tokens if plan.answers is not None else plan.shape.answer_tokens,
        ctx_note=plan.answers.note if plan.answers is not None else "",
        slots=plan.shape.parallel,
        ubatch=plan.shape.step_tokens,
        output_on=worker.label if worker is not None else "head",
        measured=predicted.is_measured,
        why=choice.why or plan.why,
        answer_s=round(choice.seconds, 3),
        prompt_tokens=ASSUMED_PROMPT,
        answer_tokens=ASSUMED_ANSWER,
        generate_factor=round(found.generate, 4) if found is not None else 1.0,
        prompt_factor=round(found.prompt, 4) if found is not None else 1.0,
        corrected_by="" if found is None else "this split" if found.is_own else "splits like it",
        parts=tuple(
            PlanPart(
                part=one.name,
                token_s=round(one.token_s, 6),
                prompt_s=round(one.prompt_s, 6),
                generate_factor=round(one.generate, 4),
                prompt_factor=round(one.prompt, 4),
            )
            for one in choice.parts
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
    """`me`: the name of this node. Speeds are those of REFERENCE_LAYERS, asked alone."""
    devices = [_device(me, device, machines.speeds.get((me, device.name))) for device in machines.own]
    devices += [
        _device(offer.node, device, machines.speeds.get((offer.node, device.name)))
        for offer in machines.offers
        for device in offer.offer.devices
    ]
    own = [(me, offer.node, offer.path) for offer in machines.offers if offer.path is not None]
    between = [(source, to, path) for (source, to), path in machines.paths.items()]
    paths = tuple(_path(*one) for one in [*own, *between])
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
