"""`/metrics` of a gateway: what it counts, for whom, and that nobody makes it grow."""

import asyncio
from collections.abc import Mapping

import aiohttp
from meshd.base.peer_limits import API_MODELS_MEASURED
from meshd.gateway.interface import ApiKey, GatewayConfig, KeyLimits
from prometheus_client.parser import text_string_to_metric_families

from tests.process.gateway_fake import (
    DONE,
    FakeServer,
    World,
    chunk,
    die,
    event,
    many_world,
    says,
    streams,
    world,
)
from tests.process.test_gateway_members import member

KEY = ApiKey("sk-one-0123456789", "one")
TIMINGS = {"prompt_n": 3, "prompt_ms": 200, "predicted_n": 5, "predicted_ms": 400, "cache_n": 4}
CHAT = "/v1/chat/completions"
MOST = API_MODELS_MEASURED.most


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values of each metric by the values of its labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


async def scraped(
    here: World, headers: Mapping[str, str] | None = None
) -> dict[str, dict[tuple[str, ...], float]]:
    async with here.http.get(f"{here.url}/metrics", headers=headers) as reply:
        assert reply.status == 200 and reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return samples(await reply.text())


async def test_an_answer_is_observed_once_it_is_over() -> None:
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "timings": TIMINGS})
    async with world(streams(chunk("a"), chunk("b"), last, DONE)) as here:
        async with await here.chat(stream=True) as reply:
            await reply.read()
        await here.until_idle()
        found = await scraped(here)
    assert found["meshd_requests_total"][CHAT, "200"] == 1
    assert found["meshd_request_duration_seconds_count"][CHAT,] == 1
    for name in ("request_queue", "time_to_first_token", "time_per_output_token"):
        assert found[f"meshd_{name}_seconds_count"]["tiny",] == 1, name
    assert found["meshd_time_per_output_token_seconds_sum"]["tiny",] == 0.1
    assert found["meshd_generated_tokens_total"]["tiny",] == 5
    assert found["meshd_prompt_tokens_total"]["tiny",] == 7
    assert found["meshd_cached_prompt_tokens_total"]["tiny",] == 4
    assert found["meshd_prompt_seconds_total"]["tiny",] == 0.2
    assert found["meshd_generated_seconds_total"]["tiny",] == 0.4
    assert found["meshd_answer_losses_total"]["tiny",] == 0
    assert found["meshd_requests_running"]["tiny",] == found["meshd_requests_waiting"]["tiny",] == 0


async def test_a_whole_answer_has_no_first_token() -> None:
    async with world(says(200, {"choices": [], "timings": TIMINGS})) as here:
        async with await here.chat() as reply:
            await reply.read()
        found = await scraped(here)
    assert found["meshd_generated_tokens_total"]["tiny",] == 5
    assert ("tiny",) not in found.get("meshd_time_to_first_token_seconds_count", {})


async def test_refusals_losses_and_clients_that_hang_up_have_their_status() -> None:
    async def answer(server: FakeServer, request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        if len(server.asked()) == 1:
            die(request)
        return await streams(chunk("a"))(server, request)

    async with world(answer) as here:
        async with await here.chat() as lost:
            assert lost.status == 502
        async with here.http.post(here.url + CHAT, data=b"{", headers={"Content-Type": "application/json"}):
            pass
        async with here.http.get(f"{here.url}/nothing/{'x' * 50}") as missing:
            assert missing.status == 404
        async with here.http.get(f"{here.url}/v1/models/any"):
            pass
        found = await scraped(here)
    requests = found["meshd_requests_total"]
    assert requests[CHAT, "502"] == 1 and requests[CHAT, "400"] == 1
    assert requests["other", "404"] == 1 and requests["/v1/models/NAME", "404"] == 1
    assert found["meshd_answer_losses_total"]["tiny",] == 1


async def test_a_client_that_hangs_up_counts_as_499() -> None:
    async def silent(server: FakeServer, _request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        await server.let_go.wait()
        raise AssertionError

    async with world(silent) as here:
        asking = asyncio.ensure_future(here.chat())
        await here.server.until(lambda: here.server.active == 1)
        asking.cancel()
        await here.server.until(lambda: here.server.cancelled == 1)
        await here.until_idle()
        assert (await scraped(here))["meshd_requests_total"][CHAT, "499"] == 1


async def test_metrics_need_a_key_where_the_api_does() -> None:
    config = GatewayConfig(port=0, api_keys=(KEY,))
    async with world(says(200, {}), config=config) as here:
        async with here.http.get(f"{here.url}/metrics") as refused:
            assert refused.status == 401
        found = await scraped(here, {"Authorization": f"Bearer {KEY.secret}"})
        async with here.http.post(f"{here.url}/metrics", headers={"x-api-key": KEY.secret}) as wrong:
            assert wrong.status == 405
        async with here.http.get(f"{here.url}/metrics", headers={"Host": "evil.example"}) as foreign:
            assert foreign.status == 403
    assert found["meshd_requests_total"]["/metrics", "401"] == 1
    assert not any("key" in name for name in found), "a key tells nothing of another one's use"


async def test_metrics_count_against_the_quota_of_their_key() -> None:
    limited = ApiKey("s" * 40, "anna", KeyLimits(requests_per_minute=2))
    async with world(says(200, {}), config=GatewayConfig(port=0, api_keys=(limited, KEY))) as here:
        statuses = []
        for secret in (limited.secret, limited.secret, limited.secret, KEY.secret):
            async with here.http.get(f"{here.url}/metrics", headers={"x-api-key": secret}) as reply:
                statuses.append(reply.status)
        assert statuses == [200, 200, 429, 200]


async def test_with_a_model_they_are_llama_servers_as_they_are_for_members() -> None:
    async with world(says(200, {"llamacpp": 1})) as here:
        async with here.http.get(f"{here.url}/metrics?model=tiny") as reply:
            assert await reply.json() == {"llamacpp": 1}
        async with member(here, "one") as (reader, writer):
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b'{"llamacpp": 1}')
        assert [path for _, path, _, _ in here.server.seen] == ["/metrics"] * 2


async def test_what_the_node_shows_is_answered_instead() -> None:
    async def node() -> str:
        return "meshd_node_info 1\n"

    async with world(says(200, {})) as here:
        here.gateway.shows(node)
        assert await scraped(here) == {"meshd_node_info": {(): 1.0}}


async def test_many_models_and_odd_statuses_share_labels() -> None:
    names = [f"model-{number}" for number in range(MOST + 3)]
    async with many_world(dict.fromkeys(names, says(299, {"choices": []}))) as here:
        for name in names:
            here.models[name].granted.set()
            async with await here.chat(name) as reply:
                assert reply.status == 299
        async with here.http.get(f"{here.gateway.url}/metrics") as reply:
            found = samples(await reply.text())
    assert found["meshd_requests_total"] == {(CHAT, "other"): MOST + 3.0}
    assert len(found["meshd_prompt_tokens_total"]) == MOST + 1
    assert found["meshd_request_queue_seconds_count"]["(others)",] == 3
    assert len(found["meshd_requests_running"]) == MOST + 1
