"""The command lines of the page: meshd takes each, and a shell reads it as it was meant."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.errors import UsageError
from meshd.cli.main import VERBS
from meshd.cli.options import Parser
from meshd.config.forms import parse_duration

from tests.page_scripts import needs_typescript, page_script

pytestmark = [needs_typescript, pytest.mark.timeout(180)]
NASTY = ("-x", "--help", "a b", "it's", '"; rm -rf ~ #', "$(reboot)", "`id`", "é 2", "\\", "*", "~", "a=b")
_SCRIPT = """
import { readFileSync } from 'node:fs';
import { commandLine, quote } from './commands.js';
const given = JSON.parse(readFileSync(0, 'utf-8'));
const made = given.map(({ name, fields, word }) => (name ? commandLine(name, fields) : quote(word)));
console.log(JSON.stringify(made));
"""

# action, fields, and what the parser reads from the command line
Example = tuple[str, Mapping[str, object], Mapping[str, object]]
EXAMPLES: tuple[Example, ...] = (
    ("accept", {"code": "meshdreply1abc"}, {"code": "meshdreply1abc"}),
    ("ban_list", {}, {"id": None}),
    ("capacity", {"again": True}, {"again": True}),
    ("capacity", {}, {"again": False}),
    ("drain", {}, {}),
    (
        "expose",
        {"name": "ssh", "target": "127.0.0.1:22", "to": ["garage", "attic"]},
        {"words": ["ssh", "127.0.0.1:22"], "to": ["garage", "attic"]},
    ),
    *(
        ("expose", {"name": word, "target": word, "to": [word]}, {"words": [word, word], "to": [word]})
        for word in NASTY
    ),
    ("expose_list", {}, {"words": ["ls"]}),
    *((("expose_remove", {"name": word}, {"words": ["rm", word]})) for word in ("ssh", *NASTY)),
    ("fits", {}, {"action": "ls", "fits": True}),
    *((("forget", {"peer": word}, {"peer": word})) for word in ("garage", *NASTY)),
    ("invite", {"expires_s": 86400, "uses": 1, "roles": ["use", "work"]}, {"role": ["use", "work"]}),
    ("invite", {"expires_s": 1800, "uses": 10, "roles": ["admin"]}, {"uses": "10", "expires": "30m"}),
    ("invite", {"expires_s": 604800, "uses": 1, "roles": ["use"]}, {"expires": "7d"}),
    ("invite_list", {}, {"action": "ls"}),
    ("invite_revoke", {"id": "d7300f57d2c2ba28"}, {"action": "revoke", "id": "d7300f57d2c2ba28"}),
    ("logs", {"lines": 200}, {"child": "meshd", "lines": "200"}),
    ("logs", {"lines": 50, "log": "-x y"}, {"child": "-x y", "lines": "50"}),
    ("model_download", {"model": "qwen3-4b"}, {"action": "pull", "name": "qwen3-4b"}),
    *((("model_remove", {"model": word}, {"action": "rm", "name": word})) for word in ("half", *NASTY)),
    *((("model_verify", {"model": word}, {"action": "verify", "name": word})) for word in ("half", *NASTY)),
    ("models", {}, {"action": "ls"}),
    ("netcheck", {}, {}),
    ("pause", {}, {}),
    ("ping", {"peer": "garage"}, {"peer": "garage", "count": "1"}),
    ("plan", {"model": "qwen3-4b"}, {"model": "qwen3-4b", "ctx_size": "", "streams": 0}),
    ("plan", {"model": "a b", "ctx_size": "4096", "streams": 2}, {"ctx_size": "4096", "streams": 2}),
    (
        "plan",
        {"model": "x", "ctx_size": "max", "draft_model": "-d"},
        {"ctx_size": "max", "draft_model": "-d"},
    ),
    ("plan", {"model": "x", "workers": "a,b", "layers": "a=0-3,b=4-7"}, {"layers": ["a=0-3,b=4-7"]}),
    ("plan", {"model": "x", "tensor_split": "3,1", "device": "none"}, {"tensor_split": "3,1"}),
    (
        "plan",
        {"model": "x", "device": "none", "memory": "a=8G,4G"},
        {"device": ["none"], "memory": ["a=8G,4G"]},
    ),
    *((("plan", {"model": word}, {"model": word})) for word in NASTY),
    ("pull", {"name": "mesh:x", "background": True}, {"name": "mesh:x", "background": True}),
    ("pull", {"name": "-x", "rate": 8000}, {"name": "-x", "rate": "8000B"}),
    ("resume", {}, {}),
    *((("revoke", {"peer": word}, {"peer": word})) for word in ("garage", *NASTY)),
    ("tunnel_close", {"listen": "127.0.0.1:9"}, {"action": "close", "what": ["127.0.0.1:9"]}),
    ("tunnel_close", {"peer": "-p", "service": "s"}, {"what": ["-p", "s"]}),
    ("tunnel_open", {"peer": "-p", "service": "s", "listen": "[::1]:9"}, {"peer": "-p", "listen": "[::1]:9"}),
    ("unban", {"id": "shed"}, {"id": "shed"}),
    ("why", {}, {}),
)


def parsed(line: str) -> dict[str, Any]:
    """Return what meshd's own parser reads. Raises UsageError."""
    program, verb, *rest = shlex.split(line)
    assert program == "meshd"
    known = {one.name: one for one in VERBS}
    parser = Parser(prog=f"meshd {verb}")
    known[verb].load().add_arguments(parser)
    return vars(parser.parse_args(rest))


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """The command line of each example."""
    asked = [{"name": name, "fields": fields} for name, fields, _ in EXAMPLES]
    made: list[str] = page_script(_SCRIPT, asked)
    return made


@pytest.mark.parametrize("at", range(len(EXAMPLES)), ids=lambda at: f"{at}-{EXAMPLES[at][0]}")
def test_meshd_reads_what_the_action_means(lines: list[str], at: int) -> None:
    _, _, wanted = EXAMPLES[at]
    read = parsed(lines[at])
    assert {name: read[name] for name in wanted} == wanted, lines[at]


def test_every_command_has_an_example() -> None:
    script = "import { commandNames } from './commands.js'; console.log(JSON.stringify(commandNames))"
    assert set(page_script(script, None)) == {name for name, _, _ in EXAMPLES}


def test_an_action_without_a_command_line_shows_none() -> None:
    names = ["load", "constructor", "__proto__", "toString"]
    assert page_script(_SCRIPT, [{"name": name, "fields": {}} for name in names]) == [""] * 4


def test_the_time_of_an_invite_is_what_was_chosen() -> None:
    for_seconds = [1, 59, 60, 90, 1800, 3600, 5400, 86400, 172800, 604800, 604801]
    asked = [
        {"name": "invite", "fields": {"expires_s": seconds, "uses": 1, "roles": ["use"]}}
        for seconds in for_seconds
    ]
    made = [parse_duration(parsed(line)["expires"]) for line in page_script(_SCRIPT, asked)]
    assert made == for_seconds


@pytest.mark.parametrize(
    "word", ["a\nb", "\x1b[201~", "\x7f", "\x9b", "a\u202eb", "\u2066", "\u200f", "a\ufffdb"]
)
def test_control_characters_are_not_offered_for_copying(word: str) -> None:
    exposed = {"name": "ssh", "target": "nas:22", "to": ["garage"]}
    asked = [
        {"name": "ping", "fields": {"peer": word}},
        *({"name": "expose", "fields": {**exposed, field: word}} for field in ("name", "target")),
        {"name": "expose", "fields": {**exposed, "to": [word]}},
        {"name": "expose_remove", "fields": {"name": word}},
        {"name": "ping", "fields": {"peer": "garage"}},
    ]
    assert page_script(_SCRIPT, asked) == [*[""] * 5, "meshd ping --count 1 garage"]


@settings(max_examples=3, deadline=None)
@given(st.lists(st.text(st.characters(blacklist_categories=["Cs"]), max_size=12), min_size=60, max_size=80))
def test_a_shell_reads_any_word_as_it_was(words: list[str]) -> None:
    made = page_script(_SCRIPT, [{"word": word} for word in words])
    assert [shlex.split(word) for word in made] == [[word] for word in words]


def test_a_wrong_command_is_found() -> None:
    with pytest.raises(UsageError):
        parsed("meshd invite --expire 24h --nope")
    assert json.dumps(parsed("meshd ping garage"))
