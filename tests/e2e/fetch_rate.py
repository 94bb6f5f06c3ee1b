"""Time how workers get their weights: with the load or before it, from the head and from other members.

    python -m tests.e2e.fetch_rate --upload 5MB
    python -m tests.e2e.fetch_rate --alone --line 20MB --pairs 5

Real daemons on this machine. Three workers, and another member with the model: `--upload` bounds what each
holder sends (`--max-upload`). `--alone`: only the head has the model; it and two workers are in networks of
their own (root, Linux) with lines of so many bytes a second; with the load and before it in turn.
"""

import argparse
import asyncio
import re
import statistics
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

from meshd.config.forms import parse_rate

from tests.e2e.homes import connected, homes_in
from tests.e2e.models import random_of, smollm2
from tests.e2e.nodes import model_of, play
from tests.e2e.test_lan import ALONE
from tests.process.lan import Lan

NAMES = ("a", "b", "c")
ON_WORKERS = ("--device", "none", "--set", "serve.output=head", "--ctx-size", "512")
AT_LOAD, BEFORE_IT = "off", "own"  # the head's `node.give_models`


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
    """Return the bytes that all workers of a head fetched, as its log says."""
    return sum(int(1e6 * float(count)) for count in re.findall(r"worker_fetched .*bytes='([\d.]+) MB'", log))


def seconds_between(log: str, begin: str, end: str) -> float:
    """From the first line with the one to the last with the other."""
    first, last = (re.findall(rf"(\S+) .*{event}", log) for event in (begin, end))
    return (datetime.fromisoformat(last[-1]) - datetime.fromisoformat(first[0])).total_seconds()


async def load_alone(folder: Path, model: Path, give: str, lan: Lan | None) -> tuple[int, float]:
    """Bytes that two workers got from the head, and the seconds from asking them until the model is ready."""
    names = NAMES[:2]

    def place(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Options, and what runs a program there."""
        return ((*ALONE, "--listen", ":0"), lan.prefix(name)) if lan is not None else ((), ())

    async with homes_in(folder) as homes:
        options, prefix = place(names[0])
        first = await homes.start(names[0], *options, prefix=prefix)
        token = await first.token()
        options, prefix = place(names[1])
        await homes.start(names[1], *options, token=token, prefix=prefix)
        await connected(first, 1)
        options, prefix = place("head")
        # weights are not compressed: a busy machine answers late, which looks like a slow line
        words = (*chosen(names), "--set", f"node.give_models={give}", "--set", "links.compress=off", *options)
        head = await homes.serve("head", model, *words, token=token, prefix=prefix)
        sent = model_of(await homes.fleet.ready(head)).weights_network_bytes
        while "state=ready" not in (log := (head.spec.home / "node.log").read_text()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # written by another process, a moment after its status
        return sent or fetched_bytes(log), seconds_between(log, "load_started", "state=ready")


@contextmanager
def lines(workers: float, head: float) -> Iterator[Lan]:
    """A network of two workers and a head. Their lines bring so many bytes a second; 0: no limit."""
    with Lan() as lan:
        for name in NAMES[:2]:
            lan.plug(name, 1)
            lan.slow(name, 1, down=workers)
        lan.plug("head", 1)
        lan.slow("head", 1, up=head)
        yield lan


def measure(holder: Callable[[Path], Coroutine[object, object, tuple[int, float]]], what: str) -> float:
    """Print how fast it was; returns the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        count, seconds = play(holder(Path(folder)))
    print(f"{what}: {count / 1e6:.1f} MB in {seconds:.1f} s, {count / seconds / 1e6:.2f} MB/s")  # noqa: T201
    return seconds


def compare_alone(workers: float, head: float, shape: str, pairs: int) -> None:
    """The head's two ways, in turn."""
    model = random_of(shape)
    taken: dict[str, list[float]] = {AT_LOAD: [], BEFORE_IT: []}
    with lines(workers, head) as lan:
        for _ in range(pairs):
            for give, what in ((AT_LOAD, "with the load"), (BEFORE_IT, "in pieces, before it")):
                seconds = measure(partial(load_alone, model=model, give=give, lan=lan), what)
                taken[give].append(seconds)
    for give, all_seconds in taken.items():
        middle, least, most = statistics.median(all_seconds), min(all_seconds), max(all_seconds)
        print(f"give_models {give}: median {middle:.1f} s, {least:.1f} to {most:.1f}")  # noqa: T201


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--upload", default="5MB", help="most that each holder sends a second")
    options.add_argument("--alone", action="store_true", help="only the head has the model")
    options.add_argument("--line", default="0", help="with --alone: of each worker, a second; 0: no limit")
    options.add_argument("--head-line", default="0", help="with --alone: of the head")
    options.add_argument("--model", default="medium", help="with --alone: of tests.bench.random_model")
    options.add_argument("--pairs", type=int, default=3, help="with --alone: of loads")
    given = options.parse_args()
    if given.alone:
        rates = [0 if line == "0" else parse_rate(line) for line in (given.line, given.head_line)]
        compare_alone(rates[0], rates[1], given.model, given.pairs)
        return
    for holder, who in ((False, "the head alone"), (True, "the head and another member")):
        what = f"from {who}, {given.upload}/s each"
        measure(partial(load, upload=given.upload, holder=holder), what)


if __name__ == "__main__":
    main()
