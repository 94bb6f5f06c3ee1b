"""The requests of one page in a browser, over data channels that come and go. Pure.

A page chooses the numbers of its requests, one after another. Each request and each answer is a stream of
bytes, of which the sender keeps what the other side has not received. On a new channel both say how far they
are, and go on from there: every byte arrives once, and no request is begun twice.

A page without a channel is forgotten after BROWSER_AWAY_SECONDS, and its requests are cancelled.
"""

from collections import deque
from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.base.peer_limits import (
    BROWSER_AWAY_SECONDS,
    BROWSER_HELD_IN_ALL_KIB,
    BROWSER_HELD_KIB,
    BROWSER_REQUESTS,
    BROWSER_SENT_KIB,
)
from meshd.gateway.browser_frames import (
    MAX_DATA_BYTES,
    Allow,
    Data,
    Failed,
    Forget,
    FromNode,
    Hello,
    Ping,
    Place,
    Pong,
    Welcome,
    decode_from_browser,
    encode,
)

_HELD = BROWSER_HELD_KIB.most << 10
_HELD_IN_ALL = BROWSER_HELD_IN_ALL_KIB.most << 10
_RESERVED = 32 << 10  # of that, for each request: answers that nobody reads hold up no other
_SHARED = _HELD_IN_ALL - BROWSER_REQUESTS.most * _RESERVED
REQUEST_WINDOW = BROWSER_SENT_KIB.most << 10
ANSWER_WINDOW = 256 << 10  # of the page
_ALLOW_EVERY = 32 << 10  # bytes received, or read, until the sender is told
_MOST_REFUSALS = 64  # waiting to be sent


class OutgoingStream:
    """Bytes that are kept until the other side has received them, which lets us send `allowed` at first."""

    def __init__(self, allowed: int) -> None:
        self._held = bytearray()
        self._base = 0  # offset of the first byte that is held
        self._sent = 0
        self._allowed = allowed
        self._is_ended = False
        self._is_end_sent = False

    @property
    def held(self) -> int:
        """Return how many bytes are kept."""
        return len(self._held)

    def write(self, data: bytes) -> None:
        """Add bytes at the end."""
        self._held += data

    def end(self) -> None:
        """Mark the end: no more bytes come."""
        self._is_ended = True

    def clear(self) -> None:
        """Drop all bytes: nobody wants them, and none follow."""
        self._held.clear()

    def next_piece(self, number: int) -> Data | None:
        """Return the next bytes to send, if there are any and the other side has room."""
        at = self._sent - self._base
        size = max(0, min(MAX_DATA_BYTES, len(self._held) - at, self._allowed - self._sent))
        is_last = self._is_ended and at + size == len(self._held)
        if not size and (not is_last or self._is_end_sent):
            return None
        piece = Data(number, self._sent, bytes(self._held[at : at + size]), is_last)
        self._sent += size
        self._is_end_sent = is_last
        return piece

    def progress(self, place: Place) -> None:
        """Free what the other side has received. Raises RemoteProtocolError."""
        if not self._base <= place.taken <= self._sent:
            raise RemoteProtocolError("browser: it has received what was not sent", code="browser")
        del self._held[: place.taken - self._base]
        self._base = place.taken
        self._allowed = max(self._allowed, place.allowed)

    def resume(self, place: Place) -> None:
        """Send again what the other side has not received. Raises RemoteProtocolError."""
        self.progress(place)
        self._sent, self._allowed, self._is_end_sent = self._base, place.allowed, False


class IncomingStream:
    """Progress with bytes that come: each is taken once, and no more than the window wait to be read."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._taken = 0
        self._read = 0
        self._shown = (0, window)  # taken and allowed, as the sender knows them
        self._is_ended = False

    def take(self, piece: Data) -> bytes:
        """Return the bytes that are new. Raises RemoteProtocolError for a gap, or beyond the window."""
        end = piece.offset + len(piece.data)
        if piece.offset > self._taken or end > self._read + self._window:
            raise RemoteProtocolError("browser: bytes out of order, or too many", code="browser")
        if self._is_ended and end > self._taken:
            raise RemoteProtocolError("browser: bytes after the end", code="browser")
        new = piece.data[self._taken - piece.offset :]
        self._taken = max(self._taken, end)
        self._is_ended = self._is_ended or piece.is_last
        return new

    def read(self, count: int) -> None:
        """Note that so many bytes were used, and free their room."""
        self._read += count

    def place(self, number: int) -> Place:
        """Return how far it is, for the sender, which knows it then."""
        self._shown = self._taken, self._read + self._window
        return Place(number, *self._shown)

    @property
    def is_due(self) -> bool:
        """Return True if the sender should be told."""
        taken, allowed = self._shown
        is_far = self._taken - taken >= _ALLOW_EVERY or self._read + self._window - allowed >= _ALLOW_EVERY
        return is_far and not self._is_ended


class BrowserShare:
    """The amounts that all pages of one browser use together: requests, and bytes of answers."""

    def __init__(self) -> None:
        self.requests = 0
        self.shared = 0  # bytes beyond what is reserved for each request


@dataclass(frozen=True, slots=True)
class Begun:
    """A request has begun; its bytes follow."""

    number: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """Bytes of a request; `read` frees their room."""

    number: int
    data: bytes
    is_last: bool


@dataclass(frozen=True, slots=True)
class Dropped:
    """The browser has the whole answer, or wants no more of it: answering stops."""

    number: int


RequestEvent = Begun | Arrived | Dropped


class _Request:
    """One request, from its first byte until the browser forgets it."""

    def __init__(self) -> None:
        self.question = IncomingStream(REQUEST_WINDOW)
        self.answer = OutgoingStream(ANSWER_WINDOW)
        self.failure: str | None = None
        self.is_failure_sent = False


class PageRequests:
    """The requests of one page. `now` is loop time in seconds.

    `connect` begins a channel, `disconnect` ends it. `receive` takes a message, `transmit` returns the next
    one to send: call it after anything else until it returns None.
    """

    def __init__(self, share: BrowserShare, now: float) -> None:
        self._share = share
        self._requests: dict[int, _Request] = {}
        self._highest = 0
        self._is_new = True
        self._away_since: float | None = now
        self._first: list[FromNode] = []  # what goes before all streams
        self._pong: Pong | None = None  # the latest alone: an older one says nothing more
        self._turns: deque[int] = deque()  # numbers, the one to send next first

    def __len__(self) -> int:
        """Return the number of requests that the browser has not forgotten."""
        return len(self._requests)

    @property
    def expires(self) -> float | None:
        """Return when the page is to be forgotten; None while it has a channel."""
        return None if self._away_since is None else self._away_since + BROWSER_AWAY_SECONDS.most

    # The channel.

    def connect(self, hello: Hello) -> list[RequestEvent]:
        """Begin a channel: go on where both sides are. Raises RemoteProtocolError."""
        theirs = {place.number: place for place in hello.places}
        dropped = [number for number in self._requests if number not in theirs]
        events: list[RequestEvent] = [Dropped(number) for number in dropped]
        for number in dropped:
            self._remove(number)
        for number, request in self._requests.items():
            if request.failure is None:
                with _Accounted(self._share, request):
                    request.answer.resume(theirs[number])
            request.is_failure_sent = False
        places = tuple(request.question.place(number) for number, request in self._requests.items())
        self._first = [Welcome(self._is_new, self._highest, places)]
        self._pong = None
        self._is_new, self._away_since = False, None
        return events

    def disconnect(self, now: float) -> None:
        """End the channel; nothing is sent until the next one. Idempotent."""
        if self._away_since is None:
            self._away_since = now
        self._first, self._pong = [], None

    def receive(self, message: bytes) -> list[RequestEvent]:
        """Take a message. Raises RemoteProtocolError: the channel is to be closed."""
        match decode_from_browser(message):
            case Data() as piece:
                return self._take(piece)
            case Allow(place):
                request = self._requests.get(place.number)
                if request is not None and request.failure is None:
                    with _Accounted(self._share, request):
                        request.answer.progress(place)
            case Forget(number):
                if number in self._requests:
                    self._remove(number)
                    return [Dropped(number)]
            case Ping(nonce):
                self._pong = Pong(nonce)
            case Hello():
                raise RemoteProtocolError("browser: a second hello", code="browser")
        return []

    def _take(self, piece: Data) -> list[RequestEvent]:
        number, events = piece.number, list[RequestEvent]()
        request = self._requests.get(number)
        if request is None:
            if number <= self._highest:
                return []  # forgotten, or refused; its bytes were under way
            if piece.offset:
                raise RemoteProtocolError("browser: a request without its beginning", code="browser")
            self._highest = number
            if self._share.requests >= BROWSER_REQUESTS.most:
                return self._refuse(number)
            request = self._requests[number] = _Request()
            self._share.requests += 1
            self._turns.append(number)
            events.append(Begun(number))
        data = request.question.take(piece)
        if request.failure is not None:
            request.question.read(len(data))
        elif data or piece.is_last:
            events.append(Arrived(number, data, piece.is_last))
        return events

    def _refuse(self, number: int) -> list[RequestEvent]:
        if len(self._first) >= _MOST_REFUSALS:
            raise RemoteProtocolError("browser: too many requests", code="browser")
        why = f"this browser has {BROWSER_REQUESTS.most} requests already: end one, or close a page"
        self._first.append(Failed(number, why))
        return []

    def transmit(self) -> bytes | None:
        """Return the next message to send, None if there is none now. Answers take turns."""
        if self._away_since is not None:
            return None
        if self._first:
            return encode(self._first.pop(0))
        if self._pong is not None:
            pong, self._pong = self._pong, None
            return encode(pong)
        for _ in range(len(self._turns)):
            number = self._turns[0]
            self._turns.rotate(-1)
            if (message := self._next_of(number, self._requests[number])) is not None:
                return encode(message)
        return None

    def _next_of(self, number: int, request: _Request) -> FromNode | None:
        if request.failure is not None and not request.is_failure_sent:
            request.is_failure_sent = True
            return Failed(number, request.failure)
        if request.question.is_due:
            return Allow(request.question.place(number))
        return request.answer.next_piece(number) if request.failure is None else None

    # Those who answer.

    def room(self, number: int) -> int:
        """Return how many bytes of the answer may be written now; 0 also if nobody wants it."""
        request = self._requests.get(number)
        if request is None or request.failure is not None:
            return 0
        reserved = max(0, _RESERVED - request.answer.held)
        shared = max(0, _SHARED - self._share.shared)
        return max(0, min(_HELD - request.answer.held, reserved + shared))

    def write(self, number: int, data: bytes) -> None:
        """Add bytes to an answer, as many as there is room. They are dropped if nobody wants them."""
        request = self._requests.get(number)
        if request is not None and request.failure is None:
            with _Accounted(self._share, request):
                request.answer.write(data)

    def end(self, number: int) -> None:
        """End an answer."""
        if (request := self._requests.get(number)) is not None:
            request.answer.end()

    def fail(self, number: int, why: str) -> None:
        """Say that there is no answer, or no more of it; what was not sent of it is dropped."""
        request = self._requests.get(number)
        if request is not None and request.failure is None:
            request.failure = why
            with _Accounted(self._share, request):
                request.answer.clear()

    def read(self, number: int, count: int) -> None:
        """Free the room of bytes that have arrived: the browser may send more."""
        if (request := self._requests.get(number)) is not None:
            request.question.read(count)

    def close(self) -> list[RequestEvent]:
        """Forget the page, and free its share."""
        events: list[RequestEvent] = [Dropped(number) for number in self._requests]
        for number in tuple(self._requests):
            self._remove(number)
        return events

    def _remove(self, number: int) -> None:
        request = self._requests.pop(number)
        self._turns.remove(number)
        with _Accounted(self._share, request):
            request.answer.clear()
        self._share.requests -= 1


class _Accounted:
    """Keeps the shared count right while the block changes an answer."""

    def __init__(self, share: BrowserShare, request: _Request) -> None:
        self._share, self._request = share, request

    def __enter__(self) -> None:
        self._share.shared -= max(0, self._request.answer.held - _RESERVED)

    def __exit__(self, *_error: object) -> None:
        self._share.shared += max(0, self._request.answer.held - _RESERVED)
