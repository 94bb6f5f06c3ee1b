"""Test that a kept text is used only as long as all that it comes of is the same."""

import os
from itertools import count
from pathlib import Path

import pytest

from tests.e2e import kept_texts
from tests.e2e.kept_texts import kept_text


def test_a_text_is_asked_for_once_until_something_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_texts, "SOAK", False)
    program, model, cache = tmp_path / "program", tmp_path / "model", tmp_path / "cache"
    program.write_bytes(b"1")
    model.write_bytes(b"2")
    answers = count()

    def text(asked: object = "a prompt") -> str:
        return kept_text(cache, [program, model], asked, lambda: f"é{next(answers)}\r\n")

    assert [text(), text()] == ["é0\r\n"] * 2
    assert text("another prompt") == "é1\r\n"
    os.utime(program, ns=(0, 0))
    assert text() == "é2\r\n", "the program was built again"
    model.write_bytes(b"22")
    assert text() == "é3\r\n", "another model"
    monkeypatch.setattr(kept_texts, "SOAK", True)
    assert [text(), text()] == ["é4\r\n", "é5\r\n"]
