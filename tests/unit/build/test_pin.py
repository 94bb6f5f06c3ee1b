"""meshd.build.pin: the pin of this checkout, and broken ones."""

from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build.pin import native_folder, patches_digest, read_pin


def test_the_pin_of_this_checkout() -> None:
    pin = read_pin()
    assert len(pin.commit) == 40
    assert len(pin.sdist.sha256) == len(pin.patches_sha256) == 64
    assert pin.rpc_protocol == "7.0.0"
    assert pin.sdist.requirement.split("==")[1] in pin.sdist.file
    # every file that a patch changes and that tells the commit must be one that exists there
    assert {change.path for change in pin.patches if not change.is_new} >= {"src/llama-model.cpp"}


def test_every_patch_says_what_why_and_where_upstream_is() -> None:
    patches = sorted((native_folder() / "patches").glob("*.patch"))
    assert patches
    assert [path.name[:4] for path in patches] == [f"{number:04}" for number in range(1, len(patches) + 1)]
    for path in patches:
        header = path.read_text("utf-8").split("\ndiff --git ")[0]
        assert path.name[4] == "-"
        for part in ("Subject: ", "\nWhy: ", "\nUpstream: ", "\nTest: "):
            assert part in header, f"{path.name} has no `{part.strip()}`"


def test_every_patch_has_a_row_that_says_what_it_is_for() -> None:
    patches = sorted((native_folder() / "patches").glob("*.patch"))
    page = (native_folder().parent / "docs" / "native-patches.md").read_text("utf-8")
    rows = [line[2:6] for line in page.splitlines() if line.startswith("| 0") and line.count("|") == 6]
    assert rows == [path.name[:4] for path in patches]


def test_the_digest_sees_names_order_and_bytes() -> None:
    texts = [("1", b"ab"), ("2", b"c")]
    digests = {
        patches_digest(texts),
        patches_digest(texts[::-1]),
        patches_digest([("1", b"a"), ("2", b"bc")]),
        patches_digest([("1", b"ab"), ("3", b"c")]),
        patches_digest(texts[:1]),
    }
    assert len(digests) == 5


@pytest.mark.parametrize("text", [None, "not = [toml", "name = 1\n", 'name = "x"\nsdist = 3\n', "\xff"])
def test_a_broken_pin_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "UPSTREAM.toml").write_text(text, "latin-1")
    with pytest.raises(UserError, match="cannot read the pin"):
        read_pin(tmp_path)
