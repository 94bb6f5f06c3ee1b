"""Clients come back for answers that the gateway has kept: to the next gateway, or on another connection."""

import asyncio
import contextlib
import json
import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from meshd.gateway.answer_log import AnswerLog
from meshd.gateway.api_key import ApiKey
from meshd.gateway.interface import GatewayConfig, Readiness
from meshd.gateway.kept_folder import KeptFolder
from meshd.gateway.kept_journal import encode_events, encode_request, look_through
from meshd.gateway.one_model import OneModel
from meshd.gateway.server import Gateway
from meshd.model.status import ModelState

from tests.process.gateway_fake import (
    DEADLINE,
    DONE,
    FakeServer,
    FakeUpstream,
    begin_stream,
    chunk,
    event,
    last_chunk,
    listening,
    serving,
)

CONFIG = GatewayConfig(port=0, keepalive_seconds=0.1, continue_seconds=5.0)
KEY = "0f8fad5b-d9cb-469f-a165-70867728950e"
ALL = [chunk("a"), chunk("b"), chunk("c"), last_chunk(3), DONE]
CHAT = "/v1/chat/completions"


class Model:
    """Streams `ALL`, or what follows the text that it is given; stands still before event `stop`."""

    def __init__(self, events: list[bytes] = ALL, *, stop: int = 2) -> None:
        self.events = events
        self.stop: int | None = stop

    async def __call__(self, server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(server.seen[-1][3])
        last = asked.get("messages", [{}])[-1]
        begun = len(last["content"]) if last.get("role") == "assistant" else 0
        if not asked.get("stream"):
            return web.json_response(
                {"choices": [{"message": {"content": "abc"}}], "seed": asked.get("seed")}
            )
        response = await begin_stream(request)
        for number, one in enumerate(self.events):
            if number == self.stop:
                async with server.changed:
                    server.changed.notify_all()
                await server.let_go.wait()
            if number >= begun:
                await response.write(one)
        return response


@dataclass
class Place:
    """A llama-server, and one gateway after the other, which find what the one before has kept."""

    folder: Path
    server: FakeServer
    upstream: FakeUpstream
    http: aiohttp.ClientSession
    gateway: Gateway | None = None

    @contextlib.asynccontextmanager
    async def daemon(self, config: GatewayConfig = CONFIG) -> AsyncIterator[Gateway]:
        kept = KeptFolder(self.folder / "kept", wall=time.time)
        log = AnswerLog(self.folder / "answers.jsonl")
        gateway = Gateway(config, OneModel(self.upstream), kept=kept, log=log, wall=time.time)
        async with serving(gateway):
            self.gateway = gateway
            yield gateway

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / "kept").glob("*"))

    @property
    def asked(self) -> list[dict[str, object]]:
        return [json.loads(body) for *_, body in self.server.seen]

    def post(
        self, *, key: str = KEY, last: str = "", path: str = CHAT, secret: str = "", **more: object
    ) -> "aiohttp.client._RequestContextManager":
        assert self.gateway is not None
        headers = {"Idempotency-Key": key} if key else {}
        headers |= {"Last-Event-ID": last} if last else {}
        headers |= {"Authorization": f"Bearer {secret}"} if secret else {}
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "temperature": 0, **more}
        return self.http.post(self.gateway.url + path, json=body, headers=headers)

    async def events(self, count: int, **more: object) -> list[bytes]:
        """So many of an answer, and no more."""
        async with self.post(**more) as answer:  # type: ignore[arg-type]
            assert answer.status == 200, await answer.read()
            return (await first(answer, count))[:count]

    async def whole(self, **more: object) -> bytes:
        async with self.post(**more) as answer:  # type: ignore[arg-type]
            assert answer.status == 200, await answer.read()
            return await answer.read()

    async def refused(self, **more: object) -> tuple[int, str]:
        async with self.post(**more) as answer:  # type: ignore[arg-type]
            return answer.status, (await answer.json())["error"]["code"]


async def first(answer: aiohttp.ClientResponse, count: int) -> list[bytes]:
    data = b""
    while len(data_of(data)) < count and (more := await answer.content.readany()):
        data += more
    return data_of(data)


def data_of(stream: bytes) -> list[bytes]:
    """Its events, without comments."""
    return [one + b"\n\n" for one in stream.split(b"\n\n") if one and not one.startswith(b":")]


def numbered(*events: bytes, since: int = 1) -> list[bytes]:
    return [b"id: %d\n%b" % (number, one) for number, one in enumerate(events, start=since)]


def play(
    check: Callable[[Place], Awaitable[None]], model: Callable[..., Awaitable[web.StreamResponse]]
) -> None:
    async def scenario() -> None:
        with tempfile.TemporaryDirectory(prefix="gw") as name:
            folder = Path(name)
            server, upstream = FakeServer(model), FakeUpstream(folder / "s")
            async with asyncio.timeout(DEADLINE), listening(server, folder / "s"):
                async with aiohttp.ClientSession() as http:
                    await check(Place(folder, server, upstream, http))

    asyncio.run(scenario())


def test_the_next_daemon_sends_what_the_client_lacks_and_the_rest() -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            assert await place.events(2, max_tokens=9) == numbered(*ALL[:2])
        assert len(place.files) == 1
        place.server.let_go.set()
        async with place.daemon() as gateway:
            rest = await place.whole(max_tokens=9, last="1")
            assert data_of(rest) == numbered(*ALL, since=1)[1:]
            first, second = place.asked
            assert second["messages"][-1] == {"role": "assistant", "content": "ab"}  # type: ignore[index]
            assert (first["max_tokens"], second["max_tokens"]) == (9, 7)
            assert gateway.status.tokens == 1, "each token is counted once"
            again = await place.whole(max_tokens=9)
            assert data_of(again) == numbered(*ALL), "without Last-Event-ID all of it"
            assert len(place.asked) == 2, "it is over: nobody is asked"
        lines = [json.loads(line) for line in (place.folder / "answers.jsonl").read_text().splitlines()]
        assert [(one["generated_tokens"], one["status"]) for one in lines] == [(2, 499), (1, 200)]

    play(check, Model())


def test_without_a_key_nothing_is_kept_and_nothing_is_numbered() -> None:
    async def check(place: Place) -> None:
        place.server.let_go.set()
        async with place.daemon():
            assert data_of(await place.whole(key="", last="7")) == ALL
        assert place.files == []

    play(check, Model())


def test_a_gateway_that_keeps_nothing_takes_no_notice() -> None:
    async def check(place: Place) -> None:
        place.server.let_go.set()
        place.gateway = Gateway(CONFIG, OneModel(place.upstream))
        async with serving(place.gateway):
            assert data_of(await place.whole()) == ALL
            assert data_of(await place.whole(last="no number")) == ALL

    play(check, Model())


def test_a_client_that_lost_its_connection_comes_back_to_the_same_daemon() -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            await place.events(2)
            await place.server.until(lambda: place.server.cancelled == 1)
            place.server.let_go.set()
            assert data_of(await place.whole(last="2")) == numbered(*ALL)[2:]

    play(check, Model())


def test_a_client_whose_connection_is_dead_need_not_wait_until_that_is_noticed() -> None:
    async def check(place: Place) -> None:
        async with place.daemon(), place.post() as dead:
            await first(dead, 2)
            place.server.let_go.clear()
            living = asyncio.ensure_future(place.whole(last="2"))
            told = await dead.read()
            assert b'"answer_taken_over"' in told and b"id:" not in told
            await place.server.until(lambda: len(place.server.seen) == 2)
            place.server.let_go.set()
            assert data_of(await living) == numbered(*ALL)[2:]

    play(check, Model())


def test_it_waits_for_the_model_which_is_loading_after_a_restart() -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            await place.events(2)
        place.server.let_go.set()
        place.upstream.readiness = Readiness(ModelState.LOADING, "43 % of the weights")
        place.upstream.weights = b""  # not known before it is loaded
        async with place.daemon():
            assert await place.refused(key="another-key") == (503, "model_loading")
            async with place.post(last="1") as answer:
                assert await first(answer, 1) == numbered(*ALL)[1:2], "what is kept comes at once"
                said = b""
                while b": 43 % of the weights" not in said:
                    said += await answer.content.readany()
                place.upstream.weights = bytes(32)
                place.upstream.readiness = Readiness(ModelState.READY, "")
                assert data_of(await answer.read()) == numbered(*ALL)[2:]

    play(check, Model())


def test_another_model_begins_anew_or_says_so() -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            await place.events(2)
        place.server.let_go.set()
        place.upstream.weights = bytes([1]) * 32
        async with place.daemon():
            assert await place.refused(last="2") == (404, "answer_not_kept")
            assert data_of(await place.whole()) == numbered(*ALL)
            assert len(place.asked) == 2 and place.asked[0] == {
                **place.asked[1],
                "seed": place.asked[0]["seed"],
            }

    play(check, Model())


def test_another_model_that_shows_when_it_is_loaded() -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            await place.events(2)
        place.upstream.readiness = Readiness(ModelState.LOADING, "loading")
        place.upstream.weights = b""
        async with place.daemon():
            async with place.post(last="2") as answer:
                while b": loading" not in await answer.content.readany():
                    pass
                place.upstream.weights = bytes([1]) * 32
                place.upstream.readiness = Readiness(ModelState.READY, "")
                assert b'"answer_not_kept"' in await answer.read()
            assert place.files == [] and len(place.asked) == 1

    play(check, Model())


def test_the_seed_that_was_drawn_is_drawn_again() -> None:
    """The answer has a grammar: the same is asked for again, and what the client has is dropped."""

    async def check(place: Place) -> None:
        asked = {"temperature": 1, "grammar": 'root ::= "abc"'}
        async with place.daemon():
            await place.events(2, **asked)
        place.server.let_go.set()
        async with place.daemon():
            assert data_of(await place.whole(last="2", **asked)) == numbered(*ALL)[2:]
        one, two = place.asked
        assert one == two and isinstance(one["seed"], int)

    play(check, Model())


def test_a_run_that_says_something_else_ends_with_an_error_and_the_next_begins_anew() -> None:
    model = Model()

    async def check(place: Place) -> None:
        asked = {"grammar": 'root ::= "abc"'}
        async with place.daemon():
            await place.events(2, **asked)
        place.server.let_go.set()
        model.events = [chunk("x"), last_chunk(1), DONE]
        async with place.daemon():
            assert b'"upstream_lost"' in await place.whole(last="2", **asked)
            assert place.files == []
            assert data_of(await place.whole(**asked)) == numbered(*model.events)

    play(check, model)


def test_keys_do_not_meet_and_a_key_stands_for_one_request() -> None:
    config = GatewayConfig(
        port=0, continue_seconds=5.0, api_keys=(ApiKey("anna-secret", "anna"), ApiKey("bert-secret", "bert"))
    )

    async def check(place: Place) -> None:
        async with place.daemon(config):
            await place.events(2, secret="anna-secret")
            assert await place.refused(secret="bert-secret", last="2") == (404, "answer_not_kept")
            assert await place.refused(secret="nobody-secret", last="2") == (401, "invalid_api_key")
            assert await place.refused(secret="anna-secret", max_tokens=3) == (422, "idempotency_key_reused")
            assert (await place.refused(secret="anna-secret", path="/v1/completions"))[0] == 422
            await place.events(2, secret="bert-secret")
            assert len(place.files) == 2
            place.server.let_go.set()
            rest = await place.whole(secret="anna-secret", last="2")
            assert data_of(rest) == numbered(*ALL)[2:]

    play(check, Model())


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("short", 400),
        ("x" * 129, 400),
        ("../../../etc/passwd", 400),
        ("with some spaces", 400),
        ("schlüssel-mit-umlaut", 400),
        ('"quoted-as-the-draft-says"', 200),
        ("x" * 128, 200),
        ("01890a5d-ac96-774b-bcce-b302099a8057", 200),
    ],
)
def test_shapes_of_keys(key: str, code: int) -> None:
    async def check(place: Place) -> None:
        place.server.let_go.set()
        async with place.daemon(), place.post(key=key) as answer:
            assert answer.status == code
            assert code == 200 or (await answer.json())["error"]["code"] == "invalid_idempotency_key"
        assert all(re.fullmatch(r"[0-9a-f]{16}-[0-9a-f]{32}\.answer", one.name) for one in place.files)

    play(check, Model())


def test_two_keys_are_none() -> None:
    async def check(place: Place) -> None:
        async with place.daemon() as gateway:
            headers = [("Idempotency-Key", KEY), ("Idempotency-Key", "another-one")]
            body = {"messages": [], "stream": True}
            async with place.http.post(gateway.url + CHAT, json=body, headers=headers) as answer:
                assert (answer.status, len(place.asked)) == (400, 0)

    play(check, Model())


@pytest.mark.parametrize(
    ("last", "code"), [("x", 400), ("-1", 400), ("1" * 10, 400), ("3", 404), ("0", 200), (" 2 ", 200)]
)
def test_shapes_of_last_event_ids(last: str, code: int) -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            await place.events(2)
            place.server.let_go.set()
            async with place.post(last=last) as answer:
                assert answer.status == code
                names = {400: "invalid_last_event_id", 404: "answer_not_kept"}
                assert code == 200 or (await answer.json())["error"]["code"] == names[code]

    play(check, Model())


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "foreign"])
def test_a_damaged_file(damage: str) -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            await place.events(2)
        [file] = place.files
        with file.open("rb") as opened:
            found = look_through(opened.read)
        assert found is not None
        whole = encode_request(found.request) + b"".join(encode_events(one) for one in ALL[:2])
        at = whole.index(b'"content": "b"')
        changed = {"cut": whole[:at], "flipped": whole[:at] + b"?" + whole[at + 1 :], "emptied": b""}
        file.write_bytes(changed.get(damage, b"something else"))
        place.server.let_go.set()
        known = 1 if damage in ("cut", "flipped") else 0
        async with place.daemon():
            assert await place.refused(last="2") == (404, "answer_not_kept")
            assert data_of(await place.whole(last=str(known))) == numbered(*ALL)[known:]
            assert data_of(await place.whole(last="4")) == numbered(*ALL)[4:], "it was repaired"

    play(check, Model())


def test_a_restart_in_the_middle_of_the_replay() -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            await place.events(2)
        for _ in range(3):
            async with place.daemon():
                assert await place.events(1, last="1") == numbered(*ALL)[1:2]
        place.server.let_go.set()
        async with place.daemon():
            assert data_of(await place.whole(last="2")) == numbered(*ALL)[2:]

    play(check, Model())


def test_a_whole_answer_is_kept_for_a_client_that_did_not_get_it() -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            answer = await place.whole(stream=False, temperature=1)
        async with place.daemon():
            assert await place.whole(stream=False, temperature=1) == answer
            assert len(place.asked) == 1, "the same draw, and made once"
            assert await place.refused(stream=False, temperature=0) == (422, "idempotency_key_reused")

    play(check, Model())


def test_an_error_is_not_an_answer() -> None:
    async def answer(_server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"error": {"code": 400, "message": "too long", "type": "x"}}, status=400)

    async def check(place: Place) -> None:
        async with place.daemon():
            for stream in (True, False):
                async with place.post(stream=stream) as reply:
                    assert reply.status == 400
        assert place.files == []

    play(check, answer)


def test_an_answer_that_becomes_too_long_is_forgotten_and_its_client_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from meshd.base.peer_limits import Share
    from meshd.gateway import kept_folder

    async def check(place: Place) -> None:
        place.server.let_go.set()
        async with place.daemon():
            seen = data_of(await place.whole())
        kept = seen.index(b"id:\n" + chunk("b"))
        assert seen == [*numbered(*ALL)[:kept], b"id:\n" + ALL[kept], *ALL[kept + 1 :]], (
            "the number is taken back"
        )
        assert place.files == []

    monkeypatch.setattr(kept_folder, "KEPT_ANSWER_BYTES", Share("", 500, "node", ""))

    class OneByOne(Model):
        async def __call__(self, server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
            response = await begin_stream(request)
            for one in ALL:
                await response.write(one)
                await asyncio.sleep(0.05)  # each in a read of its own
            return response

    play(check, OneByOne())


def test_an_event_that_is_too_long_is_forgotten() -> None:
    long = event({"choices": [{"index": 0, "delta": {"content": "x" * (2 << 20)}}]})

    async def check(place: Place) -> None:
        async with place.daemon(GatewayConfig(port=0, continue_seconds=5.0)):  # no comment between
            seen = await place.whole()
        assert seen == numbered(chunk("a"))[0] + b"id:\n" + long + DONE
        assert place.files == []

    class Held(Model):
        async def __call__(self, server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
            response = await begin_stream(request)
            for one in (chunk("a"), long, DONE):
                await response.write(one)
                await asyncio.sleep(0.05)
            return response

    play(check, Held())


def test_of_several_at_once_the_last_gets_the_answer() -> None:
    async def ask(place: Place) -> tuple[int, bytes]:
        async with place.post(last="2") as answer:
            return answer.status, await answer.read()

    async def check(place: Place) -> None:
        async with place.daemon() as gateway:
            await place.events(2)
            rivals = [asyncio.ensure_future(ask(place)) for _ in range(4)]
            while gateway._tally.active > 1 or len(place.asked) < 2:
                await place.http.get(f"{gateway.url}/health")
            place.server.let_go.set()
            ends = [await one for one in rivals]
            assert sum(data_of(data) == numbered(*ALL)[2:] for _, data in ends) == 1
            assert sum(b'"answer_taken_over"' in data for _, data in ends) == 3
            assert {status for status, _ in ends} <= {200, 409}

    play(check, Model())
