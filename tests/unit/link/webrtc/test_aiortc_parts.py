"""aiortc is imported without PyAV, and nothing is left of what takes its place."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from meshd.link.webrtc.aiortc_parts import without_media

from tests.rules.source import ROOT

_LEFT = """
import sys
before = list(sys.meta_path)
import meshd.link.webrtc.session
assert sys.meta_path == before, sys.meta_path
assert not [name for name in sys.modules if name == "av" or name.startswith("av.")]
"""


@pytest.fixture
def media(tmp_path: Path) -> Path:
    """A folder with a PyAV that fails if it is imported."""
    (tmp_path / "av").mkdir()
    (tmp_path / "av/__init__.py").write_text("raise OSError('the real one')\n", "utf-8")
    return tmp_path


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_pyav_is_not_imported(media: Path) -> None:
    done = run(_LEFT, media)
    assert done.returncode == 0, done.stderr


def test_whoever_imports_pyav_later_gets_the_real_one(media: Path) -> None:
    done = run(f"{_LEFT}\nimport av", media)
    assert done.returncode == 1
    assert "OSError: the real one" in done.stderr


def test_one_that_is_imported_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    there, finders = ModuleType("av"), list(sys.meta_path)
    monkeypatch.setitem(sys.modules, "av", there)
    with without_media():
        assert sys.meta_path == finders
    assert sys.modules["av"] is there


def test_a_failed_import_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    finders = list(sys.meta_path)
    monkeypatch.delitem(sys.modules, "av", raising=False)
    with pytest.raises(ZeroDivisionError), without_media():
        from av.video.codeccontext import VideoCodecContext

        assert isinstance(VideoCodecContext, type)
        raise ZeroDivisionError
    assert sys.meta_path == finders
    assert not [name for name in sys.modules if name.partition(".")[0] == "av"]
