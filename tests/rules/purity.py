"""Which modules are pure: those that say so, in one way.

The last word of the first paragraph of a module's docstring is `Pure.`; in the `__init__.py` of a package it
speaks for the whole package, and its modules do not repeat it. The import contract in pyproject.toml is made
of this: `make reference`.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator

from tests.rules.source import ROOT, Fault, Source, sources

WORD = "Pure."
CONTRACT = "Pure code touches no clock, socket, loop, file, log or chance"
_OTHERWISE = re.compile(r"(?i)\bpure(\W*$|[.:;])")  # it claims to be pure, and not where it counts
_LIST = re.compile(
    rf'(name = "{CONTRACT}"\n[^[]*source_modules = \[\n)(.*?)(^\]\n)', re.DOTALL | re.MULTILINE
)
_LISTED = re.compile(r"meshd(\.\w+)+")


def says_pure(source: Source) -> bool:
    """Does this file's own docstring say the word where it counts?"""
    return _first_paragraph(source).endswith((f" {WORD}", f"\n{WORD}"))


def pure_modules(found_in: Iterable[Source]) -> list[str]:
    """Import names of pure packages, and of pure modules outside of them."""
    saying = {source.path for source in found_in if says_pure(source)}
    packages = tuple(path.removesuffix("__init__.py") for path in saying if path.endswith("/__init__.py"))
    alone = {path for path in saying if not path.startswith(packages)} if packages else saying
    names = [*packages, *(path.removesuffix(".py") for path in alone)]
    return sorted(name.strip("/").replace("/", ".") for name in names)


def is_pure(source: Source) -> bool:
    """Return True if it is pure by its own word, or by that of a package that it is in."""
    return says_pure(source) or source.path.startswith(_pure_folders())


def purity_word(source: Source) -> Iterator[Fault]:
    """One way to say it: everything that is made of the word would miss another."""
    inside = source.path.startswith(_pure_folders()) and not source.path.endswith("/__init__.py")
    if says_pure(source):
        if inside:
            yield source.fault(source.tree, "purity", f"its package says `{WORD}` for it")
        return
    if _OTHERWISE.search(_first_paragraph(source)) or f" {WORD}" in _docstring(source):
        what = f"`{WORD}` is the last word of the first paragraph, or nothing is said"
        yield source.fault(source.tree, "purity", what)


def forbidden_modules() -> frozenset[str]:
    """Return what pure code does not import: the contract's own list."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (one for one in contracts["tool"]["importlinter"]["contracts"] if one["name"] == CONTRACT)
    return frozenset(contract["forbidden_modules"])


def listed(pyproject: str) -> list[str]:
    """Modules that the contract names, in its order."""
    found = _LIST.search(pyproject)
    assert found is not None, "the contract is gone"
    return [name.group() for name in _LISTED.finditer(found.group(2))]


def written(pyproject: str, names: Iterable[str]) -> str:
    """The same file with `names` in the contract."""
    lines = "".join(f'    "{name}",\n' for name in names)
    return _LIST.sub(lambda found: found.group(1) + lines + found.group(3), pyproject)


def _pure_folders() -> tuple[str, ...]:
    inits = (source for source in sources("meshd") if source.path.endswith("/__init__.py"))
    return tuple(source.path.removesuffix("__init__.py") for source in inits if says_pure(source))


def _docstring(source: Source) -> str:
    return ast.get_docstring(source.tree) or ""


def _first_paragraph(source: Source) -> str:
    return _docstring(source).partition("\n\n")[0]
