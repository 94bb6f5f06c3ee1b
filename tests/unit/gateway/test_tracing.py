"""The trace of a request, as an exporter gets it: its spans, their places and times, and what is not told."""

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from meshd import __version__
from meshd.gateway import tracing
from meshd.gateway.access import ApiPort
from meshd.gateway.events import AnswerMeter
from meshd.gateway.interface import AnswerTimings, ApiKey, ComputedTime, GatewayConfig
from meshd.gateway.request import OneModel
from meshd.gateway.server import Gateway
from meshd.gateway.tracing import LEAST_WAIT_SECONDS, Tracing, make_tracing, phases
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.process.gateway_fake import (
    DONE,
    HI,
    Answer,
    FakeUpstream,
    OneByOne,
    World,
    chunk,
    die,
    event,
    says,
    serving,
    streams,
    when,
    world,
)

SECRET = "the-prompt-and-the-answer-are-nobodys-business"
TIMINGS = {
    "prompt_n": 3,
    "prompt_ms": 2,
    "predicted_n": 2,
    "predicted_ms": 1,
    "draft_n": 9,
    "draft_n_accepted": 1,
}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED = PARENT[:-1] + "0"
KEY = ApiKey("sk-one-0123456789", "one")


def requests(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    """Return the spans of whole requests."""
    return [span for span in exporter.get_finished_spans() if span.kind is SpanKind.SERVER]


@dataclass
class Traced:
    """A world whose gateway traces requests, and what was exported."""

    here: World
    exporter: InMemorySpanExporter

    async def spans(self, least: int = 1) -> list[ReadableSpan]:
        """Return the spans, once so many requests are over."""
        await when(self.here, lambda: len(requests(self.exporter)) >= least)
        return list(self.exporter.get_finished_spans())


@contextlib.asynccontextmanager
async def traced(answer: Answer, *, config: GatewayConfig | None = None) -> AsyncIterator[Traced]:
    """As `world`, with traces."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with world(answer) as plain:
        api = await ApiPort.claim(config or GatewayConfig(port=0))
        gateway = Gateway(
            api, OneModel(plain.upstream), wall=time.time, tracing=Tracing(provider, wall=time.time)
        )
        async with serving(gateway):
            here = World(gateway, plain.upstream, plain.server, plain.http)
            yield Traced(here, exporter)


def tells(upstream: FakeUpstream, **workers: Callable[[float], float]) -> None:
    """Let workers tell that they computed for a share of each span."""

    async def computed(spans: Sequence[tuple[float, float]]) -> dict[str, list[ComputedTime]]:
        return {
            name: [ComputedTime(share(end - begin), 2) for begin, end in spans]
            for name, share in workers.items()
        }

    upstream.computed = computed  # type: ignore[method-assign]


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def below(spans: Sequence[ReadableSpan], parent: ReadableSpan) -> dict[str, list[ReadableSpan]]:
    """Return the spans whose parent this one is, by name."""
    found: dict[str, list[ReadableSpan]] = {}
    for span in spans:
        if span.parent is not None and span.parent.span_id == parent.context.span_id:
            found.setdefault(span.name, []).append(span)
    return found


def last(content: str = "") -> bytes:
    delta = {"content": content} if content else {}
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}], "timings": TIMINGS})


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes more than a millisecond to see that a model is ready: that counts as no wait."""
    monkeypatch.setattr(tracing, "LEAST_WAIT_SECONDS", 60.0)


@pytest.mark.usefixtures("no_waits")
async def test_a_request_its_waits_its_computing_and_its_workers_are_one_trace() -> None:
    async with traced(streams(chunk(SECRET), chunk(SECRET), last(), DONE)) as it:
        tells(it.here.upstream, garage=lambda took: took / 4, attic=lambda took: took * 9)
        before = time.time()
        async with await it.here.chat(
            stream=True, messages=[{"role": "user", "content": SECRET}], user=SECRET, tools=[]
        ) as reply:
            await reply.read()
        spans = await it.spans()
        after = time.time()
    [request] = [span for span in spans if span.kind is SpanKind.SERVER]
    assert request.parent is None and request.name == "POST /v1/chat/completions"
    assert len({span.context.trace_id for span in spans}) == 1
    children = below(spans, request)
    assert sorted(children) == ["prompt", "queue", "tokens"]
    assert all(len(one) == 1 for one in children.values())

    # they follow one another, within the request, which is where the clock is
    [queue], [prompt], [tokens] = children["queue"], children["prompt"], children["tokens"]
    moments = [request.start_time, queue.start_time, queue.end_time]
    moments += [prompt.start_time, prompt.end_time]
    moments += [tokens.start_time, tokens.end_time, request.end_time]
    assert all(one is not None for one in moments)
    assert all(one <= two for one, two in itertools.pairwise(moments) if one and two)
    assert prompt.end_time == tokens.start_time
    assert before <= (request.start_time or 0) / 1e9 and (request.end_time or 0) / 1e9 <= after
    assert seconds(queue) + seconds(prompt) + seconds(tokens) <= seconds(request)

    # workers, in both, and none longer than its parent
    for parent in (prompt, tokens):
        workers = below(spans, parent)["worker"]
        by_name = {(span.attributes or {})["meshd.worker"]: span for span in workers}
        assert seconds(by_name["garage"]) == pytest.approx(seconds(parent) / 4, rel=0.01, abs=1e-6)
        assert seconds(by_name["attic"]) == pytest.approx(seconds(parent), abs=1e-6)
        assert {span.start_time for span in workers} == {parent.start_time}
    assert len(spans) == 8

    # what is told, and what is not
    told = dict(request.attributes or {})
    assert told["http.route"] == "/v1/chat/completions" and told["http.response.status_code"] == 200
    assert told["gen_ai.request.model"] == "tiny" and told["gen_ai.usage.output_tokens"] == 2
    assert (tokens.attributes or {})["meshd.accepted_tokens"] == 1
    assert SECRET not in "".join(span.to_json() for span in spans)


@pytest.mark.usefixtures("no_waits")
async def test_the_clients_trace_is_continued_and_goes_on_to_the_upstream() -> None:
    async with traced(says(200, {"choices": [], "timings": TIMINGS})) as it:
        url = f"{it.here.url}/v1/chat/completions"
        headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
        async with it.here.http.post(url, json=HI, headers=headers) as reply:
            assert reply.status == 200
        spans = await it.spans()
        sent = [headers for _, path, headers, _ in it.here.server.seen if path == "/v1/chat/completions"][-1]
    [request] = [span for span in spans if span.kind is SpanKind.SERVER]
    assert f"{request.context.trace_id:032x}" == PARENT.split("-")[1]
    assert request.parent is not None and f"{request.parent.span_id:016x}" == PARENT.split("-")[2]
    assert sent["traceparent"].split("-")[1:3] == [
        f"{request.context.trace_id:032x}",
        f"{request.context.span_id:016x}",
    ]
    assert sent["tracestate"] == "vendor=1"
    names = sorted(span.name for span in spans)
    assert names == ["POST /v1/chat/completions", "prompt", "queue", "tokens"], "its timings tell of tokens"


@pytest.mark.parametrize("parent", ["00-zz-b7ad6b7169203331-01", "", "x" * 4000])
async def test_a_traceparent_that_is_none_begins_a_trace(parent: str) -> None:
    async with traced(says(200, {"choices": []})) as it:
        url, headers = f"{it.here.url}/v1/chat/completions", {"traceparent": parent}
        async with it.here.http.post(url, json=HI, headers=headers) as reply:
            assert reply.status == 200
        await it.spans()
        [request] = requests(it.exporter)
    assert request.parent is None


async def test_what_is_not_sampled_or_computes_nothing_has_no_spans() -> None:
    config = GatewayConfig(port=0, api_keys=(KEY,))
    async with traced(says(200, {"choices": []}), config=config) as it:
        url, key = f"{it.here.url}/v1/chat/completions", {"x-api-key": KEY.secret}
        async with it.here.http.post(url, json=HI) as refused:
            assert refused.status == 401
        headers = {**key, "traceparent": NOT_SAMPLED}
        async with it.here.http.post(url, json=HI, headers=headers) as reply:
            assert reply.status == 200
        async with it.here.http.get(f"{it.here.url}/props", headers=key):
            pass
        async with it.here.http.post(url, json=HI, headers=key):
            pass
        spans = await it.spans()
        sent = [headers for _, path, headers, _ in it.here.server.seen if path == "/v1/chat/completions"]
    assert len([span for span in spans if span.kind is SpanKind.SERVER]) == 1
    assert sent[0]["traceparent"].endswith("-00"), "the upstream does not sample either"


async def test_a_failure_is_told_by_its_status() -> None:
    async def dies(_server: object, request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        die(request)
        return await streams(chunk("a"))(_server, request)  # type: ignore[arg-type]

    async with traced(dies) as it:
        async with await it.here.chat() as reply:
            assert reply.status == 502
        await it.spans()
        [request] = requests(it.exporter)
    assert request.status.status_code is StatusCode.ERROR
    assert (request.attributes or {})["http.response.status_code"] == 502
    assert (request.attributes or {})["meshd.losses"] == 1


async def test_a_client_that_hangs_up_in_the_queue_leaves_a_trace() -> None:
    busy = OneByOne({"choices": []})
    async with traced(busy) as it:
        it.here.upstream.slots = 1
        first = asyncio.ensure_future(it.here.chat(user="first"))
        await it.here.server.until(lambda: busy.came == ["first"])
        second = asyncio.ensure_future(it.here.chat(user="second"))
        await when(it.here, lambda: it.here.upstream.waiting == 1)
        second.cancel()
        await it.spans()
        [request] = requests(it.exporter)
        assert (request.attributes or {})["http.response.status_code"] == 499
        assert list(below(it.exporter.get_finished_spans(), request)) == ["queue"]
        busy.answer_one()
        (await first).close()


@pytest.mark.usefixtures("no_waits")
async def test_requests_with_many_parts_tell_of_the_first_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_ANSWERS_TOLD", 2)
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    async with traced(says(200, {"choices": [{"index": 0, "text": "x"}], "usage": usage})) as it:
        body = {"prompt": ["a", "b", "c", "d"]}
        async with it.here.http.post(f"{it.here.url}/v1/completions", json=body) as reply:
            assert reply.status == 200, await reply.text()
        spans = await it.spans()
    [request] = [span for span in spans if span.kind is SpanKind.SERVER]
    assert {name: len(same) for name, same in below(spans, request).items()} == {"queue": 2, "prompt": 2}
    assert (request.attributes or {})["gen_ai.usage.input_tokens"] == 6


async def test_slow_workers_keep_no_answer_and_no_end_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that only so many traces wait for workers; at the end all are written without them."""
    monkeypatch.setattr(tracing, "_TRACES_WAITING", 2)
    async with traced(says(200, {"choices": []})) as it:
        asked = asyncio.Event()

        async def computed(spans: Sequence[tuple[float, float]]) -> dict[str, list[ComputedTime]]:
            asked.set()
            await asyncio.Event().wait()
            return {}

        it.here.upstream.computed = computed  # type: ignore[method-assign]
        for _ in range(5):
            async with await it.here.chat() as reply:
                assert reply.status == 200
        await asked.wait()
        assert len(await it.spans(3)) >= 3 and len(requests(it.exporter)) == 3
        exporter = it.exporter
    assert len(requests(exporter)) == 5


async def test_a_fault_while_workers_are_asked_ends_no_gateway() -> None:
    async with traced(says(200, {"choices": []})) as it:

        async def computed(spans: Sequence[tuple[float, float]]) -> dict[str, list[ComputedTime]]:
            raise ValueError("a bug")

        it.here.upstream.computed = computed  # type: ignore[method-assign]
        for _ in range(2):
            async with await it.here.chat() as reply:
                assert reply.status == 200
        await it.spans(2)


async def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "CLOSE_SECONDS", 0.05)
    go = threading.Event()

    class Silent(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

        def shutdown(self) -> None:
            go.wait(20)

    provider = TracerProvider(resource=Resource({}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(Silent()))
    async with asyncio.timeout(10):
        await Tracing(provider, wall=time.time).close()
    go.set()


def test_the_phases_of_an_answer_are_those_it_came_to() -> None:
    def named(meter: AnswerMeter) -> list[tuple[str, float, float]]:
        return [(phase.name, phase.begin, phase.end) for phase in phases(meter, 10.0)]

    timings = AnswerTimings(5, 1.0, 4, 2.0)
    assert named(AnswerMeter(entered=1.0)) == [("queue", 1.0, 10.0)]
    assert named(AnswerMeter(entered=1.0, turn=2.0)) == [("queue", 1.0, 2.0)]
    waited = AnswerMeter(entered=1.0, turn=2.0, ready=3.0, sent=4.0)
    assert named(waited) == [("queue", 1.0, 2.0), ("model", 2.0, 3.0), ("prompt", 4.0, 10.0)]
    at_once = AnswerMeter(entered=1.0, turn=1.0, ready=1.0, sent=1.0, first=6.0)
    assert named(at_once)[1:] == [("prompt", 1.0, 6.0), ("tokens", 6.0, 10.0)]
    whole = AnswerMeter(entered=1.0, turn=1.0, ready=1.0, sent=1.0, timings=timings)
    assert named(whole)[1:] == [("prompt", 1.0, 8.0), ("tokens", 8.0, 10.0)]
    odd = AnswerMeter(entered=1.0, turn=9.0, ready=9.0, sent=9.0, timings=timings)  # another clock's figures
    assert named(odd)[1:] == [("prompt", 9.0, 9.0), ("tokens", 9.0, 10.0)]


def test_exported_attributes_are_plain() -> None:
    meter = AnswerMeter(entered=1.0, turn=1.0, sent=1.0, first=2.0)
    meter.see(
        json.dumps({"usage": {"prompt_tokens": 7, "completion_tokens": 3, "cached_tokens": 4}}).encode()
    )
    told = {name: value for phase in phases(meter, 3.0) for name, value in phase.attributes.items()}
    assert told == {
        "gen_ai.usage.input_tokens": 7,
        "meshd.cached_tokens": 4,
        "gen_ai.usage.output_tokens": 3,
    }


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({}, True),
        ({"OTEL_SERVICE_NAME": "mine"}, False),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine,a=b"}, False),
        ({"OTEL_RESOURCE_ATTRIBUTES": "a=b"}, True),
    ],
)
async def test_spans_say_which_node_made_them(environ: dict[str, str], named: bool) -> None:
    traces = make_tracing(environ, node="desk", wall=time.time)
    found = traces.resource.attributes
    assert found["service.instance.id"] == "desk" and found["service.version"] == __version__
    assert (found["service.name"] == "meshd") is named
    await traces.close()


async def test_only_answers_of_a_server_here_have_phases_and_failures_of_ours_are_errors() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces, now = Tracing(provider, wall=lambda: 1000.0), asyncio.get_running_loop().time
    for slots, status in ((4, 499), (None, 500)):
        upstream = FakeUpstream(Path("/s"))
        upstream.slots = slots  # type: ignore[assignment]
        trace = traces.begin("POST", "/path", {}, now() - 5)
        trace.answered(upstream, AnswerMeter(entered=now(), turn=now(), alone=False, losses=2))
        traces.end(trace, status)
    await traces.close()
    here, elsewhere = requests(exporter)
    spans = exporter.get_finished_spans()
    assert (len(below(spans, here)), len(below(spans, elsewhere))) == (1, 0)
    assert [span.status.status_code for span in (here, elsewhere)] == [StatusCode.UNSET, StatusCode.ERROR]
    for span in (here, elsewhere):
        attributes = dict(span.attributes or {})
        assert (attributes["meshd.losses"], attributes["meshd.alone"]) == (2, False)
        assert attributes["http.request.method"] == "POST" and attributes["gen_ai.usage.input_tokens"] == 0
        assert (span.start_time or 0) / 1e9 == pytest.approx(995, abs=0.5) and 5 <= seconds(span) < 6


def test_a_model_is_waited_for_from_a_millisecond_on() -> None:
    for waited, is_shown in ((LEAST_WAIT_SECONDS / 2, False), (LEAST_WAIT_SECONDS * 2, True)):
        meter = AnswerMeter(entered=1.0, turn=2.0, ready=2.0 + waited)
        assert [phase.name for phase in phases(meter, 9.0)] == ["queue", *["model"] * is_shown]
    drafted = AnswerMeter(entered=1.0, turn=1.0, sent=1.0, timings=AnswerTimings(5, 1.0, 4, 2.0, 9, 6))
    [_, prompt, tokens] = phases(drafted, 10.0)
    assert prompt.is_computed and tokens.is_computed
    assert (tokens.attributes["meshd.drafted_tokens"], tokens.attributes["meshd.accepted_tokens"]) == (9, 6)
