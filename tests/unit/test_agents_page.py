"""Test what real programs did (tests/recorded): how it is judged, and what the page of it must have."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.recorded.page import COLUMNS, FAULTS, REASONS, RESULTS, TEMPLATES, failed, parts
from tests.recorded.run import TIMED_OUT, Outcome
from tests.recorded.scene import Note
from tests.recorded.verdict import Cell, fault, listing, streams, turns

_CHAT = "/v1/chat/completions"
_PASSED = {"passed": True, "seen": "message after 1 s"}
_REFUSAL = b'{"error": {"message": "this is not a key of this API: send a key", "type": "x"}}'


def _outcome(*pieces: tuple[float, str], status: int = 0) -> Outcome:
    return Outcome(status, 100.0, 9.0, pieces)


def _note(status: int, answer: bytes, *, steps: int = 0, path: str = _CHAT) -> Note:
    messages = [{"role": "assistant", "tool_calls": [{}]} for _ in range(steps)]
    note = Note("POST", path, {"messages": messages}, 102.0, status, "application/json")
    note.answer += answer
    return note


def _judged(*pieces: tuple[float, str], status: int = 1, column: str = "401") -> Cell:
    outcome = _outcome(*pieces, status=status)
    return fault(column, outcome, [_note(401, _REFUSAL)], must_end=True)


def test_a_message_counts_from_when_its_first_words_are_there() -> None:
    cell = _judged((3.0, "Error: this is not\n a \x1b[1mkey"), (5.0, " of this API"), (6.0, ": send"))
    assert cell.passed
    assert cell.seen.startswith("message after 3 s: “this is not a key of this API")
    assert cell.seen.endswith("1 request, ends after 7 s")


def test_words_that_name_the_cause_are_the_programs_own() -> None:
    cell = _judged((4.0, "thinking\n"), (5.0, "failed: 401 Unauthorized\n"))
    assert (cell.passed, cell.seen.startswith("own words after 3 s: “failed: 401")) == (True, True)


@pytest.mark.parametrize(
    ("printed", "status"),
    [("something went wrong", 1), ("", 0), ("item 14013", 1), ("this is not a key of this API", TIMED_OUT)],
)
def test_no_cause_or_no_end_fails(printed: str, status: int) -> None:
    assert _judged((4.0, printed), status=status).passed is False


def test_without_a_request_nothing_passes() -> None:
    assert fault("401", _outcome((1.0, "401")), [], must_end=True).passed is False
    assert turns(_outcome(), [], calls_tools=True).passed is False
    assert streams([]).passed is False


@pytest.mark.parametrize(
    ("steps", "status", "end", "passed"),
    [
        (3, 200, 0, True),
        (2, 200, 0, False),
        (3, 200, 1, False),
        (3, 500, 0, False),
        (3, 200, TIMED_OUT, False),
    ],
)
def test_three_turns_are_all_answered_and_end_without_an_error(
    steps: int, status: int, end: int, passed: bool
) -> None:
    notes = [_note(200, b"{}", steps=at) for at in range(steps)] + [_note(status, b"{}", steps=steps)]
    assert turns(_outcome(status=end), notes, calls_tools=True).passed is passed


def test_an_answer_that_the_packages_do_not_take_fails() -> None:
    assert streams([_note(200, b'{"choices": []}')]).passed is False


def test_models_are_asked_for_and_shown() -> None:
    asked = Note("GET", "/v1/models", None, 101.0, 200)
    shown = _outcome((1.0, "local-model\n"))
    assert listing(shown, [asked]).passed is True
    assert listing(shown, []).passed is False, "it may have the name from its configuration"
    assert listing(_outcome((1.0, "none")), [asked]).passed is False
    assert listing(None, []).passed is None
    assert listing(None, [asked]).passed is True


def _kept() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(RESULTS.read_text())
    return kept


def _rows(columns: Sequence[str], templates: Sequence[str]) -> dict[str, list[str]]:
    """Return what each program lacks of these."""
    return {
        name: [
            f"{template}: {column}"
            for template in templates
            for column in columns
            if column not in program["cells"].get(template, {})
        ]
        for name, program in _kept()["programs"].items()
    }


def test_at_least_twelve_programs_were_tried_in_every_column() -> None:
    lacking = _rows(COLUMNS, TEMPLATES[:1])
    assert len(lacking) >= 12
    assert not any(lacking.values()), lacking
    assert {"503", "401", "404", "context", "cut"} == set(FAULTS)


def test_all_turns_were_tried_on_three_templates() -> None:
    lacking = _rows(("starts", "turns", "stream"), TEMPLATES)
    assert len(TEMPLATES) == 3
    assert not any(lacking.values()), lacking


def test_the_page_names_each_cell_that_was_not_tried() -> None:
    kept = _kept()
    first, *others = kept["programs"]
    for program in kept["programs"].values():
        program["cells"] = {template: dict.fromkeys(COLUMNS, _PASSED) for template in TEMPLATES}
    assert "not tried" not in parts(kept)["programs"]
    for name in others:
        for template in TEMPLATES[1:]:
            for column in ("503", "cut"):
                del kept["programs"][name]["cells"][template][column]
    told = [line for line in parts(kept)["programs"].splitlines() if line.startswith("- not tried")]
    both = f"{TEMPLATES[1]} and {TEMPLATES[2]}"
    assert told == [f"- not tried with {both}: 503: no worker, answer cut off (all programs but {first})"]


def test_each_failure_has_its_reason_on_the_page() -> None:
    kept = _kept()
    assert set(failed(kept)) == set(REASONS)
    told = parts(kept)["what fails"]
    assert all(reason in told for reason in REASONS.values())
