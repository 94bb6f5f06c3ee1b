"""What the native programs are, by their own word: of which llama.cpp, of which protocol.

Our module and a llama-server must be of one release: ggml's interface is compiled into both, and nothing in
it tells them apart. What each of them can say, and what is made of it: docs/decisions/0039.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.base import log
from meshd.base.errors import UserError
from meshd.build.interface import MESH_MODULE, MESH_PROGRAM
from meshd.build.pin import Pin
from meshd.process.handover import ReportPipe
from meshd.process.interface import SHOWN_LINES, ChildSpec
from meshd.process.run import run_to_end
from meshd.role.interface import NativeBuild
from meshd.role.native.command_lines import mesh_trial_environment
from meshd.rpc.mesh_protocol import VERSION
from meshd.wire.native import UNKNOWN

LOG = log.get("daemon")
MESH_BUILD = "remove it, or omit --native-bin; then run `meshd native build`"
SAY_SECONDS = 60.0  # a GPU takes seconds for its first device
_HOST = "host "  # a line of the module's report: the ggml of the program that loaded it
_SAID = re.compile(r"version: (\S+) \((?:build \d+, commit )?(\S+)\)")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True)
class LlamaVersion:
    """What `llama-server --version` says; `commit` is UNKNOWN for a build without git."""

    release: str
    commit: str

    def __str__(self) -> str:
        return f"{self.release} (commit {self.commit})"

    def fits(self, pin: Pin) -> bool:
        """A commit tells; without one, a release is all there is."""
        if self.commit != UNKNOWN:
            return pin.commit.startswith(self.commit)
        return self.release.removesuffix("-dev") == pin.release


def parse_version(lines: Sequence[str]) -> LlamaVersion | None:
    """The line `version: 0.5.0 (build 1, commit 0c1e570)`, or `version: 8123 (0c1e570)` of older ones."""
    for line in lines:
        if found := _SAID.match(line):
            commit = found[2] if _COMMIT.fullmatch(found[2]) else UNKNOWN
            return LlamaVersion(found[1], commit)
    return None


async def check_native(native: NativeBuild, *, pin: Pin, logs: Path, head: bool) -> NativeBuild:
    """`native` with what its programs say they are; `head`: llama-server and module, else mesh-server.

    Raises UserError that says what is wrong with which of them, and what to do.
    """
    await _check_ours(native.mesh_server, (), pin, logs)
    if not head:
        return replace(native, version=replace(native.version, pin=pin.commit))
    await _check_ours(native.mesh_server, (native.module,), pin, logs)
    version = await _version_of(native.llama_server, pin, logs)
    await _load_module(native.llama_server, native.module, pin, logs)
    known = native.version.pin if version.commit == UNKNOWN else pin.commit
    if known == UNKNOWN:
        LOG.warning("llama_server_commit_unknown", path=str(native.llama_server), what=str(version))
    return replace(native, version=replace(native.version, pin=known))


async def _check_ours(server: Path, module: Sequence[Path], pin: Pin, logs: Path) -> None:
    """What mesh-server says of itself, or of the module."""
    what = module[0] if module else server
    lines = await _said(server, ("--describe", *map(str, module)), logs)
    described = _described(lines)
    if described.get("protocol") != VERSION:
        raise UserError(
            f"`{what}` does not speak version {VERSION} of the mesh protocol: {_last(lines)}", hint=MESH_BUILD
        )
    if described.get("ggml") != pin.version:
        raise UserError(
            f"`{what}` was made for ggml {described.get('ggml')}, this meshd is for {pin.version}",
            hint=f"make {MESH_PROGRAM} and {MESH_MODULE} from llama.cpp {pin.commit[:9]}, or {MESH_BUILD}",
        )


async def _version_of(program: Path, pin: Pin, logs: Path) -> LlamaVersion:
    lines = await _said(program, ("--version",), logs)
    version = parse_version(lines)
    if version is None or not version.fits(pin):
        what = f"is llama.cpp {version}" if version else f"does not say which llama.cpp it is: {_last(lines)}"
        raise UserError(
            f"`{program}` {what}; meshd's module is for {pin.release} (commit {pin.commit[:9]})",
            hint=_other_release(pin),
        )
    return version


async def _load_module(program: Path, module: Path, pin: Pin, logs: Path) -> None:
    """It must load the module, and have its ggml where that can be seen."""
    with ReportPipe() as report:
        environment = mesh_trial_environment(module=str(module), report=report.child_end)
        lines = await _said(
            program, ("--list-devices",), logs, env=environment, hand_over=(report.child_end,)
        )
        reported = [line async for line in report]
    hosts = [line.removeprefix(_HOST) for line in reported if line.startswith(_HOST)]
    if not hosts:
        raise UserError(
            f"`{program}` does not load meshd's module `{module}`: {_last(lines)}",
            hint="build it for this system, with dynamic loading; or omit --native-bin",
        )
    if hosts[0] not in (UNKNOWN, pin.version):
        raise UserError(
            f"`{program}` has ggml {hosts[0]}, meshd's module is for {pin.version}", hint=_other_release(pin)
        )


def _other_release(pin: Pin) -> str:
    ours = "omit --native-bin and run `meshd native build`"
    return f"build llama.cpp at commit {pin.commit[:9]}, or {ours}"


async def _said(
    program: Path,
    words: Sequence[str],
    logs: Path,
    *,
    env: Mapping[str, str] | None = None,
    hand_over: tuple[int, ...] = (),
) -> list[str]:
    """What it prints until it ends. Raises UserError if it cannot be started, or fails."""
    lines: list[str] = []
    spec = ChildSpec(
        name=f"{program.name} check",
        argv=(str(program), *words),
        log=logs / "native-check.log",
        on_line=lines.append,
        env=env or {},
        hand_over=hand_over,
    )
    try:
        async with asyncio.timeout(SAY_SECONDS):
            ended = await run_to_end(spec)
    except TimeoutError:
        what = f"`{program} {' '.join(words)}` did not end within {SAY_SECONDS:.0f} s: {_last(lines)}"
        raise UserError(what, hint=MESH_BUILD) from None
    if ended.code != 0:
        end = f"exit code {ended.code}" if ended.signal is None else f"signal {ended.signal}"
        raise UserError(f"`{program} {' '.join(words)}` failed ({end}): {_last(lines)}", hint=MESH_BUILD)
    return lines


def _described(lines: Sequence[str]) -> Mapping[str, object]:
    try:
        found = json.loads("".join(lines))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _last(lines: Sequence[str]) -> str:
    return " | ".join(line.strip()[:100] for line in lines[-SHOWN_LINES:]) or "it says nothing"
