"""The verbs about speed: plan predicts it, why explains it, capacity measures what all nodes have."""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from meshd.admin.api import PullRequest
from meshd.admin.client import Client, NotRunning
from meshd.admin.plan_api import (
    AnswerTime,
    CapacityReply,
    CapacityRequest,
    DeviceCapacity,
    PathCapacity,
    PlanReply,
    PlanSpeculation,
    PlanView,
    WhyReply,
    WhyRequest,
)
from meshd.admin.plan_options import PlanOptions, plan_request
from meshd.admin.planned_file import NotHereYet, header_from_members, local_or_header
from meshd.admin.request import to_fields
from meshd.admin.status import StorageCapacity
from meshd.base.errors import UserError
from meshd.base.units import in_bytes, in_memory, in_number
from meshd.cli.find_models import as_given, reporter
from meshd.cli.model import MEMBERS_SECONDS
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.cli.pull_model import watched
from meshd.config.tree import Config, home_here
from meshd.model.status import of_each_layer
from meshd.model.time_account import TimeAccount

_SHOWN = 5
_COLUMNS = ("SPLIT", "REQUEST", "GENERATION", "AT ONCE", "PROMPT", "LOAD", "A TOKEN")
_SHOWN_ANSWERS = 4
_ASK_SECONDS = 60.0
MEASURE_SECONDS = 330.0  # a GPU's driver may compile first
_SHOWN_DIGITS = 16  # of a fingerprint


class Plan:
    """Predict how fast a model would run on the machines of this mesh, and choose machines and split.

    The running node asks all workers and loads nothing; devices whose speed is not known yet are measured
    first, which takes a few seconds each.

    examples:
      meshd plan --model model.gguf
      meshd plan --model qwen3 --ctx-size 32768 --streams 4
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what to plan for, and --json."""
        parser.add_argument(
            "--model",
            metavar="MODEL",
            required=True,
            help="GGUF file, or the name of a model; if it is not on this machine, only its header is "
            "downloaded",
        )
        parser.add_argument(
            "--ctx-size",
            metavar="N|max",
            default="",
            help="context length per request, in tokens; max: the longest that fits, up to the length the "
            "model was trained for",
        )
        add_split_options(parser)
        parser.add_argument(
            "--streams", metavar="S", type=int, default=0, help="concurrent requests (default: up to 4)"
        )
        parser.add_argument(
            "--draft-model",
            metavar="MODEL",
            default="",
            help="a small model with the same vocabulary that drafts tokens: a GGUF file, or the name of a "
            "model",
        )
        parser.add_argument("--json", action="store_true", help="print JSON, for scripts")

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon and print. Returns 1 when nothing fits."""
        request = plan_request(
            PlanOptions(
                ctx_size=args.ctx_size,
                streams=args.streams,
                workers=args.workers,
                layers=",".join(args.layers),
                tensor_split=args.tensor_split,
                device=",".join(args.device),
                memory=",".join(args.memory),
            )
        )
        with ExitStack() as held:
            client = held.enter_context(_client())
            file = model_for_plan(args.model, Config(), client, held, out)
            draft = model_for_plan(args.draft_model, Config(), client, held, out) if args.draft_model else ""
            request = replace(request, model=str(file), draft_model=str(draft))
            out.progress("asking the nodes, and measuring what is not known yet")
            reply = client.ask(request, seconds=MEASURE_SECONDS)
        if args.json:
            out.json(to_fields(reply))
        else:
            _show(reply, out)
        return 0


def _client() -> Client:
    """Connect to the daemon. Raises UserError, without one with the command that works then."""
    try:
        return Client(home_here())
    except NotRunning as error:
        fits = "`meshd model ls --fits` estimates without a node which models fit on this machine"
        raise UserError(error.what, hint=f"{error.hint}; {fits}") from None


def _show(reply: PlanReply, out: Output) -> None:
    # The choice, in sentences.
    best = reply.plans[reply.choice]
    out.text(f"{reply.model}: {best.why}")
    slots = f" for each of {best.slots} requests at once" if best.slots != 1 else ", one request at a time"
    out.text(
        f"served by `{reply.head}`: context {best.ctx_size} tokens{slots}, "
        f"prompts in steps of {best.ubatch}, output on {best.output_on}"
    )
    if best.ctx_note:
        out.text(best.ctx_note)
    if best.speculation is not None:
        out.text(_drafts(best.speculation))
        if best.speculation.why_no_model:
            out.text(best.speculation.why_no_model)
    if reply.ways is not None:
        out.text(reply.ways.text)
    out.line()
    # Its devices, and the alternatives.
    out.table(
        ("NODE", "DEVICE", "OF EACH LAYER" if best.by_tensors else "LAYERS", "MEMORY"),
        [
            (part.node, part.device, layers, in_memory(part.memory_bytes))
            for part, layers in zip(best.nodes, _layers_of(best), strict=True)
        ],
    )
    out.line()
    shown = [best, *(plan for plan in reply.plans if plan is not best)][:_SHOWN]
    out.table(_COLUMNS, [_row(plan) for plan in shown], drop=("A TOKEN", "LOAD"))
    out.line()
    # The words used, and what is missing.
    out.text(
        f"REQUEST: time for a prompt of {best.prompt_tokens} tokens and {best.answer_tokens} generated ones; "
        "splits are compared by it"
    )
    out.text(
        f"AT ONCE: {in_number(best.slots, 'request')} together. A TOKEN: bytes on the network for each token"
    )
    out.text(_load_note(shown))
    if not all(plan.measured for plan in shown):
        out.note("some speeds are estimated: those devices could not be measured, or were busy")
    for left in reply.left_out:
        out.note(f"left out: {left.why}" if left.node in left.why else f"{left.node}: left out: {left.why}")


def _load_note(shown: Sequence[PlanView]) -> str:
    if any(plan.load_bytes is None for plan in shown):
        return "LOAD: from the nodes' own files, as it is not known whether they have the model"
    most = max((plan.load_bytes or 0 for plan in shown), default=0)
    if most:
        return f"LOAD: with weights that nodes lack, up to {in_bytes(most)}, as this node sends them"
    return "LOAD: from the nodes' own files, which they have"


def _drafts(found: PlanSpeculation) -> str:
    if found.why:
        return f"without drafts: {found.why}"
    kinds = [(found.free_tokens, found.free_acceptance, "repeated tokens")]
    kinds += [(found.model_tokens, found.model_acceptance, "tokens of the draft model")]
    shown = [f"up to {count} {what} a round, {share:.0%} accepted" for count, share, what in kinds if count]
    known = "measured" if found.measured else "assumed"
    return (
        f"with drafts: {found.repetitive_tok_s:.1f} tok/s where text repeats itself, "
        f"{found.prose_tok_s:.1f} tok/s for prose ({'; '.join(shown)}, {known})"
    )


def _row(plan: PlanView) -> tuple[str, ...]:
    held = zip(plan.nodes, _layers_of(plan), strict=True)
    if plan.by_tensors:
        split = f"each layer: {', '.join(f'{part.node} {share}' for part, share in held)}"
    else:
        split = " ".join(f"{part.node}:{layers}" for part, layers in held)
    return (
        split,
        f"{plan.answer_s:.1f} s",
        f"{plan.generate_tok_s:.1f} tok/s",
        f"{plan.streams_tok_s:.1f} tok/s",
        f"{plan.prompt_tok_s:.0f} tok/s",
        f"{plan.load_s:.1f} s",
        in_bytes(plan.bytes_per_token),
    )


def _layers_of(plan: PlanView) -> list[str]:
    """Return how many layers each device has, or by tensors how much of each layer."""
    layers = [part.layers for part in plan.nodes]
    return of_each_layer(layers) if plan.by_tensors else [str(count) for count in layers]


def model_for_plan(text: str, config: Config, client: Client, held: ExitStack, out: Output) -> Path:
    """Return the first file. What was taken for this plan alone is removed with `held`. Raises UserError."""
    cache = config.paths.cache
    found = local_or_header(as_given(text), cache, held, report=reporter(out), note=out.note)
    if not isinstance(found, NotHereYet):
        return found
    reply = watched(client, client.ask(PullRequest(name=text, for_plan=True)), out)
    return header_from_members(text, found, reply, held, note=out.note)


def add_split_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a split; one that is omitted is as this node serves."""
    parser.add_argument(
        "--workers",
        metavar="A,B,…",
        default="",
        help="use only these workers, by name or the beginning of an id",
    )
    parser.add_argument(
        "--layers",
        metavar="NODE=FIRST-LAST",
        action="append",
        default=[],
        help="layers of one node, counted from 0; repeat until every layer has a node",
    )
    parser.add_argument(
        "--tensor-split",
        metavar="A,B,…",
        default="",
        help="share of the layers per device: the workers' in the order of their names, then this "
        "node's GPUs (without one, its CPU)",
    )
    parser.add_argument(
        "--device",
        metavar="DEV",
        action="append",
        default=[],
        help="devices of this node to compute on; `none` leaves all layers to the workers",
    )
    parser.add_argument(
        "--memory",
        metavar="[NODE=]SIZE",
        action="append",
        default=[],
        help="assume that a node (or every node) lends at most SIZE per device, such as garage=8G",
    )


class Why:
    """Show where the time of a token and of a prompt goes, and the one change that would gain most.

    Run it on the node that serves the model, while it answers or afterwards.

    examples:
      meshd why
      meshd why --json
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add --json."""
        parser.add_argument("--json", action="store_true", help="print JSON, for scripts")

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon and print. Returns 1 if nothing was answered yet."""
        with Client(home_here()) as client:
            reply = client.ask(WhyRequest(), seconds=_ASK_SECONDS)
        if args.json:
            out.json(to_fields(reply))
        else:
            _show_time(reply, out)
        return 0


def _show_time(reply: WhyReply, out: Output) -> None:
    # The split, and the last answers.
    out.text(f"{reply.model}: {reply.split}")
    out.line()
    out.table(
        ("REQUEST", "QUEUE", "PROMPT", "GENERATED"),
        [_answer_row(answer) for answer in reversed(reply.answers[-_SHOWN_ANSWERS:])],
    )
    # Where the time of a token, a round and a prompt goes.
    if reply.token is not None:
        of = f"mean of {in_number(reply.token.tokens, 'token')}"
        if reply.token.rounds < reply.token.tokens:
            of += f" in {in_number(reply.token.rounds, 'round')}"
        _show_account("A TOKEN", reply.token, of, out)
    if reply.round is not None:
        each = reply.round.tokens / max(1, reply.round.rounds)
        of = f"mean of {in_number(reply.round.rounds, 'round')}, {each:.1f} tokens each"
        _show_account("A ROUND", reply.round, of, out)
        out.line()
        out.text(
            "A ROUND: llama-server computes one for all running requests, or for a step of a prompt; "
            "mean of the last half minute of streamed requests"
        )
    if reply.prompt is not None:
        _show_account("A PROMPT", reply.prompt, "to the first token", out)
    if reply.by_tensors:
        out.note(reply.why_no_round)
    elif reply.token is None and reply.prompt is None:
        out.note("no request ran alone from start to end, so its time cannot be divided by tokens")
        if reply.round is None:
            out.note(f"it cannot be divided by rounds: {reply.why_no_round}")
    # Speeds, and the change that would gain most.
    out.line()
    out.text(f"speed: {_speeds(reply)}")
    if reply.since_load:
        out.text(f"since the load: {'; '.join(reply.since_load)}")
    if reply.ways is not None:
        out.text(reply.ways.text)
    advice = reply.advice
    if advice.change:
        speeds = f"predicted {advice.generate_tok_s:.1f} → {advice.generate_tok_s_then:.1f} tok/s"
        longer = f"as it runs, a request takes {1 / max(1e-4, 1 - advice.gain):.2f} times as long"
        out.text(f"change: {advice.change} ({speeds}; {longer})")
    else:
        out.text(f"change: nothing: {advice.why}")
    if advice.change and advice.why:
        out.text(f"why: {advice.why}")


def _speeds(reply: WhyReply) -> str:
    """Return the speed of the running split: measured, predicted now, and predicted when it was loaded."""
    token = reply.token
    parts = [f"{1 / token.seconds:.1f} tok/s measured"] if token is not None and token.seconds > 0 else []
    parts.append(f"{reply.advice.generate_tok_s:.1f} tok/s predicted now, as by `meshd plan`")
    if reply.generate_tok_s_at_load is not None:
        parts.append(f"{reply.generate_tok_s_at_load:.1f} tok/s predicted at load")
    return ", ".join(parts)


def _answer_row(answer: AnswerTime) -> tuple[str, ...]:
    when = "running" if answer.running else f"{answer.ended_s_ago:.0f} s ago"
    shown = when if answer.alone else f"{when}, among others"
    rate = f", {answer.generated_tokens / answer.generated_s:.1f} tok/s" if answer.generated_s > 0 else ""
    prompt = "-" if answer.running else f"{in_number(answer.prompt_tokens, 'token')}, {answer.prompt_s:.2f} s"
    queue = "-" if answer.running else f"{answer.queue_s:.2f} s"
    return shown, queue, prompt, f"{in_number(answer.generated_tokens, 'token')}{rate}"


def _show_account(title: str, account: TimeAccount, of: str, out: Output) -> None:
    out.line()
    rows = [
        (part.kind.value, part.where, *_time(part.seconds, account), part.source.value)
        for part in account.parts
    ]
    rows.append(("not explained", "", *_time(account.unexplained, account), ""))
    rows.append(("whole", of, *_time(account.seconds, account), "measured"))
    out.table((title, "WHERE", "TIME", "SHARE", "KNOWN BY"), rows)


def _time(seconds: float, account: TimeAccount) -> tuple[str, str]:
    share = seconds / account.seconds if account.seconds > 0 else 0.0
    return f"{seconds * 1000:z.1f} ms", f"{share:z.0%}"  # z: no `-0%`


class Capacity:
    """Measure what all nodes could contribute: memory and speed of each device, the paths between nodes,
    disks and model files.

    What has not been measured before is measured now, which takes a few seconds per device. Nothing is
    reserved. If something else computed on a machine while it was measured, run `meshd capacity --again`
    there.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add --again, --json."""
        parser.add_argument(
            "--again",
            action="store_true",
            help="measure this machine's devices again, for all models; other machines keep their speeds, so "
            "run it there as well",
        )
        parser.add_argument("--json", action="store_true", help="print JSON, for scripts")

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon and print."""
        with Client(home_here()) as client:
            out.progress("measuring devices")
            reply = client.ask(CapacityRequest(again=args.again), seconds=MEASURE_SECONDS + MEMBERS_SECONDS)
        if args.json:
            out.json({**to_fields(reply), "paths": [_path_json(path) for path in reply.paths]})
        else:
            _show_capacity(reply, out)
        return 0


def _path_json(path: PathCapacity) -> dict[str, str | float | None]:
    return {"from": path.source, "to": path.to, "rtt_ms": path.rtt_ms, "bytes_s": path.bytes_s}


def _show_capacity(reply: CapacityReply, out: Output) -> None:
    out.table(
        ("NODE", "DEVICE", "FREE", "TOTAL", "WEIGHTS", "PROMPTS"),
        [_device_row(device) for device in reply.devices],
    )
    if reply.paths:
        out.line()
        out.table(
            ("FROM", "TO", "RTT", "RATE"),
            [
                (
                    path.source,
                    path.to,
                    f"{path.rtt_ms:.2f} ms",
                    "-" if path.bytes_s is None else f"{in_bytes(path.bytes_s)}/s",
                )
                for path in reply.paths
            ],
        )
    _show_storage(reply.storage, out)
    for left in reply.left_out:
        out.note(f"{left.node}: left out: {left.why}")
    for slow in reply.unmeasured:
        out.note(f"{slow.node}: no speed: {slow.why}")
    for silent in reply.storage:
        if silent.why_not:
            out.note(f"{silent.node} did not say what it stores: {silent.why_not}")


def _show_storage(storage: Sequence[StorageCapacity], out: Output) -> None:
    known = [disk for disk in storage if not disk.why_not]
    if not known:
        return
    out.line()
    out.table(
        ("NODE", "DISK FREE", "CACHE ROOM", "MODELS"),
        [
            (
                disk.node,
                "unknown" if disk.free_bytes is None else in_bytes(disk.free_bytes),
                "-" if disk.cache_room_bytes is None else in_bytes(disk.cache_room_bytes),
                str(len(disk.models) + disk.more_models),
            )
            for disk in known
        ],
    )
    rows = [row for disk in known for row in _model_rows(disk)]
    if rows:
        out.line()
        out.table(("NODE", "MODEL", "SIZE", "FINGERPRINT"), rows)


def _model_rows(disk: StorageCapacity) -> list[tuple[str, ...]]:
    rows = [
        (disk.node, model.name, in_bytes(model.bytes), (model.fingerprint or "-")[:_SHOWN_DIGITS])
        for model in disk.models
    ]
    more = [(disk.node, f"and {disk.more_models} more", "", "")] if disk.more_models else []
    return [*rows, *more]


def _device_row(device: DeviceCapacity) -> tuple[str, ...]:
    return (
        device.node,
        device.device,
        in_memory(device.free_bytes),
        in_memory(device.total_bytes),
        "-" if device.weight_bytes_s is None else f"{in_bytes(device.weight_bytes_s)}/s",
        "-" if device.flops is None else f"{device.flops / 1e9:.0f} GFLOP/s",
    )
