"""Forwards a request to llama-server and the answer to the client, byte for byte, at the client's pace.

Where llama-server is lost, the request waits for the next one and is sent again: what the client has of the
answer is not sent twice (sent_events.py).

Each request opens its own connection: llama-server may be a new process behind the same socket path,
a connection kept open would hold one of its few threads, and closing it is what frees the slot when
the client hangs up. No timeout: a prompt of 30,000 tokens on a CPU takes as long as it takes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from meshd.base.log import get
from meshd.base.tasks import Owner
from meshd.gateway.echo import OtherAnswer
from meshd.gateway.events import EventSplitter, TokenCount, answer_timings, exact_tokens
from meshd.gateway.failure import Failure, HttpRefusal, not_ready
from meshd.gateway.proxied_call import ProxiedCall
from meshd.gateway.repeats import Repeats
from meshd.gateway.reply import ClientGone, StreamReply
from meshd.gateway.running_answers import RunningAnswers
from meshd.gateway.sent_events import SentEvents
from meshd.gateway.upstream import (
    HELD_ANSWER_BYTES,
    UpstreamLost,
    answer_headers,
    is_event_stream,
    open_session,
    read_some,
    send_call,
)
from meshd.gateway.upstream_failure import failure_in, plain_failure, told_failure
from meshd.model.status import ModelState

_log = get("gateway")


class Proxy:
    """Forwards calls to their upstreams, which compute on the same machines."""

    def __init__(
        self,
        *,
        silence: float,
        count_tokens: Callable[[int], None],
        continue_seconds: float = 0.0,
        fails_over: bool = False,
        on_demand: bool = False,
    ) -> None:
        """As in GatewayConfig. `on_demand`: requests load models: none that cannot be had is waited for."""
        self._continue_seconds = continue_seconds
        self._fails_over = fails_over
        self._silence = silence
        self._count_tokens = count_tokens
        self._running = RunningAnswers()
        self._waiting = RunningAnswers()  # for their turns
        self._on_demand = on_demand

    def end_all(self, why: str) -> None:
        """End all answers, and waits for one, with an error that says `why`; refuse later ones."""
        for answers in (self._waiting, self._running):
            answers.end_all(why)

    async def forward(self, request: web.BaseRequest, call: ProxiedCall) -> web.StreamResponse:
        """Answer `request` with what llama-server says to `call`, in its turn; once more if it is lost.

        Raises HttpRefusal.
        """
        seconds = self._continue_seconds if call.method == "POST" else 0.0
        repeats = Repeats(call.upstream, seconds, at_once=self._fails_over)
        if call.stream:
            return await self._forward_stream(request, call, repeats)
        call = await self._admitted(call, repeats)
        while True:
            try:
                async with self._running.until_stopped(), self._ask(call) as answer:
                    if is_event_stream(answer):
                        return await self._forward_stream(request, call, repeats, answer)
                    return await self._whole(request, call, answer)
            except UpstreamLost as lost:
                failure = await self._lost(call, lost)
            if not await self._again(call, repeats):
                raise HttpRefusal(failure)

    async def _admitted(self, call: ProxiedCall, repeats: Repeats) -> ProxiedCall:
        """Once it is its turn, and the model is there: one that was lost meanwhile is waited for."""
        async with self._waiting.until_stopped():
            refused = await call.admission.come()
        if refused is not None:
            waits = (call.admission.queued is not None or call.is_begun) and not self._on_demand
            if not waits or not await self._again(call, repeats):
                raise HttpRefusal(not_ready(refused))
        return call.whole()

    async def _again(self, call: ProxiedCall, repeats: Repeats) -> bool:
        """Once the model is ready."""
        async with call.admission.for_model(), self._running.until_stopped():
            return await repeats.allowed()

    async def _forward_stream(
        self,
        request: web.BaseRequest,
        call: ProxiedCall,
        repeats: Repeats,
        answer: aiohttp.ClientResponse | None = None,
    ) -> web.StreamResponse:
        reply = StreamReply(
            request, silence=self._silence, headers=call.headers, notice=lambda: self._notice(call)
        )
        outcome: web.StreamResponse | Failure
        async with Owner() as owner:
            # comments begin before llama-server's headers: those come after the prompt was worked through
            owner.start(reply.keep_alive(), name="gateway keep-alive")
            outcome = await self._outcome(request, call, reply, repeats, answer)
            await reply.stop_comments()
            owner.cancel()
        if isinstance(outcome, web.StreamResponse):
            return outcome
        return await self._end_with(reply, call, outcome)

    def _notice(self, call: ProxiedCall) -> str:
        """What a client is told that waits."""
        now, told = call.upstream.readiness, call.admission.notice(self._silence)
        waits = (
            now.state is not ModelState.READY if self._continue_seconds else now.state is ModelState.DEGRADED
        )
        return now.reason if waits and not (told and self._on_demand) else told

    async def _outcome(
        self,
        request: web.BaseRequest,
        call: ProxiedCall,
        reply: StreamReply,
        repeats: Repeats,
        answer: aiohttp.ClientResponse | None,
    ) -> web.StreamResponse | Failure:
        """Errors as values: one raised within the owner's block would come out as a group."""
        try:
            async with call.until_taken():
                return await self._runs(request, call, reply, repeats, answer)
        except HttpRefusal as refusal:
            return refusal.failure
        except ClientGone:
            call.meter.hung_up()
            return reply.response

    async def _runs(
        self,
        request: web.BaseRequest,
        call: ProxiedCall,
        reply: StreamReply,
        repeats: Repeats,
        answer: aiohttp.ClientResponse | None,
    ) -> web.StreamResponse | Failure:
        """Of llama-servers, until one comes to the end of the answer. Raises HttpRefusal, ClientGone."""
        sent, count = SentEvents(call.path, own_seed=call.own_seed), TokenCount(call.form)
        why = "another run of the request says something else: ask again from the beginning"
        failure = Failure(502, why, type="server_error", code="upstream_lost")
        await call.replay(reply, sent, count)
        first = call = call if answer is not None else await self._admitted(call, repeats)
        run = await self._next_run(call, sent) if call.is_begun else first
        while run is not None:
            try:
                if answer is None:
                    return await self._stream_run(request, run, reply, sent, count)
                return await self._events(run, reply, answer, sent, count)
            except UpstreamLost as lost:
                failure = await self._lost(call, lost)
                if self._fails_over:  # else the readiness tells, as long as it lasts
                    await reply.say(failure.message)
            except OtherAnswer as other:
                _log.info("answer_differs", why=other.what)
            answer = None
            reply.allow_comments(True)
            if call.body is None or not await self._again(call, repeats):
                return failure
            if note := call.upstream.readiness.note:
                await reply.say(note)
            run = await self._next_run(call, sent)
        if call.kept is not None:
            call.kept.drop()
        return failure

    async def _next_run(self, call: ProxiedCall, sent: SentEvents) -> ProxiedCall | None:
        """As the call has it: llama-server is asked for its template, perhaps. Raises HttpRefusal."""
        async with self._running.until_stopped():
            return await call.next_run(sent)

    async def _stream_run(
        self,
        request: web.BaseRequest,
        call: ProxiedCall,
        reply: StreamReply,
        sent: SentEvents,
        count: TokenCount,
    ) -> web.StreamResponse | Failure:
        """One time that llama-server is asked. Raises UpstreamLost, OtherAnswer, HttpRefusal, ClientGone."""
        async with self._running.until_stopped(), self._ask(call) as fresh:
            if is_event_stream(fresh):
                return await self._events(call, reply, fresh, sent, count)
            if reply.begun:
                failure = await failure_in(fresh)
                sent.rest_is_refused(failure.message)
                await reply.stop_comments()
                return failure
            await reply.stop_comments()
            return await self._whole(request, call, fresh)

    async def _events(
        self,
        call: ProxiedCall,
        reply: StreamReply,
        answer: aiohttp.ClientResponse,
        sent: SentEvents,
        count: TokenCount,
    ) -> web.StreamResponse:
        splitter = EventSplitter()
        await reply.begin()
        try:
            while data := await read_some(answer):
                if ready := splitter.feed(data):
                    # set before the write, so that no comment falls into an event that is not whole
                    reply.allow_comments(splitter.between_events)
                    await self._send(call, reply, self._unsent(call, sent, ready, splitter), count)
        except UpstreamLost:
            if not splitter.between_events:
                await reply.send(b"\n\n")
            raise
        if rest := splitter.rest():
            await self._send(call, reply, self._unsent(call, sent, rest, splitter), count)
        sent.run_ended()
        return reply.response

    def _unsent(self, call: ProxiedCall, sent: SentEvents, ready: bytes, splitter: EventSplitter) -> bytes:
        if not (self._continue_seconds or self._fails_over):
            return ready
        if not splitter.between_events:
            if call.kept is not None:
                call.kept.drop()
            sent.in_pieces()
        unsent = sent.unsent(ready, asyncio.get_running_loop().time())
        if call.is_begun:  # its client came back: else a loss is why it is made again
            call.meter.again = sent.made_again
        return unsent

    async def _send(self, call: ProxiedCall, reply: StreamReply, ready: bytes, count: TokenCount) -> None:
        # what was generated counts, whether or not the client is still there
        self._count(call, count, ready if call.counts else b"")
        if ready:
            now = asyncio.get_running_loop().time()
            await reply.send(ready if call.kept is None else call.kept.add(ready, now))

    def _count(self, call: ProxiedCall, count: TokenCount, events: bytes) -> None:
        grown = count.feed(events)
        call.meter.generated = count.fresh
        call.meter.see_events(events)
        self._count_tokens(grown)
        count.alone = count.alone and len(self._running) == 1
        if grown:
            call.upstream.generated(count.fresh, grown, alone=len(self._running) == 1)
        self._told(call, events, alone=count.alone)

    def _told(self, call: ProxiedCall, body: bytes | bytearray, *, alone: bool) -> None:
        """What llama-server says of an answer that is whole."""
        if (timings := answer_timings(body)) is not None:
            seconds = asyncio.get_running_loop().time() - call.began
            call.upstream.answered(timings, alone=alone, seconds=seconds)

    async def _end_with(self, reply: StreamReply, call: ProxiedCall, failure: Failure) -> web.StreamResponse:
        if not reply.begun:
            raise HttpRefusal(failure)
        call.meter.status = failure.status
        try:
            if call.cut and failure.status >= 500:
                await reply.cut(failure.message)
            else:
                await reply.send(failure.event(call.form))
        except ClientGone:
            pass  # nobody is left to be told
        return reply.response

    async def _whole(
        self, request: web.BaseRequest, call: ProxiedCall, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        held = bytearray()
        alone = len(self._running) == 1
        while data := await read_some(answer):
            held += data
            if len(held) > HELD_ANSWER_BYTES:
                return await self._long(request, call, answer, bytes(held))
        call.meter.see(held)
        if call.counts:
            call.meter.generated = exact_tokens(held)
            self._count_tokens(call.meter.generated)
            self._told(call, held, alone=alone and len(self._running) == 1)
        if answer.status >= 400:
            failure = told_failure(bytes(held)) or plain_failure(answer.status, bytes(held))
            if failure.code:  # else the body is what llama-server says
                raise HttpRefusal(failure)
        return web.Response(
            status=answer.status, headers=answer_headers(answer, call.headers), body=call.told(held)
        )

    async def _long(
        self, request: web.BaseRequest, call: ProxiedCall, answer: aiohttp.ClientResponse, held: bytes
    ) -> web.StreamResponse:
        """An answer too long to hold is passed on as it comes; a loss then cuts the connection."""
        response = web.StreamResponse(status=answer.status, headers=answer_headers(answer, call.headers))
        try:
            await response.prepare(request)
            await response.write(held)
            while data := await read_some(answer):
                await response.write(data)
        except UpstreamLost as lost:
            await self._lost(call, lost)
            if request.transport is not None:
                request.transport.abort()  # an end without its last chunk: no client takes it for whole
        except ConnectionError:
            pass  # the client disconnected
        return response

    @asynccontextmanager
    async def _ask(self, call: ProxiedCall) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send the call; the connection is closed when the block is left, which frees the slot."""
        # X-Conversation-Id would make llama-server go on without a client
        headers = {"Accept-Encoding": "identity"}
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        async with open_session(call.upstream.connect) as session:
            answer = await send_call(session, call.method, call.path, call.body, headers)
            try:
                if call.upstream.is_refusal(answer.status):
                    raise UpstreamLost((await failure_in(answer)).message, taken=False)
                yield answer
            finally:
                answer.close()

    async def _lost(self, call: ProxiedCall, lost: UpstreamLost) -> Failure:
        """What the client is told: the head knows better than a connection which worker was lost, and why."""
        why = await call.upstream.upstream_broke(lost.what)
        _log.warning("upstream_lost", why=why)
        retry = call.upstream.readiness.retry_after
        if not lost.taken:  # nothing was generated
            return Failure(503, why, type="unavailable_error", code="upstream_away", retry_after=retry)
        return Failure(502, why, type="server_error", code="upstream_lost", retry_after=retry)
