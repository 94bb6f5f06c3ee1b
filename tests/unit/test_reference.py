"""Reference pages are what the code says now, and the code says something of all that is in them."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.base.log import SECRET_FIELDS
from meshd.base.log_events import EVENTS, FIELDS
from meshd.cli.main import VERBS
from meshd.config.forms import BOOLEAN, PATH, whole
from meshd.config.key import Key
from meshd.config.keys import KEYS
from meshd.config.shown import default_of

from tests.reference import __main__ as command
from tests.reference import logs, settings, status_json, synopses
from tests.reference.marks import table, with_parts
from tests.reference.pages import PAGES
from tests.rules.source import ROOT, Source


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert PAGES[name](text) == text, "run `make reference`"


def test_stale_pages_are_named_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.md").write_text("old")
    (tmp_path / "new.md").write_text("new")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "PAGES", dict.fromkeys(("old.md", "new.md"), lambda page: "new"))
    assert command.main([]) == 1
    assert (tmp_path / "old.md").read_text() == "old"
    assert command.main(["--write"]) == 0 == command.main([])
    assert capsys.readouterr().out == "not up to date: old.md\nwritten: old.md\n"


def test_a_page_without_marks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.md").write_text("no marks")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "PAGES", {"a.md": lambda page: with_parts(page, {"events": "new"})})
    assert command.main(["--write"]) == 1
    assert capsys.readouterr().out.startswith("a.md: the page needs the line `<!-- events -->`")


def test_only_what_is_between_the_marks_is_made() -> None:
    page = "before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n"
    made = with_parts(page, {"a": "new \\\\1"})
    assert made == "before\n<!-- a -->\n\nnew \\\\1\n\n<!-- end of a -->\nafter\n"
    assert with_parts(made, {"a": "new \\\\1"}) == made


@pytest.mark.parametrize(
    "page", ["", "<!-- end of a -->", "<!-- a -->\n<!-- end of a -->\n<!-- end of b -->"]
)
def test_a_page_without_the_right_marks_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match=r"marks|needs"):
        with_parts(page, {"a": "new"})


def test_a_bar_does_not_end_a_cell() -> None:
    assert table(("one", "two"), [("a|b", "c")]).splitlines()[-1] == "| a\\|b | c |"


# Logs.


def test_every_event_that_is_logged_is_told_and_no_other() -> None:
    lacking = {event: found.places for event, found in logs.logged().items() if event not in EVENTS}
    assert lacking == {}, "say in meshd/base/log_events.py what it means"
    assert sorted(set(EVENTS) - set(logs.logged())) == []


def test_every_field_that_is_logged_is_told_and_no_other() -> None:
    used = {one for found in logs.logged().values() for one in found.fields}
    assert sorted(used - set(FIELDS) - SECRET_FIELDS) == [], "say in meshd/base/log_events.py what it means"
    assert sorted(set(FIELDS) - used - logs.ADDED) == []


def test_the_lists_are_sorted() -> None:
    assert list(EVENTS) == sorted(EVENTS) and list(FIELDS) == sorted(FIELDS)


def test_calls_that_log_are_found() -> None:
    text = """
LOG.info("one", peer=1)
self._log.warning("two")
get("log").error("three")
say = LOG.debug if quiet else LOG.warning
say("four", why=2)
math.log("five")
"""
    found = [(call.args[0], sorted(levels)) for call, levels in logs.calls(Source.of("x.py", text))]
    assert [(logs.phrases(event), levels) for event, levels in found] == [
        (["one"], ["info"]),
        (["two"], ["warning"]),
        (["three"], ["error"]),
        (["four"], ["debug", "warning"]),
    ]


# Settings.


def _key(*, example: str = "", default: str = "") -> Key:
    form = whole(0, 65535)
    return Key(
        section="serve", field="port", form=form, help="port of the API", example=example, default=default
    )


def test_a_default_stands_in_the_example_and_any_other_value_as_a_comment() -> None:
    assert settings.entry(_key()).splitlines()[-1] == "port = 8090"
    assert settings.entry(_key(example="8090")).splitlines()[-1] == "port = 8090"
    assert settings.entry(_key(example="99", default="any")).splitlines() == [
        "# Port of the API.",
        "# Default: any.",
        "# port = 99",
    ]


def test_what_depends_on_this_machine_is_no_default_of_a_page() -> None:
    named = {key.name: default_of(key) for key in KEYS}
    assert named["node.name"] is named["paths.home"] is named["paths.cache"] is None
    assert named["serve.port"] == 8090


def test_each_key_without_a_value_has_an_example() -> None:
    assert "null" not in settings.example()
    tomllib.loads(settings.example())


def test_a_row_of_a_setting_has_all_the_ways_to_give_it() -> None:
    key = Key(
        section="serve",
        field="api_key_file",
        form=PATH,
        option="--x",
        help="file",
        default="D",
    )
    assert f"| `serve.api_key_file` | `--x` (serve) | `MESHD_X` | {PATH.expected} | D | file |" in table(
        (), [settings.row(key)]
    )
    switch = Key(section="serve", field="no_push", form=BOOLEAN, option="--y", switch=True, help="less")
    assert settings.row(switch)[4] == "`false`"


# Synopses.


def test_a_synopsis_has_every_way_to_call_a_verb() -> None:
    made = synopses.parts()
    assert set(made) == {*(f"synopsis of {verb.name}" for verb in VERBS), "options of every daemon"}
    assert made["synopsis of invite"].splitlines() == [
        "    meshd invite [--expires TIME] [--uses N] [--role R ...] [--json]",
        "    meshd invite ls [--json]",
        "    meshd invite revoke ID [--yes]",
    ]
    assert made["synopsis of logs"] == "    meshd logs [CHILD] [-f | --follow] [--lines N]"
    assert made["synopsis of plan"].startswith("    meshd plan --model MODEL [--ctx-size | --ctx N|max]")
    assert made["synopsis of serve"].startswith("    meshd serve --model FILE|NAME [--join TOKEN] ")
    assert " ".join(made["synopsis of serve"].split()).endswith(" [OPTIONS] [-- LLAMA_SERVER_ARGS...]")


# The status document.


@dataclass(frozen=True)
class _Part:
    """A part."""

    size: int  # how big


@dataclass(frozen=True)
class _Whole:
    """All of it."""

    parts: tuple[_Part, ...]
    one: _Part | None = None


def test_each_object_stands_once_under_the_field_that_leads_to_it() -> None:
    assert status_json.places_of(_Whole) == {_Whole: "", _Part: "parts"}
    assert (
        status_json.page(_Whole)
        == """\
## The document

All of it.

| field | type | meaning |
|---|---|---|
| `parts` | list of [parts](#parts) |  |
| `one` | [parts](#parts) or null |  |

## parts

A part.

| field | type | meaning |
|---|---|---|
| `size` | whole number | how big |"""
    )


def test_the_status_document_is_told_to_its_ends() -> None:
    places = set(status_json.places_of(Status).values())
    assert {"", "node", "peers", "peers.link", "model.split", "model.workers", "warnings"} <= places
