"""Devices of this machine, as ggml names them.

`--list-devices` of a patched `ggml-rpc-server` or of `mesh-server` lists them with what they are; of a stock
rpc-server `--device ?` tells names and memory (an unknown device makes it print what there is). It costs a
start of the program, so it is asked for each lease and never polled.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from meshd.base.byte_format import MIB
from meshd.base.errors import MeshdError, UserError
from meshd.process.interface import ChildSpec, RunToEnd
from meshd.wire.lease import OfferedDevice
from meshd.wire.limits import MAX_DEVICES

# no more than an Offer can carry (wire/lease.py): an odd line of a driver must not spoil it
_LINE = re.compile(
    r"^  (?P<name>[!-9;-~]{1,64}): (?P<text>.*)"
    r" \((?P<total>[0-9]{1,12}) MiB, (?P<free>[0-9]{1,12}) MiB free\)$"
)
_LISTED = re.compile(
    r"^device (?P<name>[!-9;-~]{1,64}) (?P<type>[a-z]{1,16}) (?P<id>[!-~]{1,128})"
    r" (?P<total>[0-9]{1,17}) (?P<free>[0-9]{1,17}) (?P<text>.*)$"
)
SHARED_MEMORY = "memory"  # in place of a card: a GPU without memory of its own
_HALF_ABLE = ("BLAS", "ACCEL", "AMX")  # accelerators that lack operations: never used on their own


def parse_devices(lines: Sequence[str]) -> tuple[OfferedDevice, ...]:
    """The devices in the program's output."""
    devices: dict[
        str, OfferedDevice
    ] = {}  # by name: two of one name could not be told apart in a command line
    for line in lines:
        if (match := _LINE.match(line)) is None:
            continue
        name = match["name"]
        kind = "cpu" if name == "CPU" or name.startswith(_HALF_ABLE) else "gpu"
        description = "".join(c for c in match["text"] if c.isprintable())[:200]
        device = OfferedDevice(name, kind, description, int(match["free"]) * MIB, int(match["total"]) * MIB)
        devices.setdefault(device.name, device)
    return tuple(devices.values())[:MAX_DEVICES]


def parse_listed(lines: Sequence[str], machine: str) -> tuple[OfferedDevice, ...]:
    """The devices in the list of a patched program; `machine` as in Offer."""
    devices: dict[str, OfferedDevice] = {}
    for line in lines:
        if (match := _LISTED.match(line)) is None:
            continue
        gpu = match["type"] in ("gpu", "igpu")
        description = "".join(c for c in match["text"] if c.isprintable())[:200]
        device = OfferedDevice(
            match["name"],
            "gpu" if gpu else "cpu",
            description,
            int(match["free"]),
            int(match["total"]),
            SHARED_MEMORY if match["type"] == "igpu" else card_of(machine, match["id"]) if gpu else "",
        )
        devices.setdefault(device.name, device)
    return tuple(devices.values())[:MAX_DEVICES]


def card_of(machine: str, hardware: str) -> str:
    """The name of the card with this id (a PCI bus id, say) in this machine; empty: not known."""
    if not machine or hardware == "-":
        return ""
    return hashlib.sha256(f"meshd card\0{machine}\0{hardware}".encode()).hexdigest()[:32]


def twin(device: OfferedDevice, others: Sequence[OfferedDevice]) -> str:
    """The name of one of these that is the same card, through another backend say; empty: none is."""
    if device.card in ("", SHARED_MEMORY):
        return ""
    return next((other.name for other in others if other.card == device.card), "")


def pick(devices: Sequence[OfferedDevice], asked: Sequence[str]) -> tuple[OfferedDevice, ...]:
    """Those asked for, in that order; without a wish all GPUs, else the CPU. Raises UserError."""
    by_name = {device.name: device for device in devices}
    names = ", ".join(by_name) or "none"
    if asked:
        missing = [name for name in asked if name not in by_name]
        if missing:
            raise UserError(
                f"this machine has no device `{missing[0]}`", hint=f"devices of this machine: {names}"
            )
        return tuple(by_name[name] for name in dict.fromkeys(asked))
    usable = [device for device in devices if not device.name.startswith(_HALF_ABLE)]
    gpus = [device for device in usable if device.kind == "gpu"]
    return tuple(gpus or usable)


async def list_devices(
    program: Path, *, ours: bool, machine: str, run_to_end: RunToEnd, log: Path
) -> tuple[OfferedDevice, ...]:
    """Ask the program; one of `ours` tells more. Raises MeshdError when it lists nothing."""
    lines: list[str] = []
    ended = await run_to_end(
        ChildSpec(
            name="device list",
            argv=(str(program), *(("--list-devices",) if ours else ("--device", "?"))),
            log=log,
            on_line=lines.append,
        )
    )
    devices = parse_listed(lines, machine) if ours else parse_devices(lines)
    if not devices:
        shown = " | ".join(ended.tail[-3:])
        raise MeshdError(
            f"`{program.name}` lists no devices: {shown}",
            hint="run `meshd native build`",
        )
    return devices
