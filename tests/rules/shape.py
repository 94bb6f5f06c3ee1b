"""Rules about size and shape: length, docstrings, names, what an interface.py may hold."""

import ast
import re
from collections.abc import Iterator

from tests.rules.source import Fault, Source, dotted, last_part

AIM_FILE_LINES = 350  # a longer file of meshd or native/ says why in its docstring or first comment
MOST_FILE_LINES = 450
_REASON = re.compile(rf"^Over {AIM_FILE_LINES} lines: \S", re.MULTILINE)
MOST_FUNCTION_LINES = 60  # 40 is the aim
_MADE = "Made from "  # by another file, which is the one to read
VAGUE = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "manager", "base_class"})
INTERFACE_BASES = frozenset({"Protocol", "StrEnum", "IntEnum", "Enum"})


def file_length(source: Source) -> Iterator[Fault]:
    """A longer one is two files."""
    lines = source.text.count("\n")
    if lines > MOST_FILE_LINES:
        yield Fault(source.path, lines, "file length", f"{lines} lines, at most {MOST_FILE_LINES}")


def long_for_a_reason(source: Source) -> Iterator[Fault]:
    """A long file says first why it is not two; one that is short again does not; a made one need not."""
    lines = source.text.count("\n")
    given = bool(_REASON.search(source.first_words()))
    made = source.first_words().startswith(_MADE)
    if lines > AIM_FILE_LINES and not given and not made:
        what = f"{lines} lines: divide it, or say first in it `Over {AIM_FILE_LINES} lines: ...` why not"
        yield source.fault(source.tree, "long file", what)
    if given and lines <= AIM_FILE_LINES:
        yield source.fault(source.tree, "long file", f"{lines} lines need no reason")


def function_length(source: Source) -> Iterator[Fault]:
    """A function over 60 lines does more than one thing."""
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MOST_FUNCTION_LINES:
                what = f"`{node.name}` has {lines} lines, at most {MOST_FUNCTION_LINES}"
                yield source.fault(node, "function length", what)


def docstring(source: Source) -> Iterator[Fault]:
    """Each module that holds anything says what it is for."""
    if source.tree.body and not ast.get_docstring(source.tree):
        yield source.fault(source.tree, "docstring", "the module does not say what it is for")


def name_says(source: Source) -> Iterator[Fault]:
    """No file or folder is called after nothing in particular."""
    for part in source.path.removesuffix(".py").split("/"):
        if part in VAGUE:
            yield source.fault(source.tree, "name", f"`{part}` says nothing about what is in it")


def interface_holds(source: Source) -> Iterator[Fault]:
    """An interface.py holds Protocols, frozen slotted dataclasses, enums, exceptions, constants."""
    if not source.path.endswith("/interface.py"):
        return
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield source.fault(node, "interface", f"function `{node.name}`")
        elif isinstance(node, ast.ClassDef) and not _is_value(node):
            what = f"class `{node.name}` is no Protocol, frozen slotted dataclass, enum or exception"
            yield source.fault(node, "interface", what)


def _is_value(node: ast.ClassDef) -> bool:
    bases = {last_part(dotted(base)) for base in node.bases}
    if bases & INTERFACE_BASES or any(base.endswith(("Error", "Exception")) for base in bases):
        return True
    return any(_is_frozen(mark) for mark in node.decorator_list)


def _is_frozen(mark: ast.expr) -> bool:
    if not isinstance(mark, ast.Call) or last_part(dotted(mark.func)) != "dataclass":
        return False
    given = {word.arg for word in mark.keywords if getattr(word.value, "value", None) is True}
    return {"frozen", "slots"} <= given


def no_any(source: Source) -> Iterator[Fault]:
    """`Any` switches the type checker off."""
    for node in source.nodes:
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name == "Any":
            yield source.fault(node, "any", "`Any`: use object, a Protocol or a type variable")
