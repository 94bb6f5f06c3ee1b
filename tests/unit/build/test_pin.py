"""meshd.build.pin: the pin of this checkout, and broken ones."""

from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build.pin import native_folder, read_pin


def test_the_pin_of_this_checkout() -> None:
    pin = read_pin()
    assert len(pin.commit) == 40
    assert len(pin.sdist.sha256) == len(pin.sources_sha256) == 64
    assert pin.rpc_protocol == "7.0.0"
    assert pin.sdist.requirement.split("==")[1] in pin.sdist.file


def _folder(place: Path, files: dict[str, bytes]) -> Path:
    """One with the pin of this checkout and these sources."""
    for name, content in {"inject.cmake": b"", **files}.items():
        (place / "mesh" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "mesh" / name).write_bytes(content)
    (place / "UPSTREAM.toml").write_bytes((native_folder() / "UPSTREAM.toml").read_bytes())
    return place


def test_the_digest_of_the_sources_sees_names_and_bytes(tmp_path: Path) -> None:
    sources: list[dict[str, bytes]] = [
        {"1": b"ab", "2": b"c"},
        {"1": b"a", "2": b"bc"},
        {"1": b"ab", "3": b"c"},
        {"1": b"ab", "below/2": b"c"},
        {"1": b"ab"},
    ]
    folders = [_folder(tmp_path / str(number), files) for number, files in enumerate(sources)]
    assert len({read_pin(folder).sources_sha256 for folder in folders}) == 5
    again = _folder(tmp_path / "again", sources[0])
    assert read_pin(again) == read_pin(folders[0])


def test_sources_that_are_missing_are_named(tmp_path: Path) -> None:
    folder = _folder(tmp_path, {})
    (folder / "mesh" / "inject.cmake").unlink()
    with pytest.raises(UserError, match="the sources of meshd's backend are missing"):
        read_pin(folder)


@pytest.mark.parametrize("text", [None, "not = [toml", "name = 1\n", 'name = "x"\nsdist = 3\n', "\xff"])
def test_a_broken_pin_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "UPSTREAM.toml").write_text(text, "latin-1")
    with pytest.raises(UserError, match="cannot read the pin"):
        read_pin(tmp_path)
