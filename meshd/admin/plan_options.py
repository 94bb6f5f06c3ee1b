"""The options of a plan in the words of `meshd plan`, which the page of the mesh takes as well."""

from dataclasses import dataclass

from meshd.admin.plan_api import LARGEST_CONTEXT, MOST_STREAMS, MemoryLimit, PlanRequest
from meshd.base.errors import UsageError
from meshd.config.forms import SIZE, WEIGHT, WORD, Form, listed, parse_size
from meshd.model.layer_range import parse_layer_range

_LONGEST = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options as a user writes them, lists with commas; what is empty is as the node serves."""

    ctx_size: str = ""
    streams: int = 0
    workers: str = ""
    layers: str = ""
    tensor_split: str = ""
    device: str = ""
    memory: str = ""


def plan_request(options: PlanOptions) -> PlanRequest:
    """Return the request with these options, for models that its sender adds. Raises UsageError."""
    ctx_size = _context(options.ctx_size)
    if not 0 <= options.streams <= MOST_STREAMS:
        raise UsageError(f"--streams takes a number from 1 to {MOST_STREAMS}")
    layers = _layers(options.layers)
    shares = tuple(map(float, _listed("--tensor-split", WEIGHT, options.tensor_split)))
    if shares and layers:
        raise UsageError("--layers cannot be combined with --tensor-split")
    if shares and not any(shares):
        raise UsageError("--tensor-split gives no device a share")
    devices = _listed("--device", WORD, options.device)
    if "none" in devices and len(devices) > 1:
        raise UsageError("--device none cannot be combined with other devices")
    return PlanRequest(
        model="",
        ctx_size=ctx_size,
        streams=options.streams,
        largest_context=options.ctx_size == _LONGEST,
        workers=_listed("--workers", WORD, options.workers),
        layers=layers,
        tensor_split=shares,
        devices=devices,
        memory=_memory(options.memory),
    )


def _context(given: str) -> int:
    """Return the context in tokens, 0 for the usual and for the longest one. Raises UsageError."""
    if given in ("", _LONGEST):
        return 0
    if given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= LARGEST_CONTEXT:
        return int(given)
    raise UsageError(f"--ctx-size takes a number from 1 to {LARGEST_CONTEXT}, or `{_LONGEST}`")


def _listed(option: str, form: Form, given: str) -> tuple[str, ...]:
    """Parse a list. Raises UsageError."""
    if not given:
        return ()
    try:
        found = listed(form).read(given)
    except ValueError:
        raise UsageError(f"{option} takes {listed(form).expected}") from None
    assert isinstance(found, tuple)
    return tuple(map(str, found))


def _parts(given: str) -> list[str]:
    return [part.strip() for part in given.split(",")] if given else []


def _layers(given: str) -> tuple[str, ...]:
    """Return the ranges as the daemon takes them. Raises UsageError."""
    ranges = _parts(given)
    for layer_range in ranges:
        try:
            parse_layer_range(layer_range)
        except ValueError as error:
            raise UsageError(f"--layers takes NODE=FIRST-LAST, not `{layer_range}`: {error}") from None
    return tuple(ranges)


def _memory(given: str) -> tuple[MemoryLimit, ...]:
    """Parse `[NODE=]SIZE` values. Raises UsageError."""
    limits: list[MemoryLimit] = []
    for limit in _parts(given):
        node, equals, size = limit.rpartition("=")
        try:
            if equals and not node:
                raise ValueError("no node")
            limits.append(MemoryLimit(node=node, bytes=parse_size(size)))
        except ValueError:
            raise UsageError(f"--memory takes [NODE=]SIZE, not `{limit}`: {SIZE.expected}") from None
    return tuple(limits)
