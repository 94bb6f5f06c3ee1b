"""`make soak` runs every test that does more where there is time."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MORE = re.compile(r"^from tests\.e2e\.nodes import (\([^)]*|[^(\n]*)\b(counts|SOAK)\b", re.MULTILINE)


def _soak() -> list[str]:
    """What `make soak` gives to pytest."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.search(r"^soak:.*\n\tMESHD_SOAK=1 .* pytest (.*)$", text, re.MULTILINE)
    assert found
    return [word for word in found.group(1).split() if word.startswith("tests/")]


def test_whatever_does_more_is_in_it() -> None:
    more = {
        path.relative_to(ROOT)
        for path in (ROOT / "tests").rglob("*.py")
        if path.name.startswith(("test_", "conftest")) and MORE.search(path.read_text(encoding="utf-8"))
    }
    more.discard(Path(__file__).relative_to(ROOT))
    given = [Path(word) for word in _soak()]
    assert all((ROOT / path).exists() for path in given)
    left_out = {path for path in more if not any(path.is_relative_to(one) for one in given)}
    assert not left_out
