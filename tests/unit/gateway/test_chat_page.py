"""The chat page's files: they hold nothing that the page's own policy forbids, and treat no text as HTML."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from meshd.gateway import pages
from meshd.gateway.pages import small_page

PAGE = small_page()
HTML, SCRIPT, STYLE = (PAGE[path].place.read_text("utf-8") for path in ("/", "/chat.js", "/chat.css"))

# What turns a string into markup, code or a request, and what outlives the tab.
FORBIDDEN_IN_SCRIPT = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|setHTML|DOMParser|srcdoc|\.write\("
    r"|\beval\b|\bFunction\b|\bimport\b|setTimeout\([\"'`]|setAttribute\((?!\"aria-)|\.(?:src|href|action|style)\b"
    r"|XMLHttpRequest|WebSocket|EventSource|sendBeacon|window\.open|\blocation\b"
    r"|localStorage|indexedDB|\bcaches\b|\bcookie\b|[a-z]+://"
)
FORBIDDEN_IN_STYLE = re.compile(r"url\(|@import|@font-face|[a-z]+://|expression\(")


class _Faults(HTMLParser):
    """Scripts, styles and addresses within a page that have to be in its own files."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._script = tag == "script"
        self.found += [f"{tag} {name}" for name, _ in attrs if name.startswith("on")]
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("style", "action", "formaction", "srcdoc", "http-equiv"):
                self.found.append(f"{tag} {name}")
            if name in ("src", "href", "srcset", "data", "poster"):
                self.addresses.append(value or "")
        if tag in ("style", "base", "iframe", "object", "embed"):
            self.found.append(tag)

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.found.append("inline script")

    def handle_endtag(self, tag: str) -> None:
        self._script = False


def faults(page: str) -> list[str]:
    parser = _Faults()
    parser.feed(page)
    parser.close()
    foreign = [one for one in parser.addresses if one not in ("/chat.js", "/chat.css")]
    return parser.found + foreign + re.findall(r"[a-z]+://|javascript:", page)


def test_it_is_three_files_and_nothing_else_lies_beside_them() -> None:
    assert set(PAGE) == {"/", "/chat.js", "/chat.css"}
    folder = Path(pages.__file__).parent / "page"
    assert {path.name for path in folder.iterdir()} == {"index.html", "chat.js", "chat.css"}


@pytest.mark.parametrize("path", sorted(PAGE))
def test_each_is_as_short_as_a_module_may_be(path: str) -> None:
    assert len(PAGE[path].place.read_bytes().splitlines()) <= 350


def test_the_page_has_no_script_style_or_address_in_it_but_its_own_files() -> None:
    assert faults(HTML) == []


@pytest.mark.parametrize(
    "bad",
    [
        "<script>1</script>",
        "<p onclick=x>",
        "<p style='color: red'>",
        "<style>p {}</style>",
        "<img src=https://evil.example/x>",
        "<script src='//evil.example/x.js'></script>",
        "<a href='javascript:x'>",
        "<form action='/v1/completions'>",
        "<base href=/x>",
    ],
)
def test_what_must_not_be_in_the_page_is_found(bad: str) -> None:
    assert faults(HTML.replace("</main>", f"{bad}</main>"))


def test_the_script_makes_no_markup_of_text_and_asks_nobody_but_the_api() -> None:
    assert FORBIDDEN_IN_SCRIPT.findall(SCRIPT) == []
    asked = re.findall(r'fetch\("([^"]*)"', SCRIPT)
    assert sorted(asked) == ["/health", "/v1/chat/completions"]
    assert SCRIPT.count("fetch(") == len(asked), "an address that is made up at run time"
    assert SCRIPT.count("sessionStorage") == 2, "the key, and nothing else, is kept"


@pytest.mark.parametrize(
    "bad",
    [
        "node.innerHTML = text",
        "document.write(text)",
        "eval(text)",
        "new Function(text)",
        "image.src = text",
        "node.setAttribute('onclick', text)",
        "localStorage.setItem('a', text)",
        "fetch('https://evil.example')",
        "location = text",
    ],
)
def test_what_must_not_be_in_the_script_is_found(bad: str) -> None:
    assert FORBIDDEN_IN_SCRIPT.search(bad)


def test_the_style_asks_for_nothing() -> None:
    assert FORBIDDEN_IN_STYLE.findall(STYLE) == []


def _found_by_script() -> Iterator[str]:
    (listed,) = re.findall(r"for \(const id of \[([^\]]*)\]", SCRIPT)
    yield from re.findall(r'"([a-z]+)"', listed)


def test_what_the_script_looks_for_is_in_the_page() -> None:
    parser = _Faults()
    parser.feed(HTML)
    assert set(_found_by_script()) == set(parser.ids)
    for name in re.findall(r'querySelector\("\.([a-z]+)"\)', SCRIPT):
        assert re.search(rf'class="{name}"', HTML), name


def test_every_field_has_a_label() -> None:
    for name in ("question", "key"):
        assert f'<label for="{name}"' in HTML
    assert '<html lang="en">' in HTML
