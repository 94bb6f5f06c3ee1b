"""The sources of the mesh page: what is built from, and what may not be in them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from wheels import mesh_page

ON_GROUNDS = {
    "ground panel": "text quiet accent good warn bad",
    "code": "text quiet",
    "accent": "accent-text",
    "good-ground": "text good",
    "warn-ground": "text warn",
    "bad-ground": "text bad",
    "part-1 part-2 part-3 part-4 part-5 part-6": "panel",
}
"""Texts that stand on each ground."""


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


def _colours(css: str) -> Mapping[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css))


def _luminance(colour: str) -> float:
    """The relative luminance of WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _contrast(one: str, other: str) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_lines_can_be_told_from_their_ground(scheme: str) -> None:
    css = (mesh_page.SOURCE / "src/page.css").read_text(encoding="utf-8")
    light, _, rest = css.partition("@media (prefers-color-scheme: dark)")
    dark, _, _ = rest.partition("\n* {")
    colours = _colours(light if scheme == "light" else dark)
    pairs = [
        (text, ground, 4.5)
        for grounds, texts in ON_GROUNDS.items()
        for ground in grounds.split()
        for text in texts.split()
    ]
    pairs += [("strong-line", ground, 3.0) for ground in ("ground", "panel")]
    low = {
        (one, other): round(found, 2)
        for one, other, least in pairs
        if (found := _contrast(colours[one], colours[other])) < least
    }
    assert low == {}


def test_contrast_is_computed_as_wcag_does() -> None:
    assert _contrast("#000000", "#ffffff") == pytest.approx(21)
    assert _contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
