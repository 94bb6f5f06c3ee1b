"""The same model three times, split alike by the same binaries: over meshd, by a direct --rpc connection, and
through a bare pump of two processes with TLS between, which is what any two hops in Python cost.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from meshd.admin.status import Status
from meshd.base.tasks import Owner
from meshd.bench.llama import arguments_of, changed
from meshd.bench.tunnel import program
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER, NativeInfo
from meshd.fleet.node import LocalNode, NodeSpec, ready_or_raise, start_all
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildSpec
from meshd.process.ports import listening_socket
from meshd.process.ready import http_200
from meshd.role.native.command_lines import CALM_THREADS, LARGE_PAGES


@dataclass(frozen=True, slots=True)
class Trio:
    """The sockets of the llama-servers. `pump`: through two Python processes with TLS between, no meshd."""

    meshd: Path
    direct: Path
    pump: Path


@asynccontextmanager
async def trio(
    model: Path, cache: Path, native: NativeInfo, *, extra: tuple[str, ...] = ()
) -> AsyncIterator[Trio]:
    """All three loaded and ready; `extra` goes to each llama-server. Raises MeshdError."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        folder = Path(name)
        async with Owner() as owner:
            worker = LocalNode(NodeSpec("worker", "worker", folder / "w", cache, ("--model", str(model))))
            await start_all(owner, worker)
            options = ("--model", str(model), "--port", "0")
            rest = ("--", *extra) if extra else ()
            head = LocalNode(
                NodeSpec(
                    "head",
                    "serve",
                    folder / "h",
                    cache,
                    (*options, *rest),
                    environment={"MESHD_JOIN": await worker.token()},
                )
            )
            await start_all(owner, head)
            status = await head.until(ready_or_raise)
            argv = _arguments(status)
            bare = _Bare(native, argv, folder)
            direct = await bare.start(owner, "direct", await bare.rpc_server(owner, "direct"))
            far_port = await bare.rpc_server(owner, "pump")
            async with (
                program("tls-far", str(far_port)) as far,
                program("tls-near", far) as near,
            ):
                pump = await bare.start(owner, "pump", int(near))
                yield Trio(meshd=Path(argv[argv.index("--host") + 1]), direct=direct, pump=pump)
                owner.cancel()


def _arguments(status: Status) -> list[str]:
    """What meshd started llama-server with."""
    return arguments_of(next(child.pid or 0 for child in status.children if child.name == "llama-server"))


class _Bare:
    """rpc-server and llama-server as meshd runs them, with something else between."""

    def __init__(self, native: NativeInfo, argv: list[str], folder: Path) -> None:
        self._native = native
        self._argv = argv
        self._folder = folder

    async def rpc_server(self, owner: Owner, name: str) -> int:
        """Its port."""
        listener = listening_socket()
        number = listener.fileno()
        argv = (str(self._native.binaries[RPC_SERVER]), "--device", "CPU", "--listen-fd", str(number))
        log = self._folder / f"{name}-rpc.log"
        child = OwnedChild(
            ChildSpec(name=f"{name} rpc-server", argv=argv, log=log, pass_fds=(number,), env=CALM_THREADS)
        )
        owner.start(child.serve(), name=name)
        await child.ensure_ready()
        port = int(listener.getsockname()[1])
        listener.close()
        return port

    async def start(self, owner: Owner, name: str, port: int) -> Path:
        """The socket of a llama-server that has loaded over the rpc-server behind `port`."""
        place = self._folder / f"{name}.sock"
        same = changed(self._argv, {"--rpc": f"127.0.0.1:{port}", "--host": str(place)})
        child = OwnedChild(
            ChildSpec(
                name=f"{name} llama-server",
                argv=(str(self._native.binaries[LLAMA_SERVER]), *same),
                log=self._folder / f"{name}-llama.log",
                env=CALM_THREADS | LARGE_PAGES,
                probe=http_200(place),
                ready_timeout=None,
            )
        )
        owner.start(child.serve(), name=name)
        await child.ensure_ready()
        return place
