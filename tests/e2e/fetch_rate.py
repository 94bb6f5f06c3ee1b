"""How fast workers get their weights: with the load or before it, from the head and from other members.

    python -m tests.e2e.fetch_rate --upload 5MB
    python -m tests.e2e.fetch_rate --alone 5MB --pairs 3

Real daemons on this machine. Three workers, and another member with the model: `--upload` bounds what each
holder sends (`--max-upload`). `--alone`: only the head has the model, and each of two workers has a line of
its own to it, of so many bytes a second (`none`: loopback as it is); llama-server's load and pieces in turn.
"""

import argparse
import re
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path

from meshd.base.tasks import Owner
from meshd.config.forms import parse_rate

from tests.e2e.homes import Homes, connected, homes_in
from tests.e2e.models import random_of, smollm2
from tests.e2e.nodes import model_of, play
from tests.e2e.spaces import Space
from tests.e2e.trio import PORTS, QUIET, open_ways

NAMES = ("a", "b", "c")
ON_WORKERS = ("--device", "none", "--output-on", "head", "--ctx-size", "512")
AT_LOAD, BEFORE_IT = "off", "own"  # what the head's `--give-models` makes of it


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Options of a head that uses these workers."""
    return (*ON_WORKERS, "--workers", ",".join(names), "--min-workers", str(len(names)))


async def load(folder: Path, upload: str, *, holder: bool) -> tuple[int, float]:
    """Bytes that three workers got, and in how many seconds."""
    limit = ("--max-upload", upload)
    async with homes_in(folder) as homes:
        if holder:
            homes.has("one", smollm2())
        one = await homes.start("one", *limit)
        token = await one.token()
        for name in NAMES:
            await homes.start(name, token=token)
        await connected(one, len(NAMES))
        head = await homes.serve("head", smollm2(), *chosen(NAMES), *limit, token=token)
        status = await homes.fleet.ready(head)
        sent = model_of(status).weights_network_bytes
        if sent:  # with the load
            seconds = model_of(status).load_seconds
            assert seconds is not None
            return sent, seconds
        log = (head.spec.home / "node.log").read_text()
        return fetched_bytes(log), seconds_between(log, "weights_missing", "worker_fetched")


def fetched_bytes(log: str) -> int:
    """Of all workers of a head, as its log says."""
    return sum(int(count) for count in re.findall(r"worker_fetched .*bytes=(\d+)", log))


def seconds_between(log: str, begin: str, end: str) -> float:
    """From the first line with the one to the last with the other."""
    first, last = (re.findall(rf"(\S+) .*{event}", log) for event in (begin, end))
    return (datetime.fromisoformat(last[-1]) - datetime.fromisoformat(first[0])).total_seconds()


@asynccontextmanager
async def alone(folder: Path, line: float | None) -> AsyncIterator[tuple[Homes, Mapping[str, Space]]]:
    """Homes of two workers and a head, each in a network of its own where there is a `line`."""
    with ExitStack() as stack:
        spaces = {name: stack.enter_context(Space()) for name in PORTS if line is not None}
        async with Owner() as owner, homes_in(folder) as homes:
            for way in (open_ways(spaces, owner, seed=1) if spaces else {}).values():
                way.rules.rate = line
            yield homes, spaces
            owner.cancel()


async def load_alone(folder: Path, model: Path, give: str, line: float | None) -> tuple[int, float]:
    """Bytes that two workers got from the head, and the seconds from asking them until the model is ready."""
    async with alone(folder, line) as (homes, spaces):

        def place(name: str) -> tuple[str, ...]:
            return (*QUIET, "--no-relaying", "--listen", f"127.0.0.1:{PORTS[name]}") if spaces else QUIET

        def prefix(name: str) -> tuple[str, ...]:
            return tuple(spaces[name].prefix) if spaces else ()

        names = [name for name in PORTS if name != "head"]
        first = await homes.start(names[0], *place(names[0]), prefix=prefix(names[0]))
        token = await first.token()
        await homes.start(names[1], *place(names[1]), token=token, prefix=prefix(names[1]))
        await connected(first, 1)
        words = (*chosen(names), "--give-models", give, *place("head"))
        head = await homes.serve("head", model, *words, token=token, prefix=prefix("head"))
        sent = model_of(await homes.fleet.ready(head)).weights_network_bytes
        log = (head.spec.home / "node.log").read_text()
        return sent or fetched_bytes(log), seconds_between(log, "load_started", "state=ready")


def measure(holder: Callable[[Path], Coroutine[object, object, tuple[int, float]]], what: str) -> float:
    """Print how fast it was; returns the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        count, seconds = play(holder(Path(folder)))
    print(f"{what}: {count / 1e6:.1f} MB in {seconds:.1f} s, {count / seconds / 1e6:.2f} MB/s")  # noqa: T201
    return seconds


def compare_alone(line: str, shape: str, pairs: int) -> None:
    """The head's two ways, in turn."""
    model = random_of(shape)
    rate = None if line == "none" else parse_rate(line)
    taken: dict[str, list[float]] = {AT_LOAD: [], BEFORE_IT: []}
    for _ in range(pairs):
        for give, what in ((AT_LOAD, "with the load"), (BEFORE_IT, "in pieces, before it")):
            taken[give].append(measure(lambda folder: load_alone(folder, model, give, rate), what))
    for give, seconds in taken.items():
        print(f"{give}: median {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")  # noqa: T201


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--upload", default="5MB", help="most that each holder sends a second")
    options.add_argument("--alone", metavar="RATE", help="of each worker's line; none: no limit")
    options.add_argument("--model", default="medium", help="of meshd.bench.random_model, with --alone")
    options.add_argument("--pairs", type=int, default=3, help="of loads, with --alone")
    given = options.parse_args()
    if given.alone:
        compare_alone(given.alone, given.model, given.pairs)
        return
    for holder, who in ((False, "the head alone"), (True, "the head and another member")):
        measure(
            lambda folder: load(folder, given.upload, holder=holder), f"from {who}, {given.upload}/s each"
        )


if __name__ == "__main__":
    main()
