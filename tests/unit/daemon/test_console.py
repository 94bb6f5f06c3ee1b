"""What the page of the mesh shows: one look for all who watch, only while somebody does, on change."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from meshd.admin.api import StatusRequest
from meshd.admin.request import Json
from meshd.admin.status import HealthWarning, Status
from meshd.admin.status_json import for_scripts
from meshd.base import log
from meshd.base.tasks import Owner
from meshd.daemon.console import AGAIN_SECONDS, LOOK_SECONDS, STORAGE_SECONDS, ConsoleAnswers
from meshd.daemon.console_on_demand import ConsoleOnDemand
from meshd.gateway.events import BUCKETS, WorkHistory
from meshd.gateway.interface import RequestPhase, RequestStatus

from tests.unit.admin.fake import full_status

pytestmark = pytest.mark.virtual

WALL = 1_790_000_000.0
REQUEST = RequestStatus(7, "tiny", RequestPhase.ANSWERING, 3.14159, 12, 4.56789, "anna")
State = Mapping[str, Json]


BEGAN = 1000.0  # of the virtual clock


def now() -> float:
    return asyncio.get_running_loop().time() - BEGAN


@dataclass
class FakeNode:
    """A node whose status the test changes; counts who looks."""

    state: Status = field(default_factory=full_status)
    looks: int = 0
    walks: int = 0  # of folders
    seconds: float = 0.0  # that a walk takes

    def status_now(self) -> Status:
        self.looks += 1
        uptime = self.state.node.uptime_s + self.looks
        return replace(self.state, node=replace(self.state.node, uptime_s=uptime), storage=None)

    async def status(self, request: StatusRequest, /) -> Status:
        await asyncio.sleep(self.seconds)
        self.walks += 1
        return replace(self.status_now(), storage=self.state.storage)


@dataclass
class FakeWork:
    requests: Sequence[RequestStatus] = ()
    history: WorkHistory = field(
        default_factory=lambda: WorkHistory((0,) * (BUCKETS - 2) + (50, 8), (0,) * (BUCKETS - 1) + (2,), 4.0)
    )


class FakeActions:
    names = ("invite", "logs")

    async def act(self, name: str, fields: Mapping[str, object]) -> State:
        return {name: list(fields)}


@dataclass
class Scene:
    node: FakeNode = field(default_factory=FakeNode)
    work: FakeWork | None = field(default_factory=FakeWork)

    def __post_init__(self) -> None:
        self.console = ConsoleAnswers(
            self.node, FakeActions(), work=lambda: self.work, wall=lambda: WALL + now()
        )

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[State]]:
        async with aclosing(self.console.watch()) as states:
            yield states


def words(state: State) -> list[str]:
    events = state["events"]
    assert isinstance(events, list)
    return [str(event["text"]) for event in events if isinstance(event, Mapping)]


async def test_the_first_state_comes_at_once_and_is_whole() -> None:
    scene = Scene()
    scene.work = FakeWork(requests=(REQUEST,))
    async with scene.watch() as states:
        state = await anext(states)
        assert now() == 0.0
    json.dumps(state, allow_nan=False)
    shown = replace(scene.node.state, node=replace(scene.node.state.node, uptime_s=13.5))
    assert state["status"] == for_scripts(shown)
    assert state["requests"] == [
        {
            "id": 7,
            "model": "tiny",
            "phase": "answering",
            "seconds": 3.1,
            "tokens": 12,
            "tok_s": 4.57,
            "key": "anna",
            "note": "",
        }
    ]
    history = state["history"]
    assert isinstance(history, Mapping)
    assert isinstance(rates := history["tok_s"], Sequence) and isinstance(history["requests"], Sequence)
    assert (len(rates), len(history["requests"])) == (BUCKETS, BUCKETS)
    assert list(rates[-2:]) == [5.0, 2.0], "the newest bucket is as long as it has lasted"
    assert (history["step_s"], history["until"]) == (10, WALL + 6)
    assert state["can"] == ["invite", "logs"]


async def test_a_node_without_an_api_has_no_requests() -> None:
    scene = Scene(work=None)
    async with scene.watch() as states:
        state = await anext(states)
    assert state["requests"] == []
    assert state["history"] == {
        "step_s": 10,
        "until": WALL,
        "tok_s": [0.0] * BUCKETS,
        "requests": [0] * BUCKETS,
    }


async def test_without_a_change_it_comes_every_few_seconds() -> None:
    scene = Scene()
    async with scene.watch() as states:
        times = [now() for _ in range(4) if await anext(states)]
    assert times == pytest.approx([0, AGAIN_SECONDS, 2 * AGAIN_SECONDS, 3 * AGAIN_SECONDS], abs=LOOK_SECONDS)


async def test_a_change_comes_at_the_next_look() -> None:
    scene = Scene()
    async with scene.watch() as states:
        await anext(states)
        scene.node.state = replace(scene.node.state, model=None)
        state = await anext(states)
        assert now() == pytest.approx(LOOK_SECONDS)
        assert isinstance(state["status"], Mapping) and state["status"]["model"] is None


async def test_changes_all_the_time_come_twice_a_second() -> None:
    scene = Scene()
    async with scene.watch() as states:
        times = []
        for tokens in range(5):
            scene.work = FakeWork(requests=(replace(REQUEST, tokens=tokens),))
            await anext(states)
            times.append(now())
    assert times == pytest.approx([number * LOOK_SECONDS for number in range(5)])


async def test_while_nobody_watches_nobody_looks() -> None:
    scene = Scene()
    before = asyncio.all_tasks()
    await asyncio.sleep(100.0)
    assert (scene.node.looks, scene.node.walks) == (0, 0)
    async with scene.watch() as states:
        await anext(states)
        await anext(states)
    looks = scene.node.looks
    await asyncio.sleep(100.0)
    assert scene.node.looks == looks
    assert asyncio.all_tasks() == before
    assert scene.console._before is None, "nor is anything kept"


async def test_folders_are_walked_now_and_then() -> None:
    scene = Scene()
    async with Owner() as owner:

        async def follow() -> None:
            async with scene.watch() as states:
                async for state in states:
                    assert isinstance(state["status"], Mapping)
                    assert state["status"]["storage"] is not None

        owner.start(follow(), name="watcher")
        await asyncio.sleep(2.5 * STORAGE_SECONDS)
        owner.cancel()
    assert scene.node.walks == 3


async def test_a_slow_look_ends_with_its_watcher() -> None:
    scene = Scene(node=FakeNode(seconds=1000.0))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0), scene.watch() as states:
            await anext(states)
    assert now() == 5.0
    scene.node.seconds = 0.0
    async with scene.watch() as states:
        assert await anext(states)


async def test_events_of_the_log_come_from_before_the_watch() -> None:
    log.remember(frozenset({"peer_gone"}))
    try:
        log.get("test").warning("peer_gone", peer="qqqq", why="its process has ended")
        scene = Scene()
        async with scene.watch() as states:
            assert words(await anext(states)) == ["lost garage: its process has ended"]
            log.get("test").warning("peer_gone", name="barn", why="no word")
            assert words(await anext(states))[-1] == "lost barn: no word"
            assert now() == pytest.approx(LOOK_SECONDS), "an event is a change"
    finally:
        log.remember(frozenset())


async def test_warnings_come_and_go_while_somebody_watches() -> None:
    scene = Scene()
    calm = scene.node.state
    low = HealthWarning(code="disk", severity="warning", what="3 MB are free", hint="free some")
    async with scene.watch() as states:
        await anext(states)
        scene.node.state = replace(calm, warnings=(low,))
        assert words(await anext(states)) == ["3 MB are free"]
        scene.node.state = calm
        state = await anext(states)
    assert words(state) == ["3 MB are free", "no longer: 3 MB are free"]
    assert isinstance(state["events"], list)
    assert state["events"][0] == {"at": WALL + LOOK_SECONDS, "level": "warning", "text": "3 MB are free"}
    async with scene.watch() as states:
        assert len(words(await anext(states))) == 2, "a page that is opened again has them still"


async def test_actions_are_those_of_the_node() -> None:
    assert await Scene().console.act("logs", {"lines": 1}) == {"logs": ["lines"]}


async def test_nothing_is_made_before_somebody_watches_or_acts() -> None:
    scene, made = Scene(), list[int]()

    def make() -> ConsoleAnswers:
        made.append(1)
        return scene.console

    source = ConsoleOnDemand(make)
    watched = source.watch()
    assert made == []
    first = await asyncio.gather(anext(watched), *(source.act("logs", {}) for _ in range(3)))
    assert made == [1] and first[1:] == [{"logs": []}] * 3
    await watched.aclose()
    assert scene.console._before is None, "the end of a watch is that of the node's"


def test_a_daemon_imports_no_page() -> None:
    """Nor does it need to know the modules of the page for its words."""
    code = "import sys, meshd.daemon.run; print([name for name in sys.modules if 'console' in name])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "['meshd.daemon.console_on_demand', 'meshd.daemon.console_words']"
