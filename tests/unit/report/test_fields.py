"""The fields of replies: each is shown or left out on purpose, and texts of others stay in their line."""

import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace

import pytest
from meshd.admin.api import NetcheckReply
from meshd.admin.plan_api import WhyReply
from meshd.admin.status import Status
from meshd.report.fields import LEFT_OUT, MOST_CHARS, MOST_ITEMS, SHOWN, in_line, lines_of

from tests.process.cli_daemon import EVIL
from tests.unit.admin.fake import NETCHECK, PEER, full_status
from tests.unit.admin.why_replies import why_reply


def _below(kind: object) -> Iterator[type]:
    """Yield the dataclasses in an annotation, and in their fields."""
    if isinstance(kind, type) and is_dataclass(kind):
        yield kind
        for hint in typing.get_type_hints(kind).values():
            yield from _below(hint)
    for argument in typing.get_args(kind):
        yield from _below(argument)


REACHED = {kind for reply in (Status, NetcheckReply, WhyReply) for kind in _below(reply)}


def test_each_kind_of_value_is_listed_and_no_other() -> None:
    hidden = {kind for kind in REACHED if kind not in SHOWN}
    assert {kind.__name__ for kind in hidden} == {"KeyStatus"}
    assert SHOWN.keys() <= REACHED


@pytest.mark.parametrize("kind", SHOWN, ids=lambda kind: kind.__name__)
def test_each_field_is_shown_or_left_out(kind: type) -> None:
    shown, hidden = SHOWN[kind].split(), LEFT_OUT.get(kind, "").split()
    assert sorted([*shown, *hidden]) == sorted(field.name for field in fields(kind))


@pytest.mark.parametrize("value", [full_status(), NETCHECK, why_reply()], ids=["status", "network", "why"])
def test_values_are_written_as_lines(value: object) -> None:
    lines = list(lines_of(value))
    assert len(lines) > 10 and all(line.isprintable() for line in lines)


def test_what_is_shown_of_a_status() -> None:
    text = "\n".join(lines_of(full_status()))
    for words in (
        "node:\n  id: nnnn",
        "  - id: qqqq",
        "    link:\n      kind: tcp\n",
        "rtt_ms: 1.234",
        "ready: yes",
    ):
        assert words in text
    assert "anna" not in text, "the name of an API key"


def test_a_hostile_name_stays_in_its_line() -> None:
    hostile = replace(PEER, name=EVIL, last_error="\n== status ==\nnode: mine\r\u2028x", version="v" * 10_000)
    lines = list(lines_of(replace(full_status(), peers=(hostile,) * 1000)))
    assert all(line.isprintable() for line in lines)
    assert sum("more characters" in line for line in lines) == MOST_ITEMS
    assert "  and 936 more" in lines
    assert max(map(len, lines)) < 4 * MOST_CHARS


def test_no_surrogate_is_left() -> None:
    assert in_line("a\udc80b\x1b[2J") == "a\\udc80b\\x1b[2J"
