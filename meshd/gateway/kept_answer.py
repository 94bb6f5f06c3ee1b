"""One answer that its client may come back for: its events get numbers, and are kept before they are sent.

Numbers are those of server-sent events (`id:` lines; WHATWG HTML, 9.2.6). What a client has of them it says
in `Last-Event-ID`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from meshd.gateway.events import whole_events
from meshd.gateway.failure import Failure, HttpRefusal
from meshd.gateway.kept_folder import KeptFile
from meshd.gateway.kept_journal import (
    KeptContent,
    KeptRequest,
    RecordKind,
    encode_events,
    encode_request,
    encode_whole,
    parse_events,
    parse_whole,
    records,
)
from meshd.gateway.reply import StreamReply

_REPLAYED_TOGETHER = 32 << 10  # bytes; others have their turn between
SeenEvents = Callable[[bytes, float], None]
"""Whole events, and seconds from the first event of their run to these."""
_FORGET = b"id:\n"  # the client sends no Last-Event-ID then


class KeptAnswer:
    """`found` in `file` from before; `after`: so many events the client has.

    `request`: what is asked, with the seed to ask with. `weights` gives those of the model, once known.
    """

    def __init__(
        self,
        file: KeptFile,
        found: KeptContent | None,
        request: KeptRequest,
        *,
        after: int,
        weights: Callable[[], bytes],
    ) -> None:
        self._file = file
        self._found = found
        self._request = request
        self._after = after
        self._weights = weights
        self._count = found.events if found is not None else 0
        self._began: float | None = None  # with the first event that was made now
        self._is_kept = True
        self._is_told = True  # that it is not kept

    @property
    def is_begun(self) -> bool:
        """Some of it is known."""
        return self._found is not None

    @property
    def is_over(self) -> bool:
        """All of it is known."""
        return self._found is not None and self._found.is_over

    def check_weights(self) -> None:
        """Raises HttpRefusal where the model is another one than that which began the answer."""
        if self._found is not None and self._weights() != self._found.request.weights:
            self._file.remove()
            message = "the answer was begun with another model: ask again without Last-Event-ID"
            raise HttpRefusal(Failure(404, message, code="answer_not_kept"))

    def add(self, events: bytes, now: float) -> bytes:
        """Keep whole events that are to be sent `now`; gives them with their numbers."""
        self._began = now if self._began is None else self._began
        if self._is_kept:
            new = b"" if self._count else encode_request(self._begun())
            self._drop_unless(self._file.append(new + encode_events(events, now - self._began)))
        if self._is_kept:
            return self._numbered(events)
        if self._is_told:
            return events
        self._is_told = True
        return _FORGET + events

    def drop(self) -> None:
        """What comes now cannot be kept."""
        if self._is_kept:
            self._file.remove()
        self._drop_unless(False)

    def add_whole(self, content_type: str, body: bytes) -> None:
        """An answer that is not a stream, before it is sent."""
        self._file.append(encode_request(self._begun()) + encode_whole(content_type, body))

    def whole(self) -> tuple[str, bytes] | None:
        """Content type and body; for a thread."""
        with self._file.reading() as read:
            for kind, payload in records(read):
                if kind is RecordKind.WHOLE:
                    return parse_whole(payload)
        return None

    async def replay(self, reply: StreamReply, seen: SeenEvents = lambda _events, _at: None) -> None:
        """Send what the client lacks of the events that are kept; `seen` is told of all, and when they came.

        Raises ClientGone, HttpRefusal.
        """
        if self._found is None:
            return
        self._count, waiting, held = 0, bytearray(), 0
        with self._file.reading() as read:
            for kind, payload in records(read):
                if kind is not RecordKind.EVENTS:
                    continue
                events, at = parse_events(payload)
                seen(events, at)
                waiting += self._numbered(events)
                held += len(events)
                if held >= _REPLAYED_TOGETHER:
                    await reply.send(bytes(waiting))
                    await asyncio.sleep(0)  # what the client has is not sent
                    waiting.clear()
                    held = 0
        if waiting:
            await reply.send(bytes(waiting))
        if self._count < self._found.events:
            self._file.remove()
            raise HttpRefusal(Failure(404, "the answer cannot be read any more", code="answer_not_kept"))

    @asynccontextmanager
    async def until_taken(self) -> AsyncIterator[None]:
        """Raises HttpRefusal when another request takes the answer over."""
        async with self._file.until_taken():
            yield

    def _begun(self) -> KeptRequest:
        return KeptRequest(self._request.digest, self._request.seed, self._weights())

    def _numbered(self, events: bytes) -> bytes:
        """Those that the client lacks."""
        numbered = []
        for event in whole_events(events):
            self._count += 1
            if self._count > self._after:
                numbered.append(b"id: %d\n%b" % (self._count, event))
        return b"".join(numbered)

    def _drop_unless(self, kept: bool) -> None:
        if self._is_kept and not kept:
            self._is_kept = False
            self._is_told = self._count == 0  # it has no number that would have to be forgotten
