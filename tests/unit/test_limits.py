"""The table of limits: whole, and the excerpt in docs/security.md."""

from pathlib import Path

import pytest
from meshd.base.admission import Share
from meshd.base.peer_limits import ALL_LIMITS

from tests.limits import BEGIN, END, with_table
from tests.rules.source import ROOT


def test_no_two_limits_are_told_alike() -> None:
    assert len(ALL_LIMITS) == len({(row.what, row.of) for row in ALL_LIMITS})


def test_a_limit_limits() -> None:
    for row in ALL_LIMITS:
        limits = row.most > 0 if isinstance(row, Share) else row.per_second > 0 and row.burst >= 1
        assert limits and row.what and row.beyond, row


def test_the_page_shows_the_table_as_it_is() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    assert with_table(page) == page, "run `make reference`"


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs"):
        with_table("# Security")
    assert with_table(f"{BEGIN}old{END}").count(ALL_LIMITS[0].what) == 1
