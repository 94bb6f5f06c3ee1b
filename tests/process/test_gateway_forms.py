"""A sound that comes as a form, to be transcribed: passed on as it is, under the rules of all requests."""

import json

import aiohttp
import pytest
from meshd.gateway.interface import ApiKey, GatewayConfig, KeyLimits

from tests.process.client_scene import scene
from tests.process.gateway_fake import DONE, FakeServer, event, many_world, says, world
from tests.process.test_gateway_continued import dies_after

PATH = "/v1/audio/transcriptions"
SOUND = bytes(range(256)) * 300
USAGE = {"type": "tokens", "input_tokens": 6, "output_tokens": 2, "total_tokens": 8}
SAID = {"type": "transcript.text.done", "text": "hello", "usage": USAGE}
DELTAS = tuple(event({"type": "transcript.text.delta", "delta": text}) for text in ("hel", "lo"))


def form(**values: str) -> aiohttp.FormData:
    data = aiohttp.FormData(values)
    data.add_field("file", SOUND, filename="a.wav", content_type="audio/wav")
    return data


async def code_of(answer: aiohttp.ClientResponse) -> str:
    return str((await answer.json())["error"]["code"])


def _check_passed_on(server: FakeServer, *, parts: int) -> None:
    [(method, path, headers, body)] = server.seen
    assert (method, path) == ("POST", PATH)
    boundary = headers["Content-Type"].removeprefix("multipart/form-data; boundary=").encode()
    assert body.startswith(b"--" + boundary) and body.rstrip().endswith(b"--" + boundary + b"--")
    assert SOUND in body and body.count(b"Content-Disposition: form-data; ") == parts


@pytest.mark.parametrize("path", [PATH, PATH.removeprefix("/v1")])
async def test_the_form_is_passed_on_with_its_type_byte_for_byte(path: str) -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\0\xff\r\n--b--\r\n'
    kind = 'Multipart/Form-Data; boundary="b"'

    async with world(says(200, SAID)) as here:
        sent = {"Content-Type": kind}
        async with here.http.post(here.url + path, data=body, headers=sent) as answer:
            assert (answer.status, await answer.json()) == (200, SAID)
        [(_, at, headers, got)] = here.server.seen
        assert (at, headers["Content-Type"], got) == (path, kind, body)
        assert here.gateway.status.tokens == 2


async def test_it_goes_to_the_model_that_the_form_names() -> None:
    async with many_world({name: says(200, {"text": name}) for name in ("a", "b")}) as here:
        for model in here.models.values():
            model.granted.set()
        url = here.gateway.url + PATH
        for data, expected in ((form(model="b"), "b"), (form(model="b-alias"), "b"), (form(), "a")):
            async with here.http.post(url, data=data) as answer:
                assert (await answer.json())["text"] == expected
        async with here.http.post(url, data=form(model="c")) as answer:
            assert (answer.status, await code_of(answer)) == (404, "model_not_found")


async def test_a_client_passes_it_on_to_a_head() -> None:
    async with scene() as here:
        head = await here.head("one", says(200, SAID))
        await here.until_ready()
        async with here.http.post(here.gateway.url + PATH, data=form(model="tiny")) as answer:
            assert (answer.status, await answer.json()) == (200, SAID)
        _check_passed_on(head.server, parts=2)


async def test_what_is_not_a_form_is_refused_here_and_a_form_elsewhere() -> None:
    async with world(says(200, SAID)) as here:
        async with here.http.post(here.url + PATH, json={"file": "x"}) as answer:
            assert (answer.status, await code_of(answer)) == (415, "unsupported_media_type")
        async with here.http.post(f"{here.url}/v1/chat/completions", data=form()) as answer:
            assert (answer.status, await code_of(answer)) == (400, "invalid_json")
        sent = {"Content-Type": "multipart/form-data; boundary=b"}
        async with here.http.post(here.url + PATH, data=b"nonsense", headers=sent) as answer:
            assert (answer.status, await code_of(answer)) == (400, "invalid_form")
        sent = {"Origin": "http://evil.example"}
        async with here.http.post(here.url + PATH, data=form(), headers=sent) as answer:
            assert (answer.status, await code_of(answer)) == (403, "origin_not_allowed")
        sent = {"Sec-Fetch-Site": "cross-site"}
        async with here.http.post(here.url + PATH, data=form(), headers=sent) as answer:
            assert (answer.status, await code_of(answer)) == (403, "site_not_allowed")
        assert not here.server.seen


async def test_keys_quotas_and_the_limit_of_a_body_hold() -> None:
    limits = KeyLimits(tokens_per_day=5)
    config = GatewayConfig(
        port=0, api_keys=(ApiKey("sk-0123456789", "anna", limits),), max_body_bytes=len(SOUND) + 1000
    )

    async with world(says(200, SAID), config=config) as here:
        async with here.http.post(here.url + PATH, data=form()) as answer:
            assert answer.status == 401
        with_key = {"Authorization": "Bearer sk-0123456789"}
        async with here.http.post(here.url + PATH, data=form(prompt="x" * 2000), headers=with_key) as answer:
            assert (answer.status, await code_of(answer)) == (413, "body_too_large")
        async with here.http.post(here.url + PATH, data=form(), headers=with_key) as answer:
            assert answer.status == 200
        async with here.http.post(here.url + PATH, data=form(), headers=with_key) as answer:
            assert (answer.status, await code_of(answer)) == (429, "insufficient_quota")
        _check_passed_on(here.server, parts=1)


@pytest.mark.parametrize("same", [True, False])
async def test_a_stream_goes_on_if_the_next_llama_server_hears_the_same(*, same: bool) -> None:
    then = (*(DELTAS if same else reversed(DELTAS)), event(SAID), DONE)
    config = GatewayConfig(port=0, keepalive_seconds=0.1, continue_seconds=5.0)

    async with world(dies_after(DELTAS[0], then=then), config=config) as here:
        async with here.http.post(here.url + PATH, data=form(stream="true", temperature="0")) as answer:
            text = await answer.text()
        said = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert said[0]["delta"] == "hel"
        if same:
            assert [one.get("delta") for one in said[1:]] == ["lo", None] and text.endswith("[DONE]\n\n")
        else:
            assert said[-1]["error"]["code"] == "upstream_lost"
        bodies = [(headers["Content-Type"], body) for _, _, headers, body in here.server.seen]
        assert len(bodies) == 2 and bodies[0] == bodies[1]
