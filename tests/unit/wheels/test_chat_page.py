"""The builder of the chat page: what it takes from the archive, what it writes, and what it needs."""

import base64
import hashlib
import io
import json
import re
import tarfile
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build.pin import Pin, read_pin
from meshd.gateway.pages import CHAT_FOLDER, INDEX_NAME, mesh_page
from wheels.chat_page import (
    BILL_NAME,
    LICENCES_NAME,
    OURS,
    change,
    check_node,
    describe,
    pack,
    page_parts,
    script_digest,
    unpack,
)

from tests.rules.source import ROOT

TOP = "llama/vendor/llama.cpp"
LOGO = '<svg fill="currentColor"/>'


@pytest.fixture
def pin() -> Pin:
    pinned = read_pin()
    return replace(pinned, sdist=replace(pinned.sdist, folder=TOP))


def archive(folder: Path, **more: str) -> Path:
    """An archive with the files that the builder looks at."""
    files = {
        f"{TOP}/LICENSE": "MIT",
        f"{TOP}/tools/ui/package-lock.json": "{}",
        f"{TOP}/tools/ui/src/app.html": "upstream's",
        f"{TOP}/tools/ui/src/lib/assets/logo.svg": LOGO,
        f"{TOP}/tools/ui/static/icon.png": "",
        f"{TOP}/src/llama.cpp": "",
        **more,
    }
    place = folder / "llama.tar.gz"
    with tarfile.open(place, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return place


def test_it_takes_the_ui_alone_and_puts_our_configuration_over_it(tmp_path: Path, pin: Pin) -> None:
    source = tmp_path / "source"
    unpack(archive(tmp_path), pin, source)
    assert (source / "LICENSE").read_text() == "MIT"
    assert (source / "src/app.html").read_bytes() == (OURS / "app.html").read_bytes()
    assert (source / "vite.config.ts").read_bytes() == (OURS / "vite.config.ts").read_bytes()
    assert not list(source.rglob("llama.cpp"))
    colours = {(source / "static" / name).read_text() for name in ("favicon.svg", "favicon-dark.svg")}
    assert len(colours) == 2 and not any("currentColor" in text for text in colours)


def test_installed_packages_stay_and_nothing_else_of_an_earlier_build(tmp_path: Path, pin: Pin) -> None:
    source = tmp_path / "source"
    for name in ("node_modules/kept.js", "dist/old.js", "old.js"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    unpack(archive(tmp_path), pin, source)
    assert (source / "node_modules/kept.js").exists()
    assert not (source / "dist").exists() and not (source / "old.js").exists()


def test_nothing_is_written_outside(tmp_path: Path, pin: Pin) -> None:
    leads_out = archive(tmp_path, **{f"{TOP}/tools/ui/../../../../../../out.js": "x"})
    with pytest.raises((tarfile.FilterError, ValueError)):
        unpack(leads_out, pin, tmp_path / "source")
    assert not list(tmp_path.parent.glob("out.js"))


CHANGE = """
[[change]]
why = "because"
file = "src/app.html"
old = "upstream's"
new = "ours"
"""


def test_changes_are_made_where_upstreams_text_is_as_it_was(tmp_path: Path, pin: Pin) -> None:
    source = tmp_path / "source"
    unpack(archive(tmp_path, **{f"{TOP}/tools/ui/src/app.css": "a a"}), pin, source)
    (source / "src/app.html").write_text("it is upstream's")
    change(source, CHANGE)
    assert (source / "src/app.html").read_text() == "it is ours"
    twice = CHANGE.replace("app.html", "app.css").replace("upstream's", "a")
    moved = [CHANGE, twice, CHANGE.replace("app.html", "gone.html")]
    for changes, times in zip(moved, (0, 2, 0), strict=True):
        with pytest.raises(UserError, match=f"{times} times, not 1: because"):
            change(source, changes)
    change(source, twice + "times = 2")
    assert (source / "src/app.css").read_text() == "ours ours"


def test_without_node_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError) as raised:
        check_node()
    assert "make dist CHAT=" in (raised.value.hint or "")


def test_each_script_within_the_html_is_in_the_index_by_its_hash(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    page = "<script>one()</script><p><script>two()</script><script src=three.js></script>"
    (tmp_path / "dist/index.html").write_text(page)
    pack(tmp_path / "dist", tmp_path / "out")
    scripts = json.loads((tmp_path / "out" / INDEX_NAME).read_text())["scripts"]
    assert scripts == [script_digest(b"one()"), script_digest(b"two()")]
    assert scripts[0] == "sha256-" + base64.b64encode(hashlib.sha256(b"one()").digest()).decode()


def licences(*notices: str) -> str:
    return f"\n{'-' * 80}\n\n".join(f"{notice}\n" for notice in notices)


def test_two_versions_of_a_package_are_two_parts_of_the_bill(tmp_path: Path, pin: Pin) -> None:
    describe(
        licences("llama.cpp: MIT\n\ntext", "@a/b 1.0.0: ISC\n\nx", "@a/b 2.0.0: ISC\n\ny"), tmp_path, pin
    )
    bill = json.loads((tmp_path / BILL_NAME).read_text())
    assert [part["bom-ref"] for part in bill["components"]] == ["llama.cpp", "@a/b@1.0.0", "@a/b@2.0.0"]
    assert bill["components"][1]["purl"] == "pkg:npm/%40a/b@1.0.0"


def test_a_licence_that_a_package_does_not_name_is_read_from_its_text() -> None:
    (part,) = page_parts(licences("a 1.0.0: undefined\n\nMIT License\n\nCopyright"))
    assert part.licence == "MIT"
    with pytest.raises(UserError):
        page_parts(licences("a 1.0.0: undefined\n\nAll rights reserved"))


@pytest.mark.skipif(not (CHAT_FOLDER / LICENCES_NAME).exists(), reason="needs `make chat`")
def test_the_project_names_every_licence_of_the_page() -> None:
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    parts = page_parts((CHAT_FOLDER / LICENCES_NAME).read_text())
    assert {part.licence for part in parts} == set(re.split(r" AND ", named))


def test_a_page_with_a_policy_of_its_own_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    html = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'" />'
    (tmp_path / "dist/remote.html").write_text(html, encoding="utf-8")
    (tmp_path / "dist/index.html").write_text("<p>", encoding="utf-8")
    pack(tmp_path / "dist", tmp_path / "out", page="/mesh", below="/mesh/")
    served = mesh_page(tmp_path / "out")
    assert served is not None
    assert served["/mesh/remote.html"].policy == "default-src 'none'; frame-ancestors 'none'"
    assert "script-src 'self'" in served["/mesh"].policy
