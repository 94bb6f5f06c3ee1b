"""Answers beside finished conversations, by how slots lie in the cache: `python -m tests.native.bench_slots`.

Every way is a llama-server with four slots (or one), asked the same: on the first device (`alone`), in
one process on all devices (`box`), and through meshd's daemons with one device each (`mesh`). `one` has one
slot, `shared` four in one cache, `apart` a cache for each, and `saved` is llama-server's own default: one
cache, from which idle slots are saved to RAM. Each is measured fresh, then with conversations left in the
slots, then with llama-server's own choice of the slot. JSON is written after every cell: medians, and all
tries.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.bench.llama import ChatAnswer, completion

from tests.native.bench_daemons import numbers, over_daemons, stock_server
from tests.native.bench_places import here

PLACES = ("alone", "box", "mesh")
SLOTS = 4
_SECONDS = 300.0
_SHORT = 64  # tokens of an answer's prompt
_LEFT = 0.75  # of its context that each finished conversation has
OPTIONS: Mapping[str, tuple[int, Sequence[str]]] = {
    "one": (1, ["--cache-ram", "0"]),
    "shared": (SLOTS, ["-kvu", "--cache-ram", "0"]),
    "apart": (SLOTS, ["-no-kvu", "--cache-ram", "0"]),
    "saved": (SLOTS, ["-kvu"]),
}


@dataclass(frozen=True, slots=True)
class Plan:
    stock: Path
    model: Path
    devices: Sequence[str]
    prompts: Sequence[int]
    context: int
    generate: int
    tries: int


@dataclass(slots=True)
class Cells:
    """Tokens a second of every try, by place, options, state and what was asked."""

    output: Path
    found: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, rates: list[float]) -> None:
        self.found[name] = rates
        self.output.write_text(json.dumps(self.found, indent=1) + "\n")
        middle = statistics.median(rates)
        sys.stdout.write(f"{name}: {middle:.1f} ({min(rates):.1f} to {max(rates):.1f})\n")
        sys.stdout.flush()


@dataclass(slots=True)
class Client:
    """A client of one llama-server, or of a head's API. Each prompt is another one."""

    port: int
    asked: int = 0

    def ask(self, tokens: int, generate: int, slot: int | None) -> ChatAnswer:
        """Raises MeshdError."""
        self.asked += 1
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        chosen = {} if slot is None else {"id_slot": slot}
        return completion(connection, tokens, generate, number=self.asked, **chosen)

    def prompt(self, tokens: int, slot: int | None) -> float:
        """Tokens of it a second."""
        return self.ask(tokens, 1, slot).prompt

    def together(self, slots: Sequence[int | None], generate: int) -> float:
        """Tokens a second of all, with their short prompts."""
        began = time.monotonic()
        with ThreadPoolExecutor(len(slots)) as pool:
            for one in [pool.submit(self.ask, _SHORT, generate, slot) for slot in slots]:
                one.result()
        return len(slots) * generate / (time.monotonic() - began)


def measure(client: Client, plan: Plan, cells: Cells, name: str, slots: int) -> None:
    """Fresh, beside what is left, and in the slots that llama-server chooses."""
    client.together([*range(slots)], 8)  # all kernels are there
    for slot in range(slots):
        client.ask(1, 1, slot)  # and nothing else is
    _measure(client, plan, cells, f"{name} fresh", [*range(slots)])
    if slots == 1:
        return
    for slot in range(slots):
        client.ask(int(_LEFT * plan.context), 1, slot)
    _measure(client, plan, cells, f"{name} left", [*range(slots)])
    for slot in range(slots):
        client.ask(int(_LEFT * plan.context), 1, slot)
    _measure(client, plan, cells, f"{name} chosen", [None] * slots)


def _measure(client: Client, plan: Plan, cells: Cells, name: str, slots: Sequence[int | None]) -> None:
    def tries(what: str, one: Callable[[], float]) -> None:
        cells.add(f"{name} {what}", [one() for _ in range(plan.tries)])

    for tokens in plan.prompts:
        tries(f"prompt {tokens}", partial(client.prompt, tokens, slots[0]))
    tries("answer", lambda: client.ask(_SHORT, plan.generate, slots[0]).generate)
    if len(slots) == SLOTS:
        if slots[0] is not None:  # two neighbours, and two with a slot between them
            tries("2 answers", lambda: client.together(slots[:2], plan.generate))
            tries("2 answers, apart", lambda: client.together(slots[0:3:2], plan.generate))
        tries("4 answers", lambda: client.together(slots, plan.generate))


@contextmanager
def one_process(plan: Plan, devices: Sequence[str], options: str) -> Iterator[Client]:
    """A stock llama-server. Raises MeshdError if it does not come up."""
    slots, given = OPTIONS[options]
    asked = ("-np", str(slots), "-c", str(slots * plan.context), *given)
    with (
        here(devices) as place,
        stock_server(plan.stock, plan.model, place, asked, subprocess.DEVNULL) as port,
    ):
        yield Client(port)


def through_daemons(plan: Plan, options: str, measured: Callable[[Client], None]) -> None:
    """Workers with one device each and a head, over loopback. Raises MeshdError."""
    shared = ("--", "-np", str(SLOTS), "-kvu", "-c", str(SLOTS * plan.context))
    given = {"one": ("--", "-np", "1"), "shared": shared, "apart": ()}[options]  # as it comes: apart
    asked = ("--ctx-size", str(plan.context), *given)
    over_daemons(plan.model, plan.devices, asked, lambda port: measured(Client(port)))


def _cell(plan: Plan, cells: Cells, place: str, options: str) -> None:
    name, slots = f"{place} {options}", OPTIONS[options][0]

    def measured(client: Client) -> None:
        measure(client, plan, cells, name, slots)

    if place == "mesh":
        through_daemons(plan, options, measured)
        return
    with one_process(plan, plan.devices[:1] if place == "alone" else plan.devices, options) as client:
        measured(client)


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.native.bench_slots", description=__doc__)
    parser.add_argument("--stock", type=Path, required=True, help="folder of upstream's programs")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--devices", default="CUDA0,CUDA1")
    parser.add_argument(
        "--cells",
        default="mesh:one,mesh:shared,mesh:apart,box:one,box:shared,box:apart,alone:one,alone:shared,alone:apart,alone:saved",
    )
    parser.add_argument("--prompts", type=numbers, default=[512, 2048])
    parser.add_argument("--ctx-size", type=int, default=8192, help="of each slot")
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    plan = Plan(
        args.stock,
        args.model,
        args.devices.split(","),
        args.prompts,
        args.ctx_size,
        args.generate,
        args.tries,
    )
    cells, faults = Cells(args.json), 0
    for cell in args.cells.split(","):
        place, _, options = cell.partition(":")
        try:
            _cell(plan, cells, place, options)
        except (OSError, MeshdError) as error:
            sys.stdout.write(f"{cell}: {error}\n")
            faults += 1
    return min(1, faults)


if __name__ == "__main__":
    sys.exit(main())
