"""Show a person at a terminal what a node does: lines of news, a line that moves, the invite."""

import asyncio
import io
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from meshd.admin.api import InviteReply
from meshd.admin.status import DrainView, HealthWarning, LinkView, Severity, Status
from meshd.cli.layout import State
from meshd.cli.node_screen import MOST_LINES, Line, NodeScreen, Step, news, under_way
from meshd.cli.output import Output
from meshd.model.status import FetchStatus, LentMemory, LentState, ModelState

from tests.unit.admin.fake import LINK, MODEL, PEER, full_status

from .shell import Terminal

FULL = replace(full_status(), peers=(), model=None, api=None, devices=(), warnings=(), lent=(), children=())
WORKER = replace(FULL, node=replace(FULL.node, role="worker"))
RELAYED = replace(LINK, path="relayed")
LENT = LentMemory(head="h" * 52, model="tiny", bytes=1 << 30, state=LentState.LOADED, head_name="desk")


def texts(lines: Sequence[Line]) -> list[str]:
    return ["".join(line.parts) for line in lines]


def told(before: Status | None, now: Status) -> list[str]:
    return texts(list(news(before, now)))


def with_peer(state: str = "connected", link: LinkView | None = LINK, **changes: object) -> Status:
    peer = replace(PEER, state=state, link=link, **changes)  # type: ignore[arg-type]
    return replace(FULL, peers=(peer,))


def test_first_come_the_node_its_mesh_and_its_log() -> None:
    lines = list(news(None, WORKER))
    assert [line.label for line in lines] == ["node", "mesh", "log"]
    assert "desk" in texts(lines)[0] and "worker" in texts(lines)[0]
    devices = replace(WORKER, devices=full_status().devices)
    assert [line.label for line in news(WORKER, devices)] == ["lends", "lends"]
    assert told(devices, devices) == []


def test_a_peer_that_comes_goes_or_changes_its_path_is_news() -> None:
    lost = with_peer("lost", None, last_error="timed out")
    assert told(FULL, with_peer()) == ["garage connected: same network, tcp, 1.2 ms"]
    assert told(with_peer("connecting", None), with_peer()) == ["garage connected: same network, tcp, 1.2 ms"]
    assert told(with_peer(), with_peer("suspended", None)) == []  # sessions are made for that
    assert told(with_peer("suspended", None), with_peer()) == []
    assert told(with_peer("suspended", None), lost) == ["garage lost: timed out"]
    assert told(with_peer(), with_peer("known", None, stopped="the node was stopped")) == [
        "garage away: the node was stopped"
    ]
    assert told(FULL, with_peer("known", None)) == []
    assert told(with_peer(link=RELAYED), with_peer()) == ["garage now: same network, tcp, 1.2 ms"]
    assert told(with_peer(), with_peer(link=RELAYED)) == ["garage now: through a relay, tcp, 1.2 ms"]


def test_what_a_worker_lends_is_news_once_it_is_loaded() -> None:
    loading = replace(WORKER, lent=(replace(LENT, state=LentState.LOADING),))
    loaded = replace(WORKER, lent=(LENT,))
    assert told(WORKER, loading) == []
    assert told(loading, loaded) == ["desk loaded 1.0 GiB of tiny here"]
    assert told(loaded, loaded) == []
    assert told(loaded, WORKER) == ["desk let go of tiny"]


def test_a_model_that_is_loaded_or_lost_is_news() -> None:
    loading = replace(FULL, model=replace(MODEL, state=ModelState.LOADING))
    ready = replace(FULL, model=MODEL)
    degraded = replace(FULL, model=replace(MODEL, state=ModelState.DEGRADED, reason="garage is gone"))
    assert told(loading, ready) == ["SmolLM2 loaded in 0.3 s: garage 15 layers"]
    assert ready.model is not None
    [garage] = ready.model.split
    both = (replace(garage, node="desk", layers=0), garage, replace(garage, node="attic"))
    by_tensors = replace(ready, model=replace(ready.model, split=both, by_tensors=True))
    assert told(loading, by_tensors) == [
        "SmolLM2 loaded in 0.3 s: garage 50% of each layer, attic 50% of each layer"
    ]
    assert told(ready, degraded) == ["SmolLM2 degraded: garage is gone"]
    assert told(ready, ready) == []


def test_a_warning_is_told_once_however_its_numbers_count() -> None:
    def warned(seconds: int, severity: Severity = "warning") -> Status:
        warning = HealthWarning(
            code="peer_suspended",
            severity=severity,
            what=f"no link for {seconds} s",
            hint="check it",
        )
        return replace(FULL, warnings=(warning,))

    [line] = news(FULL, warned(10))
    assert ("".join(line.parts), line.hint) == ("warning: no link for 10 s", "check it")
    assert isinstance(line.parts[0], State)
    assert told(warned(10), warned(11)) == []
    assert told(FULL, warned(10, "info")) == []


@pytest.mark.parametrize(
    ("status", "step"),
    [
        (WORKER, Step("waiting for a node that serves a model (`meshd serve`)")),
        (replace(WORKER, lent=(LENT,)), Step("lends 1.0 GiB to desk", waits=False)),
        (
            replace(WORKER, lent=(replace(LENT, state=LentState.LOADING),)),
            Step("desk loads 1.0 GiB of tiny here"),
        ),
        (
            replace(WORKER, node=replace(WORKER.node, paused=True)),
            Step("paused: it lends nothing until `meshd resume`"),
        ),
        (
            replace(WORKER, node=replace(WORKER.node, paused=True, draining=DrainView(models=2, requests=0))),
            Step("draining: 2 models still use this node until the running answers end"),
        ),
        (
            replace(
                WORKER,
                fetching=FetchStatus(
                    name="x", step="fetching", activity="fetching x", done_bytes=5, total_bytes=10
                ),
            ),
            Step("fetching x: 5 B of 10 B", 0.5),
        ),
        (FULL, Step("starting")),
        (
            replace(FULL, model=replace(MODEL, state=ModelState.LOADING, reason="loading", progress=0.25)),
            Step("loading", 0.25),
        ),
    ],
)
def test_the_line_that_moves(status: Status, step: Step) -> None:
    assert under_way(status) == step


def test_a_head_says_what_it_waits_for_and_then_what_it_answers() -> None:
    api = full_status().api
    assert api is not None
    hint = HealthWarning(code="model_waiting", severity="info", what="not loaded", hint="run `meshd worker`")
    waiting = replace(FULL, api=replace(api, ready=False, reason="waiting for workers"), warnings=(hint,))
    assert under_way(waiting) == Step("waiting for workers", hint="run `meshd worker`")
    idle = replace(api, ready=True, running=0, waiting=0)
    assert under_way(replace(FULL, api=idle)) == Step("serving; 1 request, 42 tokens so far", waits=False)
    busy = replace(idle, running=2, waiting=1)
    assert under_way(replace(FULL, api=busy)).text.startswith("answering 2 requests, 1 waiting;")


def lines_on(terminal: io.StringIO) -> list[str]:
    """Return what stands on a terminal that knows carriage returns."""
    return [line.rpartition("\r")[2].replace("\x1b[K", "") for line in terminal.getvalue().split("\n")]


class Scene:
    """A screen whose stdout and stderr are one terminal of 70 columns."""

    def __init__(self, *statuses: Status) -> None:
        self.terminal = Terminal()
        self.drained = 0
        self._statuses = list(statuses)
        out = Output(self.terminal, self.terminal, {"NO_COLOR": "1"}, width=70)
        loop = asyncio.get_running_loop()
        self.screen = NodeScreen(out, drain=self._drain, clock=loop.time, now=lambda: "14:03")

    def _drain(self) -> None:
        self.drained += 1

    def status(self) -> Status:
        return self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]

    async def run(
        self, seconds: float, meanwhile: Callable[[], Coroutine[object, object, None]] | None = None
    ) -> list[str]:
        """Return the lines that stand on the terminal after so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self.screen.serve())
                    if meanwhile is not None:
                        group.create_task(meanwhile())
        return lines_on(self.terminal)


@pytest.mark.virtual
async def test_the_invite_stands_alone_below_what_the_node_is() -> None:
    scene = Scene(WORKER)
    invite = InviteReply(token="meshd1x", id="00ff", expires_at=86_400, uses=10)
    scene.screen.invite(invite, 0.0, "run `meshd serve --model FILE --join INVITE` elsewhere")
    scene.screen.follow(scene.status)
    lines = await scene.run(0.5)
    assert [line.split(" ")[0] for line in lines[:3]] == ["node", "mesh", "log"]
    assert lines[3:] == [
        "",
        "invite  00ff, for 10 nodes and 24 h; keep it secret",
        "",
        "meshd1x",
        "",
        "run `meshd serve --model FILE --join INVITE` elsewhere",
        "",
        "waiting for a node that serves a model (`meshd serve`)",
    ]
    assert scene.drained == 1
    scene.screen.close()
    assert lines_on(scene.terminal)[-1] == ""


@pytest.mark.virtual
async def test_an_invite_that_goes_elsewhere_is_alone_there() -> None:
    scene, elsewhere = Scene(WORKER), io.StringIO()
    scene.screen = NodeScreen(
        Output(elsewhere, scene.terminal, {"NO_COLOR": "1"}, width=70),
        drain=scene._drain,
        now=lambda: "14:03",
    )
    scene.screen.invite(InviteReply(token="meshd1x", id="00ff", expires_at=86_400, uses=10), 0.0, "run it")
    scene.screen.follow(scene.status)
    lines = await scene.run(0.5)
    assert elsewhere.getvalue() == "meshd1x\n"
    assert "meshd1x" not in "".join(lines) and "standard output" in "".join(lines)


@pytest.mark.virtual
async def test_a_step_that_takes_long_shows_for_how_long_and_then_what_ends_it() -> None:
    hint = HealthWarning(code="model_waiting", severity="info", what="", hint="run `meshd worker`")
    api = full_status().api
    assert api is not None
    waiting = replace(FULL, api=replace(api, ready=False, reason="waiting for workers"), warnings=(hint,))
    scene = Scene(waiting)
    scene.screen.follow(scene.status)
    lines = await scene.run(2.5)
    assert lines[-1] == "waiting for workers" and "hint: run `meshd worker`" not in "\n".join(lines)
    lines = await scene.run(8.0)
    assert lines[-3:-1] == ["14:03   waiting for workers", "        hint: run `meshd worker`"]
    assert lines[-1].startswith("waiting for workers (1")
    assert "\n".join(lines).count("hint:") == 1


@pytest.mark.virtual
async def test_the_time_of_a_step_counts_on_while_lines_are_told() -> None:
    scene = Scene(WORKER, WORKER, WORKER, WORKER, WORKER, replace(WORKER, peers=(PEER,)))
    scene.screen.follow(scene.status)
    lines = await scene.run(6.5)
    assert lines[-2] == "14:03   garage connected: same network, tcp, 1.2 ms"
    assert lines[-1].endswith("(6 s)")


@pytest.mark.virtual
async def test_many_changes_at_once_are_a_few_lines() -> None:
    many = tuple(replace(PEER, id=f"{number:052}", name=f"node-{number}") for number in range(200))
    scene = Scene(FULL, replace(FULL, peers=many))
    scene.screen.follow(scene.status)
    lines = await scene.run(1.5)
    assert sum("connected" in line for line in lines) == MOST_LINES
    assert any(f"and {200 - MOST_LINES} more" in line for line in lines)


@pytest.mark.virtual
async def test_what_is_ready_is_told_below_how_it_was_loaded() -> None:
    scene = Scene(FULL, replace(FULL, model=MODEL))

    async def becomes_ready() -> None:
        await asyncio.sleep(0.5)
        scene.screen.ready("http://127.0.0.1:8090", "http://192.168.1.7:8090")

    scene.screen.follow(scene.status)
    lines = await scene.run(0.9, becomes_ready)
    loaded = next(number for number, line in enumerate(lines) if "SmolLM2 loaded" in line)
    assert [line.strip() for line in lines[loaded + 1 : loaded + 4]] == [
        "ready   chat at http://127.0.0.1:8090",
        "programs: http://127.0.0.1:8090/v1",
        "other devices: http://192.168.1.7:8090",
    ]


@pytest.mark.virtual
async def test_what_a_peer_says_of_itself_moves_nothing() -> None:
    evil = replace(PEER, name="[red]\x1b[2J\u202eevil", link=LINK)
    scene = Scene(replace(FULL, peers=(evil,)))
    scene.screen.follow(scene.status)
    lines = await scene.run(0.5)
    assert any("[red]�[2J�evil connected" in line for line in lines)
    assert all(char.isprintable() for line in lines for char in line)


@pytest.mark.virtual
async def test_before_there_is_a_status_it_shows_what_is_under_way() -> None:
    scene = Scene(FULL)
    assert (await scene.run(0.5))[-1] == "checking this machine"
    scene.screen.looking("looking for the node that made this invite")
    assert (await scene.run(4.5))[-1] == "looking for the node that made this invite (4 s)"
    scene.screen.note("run there: meshd accept CODE")
    assert lines_on(scene.terminal)[-2] == "run there: meshd accept CODE"
    scene.screen.stopping()
    assert lines_on(scene.terminal)[-1] == "stopping"
