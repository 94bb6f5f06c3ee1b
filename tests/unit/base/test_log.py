"""Logs: where they go, what they never hold, and that they never harm the program."""

import io
import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.base import log

EARLY = log.get("test")  # as a module makes one at import, before anything is set up


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What the tests set up ends with them."""
    yield
    log.set_up(level="warning")


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_logger_made_at_import_follows_a_later_set_up() -> None:
    stream = io.StringIO()
    log.set_up(level="info", form="json", stream=stream)
    EARLY.info("link_up", peer="garage")
    EARLY.debug("not_seen")
    [line] = lines(stream)
    assert (line["event"], line["level"], line["area"], line["peer"]) == ("link_up", "info", "test", "garage")


def test_nothing_goes_to_stdout_before_anything_is_set_up(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up(level="warning")
    EARLY.warning("link_lost")
    EARLY.info("not_seen")
    out, err = capsys.readouterr()
    assert out == "" and "link_lost" in err and "not_seen" not in err


def test_secrets_are_replaced() -> None:
    stream = io.StringIO()
    log.set_up(form="text", stream=stream)
    for name in log.SECRET_FIELDS:
        EARLY.warning("x", **{name: "sesame"})
    assert "sesame" not in stream.getvalue() and stream.getvalue().count("[redacted]") == len(
        log.SECRET_FIELDS
    )


def test_sizes_have_units_for_people_and_are_exact_for_programs() -> None:
    text, document = io.StringIO(), io.StringIO()
    log.set_up(form="text", stream=text)
    EARLY.info("device", free=25_276_063_744, bytes=96_600_000, count=3)
    assert "free='23.5 GiB'" in text.getvalue() and "bytes='96.6 MB'" in text.getvalue()
    assert "count=3" in text.getvalue()
    log.set_up(form="json", stream=document)
    EARLY.info("device", free=25_276_063_744)
    assert lines(document)[0]["free"] == 25_276_063_744


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_peers_text_cannot_end_a_line_or_move_the_cursor(form: str) -> None:
    stream = io.StringIO()
    log.set_up(form=form, stream=stream)
    EARLY.warning("link_lost", why="bye\n2026 [error] forged \x1b[2J")
    text = stream.getvalue()
    assert text.count("\n") == 1 and "\x1b" not in text


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("letter", ["x", "\n", "\U0001f600\x1b"])
def test_a_peers_text_cannot_fill_the_file(form: str, letter: str) -> None:
    stream = io.StringIO()
    log.set_up(form=form, stream=stream)
    EARLY.warning("link_lost", why=letter * 100_000)
    assert "more)" in stream.getvalue() and len(stream.getvalue()) < 50_000


def test_a_value_that_is_not_too_long_is_whole() -> None:
    stream = io.StringIO()
    log.set_up(form="json", stream=stream)
    EARLY.warning("link_lost", why="x" * 4000)
    EARLY.warning("link_lost", why="x" * 4000 + "yz")
    assert [line["why"] for line in lines(stream)] == ["x" * 4000, "x" * 4000 + "… (2 more)"]


def test_a_file_is_kept_beside_the_stream(tmp_path: Path) -> None:
    stream, path = io.StringIO(), tmp_path / "home" / "logs" / "meshd.log"
    log.set_up(stream=stream, file=path)
    EARLY.warning("link_lost")
    assert path.read_text() == stream.getvalue() != ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (path.parent, path.parent.parent):  # also those that it makes on the way
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_stream_that_has_gone_costs_nothing(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    path = tmp_path / "x.log"
    stream = os.fdopen(writing, "w")
    try:
        log.set_up(stream=stream, file=path)
        EARLY.warning("link_lost")
        closed = io.StringIO()
        closed.close()
        log.set_up(stream=closed, file=path)
        EARLY.warning("link_up")
    finally:
        with pytest.raises(BrokenPipeError):
            stream.close()
    text = path.read_text()
    assert text.count("\n") == 2 and text.index("link_lost") < text.index("link_up")


def test_a_child_that_asyncio_has_reaped_itself_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    log.set_up()
    asyncio_log = logging.getLogger("asyncio")
    asyncio_log.warning("Unknown child process pid %d, will report returncode 255", 7)
    asyncio_log.warning("child process pid %d exit status already read:  will report returncode 255", 7)
    asyncio_log.warning("something else")
    assert [record.message for record in caplog.records] == ["something else"]
