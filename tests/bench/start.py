"""Time `meshd serve` to the first token, and to the next one after a loss, by phases.

Real daemons on this machine: workers that have the model, and a head that computes nothing but what is always
its own (`--device none`), each with a cache of its own.

- `warm`: the head is started again; its workers are up, and everything was measured before.
- `first`: head and workers are new, nothing was ever measured; the workers are up.
- `lost worker`, `lost head`: a worker's mesh-server, or llama-server, is killed within an answer, which then
  goes on.

A start begins when the process is started, a loss with the kill; both end with the next token that a client
of the API gets. Phases in between are dated by the head's log. Modules are compiled before, as those of an
installed program are: else half of a start's imports is compiling.
"""

import argparse
import asyncio
import compileall
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from http.client import HTTPException, HTTPResponse
from itertools import count
from pathlib import Path

import meshd
from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.processes import work_of
from meshd.base.tasks import Owner
from meshd.bench.distance import machine
from meshd.bench.interface import BenchOutput
from meshd.bench.llama import api_connection
from meshd.bench.rig import programs_and_model
from meshd.config.load import load
from meshd.fleet.fleet import LocalNode, NodeSpec, model_ready, start_all, worker_names
from meshd.fleet.proxy import run_loop

from tests.bench.program import run_bench
from tests.bench.start_figures import GOALS, StartTimes, cpu_median, medians, phases, promises, table

KINDS = tuple(GOALS)
_RETRY_SECONDS = 0.02  # of a client while there is no API, or no model
_GIVE_UP_SECONDS = 120.0
_MEASURED_SECONDS = 180.0
_ANSWER_TOKENS = 2000
_INSTALLED = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": ""}  # compiled modules are used
_TOKENS_BEFORE = 24  # of an answer, before what it needs is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class StartArgs:
    """Each of `kinds` is measured `tries` times over `workers` workers. `model` None: SmolLM2."""

    model: Path | None
    cache: Path
    kinds: tuple[str, ...]
    workers: int
    tries: int
    head_options: tuple[str, ...]
    as_json: bool


def main(argv: Sequence[str]) -> int:
    """Measure what the command line says, and print it; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.start", description=__doc__)
    parser.add_argument("--model", type=Path, metavar="FILE")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="KIND,…")
    parser.add_argument("--workers", type=int, default=1, metavar="N")
    parser.add_argument("--tries", type=int, default=5, metavar="N", help="of each kind")
    parser.add_argument("--head", default="--device none", metavar="OPTIONS", help="of `meshd serve`")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    args = StartArgs(
        model=given.model,
        cache=load().config.paths.cache,
        kinds=tuple(kind for kind in KINDS if kind in given.kinds.split(",")),
        workers=given.workers,
        tries=given.tries,
        head_options=tuple(given.head.split()),
        as_json=given.json,
    )
    return run_bench(lambda out: run(args, out))


def run(args: StartArgs, out: BenchOutput) -> int:
    """Returns 0 when every goal was met, else 1. Raises MeshdError."""
    log.set_up(level="error")
    for folder in meshd.__path__:
        compileall.compile_dir(folder, quiet=2)
    found: list[StartTimes] = []
    run_loop(_measure(args, out, found))
    kept = promises(found)
    if args.as_json:
        by_kind = {kind: medians(found, kind) for kind in args.kinds}
        promised = [{**asdict(one), "held": one.held} for one in kept]
        tries = [{one.kind: {**one.phases, "cpu": one.cpu}} for one in found]
        cpu = {kind: cpu_median(found, kind) for kind in args.kinds}
        out.json(
            {
                "machine": machine(),
                "medians": by_kind,
                "head_cpu_s": cpu,
                "promises": promised,
                "tries": tries,
            }
        )
    else:
        out.table(*table(found))
        out.note(f"{machine()}; medians of {args.tries} tries")
    return 0 if all(one.held for one in kept) else 1


async def _measure(args: StartArgs, out: BenchOutput, found: list[StartTimes]) -> None:
    _, model = await programs_and_model(args.cache, args.model, out)
    numbers = count()
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        for number in range(args.tries if "first" in args.kinds else 0):
            out.progress(f"first: {number + 1} of {args.tries}")
            async with Owner() as owner:
                nodes = _Nodes(args, model, Path(name) / f"first {next(numbers)}")
                await nodes.start_workers(owner)
                found.append(StartTimes("first", await nodes.start_head(owner), nodes.cpu))
                owner.cancel()
        again = [kind for kind in args.kinds if kind != "first"]
        if not again:
            return
        async with Owner() as owner:
            nodes = _Nodes(args, model, Path(name) / "again")
            await nodes.start_workers(owner)
            await nodes.start_head(owner)
            out.progress("measuring devices")
            await nodes.until_measured()
            for number in range(args.tries):
                for kind in again:
                    out.progress(f"{kind}: {number + 1} of {args.tries}")
                    if kind == "warm":
                        await nodes.head.stop()
                        found.append(StartTimes(kind, await nodes.start_head(owner), nodes.cpu))
                    else:
                        found.append(StartTimes(kind, await nodes.lose(kind)))
            owner.cancel()


class _Nodes:
    """Workers, and a head over them, in `folder`."""

    def __init__(self, args: StartArgs, model: Path, folder: Path) -> None:
        self._args = args
        self._model = model
        self._folder = folder
        self._token = ""
        self._port = _free_port()
        self._workers: list[LocalNode] = []
        self.head: LocalNode
        self.cpu: float | None = None

    async def start_workers(self, owner: Owner) -> None:
        """Up, with the weights of their files known. Raises MeshdError."""
        for name in worker_names(self._args.workers):
            worker = LocalNode(self._spec(name, "worker", "--model", str(self._model)))
            self._workers.append(worker)
            await start_all(owner, worker)
            self._token = self._token or await worker.token()
            await asyncio.to_thread(_until_logged, worker, "weights_known")

    async def start_head(self, owner: Owner) -> dict[str, float]:
        """Seconds of each phase until a client has its first token. Raises MeshdError."""
        least = ("--min-workers", str(self._args.workers), "--split", "auto", "--speculate", "off")
        given = ("--model", str(self._model), "--port", str(self._port))
        self.head = LocalNode(self._spec("head", "serve", *given, *least, *self._args.head_options))
        began = time.time()
        await start_all(owner, self.head)
        token = await asyncio.to_thread(self._first_token)
        work = work_of(self.head.pid) if self.head.pid is not None else None
        self.cpu = None if work is None else work.processor_seconds
        return phases(self._log(), began, token)

    async def until_measured(self) -> None:
        """All devices have times, and the model is served by them. Raises MeshdError."""
        async with asyncio.timeout(_MEASURED_SECONDS):
            for cache in [one.spec.cache for one in (*self._workers, self.head)]:
                while not (cache / "device-speeds").exists():  # noqa: ASYNC110 - other programs write it
                    await asyncio.sleep(1.0)
            await self.head.until(model_ready)

    async def lose(self, kind: str) -> dict[str, float]:
        """Seconds from the kill until an answer goes on. Raises MeshdError."""
        node, name = (
            (self._workers[0], "mesh-server") if kind == "lost worker" else (self.head, "llama-server")
        )
        await self.head.until(model_ready)
        status = await node.status()
        [pid] = [child.pid for child in status.children if child.name == name]
        assert pid is not None
        killed, goes_on = await asyncio.to_thread(self._killed_within_an_answer, pid)
        await self.head.until(model_ready)
        return phases(self._log(), killed, goes_on)

    def _spec(self, name: str, role: str, *options: str) -> NodeSpec:
        cache = self._folder / f"cache of {name}"
        if not cache.exists():
            cache.mkdir(parents=True)
            (cache / "native").symlink_to(self._args.cache / "native")
        environment = {**_INSTALLED, **({"MESHD_JOIN": self._token} if self._token else {})}
        return NodeSpec(
            name=name,
            role=role,
            home=self._folder / name,
            cache=cache,
            options=options,
            environment=environment,
        )

    def _log(self) -> str:
        return (self.head.spec.home / "node.log").read_text(encoding="utf-8")

    def _first_token(self) -> float:
        give_up = time.monotonic() + _GIVE_UP_SECONDS
        while time.monotonic() < give_up:
            for at in self._pieces(1):
                return at
            time.sleep(_RETRY_SECONDS)
        raise MeshdError("the head has not answered", hint=self._log()[-2000:])

    def _killed_within_an_answer(self, pid: int) -> tuple[float, float]:
        """When the process was killed, and the end of the longest pause after that."""
        killed, pause, goes_on, before = 0.0, 0.0, 0.0, time.time()
        for number, at in enumerate(self._pieces(_ANSWER_TOKENS)):
            if number == _TOKENS_BEFORE:
                os.kill(pid, signal.SIGKILL)
                killed = time.time()
            if killed and at - before > pause and at > killed:
                pause, goes_on = at - before, at
            before = at
            if goes_on and number > 3 * _TOKENS_BEFORE and at - goes_on > 1.0:
                break
        if not goes_on:
            raise MeshdError("the answer did not go on", hint=self._log()[-2000:])
        return killed, goes_on

    def _pieces(self, tokens: int) -> Iterator[float]:
        """When each piece of an answer came; none where there is no answer."""
        connection = api_connection(f"http://127.0.0.1:{self._port}", _GIVE_UP_SECONDS)
        body = {
            "prompt": "The capital of France is",
            "n_predict": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status == 200:
                yield from _times_of(answer)
        except (OSError, HTTPException):
            return
        finally:
            connection.close()


def _times_of(answer: HTTPResponse) -> Iterator[float]:
    for line in answer:
        if line.startswith(b"data: ") and b'"content"' in line:
            yield time.time()


def _until_logged(node: LocalNode, event: str) -> None:
    log_file = node.spec.home / "node.log"
    give_up = time.monotonic() + _GIVE_UP_SECONDS
    while f" {event} " not in log_file.read_text(encoding="utf-8"):
        if time.monotonic() > give_up:
            raise MeshdError(f"`{node.spec.name}` did not log `{event}`")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
