"""The pages of docs/ do not lag: every verb, flag, key, status field, code, event and log field is there."""

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from meshd.admin import status
from meshd.base.log import SECRET_FIELDS
from meshd.cli.main import VERBS, Verb
from meshd.cli.options import Parser
from meshd.config.key import Key
from meshd.config.keys import KEYS
from meshd.model import status as model_status
from meshd.process.interface import ChildState

from tests.unit.admin.codes import warning_codes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOG_METHODS = {"debug", "info", "warning", "error"}
STATUS_VALUES = [
    one
    for one in (*vars(status).values(), *vars(model_status).values())
    if isinstance(one, type) and is_dataclass(one)
]


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def chapter(verb: str) -> str:
    """What docs/cli.md says about a verb; for daemons, also the part on all of them."""
    text = page("cli.md")
    found = re.search(rf"^### meshd {verb}\n(.*?)(?=^##)", text + "\n## end", re.DOTALL | re.MULTILINE)
    assert found, f"docs/cli.md has no chapter `### meshd {verb}`"
    common = re.search(r"^### Options of every daemon\n(.*?)(?=^##)", text, re.DOTALL | re.MULTILINE)
    assert common
    return found.group(1) + (common.group(1) if verb in ("worker", "serve") else "")


def flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Every option and sub-verb of a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield name
                yield from flags(below)
        elif action.help != argparse.SUPPRESS:
            yield from (flag for flag in action.option_strings if flag not in ("-h", "--help"))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_and_flag_is_in_cli_md(verb: Verb) -> None:
    parser = Parser(prog=verb.name)
    verb.load().add_arguments(parser)
    text = chapter(verb.name)
    for flag in flags(parser):
        assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text), f"meshd {verb.name}: `{flag}`"


def test_cli_md_has_no_chapter_of_a_verb_that_is_not_there() -> None:
    chapters = set(re.findall(r"^### meshd (\w+)$", page("cli.md"), re.MULTILINE))
    assert chapters == {verb.name for verb in VERBS}


@pytest.mark.parametrize("kind", STATUS_VALUES, ids=lambda kind: kind.__name__)
def test_every_status_field_is_in_cli_md(kind: type) -> None:
    text = page("cli.md")
    for field in fields(kind):
        assert f'"{field.name}"' in text, f"{kind.__name__}.{field.name}"


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_key_is_a_row_of_config_md(key: Key) -> None:
    rows = [line for line in page("config.md").splitlines() if line.startswith(f"| `{key.name}` |")]
    assert len(rows) == 1, key.name
    for word in (key.option, key.variable, key.form.expected):
        assert word in rows[0], f"{key.name}: {word}"


def test_every_warning_is_in_errors_md() -> None:
    text = page("errors.md")
    codes = warning_codes()
    assert "peer_lost" in codes
    assert [code for code in sorted(codes) if f"| `{code}` |" not in text] == []


def calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((ROOT / "meshd").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    for where, call in calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in LOG_METHODS:
            owner = call.func.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if name.lower().strip("_") in ("log", "logger"):
                yield where, call


def test_every_event_is_a_fixed_phrase_in_logging_md() -> None:
    text = page("logging.md").split("## Events")[1]
    lacking = []
    for where, call in log_calls():
        event = call.args[0] if call.args else None
        phrase = event.value if isinstance(event, ast.Constant) else None
        if not isinstance(phrase, str) or f"`{phrase}`" not in text:
            lacking.append(f"{where} {ast.unparse(event) if event else '?'}")
    assert lacking == []


def test_every_state_of_a_child_is_an_event_in_logging_md() -> None:
    text = page("logging.md").split("## Events")[1]
    assert [state for state in ChildState if f"`child_{state}`" not in text] == []


def test_every_log_field_is_in_logging_md() -> None:
    text = page("logging.md").split("## Fields")[1].split("## Events")[0]
    lacking = [
        f"{where} {word.arg}"
        for where, call in log_calls()
        for word in call.keywords
        if f"`{word.arg}`" not in text and word.arg not in SECRET_FIELDS
    ]
    assert lacking == []


def test_the_scan_finds_log_calls_at_all() -> None:
    assert len(list(log_calls())) > 20


def test_every_code_of_an_error_is_on_a_page() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    lacking = {
        f"{where} {word.value.value}"
        for where, call in calls()
        for word in call.keywords
        if word.arg == "code" and isinstance(word.value, ast.Constant) and isinstance(word.value.value, str)
        if f"`{word.value.value}`" not in text
    }
    assert sorted(lacking) == []


def test_links_between_pages_lead_somewhere() -> None:
    for path in [*DOCS.glob("*.md"), *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
