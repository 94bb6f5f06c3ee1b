"""Metrics and traces of real nodes, as a Prometheus and a collector have them; the bytes of their logs."""

import asyncio
import http.client
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.e2e.api_client import Api
from tests.e2e.collector import PROMETHEUS, Collector, attributes, collecting, prometheus
from tests.e2e.models import smollm2
from tests.e2e.nodes import Fleet, api_of, cli, play
from tests.log_day import LOADS, MOST_BYTES, OF_THE_NETWORK, REQUESTS
from tests.process.test_dashboard import expressions
from tests.process.test_gateway_metrics import samples

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

SECRET = "zanzibar-quokka-4711"
TOKENS = 16
LEAST_TURNS = TOKENS - 3
COMPUTED = [
    "queue",
    "prompt",
    "tokens",
    "worker",
    "worker",
]  # of one worker: in the prompt, and in the tokens
TIMES = 3  # requests at most, until a worker has read all its turns
MAY_BE_EMPTY = {"Warnings"}  # the table


async def asked(api: Api, parent: str) -> dict[str, Any]:
    """Ask with a trace of the client's; return the last usage of the stream."""

    def ask() -> dict[str, Any]:
        body = {
            "messages": [{"role": "user", "content": f"Say {SECRET} and go on."}],
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = api.open()
        try:
            headers = {"Content-Type": "application/json", "traceparent": parent}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            reply: http.client.HTTPResponse = connection.getresponse()
            lines = reply.read().decode().splitlines()
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            found: dict[str, Any] = [event["usage"] for event in events if event.get("usage")][-1]
            return found
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


def only(spans: list[tuple[str, Span]], name: str, who: str = "head") -> Span:
    [found] = [span for exporter, span in spans if (span.name, exporter) == (name, who)]
    return found


def seconds(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


async def check_a_trace(collector: Collector, api: Api, first: int, *above: str) -> None:
    """Check the trace of a request, which has the number `first` or one of the next.

    A worker is told how long ago its turns were: if it reads that late, it misses some of them.
    """
    for number in range(first, first + TIMES):
        parent = f"00-{number:032x}-{number:016x}-01"
        turns = await check_trace(collector, parent, await asked(api, parent), *above)
        if turns[0] >= 1 and turns[1] >= LEAST_TURNS:
            return
    raise AssertionError(f"turns in the prompt, and in the tokens: {turns}")


async def check_trace(
    collector: Collector, parent: str, usage: dict[str, Any], *above: str
) -> tuple[int, int]:
    """The one trace of a request: its spans, whose children they are, and whether their times add up.

    Return how many turns the worker has found in the prompt, and in the tokens.
    """
    post = "POST /v1/chat/completions"
    async with asyncio.timeout(60):
        spans = await collector.trace(parent, [*COMPUTED, post, *(post for _ in above)])
    request = only(spans, post)
    outermost = only(spans, post, above[0]) if above else request
    assert outermost.parent_span_id.hex() == parent.split("-")[2]
    assert not above or request.parent_span_id == outermost.span_id
    queue, prompt, tokens = (only(spans, name) for name in ("queue", "prompt", "tokens"))
    assert {one.parent_span_id for one in (queue, prompt, tokens)} == {request.span_id}

    # They follow one another, and are nearly all of the request.
    assert prompt.end_time_unix_nano == tokens.start_time_unix_nano
    line = [outermost, request, queue, prompt, tokens]
    assert all(
        one.start_time_unix_nano <= two.start_time_unix_nano + 2_000_000
        for one, two in itertools.pairwise(line)
    )
    waited = sum(seconds(span) for _, span in spans if span.name == "model")
    whole = seconds(queue) + waited + seconds(prompt) + seconds(tokens)
    assert 0.8 * seconds(request) < whole <= seconds(request), (whole, seconds(request))
    assert seconds(request) <= seconds(outermost) + 0.002

    # The worker: in both, for a part of the time, with a turn for each token.
    workers = [span for _, span in spans if span.name == "worker"]
    by_parent = {span.parent_span_id: span for span in workers}
    assert by_parent.keys() == {prompt.span_id, tokens.span_id}
    found = [int(attributes(by_parent[one.span_id].attributes)["meshd.turns"]) for one in (prompt, tokens)]
    assert found[1] <= TOKENS + 1, found
    for phase, turns in zip((prompt, tokens), found, strict=True):
        worker = by_parent[phase.span_id]
        assert seconds(worker) > 0 or turns == 0
        assert seconds(worker) <= seconds(phase) + 1e-6
        assert attributes(worker.attributes)["meshd.worker"] == "worker-0"

    # What it tells.
    told = attributes(request.attributes)
    assert told["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == TOKENS
    assert told["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert told["http.response.status_code"] == 200 and told["meshd.alone"] is True
    return found[0], found[1]


def place(status: Status) -> str:
    assert status.api is not None
    return status.api.url.removeprefix("http://")


async def metrics_url(node: LocalNode) -> str:
    """Wait for the line of the log that tells where a node can be scraped."""
    log = node.spec.home / "logs" / "meshd.log"
    while True:
        for line in log.read_text().splitlines() if log.exists() else ():
            if "metrics_listening" in line:
                return line.partition("url=")[2].split()[0]
        await asyncio.sleep(0.05)


@pytest.mark.skipif(PROMETHEUS is None, reason="needs Debian's package prometheus")
def test_a_prometheus_and_a_collector_of_traces(tmp_path: Path) -> None:
    async def check(collector: Collector) -> None:
        async with Fleet(tmp_path) as fleet:
            traced = {
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
                "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20collector-key",
                "OTEL_BSP_SCHEDULE_DELAY": "100",
            }
            with_metrics = ("--set", "node.metrics=127.0.0.1:0")
            token, [worker] = await fleet.workers(smollm2(), options=with_metrics)
            spec = fleet.spec("head", "serve", "--model", str(smollm2()), "--port", "0", token=token)
            head = await fleet.start(replace(spec, environment={**spec.environment, **traced}))
            spec = fleet.spec("client", "client", "--port", "0", token=token)
            client = await fleet.start(replace(spec, environment={**spec.environment, **traced}))
            ready = await fleet.ready(head)
            through = await client.until(lambda status: status.api is not None and status.api.ready)

            # Traces: at the head, and through a client's node.
            await check_a_trace(collector, api_of(ready), 0xA1)
            await check_a_trace(collector, api_of(through), 0xB1, "client")
            assert not any(SECRET.encode() in body for body in collector.bodies), "nothing that was asked"
            assert {headers["authorization"] for headers in collector.headers} == {"Bearer collector-key"}

            # Metrics: of the worker on loopback, of the head at its API.
            url = await metrics_url(worker)
            scraped = [url.removeprefix("http://").removesuffix("/metrics"), place(ready), place(through)]
            with prometheus(tmp_path, *scraped) as server:
                await server.until("count(meshd_node_info) == 3")
                assert await server.scraped() == {*scraped}
                for _ in range(3):
                    await api_of(ready).complete("Go on.", TOKENS)
                # A rate needs two values, and a node that was late for a scrape has none until the next one.
                for title, expression, _ in expressions():
                    if not await server.ask(expression) and title not in MAY_BE_EMPTY:
                        await server.until(expression)
                [computed] = await server.until("meshd_lent_computed_seconds_total")
                assert computed["metric"]["instance"] == scraped[0] and float(computed["value"][1]) > 0
                peers = await server.ask("last_over_time(meshd_peer_info[5m])")
                assert {one["metric"]["name"] for one in peers} == {"worker-0", "head", "client"}
                generated = f'sum(meshd_generated_tokens_total{{instance="{scraped[1]}"}})'
                await server.until(f"{generated} >= {5 * TOKENS}")

            # The same, by the control socket.
            printed = await cli(worker.spec.home, "metrics")
            assert printed.returncode == 0, printed.stderr
            assert samples(printed.stdout)["meshd_node_info"].keys() == {
                ("worker-0", "worker", ready.node.version)
            }

    with collecting() as collector:
        play(check(collector))


ASKED = 12


def logged(node: LocalNode) -> int:
    """Count the bytes in all log files of a node."""
    return sum(path.stat().st_size for path in (node.spec.home / "logs").iterdir())


def test_a_day_of_requests_and_loads_leaves_less_than_ten_megabytes(tmp_path: Path) -> None:
    """On each node, with what links and members cause (tests/sim/test_log_of_a_day.py)."""

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, [worker] = await fleet.workers(smollm2())
            head = await fleet.head(smollm2(), token=token)
            api = api_of(await fleet.ready(head))
            loaded = {node: logged(node) for node in (head, worker)}  # the node's start included
            for number in range(ASKED):
                await api.stream(f"{number}: go on.", TOKENS)
                await api.complete(f"{number}: and on.", TOKENS)
            for node, before in loaded.items():
                each = (logged(node) - before) / (2 * ASKED)
                day = OF_THE_NETWORK + REQUESTS * each + LOADS * before
                figures = f"{each:.0f} bytes a request, {before} a load, {day / 1e6:.1f} MB a day"
                print(f"{node.spec.name}: {figures}")  # noqa: T201
                assert day < MOST_BYTES
            assert logged(head) > loaded[head], "each request is told"

    play(check())
