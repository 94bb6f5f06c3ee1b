"""Show where the time of a token and of a prompt goes, and the one change that would gain most.

Run it on the node that serves the model, while it answers or afterwards.

examples:
  meshd why
  meshd why --json
"""

import argparse

from meshd.admin.client import Client
from meshd.admin.codec import to_fields
from meshd.admin.plan_api import AnswerTime, WhyReply, WhyRequest
from meshd.base.units import in_number
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.config.tree import home_here
from meshd.model.time_account import TimeAccount

_SHOWN_ANSWERS = 4
_ASK_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def run(args: Arguments, out: Output) -> int:
    """Ask the daemon and print. Returns 1 if nothing was answered yet."""
    with Client(home_here()) as client:
        reply = client.ask(WhyRequest(), seconds=_ASK_SECONDS)
    if args.json:
        out.json(to_fields(reply))
    else:
        _show(reply, out)
    return 0


def _show(reply: WhyReply, out: Output) -> None:
    # The split, and the last answers.
    out.line(f"{reply.model}: {reply.split}")
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
        out.line(
            "A ROUND: llama-server computes one for all running requests, or for a step of a prompt; "
            "mean of the last half minute of streamed requests"
        )
    if reply.prompt is not None:
        _show_account("A PROMPT", reply.prompt, "to the first token", out)
    if reply.token is None and reply.prompt is None:
        out.note("no request ran alone from start to end, so its time cannot be divided by tokens")
        if reply.round is None:
            out.note(f"it cannot be divided by rounds: {reply.why_no_round}")
    # Speeds, and the change that would gain most.
    out.line()
    out.line(f"speed: {_speeds(reply)}")
    if reply.since_load:
        out.line(f"since the load: {'; '.join(reply.since_load)}")
    advice = reply.advice
    if advice.change:
        speeds = f"predicted {advice.generate_tok_s:.1f} → {advice.generate_tok_s_then:.1f} tok/s"
        longer = f"as it runs, a request takes {1 / max(1e-4, 1 - advice.gain):.2f} times as long"
        out.line(f"change: {advice.change} ({speeds}; {longer})")
    else:
        out.line(f"change: nothing: {advice.why}")
    if advice.change and advice.why:
        out.line(f"why: {advice.why}")


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
    return f"{seconds * 1000:.1f} ms", f"{share:.0%}"
