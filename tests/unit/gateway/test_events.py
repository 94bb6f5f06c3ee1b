"""Where events end, and how many tokens went by."""

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.events import (
    _EVENT,
    EventSplitter,
    StreamForm,
    TokenCount,
    answer_timings,
    exact_tokens,
    whole_events,
)
from meshd.gateway.interface import AnswerTimings

LINE_ENDS = ("\n", "\r\n", "\r")


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(st.binary(max_size=400), st.lists(st.integers(0, 1000), max_size=20), st.integers(0, 50))
def test_bytes_come_out_as_they_went_in_and_memory_is_bounded(
    data: bytes, places: list[int], most: int
) -> None:
    splitter = EventSplitter(held_bytes=most)
    out = b""
    fed = 0
    for piece in cut(data, places):
        out += splitter.feed(piece)
        fed += len(piece)
        assert data.startswith(out)
        assert fed - len(out) <= most + len(piece)
    assert out + splitter.rest() == data


@given(
    st.lists(st.text("abc: {}\"'", min_size=1, max_size=20), min_size=1, max_size=8),
    st.sampled_from(LINE_ENDS),
    st.lists(st.integers(0, 1000), max_size=30),
)
def test_what_goes_on_always_ends_between_events(bodies: list[str], end: str, places: list[int]) -> None:
    events = [f"data: {body}{end}{end}".encode() for body in bodies]
    edges = {sum(map(len, events[:count])) for count in range(len(events) + 1)}
    splitter = EventSplitter()
    gone = 0
    for piece in cut(b"".join(events), places):
        gone += len(splitter.feed(piece))
        # the LF of a closing CRLF may follow alone when the cut is within it
        assert gone in edges or (end == "\r\n" and gone + 1 in edges)
        assert splitter.between_events
    assert splitter.rest() == b""


def test_a_whole_event_is_never_held() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\n") == b"data: 1\n\n"
    assert splitter.feed(b"data: 2\n\ndata: 3") == b"data: 2\n\n"
    assert splitter.feed(b"\n") == b""
    assert splitter.feed(b"\n") == b"data: 3\n\n"


def test_an_event_over_the_limit_goes_on_in_pieces_and_is_known_to_be_unfinished() -> None:
    splitter = EventSplitter(held_bytes=4)
    seen = [(splitter.feed(piece), splitter.between_events) for piece in (b"data", b": xyz\n", b"\nda")]
    assert seen == [(b"", True), (b"data: xyz\n", False), (b"\n", True)]
    assert splitter.rest() == b"da"


@given(st.lists(st.booleans(), max_size=30))
def test_between_events_is_true_when_the_last_byte_let_out_ended_one(ends: list[bool]) -> None:
    splitter = EventSplitter(held_bytes=4)
    for end in ends:
        splitter.feed(b"data: x\n\n" if end else b"data: x")
        assert splitter.between_events == end


FEW_BYTES = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"data: b"]), max_size=20).map(b"".join)


def cut_by_blank_lines(data: bytes) -> list[bytes]:
    """The same by its definition: an event is at least a byte, and its blank line."""
    blank, events = re.compile(rb"\n\r?\n|\r\r"), []
    while data:
        found = blank.search(data, 1)
        end = len(data) if found is None else found.end()
        events.append(data[:end])
        data = data[end:]
    return events


@given(FEW_BYTES)
def test_each_event_has_its_blank_line_and_the_last_may_be_without(data: bytes) -> None:
    events = list(whole_events(data))
    assert events == cut_by_blank_lines(data)
    assert b"".join(events) == data


@given(FEW_BYTES, st.integers(0, 1000))
def test_one_try_at_any_byte_finds_an_event(data: bytes, at: int) -> None:
    """A try that fails would be repeated at each of the bytes behind: the time would grow as their square."""
    start = at % (len(data) + 1)
    found = _EVENT.match(data, start)
    assert (found is not None) == (start < len(data))


def data(fields: object) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def chat(delta: object, **more: object) -> bytes:
    return data({"choices": [{"delta": delta}], **more})


def test_pieces_of_text_are_counted_until_the_exact_number_comes() -> None:
    count = TokenCount(StreamForm.OPENAI)
    assert count.feed(chat({"role": "assistant", "content": None})) == 0
    assert count.feed(chat({"content": "a"}) + chat({"reasoning_content": "b"})) == 2
    assert count.feed(chat({"content": ""})) == 0
    assert count.feed(chat({}, timings={"predicted_n": 9})) == 7
    assert count.feed(data({"choices": [], "usage": {"completion_tokens": 9, "prompt_tokens": 99}})) == 0
    assert count.feed(b"data: [DONE]\n\n") == 0
    assert count.total == 9


def test_other_dialects_are_counted() -> None:
    responses = TokenCount(StreamForm.RESPONSES)
    for text in ("a", "b"):
        responses.feed(data({"type": "response.output_text.delta", "delta": text}))
    responses.feed(data({"type": "response.output_text.done", "text": "ab"}))
    responses.feed(data({"type": "response.completed", "response": {"output": [{"text": "ab"}]}}))
    assert responses.total == 2
    anthropic = TokenCount(StreamForm.ANTHROPIC)
    anthropic.feed(data({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}))
    assert anthropic.total == 1
    anthropic.feed(data({"type": "message_delta", "usage": {"output_tokens": 3}}))
    assert anthropic.total == 3
    transcript = TokenCount(StreamForm.TRANSCRIPT)
    transcript.feed(data({"type": "transcript.text.delta", "delta": "a"}))
    assert transcript.total == 1
    transcript.feed(data({"type": "transcript.text.done", "text": "ab", "usage": {"output_tokens": 2}}))
    assert transcript.total == 2


@given(st.text())
def test_generated_text_cannot_pass_for_a_number(text: str) -> None:
    liar = f'{text}"completion_tokens": 77, \\"predicted_n": 88'
    assert exact_tokens(chat({"content": liar})) == 0


@pytest.mark.parametrize("name", ["completion_tokens", "output_tokens", "predicted_n", "tokens_predicted"])
def test_every_name_of_the_exact_number_is_known(name: str) -> None:
    assert exact_tokens(json.dumps({"usage": {name: 12, f"{name}_details": 99}}).encode()) == 12


@given(st.binary())
def test_any_bytes_can_be_counted(junk: bytes) -> None:
    for form in StreamForm:
        assert TokenCount(form).feed(junk) >= 0
    answer_timings(junk)


TIMINGS = {"prompt_n": 12, "prompt_ms": 24.0, "predicted_n": 50, "predicted_ms": 1000.0, "cache_n": 3}


def test_what_llama_server_says_of_the_time_is_read() -> None:
    body = json.dumps({"choices": [], "usage": {"completion_tokens": 50}, "timings": TIMINGS}).encode()
    assert answer_timings(b"data: " + body + b"\n\n") == AnswerTimings(12, 0.024, 50, 1.0)
    assert answer_timings(b'data: {"choices":[]}\n\n') is None


def test_drafts_are_read_where_there_were_any() -> None:
    drafts = {"draft_n": 40, "draft_n_accepted": 30}
    body = json.dumps({"timings": {**TIMINGS, **drafts}}).encode()
    assert answer_timings(body) == AnswerTimings(12, 0.024, 50, 1.0, 40, 30)
    assert answer_timings(json.dumps({"timings": {**TIMINGS, "draft_n": -1}}).encode()) is None


@pytest.mark.parametrize(
    "wrong",
    [{"prompt_n": -1}, {"prompt_ms": "1"}, {"predicted_n": 1e13}, {"predicted_ms": None}, {"prompt_n": [1]}],
)
def test_times_that_make_no_sense_are_none(wrong: dict[str, object]) -> None:
    assert answer_timings(json.dumps({"timings": {**TIMINGS, **wrong}}).encode()) is None


def test_times_nested_too_deeply_are_none() -> None:
    assert answer_timings(b'{"timings": {"prompt_n": ' + b"[" * 980 + b"}}") is None


@given(st.text())
def test_generated_text_cannot_pass_for_a_time(text: str) -> None:
    liar = f'{text}"timings": {json.dumps(TIMINGS)}'
    assert answer_timings(chat({"content": liar})) is None
