"""The saved page in a real Chromium: it reaches a node through a relay, and answers survive a lost channel.

Page, relay, node and gateway are real; the model is not.
"""

import asyncio
import contextlib
import gzip
import json
import re
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from meshd.gateway.browser_bridge import BrowserApi
from meshd.gateway.pages import MESH_FOLDER, PageFile, remote_page
from meshd.identity.invite import Invite, encode_token, parse_token
from meshd.link.browser.port import BrowserPort
from meshd.link.tcp.links import TcpListener

from tests.conformance.browsers import desk
from tests.conformance.relays import House, house
from tests.conformance.run import run
from tests.e2e.browser import WEBRTC, Scheme, Tab, chromium, expect, needs_chromium, tab
from tests.process import mesh_page_states
from tests.process.axe import needs_axe, serious_faults
from tests.process.gateway_fake import DONE, Answer, FakeServer, World, begin_stream, chunk, last_chunk, world

if TYPE_CHECKING:
    from playwright.sync_api import Dialog, Page

PACKED = MESH_FOLDER / "remote.html.gz"
pytestmark = [
    pytest.mark.timeout(300),
    needs_chromium,
    pytest.mark.skipif(not PACKED.exists(), reason="`make chat` has not built the page"),
]
States = Callable[[], AsyncGenerator[bytes, None]]
WORDS = [f"word{number:03}" for number in range(60)]
# What a cut does: all connections are gone at once, and no new one comes about until it is over.
CUTTER = """
    window.made = [];
    window.isCut = false;
    for (const name of ['RTCPeerConnection', 'WebSocket']) {
        const Real = window[name];
        window[name] = class extends Real {
            constructor(...given) {
                if (window.isCut) throw new Error('the network is cut');
                super(...given);
                window.made.push(this);
            }
        };
    }
    window.cut = () => { window.isCut = true; for (const one of window.made.splice(0)) one.close(); };
"""


async def nothing_to_show() -> AsyncGenerator[bytes, None]:
    await asyncio.Event().wait()
    yield b""


def showing(state: mesh_page_states.State) -> States:
    """Return a source of this one state."""

    async def states() -> AsyncGenerator[bytes, None]:
        yield f"event: state\ndata: {json.dumps(state)}\n\n".encode()
        await asyncio.Event().wait()

    return states


@dataclass
class Scene:
    """A node that pages can reach, and what a page needs to know of it.

    `url`: the page at its mesh port, with the invite as a QR code has it; `shut` closes that port.
    """

    here: World
    invite: str
    home: House
    page: Path
    url: str
    shut: Callable[[], object]

    def open(self, page: "Page") -> None:
        page.add_init_script(CUTTER)
        page.goto(self.page.as_uri())

    def enter(self, page: "Page") -> None:
        """Give the page the invite, and wait for the link."""
        self.open(page)
        page.get_by_label("Invite").fill(self.invite)
        page.get_by_role("button", name="Connect").click()
        page.locator("header").get_by_text("Connected ").wait_for()


def ask(page: "Page", question: str) -> None:
    page.get_by_label("Question").fill(question)
    page.get_by_role("button", name="Send").click()


def slowly(seconds: float) -> Answer:
    """Answer each chat with all WORDS, so many seconds apart."""

    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        for word in WORDS:
            await response.write(chunk(f"{word} "))
            await asyncio.sleep(seconds)
        await response.write(last_chunk(len(WORDS)) + DONE)
        return response

    return answer


def writes(text: str) -> Answer:
    """Answer each chat with this text, in pieces that respect nothing."""

    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        for at in range(0, len(text), 7):
            await response.write(chunk(text[at : at + 7]))
        await response.write(last_chunk(len(text) // 7) + DONE)
        return response

    return answer


def look(
    answer: Answer,
    see: Callable[[Scene], None],
    folder: Path,
    *,
    direct: bool = True,
    states: States = nothing_to_show,
) -> None:
    """Let `see`, in a thread, look at the page before a node with such a model and such states."""

    async def work() -> None:
        async with house() as home, world(answer, seconds=280) as here, contextlib.AsyncExitStack() as held:
            home.start()
            ann = await desk(home, direct=direct)
            api = BrowserApi(here.gateway, states)
            serving = home.owner.start(api.serve(), name="browsers")
            ann.browsers.serve_channel = api.serve_browser
            held.callback(serving.cancel)
            invite = Invite(home.mesh.mesh, ann.party.node.peer, b"b" * 16, 1 << 33, (), (home.hint,))
            saved = folder / "saved.html"
            saved.write_bytes(gzip.decompress(PACKED.read_bytes()))
            token = encode_token(invite)
            port = BrowserPort(ann.browsers, lambda: True)
            port.read_page = partial(asyncio.to_thread, remote_file().plain_response)
            listener = TcpListener(ann.party.node.now, host="127.0.0.1")
            listener.visitors = port
            listener.open()
            listening = home.owner.start(listener.serve(_no_links), name="mesh port")
            held.callback(listening.cancel)
            shut = partial(asyncio.get_running_loop().call_soon_threadsafe, listening.cancel)
            url = f"http://127.0.0.1:{listener.port}/#{token.upper()}"
            await asyncio.to_thread(see, Scene(here, token, home, saved, url, shut))

    run(work(), seconds=290)


async def _no_links(_link: object) -> None:
    raise AssertionError("no node comes to this port")


def remote_file() -> PageFile:
    page = remote_page()
    assert page is not None
    return page


def test_a_scanned_qr_code_is_all_that_a_phone_needs(tmp_path: Path) -> None:
    def see(scene: Scene) -> None:
        with chromium(*WEBRTC) as browser, tab(browser, size=(390, 844)) as opened:
            page = opened.page
            page.goto(scene.url)
            page.get_by_text("Connected ").wait_for()
            assert page.url == scene.url.partition("#")[0]
            ask(page, "tell me")
            page.get_by_text("word059").wait_for()
            assert {asked.partition("#")[0] for asked in opened.asked} == {page.url}
            assert opened.errors == []

    look(slowly(0.0), see, tmp_path)


def test_a_page_of_the_network_works_elsewhere(tmp_path: Path) -> None:
    """The browser has kept the page, and its invite names a relay."""

    def see(scene: Scene) -> None:
        with chromium(*WEBRTC) as browser, tab(browser) as opened:
            page = opened.page
            page.goto(scene.url)
            page.get_by_text("Connected ").wait_for()
            page.goto("about:blank")
            scene.shut()
            page.goto(scene.url.partition("#")[0])
            page.get_by_text("Connected ").wait_for()
            ask(page, "tell me")
            page.get_by_text("word059").wait_for()

    look(slowly(0.0), see, tmp_path)


def test_another_invite_in_the_same_page_takes_the_place_of_the_first(tmp_path: Path) -> None:
    def see(scene: Scene) -> None:
        with chromium(*WEBRTC) as browser, tab(browser) as opened:
            page = opened.page
            page.goto(scene.url.partition("#")[0])
            page.get_by_label("Invite").wait_for()
            page.goto(scene.url)  # changes the fragment alone, and loads nothing
            page.get_by_text("Connected ").wait_for()
            assert "#" not in page.url
            page.goto(f"{scene.url[:-3]}abc")
            page.get_by_role("alert").filter(has_text="damaged").wait_for()

    look(slowly(0.0), see, tmp_path)


@pytest.mark.parametrize("direct", [True, False])
def test_a_stream_survives_ten_seconds_without_a_connection(direct: bool, tmp_path: Path) -> None:
    def see(scene: Scene) -> None:
        with chromium(*WEBRTC) as browser, tab(browser) as opened:
            page = opened.page
            scene.enter(page)
            way = "directly" if direct else "through a relay"
            page.get_by_text(f"Connected {way}").wait_for()
            ask(page, "tell me")
            page.get_by_text("word005").wait_for()
            page.evaluate("cut()")
            page.get_by_text("Reconnecting").wait_for()
            opened.keep(f"remote-cut-{direct}")
            page.wait_for_timeout(10_000)
            before = page.locator(".answer").inner_text().split()
            page.evaluate("() => { window.isCut = false }")
            page.get_by_text(f"{len(WORDS)} tokens").wait_for()
            page.get_by_text(re.compile(r"Connected .*, \d+ ms")).wait_for()
            page.locator(".answer").filter(has_text=WORDS[-1]).wait_for()
            opened.keep(f"remote-whole-{direct}")
            after = page.locator(".answer").inner_text().split()
            assert len(before) < len(WORDS) and after == WORDS  # all of it, and each word once
            assert opened.foreign == []
        assert len(scene.here.server.asked()) == 1 and scene.here.server.cancelled == 0

    look(slowly(0.4), see, tmp_path, direct=direct)


def test_the_page_comes_back_without_being_asked(tmp_path: Path) -> None:
    """The browser keeps the invite and its key; forgotten, it asks again."""

    def see(scene: Scene) -> None:
        with chromium(*WEBRTC) as browser, tab(browser) as opened:
            page = opened.page
            scene.enter(page)
            page.reload()
            page.locator("header").get_by_text("Connected ").wait_for()
            ask(page, "one")
            page.get_by_text("word059").wait_for()
            ask(page, "two")
            page.get_by_text("word059").nth(1).wait_for()
            asked = scene.here.server.asked()[-1]["messages"]
            assert [message["role"] for message in asked] == ["user", "assistant", "user"]
            page.get_by_role("button", name="Forget").click()
            page.get_by_label("Invite").wait_for()
            page.reload()
            page.get_by_label("Invite").wait_for()
            assert opened.errors == []

    look(slowly(0.0), see, tmp_path)


def test_nothing_that_a_member_says_turns_its_neighbours_around(tmp_path: Path) -> None:
    def see(scene: Scene) -> None:
        with chromium(*WEBRTC) as browser, tab(browser) as opened:
            scene.enter(opened.page)
            opened.page.get_by_role("link", name="Machines").click()
            opened.page.get_by_role("rowheader", name=mesh_page_states.HOSTILE).first.wait_for()
            opened.page.evaluate(DRAWN)  # the picture comes after the table
            assert "\u202e" not in opened.page.locator("body").inner_text()
            assert opened.page.locator("main img").count() == 0 and opened.page.title() != "taken"

    look(slowly(0.0), see, tmp_path, states=showing(mesh_page_states.hostile()))


def test_stop_ends_the_answer_at_the_node(tmp_path: Path) -> None:
    def see(scene: Scene) -> None:
        with chromium(*WEBRTC) as browser, tab(browser) as opened:
            scene.enter(opened.page)
            ask(opened.page, "tell me")
            opened.page.get_by_text("word001").wait_for()
            opened.page.get_by_role("button", name="Stop").click()
            opened.page.get_by_text("Stopped.").wait_for()
            deadline = time.monotonic() + 20
            while scene.here.server.cancelled == 0:
                assert time.monotonic() < deadline
                opened.page.wait_for_timeout(50)

    look(slowly(1.0), see, tmp_path)


def test_a_link_with_another_invite_does_not_replace_the_kept_one_unasked(tmp_path: Path) -> None:
    """Any page can link here with an invite of its own: its node would read what is asked."""
    kept = "() => JSON.parse(localStorage.getItem('meshd-invite')).token"

    def see(scene: Scene) -> None:
        other = encode_token(replace(parse_token(scene.invite), secret=b"o" * 16))
        with chromium(*WEBRTC) as browser, tab(browser) as opened:
            page, asked = opened.page, list[str]()
            scene.enter(page)

            def refuse(dialog: "Dialog") -> None:
                asked.append(dialog.message)
                dialog.dismiss()

            page.once("dialog", refuse)
            page.goto("about:blank")
            page.goto(f"{scene.page.as_uri()}#{other}")
            page.get_by_text("Connected ").wait_for()
            assert (
                "different invite" in asked[0] and page.evaluate(kept) == scene.invite and "#" not in page.url
            )
            page.once("dialog", lambda dialog: dialog.accept())
            page.goto("about:blank")
            page.goto(f"{scene.page.as_uri()}#{other}")
            page.get_by_text("does not answer").wait_for()
            assert page.evaluate(kept) == other

    look(slowly(0.0), see, tmp_path)


def test_an_invite_in_the_address_is_taken_and_a_wrong_one_is_explained(tmp_path: Path) -> None:
    def see(scene: Scene) -> None:
        with chromium(*WEBRTC) as browser, tab(browser) as opened:
            page = opened.page
            page.goto(f"{scene.page.as_uri()}#{scene.invite}")
            page.locator("header").get_by_text("Connected ").wait_for()
            assert "#" not in page.url
            page.get_by_role("button", name="Forget").click()
            page.get_by_label("Invite").fill(scene.invite[:-3])
            page.get_by_role("button", name="Connect").click()
            page.get_by_role("alert").filter(has_text="it is truncated (3 characters missing)").wait_for()

    look(slowly(0.0), see, tmp_path)


MARKED = """# A plan

It has **two** steps, `run` and *look*, and ~~no~~ a [page](https://docs.example/a).

1. first
   - with a part
2. second

- [x] done
- [ ] to do

> quoted

```python
def a_function_with_a_long_name(argument_one, argument_two):
    return "<b>not bold</b> &lt; " * 20
```

| machine | memory | note |
|---|---:|---|
| attic | 8 GiB | `CUDA0` with a rather long remark about it |
| garage | 16 GiB | **slow** |

---

The end of it."""
HOSTILE = """<script>window.taken = 1</script>

<img src="http://evil.example/a.png" onerror="window.taken = 2">

![picture](http://evil.example/b.png) ![data](data:image/svg+xml;base64,PHN2Zy8+)

[go](javascript:window.taken=3) [away](http://docs.example@evil.example/)
<a href="http://evil.example" onclick="window.taken = 4">x</a>

<iframe srcdoc="<script>parent.taken = 5</script>"></iframe> <style>body { display: none }</style>

```"><script>window.taken = 6</script>
</code></pre><script>window.taken = 7</script>
```

| a |
|---|
| <svg onload="window.taken = 8"> |

- <form action="http://evil.example"><button>press</button></form>

<base href="http://evil.example/"><meta http-equiv="refresh" content="0; url=http://evil.example/">

THE-END"""
DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
LOOKS: tuple[tuple[Scheme, tuple[int, int]], ...] = (
    ("light", (1280, 800)),
    ("dark", (1280, 800)),
    ("light", (640, 400)),  # the room of 1280 at 200 %
    ("dark", (640, 400)),
    ("light", (360, 740)),
    ("dark", (360, 740)),
)


def check_looks(opened: Tab, name: str) -> None:
    """Check access and width in both themes: wide, zoomed and on a phone."""
    for scheme, (width, height) in LOOKS:
        opened.page.emulate_media(color_scheme=scheme)
        opened.page.set_viewport_size({"width": width, "height": height})
        opened.page.evaluate(DRAWN)  # a narrow window has no picture, once the page has noticed
        opened.keep(f"remote-{name}-{scheme}-{width}")
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width, (name, scheme, width)
        assert serious_faults(opened.page) == [], (name, scheme, width)


@needs_axe
def test_the_page_is_for_all_people_in_each_of_its_states(tmp_path: Path) -> None:
    def see(scene: Scene) -> None:
        with chromium(*WEBRTC) as browser, tab(browser) as opened:
            page = opened.page
            scene.open(page)
            page.get_by_label("Invite").wait_for()
            check_looks(opened, "invite")
            page.get_by_label("Invite").fill("nonsense")
            page.get_by_role("button", name="Connect").click()
            page.get_by_role("alert").wait_for()
            check_looks(opened, "enter")
            scene.enter(page)
            ask(page, "What is the plan?")
            page.get_by_text("The end of it.").wait_for()
            check_looks(opened, "chat")
            page.get_by_role("link", name="Machines").click()
            page.get_by_role("heading", name="4 machines").wait_for()
            check_looks(opened, "machines")
            assert opened.errors == []
            page.evaluate("cut()")
            page.get_by_text("Reconnecting").wait_for()
            check_looks(opened, "cut")
            assert opened.foreign == []

    look(writes(MARKED), see, tmp_path, states=showing(mesh_page_states.split()))


def test_an_answer_is_paragraphs_lists_code_and_tables(tmp_path: Path) -> None:
    def see(scene: Scene) -> None:
        with chromium(*WEBRTC) as browser, tab(browser) as opened:
            page = opened.page
            scene.enter(page)
            ask(page, "What is the plan?")
            page.get_by_text("The end of it.").wait_for()
            answer = page.get_by_role("log")
            assert answer.get_by_role("heading", name="A plan", level=3).count() == 1
            assert answer.locator("strong").all_inner_texts() == ["two", "slow"]
            assert answer.locator("ol ol > li").count() == 2 and answer.locator("ol ol ul > li").count() == 1
            assert answer.get_by_role("img", name="to do").count() == 1
            code = answer.get_by_role("group", name="Code, python")
            assert code.inner_text().splitlines()[1] == '    return "<b>not bold</b> &lt; " * 20'
            rows = answer.get_by_role("table").get_by_role("row").all_inner_texts()
            assert [row.split("\t")[0] for row in rows] == ["machine", "attic", "garage"]
            link = answer.get_by_role("link", name="page")
            assert link.get_attribute("href") == "https://docs.example/a"
            assert link.get_attribute("rel") == "noopener noreferrer"
            assert answer.get_by_text("page (docs.example)").count() == 1
            assert opened.errors == []

    look(writes(MARKED), see, tmp_path)


def test_nothing_that_a_model_writes_runs_leads_astray_or_is_fetched(tmp_path: Path) -> None:
    def see(scene: Scene) -> None:
        with chromium(*WEBRTC) as browser, tab(browser) as opened:
            page = opened.page
            scene.enter(page)
            ask(page, "attack")
            page.get_by_text("THE-END").wait_for()
            page.get_by_text(f"{len(HOSTILE) // 7} tokens").wait_for()
            answer = page.get_by_role("log")
            made = answer.locator(
                "script, img, iframe, style, svg, form, button, base, meta, object, [onclick]"
            )
            assert made.count() == 0
            links = answer.get_by_role("link").evaluate_all("all => all.map(link => link.href)")
            assert links == ["http://docs.example@evil.example/"]
            assert answer.get_by_text("(evil.example)").count() == 1, "where it leads is shown"
            for written in ("<script>window.taken = 1</script>", "[go](javascript:window.taken=3)"):
                assert answer.get_by_text(written).count() == 1
            assert page.evaluate("window.taken") is None
            assert opened.errors == [] and opened.foreign == []

    look(writes(HOSTILE), see, tmp_path)


def test_all_of_it_is_done_by_the_keyboard_and_the_focus_is_never_lost(tmp_path: Path) -> None:
    def see(scene: Scene) -> None:
        with chromium(*WEBRTC) as browser, tab(browser) as opened:
            page = opened.page
            scene.open(page)
            page.keyboard.press("Tab")
            expect(page.get_by_text("Skip to content")).to_be_focused()
            page.keyboard.press("Tab")
            page.keyboard.insert_text(scene.invite)
            page.keyboard.press("Tab")
            page.keyboard.press("Enter")
            page.locator(".link.connected").wait_for()
            expect(page.get_by_label("Question")).to_be_focused()
            page.keyboard.type("tell me")
            page.keyboard.press("Tab")
            page.keyboard.press("Enter")
            page.get_by_text("word001").wait_for()
            expect(page.get_by_role("button", name="Stop")).to_be_focused()
            page.keyboard.press("Enter")
            page.get_by_text("Stopped.").wait_for()
            expect(page.get_by_label("Question")).to_be_focused()
            page.get_by_role("link", name="Machines").focus()
            page.keyboard.press("Enter")
            page.get_by_role("heading", name="4 machines").wait_for()
            expect(page).to_have_title("Machines: desk")
            page.get_by_role("button", name="Forget").focus()
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            page.keyboard.press("Enter")
            expect(page.get_by_label("Invite")).to_be_focused()

    look(slowly(1.0), see, tmp_path, states=showing(mesh_page_states.split()))
