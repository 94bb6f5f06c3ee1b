"""The demo: the files that it lays beside the user's, and what it shows while it waits."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from meshd import demo
from meshd.demo import other_copy


class _Shown:
    """A DemoOutput that keeps what it was given, in order."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def line(self, text: str = "") -> None:
        self.texts.append(text + "\n")

    def raw(self, text: str) -> None:
        self.texts.append(text)

    def note(self, text: str) -> None:
        self.texts.append(text)

    def progress(self, step: str, share: float | None = None) -> None:
        self.texts.append(f"({step})")


@pytest.mark.parametrize("whole", [True, False])
def test_the_other_copy_leaves_the_file_untouched(tmp_path: Path, whole: bool) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF and more")
    before = model.stat()
    copy = other_copy(model, tmp_path / "demo", whole=whole)
    after = model.stat()
    assert copy.name != model.name
    assert copy.read_bytes() == model.read_bytes()
    assert (after.st_ctime_ns, after.st_nlink) == (before.st_ctime_ns, 1)
    assert copy.is_symlink() is not whole


def test_a_wait_for_the_first_word_is_a_step_and_the_answer_has_one_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = _Shown()

    async def chat(url: str, prompt: str, *, max_tokens: int, on_text: Callable[[str], None]) -> int:
        assert shown.texts[-1] == "(reading the prompt)"
        for word in ("The ", "sea."):
            on_text(word)
        return 2

    monkeypatch.setattr(demo, "chat", chat)
    asyncio.run(demo.show_answer("http://127.0.0.1:1", "What is blue?", shown))
    assert shown.texts[2:-1] == ["(reading the prompt)", "model    The ", "sea.", "\n"]
