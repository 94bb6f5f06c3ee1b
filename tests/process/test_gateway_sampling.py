"""Requests that take candidates from a worker: what llama-server gets in place of the client's."""

import asyncio
import io
import json
from dataclasses import replace

import pytest
from meshd.gateway import request as request_module
from meshd.model.device_sampling import DeviceSampling

from tests.process.gateway_fake import DONE, HI, chunk, says, world
from tests.process.test_gateway_continued import CONFIG, dies_after
from tests.unit.model.test_device_sampling import CANDIDATES, SETTINGS

EXACT = DeviceSampling(SETTINGS, 50_000)


async def sent(path: str, body: bytes, sampling: DeviceSampling | None) -> bytes:
    """Return what llama-server gets."""
    async with world(says(200, {"content": "x"})) as here:
        here.upstream.device_sampling = sampling
        headers = {"Content-Type": "application/json"}
        async with here.http.post(f"{here.url}{path}", data=io.BytesIO(body), headers=headers) as answer:
            assert answer.status == 200
        return here.server.seen[0][3]


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_a_request_gets_the_chain_for_the_device_and_stays_else_as_it_is(path: str) -> None:
    asked = HI if "chat" in path else {"input": "hi"} if "responses" in path else {"prompt": "a\u00e9"}
    heard = {"prompt": "a\u00e9"} if "prompt" in asked else HI
    got = await sent(path, json.dumps({**asked, "seed": 7, "top_n_sigma": -1}).encode(), EXACT)
    assert json.loads(got) == {**heard, "seed": 7, **CANDIDATES}


@pytest.mark.parametrize(
    ("path", "body", "sampling"),
    [
        ("/completion", b'{"prompt": "a"}', None),
        ("/completion", b'{"prompt": "a", "mirostat": 2}', EXACT),
        ("/completion", b"{}", EXACT),
        ("/v1/embeddings", b'{"input": "a"}', EXACT),
        ("/completion", b'{"prompt": "a"}', replace(EXACT, adds=False)),
    ],
    ids=["not here", "not exact", "nothing asked", "no tokens", "not wanted"],
)
def test_others_are_passed_on_as_they_are(path: str, body: bytes, sampling: DeviceSampling | None) -> None:
    assert json.loads(asyncio.run(sent(path, body, sampling))) == json.loads(body)


def test_a_large_body_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy would count for no limit."""
    body = b'{"prompt":"aaaa"}'
    for most, is_copied in ((len(body), True), (len(body) - 1, False)):
        monkeypatch.setattr(request_module, "LARGEST_COPY", most)
        assert (asyncio.run(sent("/completion", body, EXACT)) != body) is is_copied


@pytest.mark.parametrize("adds", [True, False], ids=["auto", "head"])
@pytest.mark.parametrize("own", [False, True], ids=["meshd decides", "with -bs"])
async def test_a_client_does_not_choose_what_a_worker_computes(own: bool, adds: bool) -> None:
    """It would end where a value to be sorted is no number."""
    sampling = DeviceSampling({**SETTINGS, "backend_sampling": own}, 50_000, adds)

    async with world(says(200, {"content": "x"})) as here:
        here.upstream.device_sampling = sampling
        body = {"prompt": "a", "backend_sampling": True}
        async with here.http.post(f"{here.url}/completion", json=body) as answer:
            assert answer.status == (200 if own else 400)
            assert own or "`-- -bs`" in (await answer.json())["error"]["message"]
    assert len(here.server.seen) == own


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("before", "after"), [(None, EXACT), (EXACT, None)], ids=["to worker", "to head"])
async def test_after_a_loss_the_node_that_has_the_output_then_decides(
    before: DeviceSampling | None, after: DeviceSampling | None, stream: bool
) -> None:
    async with world(dies_after(chunk("a"), then=(chunk("b"), DONE)), config=CONFIG) as here:
        here.upstream.device_sampling = before

        async def move() -> None:
            here.upstream.device_sampling = after

        here.upstream.on_broke = move
        async with await here.chat(stream=stream) as answer:
            await answer.read()
    first, second = (json.loads(seen[3]) for seen in here.server.seen if seen[1] == "/v1/chat/completions")
    assert (first.get("backend_sampling"), second.get("backend_sampling")) == (
        before and True,
        after and True,
    )
    assert first["seed"] == second["seed"], "so that the answer stays the same"
