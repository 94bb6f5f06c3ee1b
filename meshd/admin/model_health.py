"""Derives warnings about a model that a head serves from the status. Pure."""

from collections.abc import Iterator, Sequence

from meshd.admin.status import HealthWarning, Status
from meshd.base.byte_format import in_bytes, in_number
from meshd.identity.role_names import WORKER_ROLE
from meshd.model.status import COUNTED, NOT_HELD, ModelStatus, NetworkTensor

SLOW_SHARE = 0.5  # of the predicted speed: below that something else computes, or the prediction is wrong
_TENSORS_NAMED = 3
_LOG_HINT = "run `meshd logs llama-server` for details"
_PLAN_HINT = "change that and restart the head; it also tries again when workers come or go"


def model_warnings(model: ModelStatus, status: Status) -> Iterator[HealthWarning]:
    """Yield the warnings of one model; `status` knows the workers."""
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
        yield _weights_that_crossed(model.tensors_from_network)


def _weights_that_crossed(tensors: Sequence[NetworkTensor]) -> HealthWarning:
    """Warn of copies that workers could not use; weights that no worker has are only worth a remark."""
    unusable = [tensor for tensor in tensors if tensor.reason != NOT_HELD]
    named = unusable or tensors
    names = ", ".join(t.name for t in named[:_TENSORS_NAMED]) + (", …" if len(named) > _TENSORS_NAMED else "")
    size = in_bytes(sum(t.bytes for t in named))
    came = f"{in_number(len(named), 'tensor')} ({size}) came over the network: {names}"
    hint = "for faster loads, give the workers the same file with --model"
    if unusable:
        hint = (
            f"give the workers an intact copy of the same file with --model; first reason: {named[0].reason}"
        )
    return HealthWarning(
        code="tensors_from_network", severity="warning" if unusable else "info", what=came, hint=hint
    )


def _waits_hint(model: ModelStatus, status: Status) -> str:
    """Return the hint that ends the waiting."""
    workers = [peer for peer in status.peers if peer.role == WORKER_ROLE]
    paused = [peer.name for peer in workers if f"{peer.name} is paused" in model.reason]
    # what does not fit here is not helped by waiting for fewer
    counts = model.reason.startswith(COUNTED)
    alone = "; with `--min-workers 0` it needs none if it fits on this node" if counts else ""
    if paused:
        return f"run `meshd resume` on {' and '.join(paused)}{alone}"
    fetching = [peer.name for peer in workers if f"{peer.name} is fetching" in model.reason]
    if fetching:
        its = "its model" if len(fetching) == 1 else "their models"
        return f"wait until {' and '.join(fetching)} {'has' if len(fetching) == 1 else 'have'} {its}{alone}"
    if not workers:
        return f"run `meshd worker --join INVITE` on another machine: `meshd invite` prints an invite{alone}"
    return f"start the workers that it waits for, or others{alone}"


def _slower(model: ModelStatus) -> str | None:
    """Return the measured speeds that are less than half of the predicted ones, in words; None if none is."""
    measured, predicted = model.measured, model.predicted
    if measured is None or predicted is None:
        return None
    pairs = (
        ("generation", measured.generate_tok_s, predicted.generate_tok_s),
        ("prompts", measured.prompt_tok_s, predicted.prompt_tok_s),
    )
    slower = [
        f"{what} {have:.1f} tokens/s, predicted {hoped:.1f}"
        for what, have, hoped in pairs
        if have is not None and hoped is not None and have < hoped * SLOW_SHARE
    ]
    return "; ".join(slower) or None


def _because(why: str) -> str:
    return f": {why}" if why else ""
