"""A source file, parsed where it is Python, and what the rules report about it."""

import ast
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
CPP = frozenset({".cpp", ".h"})


@dataclass(frozen=True, slots=True)
class Fault:
    """One breach: where, which rule, and what was found."""

    path: str
    line: int
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.what}"


@dataclass(frozen=True, slots=True)
class Source:
    """One file; `path` is relative to the project, with slashes."""

    path: str
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]  # of the tree; walked once, read by every rule

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))

    @classmethod
    def of(cls, path: str, text: str) -> Self:
        tree = ast.parse(text if path.endswith(".py") else "")  # C++ is known by its lines alone
        return cls(path, text, tree, tuple(ast.walk(tree)))

    def first_words(self) -> str:
        """Return what the file says of itself: its docstring, or its first comment."""
        if self.path.endswith(".py"):
            return ast.get_docstring(self.tree) or ""
        comment = itertools.takewhile(lambda line: line.startswith("//"), self.text.splitlines())
        return "\n".join(line.removeprefix("//").strip() for line in comment)

    def fault(self, node: ast.AST, rule: str, what: str) -> Fault:
        return Fault(self.path, getattr(node, "lineno", 1), rule, what)

    def calls(self) -> Iterator[tuple[ast.Call, str]]:
        """Each call with the dotted name of what is called (only its end where that is an expression)."""
        for node in self.nodes:
            if isinstance(node, ast.Call):
                yield node, dotted(node.func)


Rule = Callable[[Source], Iterator[Fault]]


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute; `.c` when what stands before it is no name; else empty."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Subscript):
        return dotted(node.value)
    return ""


def last_part(name: str) -> str:
    return name.rpartition(".")[2]


@functools.cache
def sources(folder: str) -> tuple[Source, ...]:
    """All Python files below `folder` of the project."""
    return tuple(Source.read(path) for path in sorted((ROOT / folder).rglob("*.py")))


@functools.cache
def native_sources() -> tuple[Source, ...]:
    """The C++ that is ours."""
    found = sorted((ROOT / "native").rglob("*"))
    return tuple(Source.read(path) for path in found if path.suffix in CPP)
