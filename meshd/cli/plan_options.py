"""The options of `meshd plan` about who computes: those of `meshd serve`, and less memory than there is."""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from meshd.admin.plan_api import MemoryLimit, PlanRequest
from meshd.base.errors import UsageError
from meshd.cli.options import Arguments
from meshd.config.forms import SIZE, WEIGHT, WORD, Form, listed, parse_size
from meshd.model.layer_range import parse_layer_range


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
