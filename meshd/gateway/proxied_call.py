"""A request as it goes to llama-server: what it waits for before that, and what becomes of it there."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace

from meshd.gateway.answer_meter import AnswerMeter
from meshd.gateway.asked_template import template_prompt
from meshd.gateway.body import with_fields
from meshd.gateway.browser import JSON_TYPE
from meshd.gateway.events import StreamForm, TokenCount
from meshd.gateway.interface import ModelTurn, Readiness, Upstream
from meshd.gateway.kept_answer import KeptAnswer
from meshd.gateway.props import PROPS_PATH, told_props
from meshd.gateway.reply import StreamReply
from meshd.gateway.sent_events import SentEvents
from meshd.gateway.turns import Turn


class CallAdmission:
    """A request waits for its turn in the queue, then for its model: none is loaded for one that queues."""

    def __init__(self, ask: Callable[[], ModelTurn]) -> None:
        """`ask` for the model, once it is to be had for this request."""
        self._ask = ask
        self._model: ModelTurn | None = None
        self.queued: Turn | None = None  # set where the request is one of a queue

    async def come(self) -> Readiness | None:
        """Wait until the model may be asked. Returns why not if it cannot be had. Raises HttpRefusal."""
        if self.queued is not None:
            await self.queued.come()
        self._model = self._ask()
        async with self.for_model():
            return await self._model.begin()

    def for_model(self) -> AbstractAsyncContextManager[None]:
        """In which its model is waited for: see Turn.for_model."""
        return nullcontext() if self.queued is None else self.queued.for_model()

    def notice(self, silence: float) -> str:
        """What a client is told that has waited for `silence` seconds; empty when nothing is waited for."""
        if self._model is not None:
            return self._model.notice
        return self.queued.notice(silence) if self.queued is not None else ""

    def end(self) -> None:
        """The request is over. Idempotent."""
        if self._model is not None:
            self._model.end()


@dataclass(frozen=True, slots=True)
class ProxiedCall:
    """`counts` when its answer holds generated tokens. `upstream` is asked once `admission` has come.

    `cut`: a member's gateway asks, and an answer that breaks off shows that it did.
    `added`: fields of the body that depend on the model as it is loaded; it may raise HttpRefusal.
    `kept`: of a stream for which the client may come back.
    """

    method: str
    path: str
    body: bytes | None
    stream: bool
    counts: bool
    form: StreamForm
    headers: dict[str, str]  # to be added to the answer
    upstream: Upstream
    admission: CallAdmission
    cut: bool = False
    own_seed: bool = False  # the client has given none
    added: Callable[[], Mapping[str, object]] | None = None
    began: float = 0.0  # when the request came, by the loop's clock
    meter: AnswerMeter = field(default_factory=AnswerMeter)
    kept: KeptAnswer | None = None
    content_type: str = JSON_TYPE  # of the body

    def whole(self) -> "ProxiedCall":
        """The same with its whole body, once the model is there. Raises HttpRefusal."""
        fields = self.added() if self.added is not None else {}
        body = with_fields(self.body, fields) if fields and self.body else self.body
        self.meter.asked = body if body and self.content_type == JSON_TYPE else b""
        return replace(self, body=body, added=None)

    def told(self, answer: bytearray) -> bytes:
        """A whole answer as clients may see it."""
        return told_props(answer, self.upstream.model_name) if self.path == PROPS_PATH else bytes(answer)

    @property
    def is_begun(self) -> bool:
        """Some of its answer is kept."""
        return self.kept is not None and self.kept.is_begun

    async def replay(self, reply: StreamReply, sent: SentEvents, count: TokenCount) -> None:
        """Begin with what is kept of the answer. Raises ClientGone, HttpRefusal."""

        def seen(events: bytes, at: float) -> None:
            sent.unsent(events, at)
            count.know(events)

        if self.kept is not None:
            await self.kept.replay(reply, seen)

    async def next_run(self, sent: SentEvents) -> "ProxiedCall | None":
        """What llama-server is asked for behind what the client has; None where nothing can be joined.

        Raises HttpRefusal where the model is another one than before.
        """
        if self.kept is not None:
            self.kept.check_weights()
        if self.body is None:
            return None
        while (asked := await asyncio.to_thread(sent.template_question, self.body)) is not None:
            prompt = await template_prompt(self.upstream.connect, asked)
            await asyncio.to_thread(sent.template_says, prompt)
        body = await asyncio.to_thread(sent.next_request, self.body)
        return None if body is None else replace(self, body=body)

    def until_taken(self) -> AbstractAsyncContextManager[None]:
        """Raises HttpRefusal when another request takes the answer over."""
        return nullcontext() if self.kept is None else self.kept.until_taken()
