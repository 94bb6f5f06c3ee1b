"""The same model twice: over meshd, and by a direct --rpc connection of the same binaries, split alike."""

import asyncio
import http.client
import json
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from meshd.admin.api import Status
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER, NativeInfo
from meshd.fleet.node import LocalNode, NodeSpec, ready_or_raise, start_all
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildSpec
from meshd.process.ports import listening_socket
from meshd.process.ready import http_200

ANSWER_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens a second of one run."""

    prompt: float
    generate: float


@dataclass(frozen=True, slots=True)
class Pair:
    """The sockets of both llama-servers."""

    meshd: Path
    direct: Path


@asynccontextmanager
async def pair(
    model: Path, cache: Path, native: NativeInfo, *, extra: tuple[str, ...] = ()
) -> AsyncIterator[Pair]:
    """Both ways loaded and ready; `extra` goes to both llama-servers. Raises MeshdError."""
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
            direct = folder / "direct.sock"
            await _start_direct(owner, native, argv, direct, folder)
            yield Pair(meshd=Path(_value(argv, "--host")), direct=direct)
            owner.cancel()


def _arguments(status: Status) -> list[str]:
    """What meshd started llama-server with."""
    pid = next((child.pid for child in status.children if child.name == "llama-server"), None)
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[1:-1]
    except OSError as error:
        raise MeshdError("the arguments of llama-server cannot be read on this system") from error


def _value(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


async def _start_direct(owner: Owner, native: NativeInfo, argv: list[str], place: Path, folder: Path) -> None:
    """rpc-server and llama-server as meshd runs them, but connected directly."""
    listener = listening_socket()
    port = listener.getsockname()[1]
    replaced = {"--rpc": f"127.0.0.1:{port}", "--host": str(place)}
    same = list(argv)
    for option, value in replaced.items():
        same[same.index(option) + 1] = value
    rpc_server = OwnedChild(
        ChildSpec(
            name="direct rpc-server",
            argv=(str(native.binaries[RPC_SERVER]), "--device", "CPU", "--listen-fd", str(listener.fileno())),
            log=folder / "direct-rpc.log",
            pass_fds=(listener.fileno(),),
        )
    )
    llama_server = OwnedChild(
        ChildSpec(
            name="direct llama-server",
            argv=(str(native.binaries[LLAMA_SERVER]), *same),
            log=folder / "direct-llama.log",
            probe=http_200(place),
            ready_timeout=None,
        )
    )
    for child in (rpc_server, llama_server):
        owner.start(child.serve(), name="direct")
        await child.ensure_ready()
    listener.close()


async def measure(place: Path, *, prompt_tokens: int, tokens: int) -> Speeds:
    """One completion of random-looking text on llama-server's socket. Raises MeshdError."""
    return await asyncio.to_thread(_measure, place, prompt_tokens, tokens)


def _measure(place: Path, prompt_tokens: int, tokens: int) -> Speeds:
    body = {
        "prompt": [1000 + (n * 7919) % 20000 for n in range(prompt_tokens)],
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    connection = _UnixConnection(place)
    try:
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status != 200:
        raise MeshdError(f"llama-server answered {answer.status}: {str(data)[:200]}")
    timings = data["timings"]
    return Speeds(prompt=timings["prompt_per_second"], generate=timings["predicted_per_second"])


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, place: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_SECONDS)
        self._place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._place))
