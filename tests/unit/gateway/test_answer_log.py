"""The log of answers: its lines, its size, its owner, and what a restart reads from it."""

import io
import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base import log as logging
from meshd.base.errors import UserError
from meshd.gateway.answer_log import AnswerLog, LoggedAnswer, utc_text

ANSWER = LoggedAnswer(
    time="2026-11-23T16:35:00.123Z",
    key="anna",
    model="tiny",
    path="/v1/chat/completions",
    prompt_tokens=12,
    cached_tokens=7,
    generated_tokens=9,
    waited_s=0.25,
    computed_s=1.5,
    status=200,
)
DAY = "2026-11-23"


def test_times_are_utc() -> None:
    assert utc_text(1795451700.1234) == "2026-11-23T16:35:00.123Z"


def test_a_line_is_one_object_and_the_file_its_owner_s(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "answers.jsonl"
    log = AnswerLog(path)
    log.write(ANSWER)
    log.write(replace(ANSWER, key=None, prompt_tokens=None))
    log.close()
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert LoggedAnswer(**first) == ANSWER
    assert second["key"] is None
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_two_files_of_bounded_size_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    log = AnswerLog(path, most=1000)
    for _ in range(50):
        log.write(ANSWER)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2000
    log.close()
    assert {file.name for file in tmp_path.iterdir()} == {"answers.jsonl", "answers.jsonl.1"}


def test_tokens_of_a_day_are_counted_over_both_files(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path / "answers.jsonl", most=600)
    for answer in (
        replace(ANSWER, time="2026-11-22T23:59:59.999Z"),
        ANSWER,
        replace(ANSWER, key="bob", prompt_tokens=None),
        replace(ANSWER, key=None),
    ):
        log.write(answer)
    assert (tmp_path / "answers.jsonl.1").exists()
    assert log.tokens_by_key(DAY) == {"anna": 21, "bob": 9}
    log.close()


def test_lines_that_a_disk_did_not_take_are_counted(tmp_path: Path) -> None:
    told = io.StringIO()
    logging.set_up(level="warning", stream=told)
    folder = tmp_path / "logs"
    folder.write_text("a file in its place")
    log = AnswerLog(folder / "answers.jsonl")
    try:
        log.write(ANSWER)
        log.write(ANSWER)
        assert told.getvalue().count("answer_log_lost") == 1
        folder.unlink()
        log.write(ANSWER)
    finally:
        logging.set_up(level="warning")
        log.close()
    assert "answer_log_back" in told.getvalue() and "count=2" in told.getvalue()


def test_without_files_nothing_was_used(tmp_path: Path) -> None:
    assert AnswerLog(tmp_path / "answers.jsonl").tokens_by_key(DAY) == {}


def test_a_file_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").mkdir()
    with pytest.raises(UserError, match="cannot read the log of answers"):
        AnswerLog(tmp_path / "answers.jsonl").tokens_by_key(DAY)


@given(st.binary())
def test_any_file_can_be_read(junk: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answers.jsonl"
        path.write_bytes(
            junk + b'\n{"time": "2026-11-23' + junk + b"\n" + json.dumps(asdict(ANSWER)).encode()
        )
        assert AnswerLog(path).tokens_by_key(DAY)["anna"] == 21
