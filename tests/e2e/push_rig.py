"""Workers that push to one another, and a head that has a model on them: real processes, no meshd.

Everything that says something goes through a proxy: head to worker, and worker to worker.
"""

import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.rpc import protocol as rpc

from tests.e2e.counting_proxy import CountingProxy
from tests.e2e.models import patched
from tests.e2e.native_rig import DEADLINE, Head, Worker
from tests.e2e.rpc_client import ALWAYS, F32, Entry, RpcClient

SECRET, PEERS = bytes(range(1, 33)), bytes(range(101, 133))
SESSION = bytes(range(16))
TENSOR_BYTES = 4096


class PushWorker(Worker):
    """A worker that knows both secrets; `tell` says where its neighbours are."""

    def __init__(self, folder: Path, *, secret: bytes = SECRET + PEERS, sockets: Path | None = None) -> None:
        reading, self._writing = os.pipe()
        super().__init__(
            patched().binaries[RPC_SERVER], folder, secret=secret, neighbours=reading, sockets=sockets
        )

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

    def tell(self, number: int) -> None:
        """Tell this worker where the next one is."""
        self.workers[number].tell(f"peer {number + 1} {self.sides[number].endpoint} {PEERS.hex()}")

    def waited(self, answered: Sequence[int]) -> list[int]:
        """How many requests of these commands, which are answered, each worker got."""
        return [sum(way.counts.calls[command] for command in answered) for way in self.ways]

    def pushed(self) -> list[int]:
        """How many pushes each worker but the first has got."""
        return [side.counts.calls[rpc.PEER_DATA] for side in self.sides]


OnCommand = Callable[[Chain, int, int], None]


def _ignore(_chain: Chain, _worker: int, _command: int) -> None:
    """Nobody wants to know."""


@contextmanager
def chain(
    folder: Path,
    count: int,
    *,
    without: Sequence[int] = (),
    untold: Sequence[int] = (),
    on_command: OnCommand = _ignore,
) -> Iterator[Chain]:
    """`count` workers. Those in `without` are told that there is no way, those in `untold` nothing.

    `on_command` is called before a worker, which it names by number, gets a command of the head.
    """
    with ExitStack() as stack:
        made = Chain()
        for number in range(count):
            worker = stack.enter_context(PushWorker(folder))
            made.workers.append(worker)
            way = CountingProxy(worker.port, secret=True, on_command=partial(on_command, made, number))
            made.ways.append(stack.enter_context(way))
        for number, worker in enumerate(made.workers[1:]):
            side = CountingProxy(worker.port, secret=True)
            made.sides.append(stack.enter_context(side))
            if number in without:
                made.workers[number].tell(f"no {number + 1}")
            elif number not in untold:
                made.tell(number)
        yield made


@contextmanager
def pushing(
    folder: Path,
    model: Path,
    count: int,
    *,
    without: Sequence[int] = (),
    untold: Sequence[int] = (),
    on_command: OnCommand = _ignore,
    activations: str = "",
    extra: Sequence[str] = (),
) -> Iterator[tuple[Head, Chain]]:
    """A head with an even share of `model` on each of `count` workers, ready to answer."""
    with (
        chain(folder, count, without=without, untold=untold, on_command=on_command) as made,
        Head(
            patched().binaries[LLAMA_SERVER],
            folder,
            model,
            made.endpoints,
            secrets=made.secrets,
            pairs=made.pairs,
            activations=activations,
            extra=("-ts", ",".join("1" * count), *extra),
        ) as head,
    ):
        yield head, made


class SessionClient(RpcClient):
    """A client of one worker that has named its session, with a tensor of TENSOR_BYTES to push or take."""

    def __init__(self, worker: PushWorker, *, name: bool = True) -> None:
        super().__init__(worker.port, secret=SECRET)
        assert self.hello(features=ALWAYS | rpc.FEATURE_PUSH) == ALWAYS | rpc.FEATURE_PUSH
        self.devices()
        self.weight_ops()
        handle, got = self.alloc_as(1, 1 << 20)
        assert got == 1 << 20
        self.tensor = Entry(handle, handle, TENSOR_BYTES, F32, (TENSOR_BYTES // 4, 1, 1, 1), bytes(32))
        if name:
            self.send(rpc.PEER_SESSION, SESSION)

    def take(self, token: int, size: int = TENSOR_BYTES) -> None:
        self.send(rpc.TAKE_TENSOR, self.tensor.tensor() + struct.pack("<QQQ", 0, size, token))

    def push(self, token: int, number: int, size: int = TENSOR_BYTES) -> None:
        self.send(rpc.PUSH_TENSOR, self.tensor.tensor() + struct.pack("<QQQII", 0, size, token, number, 0))

    def check(self, number: int, session: bytes = SESSION) -> bool:
        return self.ask(rpc.PEER_CHECK, struct.pack("<II", number, 0) + session) == b"\1"


@contextmanager
def peer_of(worker: PushWorker, first: bytes) -> Iterator[socket.socket]:
    """A connection to a worker that has sent `first`."""
    with socket.create_connection(("127.0.0.1", worker.port), timeout=DEADLINE) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(first)
        yield sock


@contextmanager
def served_peer(worker: PushWorker) -> Iterator[socket.socket]:
    """A peer of the session that the worker serves."""
    with peer_of(worker, hello(SESSION)) as sock:
        assert sock.recv(9) == struct.pack("<QB", 1, 1)
        yield sock


def hello(session: bytes) -> bytes:
    """What a peer begins with."""
    return PEERS + struct.pack("<BQ", rpc.PEER_HELLO, 16) + session


def data(token: int, content: bytes, size: int | None = None) -> bytes:
    """A push; `size` is what the message says of its own length, if that is not the truth."""
    return struct.pack("<BQQ", rpc.PEER_DATA, 8 + len(content) if size is None else size, token) + content


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side ends the connection without another word."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True
