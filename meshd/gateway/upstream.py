"""Ask llama-server, or another node's API, and find the request that crashes it.

The caller opens the connections.

Each request has its own connection: llama-server may be a new process behind the same socket path, an idle
connection would hold one of its few threads, and closing it frees the slot when the client hangs up. There is
no timeout, because a prompt of 30,000 tokens on a CPU may take very long.

llama-server is also asked how its chat template writes messages, and requests are adapted to it.

A request that crashes llama-server must not be retried, and all others must be. llama-server may crash while
it has several requests: by a signal of its own making, for lack of memory, or because it made no progress and
the head ended it. Each request under way may be the reason, so all are suspects. A suspect that is retried is
on trial: one at a time, and no new request is admitted meanwhile. It passes when its answer is whole, when it
is some pieces longer than at the crash, or after TRIAL_SECONDS.

A request is blamed only if llama-server had no other when it crashed. A suspect that passed may be the reason
after all, later in its answer, while the next one is on trial. Then both are suspects again: the one on trial
is tried first, with llama-server to itself, and all trials are longer.

If nothing is retried, a request that was alone is blamed at its first crash, and none if there were several.

A request whose client hangs up is never blamed, so hang-ups are counted by caller: see `Trials.refusal`.

`Trials` and `Culprits` decide, without a clock; `Served` admits the requests of a llama-server accordingly.
It also has them name slots, which `SlotChoice` chooses.
"""

import asyncio
import json
import math
import socket
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.client_proto import ResponseHandler

from meshd.base.errors import MeshdError
from meshd.base.peer_limits import API_CULPRITS, API_CULPRITS_GONE, API_USERS_KNOWN, INTERIM_ANSWERS
from meshd.base.units import in_number, in_time
from meshd.gateway.dialects.fields import encoded, is_number, objects_of, text_of, with_fields
from meshd.gateway.dialects.template_fit import TemplateTraits, fitted, template_questions, traits_of
from meshd.gateway.events import parsed
from meshd.gateway.failure import MOST_REFUSAL_BYTES, Failure, HttpRefusal, plain_failure, read_failure
from meshd.gateway.interface import Upstream
from meshd.gateway.slots import Prompt, SlotChoice, SlotEnd, SlotUse
from meshd.gateway.turns import Turns

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.http import RawResponseMessage
    from aiohttp.streams import StreamReader
    from aiohttp.tracing import Trace


HELD_ANSWER_BYTES = 8 << 20  # a whole answer up to this is held, so that a loss is a clean 502
MOST_JOINED_BYTES = 32 << 20  # of all answers to one request
_REFUSAL_SECONDS = 10.0  # until all of it has come: who refuses computes nothing
_READ_BYTES = 64 << 10  # aiohttp stops reading at twice this

_CONTENT_TYPES = frozenset({"application/json", "text/event-stream", "text/plain"})  # of llama-server

Connect = Callable[[], Awaitable[socket.socket]]


class UpstreamLost(MeshdError):
    """llama-server is gone, or cannot answer. `taken`: it had received the request."""

    def __init__(self, what: str, *, taken: bool) -> None:
        super().__init__(what)
        self.taken = taken


class _CountedAnswers(ResponseHandler):
    """aiohttp's handler with a limit for interim answers (1xx), because another node may answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._interim = 0

    def feed_data(self, data: "tuple[RawResponseMessage, StreamReader]", size: int = 0) -> None:
        """Take the head of an answer; abort after too many interim ones."""
        self._interim += data[0].code < 200
        if self._interim <= INTERIM_ANSWERS.most:
            super().feed_data(data, size)
        elif isinstance(self.transport, asyncio.Transport):
            self.transport.abort()


class _GivenConnector(aiohttp.UnixConnector):
    """aiohttp's connector for unix sockets, with connections that `connect` opens."""

    def __init__(self, connect: Connect) -> None:
        super().__init__("/", limit=0, force_close=True)
        self._connect_one = connect

    async def _create_connection(
        self, req: "ClientRequest", traces: "list[Trace]", timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        loop = asyncio.get_running_loop()
        try:
            connection = await self._connect_one()
            try:
                _, protocol = await loop.create_unix_connection(
                    lambda: _CountedAnswers(loop), sock=connection
                )
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        return protocol


def open_session(connect: Connect) -> aiohttp.ClientSession:
    """Return a session without timeouts, over connections that `connect` opens. The caller closes it."""
    return aiohttp.ClientSession(
        connector=_GivenConnector(connect),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None, sock_read=None),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=_READ_BYTES,
    )


async def send_call(
    session: aiohttp.ClientSession, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> aiohttp.ClientResponse:
    """Send a request; return when the answer has begun. Raises UpstreamLost."""
    try:
        return await session.request(
            method, f"http://localhost{path}", data=body, headers=headers, allow_redirects=False
        )
    except aiohttp.ClientConnectorError as error:
        raise UpstreamLost(f"llama-server cannot be reached: {error.os_error}", taken=False) from error
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamLost("llama-server exited before it answered", taken=True) from error
    except MeshdError as error:
        raise UpstreamLost(error.what, taken=False) from error


async def read_some(answer: aiohttp.ClientResponse) -> bytes:
    """Return the next bytes, empty at the end. Raises UpstreamLost."""
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamLost("llama-server exited during the answer", taken=True) from error


def is_event_stream(answer: aiohttp.ClientResponse) -> bool:
    """Return True if an answer is a stream of events."""
    return answer.content_type == "text/event-stream"


def answer_headers(answer: aiohttp.ClientResponse, more: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of an answer that is passed on."""
    kind = answer.headers.get("Content-Type", "application/json")
    if answer.content_type not in _CONTENT_TYPES:
        kind = "application/octet-stream"  # no page of another node runs here
    return {"Content-Type": kind, **more}


async def read_up_to(most: int, answer: aiohttp.ClientResponse, held: bytearray) -> None:
    """Read an answer into `held`; of a long one somewhat more than `most` bytes. Raises UpstreamLost."""
    while len(held) <= most and (data := await read_some(answer)):
        held += data


async def failure_in(answer: aiohttp.ClientResponse) -> Failure:
    """Read the failure in an answer that is not a stream. Raises UpstreamLost."""
    held = bytearray()
    with suppress(TimeoutError):  # what has come must do
        async with asyncio.timeout(_REFUSAL_SECONDS):
            await read_up_to(MOST_REFUSAL_BYTES, answer, held)
    return read_failure(bytes(held), answer.status) or plain_failure(answer.status, bytes(held))


_PROMPT_BYTES = 1 << 20  # of the prompt, most of which are tools; another node may send it
_TEMPLATE_SECONDS = 30.0  # it computes nothing, but it may be busy with a batch
_TEMPLATE_HEADERS = {"Accept-Encoding": "identity", "Content-Type": "application/json"}


async def template_prompt(connect: Connect, body: bytes) -> str | None:
    """Return the prompt that the template makes of `body`; empty if none, None without a timely answer."""
    held = bytearray()
    try:
        async with asyncio.timeout(_TEMPLATE_SECONDS), open_session(connect) as session:
            with closing(
                await send_call(session, "POST", "/apply-template", body, _TEMPLATE_HEADERS)
            ) as answer:
                await read_up_to(_PROMPT_BYTES, answer, held)
    except (UpstreamLost, TimeoutError):
        return None
    return text_of(parsed(held), "prompt") if len(held) <= _PROMPT_BYTES else ""


def naming_slot(body: bytes | None, use: SlotUse) -> bytes | None:
    """Return the body with the slot that was chosen, if there is one."""
    return body if body is None or use.slot is None else with_fields(body, {"id_slot": use.slot})


def note_end(use: SlotUse, answer: aiohttp.ClientResponse) -> None:
    """Note how far an answer has come that is closed now."""
    use.has_begun = True
    if answer.content.at_eof() and answer.content.exception() is None:
        use.end = SlotEnd.ANSWERED if answer.status < 400 else SlotEnd.REFUSED


_SLOTS_BYTES = 4 << 20  # each slot tells the settings of its last request
_SLOTS_SECONDS = 1.0  # its loop answers, or a thread beside it while a batch is computed


async def busy_slots(connect: Connect) -> frozenset[int] | None:
    """Ask llama-server which slots are busy; None without a timely answer."""
    held = bytearray()
    try:
        async with asyncio.timeout(_SLOTS_SECONDS), open_session(connect) as session:
            with closing(await send_call(session, "GET", "/slots", None, {})) as answer:
                await read_up_to(_SLOTS_BYTES, answer, held)
    except (UpstreamLost, TimeoutError):
        return None
    slots = objects_of(parsed(held) if len(held) <= _SLOTS_BYTES else None)
    busy = {number for slot in slots if slot.get("is_processing") and is_number(number := slot.get("id"))}
    return frozenset(busy) if slots else None


# Crashes. When llama-server has crashed, the requests that were under way are tried again one at a time,
# until the one that ends it is found. Others only pass `Served.request` and `GatedRequest.at_server`.

PASSED_PIECES = 16  # that were sent and are new: with drafts a piece may come with several others
TRIAL_SECONDS = 90.0  # longer than the head takes to notice that no progress is made (head/llama_server.py)
LATER_TRIAL_SECONDS = 300.0  # of a request that was under way at two crashes
CULPRIT_SECONDS = 600.0  # for which a caller's culprits are counted
ENDS_SERVER = "request_ends_server"
_GATHER_SECONDS = 1.0  # until all suspects are there, after the model is
_CRASHES_KNOWN = 4 * API_CULPRITS_GONE.most  # of one llama-server: other crashes may come between


@dataclass(slots=True, eq=False)
class Standing:
    """One request while it is under way. `has_begun`: its client has a part of the answer.

    `server`: how many llama-servers had crashed before the one that has the request; None if none has it.
    `pieces`: new pieces from this llama-server; `lost_pieces`: from the one before.
    `goes_first`: it was on trial at the last crash. `heard`: when llama-server was last known to be alive.
    `left`: its client hung up while llama-server had it, or while it was a suspect.
    """

    number: int
    caller: Hashable
    has_begun: bool = False
    server: int | None = None
    pieces: int = 0
    lost_pieces: int = 0
    crashes: int = 0  # at which it was under way
    last_crash: int = 0
    is_suspect: bool = False
    trial_began: float | None = None
    goes_first: bool = False
    heard: float = 0.0
    left: bool = False

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Return a key to sort trials: the newest request without a token comes first, as most dangerous."""
        return not self.goes_first, self.has_begun, -self.number

    def sent(self, now: float) -> bool:
        """Note a piece of the answer that is new to the client. Returns True if the trial is passed by it."""
        self.has_begun, self.heard = True, now
        self.pieces += 1
        enough = PASSED_PIECES + (self.lost_pieces if self.crashes > 1 else 0)
        if self.trial_began is None or self.pieces < enough:
            return False
        self.passed()
        return True

    def passed(self) -> None:
        """End the suspicion."""
        self.is_suspect, self.trial_began, self.goes_first = False, None, False

    def leave(self) -> None:
        """Note that llama-server no longer has the request."""
        self.server, self.trial_began = None, None
        self.lost_pieces, self.pieces = self.pieces, 0


@dataclass(frozen=True, slots=True, eq=False)
class _Crash:
    """One crash, noted at `at`.

    `there`: the requests that llama-server had then or shortly before, without those answered since.
    """

    at: float
    there: set[Standing]


class Trials:
    """The requests of one llama-server and its successors.

    `now` is a clock in seconds that never goes back, `crashes` the number of llama-servers that have crashed.
    """

    def __init__(self) -> None:
        self.all: set[Standing] = set()
        self._came = 0
        self._crash = 0
        self._only: Standing | None = None  # that was under way at that crash
        # for each caller its last request that ended early, at which llama-server and when; the latest last
        self._given_up: OrderedDict[Hashable, tuple[Standing, int, float]] = OrderedDict()
        self._crashes: deque[_Crash] = deque(maxlen=_CRASHES_KNOWN)

    def come(self, caller: Hashable) -> Standing:
        """Add a request, until `go`."""
        self._came += 1
        standing = Standing(self._came, caller)
        self.all.add(standing)
        return standing

    def go(self, who: Standing, now: float) -> None:
        """Forget a request, which may have left after a crash that was not noted yet."""
        self.gave_up(who, now)
        who.left = who.left or who.is_suspect
        self.all.discard(who)

    def on_trial(self, now: float) -> Standing | None:
        """Return the request on trial, if any; a trial that has lasted long enough is passed."""
        for request in self.all:
            if request.trial_began is None:
                continue
            if now - request.trial_began < (TRIAL_SECONDS if request.crashes < 2 else LATER_TRIAL_SECONDS):
                return request
            request.passed()
        return None

    def may_enter(self, who: Standing, gate: set[Standing], waited: float, now: float) -> bool:
        """Return True if `who`, which has waited at the `gate` for `waited` seconds, may be sent."""
        if self.on_trial(now) is not None:
            return False
        suspects = {request for request in self.all if request.is_suspect}
        # a suspect may be about to come; it may also wait for a client that does not read
        if not who.is_suspect:
            return not suspects or (waited >= _GATHER_SECONDS and gate.isdisjoint(suspects))
        if min(suspects, key=lambda request: request.rank) is who:
            return True
        return waited >= _GATHER_SECONDS and min(gate & suspects, key=lambda request: request.rank) is who

    def enter(self, who: Standing, crashes: int, now: float) -> None:
        """Note that `who` is sent to llama-server."""
        self._note(crashes, now)  # so that a request that is given up here is of the last one
        who.server, who.heard, who.left = crashes, now, False
        if who.is_suspect:
            who.trial_began = now

    def answered(self, who: Standing) -> None:
        """Note that llama-server has answered `who` and is still alive."""
        who.leave()
        who.passed()
        self._clear(who)

    def gave_up(self, who: Standing, now: float) -> None:
        """Note that the client of `who` has left; llama-server may compute for it a little longer."""
        who.left = who.left or who.server is not None
        if who.server is not None and who.server == self._crash:  # of an earlier one it was found there
            self._given_up[who.caller] = who, who.server, now
            self._given_up.move_to_end(who.caller)
            if len(self._given_up) > API_USERS_KNOWN.most:
                self._given_up.popitem(last=False)
        who.leave()

    def lost(self, who: Standing, crashes: int, now: float, *, taken: bool, repeats: bool) -> Failure | None:
        """Note that the llama-server of `who` is gone. Returns the failure if it must not be retried.

        `taken`: llama-server had the request. `repeats`: requests are retried.
        """
        server = who.server
        crashed = server is not None and crashes > server
        if crashed:
            self._note(crashes, now)
            if not taken:
                who.passed()
                self._clear(who)
            elif server is not None:
                _suspect(who, server + 1, on_trial=who.trial_began is not None)
        who.leave()
        if not repeats:
            who.passed()
        if not crashed or self._only is not who or self._crash != who.last_crash:
            return None
        if repeats and who.crashes == 1:
            return None
        for crash in [crash for crash in self._crashes if who in crash.there]:
            self._crashes.remove(crash)  # it is explained
        how = "and again when it was repeated alone" if who.crashes > 1 else "and nothing else"
        return _ends_server(how)

    def refusal(self, caller: Hashable, now: float) -> Failure | None:
        """Return the failure if requests of `caller` are refused now, else None.

        They are refused if it had a request that left at each of several crashes, and no other caller had
        unanswered requests at all of them.
        """
        at = [
            crash
            for crash in self._crashes
            if now - crash.at < CULPRIT_SECONDS
            and any(request.caller == caller and request.left for request in crash.there)
        ]
        if len(at) < API_CULPRITS_GONE.most:
            return None
        if set.intersection(*({request.caller for request in crash.there} for crash in at)) != {caller}:
            return None
        what = (
            f"llama-server crashed {API_CULPRITS_GONE.most} times within {in_time(CULPRIT_SECONDS)} while or "
            "just after it computed a request of this caller that was given up"
        )
        return _too_many(what, at[-API_CULPRITS_GONE.most].at + CULPRIT_SECONDS - now)

    def _clear(self, who: Standing) -> None:
        """Note that `who` caused none of the crashes."""
        for crash in self._crashes:
            crash.there.discard(who)

    def _note(self, crash: int, now: float) -> None:
        """Note a crash, when the first request notices it: the others are still as they were."""
        if crash == self._crash:
            return
        self._crash = crash
        trial = self.on_trial(now)
        there = [request for request in self.all if request.server == crash - 1]
        # a client that does not read notices late: what counts is how long llama-server was alive for sure
        heard = max((request.heard for request in there), default=-math.inf)
        given_up = {
            request
            for request, server, at in self._given_up.values()
            if server == crash - 1 and heard - at < TRIAL_SECONDS
        }
        self._given_up.clear()
        self._only = there[0] if len(there) == 1 and not given_up else None
        if there or given_up:
            self._crashes.append(_Crash(now, given_up.union(there)))
        for request in there:
            _suspect(request, crash, on_trial=request is trial)


def _suspect(request: Standing, crash: int, *, on_trial: bool) -> None:
    """Suspect a request that was under way at this crash. Idempotent."""
    if request.last_crash != crash:
        request.last_crash, request.is_suspect, request.goes_first = crash, True, on_trial
        request.crashes += 1


class Culprits:
    """Callers whose requests have ended llama-server. `now` is a clock in seconds that never goes back."""

    def __init__(self) -> None:
        self._of: OrderedDict[Hashable, deque[float]] = OrderedDict()

    def named(self, caller: Hashable, now: float) -> None:
        """Note that a request of `caller` has provably ended llama-server."""
        times = self._of.setdefault(caller, deque(maxlen=API_CULPRITS.most))
        times.append(now)
        self._of.move_to_end(caller)
        if len(self._of) > API_USERS_KNOWN.most:
            self._of.popitem(last=False)

    def refusal(self, caller: Hashable, now: float) -> Failure | None:
        """Return the failure if requests of `caller` are refused now, else None."""
        times = self._of.get(caller)
        if times is None or len(times) < API_CULPRITS.most or (left := times[0] + CULPRIT_SECONDS - now) <= 0:
            return None
        what = (
            f"{in_number(API_CULPRITS.most, 'request')} of this caller ended llama-server within "
            f"{in_time(CULPRIT_SECONDS)} (`{ENDS_SERVER}`)"
        )
        return _too_many(what, left)


def _too_many(what: str, left: float) -> Failure:
    message = f"{what}: no more are taken for {in_time(left)}; change those before sending them again"
    return Failure(429, message, type="requests", code="too_many_crashes", retry_after=round(left) + 1)


def _ends_server(how: str) -> Failure:
    message = (
        f"llama-server crashed or hung while it computed this request, {how}: change the request before "
        "sending it again; `meshd logs llama-server` on the serving node says more"
    )
    return Failure(500, message, code=ENDS_SERVER, is_final=True)


_LOOK_SECONDS = 0.5
_FREED_SECONDS = 3.0  # for which a request waits until llama-server is as is known of it
_SLOT_LOOK_SECONDS = 0.05
_READ_AT_ONCE = 64 << 10  # bytes of a body; others would hold up the loop


class GatedRequest:
    """One request that computes, while it is under way."""

    def __init__(self, served: "Served", caller: Hashable) -> None:
        self._served = served
        self._was_let_in = False
        self.standing: Standing = served.trials.come(caller)

    def check(self) -> None:
        """Refuse a caller that has ended llama-server too often. Raises HttpRefusal."""
        caller, now, served = self.standing.caller, _now(), self._served
        failure = served.culprits.refusal(caller, now) or served.trials.refusal(caller, now)
        if failure is not None:
            raise HttpRefusal(failure)

    def sent(self) -> None:
        """Note that the client got a new piece of the answer."""
        if self.standing.sent(_now()):
            self._served.wake()

    def lost(self, crashes: int, *, taken: bool, repeats: bool) -> Failure | None:
        """Note that llama-server is gone, as Trials.lost does; count the caller if its request is blamed."""
        served = self._served
        failure = served.trials.lost(self.standing, crashes, _now(), taken=taken, repeats=repeats)
        if failure is not None:
            served.culprits.named(self.standing.caller, _now())
        served.wake()
        return failure

    @asynccontextmanager
    async def at_server(self, upstream: Upstream) -> AsyncIterator[None]:
        """Wait while another request is on trial or comes first; the caller asks within the block.

        Raises HttpRefusal.
        """
        trials, standing = self._served.trials, self.standing
        await self._served.entry(standing)
        if not self._was_let_in:
            self.check()  # it may have waited since the last one was named
        self._was_let_in = True
        trials.enter(standing, upstream.crashes, _now())
        try:
            yield
        except UpstreamLost:
            raise  # `lost` comes next, or the client leaves before: `go`
        except HttpRefusal:
            trials.answered(standing)
            raise
        except BaseException:
            trials.gave_up(standing, _now())
            raise
        else:
            trials.answered(standing)
        finally:
            self._served.wake()


class Served:
    """All that the gateway keeps of a llama-server and its successors: queue, trials, and template.

    Requests wait for trials at a gate.
    """

    def __init__(self, upstream: Upstream, culprits: Culprits) -> None:
        self.turns = Turns(upstream)
        self.trials = Trials()
        self.culprits = culprits
        self.traits: TemplateTraits | None = None  # of its template, until its model is lost
        self._upstream = upstream
        self._at_gate: dict[Standing, asyncio.Event] = {}
        self._slots: SlotChoice | None = None

    @contextmanager
    def request(self, caller: Hashable) -> Iterator[GatedRequest]:
        """Count a request of `caller` as under way until the block is left. Raises HttpRefusal."""
        request = GatedRequest(self, caller)
        try:
            request.check()
            yield request
        finally:
            self.trials.go(request.standing, _now())
            self.wake()

    def wake(self) -> None:
        """Make all requests at the gate check again."""
        for event in self._at_gate.values():
            event.set()

    async def entry(self, who: Standing) -> None:
        """Wait at the gate until `who` may be sent."""
        event, came = asyncio.Event(), _now()
        self._at_gate[who] = event
        try:
            while not self.trials.may_enter(who, set(self._at_gate), _now() - came, _now()):
                event.clear()
                with suppress(TimeoutError):  # a trial may be over by then
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await event.wait()
        finally:
            del self._at_gate[who]
            self.wake()

    @asynccontextmanager
    async def slot(self, body: bytes | None) -> AsyncIterator[SlotUse]:
        """Choose a slot for a request, whose end is to be noted within the block.

        `body` None: it may take several slots, or cannot name any. The connection is closed when the block
        is left.
        """
        prompt = None
        if body is not None and self._slot_choice() is not None:
            is_short = len(body) <= _READ_AT_ONCE
            prompt = Prompt.of(body) if is_short else await asyncio.to_thread(Prompt.of, body)
        await self._slots_known(prompt)
        if (slots := self._slot_choice()) is None:
            yield SlotUse()
            return
        use = slots.take(prompt, _now())
        try:
            yield use
        except UpstreamLost:
            use.end = SlotEnd.REFUSED
            slots.forget()
            raise
        finally:
            slots.give_back(use, _now())

    def _slot_choice(self) -> SlotChoice | None:
        """Return what is known of the slots; None if requests do not name them."""
        count = self._upstream.slots if self._upstream.may_name_slots else None
        if not count:
            return None
        if self._slots is None or self._slots.count != count:
            self._slots = SlotChoice(count)
        return self._slots

    async def _slots_known(self, prompt: Prompt | None) -> None:
        """Find out which slots are busy where that is unknown and matters; wait as SlotChoice says."""
        began = _now()
        while (slots := self._slot_choice()) is not None and slots.needs_look(prompt, _now()):
            if (busy := await busy_slots(self._upstream.connect)) is not None:
                slots.saw(busy, _now())
            if not slots.should_wait(prompt, _now()) or _now() - began >= _FREED_SECONDS:
                return
            await asyncio.sleep(_SLOT_LOOK_SECONDS)

    async def fit(self, body: bytes) -> tuple[bytes, tuple[str, ...]]:
        """Return the body of a chat as the template accepts it, and notes of what was omitted.

        Raises HttpRefusal.
        """
        traits = self.traits
        if traits is None:
            connect = self._upstream.connect
            prompts = [await template_prompt(connect, question) for question in template_questions()]
            traits = traits_of([prompt or "" for prompt in prompts])
            if any(prompts) and None not in prompts:  # else it is asked again for the next request
                self.traits = traits
        return await asyncio.to_thread(_fit, body, traits)


def _fit(body: bytes, traits: TemplateTraits) -> tuple[bytes, tuple[str, ...]]:
    fields, notes = fitted(json.loads(body), traits)
    return encoded(fields), notes


def _now() -> float:
    return asyncio.get_running_loop().time()
