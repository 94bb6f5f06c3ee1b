"""The page's half of requests over data channels, in Node.js, against the node's half in Python.

The same tries as of the half that the tests have in Python: requests, cuts, a node that forgets.
"""

import base64
import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from meshd.gateway.browser_frames import LARGEST_OFFSET

from tests.page_scripts import needs_typescript
from tests.process.page_script import Script, in_base64, script
from tests.unit.gateway.browser_wire import SESSION, Channels, Page, Wire
from tests.unit.gateway.golden_messages import RECORDED
from tests.unit.gateway.page_client import FORGOTTEN, Asked

pytestmark = needs_typescript


class ScriptPage:
    """A page whose requests are those of requests.ts; implements Page."""

    def __init__(self, running: Script) -> None:
        self.asked: dict[int, Asked] = {}
        self.wanted: list[int] = []
        self.pongs: list[int] = []
        self._do = running.do
        self._do("begin", in_base64(SESSION))

    def open(self, data: bytes, *, is_whole: bool = True, reads: bool = True) -> int:
        number: int = self._do("open", [in_base64(data), is_whole])
        self.asked[number] = Asked(reads=reads)
        self.wanted.append(number)
        return number

    def forget(self, number: int) -> None:
        if number in self.wanted:
            self.wanted.remove(number)
            self._do("forget", number)

    def ping(self, nonce: int) -> None:
        self._do("ping", nonce)

    def read(self, number: int) -> None:
        asked = self.asked[number]
        self._do("read", [number, asked.unread])
        asked.reads, asked.unread = True, 0

    def connect(self) -> None:
        self._do("connect")

    def disconnect(self) -> None:
        self._do("disconnect")

    def transmit(self) -> bytes | None:
        message = self._do("transmit")
        return None if message is None else base64.b64decode(message)

    def receive(self, message: bytes) -> None:
        events = self._do("receive", in_base64(message))
        assert isinstance(events, list), events
        for event in events:
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        match event:
            case {"kind": "arrived", "number": int(number), "data": str(text), "isLast": bool(is_last)}:
                data, asked = base64.b64decode(text), self.asked[number]
                asked.got += data
                if asked.reads:
                    self._do("read", [number, len(data)])
                else:
                    asked.unread += len(data)
                if is_last:
                    asked.is_whole = True
                    self.wanted.remove(number)
            case {"kind": "failed", "number": int(number), "why": str(why)}:
                self.asked[number].failure = FORGOTTEN if why.startswith(FORGOTTEN[:30]) else why
                self.wanted.remove(number)
            case {"kind": "pong", "nonce": int(nonce)}:
                self.pongs.append(nonce)
            case _:
                assert event["kind"] == "welcomed", event


@pytest.fixture(scope="module")
def running() -> Iterator[Script]:
    with script() as started:
        yield started


def test_messages_are_written_and_read_as_once_recorded(running: Script) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    for row in recorded["from_browser"]:
        assert running.do("encode", row["message"]) == row["bytes"]
    for row in recorded["from_node"]:
        assert running.do("decode", row["bytes"]) == row["message"]


@pytest.mark.parametrize(
    "message",
    [
        "",
        "00",
        "0a0000",
        "0200",
        "02020000000000",  # another version
        "0201000000000001",  # a place is missing
        "03000000010000",
        "0400000001" + (LARGEST_OFFSET + 1).to_bytes(8, "big").hex() + bytes(8).hex(),
        "03" + bytes(16384).hex(),
    ],
)
def test_broken_messages_meet_the_declared_error(running: Script, message: str) -> None:
    assert running.do("decode", message) == {"error": "ProtocolError"}


def test_a_request_and_its_answer(running: Script) -> None:
    wire = Wire(ScriptPage(running))
    wire.connect()
    number = wire.page.open(b"question")
    wire.page.ping(3)  # too early: the node has not said welcome
    wire.run()
    wire.page.ping(4)
    assert wire.arrived(number) == b"question"
    wire.node.write(number, b"answer")
    wire.node.end(number)
    wire.run()
    assert bytes(wire.page.asked[number].got) == b"answer" and wire.page.asked[number].is_whole
    assert (len(wire.node), wire.page.pongs) == (0, [4])


class ScriptChannels(Channels):
    """The random tries, with the page in Node.js."""

    running: ClassVar[Script]

    @classmethod
    def make_page(cls) -> Page:
        return ScriptPage(cls.running)


@pytest.fixture
def channels(running: Script) -> type[ScriptChannels]:
    ScriptChannels.running = running
    return ScriptChannels


def test_random_tries(channels: type[ScriptChannels]) -> None:
    tries = settings(
        max_examples=40, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(channels, settings=tries)
