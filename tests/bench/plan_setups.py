"""The set-ups of `tests.bench.plan`: workers on this machine, of unequal speed and at unequal distances."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.units import in_number


@dataclass(frozen=True, slots=True)
class Setup:
    """`rtts` (in ms) has an entry a worker, and so has `threads`, or `devices`.

    `pinned`: each worker may use so many processors as it has threads, and no other one uses those. `model`:
    smollm2, or one of random_model. `head`: the threads that the head may compute layers with.
    """

    threads: tuple[int, ...]
    rtts: tuple[float, ...]
    model: str = "medium"
    devices: tuple[str, ...] = ()
    pinned: bool = False
    head: int = 0

    @property
    def text(self) -> str:
        """For a line of the result."""
        unit = "core" if self.pinned else "thread"
        whats = self.devices or [in_number(count, unit) for count in self.threads]
        workers = ", ".join(f"{what} at {rtt:g} ms" for what, rtt in zip(whats, self.rtts, strict=True))
        head = f"head with {in_number(self.head, 'thread')}, " if self.head else ""
        return f"{self.model}: {head}{workers}"

    @property
    def head_options(self) -> tuple[str, ...]:
        """Return options of `meshd serve`. What is for llama-server comes last, see `llama_args`."""
        return ("--device", "CPU" if self.head else "none", "--split", "auto")

    @property
    def llama_args(self) -> tuple[str, ...]:
        return ("--", "-t", str(self.head)) if self.head else ()

    @property
    def worker_options(self) -> list[tuple[str, ...]]:
        if self.devices:
            return [("--device", device) for device in self.devices]
        return [("--device", "CPU", "--threads", str(count)) for count in self.threads]

    @property
    def cores(self) -> Sequence[tuple[int, ...]]:
        """The processors of each worker; nothing where they may use all. Raises UserError."""
        return pinned_cores(self.threads, cores_of_machine()) if self.pinned else ()


def cores_of_machine() -> list[tuple[int, ...]]:
    """Return the usable processors grouped by core, ordered by the first processor of each core."""
    found: dict[str, list[int]] = {}
    for number in sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []:
        try:
            core = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings").read_text()
        except OSError:
            core = str(number)
        found.setdefault(core, []).append(number)
    return [tuple(numbers) for numbers in found.values()]


SETUPS = (
    Setup((4,), (0,)),
    Setup((2,), (40,), head=2),
    Setup((4, 2), (0, 0), head=4),
    Setup((2, 4), (10, 10)),
    Setup((4, 2), (0, 40), head=2),
    Setup((1, 3), (0, 0), pinned=True),
    Setup((4, 2, 2), (0, 10, 40)),
    Setup((2, 1, 3), (10, 10, 10), pinned=True, head=2),
    Setup((2, 2, 3, 4), (40, 40, 40, 40)),
    Setup((4, 2), (0, 10), "moe", head=2),
    Setup((2, 2, 3), (10, 10, 40), "moe", pinned=True, head=4),
    Setup((4, 3, 2, 2), (0, 10, 10, 40), "moe"),
)


def setups_of_devices(devices: Sequence[str]) -> tuple[Setup, ...]:
    """The first of them alone, then with the second, and so on: beside the head, and 10 ms away."""
    firsts = [tuple(devices[: count + 1]) for count in range(len(devices))]
    return tuple(Setup((), (rtt,) * len(some), "8b", devices=some) for some in firsts for rtt in (0, 10))


def pinned_cores(counts: Sequence[int], machine: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """So many processors for each worker, each of another core of `machine`. Raises UserError."""
    ones = [core[0] for core in machine]
    if sum(counts) > len(ones):
        raise UserError(
            f"the set-up needs {sum(counts)} cores, and {len(ones)} may be used here",
            hint="leave it out with `--only`",
        )
    taken = iter(reversed(ones))  # the head and the daemons begin at the other end, as systems do
    return [tuple(sorted(next(taken) for _ in range(count))) for count in counts]


def folder_of_cache(cache: Path, folder: Path) -> Path:
    """A cache of its own for the nodes, with what takes long to make: what answers took is forgotten."""
    mine = folder / "cache"
    mine.mkdir()
    for name in ("native", "weights"):
        (cache / name).mkdir(parents=True, exist_ok=True)
        (mine / name).symlink_to(cache / name)
    return mine
