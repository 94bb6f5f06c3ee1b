"""From what was given to a path."""

from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.store.find import find_model


def test_a_file_is_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "blob").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_model("model.gguf") == tmp_path / "model.gguf"
    assert find_model("./model.gguf") == tmp_path / "model.gguf"
    assert find_model("~/blob") == tmp_path / "blob"
    assert find_model("blob") == tmp_path / "blob"
    link = tmp_path / "link.gguf"
    link.symlink_to(tmp_path / "blob")
    assert find_model(str(link)) == link


def test_a_path_that_is_absent_is_for_opening_to_say(tmp_path: Path) -> None:
    assert find_model(str(tmp_path / "absent.gguf")) == tmp_path / "absent.gguf"


def test_known_names(tmp_path: Path) -> None:
    known = {"smollm2": tmp_path / "demo.gguf"}
    assert find_model("smollm2", known=known) == tmp_path / "demo.gguf"
    with pytest.raises(UserError, match="the known names are `smollm2`"):
        find_model("qwen", known=known)


@pytest.mark.parametrize("name", ["qwen3", "", "a\0b"])
def test_anything_else_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="there is no such file") as caught:
        find_model(name)
    assert "*.gguf" in caught.value.hint
