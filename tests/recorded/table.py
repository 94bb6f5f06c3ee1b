"""Try real programs at a real gateway: `.venv/bin/python -m tests.recorded.table --programs DIR [NAME …]`.

Each program is run in the scenes of `scene.py`: a session of three turns with tools, and faults of which it
should tell a person. `results.json` is written after each cell, and cells that it has for the same version of
a program are not tried again. `record.py` says where the programs are. Linux, for a network namespace with
loopback alone; needs the native build.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from gguf import GGUFReader
from meshd.build.interface import LLAMA_SERVER

from tests.e2e.models import smollm2, stock, unpack_templates
from tests.e2e.native_rig import Head
from tests.e2e.random_models import random_model
from tests.recorded.page import FAULTS, RESULTS, SESSION, TEMPLATES
from tests.recorded.programs import PROGRAMS
from tests.recorded.run import Installed, Outcome, Run, leave_network
from tests.recorded.scene import Fault, Scene, scene
from tests.recorded.verdict import Cell, fault, listing, started, streams, turns

_RUNS = ("session", "models", "loading", *FAULTS)
_SECONDS = {"session": 400.0, "loading": 400.0, "models": 400.0}  # only a hang comes near it
FAULT_SECONDS = 120.0
_NO_TOOLS = frozenset({"aider"})  # its tools are in the text

Results = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """Tries one program. `head` renders chats with the template."""

    installed: Installed
    folder: Path
    head: Head

    async def cells(self, run: str) -> dict[str, Cell]:
        """Make one run; return the cells that it fills."""
        program = self.installed.program
        calls_tools = program.name not in _NO_TOOLS
        if run == "models":
            commands = (program.listing,) if program.listing else program.commands
            outcome, seen = await self._run("", commands, _SECONDS[run])
            return {run: listing(outcome if program.listing else None, seen.notes)}
        if run in _SECONDS:
            outcome, seen = await self._run("loading" if run == "loading" else "", (), _SECONDS[run])
            done = turns(outcome, seen.notes, calls_tools=calls_tools)
            if run == "loading":
                return {run: done}
            return {"starts": started(outcome, seen.notes), "turns": done, "stream": streams(seen.notes)}
        once = tuple(dict.fromkeys(program.commands))  # aider's are three turns
        outcome, seen = await self._run(cast("Fault", run), once, FAULT_SECONDS)
        return {run: fault(run, outcome, seen.notes, must_end=run not in ("503", "cut"))}

    async def _run(
        self, kind: Fault, commands: Sequence[Sequence[str]], seconds: float
    ) -> tuple[Outcome, Scene]:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            folder = Path(name) / "run"
            async with scene(self.head, str(folder / "work"), kind) as here:
                run = Run(self.installed, folder, here.url, seconds, here.first_asked)
                # not in the loop's own threads: the gateway needs those meanwhile
                with ThreadPoolExecutor(1) as pool:
                    loop = asyncio.get_running_loop()
                    outcome = await loop.run_in_executor(pool, run.start, commands)
            (self.folder / f"{self.installed.program.name}-{kind or 'turns'}.txt").write_text(outcome.output)
            return outcome, here


def templates(folder: Path) -> dict[str, Path]:
    """Return the files of the templates that are tried."""
    found = {path.stem: path for path in unpack_templates(folder)}
    field = GGUFReader(smollm2()).fields["tokenizer.chat_template"]
    found["SmolLM2"] = folder / "SmolLM2.jinja"
    found["SmolLM2"].write_bytes(bytes(field.parts[-1]))
    return {name: found[name] for name in TEMPLATES}


def machine() -> dict[str, object]:
    """Return what a reader needs to know of this machine."""
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count()}


def _columns(run: str) -> tuple[str, ...]:
    return SESSION if run == "session" else (run,)


@dataclass(frozen=True)
class Table:
    """The results, in a file that is written after each run. `again`: what it has counts for nothing."""

    path: Path
    results: Results
    again: bool

    @classmethod
    def open(cls, path: Path, *, again: bool) -> "Table":
        """Read what is there already."""
        known = json.loads(path.read_text()) if path.exists() else {"programs": {}}
        return cls(path, {**known, "machine": machine()}, again)

    def _row(self, trial: Trial, template: str) -> dict[str, object]:
        """Return a program's cells by column; none if they are of another version."""
        program, version = trial.installed.program, trial.installed.version
        kept = self.results["programs"].get(program.name)
        if kept is None or kept["version"] != version:
            kept = {"package": program.package, "version": version, "cells": {}}
            self.results["programs"][program.name] = kept
        row: dict[str, object] = kept["cells"].setdefault(template, {})
        return row

    def has(self, trial: Trial, template: str, run: str) -> bool:
        """Return whether all cells of a run are there."""
        row = self._row(trial, template)
        return not self.again and all(column in row for column in _columns(run))

    def add(self, trial: Trial, template: str, cells: dict[str, Cell]) -> None:
        """Keep what a run has shown."""
        row = self._row(trial, template)
        row.update({column: asdict(cell) for column, cell in cells.items()})
        self.results["date"] = time.strftime("%Y-%m-%d", time.gmtime())
        text = json.dumps(self.results, indent=1, ensure_ascii=False)
        self.path.write_text(text + "\n")


def _installed(programs: Path, node: str, names: Sequence[str]) -> Iterator[Installed]:
    """Yield the programs that are there."""
    for program in PROGRAMS:
        one = Installed(program, programs / program.package.rpartition("/")[2], node)
        if one.here.exists() and (not names or program.name in names):
            yield one


async def _work(table: Table, trials: Sequence[Trial], template: str, runs: Sequence[str], jobs: int) -> None:
    """Make the runs that are missing, some at a time: most of a run is waiting."""
    left = iter([(run, trial) for run in runs for trial in trials])

    async def some() -> None:
        for run, trial in left:
            program = trial.installed.program
            if table.has(trial, template, run):
                continue
            cells = await trial.cells(run)
            table.add(trial, template, cells)
            for column, cell in cells.items():
                print(template, program.name, column, cell.passed, cell.seen, flush=True)  # noqa: T201

    await asyncio.gather(*(some() for _ in range(jobs)))


def _try_all(given: argparse.Namespace, folder: Path) -> None:
    table = Table.open(given.results, again=given.again)
    found = list(_installed(given.programs.absolute(), given.node, given.names))
    (folder / "templates").mkdir(exist_ok=True)
    for template, path in templates(folder / "templates").items():
        if given.template and template not in given.template:
            continue
        extra = ("--jinja", "--chat-template-file", str(path))
        with Head(stock().binaries[LLAMA_SERVER], folder, random_model("llama"), [], extra=extra) as head:
            trials = [Trial(one, folder, head) for one in found]
            asyncio.run(_work(table, trials, template, given.run or _RUNS, given.jobs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=Path, required=True, metavar="DIR")
    parser.add_argument("--node", default="/usr/bin/node", help="Node.js 22 or later")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--template", action="append", choices=TEMPLATES)
    parser.add_argument("--run", action="append", choices=_RUNS)
    parser.add_argument("--again", action="store_true", help="try cells again that the results have")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave what the programs printed here")
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    leave_network()
    with tempfile.TemporaryDirectory(prefix="table-") as name:
        _try_all(given, given.keep or Path(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
