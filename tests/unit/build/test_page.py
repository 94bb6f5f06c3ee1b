"""Which chat page is served, as `meshd version` and `meshd doctor` say it."""

import gzip
from pathlib import Path

import pytest
from meshd.build.page import page_release, page_words
from meshd.build.pin import read_pin
from meshd.doctor import programs


def test_the_release_is_read_from_what_was_built(tmp_path: Path) -> None:
    built = tmp_path / "build.json.gz"
    assert page_release(built) is None
    built.write_bytes(gzip.compress(b'{"version": "0.5.0"}'))
    assert page_release(built) == "0.5.0"
    for broken in (b"", b"x", gzip.compress(b"[]"), gzip.compress(b"{}"), gzip.compress(b"{")):
        built.write_bytes(broken)
        assert page_release(built) is None


def test_it_is_put_in_words() -> None:
    assert page_words(None, "0.5.0") == "small"
    assert page_words("0.5.0", "0.5.0") == "llama.cpp 0.5.0"
    assert page_words("0.4.0", "0.5.0") == "llama.cpp 0.4.0, older or newer than 0.5.0"


@pytest.mark.parametrize(
    ("release", "code"),
    [(None, "chat_page_small"), ("0.0.1", "chat_page_other"), (read_pin().release, "chat_page")],
)
def test_the_doctor_tells_a_page_of_another_release(
    monkeypatch: pytest.MonkeyPatch, release: str | None, code: str
) -> None:
    monkeypatch.setattr(programs, "page_release", lambda: release)
    assert [found.code for found in programs.check_page()] == [code]
