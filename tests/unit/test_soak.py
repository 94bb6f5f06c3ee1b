"""`make soak` runs every test that does more where there is time, and its page is as the code writes it."""

import re
from datetime import date
from pathlib import Path

import pytest

from tests import soak
from tests.e2e.losses import Loss, page

ROOT = Path(__file__).parents[2]
MORE = re.compile(r"^from tests\.soak import (\([^)]*|[^(\n]*)\b(counts|drawn|SOAK)\b", re.MULTILINE)


def _soak() -> list[str]:
    """Return what `make soak` gives to pytest."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.search(r"^soak:.*\n\tMESHD_SOAK=1 .* pytest (.*)$", text, re.MULTILINE)
    assert found
    return [word for word in found.group(1).split() if word.startswith("tests/")]


def test_whatever_does_more_is_in_it() -> None:
    more = {
        path.relative_to(ROOT)
        for path in (ROOT / "tests").rglob("*.py")
        if path.name.startswith(("test_", "conftest")) and MORE.search(path.read_text(encoding="utf-8"))
    }
    more.discard(Path(__file__).relative_to(ROOT))
    given = [Path(word) for word in _soak()]
    assert all((ROOT / path).exists() for path in given)
    left_out = {path for path in more if not any(path.is_relative_to(one) for one in given)}
    assert not left_out


def test_a_draw_has_what_once_found_something_and_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "SOAK", False)
    draws = []
    for seed in range(20):
        monkeypatch.setattr(soak, "SEED", seed)
        draws.append(soak.drawn("letters", "abcdef", 2, always="e"))
    assert all(draw[0] == "e" and len(set(draw)) == 3 for draw in draws)
    assert {letter for draw in draws for letter in draw} == set("abcdef")
    monkeypatch.setattr(soak, "SOAK", True)
    assert soak.drawn("letters", "abcdef", 2, always="e") == list("abcdef")


def test_what_cannot_be_drawn_cannot_be_in_each_run() -> None:
    with pytest.raises(ValueError, match=r"letters: .*'x'.* cannot be drawn"):
        soak.drawn("letters", "abc", 1, always="x")


def test_the_page_is_of_the_code_all_but_its_figures() -> None:
    """Only a run writes it (`--losses docs/lab/soak.md`): the next run would undo words changed there."""
    made = page([Loss("mesh", "load", "reset")], [], seed=1, today=date(2026, 1, 2))
    written = (ROOT / "docs" / "lab" / "soak.md").read_text(encoding="utf-8")
    head = made.partition("2026-01-02")[0]
    columns = next(line for line in made.splitlines() if line.startswith("place"))
    assert "# Lost workers" in head
    assert re.match(re.escape(head) + r"\d{4}-\d\d-\d\d, .*\n\n```\n" + re.escape(columns), written)
