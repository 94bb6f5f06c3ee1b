"""What a client is told of an error, however much who refuses says of it."""

import asyncio
import json
from unittest import mock

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway import upstream_failure
from meshd.gateway.failure import Failure
from meshd.gateway.upstream_failure import failure_in, plain_failure, told_failure

from tests.sim.loop import run
from tests.unit.gateway.test_body import JSON_VALUES


def error(message: object, **more: object) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


def test_an_error_of_llama_server_is_told_as_it_is() -> None:
    failure = told_failure(error("too long", code=400, type="exceed_context_size_error"))
    assert failure is not None
    assert (failure.status, failure.message, failure.type) == (400, "too long", "exceed_context_size_error")


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
    ],
)
def test_what_it_was_not_started_for_names_options_of_meshd(said: str, status: int, expected: str) -> None:
    failure = told_failure(error(said, code=500, type="server_error"))
    assert failure == Failure(status, expected, code="not_served")


@pytest.mark.parametrize("told", ["x" * 900_000, ["x"] * 100_000, {"x": "y" * 900_000}])
def test_a_long_reason_is_cut(told: object) -> None:
    for failure in (told_failure(error(told)), told_failure(error("", type=told))):
        assert failure is not None and len(json.dumps(failure.error())) < 10_000


def test_what_is_too_long_for_a_refusal_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"a":[' + b"[]," * (1 << 20) + b"0]}"
    monkeypatch.setattr(json, "loads", lambda _body: pytest.fail("it stops everything meanwhile"))
    assert told_failure(body) is None
    assert len(plain_failure(503, body).message) < 300


@given(st.binary() | st.builds(error, JSON_VALUES, type=JSON_VALUES, code=JSON_VALUES))
def test_whatever_is_said_is_a_failure(body: bytes) -> None:
    failure = told_failure(body)
    assert failure is None or (400 <= failure.status < 600 and isinstance(failure.message, str))


@pytest.mark.parametrize("ends", [True, False])
def test_a_refusal_that_does_not_end_is_not_waited_for(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a virtual clock: what waits for ever fails at once."""
    pieces = [b"the model ", b"is away"]

    async def read_some(_answer: object) -> bytes:
        if not pieces and not ends:
            await asyncio.Event().wait()
        return pieces.pop(0) if pieces else b""

    monkeypatch.setattr(upstream_failure, "read_some", read_some)
    answer = mock.Mock(spec=aiohttp.ClientResponse, status=503)
    assert run(failure_in(answer)) == plain_failure(503, b"the model is away")


def test_only_so_much_of_a_refusal_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    async def read_some(_answer: object) -> bytes:
        nonlocal read
        read += 1 << 16
        return b"x" * (1 << 16)

    monkeypatch.setattr(upstream_failure, "read_some", read_some)
    run(failure_in(mock.Mock(spec=aiohttp.ClientResponse, status=503)))
    assert read <= (1 << 20) + (1 << 16)
