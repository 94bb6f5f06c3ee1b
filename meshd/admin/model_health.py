"""Warnings about a model that a head serves, derived from the status. Pure."""

from collections.abc import Iterator

from meshd.admin.status import HealthWarning, Status
from meshd.base.byte_format import in_bytes, in_number
from meshd.identity.role_names import WORKER_ROLE
from meshd.model.status import ModelStatus

SLOW_SHARE = 0.5  # of the predicted speed: below that something else computes, or the prediction is wrong
_TENSORS_NAMED = 3
_LOG_HINT = "run `meshd logs llama-server` for details"
_PLAN_HINT = "change that and restart the head; it also tries again when workers come or go"


def model_warnings(model: ModelStatus, status: Status) -> Iterator[HealthWarning]:
    """Of one model; `status` knows the workers."""
    if model.state == "failed":
        yield HealthWarning(
            code="model_failed",
            severity="error",
            what=f"`{model.name}` is not served{_because(model.reason)}",
            hint=_LOG_HINT if "llama-server" in model.reason else _PLAN_HINT,
        )
    if model.state == "waiting":
        yield HealthWarning(
            code="model_waiting",
            severity="info",
            what=f"`{model.name}` is not loaded{_because(model.reason)}",
            hint=_waits_hint(model, status),
        )
    if (slow := _slower(model)) is not None:
        yield HealthWarning(
            code="model_slow",
            severity="info",
            what=f"`{model.name}` is much slower than predicted: {slow}",
            hint="look for other programs that compute on these machines; if there are none, run "
            "`meshd capacity --again` on each, then restart the head",
        )
    if model.tensors_from_network:
        tensors = model.tensors_from_network
        names = ", ".join(t.name for t in tensors[:_TENSORS_NAMED]) + (
            ", …" if len(tensors) > _TENSORS_NAMED else ""
        )
        size = sum(t.bytes for t in tensors)
        yield HealthWarning(
            code="tensors_from_network",
            severity="warning",
            what=f"{in_number(len(tensors), 'tensor')} ({in_bytes(size)}) came over the network: {names}",
            hint=f"give the workers the same file with --model; first reason: {tensors[0].reason}",
        )


def _waits_hint(model: ModelStatus, status: Status) -> str:
    """What ends the waiting."""
    workers = [peer for peer in status.peers if peer.role == WORKER_ROLE]
    paused = [peer.name for peer in workers if f"{peer.name} is paused" in model.reason]
    alone = "with `--min-workers 0` it needs none if it fits on this node"
    if paused:
        return f"run `meshd resume` on {' and '.join(paused)}; {alone}"
    if not workers:
        return f"run `meshd worker --join TOKEN` on another machine: `meshd invite` prints a token; {alone}"
    return f"start the workers that it waits for, or others; {alone}"


def _slower(model: ModelStatus) -> str | None:
    """What was measured where it is less than half of what was predicted."""
    measured, predicted = model.measured, model.predicted
    if measured is None or predicted is None:
        return None
    pairs = (
        ("generation", measured.generate_tok_s, predicted.generate_tok_s),
        ("prompts", measured.prompt_tok_s, predicted.prompt_tok_s),
    )
    told = [
        f"{what} {have:.1f} tokens/s, predicted {hoped:.1f}"
        for what, have, hoped in pairs
        if have is not None and hoped is not None and have < hoped * SLOW_SHARE
    ]
    return "; ".join(told) or None


def _because(why: str) -> str:
    return f": {why}" if why else ""
