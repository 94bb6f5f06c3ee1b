"""The diagram of docs/architecture.md is current, and shows the import contracts."""

import re
from collections.abc import Mapping

import pytest

from tests import diagrams
from tests.rules.source import ROOT

SAMPLE: list[Mapping[str, object]] = [
    {"type": "layers", "layers": ["top", "(left) | right", "bottom"]},
    {"type": "protected", "protected_modules": ["bigjson"], "allowed_importers": ["meshd.left.reader"]},
    {"type": "protected", "protected_modules": ["meshd.right"], "allowed_importers": ["meshd.top"]},
    {
        "type": "forbidden",
        "source_modules": ["meshd.bottom", "meshd.top.x"],
        "forbidden_modules": ["asyncio", "os"],
    },
]


def test_the_page_is_current() -> None:
    page = diagrams.PAGE.read_text(encoding="utf-8")
    assert diagrams.brought_up_to_date(page) == page, "run `make reference`"


def test_what_a_contract_says_is_drawn() -> None:
    drawn = diagrams.layers(SAMPLE)
    assert re.findall(r"    (.*) --> (.*)", drawn) == [("top", "left & right"), ("left & right", "bottom")]
    assert re.findall(r"(\w+) -\.- (\w+)", drawn) == [("left", "bigjson")]
    assert "    class bottom pure\n" in drawn


def test_every_package_has_its_place() -> None:
    drawn = diagrams.layers(diagrams.contracts())
    packages = {path.parent.name for path in (ROOT / "meshd").glob("*/__init__.py")} | {"demo"}  # one file
    rows = re.findall(r"^    (.*) --> (.*)$", drawn, re.MULTILINE)
    assert {name for row in rows for side in row for name in side.split(" & ")} == packages


def test_a_page_without_a_place_for_a_diagram_is_an_error() -> None:
    with pytest.raises(ValueError, match="no one place for `layers`"):
        diagrams.brought_up_to_date("# Architecture\n")
