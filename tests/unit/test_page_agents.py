"""The lines of the page for agents say what docs/agents.md says, whatever is filled in."""

import json
import re
import shlex
import tomllib
from typing import Any

import pytest

from tests.page_scripts import SOURCE, needs_typescript, page_script
from tests.rules.source import ROOT

PAGE = ROOT / "docs/agents.md"
URL, MODEL, KEY = "http://127.0.0.1:8090", "MODEL", "KEY"
WANTED = {"codex", "Claude Code", "opencode", "cline", "continue", "aider", "Zed", "Open WebUI"}
_ROW = re.compile(r"^\| ([^|]+) \| [\d.]+ \| (.+) \|$", re.MULTILINE)
_QUOTED = re.compile(r"`([^`]+)`")
_SCRIPT = """
import { readFileSync } from 'node:fs';
import { filled } from './agents.js';
console.log(JSON.stringify(filled(JSON.parse(readFileSync(0, 'utf-8')))));
"""


def entries() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((SOURCE / "agents.json").read_text(encoding="utf-8"))
    return found


def settings_of_the_docs() -> dict[str, list[str]]:
    """What the table quotes as code, by program."""
    rows = _ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {program: _QUOTED.findall(setting) for program, setting in rows}


def filled_by_hand(entry: dict[str, Any]) -> str:
    """All texts of an entry, with the docs' values; quotes around a value do not matter."""
    values = {"url": URL, "model": MODEL, "key": KEY, "context": "8192"}
    text = "\n".join(entry[name] for name in ("where", "text", "shell"))
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def test_the_programs_are_those_that_were_asked_for() -> None:
    assert {entry["program"] for entry in entries()} == WANTED


def test_a_program_counts_as_tried_if_the_docs_have_its_version() -> None:
    tried = {entry["program"] for entry in entries() if entry["tried"]}
    assert tried == WANTED & settings_of_the_docs().keys()


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: str(entry["program"]))
def test_the_lines_have_all_that_the_docs_name(entry: dict[str, Any]) -> None:
    text = filled_by_hand(entry)
    missing = [setting for setting in settings_of_the_docs().get(entry["program"], []) if setting not in text]
    assert missing == []


def test_a_setting_that_is_missing_is_found() -> None:
    (codex,) = (entry for entry in entries() if entry["program"] == "codex")
    quoted = settings_of_the_docs()["codex"]
    assert 'wire_api = "responses"' in quoted
    assert 'wire_api = "responses"' not in filled_by_hand({**codex, "text": ""})


@needs_typescript
@pytest.mark.parametrize(
    "model", ["Qwen3-4B-Q4_K_M", 'a "b" \\ c', "it's {key} $(reboot)", "a: [b", "a\x1bb\n"]
)
def test_any_name_of_a_model_is_filled_in_as_one_value(model: str) -> None:
    given = {"url": URL, "model": model, "key": KEY, "context": 4096}
    shown = re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", model)
    by_program = {entry["program"]: entry for entry in page_script(_SCRIPT, given)}
    # files
    assert tomllib.loads(by_program["codex"]["text"])["model"] == shown
    opencode = json.loads(by_program["opencode"]["text"])
    assert opencode["model"] == f"meshd/{shown}"
    assert opencode["provider"]["meshd"]["models"][shown]["limit"]["context"] == 4096
    zed = json.loads(by_program["Zed"]["text"])["language_models"]["openai_compatible"]["meshd"]
    assert zed["available_models"][0]["name"] == shown
    assert f"model: {json.dumps(shown, ensure_ascii=False)}\n" in by_program["continue"]["text"]
    # lines for a shell
    assert f"ANTHROPIC_MODEL={shown}" in shlex.split(by_program["Claude Code"]["shell"])
    assert f"openai/{shown}" in shlex.split(by_program["aider"]["shell"])
    assert shown in shlex.split(by_program["cline"]["shell"])
