"""Predict how fast a model would run on the machines of this mesh, and choose machines and split.

The running node asks all workers and loads nothing; devices whose speed is not known yet are measured first,
which takes a few seconds each.

examples:
  meshd plan --model model.gguf
  meshd plan --model qwen3 --ctx-size 32768 --streams 4
"""

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from meshd.admin.client import Client
from meshd.admin.codec import to_fields
from meshd.admin.models_api import NO_MEMBER_HAS_IT, PullRequest
from meshd.admin.plan_api import MemoryLimit, PlanReply, PlanRequest, PlanSpeculation, PlanView
from meshd.base.errors import UsageError, UserError
from meshd.base.units import in_bytes, in_memory, in_number
from meshd.cli.capacity import MEASURE_SECONDS
from meshd.cli.find_models import check_no_file, local_model, reporter
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.cli.pull_model import watched
from meshd.config.forms import SIZE, WEIGHT, WORD, Form, listed, parse_size
from meshd.config.tree import Config, home_here
from meshd.model.layer_range import parse_layer_range
from meshd.model.model_name import MESH, OLLAMA

_LARGEST_CONTEXT = 1 << 24
_LONGEST = "max"
_MOST_STREAMS = 64
_SHOWN = 5
_COLUMNS = ("SPLIT", "REQUEST", "GENERATION", "AT ONCE", "PROMPT", "LOAD", "A TOKEN")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to plan for, and --json."""
    parser.add_argument(
        "--model",
        metavar="MODEL",
        required=True,
        help="GGUF file, or the name of a model; if it is not on this machine, only its header is downloaded",
    )
    parser.add_argument(
        "--ctx-size",
        metavar="N|max",
        default="",
        help="context length per request, in tokens; max: the longest that fits, up to the length the model "
        "was trained for",
    )
    add_split_options(parser)
    parser.add_argument(
        "--streams", metavar="S", type=int, default=0, help="concurrent requests (default: up to 4)"
    )
    parser.add_argument(
        "--draft-model",
        metavar="MODEL",
        default="",
        help="a small model with the same vocabulary that drafts tokens: a GGUF file, or the name of a model",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def run(args: Arguments, out: Output) -> int:
    """Ask the daemon and print. Returns 1 when nothing fits."""
    ctx_size = _context(args.ctx_size)
    if not 0 <= args.streams <= _MOST_STREAMS:
        raise UsageError(f"--streams takes a number from 1 to {_MOST_STREAMS}")
    request = PlanRequest(
        model="",
        ctx_size=ctx_size,
        streams=args.streams,
        largest_context=args.ctx_size == _LONGEST,
    )
    request = with_split_options(request, args)
    with Client(home_here()) as client, ExitStack() as held:
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


def _context(given: str) -> int:
    """Return the context in tokens, 0 for the usual and for the longest one. Raises UsageError."""
    if given in ("", _LONGEST):
        return 0
    if given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= _LARGEST_CONTEXT:
        return int(given)
    raise UsageError(f"--ctx-size takes a number from 1 to {_LARGEST_CONTEXT}, or `{_LONGEST}`")


def _show(reply: PlanReply, out: Output) -> None:
    # The choice, in sentences.
    best = reply.plans[reply.choice]
    out.line(f"{reply.model}: {best.why}")
    slots = f" for each of {best.slots} requests at once" if best.slots != 1 else ", one request at a time"
    out.line(
        f"served by `{reply.head}`: context {best.ctx_size} tokens{slots}, "
        f"prompts in steps of {best.ubatch}, output on {best.output_on}"
    )
    if best.ctx_note:
        out.line(best.ctx_note)
    if best.speculation is not None:
        out.line(_drafts(best.speculation))
        if best.speculation.why_no_model:
            out.line(best.speculation.why_no_model)
    out.line()
    # Its devices, and the alternatives.
    out.table(
        ("NODE", "DEVICE", "LAYERS", "MEMORY"),
        [(part.node, part.device, str(part.layers), in_memory(part.memory_bytes)) for part in best.nodes],
    )
    out.line()
    shown = [best, *(plan for plan in reply.plans if plan is not best)][:_SHOWN]
    out.table(_COLUMNS, [_row(plan) for plan in shown])
    out.line()
    # The words used, and what is missing.
    out.line(
        f"REQUEST: time for a prompt of {best.prompt_tokens} tokens and {best.answer_tokens} generated ones; "
        "splits are compared by it"
    )
    out.line(
        f"AT ONCE: {in_number(best.slots, 'request')} together. A TOKEN: bytes on the network for each token"
    )
    out.line(_load_note(shown))
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
    split = " ".join(f"{part.node}:{part.layers}" for part in plan.nodes)
    return (
        split,
        f"{plan.answer_s:.1f} s",
        f"{plan.generate_tok_s:.1f} tok/s",
        f"{plan.streams_tok_s:.1f} tok/s",
        f"{plan.prompt_tok_s:.0f} tok/s",
        f"{plan.load_s:.1f} s",
        in_bytes(plan.bytes_per_token),
    )


def model_for_plan(text: str, config: Config, client: Client, held: ExitStack, out: Output) -> Path:
    """Return the first file. What was taken for this plan alone is removed with `held`. Raises UserError."""
    from meshd.library.interface import NotHere
    from meshd.model.short_names import hub_name_of

    try:
        return local_model(text, config, out)
    except NotHere as not_here:
        check_no_file(text, not_here)
        missing = not_here
    if text.startswith(OLLAMA):
        raise missing  # its registry is Ollama's to ask
    from meshd.library.members.part_files import remove_old_plans

    remove_old_plans(config.paths.cache, config.paths.cache / "models")
    # Its header from Hugging Face.
    if (name := hub_name_of(text)) is not None:
        from meshd.library.download import fetch_headers  # huggingface_hub: half a second to import

        path = fetch_headers(name, _folder(config.paths.cache, held), reporter(out))[0]
        out.note(f"`{text}` is not on this machine: planned from its header, which Hugging Face has")
        return path
    # Its header from members.
    reply = watched(client, client.ask(PullRequest(name=text, for_plan=True)), out)
    if reply.code == NO_MEMBER_HAS_IT and not text.startswith(MESH):
        raise UserError(f"{missing.what}; {reply.error}", hint=missing.hint)
    if reply.error:
        raise UserError(reply.error, hint=reply.hint)
    path = Path(reply.paths[0])
    if not reply.was_here:
        held.callback(shutil.rmtree, path.parent, ignore_errors=True)
        out.note(f"`{text}` is not on this machine: planned from its header, which members have")
    return path


def _folder(cache: Path, held: ExitStack) -> Path:
    """Create a folder for headers. Raises UserError."""
    from meshd.library.members.part_files import hub_plans

    try:
        hub_plans(cache).mkdir(parents=True, exist_ok=True)
        return Path(held.enter_context(tempfile.TemporaryDirectory(dir=hub_plans(cache))))
    except OSError as error:
        raise UserError(
            f"cannot write below `{cache}`: {(error.strerror or str(error)).lower()}",
            hint="fix the cause, or set MESHD_CACHE to a directory that you can write to",
        ) from None


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
        help="share of the layers per device: the workers' by their names, then this node's GPUs (without "
        "one, its CPU)",
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


def with_split_options(request: PlanRequest, args: Arguments) -> PlanRequest:
    """Return the request with the split options. Raises UsageError."""
    layers = _layers(args.layers)
    shares = tuple(map(float, _listed("--tensor-split", WEIGHT, args.tensor_split)))
    if shares and layers:
        raise UsageError("--layers cannot be combined with --tensor-split")
    if shares and not any(shares):
        raise UsageError("--tensor-split gives no device a share")
    devices = _listed("--device", WORD, args.device)
    if "none" in devices and len(devices) > 1:
        raise UsageError("--device none cannot be combined with other devices")
    return replace(
        request,
        workers=_listed("--workers", WORD, args.workers),
        layers=layers,
        tensor_split=shares,
        devices=devices,
        memory=_memory(args.memory),
    )


def _listed(option: str, form: Form, given: str | Sequence[str]) -> tuple[str, ...]:
    """Parse a list. Raises UsageError."""
    if not given:
        return ()
    try:
        found = listed(form).read(given)
    except ValueError:
        raise UsageError(f"{option} takes {listed(form).expected}") from None
    assert isinstance(found, tuple)
    return tuple(map(str, found))


def _layers(given: Sequence[str]) -> tuple[str, ...]:
    """Return the ranges as the daemon takes them. Raises UsageError."""
    ranges = [layer_range for words in given for layer_range in words.split(",")]
    for layer_range in ranges:
        try:
            parse_layer_range(layer_range)
        except ValueError as error:
            raise UsageError(f"--layers takes NODE=FIRST-LAST, not `{layer_range}`: {error}") from None
    return tuple(ranges)


def _memory(given: Sequence[str]) -> tuple[MemoryLimit, ...]:
    """Parse `[NODE=]SIZE` values. Raises UsageError."""
    limits: list[MemoryLimit] = []
    for limit in (limit.strip() for words in given for limit in words.split(",")):
        node, equals, size = limit.rpartition("=")
        try:
            if equals and not node:
                raise ValueError("no node")
            limits.append(MemoryLimit(node=node, bytes=parse_size(size)))
        except ValueError:
            raise UsageError(f"--memory takes [NODE=]SIZE, not `{limit}`: {SIZE.expected}") from None
    return tuple(limits)
