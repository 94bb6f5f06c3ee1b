"""Traces of requests; the only user of OpenTelemetry, which is the extra `otel`.

One trace for each request that a model computes: the request, its wait for a turn and for the model, its
prompt, its tokens, and below these two what each worker computed. The trace of a client (`traceparent`) is
continued, also in another node's API. Spans have names, numbers and times, and nothing of what is asked or
answered.

All is known when an answer has ended, but for the workers. A task asks them then, so that no answer waits for
its trace. Workers compute in turns, one for each token, and tell how many seconds these took: so a worker's
span begins with that of the prompt or the tokens, and is as long as it computed meanwhile (decision 0088).

OpenTelemetry's own environment variables are its settings, and a thread of its SDK exports the spans.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from meshd import __version__
from meshd.base.fault_boundary import ended
from meshd.base.metrics import label
from meshd.gateway.events import AnswerMeter
from meshd.gateway.interface import ComputedTime, Upstream

_ANSWERS_TOLD = 8  # of one request, whose parts may be thousands
_TRACES_WAITING = 64  # for their workers to be asked; further ones do without
CLOSE_SECONDS = 2.0  # for the last spans to leave
LEAST_WAIT_SECONDS = 0.001  # for a model, before that is worth a span
PROMPT, TOKENS = "prompt", "tokens"
_CONTEXT_HEADERS = ("traceparent", "tracestate")
_RESOURCE_ATTRIBUTES = "OTEL_RESOURCE_ATTRIBUTES"
_PROPAGATOR = TraceContextTextMapPropagator()
_Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of an answer's life, in loop time. `is_computed`: workers take part in it."""

    name: str
    begin: float
    end: float
    attributes: Mapping[str, _Value] = field(default_factory=dict)
    is_computed: bool = False


def phases(meter: AnswerMeter, over: float) -> Iterator[Phase]:
    """Yield the parts of an answer's life as far as it came; it was `over` at that moment."""
    # The waits.
    begin = meter.turn or over
    yield Phase("queue", meter.entered, begin)
    if meter.ready is not None and meter.ready - begin > LEAST_WAIT_SECONDS:
        yield Phase("model", begin, meter.ready)
    if meter.sent is None:
        return
    # The computing. Of an answer that is no stream, llama-server tells at its end when the first token was.
    timings, first = meter.timings, meter.first
    if first is None and timings is not None and timings.generated_tokens:
        first = over - timings.generated_seconds
    first = None if first is None else min(max(first, meter.sent), over)
    attributes: dict[str, _Value] = {}
    if meter.prompt is not None:
        attributes["gen_ai.usage.input_tokens"] = meter.prompt
    if meter.cached is not None:
        attributes["meshd.cached_tokens"] = meter.cached
    yield Phase(PROMPT, meter.sent, over if first is None else first, attributes, is_computed=True)
    if first is not None:
        attributes = {"gen_ai.usage.output_tokens": meter.generated}
        if timings is not None and timings.drafted:
            attributes |= {"meshd.drafted_tokens": timings.drafted, "meshd.accepted_tokens": timings.accepted}
        yield Phase(TOKENS, first, over, attributes, is_computed=True)


@dataclass(frozen=True, slots=True)
class _TracedAnswer:
    upstream: Upstream
    phases: tuple[Phase, ...]
    model: str
    prompt_tokens: int
    generated_tokens: int
    alone: bool
    losses: int


@dataclass(slots=True)
class RequestTrace:
    """The trace of one request. `offset`: what makes Unix time of loop time."""

    span: Span
    offset: float
    ended: float = 0.0
    answers: list[_TracedAnswer] = field(default_factory=list)

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the headers with which another node continues the trace."""
        found: dict[str, str] = {}
        _PROPAGATOR.inject(found, set_span_in_context(self.span))
        return found

    def answered(self, upstream: Upstream, meter: AnswerMeter) -> None:
        """Note that an answer to the request has ended. Its workers are asked if the answers are few."""
        if not self.span.is_recording() or len(self.answers) >= _ANSWERS_TOLD:
            return
        now, is_here = asyncio.get_running_loop().time(), upstream.slots is not None
        answer = _TracedAnswer(
            upstream,
            phases=tuple(phases(meter, now)) if is_here else (),  # another node tells of them
            model=label(upstream.model_name),
            prompt_tokens=meter.prompt or 0,
            generated_tokens=meter.generated,
            alone=meter.alone,
            losses=meter.losses,
        )
        self.answers.append(answer)

    def unix(self, moment: float) -> int:
        """Return a moment of the loop's clock as Unix time in nanoseconds."""
        return int((moment + self.offset) * 1e9)


class Tracing:
    """The traces of one gateway. `wall` gives Unix seconds."""

    def __init__(self, provider: TracerProvider, *, wall: Callable[[], float]) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("meshd", __version__)
        self._wall = wall
        self._waiting: deque[RequestTrace] = deque()
        self._woken = asyncio.Event()

    @property
    def resource(self) -> Resource:
        """Return what all spans say of this node."""
        return self._provider.resource

    def begin(self, method: str, path: str, headers: Mapping[str, str], came: float) -> RequestTrace:
        """Begin the trace of a request that came at `came`, in loop time, or continue that of its client."""
        given = {name: headers[name] for name in _CONTEXT_HEADERS if name in headers}
        offset = self._wall() - asyncio.get_running_loop().time()
        span = self._tracer.start_span(
            f"{method} {path}",
            _PROPAGATOR.extract(given),
            SpanKind.SERVER,
            {"http.request.method": method, "http.route": path},
            start_time=int((came + offset) * 1e9),
        )
        return RequestTrace(span, offset)

    def end(self, trace: RequestTrace, status: int) -> None:
        """End the trace of a request; `status` is HTTP's. Its spans are made once workers were asked."""
        if not trace.span.is_recording():
            return
        trace.ended = asyncio.get_running_loop().time()
        trace.span.set_attribute("http.response.status_code", status)
        if status >= 500:
            trace.span.set_status(StatusCode.ERROR)
        if len(self._waiting) >= _TRACES_WAITING:
            self._write(trace, ())
            return
        self._waiting.append(trace)
        self._woken.set()

    async def serve(self) -> None:
        """Ask workers and write spans, until cancelled."""
        while True:
            self._woken.clear()
            while self._waiting:
                trace = self._waiting[0]
                computed = await ended(_computed(trace.answers), source="workers", name="trace")
                self._waiting.popleft()
                self._write(trace, computed or ())
            await self._woken.wait()

    async def close(self) -> None:
        """Write what is left, without workers, and export it for at most CLOSE_SECONDS."""
        while self._waiting:
            self._write(self._waiting.popleft(), ())
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # it took too long, and the loop is closed
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, name="last spans", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await done.wait()

    def _write(self, trace: RequestTrace, computed: "Sequence[Sequence[_Workers]]") -> None:
        """Write all spans. `computed`: by answer and phase; empty if the workers were not asked."""
        for number, answer in enumerate(trace.answers):
            for place, phase in enumerate(answer.phases):
                span = self._child(trace, trace.span, phase.name, phase.begin, phase.end, phase.attributes)
                workers = computed[number][place] if computed else {}
                for name, took in workers.items():
                    attributes: dict[str, _Value] = {"meshd.worker": label(name), "meshd.turns": took.turns}
                    end = min(phase.end, phase.begin + took.seconds)
                    self._child(trace, span, "worker", phase.begin, end, attributes)
        trace.span.set_attributes(_of_request(trace.answers))
        trace.span.end(trace.unix(trace.ended))

    def _child(
        self,
        trace: RequestTrace,
        parent: Span,
        name: str,
        begin: float,
        end: float,
        attributes: Mapping[str, _Value],
    ) -> Span:
        """Write a span below `parent`."""
        span = self._tracer.start_span(
            name, set_span_in_context(parent), attributes=attributes, start_time=trace.unix(begin)
        )
        span.end(trace.unix(end))
        return span


_Workers = Mapping[str, ComputedTime]


def _of_request(answers: Sequence[_TracedAnswer]) -> Mapping[str, _Value]:
    """Return what all answers to a request come to."""
    if not answers:
        return {}
    found: dict[str, _Value] = {"gen_ai.request.model": answers[0].model}
    found["meshd.alone"] = all(answer.alone for answer in answers)
    found["meshd.losses"] = sum(answer.losses for answer in answers)
    found["gen_ai.usage.input_tokens"] = sum(answer.prompt_tokens for answer in answers)
    found["gen_ai.usage.output_tokens"] = sum(answer.generated_tokens for answer in answers)
    return found


async def _computed(answers: Sequence[_TracedAnswer]) -> Sequence[Sequence[_Workers]]:
    """Ask the workers about each phase of each answer; those that do not answer are left out."""
    return [await _computed_for(answer) for answer in answers]


async def _computed_for(answer: _TracedAnswer) -> Sequence[_Workers]:
    asked = [phase for phase in answer.phases if phase.is_computed]
    found = await answer.upstream.computed([(phase.begin, phase.end) for phase in asked]) if asked else {}
    return [
        {name: times[asked.index(phase)] for name, times in found.items()} if phase.is_computed else {}
        for phase in answer.phases
    ]


def make_tracing(environ: Mapping[str, str], *, node: str, wall: Callable[[], float]) -> Tracing:
    """Return traces that are exported as `environ` says. `node`: the name of this one."""
    attributes = {"service.version": __version__, "service.instance.id": node}
    if not (environ.get("OTEL_SERVICE_NAME") or "service.name=" in environ.get(_RESOURCE_ATTRIBUTES, "")):
        attributes["service.name"] = "meshd"
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider, wall=wall)
