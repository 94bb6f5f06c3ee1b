"""The sections of a report, each from fields that are listed here or in fields.py. Each may fail alone."""

import asyncio
import os
import platform
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from meshd import __version__
from meshd.admin.api import NetcheckRequest, StatusRequest
from meshd.admin.client import ask
from meshd.admin.plan_api import WhyRequest
from meshd.base.resource_limits import ROOT, memory_limit, out_of_memory_kills, usable_processors
from meshd.base.units import in_bytes, in_memory, in_number, in_time
from meshd.build.pin import read_pin
from meshd.config.load import EffectiveValue, LoadedConfig
from meshd.config.setting import plain
from meshd.config.tree import Paths
from meshd.doctor.examine import examine
from meshd.doctor.programs import look_for_gpus
from meshd.doctor.settings import ReadSettings
from meshd.report.fields import in_line, lines_of
from meshd.report.logs import excerpts
from meshd.wire.versions import WIRE_VERSION

NETCHECK_SECONDS, WHY_SECONDS = 30.0, 60.0
_MOST_FILES = 64
_LLAMA_ARGS = "serve.llama_args"
_PACKAGE = re.compile(r"[A-Za-z0-9._-]+")
_MEMORY = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
_MODEL_NAME = re.compile(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", re.MULTILINE)


def versions() -> Iterator[str]:
    """Yield the versions of meshd, of what it is built on, and of the system."""
    pin = read_pin()
    yield f"meshd: {__version__}, wire protocol {WIRE_VERSION}"
    yield f"llama.cpp: {pin.release}, commit {pin.commit}, meshd's sources {pin.sources_sha256[:12]}"
    yield f"Python: {platform.python_implementation()} {platform.python_version()}"
    yield f"system: {_system()}"
    yield f"kernel: {platform.system()} {platform.release()}, {platform.machine()}"
    yield f"C library: {' '.join(platform.libc_ver()) or 'unknown'}"
    yield f"packages: {', '.join(_packages()) or 'unknown: this meshd was never installed'}"


def _system() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    else:
        try:
            return in_line(platform.freedesktop_os_release().get("PRETTY_NAME", "unknown"))
        except OSError:
            return "unknown"


def _packages() -> Iterator[str]:
    try:
        needed = [line for line in metadata.requires("meshd") or () if "extra ==" not in line]
    except metadata.PackageNotFoundError:
        return
    for line in needed:
        name = found[0] if (found := _PACKAGE.match(line)) is not None else line
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield f"{name} missing"


def machine() -> Iterator[str]:
    """Yield processors, memory, and how short of it programs are."""
    model = _MODEL_NAME.search(_text(ROOT / "proc/cpuinfo"))
    yield f"processor: {in_line(model[1]) if model else platform.processor() or 'unknown'}"
    yield f"processors: {usable_processors()} usable of {os.cpu_count()}"
    for line in _text(ROOT / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name in _MEMORY and (words := value.split()) and words[0].isdigit():
            yield f"{name}: {in_memory(int(words[0]) << 10)}"
    for line in _text(ROOT / "proc/pressure/memory").splitlines():
        yield f"memory pressure: {in_line(line)}"
    if (limit := memory_limit()) is not None:
        yield f"memory limit: {in_memory(limit.limit)}, {in_memory(limit.free)} free"
    if killed := out_of_memory_kills():
        yield f"processes killed because memory ran out: {killed}"
    yield f"load: {' '.join(f'{load:.2f}' for load in os.getloadavg())}"


def gpus() -> Iterator[str]:
    """Yield the GPUs and drivers, as doctor sees them."""
    facts = asyncio.run(look_for_gpus())
    yield f"cards: {facts.cards[True]} of NVIDIA, {facts.cards[False]} of others"
    for is_nvidia, nodes in facts.nodes.items():
        if nodes:
            yield f"device files of {'NVIDIA' if is_nvidia else 'others'}: {', '.join(map(str, nodes))}"
    if facts.closed:
        yield f"this user may not open: {', '.join(map(str, facts.closed))}"
    if facts.module:
        yield f"NVIDIA's driver in the kernel: {in_line(facts.module)}"
    if facts.cuda is None:
        yield "CUDA's driver: none"
    else:
        kinds = ", ".join(map(str, facts.cuda.kinds)) or "none"
        yield f"CUDA's driver: version {facts.cuda.version}, error {facts.cuda.error}, capabilities {kinds}"
    if facts.icds:
        yield f"Vulkan's drivers: {', '.join(path.name for path in facts.icds)}"
    for name, value in (facts.variables or {}).items():
        yield f"{name}: {in_line(value)}"
    yield f"container: {'yes' if facts.in_container else 'no'}; WSL2: {'yes' if facts.in_wsl else 'no'}"


def settings(loaded: LoadedConfig) -> Iterator[str]:
    """Yield the settings that are not at their default, and where each came from."""
    given = [value for value in loaded.values if value.origin != "default"]
    if not given:
        yield "all settings have their defaults"
    for value in given:
        yield f"{value.setting.name} = {in_line(_shown(value))}  ({in_line(value.origin)})"


def _shown(effective: EffectiveValue) -> str:
    """Return a value; of secrets, and of other programs' options, only that there are some."""
    value, setting = effective.value, effective.setting
    if setting.secret:
        return "[hidden]"
    if setting.name == _LLAMA_ARGS and isinstance(value, tuple):
        return " ".join(
            word if word.startswith("-") or _is_number(word) else "…" for word in map(_name_of, value)
        )
    return str(plain(value))


def _name_of(word: str) -> str:
    name, equals, _ = word.partition("=")
    return f"{name}=…" if equals else word


def _is_number(word: str) -> bool:
    return re.fullmatch(r"[0-9.,:]{1,40}", word) is not None


def findings(read: ReadSettings) -> Iterator[str]:
    """Yield what doctor finds."""
    for found in examine(read):
        yield f"{found.state} {found.name}: {in_line(found.what)} [{found.code}]"
        if found.state != "ok":
            yield from (
                f"  {in_line(text)}" for text in (found.meaning, found.hint and f"hint: {found.hint}") if text
            )


def status(home: Path) -> Iterator[str]:
    """Yield the status of the running node. Raises MeshdError."""
    yield from lines_of(ask(home, StatusRequest()))


def network(home: Path) -> Iterator[str]:
    """Yield the last check of the network by the running node. Raises MeshdError."""
    yield from lines_of(ask(home, NetcheckRequest(), seconds=NETCHECK_SECONDS))


def speed(home: Path) -> Iterator[str]:
    """Yield where the time of a token goes. Raises MeshdError."""
    yield from lines_of(ask(home, WhyRequest(), seconds=WHY_SECONDS))


def disks(paths: Paths, now: float) -> Iterator[str]:
    """Yield the space of home and cache, and the files of the home: names, sizes and modes, no content."""
    for name, folder in (("home", paths.home), ("cache", paths.cache)):
        yield f"{name}: {in_line(str(folder))}"
        try:
            place = next(path for path in (folder, *folder.parents) if path.exists())
            usage = shutil.disk_usage(place)
            yield f"  {in_bytes(usage.free)} of {in_bytes(usage.total)} free"
            yield from (f"  {line}" for line in _listed(folder, now))
        except OSError as error:
            yield f"  cannot be read: {(error.strerror or type(error).__name__).lower()}"


def _listed(folder: Path, now: float) -> Iterator[str]:
    if not folder.is_dir():
        yield "does not exist"
        return
    found = sorted(folder.iterdir())
    for path in found[:_MOST_FILES]:
        about = path.lstat()
        size = "directory" if stat.S_ISDIR(about.st_mode) else in_bytes(about.st_size)
        age = in_time(max(0.0, now - about.st_mtime))
        yield f"{in_line(path.name, 80)}: {size}, mode {stat.S_IMODE(about.st_mode):04o}, {age} old"
    if len(found) > _MOST_FILES:
        yield f"and {len(found) - _MOST_FILES} more"


def logs(folder: Path) -> Iterator[str]:
    """Yield the last lines of the logs. Raises OSError."""
    for excerpt in excerpts(folder):
        count = f"{in_number(len(excerpt.lines), 'line')} shown, {excerpt.left_out} left out"
        yield f"{in_line(excerpt.name, 80)}.log: {in_bytes(excerpt.size)}; {count}"
        yield from (f"  {line}" for line in excerpt.lines)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(64 << 10).decode(errors="replace")
    except OSError:
        return ""


def bounded(lines: Iterable[str], most: int) -> Iterator[str]:
    """Yield lines until they have so many bytes, then say that more were left out."""
    room, left_out = most, 0
    for line in lines:
        room -= len(line.encode(errors="replace")) + 1
        if room >= 0 and not left_out:
            yield line
        else:
            left_out += 1
    if left_out:
        yield f"and {in_number(left_out, 'more line')}, left out for their size"
