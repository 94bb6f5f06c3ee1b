"""Many streaming clients of several models that do not fit together: `python -m tests.bench.many_clients`.

A head alone on this machine serves three models: two of one group, the third excludes them. The clients are
divided among the models, and each, with an API key of its own, asks again as soon as it has its answer.
Models are `smollm2`, names of `tests.bench.random_model`, or files. Printed are errors, what each client got,
how long it waited for a first token, the daemon's share of the CPU time, and whether its memory grows. The
exit code is 1 after an error, if clients of one model differ too much, and if the daemon takes too much CPU
time or memory. Linux (/proc).
"""

import argparse
import asyncio
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from meshd.admin.status import Status
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.build.fetch import demo_model
from meshd.config.load import load
from meshd.fleet.fleet import LocalNode, NodeSpec, start_all
from meshd.model.status import ModelState

from tests.bench.client_figures import ClientCount, ClientFigures, complaints, lines
from tests.bench.program import run_program
from tests.bench.random_model import SHAPES, random_model

_LOOK_SECONDS = 1.0
_LINE_BYTES = 1 << 20
_END_SECONDS = 300.0  # for the answers under way when time is up


def main(argv: Sequence[str]) -> int:
    """Measures, prints, and returns the exit code."""
    return run_program(_run(_parser().parse_args(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.many_clients", description=__doc__)
    parser.add_argument(
        "--models", default="smollm2,small,small-2", metavar="A,B,C", help="the last is alone"
    )
    parser.add_argument("--clients", type=int, default=64, metavar="N")
    parser.add_argument("--keys", type=int, metavar="N", help="API keys, in turn (one for each client)")
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N")
    parser.add_argument("--tokens", type=int, default=32, metavar="N", help="of an answer")
    return parser


async def _run(args: argparse.Namespace) -> None:
    cache = load().config.paths.cache
    models = [await _model_file(name, cache) for name in args.models.split(",")]
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder:
        async with Owner() as owner:
            keys = [secrets.token_hex(24) for _ in range(args.keys or args.clients)]
            head = _head(Path(folder), cache, models, keys)
            await start_all(owner, head)
            figures = await _measure(args, head, [name for name, _ in models], keys)
            owner.cancel()
    report(figures)


def report(figures: ClientFigures) -> None:
    """Print them. Raises MeshdError where something must not be as it is."""
    sys.stdout.write("\n".join(lines(figures)) + "\n")
    if wrong := list(complaints(figures)):
        hint = "a longer run (`--minutes`) evens out what is chance; an error is none"
        raise MeshdError("; ".join(wrong), hint=hint)


async def _model_file(given: str, cache: Path) -> tuple[str, Path]:
    """Its name in requests, and its file; `tiny-2` is `tiny` once more. Raises MeshdError."""
    if given == "smollm2":
        return given, await demo_model(cache, lambda _step: None)
    shape = given.partition("-")[0]
    if shape in SHAPES:
        return given, random_model(shape, cache / "bench-models")
    return Path(given).stem, Path(given)


def _head(folder: Path, cache: Path, models: Sequence[tuple[str, Path]], keys: Sequence[str]) -> LocalNode:
    accepted = folder / "keys"
    accepted.touch(mode=0o600)
    accepted.write_text("".join(f"{key}\n" for key in keys), encoding="ascii")
    text = f"[serve]\nport = 0\nmin_workers = 0\nctx_size = 512\napi_key_file = {json.dumps(str(accepted))}\n"
    for number, (name, file) in enumerate(models):
        text += f"[models.{name}]\nmodel = {json.dumps(str(file.absolute()))}\n"
        text += 'group = "together"\n' if number < len(models) - 1 else ""
    config = folder / "meshd.toml"
    config.write_text(text, encoding="utf-8")
    return LocalNode(NodeSpec("head", "serve", folder / "head", cache, ("--config", str(config))))


async def _measure(
    args: argparse.Namespace, head: LocalNode, names: Sequence[str], keys: Sequence[str]
) -> ClientFigures:
    status = await head.until(lambda status: status.api is not None and bool(status.models))
    assert status.api is not None
    counts = [ClientCount(names[number % len(names)]) for number in range(args.clients)]
    ask = partial(ask_again, status.api.url, tokens=args.tokens)
    watch = _Watch(head)
    pid, began = status.node.pid, time.monotonic()
    daemon_before, _ = cpu_seconds(pid)
    until = began + 60 * args.minutes
    async with Owner() as owner:
        watching = owner.start(watch.serve(), name="watch")
        clients = [
            owner.start(ask(number, count, keys[number % len(keys)], until=until), name="client")
            for number, count in enumerate(counts)
        ]
        await asyncio.wait(clients, timeout=until - began + _END_SECONDS)
        watching.cancel()
        for count, client in zip(counts, clients, strict=True):
            if not client.done():
                count.errors.append("no end of an answer")
                client.cancel()
    daemon, ended = cpu_seconds(pid)
    children = [cpu_seconds(child.pid)[0] for child in (await head.status()).children if child.pid]
    return ClientFigures(
        seconds=60 * args.minutes,
        clients=counts,
        daemon_seconds=daemon - daemon_before,
        server_seconds=ended + sum(children),
        memory=watch.memory,
        loads=watch.loads,
    )


class _Watch:
    """Looks at the head's status."""

    def __init__(self, head: LocalNode) -> None:
        self._head = head
        self.memory: list[int] = []
        self.loads = 0
        self._ready: frozenset[str] = frozenset()

    async def serve(self) -> None:
        """Until cancelled."""
        while True:
            self._note(await self._head.status())
            await asyncio.sleep(_LOOK_SECONDS)

    def _note(self, status: Status) -> None:
        self.memory.append(status.node.rss_bytes)
        ready = frozenset(model.name for model in status.models if model.state is ModelState.READY)
        self.loads += len(ready - self._ready)
        self._ready = ready


async def ask_again(
    url: str, number: int, count: ClientCount, key: str, *, tokens: int, until: float
) -> None:
    """One client, until time is up; what comes later is not counted."""
    asked = 0
    while time.monotonic() < until:
        asked += 1
        body = {
            "model": count.model,
            "prompt": f"Client {number} asks for the {asked}th time about",
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            await _answer(url, json.dumps(body).encode(), key, count, until)
        except (OSError, MeshdError) as error:
            count.errors.append(str(error))


async def _answer(url: str, body: bytes, key: str, count: ClientCount, until: float) -> None:
    """One streamed answer. Raises OSError, MeshdError."""
    parts = urlsplit(url)
    began, tokens, is_whole = time.monotonic(), 0, False
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=_LINE_BYTES)
    try:
        # of HTTP/1.0, whose answers come without chunks
        head = f"POST /v1/completions HTTP/1.0\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer {key}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise MeshdError((await reader.read(_LINE_BYTES)).decode(errors="replace").splitlines()[-1])
        while line := await reader.readline():
            if line.startswith(b"data: [DONE]"):
                is_whole = True
            elif line.startswith(b"data: "):
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise MeshdError(str(event["error"]["message"]))
                is_token = not event["choices"][0]["finish_reason"]
                if is_token and not tokens:
                    count.waits.append(time.monotonic() - began)
                tokens += is_token
                count.tokens += is_token and time.monotonic() < until
    finally:
        writer.close()
    if not is_whole:
        raise MeshdError("an answer was cut")
    count.answers += 1


def cpu_seconds(pid: int) -> tuple[float, float]:
    """CPU time of a process, and of its children that have ended (proc_pid_stat(5)). Raises MeshdError."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError as error:
        raise MeshdError("the CPU time of a process cannot be read on this system") from error
    user, system, of_users, of_systems = (int(one) / os.sysconf("SC_CLK_TCK") for one in fields[11:15])
    return user + system, of_users + of_systems


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
