"""llama-server ends by itself under several requests: one is the reason, and told so; all others go on."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from meshd.base.peer_limits import API_CULPRITS, API_CULPRITS_GONE
from meshd.gateway.interface import ApiKey, GatewayConfig, Readiness
from meshd.gateway.upstream import ENDS_SERVER, PASSED_PIECES
from meshd.model.status import ModelState

from tests.process.client_scene import HELLO, scene
from tests.process.gateway_fake import (
    DONE,
    HI,
    FakeServer,
    FakeUpstream,
    World,
    begin_stream,
    chunk,
    says,
    when,
    world,
)

CONFIG = GatewayConfig(port=0, keepalive_seconds=0.1, continue_seconds=10.0)


class Crashing:
    """An llama-server that ends under all requests when a bad one is there, once `together` are under way."""

    def __init__(self, together: int) -> None:
        self._upstream: FakeUpstream | None = None
        self._together = together
        self._lost = 0
        self.holds = asyncio.Event()
        self.holds.set()
        self.under_way: list[tuple[str, web.BaseRequest]] = []
        self.alone_with: list[list[str]] = []  # who was under way, at each crash

    async def __call__(self, server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(server.seen[-1][3])
        name = asked["user"]
        self.under_way.append((name, request))
        try:
            names = [one for one, _ in self.under_way]
            if not asked.get("stream"):
                if name == "bad" and len(names) >= self._together:
                    self._crash()
                await server.let_go.wait()
                return await says(200, {"usage": {"completion_tokens": 1}})(server, request)
            response = await begin_stream(request)
            if len(asked["messages"]) == 1:
                await response.write(chunk("a"))
            if name == "bad" and len(names) >= self._together:
                self._crash()
            await server.let_go.wait()
            for _ in range(PASSED_PIECES):
                await response.write(chunk("b"))
            await response.write(DONE)
            return response
        finally:
            self.under_way = [(one, of) for one, of in self.under_way if of is not request]

    def watch(self, upstream: FakeUpstream) -> None:
        """Be the llama-server of this one."""
        self._upstream, upstream.on_broke = upstream, self._broke

    async def _broke(self) -> None:
        """The model is there again when all that were lost have noticed, as a load takes longer."""
        await self.holds.wait()
        self._lost -= 1
        if self._lost <= 0 and self._upstream is not None:
            self._upstream.readiness = Readiness(ModelState.READY, "")

    def _crash(self) -> None:
        assert self._upstream is not None
        self.alone_with.append([one for one, _ in self.under_way])
        self._together = 1  # from now on it ends whenever it is there
        self._upstream.crashes += 1
        self._upstream.readiness = Readiness(ModelState.LOADING, "llama-server ended")
        self._lost = len(self.under_way)
        for _, request in self.under_way:
            if request.transport is not None:
                request.transport.abort()


async def until_under_way(here: World, count: int) -> None:
    async with here.server.changed:
        await here.server.changed.wait_for(lambda: here.server.active == count)


async def body_of(answer: Awaitable[aiohttp.ClientResponse]) -> tuple[int, bytes]:
    reply = await answer
    return reply.status, await reply.read()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_one_that_ends_it_alone_is_told_so_and_the_others_go_on(stream: bool) -> None:
    crashing = Crashing(together=3)
    async with world(crashing, config=CONFIG) as here:
        crashing.watch(here.upstream)
        good = [asyncio.ensure_future(body_of(here.chat(stream=stream, user=f"g{n}"))) for n in range(2)]
        await until_under_way(here, 2)
        bad = await here.chat(stream=stream, user="bad")
        said = await bad.read()
        assert crashing.alone_with == [["g0", "g1", "bad"], ["bad"]], "on trial first, and alone"
        if stream:
            error = json.loads(said.split(b"data: ")[-1])["error"]
        else:
            assert (bad.status, bad.headers["X-Should-Retry"]) == (500, "false")
            error = json.loads(said)["error"]
        assert error["code"] == ENDS_SERVER and "repeated alone" in error["message"]
        assert error["type"] == "invalid_request_error", "some clients repeat a `server_error` in a stream"
        here.server.let_go.set()
        for status, body in await asyncio.gather(*good):
            assert status == 200
            assert not stream or (body.count(b'"a"') == 1 and body.count(b'"b"') == PASSED_PIECES)
        assert len(crashing.alone_with) == 2


async def test_without_the_culprit_each_is_tried_by_itself_and_new_ones_wait() -> None:
    """Its client has left, as clients do whose request hangs."""
    crashing = Crashing(together=3)
    async with world(crashing, config=CONFIG) as here:
        crashing.watch(here.upstream)
        good = [asyncio.ensure_future(body_of(here.chat(user=f"g{n}"))) for n in range(2)]
        await until_under_way(here, 2)
        crashing.holds = asyncio.Event()
        bad = asyncio.ensure_future(here.chat(user="bad"))
        async with here.server.changed:
            await here.server.changed.wait_for(lambda: len(here.server.seen) >= 3)
        bad.cancel()
        await until_under_way(here, 0)
        crashing.holds.set()
        await until_under_way(here, 1)
        new = asyncio.ensure_future(body_of(here.chat(user="new")))
        await when(here, lambda: here.gateway.status.requests >= 4)
        names = [json.loads(body)["user"] for *_, body in here.server.seen[3:]]
        assert names in (["g0"], ["g1"]), "one is tried, and nobody else is sent to it"
        here.server.let_go.set()
        assert [status for status, _ in await asyncio.gather(*good, new)] == [200] * 3
        assert len(crashing.alone_with) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_where_nothing_is_repeated_nobody_of_several_is_at_fault(stream: bool) -> None:
    """All may ask again; a loss of one after another does not leave the last one alone with it."""
    crashing = Crashing(together=3)
    async with world(crashing, config=GatewayConfig(port=0)) as here:
        crashing.watch(here.upstream)
        good = [asyncio.ensure_future(body_of(here.chat(stream=stream, user=f"g{n}"))) for n in range(2)]
        await until_under_way(here, 2)
        all_of_them = [await body_of(here.chat(stream=stream, user="bad")), *await asyncio.gather(*good)]
        assert crashing.alone_with == [["g0", "g1", "bad"]]
        for status, said in all_of_them:
            assert status == (200 if stream else 502)
            assert b'"code": "upstream_lost"' in said and ENDS_SERVER.encode() not in said


@pytest.mark.parametrize("stream", [True, False])
async def test_where_nothing_is_repeated_the_answer_to_one_alone_is_final(stream: bool) -> None:
    """Another node's gateway would send it to the next head after a 502."""
    crashing = Crashing(together=1)
    async with world(crashing, config=GatewayConfig(port=0)) as here:
        crashing.watch(here.upstream)
        reply = await here.chat(stream=stream, user="bad")
        said = await reply.read()
        assert ENDS_SERVER.encode() in said and len(here.server.seen) == 1
        assert stream or reply.status == 500


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_of_heads_passes_that_on_and_asks_no_other_head(stream: bool) -> None:
    async with scene() as here:
        crashing = Crashing(together=1)
        first = await here.head("first", crashing)
        crashing.watch(first.upstream)
        second = await here.head("second", says(200, HELLO), others=3)  # so the first one is asked
        reply = await here.post(stream=stream, user="bad")
        said = await reply.read()
        assert len(first.asked) == 1 and second.asked == []
        assert reply.status == (200 if stream else 500)
        error = json.loads(said.split(b"data: ")[-1] if stream else said)["error"]
        assert error["code"] == ENDS_SERVER


async def test_a_key_that_ends_it_again_and_again_is_refused_for_a_while_and_others_go_on() -> None:
    crashing = Crashing(together=1)
    keys = ("good-key", "bad-key")
    config = replace(CONFIG, api_keys=tuple(map(ApiKey, keys)))
    async with world(crashing, config=config) as here:
        crashing.watch(here.upstream)
        good, bad = ({"Authorization": f"Bearer {key}"} for key in keys)
        url = f"{here.url}/v1/chat/completions"
        for _ in range(API_CULPRITS.most):
            async with here.http.post(url, json={**HI, "user": "bad"}, headers=bad) as reply:
                assert (await reply.json())["error"]["code"] == ENDS_SERVER
        crashes = len(crashing.alone_with)
        for stream in (True, False):
            body = {**HI, "user": "bad", "stream": stream}
            async with here.http.post(url, json=body, headers=bad) as reply:
                error = (await reply.json())["error"]
                assert (reply.status, error["code"]) == (429, "too_many_crashes")
                assert 590 <= int(reply.headers["Retry-After"]) <= 601
                assert "ended llama-server" in error["message"]
        here.upstream.readiness = Readiness(ModelState.LOADING, "reading 43 %")
        async with here.http.post(url, json={**HI, "user": "bad"}, headers=bad) as reply:
            assert reply.status == 429, "at once"
        here.upstream.readiness = Readiness(ModelState.READY, "")
        assert len(crashing.alone_with) == crashes == 2 * API_CULPRITS.most
        here.server.let_go.set()
        async with here.http.post(url, json={**HI, "user": "good"}, headers=good) as reply:
            assert reply.status == 200


@pytest.mark.parametrize("seconds", [0.0, 10.0])
async def test_a_key_whose_clients_hang_up_after_each_crash_is_refused_and_the_one_beside_it_is_not(
    seconds: float,
) -> None:
    """They hang up before the head knows why llama-server is gone, so nobody is told to be the reason."""
    crashing = Crashing(together=2)
    keys = ("good-key", "bad-key")
    config = replace(CONFIG, api_keys=tuple(map(ApiKey, keys)), continue_seconds=seconds)
    async with world(crashing, config=config) as here:
        crashing.watch(here.upstream)

        async def ask(key: str) -> tuple[int, bytes]:
            name, headers = key.removesuffix("-key"), {"Authorization": f"Bearer {key}"}
            url = f"{here.url}/v1/chat/completions"
            return await body_of(here.http.post(url, json={**HI, "user": name}, headers=headers))

        for crash in range(API_CULPRITS_GONE.most):
            here.server.let_go.clear()
            beside = crash % 2 == 0  # sometimes it is alone: with nothing repeated, the other one gets 502
            good = [asyncio.ensure_future(ask("good-key"))] if beside else []
            await until_under_way(here, len(good))
            crashing.holds.clear()
            here.upstream.broke.clear()
            bad = asyncio.ensure_future(ask("bad-key"))
            await when(here, lambda: len(here.upstream.broke) > len(good))  # noqa: B023 - awaited at once
            bad.cancel()
            await when(here, lambda: here.upstream.under_way <= len(good))  # noqa: B023 - awaited at once
            crashing.holds.set()
            here.server.let_go.set()
            here.upstream.readiness = Readiness(ModelState.READY, "")
            for status, said in await asyncio.gather(*good):
                assert status == (200 if seconds else 502) and ENDS_SERVER.encode() not in said
        crashes = len(crashing.alone_with)
        assert (await ask("good-key"))[0] == 200
        status, said = await ask("bad-key")
        assert (status, json.loads(said)["error"]["code"]) == (429, "too_many_crashes")
        assert len(crashing.alone_with) == crashes == API_CULPRITS_GONE.most


async def test_requests_that_wait_for_their_turn_are_refused_as_well() -> None:
    crashing = Crashing(together=1)
    async with world(crashing, config=CONFIG) as here:
        crashing.watch(here.upstream)
        here.upstream.slots = 1
        replies = await asyncio.gather(
            *(body_of(here.chat(stream=True, user="bad")) for _ in range(API_CULPRITS.most + 3))
        )
        codes = Counter(json.loads(said.split(b"data: ")[-1])["error"]["code"] for _, said in replies)
        assert codes == {ENDS_SERVER: API_CULPRITS.most, "too_many_crashes": 3}
        assert len(crashing.alone_with) == 2 * API_CULPRITS.most
