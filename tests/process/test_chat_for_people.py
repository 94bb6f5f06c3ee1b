"""The chat page for its users, in a real Chromium: by keyboard, with little room, and with several models.

Accessibility is judged by axe-core, which `make chat` leaves among the packages that the page is built with.
"""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from meshd.gateway.interface import Readiness
from meshd.gateway.pages import CHAT_FOLDER, load_page
from meshd.model.status import ModelState

from tests.e2e.browser import Scheme, chromium, expect, needs_chromium, tab
from tests.process.gateway_fake import (
    DONE,
    Answer,
    FakeServer,
    ManyWorld,
    World,
    begin_stream,
    chunk,
    last_chunk,
    many_world,
    world,
)
from tests.process.test_chat_in_chromium import DOES, PROPS, look, writes

if TYPE_CHECKING:
    from playwright.sync_api import FilePayload, Page

pytestmark = [
    pytest.mark.timeout(300),
    needs_chromium,
    pytest.mark.skipif(not CHAT_FOLDER.exists(), reason="`make chat` has not built the page"),
]
PACKAGES = Path(__file__).parents[2] / "build/chat-page/source/node_modules"
AXE = PACKAGES / "axe-core/axe.min.js"
TEXT = """# Title

Text with `code`, **bold**, [a link](#x) and $a^2 + b_1$.

| a | b |
|---|---|
| 1 | `two` |

```python
def f(x):  # comment
    return "s" + str(x)
```

> quoted

The end.
"""
FIRST_VISIT_BYTES = 600_000
BYTES = """() => [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
    .reduce((sum, entry) => sum + entry.transferSize, 0)"""
HOSTILE = f'<img src=x onerror="{DOES}">'
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c63f8cfc0f01f0005"
    "0001ffa2dcc2360000000049454e44ae426082"
)


def ask(page: "Page") -> None:
    page.get_by_role("textbox", name="Type a message").fill("hello")
    page.locator("button:enabled", has_text="Send").wait_for()
    page.keyboard.press("Enter")


@pytest.mark.skipif(not AXE.exists(), reason="`make chat` has not run here, which brings axe-core")
@pytest.mark.parametrize(
    ("scheme", "size"),
    [("light", (1280, 800)), ("dark", (1280, 800)), ("light", (360, 740)), ("dark", (640, 400))],
)
def test_everybody_can_use_it(scheme: Scheme, size: tuple[int, int]) -> None:
    """The third is a small phone, the last a screen at 200 %."""

    def faults(page: "Page") -> list[tuple[str, str]]:
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found: Any = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        return [(fault["id"], node["html"][:200]) for fault in found["violations"] for node in fault["nodes"]]

    def see(here: World, _evil: object) -> None:
        with chromium() as browser, tab(browser, scheme=scheme, size=size) as opened:
            page = opened.page
            page.goto(here.url)
            page.get_by_role("textbox", name="Type a message").wait_for()
            assert faults(page) == []
            page.get_by_role("textbox", name="Type a message").fill("hello")
            page.get_by_role("button", name="Send").click()
            page.get_by_text("The end.").wait_for()
            page.locator(".hljs-keyword").first.wait_for()
            page.locator(".katex").first.wait_for()
            opened.keep(f"people-{scheme}-{size[0]}")
            assert faults(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            assert opened.errors == []

    look(TEXT, see)


def endless() -> Answer:
    """Answer each chat with words, until the client goes or `let_go`."""

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if not request.path.endswith("/completions"):
            return web.json_response(PROPS)
        response = await begin_stream(request)
        await response.write(chunk("some words"))
        await server.let_go.wait()
        await response.write(last_chunk(2) + DONE)
        return response

    return answer


def look_at_endless(see: Callable[[World, Callable[[], object]], None]) -> None:
    """Look, in a thread, at the page of a node whose answers end when `see` calls its second argument."""

    async def scenario() -> None:
        async with world(endless(), page=load_page(), seconds=200) as here:
            loop = asyncio.get_running_loop()
            await asyncio.to_thread(see, here, partial(loop.call_soon_threadsafe, here.server.let_go.set))
            await here.until_idle()

    asyncio.run(scenario())


def answered_in_part(page: "Page", url: str) -> None:
    """Open the page, ask, and see the beginning of the answer."""
    page.goto(url)
    ask(page)
    page.get_by_text("some words").wait_for()


def test_a_keyboard_sends_stops_and_begins_a_new_chat() -> None:
    def see(here: World, _let_go: object) -> None:
        with chromium() as browser, tab(browser) as opened:
            page = opened.page
            answered_in_part(page, here.url)
            stop = page.get_by_role("button", name="Stop", exact=True)
            stop.press("Enter")  # at once: the page moves the focus when an answer begins
            stop.wait_for(state="hidden")
            page.keyboard.press("Control+Shift+O")
            page.get_by_text("some words").wait_for(state="hidden")
            page.get_by_role("textbox", name="Type a message").wait_for()
            assert opened.errors == []

    look_at_endless(see)


# the next write to the conversations is held, and <html> says `data-held`, until that attribute is removed
_HOLD = """() => {
  const commit = IDBTransaction.prototype.commit, page = document.documentElement;
  IDBTransaction.prototype.commit = function () {
    const isOther = !this.objectStoreNames.contains("conversations");
    if (isOther || this.mode !== "readwrite") return commit.call(this);
    IDBTransaction.prototype.commit = commit;
    const store = this.objectStore("conversations");
    const hold = () => {
      if ("held" in page.dataset) store.count().onsuccess = hold;
      else commit.call(this);
    };
    store.count().onsuccess = hold;
    page.dataset.held = "";
  };
}"""
_LET_GO = """() => new Promise((done, failed) => {
  delete document.documentElement.dataset.held;
  const opening = indexedDB.open("LlamaUi");
  opening.onerror = failed;
  opening.onsuccess = () => {
    const last = opening.result.transaction("conversations", "readwrite");
    last.objectStore("conversations").count();
    last.oncomplete = () => requestAnimationFrame(() => setTimeout(done));
  };
})"""


def test_a_new_chat_may_begin_while_the_end_of_an_answer_is_stored() -> None:
    """No conversation is active then. Upstream's page expected one to be, and showed an error."""

    def see(here: World, _let_go: object) -> None:
        with chromium() as browser, tab(browser) as opened:
            page = opened.page
            answered_in_part(page, here.url)
            page.evaluate(_HOLD)
            stop = page.get_by_role("button", name="Stop", exact=True)
            stop.press("Enter")
            page.locator("html[data-held]").wait_for(state="attached")
            page.keyboard.press("Control+Shift+O")
            page.get_by_text("some words").wait_for(state="hidden")
            page.evaluate(_LET_GO)
            assert opened.errors == []
            assert page.get_by_role("alertdialog").count() == 0

    look_at_endless(see)


def test_a_queued_message_is_sent_in_its_own_chat() -> None:
    """Upstream's page sent it in the one that was open when the answer had ended."""

    def see(here: World, let_go: Callable[[], object]) -> None:
        with chromium() as browser, tab(browser) as opened:
            page = opened.page
            answered_in_part(page, here.url)
            box = page.get_by_role("textbox", name="Type a message")
            box.fill("and then?")
            box.press("Enter")
            page.get_by_text("and then?").wait_for()
            opened.keep("waits")
            page.keyboard.press("Control+Shift+O")
            page.get_by_text("some words").wait_for(state="hidden")
            let_go()
            expect(page.locator(".stop-button")).to_have_count(0)  # of the tab of that chat
            page.get_by_role("link", name="hello").first.click()
            expect(page.get_by_text("some words")).to_have_count(2)
            chats = [
                json.loads(body) for _, path, _, body in here.server.seen if path.endswith("/completions")
            ]
            said = [[message["content"] for message in chat["messages"]] for chat in chats]
            assert said == [["hello"], ["hello", "some words", "and then?"]]
            assert opened.errors == []

    look_at_endless(see)


def test_the_page_of_the_mesh_is_one_click_away() -> None:
    def see(here: World, _evil: object) -> None:
        with chromium() as browser, tab(browser) as opened:
            opened.page.goto(here.url)
            opened.page.get_by_role("button", name="Mesh").click()
            opened.page.wait_for_url(f"{here.url}/mesh")

    look("", see)


def test_the_first_visit_is_small_and_the_next_one_smaller() -> None:
    def see(here: World, _evil: object) -> None:
        with chromium() as browser, tab(browser) as opened:
            seen = []
            for _ in range(2):
                opened.page.goto(here.url)
                opened.page.get_by_role("textbox", name="Type a message").wait_for()
                opened.page.wait_for_load_state("networkidle")
                seen.append(int(opened.page.evaluate(BYTES)))
            assert 100_000 < seen[0] <= FIRST_VISIT_BYTES and seen[1] <= 10_000

    look("", see)


def test_a_model_that_loads_is_no_error() -> None:
    def see(here: World, _evil: object) -> None:
        with chromium() as browser, tab(browser) as opened:
            opened.page.goto(here.url)
            opened.page.get_by_role("status").filter(has_text="hashing").wait_for()
            with opened.page.expect_response("**/props*"):  # it asks again
                pass
            assert opened.errors == []

    look("", see, readiness=Readiness(ModelState.LOADING, "hashing 3 of 17 GB"))


@pytest.mark.parametrize("sees", [True, False])
def test_pictures_are_for_models_that_see(sees: bool) -> None:
    props = {**PROPS, "modalities": {"vision": sees, "audio": False, "video": False}}

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/props":
            return web.json_response(props)
        return await writes("The end.")(server, request)

    def see(here: World) -> None:
        with chromium() as browser, tab(browser) as opened:
            page = opened.page
            page.goto(here.url)
            page.get_by_role("textbox", name="Type a message").fill("what is this?")
            picture: FilePayload = {"name": "dot.png", "mimeType": "image/png", "buffer": PIXEL}
            page.locator("input[type=file]").first.set_input_files([picture])
            if not sees:
                page.get_by_text("Images require a vision-capable model").first.wait_for()
                opened.keep("no-pictures")
                return
            page.get_by_role("button", name="Send").click()
            page.get_by_text("The end.").wait_for()
            assert opened.errors == []

    async def scenario() -> None:
        async with world(answer, page=load_page(), seconds=200) as here:
            await asyncio.to_thread(see, here)
            bodies = [body for _, path, _, body in here.server.seen if path.endswith("/completions")]
            assert [b"data:image/png;base64," in body for body in bodies] == [True] * sees

    asyncio.run(scenario())


# Several models.


_TRIES, _TRY_MS = 6, 5000


def pick(page: "Page", now: str, wanted: str) -> None:
    """Choose a model with the keyboard alone.

    A page that is not yet alive opens no list, and a new chat, which moves the focus to its message a tenth
    of a second later, closes one that has just been opened.
    """
    from playwright.sync_api import TimeoutError as NotYet

    button = page.get_by_role("button", name=now, exact=True).last  # answers have such buttons, too
    search, found = page.get_by_placeholder("Search models..."), page.get_by_role("option")
    for left in reversed(range(_TRIES)):
        try:
            if not search.is_visible():
                button.press("Enter", timeout=_TRY_MS)
            search.fill(wanted, timeout=_TRY_MS)
            expect(found).to_have_count(1, timeout=_TRY_MS)  # until then the first is another
            for key in ("ArrowDown", "Enter"):
                search.press(key, timeout=_TRY_MS)
        except (NotYet, AssertionError):
            if not left:
                raise
        else:
            return


def test_a_keyboard_picks_a_model_which_is_seen_to_load_and_answers() -> None:
    def see(here: ManyWorld, loop: asyncio.AbstractEventLoop) -> None:
        model = here.models["tiny"]

        def becomes(state: ModelState, progress: float | None) -> None:
            model.state, model.progress = state, progress
            if state is ModelState.READY:
                model.granted.set()

        with chromium() as browser, tab(browser) as opened:
            page = opened.page
            page.goto(here.gateway.url)
            pick(page, "smol", "tiny")
            loop.call_soon_threadsafe(becomes, ModelState.LOADING, 0.4)
            page.locator("[style*='width: 40%']").first.wait_for()
            opened.keep("model-loads")
            loop.call_soon_threadsafe(becomes, ModelState.READY, None)
            page.get_by_text("Model loaded: tiny").wait_for()
            ask(page)
            page.get_by_text("of tiny").wait_for()
            assert opened.errors == []

    async def scenario() -> None:
        answers = {"smol": writes("of smol"), "tiny": writes("of tiny")}
        async with many_world(answers, page=load_page(), seconds=200) as here:
            here.models["tiny"].state = ModelState.UNLOADED
            await asyncio.to_thread(see, here, asyncio.get_running_loop())

    asyncio.run(scenario())


def test_names_of_models_and_files_are_text() -> None:
    other = f"[x](javascript:{DOES})/../{HOSTILE}"

    def see(here: ManyWorld) -> None:
        with chromium() as browser, tab(browser) as opened:
            page = opened.page
            page.goto(here.gateway.url)
            page.get_by_text(HOSTILE).first.click()
            page.get_by_role("option").nth(1).wait_for()
            opened.keep("hostile-models")
            page.keyboard.press("Escape")
            page.keyboard.press("Escape")
            page.get_by_role("textbox", name="Type a message").fill("look")
            note: FilePayload = {"name": f"{HOSTILE}.txt", "mimeType": "text/plain", "buffer": b"words"}
            page.locator("input[type=file]").first.set_input_files([note])
            page.get_by_text("onerror=").last.wait_for()
            page.get_by_role("button", name="Send").click()
            page.get_by_text("The end.").wait_for()
            opened.keep("hostile-names")
            assert page.title() != "taken" and page.locator("img[src=x]").count() == 0

    async def scenario() -> None:
        answers = {HOSTILE: writes("The end."), other: writes("The end.")}
        async with many_world(answers, page=load_page(), seconds=200) as here:
            for model in here.models.values():
                model.granted.set()
            await asyncio.to_thread(see, here)

    asyncio.run(scenario())
