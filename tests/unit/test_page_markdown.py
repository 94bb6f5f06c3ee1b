"""What the page for other networks makes of a model's text: a tree of known parts, whatever is written."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.page_scripts import needs_typescript, page_script

pytestmark = [needs_typescript, pytest.mark.timeout(180)]
KINDS = {"paragraph", "heading", "code", "list", "table", "quote", "rule"}
WORDS = {"text", "code", "strong", "em", "del", "link", "break"}
DEEPEST = 60  # of the JSON of a tree, so of the page's elements
_SCRIPT = """
import { readFileSync } from 'node:fs';
import { read } from './remote/markdown.js';
const texts = JSON.parse(readFileSync(0, 'utf-8'));
console.log(JSON.stringify(texts.map((text) => read(text).map(({ block }) => block))));
"""
_AGAIN = """
import { readFileSync } from 'node:fs';
import { read } from './remote/markdown.js';
const [first, second] = JSON.parse(readFileSync(0, 'utf-8'));
const before = read(first), after = read(second, before);
console.log(JSON.stringify(after.map((part, at) => part === before[at])));
"""

Tree = list[dict[str, Any]]


def trees(texts: Sequence[str]) -> list[Tree]:
    found: list[Tree] = page_script(_SCRIPT, list(texts))
    return found


def tree(text: str) -> Tree:
    [found] = trees([text])
    return found


def nodes(found: object) -> Iterator[dict[str, Any]]:
    """All parts of a tree that have a kind."""
    if isinstance(found, dict):
        if "kind" in found:
            yield found
        found = list(found.values())
    if isinstance(found, list):
        for inner in found:
            yield from nodes(inner)


def words(found: object) -> str:
    """All its text, without marks."""
    return "".join(str(node.get("text", "")) for node in nodes(found))


def text(of: str) -> dict[str, str]:
    return {"kind": "text", "text": of}


def test_paragraphs_and_words() -> None:
    assert tree("A **bold *word***, `code <b>`\nand ~~gone~~.\n\nNext &lt;one&gt; \\*") == [
        {
            "kind": "paragraph",
            "inner": [
                text("A "),
                {"kind": "strong", "inner": [text("bold "), {"kind": "em", "inner": [text("word")]}]},
                text(", "),
                {"kind": "code", "text": "code <b>"},
                {"kind": "break"},
                text("and "),
                {"kind": "del", "inner": [text("gone")]},
                text("."),
            ],
        },
        {"kind": "paragraph", "inner": [text("Next <one> "), text("*")]},
    ]


def test_headings_rules_and_quotes() -> None:
    assert tree("## Two\n\n---\n\n> quoted") == [
        {"kind": "heading", "level": 2, "inner": [text("Two")]},
        {"kind": "rule"},
        {"kind": "quote", "inner": [{"kind": "paragraph", "inner": [text("quoted")]}]},
    ]


def test_code_is_kept_as_it_is_also_while_it_is_written() -> None:
    written = '```python\nprint("<b>&lt;</b>")\n\n    # more'
    for source in (written, f"{written}\n```"):
        [block] = tree(source)
        assert block == {"kind": "code", "language": "python", "text": written.partition("\n")[2]}
    [odd] = tree('```"><script>\nx\n```')
    assert odd == {"kind": "code", "language": "", "text": "x"}


def test_lists_within_lists_numbers_and_tasks() -> None:
    [numbered] = tree("3. three\n   - a\n   - b\n4. four")
    assert (numbered["kind"], numbered["start"]) == ("list", 3)
    inner = numbered["items"][0]["inner"]
    assert [block["kind"] for block in inner] == ["paragraph", "list"] and inner[1]["start"] is None
    assert [words(item) for item in inner[1]["items"]] == ["a", "b"]
    [tasks] = tree("- [x] did\n- [ ] will\n- other")
    assert [item["isDone"] for item in tasks["items"]] == [True, False, None]
    assert [words(item).strip() for item in tasks["items"]] == ["did", "will", "other"]
    [loose] = tree("- [x] did\n\n- [ ] will")
    assert [words(item).strip() for item in loose["items"]] == ["did", "will"]


def test_tables_have_cells_of_words() -> None:
    [table] = tree("| a | b |\n|---|--:|\n| **1** | `x\\|y` |\n| 2 |")
    assert [words(cell) for cell in table["head"]] == ["a", "b"]
    assert [[words(cell) for cell in row] for row in table["rows"]] == [["1", "x|y"], ["2", ""]]
    assert table["rows"][0][0] == [{"kind": "strong", "inner": [text("1")]}]


def test_links_to_pages_show_where_they_lead() -> None:
    [block] = tree("[the bank](https://bank.example@evil.example/a?b) <https://a.example/>")
    deceptive, _, plain = block["inner"]
    assert (deceptive["href"], deceptive["host"]) == ("https://bank.example@evil.example/a?b", "evil.example")
    assert (plain["href"], plain["host"]) == ("https://a.example/", ""), "it shows the host already"


INERT = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a <b onclick='x()'>b</b>",
    "<!-- <script> -->",
    "<iframe srcdoc='&lt;script&gt;'></iframe>",
    "![alt](https://evil.example/p.png)",
    "![alt](data:image/png;base64,AAAA)",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt&#58;alert(1))",
    "[a](java\tscript:alert(1))",
    "[a](data:text/html,<script>alert(1)</script>)",
    "[a](vbscript:x)",
    "[a](file:///etc/passwd)",
    "[a](//evil.example)",
    "[a](/mesh/do/revoke)",
    "[a](blob:https://x/y)",
    "<javascript:alert(1)>",
    "[a]: javascript:alert(1)\n\n[a]",
)


def test_html_pictures_and_links_to_no_page_stay_as_they_were_written() -> None:
    for source, found in zip(INERT, trees(INERT), strict=True):
        assert not [node for node in nodes(found) if node["kind"] == "link"], source
    for source, found in zip(INERT[:8], trees(INERT[:8]), strict=True):
        assert words(found) == source


N = 20_000
ENDLESS = {
    "brackets": "[" * N,
    "links": "[a](" * (N // 4),
    "stars": "a*" * (N // 2),
    "underscores": "_a" * (N // 2),
    "strong": "**a*" * (N // 4),
    "ticks": "`" * N + "a",
    "quotes": ">" * N,
    "numbers": "1. " * N,
    "lists in quotes": "> - " * (N // 4),
    "deeper lists": "\n".join(" " * (2 * at) + "- a" for at in range(200)),
    "mail": "a." * (N // 2) + "@",
    "addresses": "http://a" * (N // 8),
    "tags": "<a " * (N // 3),
    "columns": "|a" * (N // 4) + "\n" + "|-" * (N // 4) + "\n" + "|b" * (N // 4),
    "rows": "|a|b|\n|-|-|\n" + "|1|2|\n" * (N // 6),
    "definitions": '[a]: x "' * (N // 8),
    "spaces": " " * N + "a",
    "no end": "word " * (1 << 16),
    "lone surrogate": "a \ud800 b",
}


def test_text_without_end_is_read_and_its_tree_is_not_deep() -> None:
    """Of a text that is too long or too deep, nothing is lost: it stays as it was written."""
    for name, found in zip(ENDLESS, trees(list(ENDLESS.values())), strict=True):
        assert {node["kind"] for node in nodes(found)} <= KINDS | WORDS, name
        assert depth(found) <= DEEPEST, name
    [paragraph] = tree(ENDLESS["no end"])
    assert words(paragraph) == ENDLESS["no end"]


def depth(found: object) -> int:
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list):
        return 1 + max(map(depth, found), default=0)
    return 0


def test_what_was_read_before_stays_while_an_answer_grows() -> None:
    begun = "# A\n\nfirst\n\n- a\n- b\n\nlast wo"
    same: list[bool] = page_script(_AGAIN, [begun, f"{begun}rds\n\nmore"])
    assert same == [True, True, True, False, False]
    assert json.dumps(tree("")) == "[]"
