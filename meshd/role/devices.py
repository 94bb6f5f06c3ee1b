"""Devices of this machine, as rpc-server names them.

`ggml-rpc-server --device ?` lists them with their memory (an unknown device makes it print what there is),
in stock and patched builds alike; it costs a start of the program, so it is asked for each lease and never
polled.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from meshd.base.errors import MeshdError, UserError
from meshd.process.interface import ChildSpec, RunToEnd
from meshd.wire.lease import MAX_DEVICES, Device

# no more than an Offer can carry (wire/lease.py): an odd line of a driver must not spoil it
_LINE = re.compile(
    r"^  (?P<name>[!-9;-~]{1,64}): (?P<text>.*)"
    r" \((?P<total>[0-9]{1,12}) MiB, (?P<free>[0-9]{1,12}) MiB free\)$"
)
_MIB = 1 << 20
_HALF_ABLE = ("BLAS", "ACCEL", "AMX")  # accelerators that lack operations: never used on their own


def parse_devices(lines: Sequence[str]) -> tuple[Device, ...]:
    """The devices in the program's output."""
    devices: dict[str, Device] = {}  # by name: two of one name could not be told apart in a command line
    for line in lines:
        if (match := _LINE.match(line)) is None:
            continue
        name = match["name"]
        kind = "cpu" if name == "CPU" or name.startswith(_HALF_ABLE) else "gpu"
        description = "".join(c for c in match["text"] if c.isprintable())[:200]
        device = Device(name, kind, description, int(match["free"]) * _MIB, int(match["total"]) * _MIB)
        devices.setdefault(device.name, device)
    return tuple(devices.values())[:MAX_DEVICES]


def pick(devices: Sequence[Device], asked: Sequence[str]) -> tuple[Device, ...]:
    """Those asked for, in that order; without a wish all GPUs, else the CPU. Raises UserError."""
    by_name = {device.name: device for device in devices}
    names = ", ".join(by_name) or "none"
    if asked:
        missing = [name for name in asked if name not in by_name]
        if missing:
            raise UserError(f"no device `{missing[0]}` here", hint=f"devices of this machine: {names}")
        return tuple(by_name[name] for name in dict.fromkeys(asked))
    usable = [device for device in devices if not device.name.startswith(_HALF_ABLE)]
    gpus = [device for device in usable if device.kind == "gpu"]
    return tuple(gpus or usable)


async def list_devices(rpc_server: Path, *, run_to_end: RunToEnd, log: Path) -> tuple[Device, ...]:
    """Ask the program. Raises MeshdError when it cannot be run or lists nothing."""
    lines: list[str] = []
    ended = await run_to_end(
        ChildSpec(
            name="device list",
            argv=(str(rpc_server), "--device", "?"),
            log=log,
            on_line=lines.append,
        )
    )
    devices = parse_devices(lines)
    if not devices:
        shown = " | ".join(ended.tail[-3:])
        raise MeshdError(
            f"`{rpc_server.name}` lists no devices: {shown}", hint="`meshd native build` makes a new one"
        )
    return devices
