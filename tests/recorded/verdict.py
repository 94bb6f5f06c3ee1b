"""Judge what a program did in a scene: cells of the table. Pure.

A cell that passes says what was seen all the same: the table is for people who choose a program.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.recorded.judge import read_answer
from tests.recorded.programs import MODEL
from tests.recorded.run import TIMED_OUT, Outcome
from tests.recorded.scene import Note
from tests.recorded.script import STEPS, step_of

FIRST_WORDS = 5  # of a message, by which it is found in what a program prints
_SHOWN_LETTERS = 160
_WORD = re.compile(r"[a-zA-Z]{3,}")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\][^\x07]*\x07|[\r\x08]")
_MESSAGE = re.compile(r'"message"\s*:\s*("(?:[^"\\]|\\.)*")')
# words that name the cause, where a program puts an error its own way
CAUSES: Mapping[str, re.Pattern[str]] = {
    "503": re.compile(r"\b503\b|unavailable|overloaded|not ready", re.I),
    "401": re.compile(r"\b401\b|unauthori[sz]ed|authenticat|invalid.{0,10}key|\bapi key", re.I),
    "404": re.compile(r"\b404\b|not found|not exist|no such model", re.I),
    "context": re.compile(r"context (window|length|size|limit)|prompt is too long|too many tokens", re.I),
    "cut": re.compile(r"\b50[23]\b|(connection|stream).{0,30}(lost|closed|error|ended|cut|disconnect)", re.I),
}


@dataclass(frozen=True)
class Cell:
    """One cell: None where a program has nothing to be tried."""

    passed: bool | None
    seen: str


def _chats(notes: Sequence[Note]) -> list[Note]:
    return [note for note in notes if note.is_chat]


def started(outcome: Outcome, notes: Sequence[Note]) -> Cell:
    """Judge whether the program asks the model at all."""
    chats = _chats(notes)
    seconds = chats[0].at - outcome.began if chats else 0.0
    return Cell(True, f"asks after {seconds:.0f} s") if chats else Cell(False, "asks nothing")


def turns(outcome: Outcome, notes: Sequence[Note], *, calls_tools: bool) -> Cell:
    """Judge a session of three turns with tools: all answered, and the program ends with status 0."""
    chats = _chats(notes)
    for note in chats:
        if note.status != 200:
            return Cell(False, f"{note.status}: {_short(_last_message(note) or note.answer.decode())}")
    steps = max((step_of(note.body) for note in chats if note.body), default=0)
    done = steps if calls_tools else len(chats)
    ended = "still runs" if outcome.status == TIMED_OUT else f"status {outcome.status}"
    seconds = outcome.seconds - (chats[0].at - outcome.began if chats else 0.0)
    seen = f"{done} turns, {ended} after {seconds:.0f} s"
    return Cell(outcome.status == 0 and done >= STEPS, seen)


def streams(notes: Sequence[Note]) -> Cell:
    """Judge whether the official packages' types take every answer of status 200."""
    answered = [note for note in _chats(notes) if note.status == 200]
    for note in answered:
        try:
            read_answer(note.path, note.type, bytes(note.answer))
        except (AssertionError, KeyError, ValueError) as error:
            return Cell(False, _short(str(error)))
    return Cell(bool(answered), f"{len(answered)} answers")


def listing(outcome: Outcome | None, notes: Sequence[Note]) -> Cell:
    """Judge a program's list of models; without `outcome` it has no command for one that asks a server."""
    asked = [note.status for note in notes if note.path.partition("?")[0].endswith("/models")]
    if outcome is None:
        return (
            Cell(all(status == 200 for status in asked), "asks by itself")
            if asked
            else Cell(None, "never asks")
        )
    if not asked:
        return Cell(False, f"does not ask: {_short(outcome.output)}")
    shown = MODEL in outcome.output
    return Cell(
        shown and set(asked) == {200}, f"{asked[-1]}, {'shows' if shown else 'does not show'} the model"
    )


def fault(column: str, outcome: Outcome, notes: Sequence[Note], *, must_end: bool) -> Cell:
    """Judge whether a person sees what is wrong: the API's message, or its own that names the cause.

    Seconds are those since its first request. `must_end`: it may not ask again until its time is over.
    """
    chats = _chats(notes)
    if not chats:
        return Cell(False, "asks nothing")
    messages = {message for note in chats for message in _messages(note)}
    asked_at = chats[0].at - outcome.began
    found = [one for message in messages if (one := _shown(message, outcome)) is not None]
    said, kind = min(found, default=None), "message"
    if said is None:
        said, kind = _own_words(CAUSES[column], outcome), "own words"
    ended = outcome.status != TIMED_OUT
    how = f"{'ends' if ended else 'still tries'} after {outcome.seconds - asked_at:.0f} s"
    asked = f"{len(chats)} request{'s' if len(chats) > 1 else ''}, {how}"
    if said is None:
        return Cell(False, f"nothing is shown; {asked}")
    return Cell(
        ended or not must_end, f"{kind} after {said[0] - asked_at:.0f} s: “{_short(said[1])}”; {asked}"
    )


def _messages(note: Note) -> list[str]:
    """Return the messages of errors in an answer, whole or streamed, in any of the dialects."""
    return [str(json.loads(found)) for found in _MESSAGE.findall(note.answer.decode("utf-8", "replace"))]


def _last_message(note: Note) -> str:
    return next(iter(reversed(_messages(note))), "")


def _shown(message: str, outcome: Outcome) -> tuple[float, str] | None:
    """Return when the first words of a message were printed, and the line; None if they were not."""
    wanted = " ".join(_WORD.findall(message)[:FIRST_WORDS])
    printed = ""
    for seconds, text in outcome.pieces:
        printed += text
        if wanted and wanted in " ".join(_WORD.findall(_ESCAPES.sub("", printed))):
            return seconds, message
    return None


def _own_words(cause: re.Pattern[str], outcome: Outcome) -> tuple[float, str] | None:
    printed = ""
    for seconds, text in outcome.pieces:
        printed += text
        for line in _ESCAPES.sub("", printed).splitlines():
            if found := cause.search(line):
                return seconds, line[max(0, found.start() - _SHOWN_LETTERS // 2) :]
    return None


def _short(text: str) -> str:
    plain = re.sub(r"\s+", " ", _ESCAPES.sub("", text)).strip()
    return plain if len(plain) <= _SHOWN_LETTERS else f"{plain[:_SHOWN_LETTERS]}…"
