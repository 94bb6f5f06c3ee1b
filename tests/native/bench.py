"""native/mesh against one process with all devices, and against stock's RPC: `python -m tests.native.bench`.

Stock llama-bench and llama-batched-bench measure each way of computing in turn, several times: `alone` on the
first device, `box` on all of them in one process, `rpc` with a ggml-rpc-server for each, `mesh` with a
mesh-server for each. Prints medians and their ratio to `box`. `--texts` compares greedy answers of a stock
llama-server alone and with mesh-servers first. What is measured is written as it comes: it may be stopped.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO

from meshd.base.errors import MeshdError
from meshd.bench.llama import measure

from tests.e2e.native_rig import index_of
from tests.native.bench_places import Place, Programs, here, mesh_workers, stock_workers

WAYS = ("alone", "box", "rpc", "mesh")
Samples = dict[str, dict[str, list[float]]]  # of a measurement, of a way: tokens a second


@dataclass(frozen=True, slots=True)
class Plan:
    programs: Programs
    model: Path
    devices: Sequence[str]
    prompts: Sequence[int]
    generate: int
    streams: Sequence[int]
    ubatch: int
    limit: float  # seconds of one program
    end: float  # of the time, by time.monotonic()

    @property
    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())


class Bench:
    """Ways to compute, what was measured of each, and where that is written."""

    def __init__(self, plan: Plan, log: IO[bytes], output: Path | None) -> None:
        self.plan, self._log, self._output = plan, log, output
        self.samples: Samples = {}
        self.texts: dict[str, str] = {}
        self.faults: list[str] = []
        index = index_of([plan.model])
        self.places: dict[str, Callable[[], AbstractContextManager[Place]]] = {
            "alone": lambda: here(plan.devices[:1]),
            "box": lambda: here(plan.devices),
            "rpc": lambda: stock_workers(plan.programs, plan.devices, log),
            "mesh": lambda: mesh_workers(plan.programs, plan.devices, plan.model, index, log),
        }

    def round(self) -> None:
        """Each way once."""
        for way in WAYS:
            self._try(way, self._one_stream)
        if self.plan.streams:
            for way in WAYS[1:]:
                self._try(way, self._many_streams)

    def _try(self, way: str, part: Callable[[str], None]) -> None:
        if not self.plan.left:
            return
        try:
            part(way)
        except (OSError, subprocess.SubprocessError, ValueError, MeshdError) as error:
            self.faults.append(f"{way}: {error}")
            sys.stdout.write(f"{way}: {error}\n")
        self.write()

    def _run(self, place: Place, program: str, options: Sequence[str]) -> list[dict[str, float]]:
        argv = [str(self.plan.programs.stock / program), "-m", str(self.plan.model), *place.options, *options]
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment(place),
            pass_fds=place.descriptors,
            timeout=min(self.plan.limit, self.plan.left),
            check=False,
        )
        if done.returncode:
            raise subprocess.SubprocessError(f"{program} ended with {done.returncode}")
        return list(_rows(done.stdout.decode(errors="replace")))

    def _one_stream(self, way: str) -> None:
        plan = self.plan
        prompts = ",".join(map(str, plan.prompts))
        options = ["-p", prompts, "-n", str(plan.generate), "-ub", str(plan.ubatch), "-r", "1", "-o", "jsonl"]
        with self.places[way]() as place:
            options += ["-ngl", "99", "-sm", "layer", *place.device_option("/")]
            for row in self._run(place, "llama-bench", options):
                prompt = int(row["n_prompt"])
                self._add(
                    f"prompt {prompt}" if prompt else f"generate {int(row['n_gen'])}", way, row["avg_ts"]
                )

    def _many_streams(self, way: str) -> None:
        plan = self.plan
        prompt = 128
        cells = max(plan.streams) * (prompt + plan.generate)
        options = ["-npp", str(prompt), "-ntg", str(plan.generate), "-npl", ",".join(map(str, plan.streams))]
        options += ["-c", str(cells), "-b", "2048", "-ub", str(plan.ubatch), "--output-format", "jsonl"]
        with self.places[way]() as place:
            options += ["-ngl", "99", "-fit", "off", *place.device_option(",")]
            for row in self._run(place, "llama-batched-bench", options):
                self._add(f"{int(row['pl'])} streams", way, row["speed_tg"])

    def _add(self, what: str, way: str, value: float) -> None:
        self.samples.setdefault(what, {}).setdefault(way, []).append(value)

    def compare_texts(self) -> None:
        """Compare what a llama-server answers on the first device, and with mesh-servers."""
        for way in ("alone", "mesh"):
            self._try(way, self._answer)
        same = len(self.texts) == 2 and len(set(self.texts.values())) == 1
        sys.stdout.write(f"texts: {'same' if same else f'OTHER {self.texts}'}\n")

    def _answer(self, way: str) -> None:
        with tempfile.TemporaryDirectory() as folder, self.places[way]() as place:
            socket = Path(folder) / "llama.sock"
            argv = [str(self.plan.programs.stock / "llama-server"), "-m", str(self.plan.model)]
            argv += ["--host", str(socket), "-c", "4096", "-np", "1", "--cache-ram", "0", "-ngl", "99"]
            argv += ["-fit", "off", "-nr", "-t", "1", *place.options, *place.device_option(",")]
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=_environment(place),
                pass_fds=place.descriptors,
            )
            try:
                self.texts[way] = self._first_answer(process, socket)
            finally:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
                process.wait()

    def _first_answer(self, process: subprocess.Popen[bytes], socket: Path) -> str:
        end = time.monotonic() + min(self.plan.limit, self.plan.left)
        while time.monotonic() < end and process.poll() is None:
            with suppress(MeshdError):
                return asyncio.run(measure(socket, prompt_tokens=1000, tokens=64)).text
            time.sleep(0.2)
        raise MeshdError("llama-server does not answer")

    def write(self) -> None:
        """All that is known so far."""
        if self._output is not None:
            data = {
                "devices": list(self.plan.devices),
                "model": self.plan.model.name,
                "tokens_per_second": self.samples,
                "texts": self.texts,
                "faults": self.faults,
            }
            self._output.write_text(json.dumps(data, indent=1) + "\n")


def _environment(place: Place) -> dict[str, str]:
    return {**os.environ, **place.env}


def _rows(text: str) -> Iterable[dict[str, float]]:
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def table(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Medians, and behind each its part of what the box does."""
    lines = ["| tokens a second | " + " | ".join(WAYS) + " |", "|---|" + "---|" * len(WAYS)]
    for what, ways in samples.items():
        box = median(ways["box"]) if ways.get("box") else 0.0
        cells = []
        for way in WAYS:
            if not ways.get(way):
                cells.append("–")
                continue
            value = median(ways[way])
            part = f" ({value / box:.2f})" if box and way != "box" else ""
            cells.append(f"{value:.0f}{part}")
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.native.bench", description=__doc__)
    parser.add_argument("--mesh", type=Path, required=True, help="folder of mesh-server and libggml-mesh.so")
    parser.add_argument("--stock", type=Path, required=True, help="folder of upstream's programs")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--devices", default="CUDA0,CUDA1")
    parser.add_argument("--prompts", type=_numbers, default=[512, 2048, 8192])
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--streams", type=_numbers, default=[1, 8, 32])
    parser.add_argument("--ubatch", type=int, default=512)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no measurement goes on for longer")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that one program may take")
    parser.add_argument("--texts", action="store_true", help="compare answers first (llama-server)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--log", type=Path, help="what the programs say")
    given = parser.parse_args(argv)
    plan = Plan(
        Programs(given.mesh.resolve(), given.stock.resolve()),
        given.model.resolve(),
        given.devices.split(","),
        given.prompts,
        given.generate,
        given.streams,
        given.ubatch,
        given.limit,
        time.monotonic() + given.seconds,
    )
    with (given.log or Path(os.devnull)).open("wb") as log:
        bench = Bench(plan, log, given.json)
        if given.texts:
            bench.compare_texts()
        for _ in range(given.repetitions):
            bench.round()
            sys.stdout.write(table(bench.samples) + "\n\n")
            sys.stdout.flush()
    bench.write()
    return 1 if bench.faults else 0


if __name__ == "__main__":
    sys.exit(main())
