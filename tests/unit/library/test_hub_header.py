"""Only the headers of a model come from the hub, whatever it has behind them."""

from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.library import download
from meshd.library.download import fetch_headers
from meshd.library.interface import TransferProgress
from meshd.model.gguf import Header, read_header
from meshd.model.model_name import HubName

from tests.gguf_bytes import gguf, language_model, parse
from tests.hub_server import Hub

from .models import tiny_shards

NAME = HubName("me", "Big-GGUF")
KIB = 1 << 10


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_FIRST_BYTES", 64 * KIB)


def big() -> bytes:
    """Eight megabytes, of which the header is less than 64 KiB."""
    return gguf(*language_model(width=512, vocabulary=4000))


def read(path: Path) -> Header:
    with path.open("rb") as file:
        return read_header(
            lambda offset, length: (file.seek(offset), file.read(length))[1],
            size=path.stat().st_size,
            label=path.name,
        )


def get(folder: Path, told: list[TransferProgress] | None = None) -> list[Path]:
    return fetch_headers(NAME, folder, told.append if told is not None else lambda _: None)


def test_a_range_with_the_header_and_no_weights(hub: Hub, tmp_path: Path) -> None:
    hub.repositories[NAME.repository] = {"big-Q8_0.gguf": big()}
    [path] = get(tmp_path)
    assert path.name == "big-Q8_0.header", "nobody takes it for a model"
    assert path.stat().st_size == len(big()) and path.stat().st_blocks * 512 < 256 * KIB
    assert read(path) == parse(big())
    assert hub.sent == 64 * KIB < len(big()) / 50


def test_a_header_that_is_longer_than_was_asked_for(hub: Hub, tmp_path: Path) -> None:
    long = gguf(*language_model(extra={"tokenizer.ggml.merges": ["x" * 1000] * 300}, vocabulary=4000))
    hub.repositories[NAME.repository] = {"big-Q8_0.gguf": long}
    [path] = get(tmp_path)
    assert read(path) == parse(long) and hub.sent > 300_000


def test_a_server_without_ranges_is_cut_off(hub: Hub, tmp_path: Path) -> None:
    hub.repositories[NAME.repository] = {"big-Q8_0.gguf": big()}
    hub.no_ranges = True
    [path] = get(tmp_path)
    assert read(path) == parse(big())


def test_of_a_model_in_several_files_each_header(hub: Hub, tmp_path: Path) -> None:
    shards = tiny_shards(3)
    hub.repositories[NAME.repository] = shards
    told: list[TransferProgress] = []
    paths = get(tmp_path, told)
    assert [read(path) for path in paths] == [parse(data) for data in shards.values()]
    assert told[-1].activity == f"reading the header of {NAME} ({len(shards)} of {len(shards)})"


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"big-Q8_0.gguf": b"GGUF" + bytes(200)}, "cannot use `big-Q8_0.gguf`"),
        ({"big-Q8_0.gguf": b"<html>" * 20_000}, "it is a web page, not a model"),
        ({"readme.md": b"none"}, "has no GGUF file"),
    ],
)
def test_what_is_no_model_is_said(hub: Hub, tmp_path: Path, files: dict[str, bytes], what: str) -> None:
    hub.repositories[NAME.repository] = files
    with pytest.raises(UserError, match=what):
        get(tmp_path)


def test_a_hub_that_refuses_says_why(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no repository `me/Big-GGUF`"):
        get(tmp_path)
