"""Real processes of native/mesh: mesh-servers, and an unmodified stock llama-server that is their head.

Nothing of meshd runs between them. Each connection is a socketpair whose ends are handed over, with a
thread between that passes its bytes on and counts them by message.
"""

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import Self

from meshd.base.errors import RemoteProtocolError
from meshd.build.interface import LLAMA_SERVER
from meshd.model.weights_index import encode_index
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.mesh_lease_view import MeshLeaseView, MeshPushFilter
from meshd.tunnel.interface import Inspector

from tests.e2e.models import stock
from tests.e2e.native_rig import DEADLINE, Handed, Head, Program, Report, index_of
from tests.native.build import MeshBuild


class CountedPair:
    """Two ends of one connection; what goes through is counted by kind of message, header and all.

    `wall` judges it, as on a worker's node: the head is the peer. `change` is given each message of the
    worker, header and all, and says what the head gets instead; `on_request` is called with kind and body
    of each of the head's before it is passed on.
    """

    def __init__(
        self,
        wall: Inspector | None = None,
        *,
        change: Callable[[bytes], bytes] = bytes,
        on_request: Callable[[int, bytes], object] = lambda _kind, _body: None,
    ) -> None:
        self.refused = ""  # why the wall ended it
        self.loaded: Counter[str] = Counter()  # what became of the weights that the worker has from its files
        self.allocated = 0  # bytes that the head asked for
        self._change = change
        self._on_request = on_request
        self._done = 0  # what the worker said of itself last
        self._wall = wall
        self._judging = threading.Lock()
        self._passing = threading.Event()
        self._passing.set()
        self._answering = threading.Event()
        self._answering.set()
        self.head, inner_head = socket.socketpair()
        self.worker, inner_worker = socket.socketpair()
        self.bytes: Counter[int] = Counter()
        self.messages: Counter[int] = Counter()
        self._inner = (inner_head, inner_worker)
        self._threads = [
            threading.Thread(target=self._pass_on, args=ways)
            for ways in ((inner_head, inner_worker, True), (inner_worker, inner_head, False))
        ]
        for thread in self._threads:
            thread.start()

    def _pass_on(self, source: socket.socket, target: socket.socket, from_head: bool) -> None:
        try:
            with source.makefile("rb") as stream:
                while header := stream.read(wire.HEADER.size):
                    size, kind, _zero, _id = wire.HEADER.unpack(header)
                    body = stream.read(size)
                    self._passing.wait()
                    if not from_head:
                        self._answering.wait()
                    self.messages[kind] += 1
                    if kind == wire.PROGRESS:
                        self._done, *_more = wire.MESSAGES[kind].body.unpack(body)
                    self.bytes[kind] += len(header) + size
                    if kind == wire.ALLOCATE:
                        self.allocated += wire.MESSAGES[kind].body.unpack(body)[2]
                    if kind == wire.LOADED:
                        self.loaded.update(wire.LOAD_RESULTS[result] for result in body)
                    passed = self._passed(header + body, kind, from_head)
                    try:
                        target.sendall(passed)
                    except OSError:
                        return  # it is gone: what it said before still goes the other way, then its end
        except OSError:
            pass  # one of the two is gone; the other one is told below
        except RemoteProtocolError as error:
            self.refused = str(error)
        self.cut()

    def _passed(self, data: bytes, kind: int, from_head: bool) -> bytes | memoryview:
        if from_head:
            self._on_request(kind, data[wire.HEADER.size :])
        return self._judged(data if from_head else self._change(data), from_head)

    def _judged(self, data: bytes, from_head: bool) -> bytes | memoryview:
        if self._wall is None:
            return data
        with self._judging:
            return self._wall.from_peer(data) if from_head else self._wall.to_peer(data)

    def lie(self, change: Callable[[bytes], bytes]) -> None:
        """From now on."""
        self._change = change

    def watch(self, on_request: Callable[[int, bytes], object]) -> None:
        """From now on it is called with kind and body of each request of the head's."""
        self._on_request = on_request

    @contextmanager
    def unanswered(self) -> Iterator[None]:
        """Keep back meanwhile what the worker says: the head gets no further than it does without."""
        self._answering.clear()
        try:
            yield
        finally:
            self._answering.set()

    def insert(self, data: bytes) -> None:
        """Something that the head's side did not say, while nothing else is on its way."""
        self._inner[1].sendall(data)

    def claim_progress(self) -> None:
        """To the head, in the name of a worker that says nothing by itself."""
        body = wire.MESSAGES[wire.PROGRESS].body.pack(self._done, 0, 0, 0, 0, 0)
        self._inner[0].sendall(wire.HEADER.pack(len(body), wire.PROGRESS, 0, 0) + body)

    def stop(self) -> None:
        """Nothing gets through any more, and nobody is told."""
        self._passing.clear()

    def cut(self) -> None:
        """Both sides see its end."""
        self._passing.set()
        self._answering.set()
        for end in self._inner:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it was already

    def close(self) -> None:
        self.cut()
        for thread in self._threads:
            thread.join(DEADLINE)
        for end in (self.head, self.worker, *self._inner):
            end.close()


class BarePair:
    """Two ends of one connection, and nothing between."""

    def __init__(self) -> None:
        self.head, self.worker = socket.socketpair()

    def close(self) -> None:
        self.head.close()
        self.worker.close()


class MeshServer(Program):
    """A mesh-server at one end of `pair`, with the files `weights`.

    It has their true index, or what `index` makes of their descriptors.
    """

    def __init__(
        self,
        build: MeshBuild,
        folder: Path,
        pair: CountedPair | BarePair,
        *,
        weights: Sequence[Path] = (),
        index: Callable[[Sequence[int]], bytes] | None = None,
        memory: str = "",
        extra: Sequence[str] = (),
        neighbours: Mapping[int, socket.socket] | None = None,
        arrivals: socket.socket | None = None,
        preload: Path | None = None,
    ) -> None:
        """`neighbours`: ends of its connections with workers, by their places in the head's list.

        `arrivals`: its end of a socket at which more of them are handed over.
        """
        handed = Handed()
        argv = [str(build.server), "--fd", str(handed.keep(os.dup(pair.worker.fileno())))]
        if weights:
            descriptors = [handed.keep(os.open(path, os.O_RDONLY)) for path in weights]
            text = index(descriptors) if index else encode_index(index_of(weights), descriptors)
            argv += ["--weights-fd", str(handed.text(text))]
        if memory:
            argv += ["--memory", memory]
        for number, end in (neighbours or {}).items():
            argv += ["--neighbour", f"{number}:{handed.keep(os.dup(end.fileno()))}"]
        if arrivals is not None:
            argv += ["--neighbours-fd", str(handed.keep(os.dup(arrivals.fileno())))]
            arrivals.close()
        log = folder / f"mesh-server-{id(self):x}.log"
        report = Report(handed)
        argv += ["--report-fd", str(report.number), *extra]
        env = {} if preload is None else {"LD_PRELOAD": str(preload)}
        super().__init__(argv, log=log, handed=handed, env=env)
        self.report = report
        report.start()
        for end in (pair.worker, *(neighbours or {}).values()):
            end.close()


class MeshHead(Head):
    """A stock llama-server, which has loaded our module."""

    def __init__(
        self,
        build: MeshBuild,
        folder: Path,
        model: Path,
        pairs: Sequence[CountedPair],
        *,
        binary: Path,
        index: bytes = b"",
        load_mode: str = "",
        extra: Sequence[str] = (),
        ready: bool = True,
        devices: Sequence[int] | None = None,
        activations: str = "",
    ) -> None:
        """`devices`: how many the head is told that each worker has; one, if nothing is said.

        `index`: of the model's weights by content. `activations`: how hidden states cross.
        """
        names = ",".join(f"MESH{number}" for number in range(len(pairs)))
        self._build, self._pairs = build, pairs
        self._hidden_states = activations
        self._devices = [1] * len(pairs) if devices is None else devices
        self._index = index
        super().__init__(
            binary,
            folder,
            model,
            (),
            load_mode=load_mode,
            extra=("-dev", names, "-ngl", "999", *extra),
            ready=ready,
        )
        for pair in pairs:
            pair.head.close()

    def hand_over(self, handed: Handed, env: dict[str, str]) -> Report | None:
        numbers = [handed.keep(os.dup(pair.head.fileno())) for pair in self._pairs]
        env["GGML_BACKEND_PATH"] = str(self._build.module)
        env["GGML_MESH_FDS"] = ",".join(map(str, numbers))
        env["GGML_MESH_DEVICES"] = ",".join(map(str, self._devices))
        if self._index:
            env["GGML_MESH_WEIGHTS_FD"] = str(handed.text(self._index))
        if self._hidden_states:
            env["GGML_MESH_ACTIVATIONS"] = self._hidden_states
        report = Report(handed)
        env["GGML_MESH_REPORT_FD"] = str(report.number)
        return report


class Mesh:
    """Workers, and a head that has all layers on them; a context manager that leaves nothing behind."""

    def __init__(
        self,
        build: MeshBuild,
        folder: Path,
        model: Path,
        workers: int,
        *,
        weights: Sequence[Path] = (),
        memory: str = "",
        binary: Path | None = None,
        extra: Sequence[str] = (),
        ready: bool = True,
        push: bool = False,
        preload: Path | None = None,
        threads: int = 1,
        activations: str = "",
    ) -> None:
        """With `weights` the workers have those files, and the head an index of its own one.

        `binary`: another llama-server than that of the pin. `push`: each two workers have a connection.
        A worker's daemon reads each connection, as on its node. `preload`: a library for the first
        worker. `threads`: of each one. `activations`: as MeshHead.
        """
        binary = stock().binaries[LLAMA_SERVER] if binary is None else binary
        self.pairs = [CountedPair(MeshLeaseView()) for _ in range(workers)]
        self.between = {two: CountedPair(MeshPushFilter()) for two in combinations(range(workers), 2) if push}
        self.servers: list[MeshServer] = []
        try:
            for number, pair in enumerate(self.pairs):
                ends = self._ends_of(number)
                self.servers.append(
                    MeshServer(
                        build,
                        folder,
                        pair,
                        weights=weights,
                        memory=memory,
                        neighbours=ends,
                        preload=None if number else preload,
                        extra=("--threads", str(threads)),
                    )
                )
            self.head = MeshHead(
                build,
                folder,
                model,
                self.pairs,
                binary=binary,
                index=encode_index(index_of([model])) if weights else b"",
                extra=extra,
                ready=ready,
                activations=activations,
            )
        except BaseException:
            self._close_workers()
            raise

    def _ends_of(self, number: int) -> dict[int, socket.socket]:
        """Return the ends of the connections with its neighbours."""
        ends = {}
        for (one, other), pair in self.between.items():
            if number == one:
                ends[other] = pair.head
            elif number == other:
                ends[one] = pair.worker
        return ends

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.head.close()
        self._close_workers()
        if kind is None:
            assert [pair.refused for pair in self.pairs] == [""] * len(self.pairs)

    def _close_workers(self) -> None:
        for server in self.servers:
            server.close()
        for pair in (*self.pairs, *self.between.values()):
            pair.close()

    def cut(self, one: int, other: int) -> None:
        """Ends the connection between two workers."""
        self.between[one, other].cut()

    def messages(self, kind: int) -> int:
        return sum(pair.messages[kind] for pair in self.pairs)

    def bytes(self, kind: int) -> int:
        return sum(pair.bytes[kind] for pair in self.pairs)
