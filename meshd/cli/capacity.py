"""Measure what all nodes could contribute: memory and speed of each device, the paths between nodes, disks
and model files.

What has not been measured before is measured now, which takes a few seconds per device. Nothing is reserved.
If something else computed on a machine while it was measured, run `meshd capacity --again` there.
"""

import argparse
from collections.abc import Sequence

from meshd.admin.client import Client
from meshd.admin.codec import to_json
from meshd.admin.plan_api import (
    CapacityReply,
    CapacityRequest,
    DeviceCapacity,
    PathCapacity,
    StorageCapacity,
)
from meshd.base.units import in_bytes, in_memory
from meshd.cli.list_models import MEMBERS_SECONDS
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.config.tree import home_here

MEASURE_SECONDS = 330.0  # a GPU's driver may compile first
_SHOWN_DIGITS = 16  # of a fingerprint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --again, --json."""
    parser.add_argument(
        "--again",
        action="store_true",
        help="measure this machine's devices again, for all models; other machines keep their speeds, so run "
        "it there as well",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def run(args: Arguments, out: Output) -> int:
    """Ask the daemon and print."""
    with Client(home_here()) as client:
        out.progress("measuring devices")
        reply = client.ask(CapacityRequest(again=args.again), seconds=MEASURE_SECONDS + MEMBERS_SECONDS)
    if args.json:
        paths = [_path_json(path) for path in reply.paths]
        left_out, unmeasured = to_json(reply.left_out), to_json(reply.unmeasured)
        devices, storage = to_json(reply.devices), to_json(reply.storage)
        out.json(
            {
                "devices": devices,
                "paths": paths,
                "storage": storage,
                "left_out": left_out,
                "unmeasured": unmeasured,
            }
        )
    else:
        _show(reply, out)
    return 0


def _path_json(path: PathCapacity) -> dict[str, str | float | None]:
    return {"from": path.source, "to": path.to, "rtt_ms": path.rtt_ms, "bytes_s": path.bytes_s}


def _show(reply: CapacityReply, out: Output) -> None:
    out.table(
        ("NODE", "DEVICE", "FREE", "TOTAL", "WEIGHTS", "PROMPTS"), [_row(device) for device in reply.devices]
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


def _row(device: DeviceCapacity) -> tuple[str, ...]:
    return (
        device.node,
        device.device,
        in_memory(device.free_bytes),
        in_memory(device.total_bytes),
        "-" if device.weight_bytes_s is None else f"{in_bytes(device.weight_bytes_s)}/s",
        "-" if device.flops is None else f"{device.flops / 1e9:.0f} GFLOP/s",
    )
