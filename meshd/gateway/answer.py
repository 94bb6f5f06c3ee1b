"""Answer one request: from the wait for its turn to the last byte that its client gets.

An `Answer` lives as long as its request, and `Answer.run` is that life from top to bottom. If llama-server
is lost, the request waits for the next one and is sent again; the client gets no part of the answer twice
(events.py). `Gateway` has one `AnswerContext`, which all its answers share.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from meshd.base.log import get
from meshd.gateway.client_connections import ClientGone, StreamReply, left_out, member_of
from meshd.gateway.continuation import OtherAnswer, resumed
from meshd.gateway.dialects.chat import PassedOn
from meshd.gateway.dialects.fields import with_fields
from meshd.gateway.events import (
    AnswerMeter,
    EventSplitter,
    SentEvents,
    WorkCounts,
    answer_timings,
    hide_model_path,
    parsed,
    without_cache,
)
from meshd.gateway.failure import (
    UPSTREAM_ERROR,
    Failure,
    HttpRefusal,
    plain_failure,
    read_failure,
    unavailable,
)
from meshd.gateway.interface import GatewayConfig, ModelTurn, NamedModel, Readiness, Upstream
from meshd.gateway.metrics import GatewayMetrics
from meshd.gateway.paths import PROPS_PATH, Route
from meshd.gateway.request import UpstreamRequest, not_ready
from meshd.gateway.slots import SlotUse
from meshd.gateway.turns import Turn
from meshd.gateway.upstream import (
    HELD_ANSWER_BYTES,
    MOST_JOINED_BYTES,
    Culprits,
    GatedRequest,
    Served,
    UpstreamLost,
    answer_headers,
    failure_in,
    is_event_stream,
    naming_slot,
    note_end,
    open_session,
    read_some,
    send_call,
    template_prompt,
)
from meshd.gateway.work import AnswerUnderWay
from meshd.model.status import ModelState

if TYPE_CHECKING:
    from meshd.gateway.tracing import RequestTrace

_log = get("gateway")
COMPUTED_AGAIN = "computing the answer again up to where it stopped"
_FIGURE_BYTES = 1024  # a name, its figure and the object around it are shorter
_SEEDS = 1 << 31
_RETRIES = 3  # of a request: one that ends llama-server shall not end it forever
_READY_SECONDS = 0.05  # between two looks at whether the model is ready
BEGIN_SECONDS = 15.0  # a request waits for workers before it is refused: clients may ask six times


def _broken(message: str, code: str = "upstream_error") -> Failure:
    return Failure(502, message, type=UPSTREAM_ERROR, code=code)


UNREADABLE = _broken("llama-server's answer cannot be read")
_ANOTHER = "another run of the request says something else: ask again from the beginning"
_DIFFERS = _broken(_ANOTHER, "upstream_lost")
_TOO_LONG = Failure(502, "one of the answers is too large to be joined with the others", code="too_long")


@dataclass(slots=True)
class RequestRecord:
    """Record of one request for metrics and traces. It came at `began`, in loop time.

    `status`: of the whole answer, if it differs from the response's; else 0. `trace` None: it is not traced.
    """

    began: float
    status: int = 0
    trace: "RequestTrace | None" = None


RECORD = web.RequestKey("record", RequestRecord)


class AnswerContext:
    """The state that all answers of a gateway share: settings, running answers, llama-servers, metrics.

    `tokens`: those generated since the start.
    """

    def __init__(self, config: GatewayConfig, *, on_demand: bool) -> None:
        """Take settings from `config`.

        `on_demand`: requests load models, so they do not wait for one that cannot be loaded.
        """
        self.metrics = GatewayMetrics()
        self.silence = config.keepalive_seconds
        self.continue_seconds = config.continue_seconds
        self.fails_over = config.fails_over
        self.on_demand = on_demand
        # a client may not see what was computed for another one
        self.hides_cache = len(config.api_keys) > 1
        # requests are retried after a loss: with a seed, so that they get the same answer
        self.retries = self.continue_seconds > 0 or self.fails_over
        self.tokens = 0
        self.counts = WorkCounts()
        self.under_way: dict[int, AnswerUnderWay] = {}  # by number, in the order in which they came
        self._served: dict[Upstream, Served] = {}  # each llama-server, from its first request on
        self._culprits = Culprits()
        self._asking = 0
        self._limits: set[asyncio.Timeout] = set()  # of all answers, running or waiting
        self._stopping = ""

    def served(self, upstream: Upstream) -> Served | None:
        """Return what is kept of `upstream`; None for another node's API, whose gateway keeps that itself.

        Such an upstream may exist for a single request.
        """
        if upstream.slots is not None and upstream not in self._served:
            self._served[upstream] = Served(upstream, self._culprits)
        return self._served.get(upstream)

    @property
    def running(self) -> int:
        """Count the requests whose turn has come."""
        return sum(served.turns.running for served in self._served.values())

    @property
    def waiting(self) -> int:
        """Count the requests whose turn has not come."""
        return sum(served.turns.waiting for served in self._served.values())

    @property
    def queues(self) -> Sequence[tuple[str, int, int]]:
        """Return the name of each model with a queue, and its running and waiting requests."""
        now = tuple(self._served.items())  # a copy: this may be another thread
        queues = [(upstream.model_name, served.turns) for upstream, served in now]
        return [(name, turns.running, turns.waiting) for name, turns in queues]

    @property
    def is_alone(self) -> bool:
        """Return True if exactly one answer is running."""
        return self._asking == 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count an answer as running until the block is left."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    def end_all(self, why: str) -> None:
        """End all answers, running or waiting, with an error that says `why`; refuse later ones."""
        self._stopping = why
        for limit in tuple(self._limits):
            limit.reschedule(_now())

    @asynccontextmanager
    async def until_stopped(self) -> AsyncIterator[None]:
        """Run until `end_all`, which turns into HttpRefusal."""
        try:
            async with asyncio.timeout(0 if self._stopping else None) as limit:
                self._limits.add(limit)
                try:
                    yield
                finally:
                    self._limits.discard(limit)
        except TimeoutError as error:
            raise unavailable(self._stopping, "stopping", 5) from error


class Answer:
    """The answer to one request of a client, with all its state.

    `run` waits for the turn and the model, then answers. `meter` has the figures, such as tokens.
    """

    def __init__(
        self,
        context: AnswerContext,
        request: web.BaseRequest,
        asked: UpstreamRequest,
        route: Route,
        model: NamedModel,
        *,
        headers: dict[str, str],
        caller: bytes = b"",
        part: int | None = None,
    ) -> None:
        """Take a request that its dialect has translated, for `model`.

        `headers` are added to the answer. `caller`: the digest of the key; if empty, the address identifies
        the caller. `part`: answer only this one of `asked.parts`, without translating the answer.
        """
        self.asked = asked
        self.upstream = upstream = model.upstream
        self.served = context.served(upstream)
        self.request = request
        self.headers = headers
        self.meter = AnswerMeter(is_transcript=route.is_form, came=request[RECORD].began, entered=_now())
        self._context = context
        self._route = route
        self._model = model
        self._caller = caller
        self._part = part
        # llama-server takes a seed of ours where the client has none, so that a retry gives the same answer
        self._can_add_fields = route.counts and asked.can_grow
        own_seed = context.retries and self._can_add_fields and not asked.has_seed
        self._own_fields: dict[str, object] = {"seed": secrets.randbelow(_SEEDS)} if own_seed else {}
        # before it is asked: the turn in the queue, the use of the model, and the body as this model takes it
        self._began = _now()
        self._came_before_ready = upstream.readiness.state is not ModelState.READY
        self._turn: Turn | None = None
        self._model_turn: ModelTurn | None = None
        self._body = asked.body
        self._notes = asked.notes
        # while it is asked, perhaps several times
        self._patience = context.continue_seconds if asked.body is not None else 0.0
        self._retries = _RETRIES if self._patience or context.fails_over else 0  # that are left
        self._gated: GatedRequest | None = None
        self._attempt_body = asked.body  # of this attempt
        # what the client gets
        self._streams = asked.stream
        self._sent = SentEvents(asked.path, own_seed=own_seed)
        metrics = context.metrics
        self._tokens = metrics.generated_tokens.labels(metrics.models[upstream.model_name])
        self._reply = StreamReply(
            request, silence=context.silence, headers=headers, answering=asked.answering
        )

    async def run(self, turn: Turn | None = None) -> web.StreamResponse:
        """Return the response: whole, or streamed to its end. `turn`: its turn in the queue, if any.

        Raises HttpRefusal, unless a stream has begun: then the failure is its last event.
        """
        context, reply, self._turn = self._context, self._reply, turn
        try:
            async with context.until_stopped(), AsyncExitStack() as held:
                held.enter_context(self._observed())
                # 1. Refuse a caller whose requests end llama-server. A request without a body computes
                #    nothing, so it ends none.
                if self._body is not None and self.served is not None:
                    caller = self._caller or self.request.remote
                    self._gated = held.enter_context(self.served.request(caller))

                # 2. Keep a stream alive from now on: llama-server sends its headers after it has read the
                #    prompt, which may take minutes, and the wait for a turn comes before that.
                if self._streams:
                    await self._begin_stream(held)

                # 3. Wait for the turn, and then for the model, because none is loaded for a request that
                #    still queues. Only a model that is there can tell how its template takes the body.
                await self._admit(held)
                self.meter.ready = _now()
                await self._fit_body()

                while True:
                    # 4. Ask llama-server, and pass on its answer: whole, or event by event as it comes.
                    try:
                        async with self._ask() as answer:
                            if not is_event_stream(answer):
                                return await self._pass_whole(answer)
                            if not self._streams:  # although no stream was asked for
                                await self._begin_stream(held)
                                await reply.note(self._notes)
                            return await self._pass_events(answer)
                    except UpstreamLost as lost:
                        failure = await self._note_loss(lost)  # of the last attempt
                        if context.fails_over:  # else the comments tell why the model is not ready
                            await reply.say(failure.message)
                    except OtherAnswer as other:  # this attempt's answer does not fit what the client has
                        _log.info("answer_differs", why=other.what)
                        failure = _DIFFERS

                    # 5. Retry when the model is ready again, for what the client lacks. Comments are allowed
                    #    meanwhile, also if the loss came within an event, and the first tells of it at once.
                    reply.allow_comments(True)
                    reply.look()
                    if failure.is_final or not await self._prepare_retry():
                        raise HttpRefusal(failure)
                    _log.info("answer_continues", model=self.upstream.model_name)

        # 6. End with the failure: as the response, or as the end of a stream that has begun.
        except HttpRefusal as refusal:
            if not reply.begun:
                raise
            return await self._end_stream(refusal.failure)
        except ClientGone:
            self._hung_up()
            return reply.response

    @contextmanager
    def _observed(self) -> Iterator[None]:
        """Show the answer as under way until the block is left, if a model computes it; then note its end."""
        answer = AnswerUnderWay(self.meter, self.upstream, self._caller, self._streams, self._notice)
        shown = self._context.under_way if self._route.computes else {}
        number = max(shown, default=0) + 1
        shown[number] = answer
        try:
            yield
        finally:
            del shown[number]
            if (trace := self.request[RECORD].trace) is not None:
                trace.answered(self.upstream, self.meter)

    def _hung_up(self) -> None:
        self.meter.hung_up()
        self.request[RECORD].status = self.meter.status

    def part(self, number: int) -> "Answer":
        """Return the answer to one part of the request, which takes its own turn and has its own figures."""
        part = Answer(
            self._context,
            self.request,
            replace(self.asked, answering=PassedOn()),  # what all of them come to is translated
            self._route,
            self._model,
            headers=self.headers,
            caller=self._caller,
            part=number,
        )
        part._began, part._came_before_ready = self._began, self._came_before_ready
        return part

    def translated(self, answer: object) -> object:
        """Return an answer's JSON as the client gets it. Raises HttpRefusal."""
        if self.asked.answering.passes_on:
            return answer
        if not isinstance(answer, dict):
            raise HttpRefusal(UNREADABLE)
        return self.asked.answering.whole(answer)

    async def _admit(self, held: AsyncExitStack) -> None:
        """Wait for the turn, then for the model, which is kept until `held` closes. Raises HttpRefusal."""
        context = self._context
        if self._turn is not None:
            await self._turn.come()
            self.meter.turn = _now()
        self._model_turn = self._model.turn()
        held.callback(self._model_turn.end)
        async with self._not_computing():
            refused = await self._model_turn.begin()
        if refused is None:
            return
        # wait for a model that was lost, or is about to be ready; one on demand has been waited for
        waits = self._turn is not None and not context.on_demand
        if waits:
            async with self._not_computing():
                if await (self._model_comes() if self._came_before_ready else self._model_returns()):
                    return
        now = self.upstream.readiness if waits else refused
        raise HttpRefusal(not_ready(now, has_waited=waits and context.continue_seconds > 0))

    async def _model_returns(self) -> bool:
        """Wait until a lost model is ready. Returns False if it takes too long, or was lost too often."""
        self._retries -= 1
        return self._retries >= 0 and await _becomes_ready(self.upstream, self._patience)

    async def _model_comes(self) -> bool:
        """Wait for the model of a request that came before it was ready.

        It waits as for a lost model while the model loads, but only BEGIN_SECONDS for workers, which may
        never come.
        """
        began = _now()
        while self._retries and (
            self.upstream.readiness.state is ModelState.LOADING or _now() - began < BEGIN_SECONDS
        ):
            left = self._patience - (_now() - began)
            if left <= 0 or _is_hopeless(self.upstream.readiness):
                return False
            if await _becomes_ready(self.upstream, min(left, BEGIN_SECONDS)):
                return True
        return False

    async def _begin_stream(self, held: AsyncExitStack) -> None:
        """Make the answer a stream, with comments during silence until `held` closes."""
        self._streams = True
        await held.enter_async_context(self._reply.commented(self._notice))

    def _not_computing(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which to wait for the model: its time does not count as the caller's use."""
        return nullcontext() if self._turn is None else self._turn.for_model()

    async def _fit_body(self) -> None:
        """Fit the body to the template of the loaded model, and add meshd's fields. Raises HttpRefusal.

        Call it after each load: the output of the model, or the model itself, may have changed.
        """
        asked, body, notes = self.asked, self.asked.body, self.asked.notes
        if body is None:
            return
        fields = self._added_fields()
        if asked.parts is not None and self._part is not None:
            body = asked.parts.body(self._part)
        if fields and body:
            body = with_fields(body, fields)
        self.meter.asked = body
        if asked.needs_fit and self.served is not None:  # another node fits it itself
            body, omitted = await self.served.fit(body)
            notes = (*notes, *omitted)
        if self._streams:
            await self._reply.note(notes)
        self._body, self._notes, self._attempt_body = body, notes, body

    def _added_fields(self) -> dict[str, object]:
        """Return the fields that meshd adds: a seed, and where to sample. Raises HttpRefusal."""
        fields = self._own_fields
        sampling, asked_for = self.upstream.device_sampling, self.asked.sampling
        if sampling is None:
            return fields
        if sampling.is_refused(asked_for):
            message = "`backend_sampling` is decided by meshd: leave it out, or start with `-- -bs`"
            raise HttpRefusal(Failure(400, message, code="backend_sampling_not_allowed"))
        return fields | sampling.added_to(asked_for) if self._can_add_fields else {}

    @asynccontextmanager
    async def _ask(self) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send the request; leaving the block closes the connection, which frees the slot.

        Raises UpstreamLost, and HttpRefusal if crash trials refuse the caller.
        """
        # X-Conversation-Id would make llama-server continue without a client
        headers = {"Accept-Encoding": "identity"}
        if (trace := self.request[RECORD].trace) is not None:
            headers |= trace.headers
        method = "GET"
        if self._body is not None:
            method, headers["Content-Type"] = "POST", self.asked.content_type
        upstream, path = self.upstream, f"{self.asked.path}{self.asked.query}"
        at_server = nullcontext() if self._gated is None else self._gated.at_server(upstream)
        in_slot: AbstractAsyncContextManager[SlotUse] = nullcontext(SlotUse())
        if self.served is not None and self._route.computes:
            is_one = self._part is not None or self.asked.answers == 1
            in_slot = self.served.slot(self._body if is_one and self._can_add_fields else None)
        with self._context.counted():
            async with at_server, in_slot as use, open_session(upstream.connect) as session:
                self.meter.sent = self.meter.sent or _now()
                body = naming_slot(self._attempt_body, use)
                answer = await send_call(session, method, path, body, headers)
                try:
                    if upstream.is_refusal(answer.status):
                        raise UpstreamLost((await failure_in(answer)).message, taken=False)
                    yield answer
                finally:
                    note_end(use, answer)
                    answer.close()

    async def _note_loss(self, lost: UpstreamLost) -> Failure:
        """Report a loss; return the failure for the client, in case no retry succeeds.

        The reason comes from the upstream: the head knows better than a connection which worker was lost.
        """
        context, upstream = self._context, self.upstream
        self.meter.losses += 1
        if self.served is not None:
            self.served.traits = None  # another model may take its place
        why = await upstream.upstream_broke(lost.what)
        _log.warning("upstream_lost", why=why)
        repeats, retry = context.continue_seconds > 0, upstream.readiness.retry_after
        gated, taken = self._gated, lost.taken
        if gated and (final := gated.lost(upstream.crashes, taken=taken, repeats=repeats)) is not None:
            return final
        if not taken:  # nothing was generated
            return unavailable(why, "upstream_away", retry).failure
        return replace(_broken(why, "upstream_lost"), retry_after=retry)

    async def _prepare_retry(self) -> bool:
        """Wait until the model is ready again; then write the body that asks for what the client lacks.

        Returns False if the model is not ready in time or was lost too often, or if the answer cannot be
        continued. Raises HttpRefusal, ClientGone.
        """
        if self._streams and self._body is None:
            return False  # there is no body that could ask for the rest

        # Wait for the model.
        async with self._not_computing():
            if not await self._model_returns():
                return False
        if self._streams and (note := self.upstream.readiness.note):
            await self._reply.say(note)

        await self._fit_body()
        if not self._streams or self._body is None:
            return True  # the client has nothing yet, so the whole is asked for again

        # Write the body for the rest; for that the template may be asked how it writes calls of tools.
        asking = self._sent.next_request(self._body)
        is_over, body = await asyncio.to_thread(resumed, asking, None)
        while not is_over and body is not None:
            prompt = await template_prompt(self.upstream.connect, body) or ""
            is_over, body = await asyncio.to_thread(resumed, asking, prompt)
        self._attempt_body = body
        return body is not None

    async def _pass_events(self, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        """Send what the client lacks of a stream, event by event.

        Raises UpstreamLost, OtherAnswer, ClientGone, and HttpRefusal for what cannot be translated.
        """
        reply, splitter = self._reply, EventSplitter()
        await reply.begin()
        try:
            while data := await read_some(answer):
                if events := splitter.feed(data):
                    # set before the write, so that no comment falls into an event that is not whole
                    reply.allow_comments(splitter.between_events)
                    await self._send(events, are_whole=splitter.between_events)
        except UpstreamLost:
            if not splitter.between_events:
                await reply.send(b"\n\n")
            raise
        if rest := splitter.rest():
            await self._send(rest, are_whole=splitter.between_events)
        self._sent.run_ended()
        return reply.response

    async def _send(self, events: bytes, *, are_whole: bool) -> None:
        """Send these events, less those that the client has. Raises as _pass_events does."""
        context, answering = self._context, self.asked.answering
        if not are_whole and not answering.passes_on:
            raise HttpRefusal(UNREADABLE)  # no event of a chat is that long
        if context.retries:
            if not are_whole:
                self._sent.in_pieces()
            events = self._sent.unsent(events, _now())
        # what was generated counts, whether or not the client is still there
        if self._route.counts:
            self._count_events(events)
        if context.hides_cache:
            events = without_cache(events)
        if events and (translated := answering.events(events)):
            await self._reply.send(translated)
        if events and self._gated is not None:
            self._gated.sent()

    def _count_events(self, events: bytes) -> None:
        """Count the tokens in these events, for the status, the key and the model."""
        meter, is_alone = self.meter, self._context.is_alone
        grown = meter.see_events(events)
        meter.alone = meter.alone and is_alone
        if grown:
            meter.first = meter.first or _now()
            self._generated(grown)
            self.upstream.generated(meter.generated, grown, alone=is_alone)
        self._note_timings(events, alone=meter.alone)

    def _note_timings(self, answer: bytes | bytearray, *, alone: bool) -> None:
        """Pass the timings in `answer`, if any, to the upstream."""
        if (timings := answer_timings(answer)) is not None:
            self.meter.timings = timings
            seconds = _now() - self._began
            self.upstream.answered(timings, alone=alone, seconds=seconds)

    async def _end_stream(self, failure: Failure) -> web.StreamResponse:
        """End a stream that has begun with this failure."""
        self.meter.status = self.request[RECORD].status = failure.status
        try:
            if member_of(self.request) is not None and failure.status >= 500 and not failure.is_final:
                await self._reply.cut(failure.message)  # its gateway asks again
            else:
                await self._reply.send(self.asked.answering.failed(failure))
        except ClientGone:
            pass  # nobody is left to be told
        return self._reply.response

    async def _pass_whole(self, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        """Pass on an answer that is not a stream. Raises HttpRefusal if it is an error.

        Raises UpstreamLost and OtherAnswer as well.
        """
        if self._reply.begun:  # its status comes too late
            failure = await failure_in(answer)
            self._sent.rest_is_refused(failure.message)
            raise HttpRefusal(failure)
        await self._reply.stop_comments()
        held, is_part, alone = bytearray(), self._part is not None, self._context.is_alone
        while data := await read_some(answer):
            held += data
            if is_part and len(held) > MOST_JOINED_BYTES:
                raise HttpRefusal(_TOO_LONG)
            if len(held) > HELD_ANSWER_BYTES and not is_part:
                if not self.asked.answering.passes_on:
                    raise HttpRefusal(UNREADABLE)
                return await self._pass_long(answer, bytes(held))
        self._see_figures(held)
        if self._route.counts:
            self._note_timings(held, alone=alone and self._context.is_alone)
        if answer.status >= 400:
            body = bytes(held)
            refusal = read_failure(body, answer.status, self.asked.path)
            raise HttpRefusal(refusal or plain_failure(answer.status, body))
        body = self._whole_body(bytearray(without_cache(bytes(held))) if self._context.hides_cache else held)
        headers = answer_headers(answer, {**self.headers, **left_out(self._notes)})
        return web.Response(status=answer.status, headers=headers, body=body)

    def _whole_body(self, answer: bytearray) -> bytes:
        """Return a whole answer as the client gets it. Raises HttpRefusal."""
        if self.asked.path == PROPS_PATH:
            return hide_model_path(answer, self.upstream.model_name)
        if self.asked.answering.passes_on:
            return bytes(answer)
        return json.dumps(self.translated(parsed(answer))).encode()

    async def _pass_long(self, answer: aiohttp.ClientResponse, data: bytes) -> web.StreamResponse:
        """Pass on an answer too long to buffer, which begins with `data`. A loss then cuts the connection."""
        response = web.StreamResponse(status=answer.status, headers=answer_headers(answer, self.headers))
        seen = b""
        try:
            await response.prepare(self.request)
            while data:
                seen += data
                self._see_figures(seen)
                seen = seen[-_FIGURE_BYTES:]
                await response.write(data)
                data = await read_some(answer)
        except UpstreamLost as lost:
            await self._note_loss(lost)
            if self.request.transport is not None:
                self.request.transport.abort()  # an end without its last chunk: no client takes it for whole
        except ConnectionError:
            pass  # the client disconnected
        return response

    def _see_figures(self, answer: bytes | bytearray) -> None:
        """Count the tokens that this part of a whole answer reports."""
        grown = self.meter.see(answer)
        if self._route.counts:
            self._generated(grown)

    def _generated(self, tokens: int) -> None:
        """Count tokens for status and metrics."""
        self._context.tokens += tokens
        self._context.counts.add_tokens(tokens, _now())
        self._tokens.inc(tokens)

    def _notice(self) -> str:
        """Return the text of a comment that says what the request waits for; empty if it does not wait."""
        context, now = self._context, self.upstream.readiness
        waits_for = ""
        if self._model_turn is not None:
            waits_for = self._model_turn.notice
        elif self._turn is not None:
            waits_for = self._turn.notice(context.silence)
        is_ready = now.state is ModelState.READY
        waits = not is_ready if context.continue_seconds else now.state is ModelState.DEGRADED
        if waits and not (waits_for and context.on_demand):
            return now.reason
        return waits_for or (COMPUTED_AGAIN if self._sent.is_catching_up else "")


async def _becomes_ready(upstream: Upstream, seconds: float) -> bool:
    """Wait until the model is ready. Returns False after `seconds`, or once that is useless."""
    try:
        async with asyncio.timeout(seconds):
            while upstream.readiness.state is not ModelState.READY:
                if _is_hopeless(upstream.readiness):
                    return False
                await asyncio.sleep(_READY_SECONDS)  # polled: states change rarely
    except TimeoutError:
        return False
    return True


def _is_hopeless(now: Readiness) -> bool:
    """Return True if waiting is useless: the model was unloaded, or failed for another reason than memory."""
    return now.state is ModelState.UNLOADED or (now.state is ModelState.FAILED and not now.no_room)


def _now() -> float:
    return asyncio.get_running_loop().time()
