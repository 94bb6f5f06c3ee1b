"""The pages of docs/ do not lag: every verb, flag and code is there (for what is made: test_reference.py)."""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.cli.main import VERBS, Verb
from meshd.cli.options import Parser
from meshd.daemon.roles import ROLES
from meshd.store.interface import HashProgress

from tests.unit.admin.codes import warning_codes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def chapter(verb: str) -> str:
    """Return what docs/cli.md says about a verb; for daemons, also the part on all of them."""
    text = page("cli.md")
    found = re.search(rf"^### meshd {verb}\n(.*?)(?=^##)", text + "\n## end", re.DOTALL | re.MULTILINE)
    assert found, f"docs/cli.md has no chapter `### meshd {verb}`"
    common = re.search(r"^### Options of every daemon\n(.*?)(?=^##)", text, re.DOTALL | re.MULTILINE)
    assert common
    return found.group(1) + (common.group(1) if verb in ROLES else "")


def flags(parser: Parser) -> Iterator[str]:
    """Yield every option and sub-verb of a parser."""
    for name, below in parser.below.items():
        yield name
        yield from flags(below)
    for action in parser.own:
        if action.help != argparse.SUPPRESS:
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


def test_every_warning_is_in_errors_md() -> None:
    text = page("errors.md")
    codes = warning_codes()
    assert "peer_lost" in codes
    assert [code for code in sorted(codes) if f"\n- `{code}`: " not in text] == []


def calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((ROOT / "meshd").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


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


def _anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#{1,6} (.+)$", re.sub(r"(?ms)^ *```.*?^ *```", "", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_sections_lead_somewhere() -> None:
    for path in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]:
        text = path.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", text):
            there = (path.parent / target) if target else path
            assert anchor in _anchors(there.read_text(encoding="utf-8")), f"{path.name}: {target}#{anchor}"


def test_the_sample_of_a_file_that_is_read_is_what_is_said() -> None:
    progress = HashProgress("model.gguf", int(0.18 * 17e9), 17_000_000_000, 612e6)
    assert progress.text in page("api.md")
