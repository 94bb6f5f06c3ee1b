"""Rules about size and shape: length, docstrings, names, what an interface.py may hold."""

import ast
from collections.abc import Iterator

from tests.rules.source import Fault, Source, dotted, last_part

MOST_FILE_LINES = 700  # of one concept; shorter is no aim: each further file is one more to open
MOST_FUNCTION_LINES = 60  # 40 is the aim
VAGUE = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "manager", "base_class"})
# A docstring that begins so is a fragment: it leaves out who does what.
FRAGMENTS = frozenset({"What", "Of", "Whether", "How", "By", "That", "Those", "See"})
# A name that is a pronoun or a verb in the past says nothing of what it holds.
PRONOUNS = frozenset({"it", "one", "told", "said", "whom", "them"})
INTERFACE_BASES = frozenset({"Protocol", "StrEnum", "IntEnum", "Enum"})


def file_length(source: Source) -> Iterator[Fault]:
    """Report a file that is too long for one concept."""
    lines = source.text.count("\n")
    if lines > MOST_FILE_LINES:
        yield Fault(source.path, lines, "file length", f"{lines} lines, at most {MOST_FILE_LINES}")


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


def docstring_begins(source: Source) -> Iterator[Fault]:
    """Report docstrings that begin with a word of FRAGMENTS instead of a verb or a noun."""
    for node in source.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = (ast.get_docstring(node) or "").split(maxsplit=1)
            if words and (first := words[0].strip(".,:;")) in FRAGMENTS:
                yield source.fault(node, "docstring", f"it begins with `{first}`: begin with a verb")


def name_says(source: Source) -> Iterator[Fault]:
    """No file or folder is called after nothing in particular."""
    for part in source.path.removesuffix(".py").split("/"):
        if part in VAGUE:
            yield source.fault(source.tree, "name", f"`{part}` says nothing about what is in it")


def names_hold(source: Source) -> Iterator[Fault]:
    """Report variables, parameters, attributes and functions that are named by a word of PRONOUNS."""
    for node in source.nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case _:
                continue
        if name.strip("_") in PRONOUNS:
            yield source.fault(node, "name", f"`{name}` does not say what it holds")


def interface_holds(source: Source) -> Iterator[Fault]:
    """An interface.py holds Protocols, frozen slotted dataclasses, enums, exceptions, constants."""
    if not source.path.endswith("/interface.py"):
        return
    values: set[str] = set()  # an exception may have one of its own file as base
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield source.fault(node, "interface", f"function `{node.name}`")
        elif isinstance(node, ast.ClassDef) and (_is_value(node) or values & _bases(node)):
            values.add(node.name)
        elif isinstance(node, ast.ClassDef):
            what = f"class `{node.name}` is no Protocol, frozen slotted dataclass, enum or exception"
            yield source.fault(node, "interface", what)


def _is_value(node: ast.ClassDef) -> bool:
    bases = _bases(node)
    if bases & INTERFACE_BASES or any(base.endswith(("Error", "Exception")) for base in bases):
        return True
    return any(_is_frozen(mark) for mark in node.decorator_list)


def _bases(node: ast.ClassDef) -> set[str]:
    return {last_part(dotted(base)) for base in node.bases}


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
