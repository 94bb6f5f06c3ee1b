"""The list of docs/logging.md: what warnings and errors mean, and how events are logged."""

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from meshd.process.interface import ChildState

from tests.reference.log_events import EVENTS
from tests.rules.source import Source, dotted, sources
from tests.unit.admin.codes import warning_codes

LEVELS = ("debug", "info", "warning", "error")
SERIOUS = frozenset({"warning", "error"})
LOGGERS = ("log", "logger")
_OF_CHILDREN = frozenset(
    f"child_{state}" for state in ChildState if state not in (ChildState.FAILED, ChildState.STOPPED)
)
ADDED = frozenset({"area", "left_out"})  # by base/log.py, to any line


@dataclass
class Logged:
    """The log calls of an event, all together."""

    levels: set[str] = field(default_factory=set)
    fields: dict[str, None] = field(default_factory=dict)
    places: list[str] = field(default_factory=list)


def events() -> str:
    """Return the meanings of events that may be warnings or errors, except warnings of `meshd status`.

    Events with one meaning share a line.
    """
    found, codes = logged(), warning_codes()
    serious = [name for name in EVENTS if found[name].levels & SERIOUS and name not in _OF_CHILDREN]
    explained = ", ".join(f"`{name}`" for name in serious if name in codes)
    alike: dict[str, list[str]] = defaultdict(list)
    for name in serious:
        if name not in codes:
            alike[EVENTS[name]].append(f"`{name}`")
    lines = [f"- {', '.join(names)}: {meaning}" for meaning, names in alike.items()]
    return "\n".join([f"- [as in `meshd status`](errors.md#warnings-of-meshd-status): {explained}", *lines])


@functools.cache
def logged() -> Mapping[str, Logged]:
    """All that the package logs, by event. An event that is no fixed phrase stands as its source."""
    found: dict[str, Logged] = defaultdict(Logged)
    for source in sources("meshd"):
        for call, levels in calls(source):
            for event in phrases(call.args[0]):
                found[event].levels |= levels
                found[event].fields.update({word.arg or "**": None for word in call.keywords})
                found[event].places.append(f"{source.path}:{call.lineno}")
    return dict(found)


def calls(source: Source) -> Iterator[tuple[ast.Call, set[str]]]:
    """Calls that log, and the levels at which they may; `say` is one that was chosen in the lines before."""
    chosen: set[str] = set()
    for node in source.nodes:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "say":
            chosen |= {level for one in ast.walk(node.value) if (level := _level(one))}
    for node in source.nodes:
        if isinstance(node, ast.Call) and node.args:
            if level := _level(node.func):
                yield node, {level}
            elif chosen and dotted(node.func) == "say":
                yield node, chosen


def _level(node: ast.AST) -> str:
    """Return the level of `LOG.info`, `self._log.info` or `get("log").info`; empty for anything else."""
    if not isinstance(node, ast.Attribute) or node.attr not in LEVELS:
        return ""
    owner = node.value
    name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
    is_made = isinstance(owner, ast.Call) and dotted(owner.func) in ("get", "log.get")
    return node.attr if is_made or name.lower().strip("_") in LOGGERS else ""


def phrases(event: ast.expr) -> list[str]:
    if isinstance(event, ast.Constant) and isinstance(event.value, str):
        return [event.value]
    if ast.unparse(event) == "f'child_{status.state}'":
        return [f"child_{state}" for state in ChildState if state is not ChildState.STOPPED]
    return [ast.unparse(event)]
