"""Measure what a load, a long prompt and a generated token put on the links, beside stock; in bytes.

`python -m tests.e2e.crossed [--workers N …]` prints the table of docs/decisions/0021-compression.md. No layer
is on the head, and no token of a prompt comes twice: nothing is smaller than it would be elsewhere. In a mesh
all links count, each end's own counter for what it has sent, and what passes the daemons between two workers,
which would cross a link elsewhere; of stock's, what its connections carry.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from meshd.bench.llama import measure
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.fleet.fleet import LocalNode

from tests.e2e import native_rig
from tests.e2e.counting_proxy import CountingProxy
from tests.e2e.kept_texts import kept_text
from tests.e2e.models import cache_folder, smollm2, stock
from tests.e2e.native_rig import Head, Worker
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, play

PROMPT_TOKENS = 1600
TOKENS = [1000 + (n * 7919) % 20000 for n in range(PROMPT_TOKENS)]  # as `measure` asks: none twice
CONTEXT = 2048
WIDTH = 576 * 4  # bytes of an activation of SmolLM2-135M
SHORT, LATER = 2, 32  # tokens of an answer; the second still carries the graph of its shape
WAYS = {
    "not compressed": ("links.compress=off",),
    "compressed, through the head": ("links.compress=on", "serve.no_push=true"),
    "compressed": ("links.compress=on",),
}

Links = Mapping[tuple[str, str], int]  # bytes by who sent them to whom


def stock_bytes(folder: Path, count: int) -> int:
    """Return what the prompt costs between a stock head and its stock workers."""
    files = [stock().binaries[name] for name in (LLAMA_SERVER, RPC_SERVER)]
    asked = ("bytes", count, Path(native_rig.__file__).read_bytes(), Path(__file__).read_bytes())
    return int(kept_text(cache_folder(), [*files, smollm2()], asked, lambda: str(_counted(folder, count))))


def _counted(folder: Path, count: int) -> int:
    binaries = stock().binaries
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(binaries[RPC_SERVER], folder)) for _ in range(count)]
        proxies = [stack.enter_context(CountingProxy(worker.port)) for worker in workers]
        endpoints = [proxy.endpoint for proxy in proxies]
        extra = ("-c", str(CONTEXT))
        head = stack.enter_context(
            Head(binaries[LLAMA_SERVER], folder, smollm2(), endpoints, load_mode="auto", extra=extra)
        )

        def crossed() -> int:
            return sum(proxy.passed for proxy in proxies)

        head.complete(PROMPT, 4)
        before = crossed()
        head.complete(TOKENS, 1)
        return crossed() - before


async def on_links(nodes: Sequence[LocalNode]) -> Counter[tuple[str, str]]:
    """Since they were made; the links that carry data are those that had been there all the time."""
    statuses = [await node.status() for node in nodes]
    found = Counter(
        {
            (status.node.name, peer.name): peer.link.sent_bytes
            for status in statuses
            for peer in status.peers
            if peer.link is not None
        }
    )
    for status in statuses:
        for way in status.tunnels:
            if way.listen == "local":
                found[status.node.name, way.peer_name] += way.sent_bytes
                found[way.peer_name, status.node.name] += way.received_bytes
    return found


async def answer(nodes: Sequence[LocalNode], prompt: int, tokens: int) -> Counter[tuple[str, str]]:
    """Return what one answer of the head, which is the first of `nodes`, puts on the links."""
    before = await on_links(nodes)
    await measure(nodes[0].spec.home / "llama.sock", prompt_tokens=prompt, tokens=tokens)
    return await on_links(nodes) - before


async def prompt_bytes(nodes: Sequence[LocalNode], tokens: int = PROMPT_TOKENS) -> Links:
    """Return the bytes of the long prompt, by who sent them to whom; the head is the first of `nodes`."""
    await answer(nodes, 8, 4)
    return await answer(nodes, tokens, 1)


@dataclass(frozen=True, slots=True)
class Crossed:
    """Bytes, of all links together and of the prompt by link."""

    ready: int
    token: float
    prompt: Links


async def crossed(folder: Path, count: int, options: Sequence[str]) -> Crossed:
    """Count it all with so many workers; `options` are of the head."""
    async with Fleet(folder) as fleet:
        token, workers = await fleet.workers(*[smollm2()] * count)
        given = ("--min-workers", str(count), "--device", "none", "--ctx-size", str(CONTEXT))
        head = await fleet.head(smollm2(), *given, *options, *SAME_THREADS, token=token)
        await fleet.ready(head)
        nodes = [head, *workers]
        ready = (await on_links(nodes)).total()
        few, many = [(await answer(nodes, 8, n)).total() for n in (SHORT, SHORT + LATER)]
        return Crossed(ready, (many - few) / LATER, await prompt_bytes(nodes))


def _say(*cells: str) -> None:
    sys.stdout.write("| " + " | ".join(cells) + " |\n")
    sys.stdout.flush()


def _count(workers: int) -> None:
    with tempfile.TemporaryDirectory(prefix="meshd-crossed-") as folder:
        theirs = stock_bytes(Path(folder), workers)
    _say(str(workers), "stock", "", f"{theirs / 1e6:.2f}", "", "")
    links: Links = {}
    for name, how in WAYS.items():
        if workers == 1 and "serve.no_push=true" in how:
            continue  # there is no other way
        with tempfile.TemporaryDirectory(prefix="meshd-crossed-") as folder:
            found = play(crossed(Path(folder), workers, [word for one in how for word in ("--set", one)]))
        links, total = found.prompt, sum(found.prompt.values())
        ready, a_token = f"{found.ready / 1000:.0f}", f"{found.token / 1000:.1f}"
        _say(str(workers), name, ready, f"{total / 1e6:.2f}", f"{total / theirs:.3f}", a_token)
    for (source, target), size in sorted(links.items()):
        _say(str(workers), f"of that {source} to {target}", "", f"{size / 1e6:.3f}", "", "")


def main() -> None:
    """Print a line for each number of workers and each way, and of the last way one for each link."""
    parser = argparse.ArgumentParser(description="what crosses the links, beside stock")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    _say("workers", "", "until ready, kB", "prompt, MB", "of stock's", "a generated token, kB")
    _say(*["---"] * 6)
    for count in parser.parse_args().workers:
        _count(count)


if __name__ == "__main__":
    main()
