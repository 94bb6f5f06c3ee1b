"""The facts about one peer: what a greeting, a goodbye or a refusal leaves to be shown and logged."""

import asyncio
import io
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from meshd.base import log
from meshd.base.errors import IN_USE_CODE, Refused
from meshd.identity.record import PeerRecord
from meshd.link.interface import LinkKind
from meshd.mux.events import Code
from meshd.peer.interface import PathStatus, PeerState, PeerStatus
from meshd.peer.node import Node
from meshd.peer.peer_facts import OWN_GOODBYE, PeerFacts
from meshd.wire.dialable import Here, dialable
from meshd.wire.hello import Hello
from meshd.wire.netfacts import CAPABILITY, NetFacts
from meshd.wire.versions import VERSION_CODE, NativeVersion

from tests.unit.admin.test_snapshot import path
from tests.unit.identity.cast import WORKER, WORKER_CHAIN
from tests.unit.peer.news_scene import Host, Telling
from tests.unit.rendezvous.test_book import HERE, THERE, record

pytestmark = pytest.mark.virtual


class Scene:
    """What the founder knows of the worker."""

    def __init__(self) -> None:
        self.telling = Telling(record(WORKER, 1, HERE, name="bert"))
        self.node: Node = self.telling.node
        self.host: Host = self.telling.host
        self.facts = PeerFacts(self.node, self.telling.book, WORKER.peer)

    def status(self, *paths: PathStatus, is_connecting: bool = False) -> PeerStatus:
        return self.facts.status(paths, is_connecting=is_connecting, failed={}, grace=9)

    def hello(self) -> Hello:
        hello = self.node.hello(current=b"", fresh=b"", chosen=b"")
        return replace(hello, name="garage", role="worker", software="0.7", clock=self.node.wall_clock() + 50)


async def test_at_first_little_is_known() -> None:
    scene = Scene()
    status = scene.status()
    assert (status.peer, status.name, status.state) == (WORKER.peer, "", PeerState.KNOWN)
    assert (status.since, status.grace, status.resumes) == (scene.node.now(), 9, 0)
    assert scene.facts.label == WORKER.peer.short
    assert "no link yet" in scene.facts.not_connected().what
    scene.facts.take_name()
    assert (scene.status().name, scene.status().role, scene.facts.label) == ("bert", "worker", "bert")
    scene.facts.last_error = "the cable is out"
    assert "bert: the cable is out" in scene.facts.not_connected().what


async def test_a_state_is_as_old_as_its_last_change_and_changes_are_told() -> None:
    scene = Scene()
    version = scene.node.version
    await asyncio.sleep(5)
    scene.facts.set_state(PeerState.KNOWN)
    assert scene.node.version == version and scene.status().since == scene.node.now() - 5
    scene.facts.set_state(PeerState.CONNECTING)
    assert scene.node.version == version + 1 and scene.status().since == scene.node.now()
    assert scene.status().state is PeerState.CONNECTING


async def test_only_what_was_suspended_is_resumed() -> None:
    scene = Scene()
    for state, resumes in (
        (PeerState.CONNECTING, 0),
        (PeerState.SUSPENDED, 1),
        (PeerState.CONNECTED, 1),
        (PeerState.SUSPENDED, 2),
    ):
        scene.facts.set_state(state)
        scene.facts.carried()
        assert (scene.status().state, scene.status().resumes) == (PeerState.CONNECTED, resumes)
    assert scene.status(is_connecting=True).state is PeerState.CONNECTING


async def test_a_greeting_tells_of_the_peer_and_ends_what_was_wrong() -> None:
    scene = Scene()
    scene.facts.said_goodbye(Code.SHUTDOWN, "lunch")
    scene.facts.refused(Refused("no", code=VERSION_CODE, hint="get a newer one"))
    scene.facts.found_gone("it was killed")
    assert scene.status().stopped == "lunch" and scene.status().gone == "it was killed"
    info = path(selected=True).link
    scene.facts.met(scene.hello(), info.member)
    status = scene.status(path(selected=True))
    assert (status.name, status.role, status.software) == ("garage", "worker", "0.7")
    assert status.native == scene.node.facts.native and scene.facts.member == info.member
    assert status.clock_offset == pytest.approx(50, abs=1)
    assert status.stopped == status.gone == status.last_error == status.upgrade == status.says_banned == ""
    assert len(status.paths) == 1


@pytest.mark.parametrize(
    ("code", "reason", "stopped", "banned"),
    [
        (Code.SHUTDOWN, "an update", "an update", ""),
        (Code.SHUTDOWN, "", "it was stopped", ""),
        (Code.BANNED, "by the root", "", "by the root"),
        (Code.BANNED, "", "", "this node is banned"),
        (Code.IDLE, "not needed", "", ""),
    ],
)
async def test_a_goodbye_is_shown_by_its_kind(code: Code, reason: str, stopped: str, banned: str) -> None:
    scene = Scene()
    version = scene.node.version
    scene.facts.said_goodbye(code, reason)
    assert (scene.status().stopped, scene.status().says_banned) == (stopped, banned)
    assert (scene.node.version > version) == bool(banned)


async def test_a_refusal_is_shown_until_another_one() -> None:
    scene = Scene()
    scene.facts.refused(Refused("in use at x", code=IN_USE_CODE))
    assert (scene.status().says_in_use, scene.status().last_error) == ("in use at x", "in use at x")
    scene.facts.refused(Refused("you are out", code="banned"))
    status = scene.status()
    assert (status.says_banned, status.says_in_use, status.last_error) == ("you are out", "", "you are out")
    scene.facts.refused(Refused("too old", code=VERSION_CODE, hint="run `meshd update`"))
    assert scene.status().upgrade
    scene.facts.refused(Refused("full", code="busy", hint="wait"))
    assert (scene.status().upgrade, scene.status().last_error) == ("", "full")


@pytest.fixture
def said() -> Iterator[Callable[[], str]]:
    """Return what was logged since the last time."""
    stream = io.StringIO()
    log.set_up(stream=stream)

    def since() -> str:
        text = stream.getvalue()
        stream.seek(0)
        stream.truncate()
        return text

    yield since
    log.set_up(level="warning")


async def test_losses_are_logged_and_ends_on_purpose_are_not(said: Callable[[], str]) -> None:
    scene = Scene()
    info = path(selected=True).link
    scene.facts.link_lost(info, f"{OWN_GOODBYE}: we stop")
    scene.facts.said_goodbye(Code.IDLE, "")
    scene.facts.link_lost(info, "the line is cut")
    assert "link_lost" not in said()
    scene.facts.met(scene.hello(), info.member)
    scene.facts.link_up(info)
    scene.facts.link_lost(info, "the line is cut")
    text = said()
    assert text.count("link_up") == text.count("link_lost") == 1 and "the line is cut" in text
    scene.facts.last_error = "silence"
    scene.facts.link_lost(info, "")
    assert "silence" in said()


async def test_another_native_build_is_logged_once(said: Callable[[], str]) -> None:
    scene = Scene()
    info = path(selected=True).link
    other = replace(scene.hello(), native=NativeVersion("mesh 3", "pin", "sources", "cpu"))
    for hello, count in ((scene.hello(), 0), (other, 1), (other, 0), (scene.hello(), 0), (other, 1)):
        scene.facts.met(hello, info.member)
        assert said().count("native_differs") == count


async def test_places_come_in_the_books_order_each_once() -> None:
    scene = Scene()
    book = scene.telling.book
    book.hint(WORKER.peer, [THERE, HERE])
    scene.host.may_dial = lambda _peer, told, source: dialable(told, source=source, here=Here())
    told = [at for _, given in book.sources(WORKER.peer) for at in given]
    places = scene.facts.places()
    assert len(told) > len(places) == 2
    assert [place.place for place in places] == list(dict.fromkeys(f"{at.host}:{at.port}" for at in told))


async def test_why_data_is_relayed_is_said_while_the_relay_carries_data() -> None:
    scene = Scene()
    asked: list[NetFacts | None] = []

    def why(theirs: NetFacts | None, last_error: str) -> str:
        asked.append(theirs)
        return f"because: {last_error or 'nothing was tried'}"

    scene.host.why_not_direct = why  # type: ignore[method-assign]
    relayed = path(selected=True, kind=LinkKind.RELAY, where="relayed")
    for shown in (
        scene.status(path(selected=True)),
        scene.status(path(selected=True), path(selected=False, kind=LinkKind.RELAY, where="relayed")),
        scene.status(),
    ):
        assert shown.why_not_direct == ""
    assert scene.status(relayed).why_not_direct.startswith("because")
    for text, is_known in (("nonsense", False), (NetFacts().to_text(), True)):
        scene.telling.book.add(
            PeerRecord.sign(
                WORKER,
                chain=WORKER_CHAIN,
                name="bert",
                role="worker",
                sequence=2 + is_known,
                capabilities={CAPABILITY: text},
            )
        )
        scene.status(relayed)
        assert (asked[-1] is not None) == is_known
