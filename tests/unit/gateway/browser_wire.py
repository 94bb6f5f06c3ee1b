"""A page and a node with a channel between them that is cut at will, and random tries of it."""

import random
from collections.abc import Mapping
from typing import Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from meshd.gateway.browser_frames import Hello, decode_from_browser
from meshd.gateway.browser_requests import Arrived, Begun, BrowserShare, PageRequests, RequestEvent

from tests.unit.gateway.page_client import FORGOTTEN, Asked, PageClient

SESSION = bytes(range(16))
HELD, IN_ALL = 256 << 10, 1 << 20


class Page(Protocol):
    """The page's end, in whatever language."""

    @property
    def asked(self) -> Mapping[int, Asked]: ...
    @property
    def wanted(self) -> list[int]: ...
    @property
    def pongs(self) -> list[int]: ...
    def open(self, data: bytes, *, is_whole: bool = True, reads: bool = True) -> int: ...
    def forget(self, number: int) -> None: ...
    def ping(self, nonce: int) -> None: ...
    def read(self, number: int) -> None: ...
    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def receive(self, message: bytes) -> None: ...
    def transmit(self) -> bytes | None: ...


class Wire:
    """A page and a node, and the messages under way between them."""

    def __init__(self, page: Page | None = None) -> None:
        self.page = page or PageClient(SESSION)
        self.share = BrowserShare()
        self.node = PageRequests(self.share, 0.0)
        self.now = 0.0
        self.events: list[RequestEvent] = []
        self.to_node: list[bytes] = []
        self.to_page: list[bytes] = []
        self.is_up = False

    def connect(self) -> None:
        """Begin a channel; whatever was under way is lost."""
        self.cut()
        self.page.connect()
        self.is_up = True
        hello = self.page.transmit()
        assert hello is not None
        read = decode_from_browser(hello)
        assert isinstance(read, Hello)
        self.events += self.node.connect(read)

    def cut(self) -> None:
        self.page.disconnect()
        self.node.disconnect(self.now)
        self.to_node, self.to_page, self.is_up = [], [], False

    def send(self) -> None:
        """Put all that is ready on its way."""
        while (message := self.page.transmit()) is not None:
            self.to_node.append(message)
        while (message := self.node.transmit()) is not None:
            self.to_page.append(message)

    def deliver(self, most: int = 1 << 30) -> None:
        """Let the oldest messages of both directions arrive."""
        for _ in range(min(most, len(self.to_node))):
            self.events += self.node.receive(self.to_node.pop(0))
        for _ in range(min(most, len(self.to_page))):
            self.page.receive(self.to_page.pop(0))

    def run(self) -> None:
        """Send and deliver until nothing is left to say; what arrives at the node is read at once."""
        while True:
            self.send()
            if not self.to_node and not self.to_page:
                return
            self.deliver()
            for event in self.events:
                if isinstance(event, Arrived):
                    self.node.read(event.number, len(event.data))

    def arrived(self, number: int) -> bytes:
        return b"".join(
            event.data for event in self.events if isinstance(event, Arrived) and event.number == number
        )


class Channels(RuleBasedStateMachine):
    """Random requests, cuts that lose all under way, and a node that forgets; what arrives is compared."""

    @classmethod
    def make_page(cls) -> Page:
        """Return the page's end; a test of another one overrides it."""
        return PageClient(SESSION)

    def __init__(self) -> None:
        super().__init__()
        self.wire = Wire(self.make_page())
        self.questions: dict[int, bytes] = {}
        self.answers: dict[int, bytearray] = {}
        self.ended: set[int] = set()
        self.random = random.Random(0)
        self.read_at_node: dict[int, int] = {}

    @rule(turns=st.integers(1, 6), most=st.integers(1, 40))
    def exchange(self, turns: int, most: int) -> None:
        """Exchange some messages, over a new channel if there is none."""
        if not self.wire.is_up:
            self.wire.connect()
        for _ in range(turns):
            self.wire.send()
            self.wire.deliver(most)

    @precondition(lambda self: self.wire.is_up and self.begun)
    @rule(seconds=st.sampled_from([0.0, 59.0, 61.0]))
    def cut(self, seconds: float) -> None:
        self.wire.cut()
        self.wire.now += seconds
        expires = self.wire.node.expires
        if expires is not None and self.wire.now >= expires:
            self.wire.events += self.wire.node.close()
            self.wire.node = PageRequests(self.wire.share, self.wire.now)

    @precondition(lambda self: len(self.wire.page.wanted) < 8)
    @rule(size=st.sampled_from([1, 100, 20_000, 200_000]), reads=st.booleans())
    def ask(self, size: int, reads: bool) -> None:
        question = self.random.randbytes(size)
        self.questions[self.wire.page.open(question, reads=reads)] = question

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), size=st.sampled_from([1, 5000, 100_000]))
    def answer(self, data: st.DataObject, size: int) -> None:
        number = data.draw(st.sampled_from(self.begun))
        if number not in self.ended:
            piece = self.random.randbytes(min(size, self.wire.node.room(number)))
            self.wire.node.write(number, piece)
            self.answers.setdefault(number, bytearray()).extend(piece)

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.begun))
        self.wire.node.end(number)
        self.ended.add(number)

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.begun))
        self.wire.page.read(number)
        self.read_at(number)

    @precondition(lambda self: self.wire.page.wanted)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        self.wire.page.forget(data.draw(st.sampled_from(self.wire.page.wanted)))

    @property
    def begun(self) -> list[int]:
        return [event.number for event in self.wire.events if isinstance(event, Begun)]

    @invariant()
    def no_request_is_begun_twice(self) -> None:
        assert len(self.begun) == len(set(self.begun))

    @invariant()
    def bytes_arrive_once_and_in_order(self) -> None:
        for number, question in self.questions.items():
            assert question.startswith(self.wire.arrived(number))
            asked = self.wire.page.asked[number]
            answer = bytes(self.answers.get(number, b""))
            assert answer.startswith(bytes(asked.got))
            if asked.is_whole:
                assert number in self.ended and bytes(asked.got) == answer

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.wire.share.requests <= 8
        held = [request.answer.held for request in self.wire.node._requests.values()]
        assert sum(held) <= IN_ALL and max(held, default=0) <= HELD
        assert self.wire.share.shared == sum(max(0, one - (32 << 10)) for one in held)

    def teardown(self) -> None:
        """With a channel that stays, every answer that is still wanted comes whole."""
        wire = self.wire
        wire.connect()
        wanted = list(wire.page.wanted)
        for number in wanted:
            wire.page.read(number)
        for _ in range(100):
            wire.send()
            if not wire.to_node and not wire.to_page:
                break
            wire.deliver()
            for number in self.begun:
                came = self.read_at(number)
                if number not in self.ended and came == len(self.questions[number]):
                    self.end_with(number, b"the end")
        for number in wanted:
            asked = wire.page.asked[number]
            assert asked.is_whole or asked.failure == FORGOTTEN, number
        self.bytes_arrive_once_and_in_order()
        self.no_request_is_begun_twice()

    def read_at(self, number: int) -> int:
        """Let the node use all that has arrived; returns how much that is."""
        came = len(self.wire.arrived(number))
        self.wire.node.read(number, came - self.read_at_node.get(number, 0))
        self.read_at_node[number] = came
        return came

    def end_with(self, number: int, data: bytes) -> None:
        piece = data[: self.wire.node.room(number)]
        self.wire.node.write(number, piece)
        self.answers.setdefault(number, bytearray()).extend(piece)
        self.wire.node.end(number)
        self.ended.add(number)
