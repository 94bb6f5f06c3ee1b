"""Devices of this machine, as ggml names them, and the processors that its CPU computes with.

`mesh-server --list-devices` lists the devices with their kind and memory. It starts the program and the
drivers of GPUs, so it is never polled, and a listing is reused where it must still hold (device_list.py).
"""

import asyncio
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from meshd.base.errors import MeshdError, UserError
from meshd.base.resource_limits import MemoryAllowance, memory_limit, usable_processors
from meshd.process.interface import ChildSpec, RunToEnd, Sandbox
from meshd.wire.capacity import CORE_SET_LETTERS
from meshd.wire.lease import SHARED_MEMORY, OfferedDevice
from meshd.wire.limits import MAX_DEVICES

LIST_SECONDS = 120.0  # until a driver counts as hung: a machine with eight cards needs 20
# no more than an Offer can carry (wire/lease.py): an odd line of a driver must not invalidate the offer
_LISTED = re.compile(
    r"^device (?P<name>[!-9;-~]{1,64}) (?P<type>[a-z]{1,16}) (?P<id>[!-~]{1,128})"
    r" (?P<total>[0-9]{1,17}) (?P<free>[0-9]{1,17}) (?P<text>.*)$"
)
NEARLY_FREE = 0.9  # share of a device's memory: from here on it can hardly become more
_LACKS_LIBRARY = re.compile(r"error while loading shared libraries: ([\w.+-]{1,80}): cannot open")
_OF_CUDA = ("libcudart.", "libcublas", "libnvrtc")
_LACKS_SYMBOLS = re.compile(r"version `(GLIBC(?:XX)?_[\d.]{1,16})' not found")
_HALF_ABLE = ("BLAS", "ACCEL", "AMX")  # accelerators that lack operations: never used alone
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings"
_FEW = 4


def parse_devices(lines: Sequence[str], machine: str) -> tuple[OfferedDevice, ...]:
    """Return the devices in mesh-server's list; `machine` as in WorkerOffer."""
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


def within(devices: Sequence[OfferedDevice], limit: MemoryAllowance | None) -> tuple[OfferedDevice, ...]:
    """Return the devices, limited to the memory of the machine that this node may use.

    ggml reports the memory of the whole machine for the CPU, and all of it as free.
    """
    if limit is None:
        return tuple(devices)
    return tuple(
        replace(
            device,
            free_bytes=min(device.free_bytes, limit.free),
            total_bytes=min(device.total_bytes, limit.limit),
        )
        if device.kind == "cpu"
        else device
        for device in devices
    )


def nearly_free(devices: Sequence[OfferedDevice]) -> bool:
    """Say whether hardly anything uses these devices, so that no more can be free later."""
    return all(device.free_bytes >= NEARLY_FREE * device.total_bytes for device in devices)


def card_of(machine: str, hardware: str) -> str:
    """Return the name of the card with this hardware id (a PCI bus id, for example); empty if unknown."""
    if not machine or hardware == "-":
        return ""
    return hashlib.sha256(f"meshd card\0{machine}\0{hardware}".encode()).hexdigest()[:32]


def twin(device: OfferedDevice, others: Sequence[OfferedDevice]) -> str:
    """Return the name of a device in `others` that is the same card, through another backend; else ""."""
    if device.card in ("", SHARED_MEMORY):
        return ""
    return next((other.name for other in others if other.card == device.card), "")


def pick(devices: Sequence[OfferedDevice], asked: Sequence[str]) -> tuple[OfferedDevice, ...]:
    """Return the devices asked for, in that order, or by default all GPUs, else the CPU. Raises UserError."""
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


def pick_for_head(devices: Sequence[OfferedDevice], asked: Sequence[str]) -> tuple[OfferedDevice, ...]:
    """Return the CPU, which a head always uses, and the GPUs that it may use. Raises UserError."""
    cpu = tuple(device for device in devices if device.name == "CPU")
    if only_cpu(asked):
        return cpu
    chosen = pick(devices, [name for name in asked if name != "CPU"])
    return (*cpu, *(device for device in chosen if device.kind == "gpu"))


def only_cpu(asked: Sequence[str]) -> bool:
    """Say whether a head with these `--device` values uses no GPU."""
    return bool(asked) and set(asked) <= {"none", "CPU"}


async def list_devices(
    program: Path, *, machine: str, run_to_end: RunToEnd, log: Path
) -> tuple[OfferedDevice, ...]:
    """List this machine's devices, bounded by this node's memory limit.

    Raises MeshdError if there are none.
    """
    return within(
        await list_machine(program, machine=machine, run_to_end=run_to_end, log=log), memory_limit()
    )


async def list_machine(
    program: Path, *, machine: str, run_to_end: RunToEnd, log: Path
) -> tuple[OfferedDevice, ...]:
    """List this machine's devices without a memory limit. Raises MeshdError if there are none."""
    lines: list[str] = []
    argv = (str(program), "--list-devices")
    spec = ChildSpec(name="device list", argv=argv, log=log, on_line=lines.append, sandbox=Sandbox())
    try:
        async with asyncio.timeout(LIST_SECONDS):
            ended = await run_to_end(spec)
    except TimeoutError:
        raise MeshdError(
            f"`{program.name}` did not list its devices within {LIST_SECONDS:.0f} s",
            hint="a GPU's driver may hang: look at the kernel's log, or restart the machine",
        ) from None
    devices = parse_devices(lines, machine)
    if not devices:
        shown = " | ".join(ended.tail[-3:])
        raise MeshdError(
            f"`{program.name}` lists no devices: {shown}",
            hint=missing_library(ended.tail) or "run `meshd native build`",
        )
    return devices


def missing_library(lines: Sequence[str]) -> str:
    """Return what helps if the loader has refused a program for a library that is not there; else ""."""
    for line in lines:
        if found := _LACKS_LIBRARY.search(line):
            if found[1] == "libcuda.so.1":
                return "install NVIDIA's driver (a container: start it with `--gpus all`)"
            if found[1].startswith(_OF_CUDA):  # the folder of links leads nowhere, or a toolkit was removed
                return "run `meshd native build --backend cuda`, which finds NVIDIA's libraries again"
            return f"install `{found[1]}`, or build again on this machine"
    return ""


def missing_symbols(lines: Sequence[str]) -> str:
    """Return the version of the C or C++ library that the loader misses, such as `GLIBC_2.38`; else ""."""
    return next((found[1] for line in lines if (found := _LACKS_SYMBOLS.search(line))), "")


def usable_cores() -> int:
    """Return how many cores this process may compute on; two threads of one core count once."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, min(llama_threads(), len(os.sched_getaffinity(0))))
    return llama_threads()


def head_threads() -> int:
    """Return how many threads llama-server should compute with: no more than this process may use.

    By default llama.cpp takes as many as the machine has cores, even in a container that may use two.
    """
    return min(llama_threads(), usable_processors())


def core_set() -> str:
    """Return a digest of the processors that this process may use, 16 letters; empty: the whole machine."""
    if not hasattr(os, "sched_getaffinity"):
        return ""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) >= (os.cpu_count() or 1):
        return ""
    return hashlib.sha256(",".join(map(str, usable)).encode()).hexdigest()[:CORE_SET_LETTERS]


def llama_threads() -> int:
    """Count as cpu_get_num_physical_cores of common/common.cpp: cores, each of which may count as two."""
    cores: set[str] = set()
    for number in range(os.cpu_count() or 1):
        try:
            cores.add(Path(_SIBLINGS.format(number)).read_text())
        except OSError:
            break
    if cores:
        return len(cores)
    count = os.cpu_count() or _FEW
    return count if count <= _FEW else count // 2
