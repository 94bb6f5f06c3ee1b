"""Thirty situations of users, and the split that each gets: which machines, how many layers, how fast, why.

`python -m tests.unit.plan.situations --write` writes situations.json anew. A change of the planner shows
there, row by row, what users get otherwise than before.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.model.cache import LayerCache, ModelCache
from meshd.model.device_speed import DeviceSpeed
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers, Widths
from meshd.model.output import DevicePath
from meshd.plan.choose_split import SplitChoice, choose_split
from meshd.plan.machines import Machines, NodeOffer
from meshd.plan.reasons import HeadCpu
from meshd.plan.wishes import HeadOptions
from meshd.wire.capacity import TimedLayer
from meshd.wire.lease import OfferedDevice, WorkerOffer

from tests.unit.plan.plain_options import PLAIN
from tests.unit.plan.split_scene import GIB, split_model

PLACE = Path(__file__).with_name("situations.json")


@dataclass(frozen=True, slots=True)
class Machine:
    """`gpu`: free GiB of its GPU, 0 without one; `memory`: free GiB of RAM; `rate`: GB/s at which the faster
    of the two reads weights; `prompt`: how many tokens of a prompt take the time of one.
    """

    memory: float
    rate: float
    prompt: float
    gpu: float = 0.0


# By the memory rates that their makers publish, of which llama.cpp reaches about 0.6.
MAC_STUDIO = Machine(memory=8, rate=480, prompt=12, gpu=56)
MACBOOK_AIR = Machine(memory=4, rate=60, prompt=6, gpu=10)
GAMING_PC = Machine(memory=24, rate=560, prompt=40, gpu=22)
OLD_GAMING_PC = Machine(memory=12, rate=150, prompt=20, gpu=7)
OFFICE_PC = Machine(memory=12, rate=24, prompt=5)
OLD_LAPTOP = Machine(memory=5, rate=12, prompt=4)
SERVER = Machine(memory=180, rate=120, prompt=20)
RENTED_GPU = Machine(memory=100, rate=1900, prompt=200, gpu=78)

LAN, WIFI, CITY, CONTINENT = (
    DevicePath(0.0004, 1.1e8),
    DevicePath(0.004, 2.5e7),
    DevicePath(0.02, 1.2e7),
    DevicePath(0.08, 6e6),
)


def model(gigabytes: float, layers: int, width: int) -> ModelLayers:
    """Return a model of so many GB, with grouped attention and a vocabulary of 128,000."""
    output = int(0.03 * gigabytes * 1e9)
    each = int((gigabytes * 1e9 - 2 * output) / layers)
    return replace(
        split_model(layers=layers, layer_bytes=each, tied=False),
        trained_context=131_072,
        input=output,
        embedding=output,
        output=output,
        largest_elements=width * 128_000,
        cache=ModelCache((LayerCache(key=1024, value=1024),) * layers, exact=True),
        widths=Widths(width, 4 * width, width // 128, 4 * width, 0, 0, 128_000),
    )


SMALL = model(0.7, 28, 1024)
MODEL_8B = model(4.9, 32, 4096)
MODEL_32B = model(19.8, 64, 5120)
MODEL_70B = model(42.5, 80, 8192)
MODEL_235B = model(142, 94, 4096)


USUAL = replace(PLAIN, machine="m of head", slots=4, split="auto")


@dataclass(frozen=True, slots=True)
class Situation:
    """A head and its workers with the paths to them, a model, and what the user asks for."""

    model: ModelLayers
    head: Machine
    workers: Mapping[str, tuple[Machine, DevicePath]]
    least: int = 0
    options: HeadOptions = USUAL


SITUATIONS: Mapping[str, Situation] = {
    "8B, one good PC, a slow laptop beside it": Situation(
        MODEL_8B, GAMING_PC, {"laptop": (OLD_LAPTOP, WIFI)}
    ),
    "8B, a laptop asks the gaming PC": Situation(MODEL_8B, OLD_LAPTOP, {"pc": (GAMING_PC, WIFI)}),
    "8B, two office PCs": Situation(MODEL_8B, OFFICE_PC, {"other": (OFFICE_PC, LAN)}),
    "8B, two old laptops": Situation(MODEL_8B, OLD_LAPTOP, {"other": (OLD_LAPTOP, LAN)}),
    "8B, three old laptops": Situation(
        MODEL_8B, OLD_LAPTOP, {"b": (OLD_LAPTOP, LAN), "c": (OLD_LAPTOP, WIFI)}
    ),
    "8B, two MacBook Airs": Situation(MODEL_8B, MACBOOK_AIR, {"air": (MACBOOK_AIR, WIFI)}),
    "8B, a friend's PC in the same city": Situation(MODEL_8B, MACBOOK_AIR, {"friend": (GAMING_PC, CITY)}),
    "8B, a friend's PC on another continent": Situation(
        MODEL_8B, MACBOOK_AIR, {"friend": (GAMING_PC, CONTINENT)}
    ),
    "8B, one worker is demanded": Situation(MODEL_8B, GAMING_PC, {"laptop": (OLD_LAPTOP, WIFI)}, least=1),
    "8B, nobody there": Situation(MODEL_8B, GAMING_PC, {}),
    "8B, the head computes nothing": Situation(
        MODEL_8B, OFFICE_PC, {"pc": (GAMING_PC, LAN)}, options=replace(USUAL, devices=("none",))
    ),
    "8B, a long context": Situation(
        MODEL_8B, GAMING_PC, {"studio": (MAC_STUDIO, LAN)}, options=replace(USUAL, ctx_size=131_072, slots=1)
    ),
    "8B, sixteen answers at once": Situation(
        MODEL_8B, GAMING_PC, {"studio": (MAC_STUDIO, LAN)}, options=replace(USUAL, slots=16)
    ),
    "small, everywhere": Situation(SMALL, OFFICE_PC, {"pc": (GAMING_PC, LAN), "air": (MACBOOK_AIR, WIFI)}),
    "32B, gaming PC and Mac Studio": Situation(MODEL_32B, GAMING_PC, {"studio": (MAC_STUDIO, LAN)}),
    "32B, two gaming PCs": Situation(MODEL_32B, GAMING_PC, {"other": (GAMING_PC, LAN)}),
    "32B, gaming PC and old gaming PC": Situation(MODEL_32B, GAMING_PC, {"old": (OLD_GAMING_PC, LAN)}),
    "32B, three old gaming PCs": Situation(
        MODEL_32B, OLD_GAMING_PC, {"b": (OLD_GAMING_PC, LAN), "c": (OLD_GAMING_PC, LAN)}
    ),
    "32B, an air and two friends": Situation(
        MODEL_32B, MACBOOK_AIR, {"near": (OLD_GAMING_PC, WIFI), "far": (GAMING_PC, CITY)}
    ),
    "32B, what is there is not enough": Situation(MODEL_32B, OLD_LAPTOP, {"other": (OLD_LAPTOP, LAN)}),
    "70B, two gaming PCs": Situation(MODEL_70B, GAMING_PC, {"other": (GAMING_PC, LAN)}),
    "70B, two gaming PCs and a Mac Studio": Situation(
        MODEL_70B, GAMING_PC, {"other": (GAMING_PC, LAN), "studio": (MAC_STUDIO, LAN)}
    ),
    "70B, two gaming PCs in two houses": Situation(
        MODEL_70B, GAMING_PC, {"other": (GAMING_PC, CITY), "server": (SERVER, LAN)}
    ),
    "70B, a server and a gaming PC": Situation(MODEL_70B, SERVER, {"pc": (GAMING_PC, LAN)}),
    "70B, a rented GPU": Situation(MODEL_70B, MACBOOK_AIR, {"gpu": (RENTED_GPU, CITY)}),
    "70B, two rented GPUs": Situation(
        MODEL_70B, OFFICE_PC, {"one": (RENTED_GPU, CITY), "two": (RENTED_GPU, CITY)}
    ),
    "70B, four gaming PCs": Situation(MODEL_70B, GAMING_PC, dict.fromkeys(("b", "c", "d"), (GAMING_PC, LAN))),
    "70B, the layers are given by hand": Situation(
        MODEL_70B,
        GAMING_PC,
        {"other": (GAMING_PC, LAN), "studio": (MAC_STUDIO, LAN)},
        options=replace(USUAL, tensor_split=(1.0, 2.0, 1.0)),
    ),
    "235B, two rented GPUs": Situation(
        MODEL_235B, SERVER, {"one": (RENTED_GPU, CITY), "two": (RENTED_GPU, CITY)}
    ),
    "235B, all that a club has": Situation(
        MODEL_235B,
        MAC_STUDIO,
        {
            "studio": (MAC_STUDIO, LAN),
            "pc": (GAMING_PC, LAN),
            "pc2": (GAMING_PC, WIFI),
            "old": (OLD_GAMING_PC, LAN),
            "server": (SERVER, CITY),
            "office": (OFFICE_PC, LAN),
        },
    ),
}


def _devices(machine: Machine) -> tuple[OfferedDevice, ...]:
    memory = int(machine.memory * GIB)
    found = [OfferedDevice("CPU", "cpu", "", memory, memory)]
    if machine.gpu:
        found.insert(0, OfferedDevice("GPU0", "gpu", "", int(machine.gpu * GIB), int(machine.gpu * GIB)))
    return tuple(found)


def _speed(machine: Machine, device: OfferedDevice, layer_bytes: int) -> DeviceSpeed:
    """A GPU's machine has a CPU like the office PC's."""
    own = machine if device.kind == "gpu" or not machine.gpu else OFFICE_PC
    token = layer_bytes / (0.6 * own.rate * 1e9)
    return DeviceSpeed(
        TimedLayer(kind, tokens, int(1e9 * token * max(1.0, tokens / own.prompt)))
        for kind in (0, 1)
        for tokens in (1, 128)
    )


def choices_of(situation: Situation) -> Sequence[SplitChoice]:
    """Return all that were planned, the chosen one first. Raises MeshdError where nothing fits."""
    each = max(situation.model.layers)
    offers: list[NodeOffer] = []
    speeds: dict[tuple[str, str], DeviceSpeed] = {}
    for name, (machine, path) in situation.workers.items():
        # A worker lends its GPU, else its CPU.
        lent = _devices(machine)[:1]
        offers.append(NodeOffer(name, WorkerOffer(lent, False, f"m of {name}", bytes(16)), path))
        speeds |= {(name, one.name): _speed(machine, one, each) for one in lent}
    own = _devices(situation.head)
    speeds |= {("head", one.name): _speed(situation.head, one, each) for one in own}
    paths = {
        (a, b): max(first[1], second[1], key=lambda one: one.rtt)
        for a, first in situation.workers.items()
        for b, second in situation.workers.items()
        if a != b
    }
    count = len(situation.model.layers)
    work = LayerWork((f"{count}=…", "1=…"), (0,) * count, (1.0,) * count, output=1)
    machines = Machines(tuple(offers), own, speeds, paths)
    return choose_split(situation.model, work, machines, situation.options, least=situation.least)


def outcome(situation: Situation) -> Mapping[str, object]:
    """Return what a user gets, for JSON."""
    try:
        chosen, *_ = choices_of(situation)
    except MeshdError as error:
        return {"why": type(error).__name__}
    reasons = chosen.plan.reasons
    layers: dict[str, int] = {}
    for share in chosen.plan.shares:
        if share.layers:
            name = f"{share.device.node}/{share.device.name}"
            layers[name] = layers.get(name, 0) + share.layers
    return {
        "layers": layers,
        "generate_tok_s": round(chosen.prediction.generate_tok_s, 3),
        "prompt_tok_s": round(chosen.prediction.prompt_tok_s, 1),
        "why": _kind(chosen),
        "reasons": [one.name if isinstance(one, HeadCpu) else type(one).__name__ for one in reasons],
    }


def _kind(chosen: SplitChoice) -> str:
    compared = chosen.comparison
    if compared is None:
        return "asked for"
    if compared.faster is not None:
        return "demanded"
    if len(compared.chosen.nodes) == 1:
        return "alone"
    return "faster" if compared.other is not None else "fits nowhere else"


def main(argv: Sequence[str]) -> int:
    """Write all of them."""
    if list(argv) != ["--write"]:
        sys.stderr.write(f"{__doc__}")
        return 2
    found = {name: outcome(one) for name, one in SITUATIONS.items()}
    PLACE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
