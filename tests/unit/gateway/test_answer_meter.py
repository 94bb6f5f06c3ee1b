"""Tokens of prompts, as llama-server's answers tell in each dialect."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.answer_meter import AnswerMeter

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
        [{"type": "response.completed", "response": {
            "usage": {"input_tokens": 12, "input_tokens_details": {"cached_tokens": 7}}}}],
        [{"type": "message_start", "message": {
            "usage": {"cache_read_input_tokens": 7, "input_tokens": 5, "output_tokens": 0}}},
         {"type": "message_delta", "usage": {"output_tokens": 9}}],
    ],
)  # fmt: skip
def test_each_dialect(bodies: list[object]) -> None:
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
        (b'event: message_stop\ndata: {"type":"message_stop"}\n\n', 200),
        (b"event: response.completed\ndata: {}\n\n", 200),
        (b'data: {"content":"","stop":true}\n\n', 200),
        (b'data: {"content":"a","stop":false}\n\n', 499),
        (b'data: {"content":"\\ndata: [DONE]\\nevent: message_stop \\"stop\\":true"}\n\n', 499),
        (b"event: response.completed_part\ndata: {}\n\n", 499),
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
        ("a word or two " * 10_000, 30_000, 40_000),
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
    meter = AnswerMeter(asked=(b"x" * run + b" ") * ((8 << 20) // run))
    meter.hung_up()
    began = time.thread_time()  # others use the same processor
    assert estimated(meter)
    assert time.thread_time() - began < 1.0


@pytest.mark.parametrize("status", [200, 400, 502, 503])
def test_who_was_refused_or_lost_the_answer_is_charged_nothing_estimated(status: int) -> None:
    assert AnswerMeter(status=status, asked=b"{}" * 1000).estimated_prompt is None
    waited = AnswerMeter()  # llama-server was not asked
    waited.hung_up()
    assert waited.estimated_prompt is None


@given(st.binary())
def test_any_bytes_can_be_seen(junk: bytes) -> None:
    meter = AnswerMeter()
    meter.see(b'"usage"' + junk)
    assert (meter.prompt or 0) >= 0
