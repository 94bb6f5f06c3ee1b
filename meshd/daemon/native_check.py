"""Check the native programs by what they report: their llama.cpp and their protocol.

Our module and a llama-server must be of the same release: ggml's interface is compiled into both and has no
version. docs/decisions/0039 says what each program can report, and what follows.
"""

import asyncio
import json
import os
import re
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.tasks import Owner, first_error
from meshd.build.interface import MESH_MODULE, MESH_PROGRAM
from meshd.build.pin import Pin
from meshd.devices.command_lines import mesh_trial_environment
from meshd.devices.device_trial import TrialCache, trial_key
from meshd.devices.devices import missing_library
from meshd.devices.interface import NativeBuild
from meshd.process.handover import ReportPipe
from meshd.process.interface import SHOWN_LINES, ChildSpec
from meshd.process.run import run_to_end
from meshd.rpc.mesh_protocol import VERSION
from meshd.wire.versions import UNKNOWN

LOG = log.get("daemon")
MESH_BUILD = "remove it, or omit --native-bin; then run `meshd native build`"
SAY_SECONDS = 60.0  # a GPU takes seconds for its first device
_HOST = "host "  # a line of the module's report: the ggml of the program that loaded it
_SAID = re.compile(r"version: (\S+) \((?:build \d+, commit )?(\S+)\)")
_LIBRARIES = re.compile(rb"lib(?:ggml|llama|mtmd)[\w.-]*?\.(?:so|dylib)(?:\.\d+)*")
_NAMES_WITHIN = 8 << 20  # bytes: linkers write the names of libraries first
_BINARIES = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")  # ELF, Mach-O, Mach-O of several machines
_SEARCHED_FIRST = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "GGML_BACKEND_PATH")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True)
class LlamaVersion:
    """The version that `llama-server --version` prints; `commit` is UNKNOWN for a build without git."""

    release: str
    commit: str

    def __str__(self) -> str:
        return f"{self.release} (commit {self.commit})"

    def fits(self, pin: Pin) -> bool:
        """Compare the commit with the pin's, or the release if the commit is unknown."""
        if self.commit != UNKNOWN:
            return pin.commit.startswith(self.commit)
        return self.release.removesuffix("-dev") == pin.release


def parse_version(lines: Sequence[str]) -> LlamaVersion | None:
    """Find the line `version: 0.5.0 (build 1, commit 0c1e570)`, or `version: 8123 (0c1e570)` if older."""
    for line in lines:
        if found := _SAID.match(line):
            commit = found[2] if _COMMIT.fullmatch(found[2]) else UNKNOWN
            return LlamaVersion(found[1], commit)
    return None


async def check_native_once(
    native: NativeBuild, *, pin: Pin, logs: Path, head: bool, passed: TrialCache, machine: str
) -> NativeBuild:
    """Check as `check_native` does, but skip unchanged files that passed before.

    `machine` changes with a restart of the machine, after which all are checked again.
    """
    key = _checked_key(native, pin, head=head, machine=machine)
    good = replace(native, version=replace(native.version, pin=pin.commit))
    if key and passed.use(key):
        return good
    checked = await check_native(native, pin=pin, logs=logs, head=head)
    # A llama-server without a known commit causes a warning at each start.
    if key and checked == good and key == _checked_key(native, pin, head=head, machine=machine):
        passed.add(key)
    return checked


def _checked_key(native: NativeBuild, pin: Pin, *, head: bool, machine: str) -> str:
    """Return a key for everything that decides the result of a check; empty if that is unknown."""
    if any(os.environ.get(name) for name in _SEARCHED_FIRST):
        return ""
    programs = (native.mesh_server, *((native.module, native.llama_server) if head else ()))
    parts = ["native check 1", pin.commit, pin.release, pin.version, str(VERSION), str(head), machine]
    try:
        for program in programs:
            files = _files_of(program)
            if files is None:
                return ""
            for file in files:
                stat = file.stat()
                parts += [str(file), f"{stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"]
                parts.append(str(stat.st_ctime_ns))
    except OSError:
        return ""
    return trial_key(parts)


def _files_of(program: Path) -> list[Path] | None:
    """Return this program and the libraries of llama.cpp that it loads.

    None if a library is neither beside it nor in `../lib`, and for a script, which may start anything: then
    another program could run although none of the files has changed. Raises OSError.
    """
    folder = program.resolve().parent
    found: list[Path] = []
    left = [program]
    while left:
        file = left.pop()
        found.append(file)
        with file.open("rb") as opened:
            head = opened.read(_NAMES_WITHIN)
        if not head.startswith(_BINARIES):
            return None
        for name in sorted({match.decode() for match in _LIBRARIES.findall(head)} - {MESH_MODULE}):
            places = (folder / name, folder.parent / "lib" / name)
            library = next((place for place in places if place.exists()), None)
            if library is None:
                return None
            if library not in (*found, *left):
                left.append(library)
    return [*found, *sorted(file for file in folder.glob("libggml*") if file not in found)]  # loaded by name


async def check_native(native: NativeBuild, *, pin: Pin, logs: Path, head: bool) -> NativeBuild:
    """Return `native` with the version that its programs report. `head`: check llama-server and module too.

    All run at once. Raises UserError that names the faulty program and what to do.
    """
    try:
        # All checks run at once.
        async with Owner() as owner:
            ours = _check_ours(native.mesh_server, (), pin, logs / "native-check.log")
            asked = [owner.start(_answer(ours), name="mesh-server check")]
            if head:
                more: tuple[Coroutine[object, object, LlamaVersion | None], ...] = (
                    _check_ours(native.mesh_server, (native.module,), pin, logs / "module-check.log"),
                    _version_of(native.llama_server, pin, logs / "llama-check.log"),
                    _load_module(native.llama_server, native.module, pin, logs / "llama-module-check.log"),
                )
                asked += [owner.start(_answer(check), name="native check") for check in more]
            # In this order: of several faults the first is the cause.
            answers = [_or_raise(await check) for check in asked]
    except ExceptionGroup as group:
        raise first_error(group) from None
    version = next((answer for answer in answers if answer is not None), None)
    if version is None:
        return replace(native, version=replace(native.version, pin=pin.commit))
    known = native.version.pin if version.commit == UNKNOWN else pin.commit
    if known == UNKNOWN:
        LOG.warning("llama_server_commit_unknown", path=str(native.llama_server), what=str(version))
    return replace(native, version=replace(native.version, pin=known))


async def _answer(check: Coroutine[object, object, LlamaVersion | None]) -> LlamaVersion | UserError | None:
    """Return the result of a check, or its error."""
    try:
        return await check
    except UserError as error:
        return error


def _or_raise(answer: LlamaVersion | UserError | None) -> LlamaVersion | None:
    if isinstance(answer, UserError):
        raise answer
    return answer


async def _check_ours(server: Path, module: Sequence[Path], pin: Pin, log_file: Path) -> None:
    """Check what mesh-server reports about itself, or about the module. Raises UserError."""
    what = module[0] if module else server
    lines = await _said(server, ("--describe", *map(str, module)), log_file)
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


async def _version_of(program: Path, pin: Pin, log_file: Path) -> LlamaVersion:
    lines = await _said(program, ("--version",), log_file)
    version = parse_version(lines)
    if version is None or not version.fits(pin):
        what = f"is llama.cpp {version}" if version else f"does not say which llama.cpp it is: {_last(lines)}"
        raise UserError(
            f"`{program}` {what}; meshd's module is for {pin.release} (commit {pin.commit[:9]})",
            hint=_other_release(pin),
        )
    return version


async def _load_module(program: Path, module: Path, pin: Pin, log_file: Path) -> None:
    """Check that a llama-server loads the module and, if that is known, has its ggml. Raises UserError."""
    with ReportPipe() as report:
        environment = mesh_trial_environment(module=str(module), report=report.child_end)
        lines = await _said(
            program, ("--list-devices",), log_file, env=environment, hand_over=(report.child_end,)
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
    log_file: Path,
    *,
    env: Mapping[str, str] | None = None,
    hand_over: tuple[int, ...] = (),
) -> list[str]:
    """Run a program to its end; return the lines that it prints. Raises UserError if it fails."""
    lines: list[str] = []
    spec = ChildSpec(
        name=f"{program.name} check",
        argv=(str(program), *words),
        log=log_file,
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
        hint = missing_library(lines) or MESH_BUILD
        raise UserError(f"`{program} {' '.join(words)}` failed ({end}): {_last(lines)}", hint=hint)
    return lines


def _described(lines: Sequence[str]) -> Mapping[str, object]:
    try:
        found = json.loads("".join(lines))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _last(lines: Sequence[str]) -> str:
    return " | ".join(line.strip()[:100] for line in lines[-SHOWN_LINES:]) or "it says nothing"
