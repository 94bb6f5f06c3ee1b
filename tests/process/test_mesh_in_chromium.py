"""The page of the mesh in a real Chromium: what it shows of a mesh, and that everybody can use it."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from meshd.admin.request import Json, to_fields
from meshd.admin.status import ChildView, StorageView
from meshd.gateway.pages import INDEX_NAME
from meshd.model.status import ModelState, SplitPart
from wheels.mesh_page import MESH_FOLDER

from tests.e2e.browser import Scheme, Tab, chromium, expect, needs_chromium, tab
from tests.process import mesh_page_states as states
from tests.process.axe import needs_axe, serious_faults
from tests.process.mesh_page_fake import NO_SESSION, FakeNode, State, look

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.timeout(300),
    needs_chromium,
    pytest.mark.skipif(not (MESH_FOLDER / INDEX_NAME).exists(), reason="`make chat` has not built the page"),
]
ALL_STATES: dict[str, Callable[[], State]] = {
    "empty": states.empty,
    "loading": states.loading,
    "fetching": states.fetching,
    "split": states.split,
    "lost": states.lost,
    "hostile": states.hostile,
    "crowd": states.crowd,
    "lending": states.lending,
}
WIDE, PHONE, ZOOMED = (1280, 800), (360, 640), (640, 400)  # 1280 at 200 % has the room of 640
MOST_BYTES = 60_000
FIRST_PAUSE_MS = 500  # of state.svelte.ts, after which a page asks again
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SMALL_TARGETS = """() => [...document.querySelectorAll('button, nav a, input, select, summary')]
    .filter((one) => one.checkVisibility() && Math.min(one.clientWidth, one.clientHeight) < 24)
    .map((one) => one.outerHTML)"""
UNREACHED = """() => [...document.querySelectorAll('a[href], button, input')]
    .filter((one) => one.checkVisibility() && !window.reached.has(one)).map((one) => one.outerHTML)"""


@contextmanager
def showing(
    browser: "Browser", node: FakeNode, *, size: tuple[int, int] = WIDE, scheme: Scheme = "light"
) -> Iterator[Tab]:
    """The page of this node, once it has a state; it may complain of nothing and ask nobody else."""
    with tab(browser, size=size, scheme=scheme) as opened:
        opened.page.goto(node.url)
        opened.page.get_by_role("heading", name="Recent events").wait_for()
        yield opened
        assert opened.errors == []
        assert opened.foreign == []


@needs_axe
@pytest.mark.parametrize("name", ALL_STATES)
def test_each_state_is_shown_without_faults_on_all_screens(name: str) -> None:
    faults: dict[str, object] = {}

    def see(node: FakeNode) -> None:
        with chromium() as browser:
            for size in (WIDE, PHONE, ZOOMED):
                for scheme in ("light", "dark") if size == WIDE else ("light",):
                    with showing(browser, node, size=size, scheme=scheme) as opened:
                        opened.keep(f"mesh-{name}-{size[0]}-{scheme}")
                        faults[f"axe {size} {scheme}"] = serious_faults(opened.page)
                        faults[f"overflow {size}"] = opened.page.evaluate(OVERFLOW) or None
                        faults[f"small {size}"] = opened.page.evaluate(SMALL_TARGETS)
                        assert opened.page.title() != "taken"

    look(FakeNode([ALL_STATES[name]()]), see)
    assert {place: found for place, found in faults.items() if found} == {}


def test_a_lone_node_says_what_to_do_next() -> None:
    def see(node: FakeNode) -> None:
        with chromium() as browser, showing(browser, node) as opened:
            assert opened.page.get_by_text("No other machine yet: invite one.").is_visible()
            assert opened.page.get_by_text("meshd invite", exact=True).is_visible()
            assert opened.page.get_by_role("group").count() == 0  # no picture of one machine

    look(FakeNode([states.empty()]), see)


def test_the_picture_shows_kinds_of_paths_in_words_and_what_flows() -> None:
    node = FakeNode([states.split(), states.split(30_000_000)], pause=0.7)

    def see(node: FakeNode) -> None:
        with chromium() as browser, showing(browser, node) as opened:
            picture = opened.page.get_by_role("group", name="4 machines and the paths between them")
            expect(picture.locator("path.flow")).to_have_count(2)  # nothing flows to barn
            for words in ("LAN, 1.20 ms", "punched, 34.2 ms", "relayed, 81.0 ms"):
                assert picture.get_by_role("button", name=words).count() == 1
            assert picture.locator("text", has_text="MB/s").count() >= 2
            dashes = picture.locator("path.line").evaluate_all(
                "lines => lines.map((line) => getComputedStyle(line).strokeDasharray)"
            )
            assert len(set(dashes)) == 3
            moving = picture.locator("path.flow").first.evaluate(
                "flow => getComputedStyle(flow).animationName"
            )
            assert moving == "none"  # tab() asks for less motion

    look(node, see)


def test_the_split_says_layers_bytes_and_memory_and_asks_for_that_of_others() -> None:
    device: dict[str, Json] = {
        "free_bytes": 2 << 30,
        "total_bytes": 8 << 30,
        "weight_bytes_s": None,
        "flops": None,
    }
    capacity: Json = {
        "devices": [{"node": "attic", "device": "CUDA0", **device}],
        "paths": [],
        "left_out": [],
        "unmeasured": [{"node": "garage", "why": "it has a model loaded"}],
        "storage": [],
    }
    node = FakeNode([states.split()], answers={"capacity": capacity})

    def see(node: FakeNode) -> None:
        with chromium() as browser, showing(browser, node) as opened:
            table = opened.page.get_by_role("table", name="The split of qwen3-14b-q4")
            attic = table.get_by_role("row", name="attic CUDA0")
            assert "14" in attic.inner_text() and "2.8 GB" in attic.inner_text()
            assert "3.0 GiB of 8.0 GiB free" in table.get_by_role("row", name="desk").inner_text()
            assert opened.page.get_by_text("meshd capacity", exact=True).is_visible()
            opened.page.get_by_role("button", name="Check memory on all machines").click()
            attic.get_by_text("2.0 GiB of 8.0 GiB free").wait_for()
            assert opened.page.get_by_text("garage: it has a model loaded").is_visible()
        assert node.acted == [("capacity", {})]

    look(node, see)


def test_a_load_is_shown_for_each_worker() -> None:
    def see(node: FakeNode) -> None:
        with chromium() as browser, showing(browser, node) as opened:
            bars = {name: opened.page.get_by_role("progressbar", name=name) for name in ("attic", "garage")}
            shares = {name: float(bar.evaluate("bar => bar.position")) for name, bar in bars.items()}
            assert shares == {"attic": 1.0, "garage": pytest.approx(0.44375)}
            assert opened.page.get_by_text("310.0 MB of 1.2 GB over the network").is_visible()

    look(FakeNode([states.loading()]), see)


def test_requests_and_the_history_are_told_in_words() -> None:
    def see(node: FakeNode) -> None:
        with chromium() as browser, showing(browser, node) as opened:
            rows = opened.page.get_by_role("table", name="Requests").get_by_role("row").all_inner_texts()
            assert len(rows) == 4
            assert "answering" in rows[1] and "18.7" in rows[1] and "312" in rows[1]
            assert "waits for a free slot" in rows[3]
            assert opened.page.get_by_role("img", name="18.0").count() == 1

    look(FakeNode([states.split()]), see)


def test_all_is_reached_by_the_keyboard_and_a_machine_opens_its_row() -> None:
    def see(node: FakeNode) -> None:
        with chromium() as browser, showing(browser, node) as opened:
            page = opened.page
            page.evaluate(
                "window.reached = new Set(); addEventListener('focusin', ({target}) => reached.add(target))"
            )
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.textContent").strip() == "Skip to content"
            for _ in range(60):
                page.keyboard.press("Tab")
            assert page.evaluate(UNREACHED) == []
            page.get_by_role("group").get_by_role("button", name="barn").focus()
            page.keyboard.press("Enter")
            row = page.get_by_role("button", name="barn", expanded=True)
            expect(row).to_be_focused()
            assert page.get_by_text("both NATs map each address to another port").is_visible()

    look(FakeNode([states.split()]), see)


def test_the_views_are_places_that_a_browser_remembers() -> None:
    def see(node: FakeNode) -> None:
        with chromium() as browser, showing(browser, node) as opened:
            page = opened.page
            machines = page.get_by_role("link", name="Machines")
            expect(machines).to_have_attribute("aria-current", "page")
            page.get_by_role("link", name="Logs").first.click()
            page.wait_for_url("**/mesh#logs")
            expect(page).to_have_title("Logs: desk")  # the address changes before the page hears of it
            expect(machines).not_to_have_attribute("aria-current", "page")
            page.go_back()
            expect(page).to_have_title("Machines: desk")
            expect(machines).to_have_attribute("aria-current", "page")

    look(FakeNode([states.split()], answers={"logs": {"lines": ["a line"], "logs": ["meshd"]}}), see)


def test_without_a_session_it_says_what_to_run() -> None:
    def see(node: FakeNode) -> None:
        with chromium() as browser, tab(browser) as opened:
            opened.page.goto(node.url)
            opened.page.get_by_text("meshd ui", exact=True).wait_for()
            opened.page.goto(f"{node.url}#refused")
            opened.page.reload()
            opened.page.get_by_text("That link was already used").wait_for()
            opened.page.wait_for_timeout(2 * FIRST_PAUSE_MS)
            assert node.streams == 2  # it does not ask again by itself

    look(FakeNode([], refuses=NO_SESSION), see)


def test_a_key_is_asked_for_and_kept_while_the_tab_is_open() -> None:
    def see(node: FakeNode) -> None:
        with chromium() as browser, tab(browser) as opened:
            page = opened.page
            page.goto(node.url)
            page.get_by_label("API key").fill("k-wrong")
            page.get_by_role("button", name="Use this key").click()
            page.get_by_text("the API key is missing or wrong").wait_for()
            page.get_by_label("API key").fill("k-right")
            page.keyboard.press("Enter")
            page.get_by_role("heading", name="4 machines").wait_for()
            page.reload()
            page.get_by_role("heading", name="4 machines").wait_for()

    look(FakeNode([states.split()], key="k-right"), see)


def test_machines_of_one_name_are_told_apart() -> None:
    twins = [replace(states.peer("attic", "lan", number=at)) for at in (1, 2)]
    label = f"attic ({twins[1].id[:10]})"
    split = [states.SPLIT[0], SplitPart(label, "CUDA0", 14, 2_800_000_000)]
    found = replace(states.status(twins), model=states.model(ModelState.READY, split=split))

    def see(node: FakeNode) -> None:
        with chromium() as browser, showing(browser, node) as opened:
            table = opened.page.get_by_role("table", name="The machines, and what is known about each")
            rows = [table.get_by_role("row", name=twin.id[:10]).inner_text() for twin in twins]
            assert ["14 layers" in row for row in rows] == [False, True]

    look(FakeNode([states.shown(found)]), see)


def test_a_lost_node_is_said_and_found_again() -> None:
    node = FakeNode([states.split()], ends=True)

    def see(node: FakeNode) -> None:
        with chromium() as browser, tab(browser) as opened:
            opened.page.goto(node.url)
            opened.page.get_by_role("heading", name="4 machines").wait_for()
            node.refuses = (503, {"error": {"message": "busy", "hint": "", "code": "busy"}})
            opened.page.get_by_text("The node has not answered for").wait_for()
            assert opened.page.get_by_role("heading", name="4 machines").is_visible()
            node.refuses, node.states, node.ends = None, [states.crowd()], False
            opened.page.get_by_role("heading", name="30 machines").wait_for()
            expect(opened.page.get_by_text("The node has not answered for")).to_be_hidden()

    look(node, see)


def test_a_worker_dies_and_comes_back_while_somebody_looks() -> None:
    node = FakeNode([states.split()], ends=True)

    def see(node: FakeNode) -> None:
        with chromium() as browser, showing(browser, node) as opened:
            page = opened.page
            machines = page.get_by_role("table", name="The machines, and what is known about each")
            garage = machines.get_by_role("row", name=re.compile("^garage"))
            picture = page.get_by_role("group").get_by_role("button", name="garage")
            assert "connected" in garage.inner_text() and "8 layers" in garage.inner_text()
            opened.keep("worker-1-there")
            # It dies: where it was, why, and what the model does.
            node.states = [states.lost()]
            garage.get_by_text("lost").wait_for()
            assert "no answer for 30 s" in garage.inner_text() and "8 layers" not in garage.inner_text()
            assert "lost" in picture.inner_text() and "punched" not in picture.inner_text()
            assert page.get_by_role("heading", name="qwen3-14b-q4").inner_text().endswith("degraded")
            page.get_by_text("the model is loaded anew without it").first.wait_for()
            assert page.get_by_role("heading", name="Needs attention").is_visible()
            opened.keep("worker-2-lost")
            # It comes back, and loads.
            node.states = [states.loading()]
            garage.get_by_text("loading 44%").wait_for()
            opened.keep("worker-3-loading")
            node.states = [states.split()]
            garage.get_by_text("8 layers").wait_for()
            assert "punched" in picture.inner_text()
            assert page.get_by_role("heading", name="Needs attention").count() == 0
            opened.keep("worker-4-back")

    look(node, see)


def test_this_machine_tells_what_status_tells_of_it() -> None:
    told = replace(
        states.status(),
        storage=StorageView(
            path="/c", free_bytes=8 * 10**9, cache_room_bytes=10**9, models=3, models_bytes=9 * 10**9
        ),
        children=(ChildView(name="llama-server", pid=7, state="running", restarts=0),),
    )

    def see(node: FakeNode) -> None:
        with chromium() as browser, showing(browser, node) as opened:
            opened.page.get_by_role("button", name="desk").click()
            for text in (
                "8.0 GB free; room for 1.0 GB of weights; 3 models, 9.0 GB",
                "llama-server: running",
                "10 min, 55 MiB",
                "192.168.1.4:17430",
                "5vesrrri2h, 1 member; this node may: use",
            ):
                expect(opened.page.get_by_text(text, exact=True)).to_be_visible()

    look(FakeNode([states.shown(told)]), see)


@pytest.mark.parametrize(
    ("served", "word"),
    [
        (("unloaded", "failed", "ready"), "ready"),
        (("unloaded", "failed", "loading"), "loading"),
        (("unloaded", "failed"), "failed"),
        (("unloaded",), "ready"),  # it is loaded when somebody asks
    ],
)
def test_of_several_models_the_state_of_one_is_that_of_the_node(served: tuple[str, ...], word: str) -> None:
    models = tuple(replace(states.model(ModelState(state)), name=state) for state in served)

    def see(node: FakeNode) -> None:
        with chromium() as browser, showing(browser, node) as opened:
            assert opened.page.locator("header .state").inner_text().strip() == word

    look(FakeNode([states.shown(replace(states.status(), model=models[0], models=models))]), see)


def test_nothing_that_a_member_says_runs_or_turns_its_neighbours_around() -> None:
    def see(node: FakeNode) -> None:
        with chromium() as browser, showing(browser, node) as opened:
            assert opened.page.locator("img").count() == 0
            assert opened.page.get_by_role("rowheader", name=states.HOSTILE).count() >= 2
            assert "\u202e" not in opened.page.locator("body").inner_text()
            opened.page.get_by_role("group").get_by_role("button").nth(1).click()
            assert opened.page.title() == f"Machines: {states.HOSTILE}"

    look(FakeNode([states.hostile()]), see)


def test_numbers_that_change_move_nothing() -> None:
    first, second = states.split(), states.split(7)
    changed = replace(states.status(states.PEERS).peers[1].link or pytest.fail("no link"), rtt_ms=41.7)
    second["status"]["peers"][1]["link"] = to_fields(changed)  # type: ignore[index,call-overload]
    watch = """() => {
        window.shifts = [];
        window.observer = new PerformanceObserver((list) => shifts.push(...list.getEntries()));
        observer.observe({ type: 'layout-shift' });
    }"""
    shifts = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
        done([...shifts, ...observer.takeRecords()].map((shift) => shift.value));
    })))"""

    def see(node: FakeNode) -> None:
        with chromium() as browser, showing(browser, node) as opened:
            opened.page.evaluate(watch)
            node.show(second)
            opened.page.get_by_role("group").get_by_role("button", name="41.7 ms").wait_for()
            assert opened.page.evaluate(shifts) == []

    look(FakeNode([first, first]), see)


def test_a_first_visit_is_small() -> None:
    def see(node: FakeNode) -> None:
        with chromium() as browser, showing(browser, node):
            assert node.sent_bytes <= MOST_BYTES

    look(FakeNode([states.split()]), see)
