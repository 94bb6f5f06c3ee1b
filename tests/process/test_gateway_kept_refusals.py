"""Answers that are not kept or not given: wrong keys, strange headers, damaged files, limits, rivals."""

import asyncio
import re

import pytest
from aiohttp import web
from meshd.gateway import kept_folder
from meshd.gateway.api_key import ApiKey
from meshd.gateway.interface import GatewayConfig
from meshd.gateway.kept_journal import encode_events, encode_request, look_through

from tests.process.gateway_fake import DONE, FakeServer, begin_stream, chunk, event
from tests.process.kept_scene import ALL, CHAT, KEY, Model, Place, data_of, numbered, play


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
        whole = encode_request(found.request) + b"".join(encode_events(one, 0.0) for one in ALL[:2])
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
    async def check(place: Place) -> None:
        place.server.let_go.set()
        async with place.daemon():
            seen = data_of(await place.whole())
        kept = seen.index(b"id:\n" + chunk("b"))
        assert seen == [*numbered(*ALL)[:kept], b"id:\n" + ALL[kept], *ALL[kept + 1 :]], (
            "the number is taken back"
        )
        assert place.files == []

    monkeypatch.setattr(kept_folder, "_MOST_KEPT_OF_ONE", 500)

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
            while gateway.requests_of("tiny") > 1 or len(place.asked) < 2:
                await place.http.get(f"{gateway.url}/health")
            place.server.let_go.set()
            ends = [await one for one in rivals]
            assert sum(data_of(data) == numbered(*ALL)[2:] for _, data in ends) == 1
            assert sum(b'"answer_taken_over"' in data for _, data in ends) == 3
            assert {status for status, _ in ends} <= {200, 409}

    play(check, Model())
