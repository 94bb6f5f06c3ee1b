"""Errors as responses and as events."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.events import EventSplitter, StreamForm
from meshd.gateway.failure import Failure


def test_a_failure_is_openai_s_error_object() -> None:
    response = Failure(
        503, "loading", type="unavailable_error", code="model_loading", retry_after=0
    ).response()
    assert response.status == 503
    assert response.headers["Retry-After"] == "1"
    assert isinstance(response.body, bytes)
    error = {"message": "loading", "type": "unavailable_error", "param": None, "code": "model_loading"}
    assert json.loads(response.body) == {"error": error}


def test_headers_follow_the_status() -> None:
    assert Failure(401, "no").headers() == {"WWW-Authenticate": "Bearer"}
    assert Failure(405, "no", allow=("GET",)).headers() == {"Allow": "GET"}
    assert Failure(404, "no").headers() == {}


@given(st.text())
def test_an_event_is_one_event_whatever_the_message(message: str) -> None:
    for form in StreamForm:
        event = Failure(502, message).event(form)
        assert EventSplitter().feed(event) == event
        assert event.count(b"\n\n") == 1
        assert b"\r" not in event


@pytest.mark.parametrize(
    ("form", "name", "message_at"),
    [
        (StreamForm.OPENAI, None, ("error", "message")),
        (StreamForm.TRANSCRIPT, None, ("error", "message")),
        (StreamForm.RESPONSES, "error", ("message",)),
        (StreamForm.ANTHROPIC, "error", ("error", "message")),
    ],
)
def test_each_dialect_has_its_form(form: StreamForm, name: str | None, message_at: tuple[str, ...]) -> None:
    lines = Failure(502, "gone", type="server_error", code="upstream_lost").event(form).decode().splitlines()
    assert lines[:-2] == ([] if name is None else [f"event: {name}"])
    found = json.loads(lines[-2].removeprefix("data: "))
    if name is not None:
        assert found["type"] == "error"
    for key in message_at:
        found = found[key]
    assert found == "gone"
