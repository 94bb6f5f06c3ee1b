"""Load the same model three times, split alike by the same llama.cpp: over meshd, by llama.cpp's RPC
directly, and through a bare pump of two processes with TLS, which shows what any two hops in Python cost.

If meshd's plan chose a micro batch, there is one more direct connection, with llama.cpp's own.
"""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from meshd.admin.status import Status
from meshd.base.tasks import Owner
from meshd.bench.llama import arguments_of, changed
from meshd.bench.stock_run import over_rpc, start_rpc_server
from meshd.bench.tunnel import program
from meshd.build.interface import LLAMA_SERVER, NativeInfo
from meshd.devices.command_lines import CALM_THREADS, LARGE_PAGES
from meshd.fleet.node import LocalNode, NodeSpec, ready_or_raise, start_all
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildSpec
from meshd.process.ready import http_200

_MICRO_BATCH = "-ub"


@dataclass(frozen=True, slots=True)
class Trio:
    """The sockets of the llama-servers. `pump`: through two Python processes with TLS, without meshd.

    `own_batch`: like `direct`, with llama.cpp's own micro batch; None if meshd's plan chose none.
    """

    meshd: Path
    direct: Path
    pump: Path
    own_batch: Path | None


@asynccontextmanager
async def trio(
    model: Path, cache: Path, native: NativeInfo, *, extra: tuple[str, ...] = ()
) -> AsyncIterator[Trio]:
    """Load all; `extra` are more options for each llama-server. Raises MeshdError."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        folder = Path(name)
        async with Owner() as owner:
            # over meshd
            worker = LocalNode(NodeSpec("worker", "worker", folder / "w", cache, ("--model", str(model))))
            await start_all(owner, worker)
            options = ("--model", str(model), "--port", "0", "--split", "always")
            rest = ("--", *extra) if extra else ()
            head = LocalNode(
                NodeSpec(
                    "head",
                    "serve",
                    folder / "h",
                    cache,
                    (*options, "--set", "serve.output=head", *rest),
                    environment={"MESHD_JOIN": await worker.token()},
                )
            )
            await start_all(owner, head)
            status = await head.until(ready_or_raise)
            # directly, with meshd's options
            argv = _arguments(status)
            bare = _Bare(native, argv, folder)
            direct = await bare.start(owner, "direct", await bare.rpc_server(owner, "direct"))
            own_batch = await bare.start_with_own_batch(owner)
            # through the pump
            far_port = await bare.rpc_server(owner, "pump")
            async with (
                program("tls-far", str(far_port)) as far,
                program("tls-near", far) as near,
            ):
                pump = await bare.start(owner, "pump", int(near))
                place = Path(argv[argv.index("--host") + 1])
                yield Trio(meshd=place, direct=direct, pump=pump, own_batch=own_batch)
                owner.cancel()


def _arguments(status: Status) -> list[str]:
    """Return the options with which meshd started llama-server."""
    return arguments_of(next(child.pid or 0 for child in status.children if child.name == "llama-server"))


class _Bare:
    """rpc-server and llama-server with meshd's options, but without meshd between them."""

    def __init__(self, native: NativeInfo, argv: list[str], folder: Path) -> None:
        self._native = native
        self._argv = argv
        self._folder = folder

    async def rpc_server(self, owner: Owner, name: str) -> int:
        """Start an rpc-server; return its port."""
        log = self._folder / f"{name}-rpc.log"
        return await start_rpc_server(owner, self._native, log, options=("--device", "CPU"))

    async def start_with_own_batch(self, owner: Owner) -> Path | None:
        """Start as `start` does, without the plan's micro batch; None if the plan chose none."""
        if _MICRO_BATCH not in self._argv:
            return None
        port = await self.rpc_server(owner, "own-batch")
        return await self.start(owner, "own-batch", port, {_MICRO_BATCH: None})

    async def start(
        self, owner: Owner, name: str, port: int, changes: Mapping[str, str | None] = MappingProxyType({})
    ) -> Path:
        """Load a llama-server over the rpc-server behind `port`; return its socket."""
        place = self._folder / f"{name}.sock"
        places = {"--rpc": f"127.0.0.1:{port}", "--host": str(place)}
        same = changed(over_rpc(self._argv, 1), {**places, **changes})
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
