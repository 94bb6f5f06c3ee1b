"""Errors of the API, and those of llama-server as meshd words them."""

import asyncio
import json
from unittest import mock

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway import upstream
from meshd.gateway.failure import Failure, context_exceeded, plain_failure, read_failure
from meshd.gateway.upstream import failure_in

from tests.sim.loop import run
from tests.unit.gateway.test_request import JSON_VALUES


def test_a_failure_is_openai_s_error_object() -> None:
    failure = Failure(503, "loading", type="unavailable_error", code="model_loading", retry_after=0)
    error = {"message": "loading", "type": "unavailable_error", "param": None, "code": "model_loading"}
    assert failure.error() == error
    assert failure.headers() == {"Retry-After": "1"}


def test_headers_follow_the_status() -> None:
    final = {"x-should-retry": "false"}
    assert Failure(401, "no").headers() == {"WWW-Authenticate": "Bearer", **final}
    assert Failure(405, "no", allow=("GET",)).headers() == {"Allow": "GET", **final}
    assert Failure(404, "no").headers() == final


@pytest.mark.parametrize("status", [408, 429, 502, 503])
def test_what_may_pass_is_tried_again(status: int) -> None:
    assert "x-should-retry" not in Failure(status, "no").headers()
    final = Failure(status, "no", is_final=True, retry_after=5).headers()
    assert final == {"x-should-retry": "false"}, "a time to try again would say the contrary"
    waited = Failure(status, "no", has_waited=True, retry_after=5).headers()
    assert waited == {"Retry-After": "5", "x-should-retry": "false"}, "a person decides, libraries do not"


def test_a_prompt_that_is_too_long_says_both_counts_and_what_to_do() -> None:
    failure = context_exceeded(5000, 4096)
    assert (failure.status, failure.code) == (400, "context_length_exceeded")
    assert "maximum context length is 4096 tokens" in failure.message and "5000" in failure.message
    assert "`--ctx-size`" in failure.message
    assert failure.error() | {"n_prompt_tokens": 5000, "n_ctx": 4096} == failure.error()
    assert context_exceeded(0, 0).context is None


def error(message: object, **more: object) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


def test_an_error_of_llama_server_is_told_as_it_is() -> None:
    failure = read_failure(error("too long", code=400, type="other_error"), 400)
    assert failure is not None
    assert (failure.status, failure.message, failure.type) == (400, "too long", "other_error")


@pytest.mark.parametrize(
    ("said", "status", "expected"),
    [
        (
            "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
            400,
            "this model is served without image input: it needs `meshd serve … --mmproj FILE`",
        ),
        (
            "This server does not support embeddings. Start it with `--embeddings`",
            501,
            "this model is served without embeddings: "
            "that needs `meshd serve … -- --embeddings --pooling mean`",
        ),
        (
            "This server does not support metrics endpoint. Start it with `--metrics`",
            501,
            "this model is served without metrics: that needs `meshd serve … -- --metrics`",
        ),
        (
            "Infill is not supported by this model: prefix token is missing. ",
            501,
            "this model cannot infill: it has no fill-in-the-middle tokens",
        ),
    ],
)
def test_what_it_was_not_started_for_names_options_of_meshd(said: str, status: int, expected: str) -> None:
    failure = read_failure(error(said, code=500, type="server_error"), 500)
    assert failure == Failure(status, expected, code="not_served", is_final=True)


_NO_TOKEN = "vector::_M_range_check: __n (which is 5000000) >= this->size() (which is 1024)"


@pytest.mark.parametrize(
    ("path", "said", "message", "param"),
    [
        ("/detokenize", _NO_TOKEN, "the model has no token 5000000: its tokens are 0 to 1023", "tokens"),
        ("/tokenize", _NO_TOKEN, "the model has no token 5000000: its tokens are 0 to 1023", "content"),
        ("/detokenize", "vector", "the model has no token of these", "tokens"),
        ("/v1/rerank", '"query" must be provided', '"query" must be provided', "query"),
        ("/infill", "Field 'n_keep': too large", "Field 'n_keep': too large", "n_keep"),
        ("/completion", "[json.exception] key 'prompt' not found", "`prompt` is missing", "prompt"),
        ("/completion", "Failed to parse input", "Failed to parse input", None),
    ],
)
def test_a_fault_of_a_request_names_its_field(path: str, said: str, message: str, param: str | None) -> None:
    failure = read_failure(error(said, code=500, type="server_error"), 500, path)
    assert failure is not None
    assert (failure.status, failure.type, failure.param) == (400, "invalid_request_error", param)
    assert failure.message == message


def test_a_grammar_that_no_token_fits_is_a_fault_of_the_request() -> None:
    said = "got exception: Unexpected empty grammar stack after accepting piece: . (30)"
    failure = read_failure(error(said, code=500, type="server_error"), 500)
    message = "the grammar or schema allows no token of this model at this place of the answer"
    assert failure == Failure(400, message, code="invalid_value", is_final=True)


@pytest.mark.parametrize("told", ["x" * 900_000, ["x"] * 100_000, {"x": "y" * 900_000}])
def test_a_long_reason_is_cut(told: object) -> None:
    for failure in (read_failure(error(told), 500), read_failure(error("", type=told), 500)):
        assert failure is not None and len(json.dumps(failure.error())) < 10_000


def test_what_is_too_long_for_a_refusal_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"a":[' + b"[]," * (1 << 20) + b"0]}"
    monkeypatch.setattr(json, "loads", lambda _body: pytest.fail("it stops everything meanwhile"))
    assert read_failure(body, 500) is None
    assert len(plain_failure(503, body).message) < 300


@given(st.binary() | st.builds(error, JSON_VALUES, type=JSON_VALUES, code=JSON_VALUES))
def test_whatever_is_said_is_a_failure(body: bytes) -> None:
    failure = read_failure(body, 500)
    assert failure is None or (400 <= failure.status < 600 and isinstance(failure.message, str))


@pytest.mark.parametrize("ends", [True, False])
def test_a_refusal_that_does_not_end_is_not_waited_for(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a virtual clock: what waits for ever fails at once."""
    pieces = [b"the model ", b"is away"]

    async def read_some(_answer: object) -> bytes:
        if not pieces and not ends:
            await asyncio.Event().wait()
        return pieces.pop(0) if pieces else b""

    monkeypatch.setattr(upstream, "read_some", read_some)
    answer = mock.Mock(spec=aiohttp.ClientResponse, status=503)
    assert run(failure_in(answer)) == plain_failure(503, b"the model is away")


def test_only_so_much_of_a_refusal_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    async def read_some(_answer: object) -> bytes:
        nonlocal read
        read += 1 << 16
        return b"x" * (1 << 16)

    monkeypatch.setattr(upstream, "read_some", read_some)
    run(failure_in(mock.Mock(spec=aiohttp.ClientResponse, status=503)))
    assert read <= (1 << 20) + (1 << 16)


def test_a_prompt_over_the_context_is_named_as_clients_know_it() -> None:
    said = error("request (9 tokens) exceeds", code=400, type="exceed_context_size_error")
    fields = json.loads(said)
    fields["error"] |= {"n_prompt_tokens": 5000, "n_ctx": 4096}
    failure = read_failure(json.dumps(fields).encode(), 400)
    assert failure is not None and failure.context == (5000, 4096)
    assert failure.code == "context_length_exceeded"
    again = read_failure(json.dumps({"error": failure.error()}).encode(), 400)
    assert again == failure, "another node's API says it the same way"
    full = read_failure(error("Context size has been exceeded.", code=500, type="server_error"), 500)
    assert full is not None and (full.status, full.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("Failed to parse messages: Missing 'role'", 400),
        ("[json.exception.type_error.302] type must be string, but is number", 400),
        ("Failed to parse tool call arguments as JSON: x", 400),
        ("Compute error.", 500),
        ("got exception: bad alloc", 500),
    ],
)
def test_faults_of_a_request_are_no_faults_of_the_server(said: str, status: int) -> None:
    failure = read_failure(error(said, code=500, type="server_error"), 500)
    assert failure is not None and failure.status == status


def test_a_template_that_refuses_says_why_in_a_line() -> None:
    trace = (
        "\n------------\nWhile executing CallExpression at line 1\n... {{ raise }}\nError: Jinja Exception: "
    )
    failure = read_failure(error(f"{trace}Conversation roles must alternate", code=500), 500)
    assert failure is not None and (failure.status, failure.code) == (400, "template_refused")
    assert failure.message.endswith("refuses these messages: Conversation roles must alternate")


@pytest.mark.parametrize(
    ("code", "status", "found"),
    [(399, 404, 404), (400, 404, 400), (599, 404, 599), (600, 404, 404), ("x", 404, 404), (True, 404, 404)],
)
def test_a_code_that_is_a_status_replaces_it(code: object, status: int, found: int) -> None:
    failure = read_failure(
        json.dumps({"error": {"message": "why", "code": code, "type": "t"}}).encode(), status
    )
    assert failure is not None and failure.status == found


def test_an_error_without_the_status_of_one_is_ours() -> None:
    failure = read_failure(b'{"error": {"message": "Compute error", "type": "t"}}', 200)
    assert failure is not None and failure.status == 500
