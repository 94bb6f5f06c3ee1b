"""Reference pages are what the code says now, and the code says something of all that is in them."""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.base.log import SECRET_FIELDS
from meshd.cli.main import VERBS
from meshd.config.forms import BOOLEAN, PATH, choice, whole
from meshd.config.setting import Setting
from meshd.config.tree import SETTINGS

from tests.reference import __main__ as command
from tests.reference import logs, settings, status_json, synopses
from tests.reference.log_events import EVENTS, FIELDS
from tests.reference.marks import with_parts
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


# Logs.


def test_every_event_that_is_logged_is_told_and_no_other() -> None:
    lacking = {event: found.places for event, found in logs.logged().items() if event not in EVENTS}
    assert lacking == {}, "say in tests/reference/log_events.py what it means"
    assert sorted(set(EVENTS) - set(logs.logged())) == []


def test_every_field_that_is_logged_is_told_and_no_other() -> None:
    used = {one for found in logs.logged().values() for one in found.fields}
    assert sorted(used - set(FIELDS) - SECRET_FIELDS) == [], (
        "say in tests/reference/log_events.py what it means"
    )
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


def _key(*, example: str = "", default: str = "") -> Setting:
    form = whole(0, 65535)
    return Setting(
        section="serve",
        field="port",
        value=8090,
        form=form,
        help="port of the API",
        option="",
        example=example,
        default=default,
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
    named = {key.name: key.value for key in SETTINGS}
    assert named["node.name"] is named["paths.home"] is named["paths.cache"] is None
    assert named["serve.port"] == 8090


def test_each_key_without_a_value_has_an_example() -> None:
    assert "null" not in settings.example()
    tomllib.loads(settings.example())


def test_an_item_of_a_setting_has_all_the_ways_to_give_it() -> None:
    key = Setting(section="serve", field="api_key_file", form=PATH, option="--x", help="file", default="D")
    assert settings.item(key) == "- **`serve.api_key_file`** (`--x`): file. Default: D."
    switch = Setting(section="serve", field="no_push", value=False, form=BOOLEAN, option="--y", help="less")
    assert settings.item(switch) == "- **`serve.no_push`** (`--y`): less."
    assert (
        settings.item(replace(key, env="MESHD_Z"))
        == "- **`serve.api_key_file`** (`--x`, `MESHD_Z`): file. Default: D."
    )
    assert settings.item(_key()) == ("- **`serve.port`**: port of the API. 0 to 65535. Default: `8090`.")


def test_the_values_of_a_choice_stand_once() -> None:
    form = choice("auto", "off")
    told = Setting(section="serve", field="split", value="auto", form=form, option="", help="auto or off")
    assert settings.item(told) == '- **`serve.split`**: auto or off. Default: `"auto"`.'
    untold = Setting(section="serve", field="split", value="auto", form=form, option="", help="which")
    assert settings.item(untold) == '- **`serve.split`**: which. One of auto, off. Default: `"auto"`.'


def test_what_a_model_has_from_serve_is_only_named() -> None:
    made = settings.page()
    assert "**`models.NAME.ttl`**" in made and "**`models.NAME.ctx_size`**" not in made
    assert "`ctx_size`" in made.splitlines()[-1]


# Synopses.


def test_a_synopsis_has_every_way_to_call_a_verb() -> None:
    made = synopses.parts()
    assert set(made) == {*(f"meshd {verb.name}" for verb in VERBS), "Options of every daemon"}
    assert made["meshd invite"].splitlines() == [
        "    meshd invite [--expires TIME] [--uses N] [--role R ...] [--browser NAME] [--qr] [--json]",
        "    meshd invite ls [--json]",
        "    meshd invite revoke ID [--yes]",
    ]
    assert made["meshd logs"] == "    meshd logs [CHILD] [-f | --follow] [--lines N] [--since TIME] [--json]"
    assert made["meshd plan"].startswith("    meshd plan --model MODEL [--ctx-size N|max]")
    assert made["meshd serve"].startswith("    meshd serve --model FILE|NAME [--join INVITE] ")
    assert " ".join(made["meshd serve"].split()).endswith(" [OPTIONS] [-- LLAMA_SERVER_ARGS...]")


def test_only_the_synopsis_below_a_heading_is_made() -> None:
    page = "### meshd a\n\n    old [x]\n      y\n\nText of `a`.\n\n### meshd b\n\nText of b.\n"
    made = synopses.with_synopses(page, {"meshd a": "    new \\1", "meshd b": "    b"})
    assert made == ("### meshd a\n\n    new \\1\n\nText of `a`.\n\n### meshd b\n\n    b\n\nText of b.\n")
    assert synopses.with_synopses(made, {"meshd a": "    new \\1", "meshd b": "    b"}) == made
    with pytest.raises(ValueError, match="heading `### meshd c`"):
        synopses.with_synopses(page, {"meshd c": "    c"})


# The status document.


@dataclass(frozen=True)
class _Part:
    """A part."""

    size: int  # how big
    weight: int  # how big


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

- `parts` ([parts](#parts)[])
- `one` ([parts](#parts)?)

## parts

A part.

- `size`, `weight` (integer): how big"""
    )


def test_the_status_document_is_told_to_its_ends() -> None:
    places = set(status_json.places_of(Status).values())
    assert {"", "node", "peers", "peers.link", "model.split", "model.workers", "warnings"} <= places
