"""llama-server's answers as bytes: events, figures, and what a client may not learn."""

import itertools
import json
import re
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.events import (
    EVENT,
    AnswerMeter,
    EventSplitter,
    answer_timings,
    hide_model_path,
    whole_events,
    without_cache,
)
from meshd.gateway.interface import AnswerTimings
from meshd.gateway.upstream import HELD_ANSWER_BYTES

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
    found = EVENT.match(data, start)
    assert (found is not None) == (start < len(data))


def data(fields: object) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def chat(delta: object, **more: object) -> bytes:
    return data({"choices": [{"delta": delta}], **more})


def test_pieces_of_text_are_counted_until_the_exact_number_comes() -> None:
    count = AnswerMeter()
    assert count.see_events(chat({"role": "assistant", "content": None})) == 0
    assert count.see_events(chat({"content": "a"}) + chat({"reasoning_content": "b"})) == 2
    assert count.see_events(chat({"content": ""})) == 0
    assert count.see_events(chat({}, timings={"predicted_n": 9})) == 7
    assert (
        count.see_events(data({"choices": [], "usage": {"completion_tokens": 9, "prompt_tokens": 99}})) == 0
    )
    assert count.see_events(b"data: [DONE]\n\n") == 0
    assert count.generated == 9


def test_a_transcript_is_counted() -> None:
    transcript = AnswerMeter(is_transcript=True)
    transcript.see_events(data({"type": "transcript.text.delta", "delta": "a"}))
    assert transcript.generated == 1
    transcript.see_events(data({"type": "transcript.text.done", "text": "ab", "usage": {"output_tokens": 2}}))
    assert transcript.generated == 2


def test_nor_does_the_slot() -> None:
    assert without_cache(b'data: {"id_slot":3,"content":"a"}\n\n') == b'data: {"id_slot":0,"content":"a"}\n\n'
    timings = b'{"timings":{"cache_n":7,"prompt_n":2,"prompt_ms":3.5}}'
    assert without_cache(timings) == b'{"timings":{"cache_n":0,"prompt_n":9,"prompt_ms":0}}'
    other = b'{"cached_tokens":7}'  # of something else
    assert without_cache(other) == other


@given(st.text())
def test_generated_text_cannot_pass_for_a_number(text: str) -> None:
    liar = f'{text}"completion_tokens": 77, \\"predicted_n": 88'
    assert AnswerMeter().see(chat({"content": liar})) == 0


@pytest.mark.parametrize("name", ["completion_tokens", "output_tokens", "predicted_n", "tokens_predicted"])
def test_every_name_of_the_exact_number_is_known(name: str) -> None:
    assert AnswerMeter().see(json.dumps({"usage": {name: 12, f"{name}_details": 99}}).encode()) == 12


@given(st.binary())
def test_any_bytes_can_be_counted(junk: bytes) -> None:
    for is_transcript in (False, True):
        assert AnswerMeter(is_transcript).see_events(junk) >= 0
    answer_timings(junk)


TIMED = {"prompt_n": 12, "prompt_ms": 24.0, "predicted_n": 50, "predicted_ms": 1000.0, "cache_n": 3}


def test_what_llama_server_says_of_the_time_is_read() -> None:
    body = json.dumps({"choices": [], "usage": {"completion_tokens": 50}, "timings": TIMED}).encode()
    assert answer_timings(b"data: " + body + b"\n\n") == AnswerTimings(12, 0.024, 50, 1.0)
    assert answer_timings(b'data: {"choices":[]}\n\n') is None


def test_drafts_are_read_where_there_were_any() -> None:
    drafts = {"draft_n": 40, "draft_n_accepted": 30}
    body = json.dumps({"timings": {**TIMED, **drafts}}).encode()
    assert answer_timings(body) == AnswerTimings(12, 0.024, 50, 1.0, 40, 30)
    assert answer_timings(json.dumps({"timings": {**TIMED, "draft_n": -1}}).encode()) is None


@pytest.mark.parametrize(
    "wrong",
    [{"prompt_n": -1}, {"prompt_ms": "1"}, {"predicted_n": 1e13}, {"predicted_ms": None}, {"prompt_n": [1]}],
)
def test_times_that_make_no_sense_are_none(wrong: dict[str, object]) -> None:
    assert answer_timings(json.dumps({"timings": {**TIMED, **wrong}}).encode()) is None


def test_times_nested_too_deeply_are_none() -> None:
    assert answer_timings(b'{"timings": {"prompt_n": ' + b"[" * 980 + b"}}") is None


@given(st.text())
def test_generated_text_cannot_pass_for_a_time(text: str) -> None:
    liar = f'{text}"timings": {json.dumps(TIMED)}'
    assert answer_timings(chat({"content": liar})) is None


TIMINGS = {"cache_n": 7, "prompt_n": 5, "prompt_ms": 1.0, "predicted_n": 9, "predicted_ms": 2.0}


def metered(*bodies: object) -> tuple[int | None, int | None]:
    meter = AnswerMeter()
    for body in bodies:
        meter.see(b"data: " + json.dumps(body).encode() + b"\n\n")
    return meter.prompt, meter.cached


@pytest.mark.parametrize(
    "bodies",
    [
        [{"usage": {"prompt_tokens": 12, "prompt_tokens_details": {"cached_tokens": 7}}}],
        [{"choices": [{"delta": {"content": "a"}}]}, {"choices": [], "timings": TIMINGS}],
        [{"tokens_predicted": 9, "tokens_evaluated": 12, "tokens_cached": 20, "timings": TIMINGS}],
        [{"type": "transcript.text.done",
          "usage": {"input_tokens": 12, "input_tokens_details": {"cached_tokens": 7}}}],
    ],
)  # fmt: skip
def test_each_form_of_llama_server(bodies: list[object]) -> None:
    assert metered(*bodies) == (12, 7)


def test_embeddings_say_nothing_of_a_cache() -> None:
    assert metered({"data": [], "usage": {"prompt_tokens": 4, "total_tokens": 4}}) == (4, None)


def test_an_answer_that_was_broken_off_says_nothing() -> None:
    assert metered({"choices": [{"delta": {"content": "a"}}]}) == (None, None)


@given(st.text())
def test_generated_text_cannot_pass_for_a_figure(text: str) -> None:
    liar = f'{text}"usage": {{"prompt_tokens": 77, \\"cached_tokens": 88'
    assert metered({"choices": [{"delta": {"content": liar}}], "timings": TIMINGS}) == (12, 7)


@pytest.mark.parametrize(
    ("events", "status"),
    [
        (b"data: {}\n\ndata: [DONE]\n\n", 200),
        (b"data: [DONE]\n\n", 200),
        (b'data: {"content":"","stop":true}\n\n', 200),
        (b'data: {"content":"a","stop":false}\n\n', 499),
        (b'data: {"content":"\\ndata: [DONE]\\n \\"stop\\":true"}\n\n', 499),
        (b"", 499),
    ],
)
def test_who_hangs_up_on_the_last_event_has_the_whole_answer(events: bytes, status: int) -> None:
    meter = AnswerMeter()
    meter.see_events(b"data: {}\n\n")
    meter.see_events(events)
    meter.hung_up()
    assert meter.status == status


def estimated(meter: AnswerMeter) -> int | None:
    return meter.estimated_prompt


IMAGE = "data:image/png;base64," + "iVBORw0KGgo" * 300_000


@pytest.mark.parametrize(
    ("content", "least", "most"),
    [
        ("a word or two " * 10_000, 46_667, 46_700),
        ([{"type": "image_url", "image_url": {"url": IMAGE}}, {"type": "text", "text": "what?"}], 4000, 5000),
        ([{"type": "input_audio", "input_audio": {"data": IMAGE[22:], "format": "mp3"}}], 4000, 5000),
        ("ab, " * (16 << 20), 0, 2 << 20),
    ],
)
def test_what_was_asked_is_estimated_for_who_does_not_wait_to_be_told(
    content: object, least: int, most: int
) -> None:
    meter = AnswerMeter(asked=json.dumps({"messages": [{"role": "user", "content": content}]}).encode())
    assert estimated(meter) is None
    meter.hung_up()
    assert least <= (estimated(meter) or 0) <= most
    meter.see(b'"usage": {"prompt_tokens": 7}')
    assert estimated(meter) is None


@pytest.mark.parametrize("run", [1, 300, 16_383, 16_384, 8 << 20])
def test_to_estimate_the_longest_prompt_takes_no_second(run: int) -> None:
    prompt = ("x" * run + " ") * ((8 << 20) // run)
    meter = AnswerMeter(asked=json.dumps({"prompt": prompt}).encode())
    meter.hung_up()
    began = time.thread_time()  # others use the same processor
    assert estimated(meter)
    assert time.thread_time() - began < 1.0


@pytest.mark.parametrize("status", [400, 502, 503])
def test_who_was_refused_or_lost_the_answer_is_charged_nothing_estimated(status: int) -> None:
    assert AnswerMeter(status=status, asked=b"{}" * 1000).estimated_prompt is None
    waited = AnswerMeter()  # llama-server was not asked
    waited.hung_up()
    assert waited.estimated_prompt is None


TOLD_NOTHING: list[tuple[dict[str, object], int]] = [
    ({"input": "abcd"}, 4),  # a third of the letters, and two for the ends
    ({"input": ["abcd", "abcd"]}, 8),
    ({"input": [1, 20_000, 300_000]}, 3),
    ({"input": [[1, 2], [3]]}, 3),
    ({"input": "语言模型"}, 6),
    ({"input": "1" * 30_000}, 10_002),  # no media, though it has no blank
    ({"query": "abc", "texts": ["abc", "abc", "abc"]}, 22),
    ({"prompt": "abc", "grammar": "root ::= word", "n_predict": 5}, 3),
]


@pytest.mark.parametrize(("asked", "tokens"), TOLD_NOTHING, ids=str)
def test_what_an_answer_does_not_tell_is_estimated(asked: dict[str, object], tokens: int) -> None:
    meter = AnswerMeter(status=200, asked=json.dumps(asked).encode())
    assert estimated(meter) == tokens
    meter.see(b'{"content": "a", "tokens_evaluated": 1}')
    assert estimated(meter) is None and meter.prompt == 1


@pytest.mark.parametrize(
    ("prompt", "least", "most"),
    [
        ([100_000] * 50_000, 50_000, 50_000 * 1.1),
        ("word " * 20_000, 20_000, 40_000),
        ([{"image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}], 1000, 5000),
    ],
)
def test_a_long_request_is_estimated_by_its_bytes(prompt: object, least: float, most: float) -> None:
    """Its fields are not looked at: that would hold up the loop."""
    body = json.dumps({"prompt": prompt}, separators=(",", ":")).encode()
    assert least <= (AnswerMeter(status=499, asked=body).estimated_prompt or 0) <= most


def test_a_form_has_a_sound() -> None:
    assert AnswerMeter(status=499, asked=b"--b\r\n" + b"\0" * 100_000).estimated_prompt == 4096


@given(st.binary())
def test_any_bytes_can_be_seen(junk: bytes) -> None:
    meter = AnswerMeter()
    meter.see(b'"usage"' + junk)
    assert (meter.prompt or 0) >= 0


_ANSWERS = {
    "chat": {
        "usage": {"prompt_tokens": 12, "prompt_tokens_details": {"cached_tokens": 7}},
        "timings": {
            "cache_n": 7,
            "prompt_n": 5,
            "prompt_ms": 1.5,
            "prompt_per_second": 3e-7,
            "predicted_n": 9,
        },
    },
    "transcript": {"usage": {"input_tokens": 12, "input_tokens_details": {"cached_tokens": 7}}},
}


def answer(kind: str, cached: int) -> bytes:
    text = json.dumps(_ANSWERS[kind])
    text = text.replace('"cached_tokens": 7', f'"cached_tokens": {cached}')
    text = text.replace('"cache_n": 7, "prompt_n": 5', f'"cache_n": {cached}, "prompt_n": {12 - cached}')
    return text.replace('"prompt_ms": 1.5', f'"prompt_ms": {1.5 + cached}').encode()


@pytest.mark.parametrize("kind", _ANSWERS)
def test_an_answer_is_the_same_whatever_was_cached(kind: str) -> None:
    assert answer(kind, 7) != answer(kind, 0)
    assert without_cache(answer(kind, 7)) == without_cache(answer(kind, 0))
    told = json.loads(without_cache(answer(kind, 7)))
    assert told["usage"].get("prompt_tokens", told["usage"].get("input_tokens")) == 12


def test_nor_does_its_progress_tell() -> None:
    progress = b'data: {"prompt_progress":{"total":90,"cache":80,"processed":85,"time_ms":3}}\n\n'
    assert b'"cache":0,' in without_cache(progress)


@given(st.text())
def test_text_stays_as_it_is(text: str) -> None:
    liar = f'{text}"usage","cached_tokens": 5, "cache_n": 3, "prompt_n": 4, "id_slot": 2'
    body = json.dumps({"content": liar, "usage": {}}).encode()
    assert without_cache(body) == body


TEMPLATE = '{"model_path": "of a template"} "model_path":"x\\'


@given(st.text(min_size=1), st.text(), st.sampled_from([None, 0, 2]), st.booleans())
def test_the_path_is_replaced_and_nothing_else(
    path: str, model: str, indent: int | None, ascii_: bool
) -> None:
    said = {"total_slots": 4, "chat_template": TEMPLATE, "model_path": path, "bos_token": TEMPLATE}
    body = json.dumps(said, indent=indent, ensure_ascii=ascii_).encode("utf-8", "surrogatepass")
    told = hide_model_path(body, model)
    assert json.loads(told) == {**said, "model_path": model}
    without = json.dumps(model).encode()
    assert told.startswith(body[: body.index(b'"model_path"')]) and without in told


@pytest.mark.parametrize("body", [b"", b"no JSON", b'{"model_path":', b'{"model_path":"/home/a', b'{"a":1}'])
def test_what_has_no_such_field_is_left_as_it_is(body: bytes) -> None:
    assert hide_model_path(body, "tiny") == body


@pytest.mark.parametrize("unit", ["x", '\\"', "\\\\", 'x\\"'])
@pytest.mark.parametrize("end", ['"}', ""], ids=["ended", "open"])
def test_the_longest_properties_take_little_memory(unit: str, end: str) -> None:
    """Read properties of a head that means no good."""
    body = bytearray(('{"model_path":"' + unit * (HELD_ANSWER_BYTES // len(unit)) + end).encode())
    tracemalloc.start()
    try:
        assert (hide_model_path(body, "tiny") == b'{"model_path":"tiny"}') is bool(end)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body)
    finally:
        tracemalloc.stop()
