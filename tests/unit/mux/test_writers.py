"""Each table of a session has one writer: its own methods."""

import ast
from collections.abc import Iterator

import pytest

from tests.rules.source import Source, dotted, sources

TABLES = ("streams", "sending", "acks", "links")  # as State and its parts call them
CHANGES = frozenset("add append clear discard extend pop popitem remove setdefault update".split())  # noqa: SIM905


def foreign_writes(source: Source) -> Iterator[str]:
    """Return what is stored in an attribute of a table, or changed in it, by anybody but the table."""
    for node in source.nodes:
        written = ""
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            written = dotted(node)
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES
        ):
            written = dotted(node.func.value)
        parts = [part.lstrip("_") for part in written.split(".")]
        if any(part in TABLES for part in parts[:-1]):
            yield f"{source.path}:{getattr(node, 'lineno', 0)}: {written}"


def test_a_table_is_written_by_itself() -> None:
    found = [written for source in sources("meshd/mux") for written in foreign_writes(source)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "self._sending.sent += 1",
        "state.links.data_link = None",
        "acks.due[1] = None",
        "del self._streams.opens_due[1]",
        "self._sending.blocked.pop(1)",
        "state.sending.schedule.remove(1, 2)",
    ],
)
def test_a_foreign_write_is_found(text: str) -> None:
    assert list(foreign_writes(Source.of("meshd/mux/x.py", text)))


@pytest.mark.parametrize(
    "text", ["self.links.remove(1, 2)", "self._streams = state.streams", "self.due.clear()"]
)
def test_what_a_table_offers_may_be_called(text: str) -> None:
    assert not list(foreign_writes(Source.of("meshd/mux/x.py", text)))
