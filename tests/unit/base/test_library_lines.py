"""What libraries log comes to our log, whichever library it is, and nothing of it to stderr at once."""

import io
import json
import logging
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.base import log
from meshd.base.library_lines import LibraryLines
from meshd.base.peer_limits import KIND_LINES

ROOT = Path(__file__).parents[3]
# In a process of its own: all of meshd and what it depends on is imported, and each logger says something.
ALL_SPEAK = """
import importlib, io, json, logging, pkgutil, sys
import meshd
from meshd.base import log
for found in pkgutil.walk_packages(meshd.__path__, "meshd."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
for name in sys.argv[1:]:
    importlib.import_module(name)
stream = io.StringIO()
log.set_up(form="json", stream=stream)
known = logging.root.manager.loggerDict
names = sorted(name for name, one in known.items() if isinstance(one, logging.Logger))
for name in names:
    logging.getLogger(name).critical("who hears me?")
said = [json.loads(line) for line in stream.getvalue().splitlines()]
print(json.dumps([names, said]))
"""


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What the tests set up ends with them."""
    yield
    log.set_up(level="warning")


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_every_logger_of_every_library_ends_in_our_log_and_nowhere_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    libraries = [one.partition(">")[0] for one in project["dependencies"]]
    done = subprocess.run(
        [sys.executable, "-c", ALL_SPEAK, *libraries],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    names, said = json.loads(done.stdout)
    assert done.stderr == ""
    assert [one["library"] for one in said] == names
    assert {(one["event"], one["why"]) for one in said} == {("library_said", "who hears me?")}
    known = {name.partition(".")[0] for name in names}
    assert {"aiohttp", "asyncio", "aiortc", "aioice", "quic", "huggingface_hub", "zeroconf"} <= known


def test_only_one_place_hears_them_however_often_it_is_set_up() -> None:
    for _ in range(3):
        log.set_up()
    ours = [one for one in logging.getLogger().handlers if isinstance(one, LibraryLines)]
    assert len(ours) == 1 and logging.lastResort is ours[0]


def test_one_line_however_much_it_says() -> None:
    stream = io.StringIO()
    log.set_up(stream=stream)
    try:
        raise ValueError("of this\n" * 1000)
    except ValueError:
        logging.getLogger("aiohttp.server").exception("Error\n\x1b[2J from %s", "192.0.2.1")
    text = stream.getvalue()
    assert text.count("\n") == 1 and "\x1b" not in text and len(text) < 800
    assert "Error" in text and "192.0.2.1" in text and "ValueError" in text and "Traceback" not in text


def test_one_library_that_never_ends_leaves_room_for_others() -> None:
    stream, now = io.StringIO(), 0.0
    log.set_up(form="json", stream=stream, clock=lambda: now)
    for _ in range(1000):
        logging.getLogger("aiohttp.server").error("Error handling request")
    assert len(lines(stream)) == KIND_LINES.burst
    logging.getLogger("asyncio").warning("something else")
    assert lines(stream)[-1]["library"] == "asyncio"
    now = 3600.0
    logging.getLogger("aiohttp.server").error("Error handling request")
    assert lines(stream)[-1]["left_out"] == 1000 - KIND_LINES.burst


def test_words_that_do_not_fit_their_values_are_told_as_they_are() -> None:
    said: list[tuple[str, str]] = []
    record = logging.LogRecord("quic", logging.ERROR, "", 0, "%d of %s", ("three",), None)
    LibraryLines(lambda *what: said.append(what)).handle(record)
    assert said == [("quic", "%d of %s")]


class Unspeakable(Exception):
    """Nobody can say what it is."""

    def __str__(self) -> str:
        raise AttributeError("half made")


@pytest.mark.parametrize(
    ("words", "values", "told"),
    [
        ("%s has ended", (Unspeakable(),), "%s has ended (it cannot be told: AttributeError)"),
        (Unspeakable(), (), "Unspeakable (it cannot be told: AttributeError)"),
        ("it has ended", (), "it has ended (it cannot be told: AttributeError)"),
    ],
    ids=["value", "words", "error"],
)
def test_what_cannot_be_told_is_said_and_the_library_goes_on(
    words: object, values: tuple[object, ...], told: str
) -> None:
    stream = io.StringIO()
    log.set_up(form="json", stream=stream)
    (ours,) = [one for one in logging.getLogger().handlers if isinstance(one, LibraryLines)]
    error = (Unspeakable, Unspeakable(), None)
    for _ in range(1000):  # to ours alone: the one of pytest raises
        ours.handle(logging.LogRecord("aioice.ice", logging.ERROR, "", 0, words, values, error))
    assert {(one["library"], one["why"]) for one in lines(stream)} == {("aioice.ice", told)}
    assert len(lines(stream)) == KIND_LINES.burst


def test_a_log_that_fails_fails_no_library() -> None:
    def say(_library: str, _what: str) -> None:
        raise RuntimeError("no log")

    record = logging.LogRecord("quic", logging.ERROR, "", 0, "lost", (), None)
    assert LibraryLines(say).handle(record)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_the_end_of_the_process_passes(error: BaseException) -> None:
    def say(_library: str, _what: str) -> None:
        raise error

    record = logging.LogRecord("quic", logging.ERROR, "", 0, "lost", (), None)
    with pytest.raises(type(error)):
        LibraryLines(say).handle(record)


def test_what_is_no_warning_is_not_told() -> None:
    stream = io.StringIO()
    log.set_up(level="debug", stream=stream)
    logging.getLogger("httpx2").info("GET https://huggingface.co/signed?X-Amz-Signature=secret")
    assert stream.getvalue() == ""
