"""The sources of the mesh page: what is built from, and what may not be in them."""

import json
import re
from pathlib import Path

from wheels import mesh_page


def test_the_copy_to_build_has_the_licence_and_keeps_installed_packages(tmp_path: Path) -> None:
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "kept").touch()
    (tmp_path / "stale.ts").touch()
    mesh_page.copy_source(tmp_path)
    names = {entry.name for entry in tmp_path.iterdir()}
    assert {"LICENSE", "notices.ts", "package.json", "src", "node_modules"} <= names
    assert "stale.ts" not in names and (tmp_path / "node_modules" / "kept").exists()


def test_each_package_has_an_exact_version_and_the_lock_names_no_registry() -> None:
    asked = json.loads((mesh_page.SOURCE / "package.json").read_text(encoding="utf-8"))["devDependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in asked.values()), asked
    lock = (mesh_page.SOURCE / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in lock and lock.count('"integrity"') > 20


def test_no_text_becomes_html_and_no_style_is_in_it() -> None:
    views = [*mesh_page.SOURCE.glob("src/**/*.svelte")]
    assert views
    for view in views:
        text = view.read_text(encoding="utf-8")
        assert "{@html" not in text and not re.search(r"\sstyle=", text), view.name
