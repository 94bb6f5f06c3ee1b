"""Workers that push to one another, and a head that has a model on them: real processes, no meshd.

Everything that says something goes through a proxy: head to worker, and worker to worker.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from meshd.build.interface import LLAMA_SERVER, RPC_SERVER

from tests.e2e.counting_proxy import CountingProxy
from tests.e2e.models import patched
from tests.e2e.native_rig import Head, Worker

SECRET, PEERS = bytes(range(1, 33)), bytes(range(101, 133))
PEER_CHECK, PUSH_TENSOR, TAKE_TENSOR, PEER_SESSION, PEER_HELLO, PEER_DATA = range(66, 72)


class PushWorker(Worker):
    """A worker that knows both secrets; `tell` says where its neighbours are."""

    def __init__(self, folder: Path, *, secret: bytes = SECRET + PEERS) -> None:
        reading, self._writing = os.pipe()
        super().__init__(patched().binaries[RPC_SERVER], folder, secret=secret, neighbours=reading)

    def tell(self, line: str) -> None:
        os.write(self._writing, line.encode() + b"\n")

    def stop_telling(self) -> None:
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1

    def close(self) -> None:
        self.stop_telling()
        super().close()


@dataclass(slots=True)
class Chain:
    """Workers in the order of their layers. `ways[n]` is before worker n, `sides[n]` between n and n + 1."""

    workers: list[PushWorker] = field(default_factory=list)
    ways: list[CountingProxy] = field(default_factory=list)
    sides: list[CountingProxy] = field(default_factory=list)

    @property
    def endpoints(self) -> list[str]:
        return [way.endpoint for way in self.ways]

    @property
    def pairs(self) -> str:
        """What the head is told: each worker has the next one as the neighbour of the next one's number."""
        ends = self.endpoints
        return "".join(f"{ends[n]} {ends[n + 1]} {n + 1}\n" for n in range(len(ends) - 1))

    @property
    def secrets(self) -> Mapping[str, bytes]:
        return dict.fromkeys(self.endpoints, SECRET)

    def waited(self, answered: Sequence[int]) -> list[int]:
        """How many requests of these commands, which are answered, each worker got."""
        return [sum(way.counts.calls[command] for command in answered) for way in self.ways]


@contextmanager
def chain(folder: Path, count: int, *, without: Sequence[int] = (), tell: bool = True) -> Iterator[Chain]:
    """`count` workers; those in `without` have no way to their neighbour. Untold, no worker has."""
    with ExitStack() as stack:
        made = Chain()
        for _ in range(count):
            worker = stack.enter_context(PushWorker(folder))
            made.workers.append(worker)
            made.ways.append(stack.enter_context(CountingProxy(worker.port, secret_bytes=len(SECRET))))
        for number, worker in enumerate(made.workers[1:], start=1):
            side = stack.enter_context(CountingProxy(worker.port, secret_bytes=len(PEERS)))
            made.sides.append(side)
            if tell:
                there = f"peer {number} {side.endpoint} {PEERS.hex()}"
                made.workers[number - 1].tell(f"no {number}" if number - 1 in without else there)
        yield made


@contextmanager
def pushing(
    folder: Path,
    model: Path,
    count: int,
    *,
    without: Sequence[int] = (),
    extra: Sequence[str] = (),
    made: Callable[[Chain], None] = lambda _chain: None,
) -> Iterator[tuple[Head, Chain]]:
    """A head with an even share of `model` on each of `count` workers, ready to answer."""
    with chain(folder, count, without=without) as workers:
        made(workers)
        split = ("-ts", ",".join("1" * count))
        with Head(
            patched().binaries[LLAMA_SERVER],
            folder,
            model,
            workers.endpoints,
            secrets=workers.secrets,
            pairs=workers.pairs,
            extra=(*split, *extra),
        ) as head:
            yield head, workers
