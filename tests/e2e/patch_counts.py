"""What can be counted of a build: a load, a token, hostile frames, a lost worker, threads, pieces of a step.

Works with every build of the series, and with upstream's: what an option of the rpc-server is missing for is
left out, as its patch is not there either.
"""

import contextlib
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from meshd.build.interface import LLAMA_BENCH, LLAMA_SERVER, RPC_SERVER
from meshd.model.weights_index import encode_index
from meshd.rpc import protocol as rpc

from tests.e2e.counting_proxy import CountingProxy
from tests.e2e.hostile_frames import CASES, SERVED
from tests.e2e.hostile_stage import ROOM, Make, Stage
from tests.e2e.models import smollm2
from tests.e2e.native_rig import Head, Worker, index_of
from tests.e2e.random_models import random_model
from tests.e2e.random_parts import LAYERS
from tests.e2e.rpc_client import RpcClient
from tests.e2e.test_native_splits import pieces_of

WORKERS = 2
FEW, MANY = 8, 72  # tokens of two answers, which are compared: what all answers cost falls out
REPORTS, WEIGHTS = (
    5,
    6,
)  # from this patch on the rpc-server takes --listen-fd and --report-fd, and --weights-fd
THREAD_TOKENS = 8
ANSWER_SECONDS = 10.0
HEAD_LAYERS = ("-ngl", "20")  # the first 11 layers stay on the head, as meshd lets it take its share


@dataclass(slots=True)
class Counts:
    """Of one build. Bytes of both directions, all workers together."""

    connections: int = 0
    load_round_trips: int = 0
    load_bytes: int = 0
    token_round_trips: float = 0.0
    token_bytes: float = 0.0
    token_segments: float = 0.0
    threads: int = 0
    lost: str = ""
    killed_by: list[str] = field(default_factory=list)
    pieces: dict[str, int] = field(default_factory=dict)


def count(binaries: dict[str, Path], patches: int) -> Counts:
    """Everything, of the build with so many patches."""
    counts = Counts()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _count_load(binaries, patches, place, counts)
        _count_tokens(binaries, patches, place, counts)
        counts.threads = _threads(binaries, patches, place)
        counts.lost = _lost(binaries, patches, place)
        counts.killed_by = _killed_by(binaries, patches, place)
        counts.pieces = {name: _most_pieces(binaries, patches, place, name) for name in ("mamba", "rwkv7")}
    return counts


def _worker(
    binaries: dict[str, Path], patches: int, folder: Path, *, threads: int = 1, files: bool = False
) -> Worker:
    weights = [smollm2()] if files and patches >= WEIGHTS else []
    return Worker(binaries[RPC_SERVER], folder, weights=weights, threads=threads, stock=patches < REPORTS)


@contextmanager
def _split(
    binaries: dict[str, Path], patches: int, folder: Path, *extra: str
) -> Iterator[tuple[Head, list[Worker], list[CountingProxy]]]:
    with ExitStack() as stack:
        workers = [
            stack.enter_context(_worker(binaries, patches, folder, files=True)) for _ in range(WORKERS)
        ]
        proxies = [stack.enter_context(CountingProxy(worker.port)) for worker in workers]
        head = Head(
            binaries[LLAMA_SERVER],
            folder,
            smollm2(),
            [proxy.endpoint for proxy in proxies],
            index=encode_index(index_of([smollm2()])),
            extra=extra,
        )
        yield stack.enter_context(head), workers, proxies


def _sums(proxies: list[CountingProxy]) -> tuple[int, int, int]:
    """Round trips, bytes, and segments from the head."""
    return (
        sum(proxy.counts.rpc.round_trips for proxy in proxies),
        sum(proxy.counts.rpc.bytes for proxy in proxies),
        sum(proxy.segments() for proxy in proxies),
    )


def _count_load(binaries: dict[str, Path], patches: int, folder: Path, counts: Counts) -> None:
    with _split(binaries, patches, folder) as (_, _, proxies):
        counts.connections = sum(proxy.counts.connections for proxy in proxies)
        counts.load_round_trips, counts.load_bytes, _ = _sums(proxies)


def _count_tokens(binaries: dict[str, Path], patches: int, folder: Path, counts: Counts) -> None:
    with _split(binaries, patches, folder, *HEAD_LAYERS) as (head, _, proxies):
        costs = []
        for tokens in (FEW, FEW, MANY):  # the first answer brings graphs that the others find there
            before = _sums(proxies)
            head.complete(tokens=tokens)
            costs.append([now - then for now, then in zip(_sums(proxies), before, strict=True)])
        each = [(many - few) / (MANY - FEW) for few, many in zip(costs[1], costs[2], strict=True)]
        counts.token_round_trips, counts.token_bytes, counts.token_segments = each


def _threads(binaries: dict[str, Path], patches: int, folder: Path) -> int:
    """How many threads a worker with two was seen to have; some live shorter than a look."""
    with (
        _worker(binaries, patches, folder, threads=2) as worker,
        Head(binaries[LLAMA_SERVER], folder, smollm2(), [worker.endpoint]) as head,
    ):
        tasks = Path(f"/proc/{worker.process.pid}/task")
        seen: set[str] = set()
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.002):
                seen.update(path.name for path in tasks.iterdir())

        looking = threading.Thread(target=look)
        looking.start()
        with contextlib.suppress(
            TimeoutError
        ):  # two threads that wait for each other on a busy machine are slow
            head.complete(tokens=THREAD_TOKENS)
        over.set()
        looking.join()
    return len(seen)


def _lost(binaries: dict[str, Path], patches: int, folder: Path) -> str:
    """What llama-server does when a worker is killed in mid-answer."""
    with _split(binaries, patches, folder) as (head, workers, _):
        pieces = 0

        def on_piece(_text: str) -> None:
            nonlocal pieces
            pieces += 1
            if pieces == 5:
                workers[0].process.kill()

        error = ""
        with contextlib.suppress(OSError, ValueError):  # it is gone in mid-line
            _, error = head.stream(tokens=200, on_piece=on_piece)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"ends by signal {-head.process.wait(1.0 if error else ANSWER_SECONDS)}"
    return f"error: {error}"


def _killed_by(binaries: dict[str, Path], patches: int, folder: Path) -> list[str]:
    """The hostile connections after which the server does not serve another one."""
    killed = []
    makes: dict[str, Make] = {**{name: case.make for name, case in CASES.items()}, **SERVED}
    with ExitStack() as stack:
        server = stack.enter_context(_worker(binaries, patches, folder))
        for name, make in makes.items():
            _talk(server.port, make)
            if not _serves(server.port):
                killed.append(name)
                server.close()
                server = stack.enter_context(_worker(binaries, patches, folder))
    return killed


def _talk(port: int, make: Make) -> None:
    with contextlib.suppress(EOFError, OSError), RpcClient(port, timeout=ANSWER_SECONDS) as client:
        client.hello()
        handle = client.alloc(ROOM)
        client.send(rpc.BUFFER_CLEAR, struct.pack("<QB", handle, 0))
        client.say(make(Stage(handle, client.base(handle))))
        client.socket.shutdown(1)  # so a server that waits for more goes on
        while True:
            client.receive(1)


def _serves(port: int) -> bool:
    with contextlib.suppress(EOFError, OSError), RpcClient(port, timeout=ANSWER_SECONDS) as client:
        client.hello()
        return True
    return False


def _most_pieces(binaries: dict[str, Path], patches: int, folder: Path, name: str) -> int:
    """Into how many a step is cut at most, over the borders that the head and two workers can have."""
    with ExitStack() as stack:
        rig = [stack.enter_context(_worker(binaries, patches, folder)) for _ in range(WORKERS)]
        endpoints = [worker.endpoint for worker in rig]
        model = random_model(name)
        return max(
            len(pieces_of(binaries[LLAMA_BENCH], model, endpoints, on_workers))
            for on_workers in (2, LAYERS // 2 + 1, LAYERS)
        )
