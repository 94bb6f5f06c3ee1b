"""The diagrams of docs/architecture.md are current, and show what they are made from."""

import re
from collections.abc import Mapping

import pytest
from meshd.peer.send_turn import FeedState, SendEvent, SendState

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
    assert re.findall(r"subgraph (\w+).*?\n((?:        .*\n)+)", drawn) == [
        ("layer0", '        top["top"]\n'),
        ("layer1", '        left["left"]\n        right["right"]\n'),
        ("layer2", '        bottom["bottom"]:::pure\n'),
    ]
    assert re.findall(r"(\w+) --> (\w+)", drawn) == [("layer0", "layer1"), ("layer1", "layer2")]
    assert re.findall(r"(\w+) -\.- (\w+)", drawn) == [("left", "bigjson")]


def test_every_package_has_its_place() -> None:
    drawn = diagrams.layers(diagrams.contracts())
    packages = {path.parent.name for path in (ROOT / "meshd").glob("*/__init__.py")}
    assert set(re.findall(r'^        (\w+)\["', drawn, re.MULTILINE)) == packages


def test_every_state_and_event_of_a_link_is_drawn() -> None:
    sends, feeds = diagrams.who_sends(), diagrams.who_feeds()
    assert all(re.search(rf"--> {state.value}\b", sends) for state in SendState)
    assert all(re.search(rf"--> {state.value}\b", feeds) for state in FeedState)
    assert all(f": {event.value}" in sends + feeds for event in SendEvent)


def test_what_a_transition_needs_is_drawn() -> None:
    sends = diagrams.who_sends().splitlines()
    assert "    idle --> sending: asked, send [no]" in sends
    assert "    idle --> sending: fed, send [asked]" in sends
    assert "    sending --> held: full" in sends
    assert "    feeding --> asked: asked" in diagrams.who_feeds().splitlines()


def test_a_page_without_a_place_for_a_diagram_is_an_error() -> None:
    with pytest.raises(ValueError, match="no one place for `layers`"):
        diagrams.brought_up_to_date("# Architecture\n")
