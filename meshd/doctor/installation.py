"""Check this installation: that it is the only one, that its Python libraries fit, and where it can write."""

import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from meshd.doctor.kinds import Finding, Kind

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*([^;]*)")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>|~=)\s*([0-9]+(?:\.[0-9]+)*)")


def check_installation() -> Iterator[Finding]:
    """Report another installation in PATH, libraries that are missing or of an unfit version."""
    yield from _other_installation()
    for line in _requirements():
        if (found := _check_requirement(line)) is not None:
            yield found
    try:
        tempfile.gettempdir()
    except OSError:
        yield Kind.TEMPORARY_UNWRITABLE.found()


def _other_installation() -> Iterator[Finding]:
    """Report that `meshd` in PATH is another installation than this one."""
    folders = (sysconfig.get_path("scripts"), str(Path(sys.executable).parent))
    ours = [path for folder in folders if (path := Path(folder) / "meshd").is_file()]
    there = shutil.which("meshd")
    if ours and there and Path(there).resolve() not in [path.resolve() for path in ours]:
        yield Kind.TWO_INSTALLATIONS.found(ours=ours[0], other=there)


def _requirements() -> list[str]:
    """Return what this meshd needs, without its extras; nothing for a checkout that was never installed."""
    try:
        return [line for line in metadata.requires("meshd") or () if "extra ==" not in line]
    except metadata.PackageNotFoundError:
        return []


def _check_requirement(line: str) -> Finding | None:
    named = _REQUIREMENT.match(line)
    if named is None:
        return None
    library, needed = named[1], named[2].strip()
    try:
        installed = metadata.version(library)
    except metadata.PackageNotFoundError:
        return Kind.LIBRARY_MISSING.found(library=library)
    if all(_keeps(installed, relation, bound) for relation, bound in _BOUND.findall(needed)):
        return None
    return Kind.LIBRARY_UNFIT.found(library=library, installed=installed, needed=needed)


def _keeps(installed: str, relation: str, bound: str) -> bool:
    """Compare the numbers of two versions; other relations than bounds count as kept."""
    here, there = _numbers(installed), _numbers(bound)
    length = max(len(here), len(there))
    here, there = (numbers + (0,) * (length - len(numbers)) for numbers in (here, there))
    return {">=": here >= there, "<": here < there, "<=": here <= there, ">": here > there}.get(
        relation, True
    )


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found is not None else ()
