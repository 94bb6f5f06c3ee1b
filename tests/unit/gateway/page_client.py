"""A page's end of the requests over a data channel, as wheels/mesh/src/remote/requests.ts has it."""

from dataclasses import dataclass, field

from meshd.gateway.browser_frames import (
    Allow,
    ChannelRefused,
    Data,
    Failed,
    Forget,
    FromBrowser,
    Hello,
    Ping,
    Place,
    Pong,
    Welcome,
    decode_from_node,
    encode,
)
from meshd.gateway.browser_requests import (
    ANSWER_WINDOW,
    REQUEST_WINDOW,
    IncomingStream,
    OutgoingStream,
)

FORGOTTEN = "the node no longer knows this request"


@dataclass
class Asked:
    """One request, and what came of its answer; `reads`: what arrives is used at once."""

    question: OutgoingStream = field(default_factory=lambda: OutgoingStream(REQUEST_WINDOW))
    answer: IncomingStream = field(default_factory=lambda: IncomingStream(ANSWER_WINDOW))
    got: bytearray = field(default_factory=bytearray)
    unread: int = 0
    reads: bool = True
    is_sent: bool = False
    is_whole: bool = False
    failure: str | None = None


class PageClient:
    """Keeps all requests it ever made in `asked`; those that it still wants in `wanted`."""

    def __init__(self, session: bytes) -> None:
        self.session = session
        self.asked: dict[int, Asked] = {}
        self.wanted: list[int] = []
        self.pongs: list[int] = []
        self.refused = ""
        self._first: list[FromBrowser] = []
        self._has_channel = self._is_welcome = self._was_welcome = False

    def open(self, data: bytes, *, is_whole: bool = True, reads: bool = True) -> int:
        number = len(self.asked) + 1
        self.asked[number] = asked = Asked(reads=reads)
        asked.question.write(data)
        if is_whole:
            asked.question.end()
        self.wanted.append(number)
        return number

    def forget(self, number: int) -> None:
        if number in self.wanted:
            self.wanted.remove(number)
            if self.asked[number].is_sent and self._is_welcome:
                self._first.append(Forget(number))

    def ping(self, nonce: int) -> None:
        self._first.append(Ping(nonce))

    def read(self, number: int) -> None:
        """Use what has arrived, and all that will."""
        asked = self.asked[number]
        asked.reads = True
        asked.answer.read(asked.unread)
        asked.unread = 0

    def connect(self) -> None:
        sent = [number for number in self.wanted if self.asked[number].is_sent]
        self._first = [Hello(self.session, tuple(self.asked[number].answer.place(number) for number in sent))]
        self._has_channel, self._is_welcome = True, False

    def disconnect(self) -> None:
        self._first, self._has_channel, self._is_welcome = [], False, False

    def receive(self, message: bytes) -> None:
        match decode_from_node(message):
            case Welcome() as welcome:
                self._take_welcome(welcome)
            case Data(number) as piece if number in self.wanted:
                self._take(piece)
            case Allow(place) if place.number in self.wanted:
                self.asked[place.number].question.progress(place)
            case Failed(number, why):
                self._fail(number, why)
            case Pong(nonce):
                self.pongs.append(nonce)
            case ChannelRefused(why):
                self.refused = why
            case _:
                pass  # of a request that nobody wants any more

    def transmit(self) -> bytes | None:
        if not self._has_channel:
            return None
        if self._first:
            return encode(self._first.pop(0))
        for number in tuple(self.wanted) if self._is_welcome else ():
            asked = self.asked[number]
            message: FromBrowser | None
            if asked.answer.is_due:
                message = Allow(asked.answer.place(number))
            else:
                message = asked.question.next_piece(number)
            if message is not None:
                self.wanted.remove(number)
                self.wanted.append(number)
                asked.is_sent = True
                return encode(message)
        return None

    def _take_welcome(self, welcome: Welcome) -> None:
        theirs = {place.number: place for place in welcome.places}
        for number in tuple(self.wanted):
            asked, place = self.asked[number], theirs.get(number)
            may_have_begun = self._was_welcome if welcome.is_new else number <= welcome.highest
            if place is not None:
                asked.question.resume(place)
            elif asked.is_sent and may_have_begun:
                self._fail(number, FORGOTTEN)
            else:
                asked.question.resume(Place(number, 0, REQUEST_WINDOW))
        self.wanted.sort()
        self._is_welcome = self._was_welcome = True

    def _take(self, piece: Data) -> None:
        asked = self.asked[piece.number]
        data = asked.answer.take(piece)
        asked.got += data
        if asked.reads:
            asked.answer.read(len(data))
        else:
            asked.unread += len(data)
        if piece.is_last:
            asked.is_whole = True
            self.forget(piece.number)

    def _fail(self, number: int, why: str) -> None:
        if number in self.wanted:
            self.asked[number].failure = why
            self.forget(number)
