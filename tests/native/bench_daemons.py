"""A model over meshd's daemons against one process with all devices: `python -m tests.native.bench_daemons`.

Every way serves the same model by llama-server, and one client asks all of them the same: `alone` on the
first device, `box` on all in one process, `rpc` with stock's rpc-servers, `worker` and `workers` with one and
with all devices lent by meshd's workers, through its links, to a head that computes nothing. Prompts are
counted as llama-server does; streams by how much longer the answers of all take if they have more tokens.
Best of the tries, and their ratio to `box`. `meshd native build` has made what workers need.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import IO, TypeVar

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.bench.distance import until_head_serves
from meshd.bench.llama import ChatAnswer, completion
from meshd.config.load import load
from meshd.fleet.fleet import Fleet, FleetSpec, model_ready
from meshd.fleet.proxy import run_loop

from tests.native.bench_places import Place, Programs, here, stock_workers

R = TypeVar("R")

WAYS = ("alone", "box", "rpc", "worker", "workers")
SHORT = 32  # tokens of a short answer
_SECONDS = 300.0
_PROMPT = 128  # tokens, of a stream


@dataclass(frozen=True, slots=True)
class Plan:
    stock: Path
    model: Path
    devices: Sequence[str]
    prompts: Sequence[int]
    streams: Sequence[int]
    generate: int
    tries: int

    @property
    def slots(self) -> int:
        return max(self.streams)

    @property
    def context(self) -> int:
        return max(*self.prompts, self.slots * (_PROMPT + SHORT + self.generate)) + 512


@dataclass(frozen=True, slots=True)
class Client:
    """A client of one llama-server, or of a head's API."""

    port: int

    def ask(self, first: int, tokens: int, generate: int) -> ChatAnswer:
        """To a prompt that no other has. Raises MeshdError."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        return completion(connection, tokens, generate, number=first)

    def together(self, streams: int, generate: int) -> float:
        """Seconds until so many have their answers."""
        began = time.monotonic()
        with ThreadPoolExecutor(streams) as pool:
            for one in [pool.submit(self.ask, number, _PROMPT, generate) for number in range(streams)]:
                one.result()
        return time.monotonic() - began


def measure(client: Client, plan: Plan) -> dict[str, float]:
    """Best rates, in tokens a second."""
    client.together(plan.slots, SHORT)
    found: dict[str, float] = {}
    for number in range(plan.tries):
        for tokens in plan.prompts:
            rate = client.ask(100 + number, tokens, 1).prompt
            found[f"prompt {tokens}"] = max(rate, found.get(f"prompt {tokens}", 0.0))
        for streams in plan.streams:
            short = client.together(streams, SHORT)
            long = client.together(streams, SHORT + plan.generate)
            rate = streams * plan.generate / (long - short) if long > short else 0.0  # noise: no figure
            found[f"{streams} streams"] = max(rate, found.get(f"{streams} streams", 0.0))
    return found


@contextmanager
def one_process(plan: Plan, way: str, log: IO[bytes]) -> Iterator[Client]:
    """A stock llama-server. Raises MeshdError if it does not come up."""
    programs = Programs(mesh=plan.stock, stock=plan.stock)
    places = {
        "alone": lambda: here(plan.devices[:1]),
        "box": lambda: here(plan.devices),
        "rpc": lambda: stock_workers(programs, plan.devices, log),
    }
    options = ("-c", str(plan.context), "-np", str(plan.slots), "-kvu", "--cache-ram", "0")
    with places[way]() as place, stock_server(plan.stock, plan.model, place, options, log) as port:
        yield Client(port)


@contextmanager
def stock_server(
    stock: Path, model: Path, place: Place, options: Sequence[str], log: IO[bytes] | int
) -> Iterator[int]:
    """Run a llama-server of upstream's; the port of its API. Raises MeshdError if it does not come up."""
    port = free_port()
    argv = [str(stock / "llama-server"), "-m", str(model), *place.options, *place.device_option(",")]
    argv += ["-ngl", "999", "-fit", "off", "-sm", "layer", "--no-webui", "-ub", "512", *options]
    process = subprocess.Popen(
        [*argv, "--host", "127.0.0.1", "--port", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, **place.env},
        pass_fds=place.descriptors,
    )
    try:
        _until_healthy(process, port)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def through_daemons(plan: Plan, way: str) -> dict[str, float]:
    """Measure workers with one device each and a head, over loopback. Raises MeshdError."""
    devices = plan.devices if way == "workers" else plan.devices[:1]
    options = ("--ctx-size", str(plan.context), "--", "-np", str(plan.slots), "-kvu")
    return over_daemons(plan.model, devices, options, lambda port: measure(Client(port), plan))


def over_daemons(
    model: Path, devices: Sequence[str], head_options: Sequence[str], work: Callable[[int], R]
) -> R:
    """Start a worker for each device, and a head that computes nothing; return what `work` does with the port
    of its API, in a thread. Raises MeshdError."""
    try:
        return run_loop(_over_daemons(model, devices, head_options, work))
    except ExceptionGroup as group:
        raise first_error(group) from group


async def _over_daemons(
    model: Path, devices: Sequence[str], head_options: Sequence[str], work: Callable[[int], R]
) -> R:
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder:
        async with Owner() as owner:
            fleet = Fleet(
                FleetSpec(
                    folder=Path(folder),
                    cache=load().config.paths.cache,
                    model=model,
                    worker_model=model,
                    round_trips=[0.0] * len(devices),
                    head_options=("--device", "none", "--set", "serve.output=worker", *head_options),
                    worker_options=[("--device", device) for device in devices],
                )
            )
            await fleet.start_workers(owner)
            head = await fleet.start_head(owner)
            await until_head_serves(fleet, head)
            status = await head.until(model_ready)
            for part in status.model.split if status.model is not None else ():
                sys.stdout.write(f"{part.node} {part.device}: {part.layers} layers, push {part.push}\n")
            found = await asyncio.to_thread(work, int(fleet.api_url(status).rpartition(":")[2]))
            owner.cancel()
    return found


def _until_healthy(process: subprocess.Popen[bytes], port: int) -> None:
    """Waits for a llama-server. Raises MeshdError if it does not come up."""
    for _ in range(int(_SECONDS * 5)):
        if process.poll() is not None:
            break
        if _healthy(port):
            return
        time.sleep(0.2)
    raise MeshdError(f"llama-server does not come up (exit code {process.poll()})")


def _healthy(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def free_port() -> int:
    """Return a free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Tokens a second, and behind each its part of what the box does."""
    ways = [way for way in WAYS if way in found]
    lines = ["| tokens a second | " + " | ".join(ways) + " |", "|---|" + "---|" * len(ways)]
    for what in next(iter(found.values()), {}):
        box = found.get("box", {}).get(what, 0.0)
        cells = [
            f"{found[way][what]:.0f}" + (f" ({found[way][what] / box:.2f})" if box and way != "box" else "")
            for way in ways
        ]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _run(plan: Plan, ways: Sequence[str], log: IO[bytes], output: Path | None) -> int:
    found: dict[str, dict[str, float]] = {}
    faults = 0
    for way in ways:
        try:
            if way in ("worker", "workers"):
                found[way] = through_daemons(plan, way)
            else:
                with one_process(plan, way, log) as client:
                    found[way] = measure(client, plan)
        except (OSError, MeshdError) as error:
            sys.stdout.write(f"{way}: {error}\n")
            faults += 1
        if output is not None:
            output.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(table(found) + "\n")
    return min(1, faults)


def numbers(text: str) -> list[int]:
    """Read a list of an option."""
    return [int(word) for word in text.split(",")]


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.native.bench_daemons", description=__doc__)
    parser.add_argument("--stock", type=Path, required=True, help="folder of upstream's programs")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--devices", default="CUDA0,CUDA1")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--prompts", type=numbers, default=[512, 2048, 8000])
    parser.add_argument("--streams", type=numbers, default=[1, 8, 32])
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="what stock's programs say")
    args = parser.parse_args()
    plan = Plan(
        args.stock,
        args.model,
        args.devices.split(","),
        args.prompts,
        args.streams,
        args.generate,
        args.tries,
    )
    with args.log.open("wb") as log:
        return _run(plan, args.ways.split(","), log, args.json)


if __name__ == "__main__":
    sys.exit(main())
