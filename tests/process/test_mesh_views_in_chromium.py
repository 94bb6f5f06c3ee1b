"""The views of the page of the mesh in a real Chromium: what they show, ask the node, and say afterwards."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import pytest
from meshd.admin.api import MemberModelsReply
from meshd.admin.plan_api import PlanReply, WhyReply
from meshd.admin.status import DrainView
from meshd.gateway.interface import KeyStatus
from meshd.gateway.pages import MESH_FOLDER, mesh_page
from meshd.model.status import DrainStatus, ModelState

from tests.e2e.browser import Scheme, Tab, chromium, expect, needs_chromium, tab
from tests.process.axe import needs_axe, serious_faults
from tests.process.mesh_views_fake import (
    ATTIC,
    GARAGE,
    HOSTILE,
    PULL,
    FakeNode,
    Refusal,
    model,
    peers,
    serving,
    state,
    status,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.timeout(300),
    needs_chromium,
    pytest.mark.skipif(not MESH_FOLDER.exists(), reason="`make chat` has not built the page"),
]
_PATIENCE_MS = 20_000
_COPIED = {"name": "mesh:GLM-4.7-Flash-Q4_K_M", "background": True, "download": True}
VIEWS = ("models", "plan", "network", "invite", "agents", "logs")
STATUS = status(members=peers(), served=(model(),))
_TWO = status(served=(model(), model("glm", ModelState.UNLOADED)))


def look(see: Callable[[FakeNode, "Browser"], None], node: FakeNode | None = None) -> FakeNode:
    """Have a browser look, in a thread, at the page of this node."""
    node = node or FakeNode(state(STATUS))
    page = mesh_page()
    assert page is not None

    def seen(at: FakeNode) -> None:
        with chromium() as browser:
            see(at, browser)

    async def scenario() -> None:
        async with serving(page, node):
            await asyncio.to_thread(seen, node)

    asyncio.run(scenario())
    return node


def opened(shown: Tab, node: FakeNode, view: str) -> "Page":
    """Open a view; it is there when its first heading is."""
    shown.page.set_default_timeout(_PATIENCE_MS)
    shown.page.goto(f"{node.url}/mesh#{view}")
    shown.page.locator("main h2").first.wait_for()
    return shown.page


def settle(page: "Page") -> None:
    """Wait until all that a view asked for by itself has been answered."""
    expect(page.locator("[aria-disabled=true]")).to_have_count(0)


def press(page: "Page", name: str, at: int = 0) -> None:
    page.get_by_role("button", name=name, exact=True).nth(at).click()


def fill_all(page: "Page", view: str) -> None:
    """Have a view show all that it can: each read is done, and an invite is made."""
    if view == "plan":
        page.get_by_role("combobox", name="Model").fill("qwen3-4b")
    for name in {
        "models": ("See what fits",),
        "plan": ("Plan it", "Show it"),
        "network": ("Check it",),
        "invite": ("Make an invite",),
    }.get(view, ()):
        press(page, name)
    for text in {
        "models": ("GLM-4.7", "gpt-oss-120b"),
        "plan": ("Splits, compared", "connect garage by cable"),
        "network": (
            "nat_symmetric",
            "127.0.0.1:2222",
            "127.0.0.1:22 · to garage (rpbcgn66vn) · 2 connections",
        ),
        "invite": ("paste the invite", "shed", "d7300f57d2c2ba28"),
        "agents": ("ANTHROPIC_MODEL", "OPENAI_API_BASE_URL"),
        "logs": ("child_failed",),
    }[view]:
        page.get_by_text(text).first.wait_for(state="attached")


# 1280 at 200 % has the room of 640
@needs_axe
@pytest.mark.parametrize("size", [(1280, 800), (360, 740), (640, 400)], ids=["wide", "phone", "zoomed"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_shows_its_data_without_faults(scheme: Scheme, size: tuple[int, int]) -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        for view in VIEWS:
            with tab(browser, scheme=scheme, size=size) as shown:
                page = opened(shown, node, view)
                fill_all(page, view)
                shown.keep(f"{view}-{scheme}-{size[0]}")
                assert shown.errors == [] and shown.foreign == [], view
                assert page.evaluate("document.documentElement.scrollWidth") <= size[0], view
                assert serious_faults(page) == [], view

    look(see)


@needs_axe
def test_a_fault_of_access_would_be_found() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "logs")
            page.evaluate("document.querySelector('main').append(document.createElement('button'))")
            assert "button-name" in " ".join(serious_faults(page))

    look(see)


# view, buttons to press in order, the action, its fields, what is said afterwards
Case = tuple[str, tuple[str, ...], str, Mapping[str, object], str]
CASES: tuple[Case, ...] = (
    ("models", ("Refresh",), "models", {}, "3 models found"),
    ("models", ("See what fits",), "fits", {}, "3 models compared"),
    (
        "models",
        ("Copy it here",),
        "pull",
        _COPIED,
        "mesh:GLM-4.7-Flash-Q4_K_M is being copied",
    ),
    ("models", ("Copy it here", "Stop"), "pull_stop", {"id": 5}, "Stopped. The next try continues"),
    (
        "models",
        ("Remove", "Remove"),
        "model_remove",
        {"model": "Qwen3-4B-Q4_K_M"},
        "Removed Qwen3-4B-Q4_K_M: 2.5 GB freed",
    ),
    ("plan", ("Show it",), "why", {}, "The times of the last answers"),
    ("network", ("Check it",), "netcheck", {}, "Checked: 2 problems"),
    ("network", ("Close it",), "tunnel_close", {"listen": "127.0.0.1:2222"}, "The tunnel to ssh is closed"),
    (
        "network",
        ("Stop exposing it", "Stop exposing it"),
        "expose_remove",
        {"name": "ssh"},
        "ssh is no longer exposed",
    ),
    ("network", ("Refresh",), "expose_list", {}, "1 service exposed"),
    ("network", ("Ping",), "ping", {"peer": "garage"}, "garage answered in 39.7 ms"),
    (
        "invite",
        ("Make an invite",),
        "invite",
        {"expires_s": 86400, "uses": 1, "roles": ["use", "work"]},
        "Invite made: for 2 machines, valid for",
    ),
    (
        "invite",
        ("Show a QR code",),
        "invite",
        {"expires_s": 1800, "uses": 1, "roles": ["use"], "browser": "phone"},
        "Invite for phone made: for one browser, valid for",
    ),
    ("invite", ("Revoke", "Revoke"), "invite_revoke", {"id": "d7300f57d2c2ba28"}, "and banned garage"),
    ("invite", ("Ban", "Ban"), "revoke", {"peer": GARAGE}, "Banned garage (rpbcgn66vn)"),
    ("invite", ("Forget", "Forget"), "forget", {"peer": ATTIC}, "Forgot attic (k2hq7xw4me)"),
    ("invite", ("Lift the ban",), "unban", {"id": "e" * 52}, "shed may come back"),
    ("invite", ("Pause", "Pause"), "pause", {}, "Paused: this node lends nothing"),
    ("invite", ("Drain", "Drain"), "drain", {}, "Draining: nothing new is lent"),
    ("logs", ("Refresh",), "logs", {"lines": 100, "log": "meshd"}, "4 of 4 lines"),
)


def do(page: "Page", buttons: tuple[str, ...]) -> None:
    """Press buttons; the second of a pair is the one of the dialog."""
    for at, name in enumerate(buttons):
        if at and name == buttons[at - 1]:
            page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()
        else:
            press(page, name)


def test_every_action_asks_the_node_and_says_what_came_of_it() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        for view, buttons, action, fields, said in CASES:
            with tab(browser) as shown:
                page = opened(shown, node, view)
                settle(page)
                before = len(node.fields_of(action))
                do(page, buttons)
                page.get_by_role("status").filter(has_text=said).first.wait_for()
                assert fields in node.fields_of(action)[before:], action
                assert shown.errors == [], action

    node = look(see)
    assert all(sent["Content-Type"] == "application/json" for sent in node.headers)


def test_every_refusal_is_shown_with_its_hint_and_the_command_line() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        for view, buttons, action, _, _ in CASES:
            if action in ("models", "logs", "pull_stop"):
                continue  # asked before a button is pressed, or not a first step; below
            node.results[action] = Refusal(f"`{action}` was refused", hint="run `meshd doctor`")
            with tab(browser) as shown:
                page = opened(shown, node, view)
                do(page, buttons)
                fault = page.get_by_role("alert").filter(has_text=f"{action} was refused").first
                fault.get_by_text("Hint:").wait_for()
                assert "meshd doctor" in fault.inner_text(), action
                assert fault.locator("code", has_text="meshd ").count() > 1, action

    look(see)


@pytest.mark.parametrize(("view", "action"), [("models", "models"), ("logs", "logs")])
def test_a_view_whose_first_read_is_refused_says_so(view: str, action: str) -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        node.results[action] = Refusal("the disk is gone", hint="look at it")
        with tab(browser) as shown:
            opened(shown, node, view).get_by_role("alert").filter(has_text="the disk is gone").wait_for()

    look(see)


def test_what_cannot_be_undone_wants_a_new_link() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        node.results["model_remove"] = Refusal("this wants a new link", code="fresh_link", status=403)
        with tab(browser) as shown:
            page = opened(shown, node, "models")
            do(page, ("Remove", "Remove"))
            fault = page.get_by_role("alert").filter(has_text="this wants a new link")
            fault.get_by_text("opened within the last 10 minutes").wait_for()
            assert fault.locator("code").all_inner_texts() == ["meshd ui"]

    look(see)


def test_nothing_is_done_if_the_question_is_answered_no() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "invite")
            for way in ("Cancel", "Escape"):
                button = page.get_by_role("button", name="Ban", exact=True).first
                button.press("Enter")
                dialog = page.get_by_role("dialog")
                assert "Only the founder can lift the ban" in dialog.inner_text()
                if way == "Escape":
                    page.keyboard.press("Escape")
                else:
                    dialog.get_by_role("button", name="Cancel").press("Enter")
                dialog.wait_for(state="hidden")
                expect(button).to_be_focused()
            assert node.fields_of("revoke") == []

    look(see)


@needs_axe
def test_a_button_is_pressed_once_at_a_time() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "network")
            press(page, "Check it")
            busy = page.get_by_role("button", name="Checking…")
            busy.wait_for()
            assert busy.get_attribute("aria-disabled") == "true"
            assert serious_faults(page) == [], "also while an action is under way"
            busy.dispatch_event("click")
            page.keyboard.press("Enter")
            page.keyboard.press("Space")
            node.let_go()
            page.get_by_text("Checked: 2 problems").wait_for()
            assert node.fields_of("netcheck") == [{}]

    look(see, FakeNode(state(STATUS), slow=frozenset({"netcheck"})))


def test_mistakes_in_a_form_are_told_before_the_node_is_asked() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "plan")
            press(page, "Plan it")
            page.get_by_role("alert").filter(has_text="Enter the name of a model first").wait_for()
            page.get_by_role("combobox", name="Model").fill("x")
            page.get_by_role("textbox", name="Context of a request").fill("lots")
            press(page, "Plan it")
            page.get_by_role("alert").filter(has_text="a number of tokens, or max").wait_for()
            page.get_by_role("textbox", name="Context of a request").fill("max")
            page.get_by_role("textbox", name="Requests at once").fill("99")
            press(page, "Plan it")
            page.get_by_role("alert").filter(has_text="from 1 to 64").wait_for()
            assert node.fields_of("plan") == []
            page.get_by_role("textbox", name="Requests at once").fill("2")
            press(page, "Plan it")
            page.get_by_text("✓ chosen").wait_for()
            assert node.fields_of("plan") == [{"model": "x", "ctx_size": "max", "streams": 2}]
            page = opened(shown, node, "invite")
            page.get_by_role("textbox", name="Machines that can join").fill("0")
            press(page, "Make an invite")
            page.get_by_role("alert").filter(has_text="from 1 to 1000").wait_for()
            press(page, "Let it in")
            page.get_by_role("alert").filter(has_text="Paste the reply code first").wait_for()
            page.get_by_role("textbox", name="Reply code").fill("meshd accept meshdreply1abc ")
            press(page, "Let it in")
            page.get_by_text("can join for 120 s").wait_for()
            assert node.fields_of("accept") == [{"code": "meshdreply1abc"}]
            assert node.fields_of("invite") == []

    look(see)


def test_models_are_loaded_and_unloaded_where_there_are_several() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "models")
            press(page, "Load")
            page.get_by_text("glm is being loaded").wait_for()
            press(page, "Unload")
            page.get_by_text("Qwen3-4B-Q4_K_M is unloaded").wait_for()
            assert node.fields_of("load") == [{"model": "glm"}]
            assert node.fields_of("unload") == [{"model": "Qwen3-4B-Q4_K_M"}]

    look(see, FakeNode(state(_TWO)))


def test_a_paused_node_resumes() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "invite")
            page.get_by_text("It is paused").wait_for()
            assert page.get_by_role("button", name="Pause", exact=True).count() == 0
            assert page.get_by_text("meshd resume", exact=True).is_visible()
            press(page, "Resume")
            page.get_by_text("Resumed: this node lends its devices again").wait_for()
            assert node.fields_of("resume") == [{}]

    look(see, FakeNode(state(status(members=peers(), paused=True))))


@needs_axe
def test_what_drains_says_what_it_waits_for() -> None:
    """This node, which lends to a head, and a worker that a model of this node still uses."""
    garage, attic = peers()
    members = (replace(garage, paused=True, draining=True), attic)
    served = replace(model(), draining=DrainStatus(("garage",), 2))
    found = status(members=members, served=(served,), paused=True)
    drains = replace(found, node=replace(found.node, draining=DrainView(models=1, requests=0)))

    def see(node: FakeNode, browser: "Browser") -> None:
        for view in ("machines", "network", "invite"):
            with tab(browser) as shown:
                page = opened(shown, node, view)
                kind: Literal["row", "heading"] = "row" if view == "machines" else "heading"
                page.get_by_role(kind, name="garage").filter(has_text="draining").first.wait_for()
                if view == "machines":
                    page.get_by_text("Draining: 2 answers still run, then the model is loaded").wait_for()
                    page.get_by_text("1 model still uses this node until").first.wait_for()
                if view == "invite":
                    page.get_by_text("draining: 1 model still uses it until its running answers").wait_for()
                    assert page.get_by_role("button", name="Resume", exact=True).is_visible()
                shown.keep(f"draining-{view}")
                assert serious_faults(page) == [] and shown.errors == [], view

    look(see, FakeNode(state(drains)))


def test_a_tunnel_is_opened_to_a_machine() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "network")
            press(page, "Open a tunnel")
            page.get_by_role("alert").filter(has_text="Name the service first").wait_for()
            page.get_by_role("combobox", name="Machine").select_option("attic")
            page.get_by_role("textbox", name="Name of the service").fill("web")
            page.get_by_text(f"meshd tunnel open {ATTIC} web").wait_for()
            press(page, "Open a tunnel")
            page.get_by_text("ssh is now available at 127.0.0.1:2222 on this machine").wait_for()
            assert node.fields_of("tunnel_open") == [{"peer": ATTIC, "service": "web"}]

    look(see)


def test_a_copy_that_failed_is_begun_again() -> None:
    failed = replace(PULL, step="failed", error="the members are gone", hint="try later")

    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "models")
            page.get_by_role("alert").filter(has_text="the members are gone").wait_for()
            press(page, "Copy it again")
            page.get_by_role("button", name="Stop", exact=True).wait_for()
            page.get_by_role("alert").filter(has_text="the members are gone").wait_for(state="detached")
            assert node.fields_of("pull") == [_COPIED]
            # Until its file is known, it has the name that it was asked for by.
            node.results["pull_progress"] = replace(PULL, id=6, step="asking", name="")
            page.get_by_role("progressbar", name="mesh:GLM-4.7-Flash-Q4_K_M").wait_for()
            expect(page.get_by_role("listitem").filter(has_text="asking the other machines")).to_have_count(1)

    node = FakeNode(state(STATUS))
    node.results["member_models"] = MemberModelsReply(models=(), pulls=(failed,))
    node.results["pull"] = replace(PULL, id=6)
    look(see, node)


def test_a_model_is_got_by_any_name_and_its_progress_shown() -> None:
    """Also a download, which members have no part in, what is to be known of it, and why one ends."""
    name = "hf:unsloth/Qwen3-8B-GGUF:Q4_K_M"
    running = replace(PULL, id=6, asked=name, name=name, source="download", holders=())
    running = replace(running, activity="downloading Qwen3-8B-Q4_K_M.gguf")

    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "models")
            press(page, "Get it")
            page.get_by_role("alert").filter(has_text="Enter the name of a model first").wait_for()
            page.get_by_role("textbox", name="Name of the model").fill(f" {name} ")
            page.get_by_text(f"meshd model pull --background {name}", exact=True).wait_for()
            press(page, "Get it")
            page.get_by_text(f"Looking for {name}: the list above").wait_for()
            assert node.fields_of("pull") == [{"name": name, "background": True, "download": True}]
            card = page.get_by_role("listitem").filter(has_text=name)
            card.get_by_role("progressbar", name=name).wait_for()
            card.get_by_text("downloading Qwen3-8B-Q4_K_M.gguf: 3.0 GB of 18.0 GB, 17%").wait_for()
            shown.keep("download")
            assert serious_faults(page) == []
            node.results["pull_progress"] = replace(
                running, step="failed", error="arrived damaged, twice", hint="check the proxy"
            )
            card.get_by_role("alert").filter(has_text="arrived damaged, twice").wait_for()
            node.results["pull"] = node.results["pull_progress"] = replace(
                running, id=7, step="done", note="not compared with the hash"
            )
            press(page, "Get it")
            card.get_by_text(f"{name} is on this machine now").wait_for()
            card.get_by_text("not compared with the hash").wait_for()
            assert card.count() == 1 and shown.errors == []

    node = FakeNode(state(STATUS))
    node.results["pull"] = node.results["pull_progress"] = running
    look(see, node)


def test_what_fits_is_got_by_its_button() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "models")
            press(page, "See what fits")
            row = page.get_by_role("row").filter(has_text="qwen3-4b")
            row.get_by_text("meshd model pull --background qwen3-4b").wait_for()
            row.get_by_role("button", name="Get it", exact=True).click()
            page.get_by_text("Looking for qwen3-4b: the list above").wait_for()
            assert node.fields_of("pull") == [{"name": "qwen3-4b", "background": True, "download": True}]
            assert page.get_by_role("row").filter(has_text="gpt-oss-120b").get_by_role("button").count() == 0

    look(see)


def test_a_plan_takes_the_options_of_the_command_beside_it() -> None:
    """A mistake in them is told in the words of the command line."""
    options = {
        "Only these workers": ("workers", "garage,attic"),
        "Layers of each node": ("layers", "garage=0-9"),
        "Share of each device": ("tensor_split", "3,1"),
        "Devices of this node": ("device", "none"),
        "Memory limit to assume": ("memory", "garage=8G"),
        "Draft model": ("draft_model", "qwen3-0.6b"),
    }

    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "plan")
            page.get_by_role("combobox", name="Model").fill("x")
            page.get_by_text("More options", exact=True).click()
            for label, (_, value) in options.items():
                page.get_by_role("textbox", name=label).fill(value)
            assert serious_faults(page) == []
            shown.keep("plan-options")
            line = "meshd plan --model x --workers garage,attic --layers garage=0-9 --tensor-split 3,1"
            page.get_by_text(f"{line} --device none --memory garage=8G --draft-model qwen3-0.6b").wait_for()
            node.results["plan"] = Refusal("--layers cannot be combined with --tensor-split")
            press(page, "Plan it")
            page.get_by_role("alert").filter(has_text="--layers cannot be combined").wait_for()
            assert node.fields_of("plan") == [{"model": "x", **dict(options.values())}]

    look(see)


def test_a_plan_and_the_times_compare_layers_with_tensors() -> None:
    """As `meshd plan` and `meshd why` do: also while the split is by layers, but not without a comparison."""
    plan, why = ("14.2 tok/s: --split tensor would be slower", "not by tensors: garage is far away")

    def see(node: FakeNode, browser: "Browser") -> None:
        for shows in (1, 0):
            with tab(browser) as shown:
                page = opened(shown, node, "plan")
                page.get_by_role("combobox", name="Model").fill("x")
                press(page, "Plan it")
                page.get_by_text("✓ chosen").wait_for()
                press(page, "Show it")
                page.get_by_text("connect garage by cable").first.wait_for()
                asked = page.get_by_role("region", name="Predict how fast")
                times = page.get_by_role("region", name="Where the time goes")
                expect(asked.get_by_text(plan)).to_have_count(shows)
                expect(times.get_by_text(why)).to_have_count(shows)
                assert page.get_by_text("by tensors").count() == 2 * shows and shown.errors == []
            planned, explained = node.results["plan"], node.results["why"]
            assert isinstance(planned, PlanReply) and isinstance(explained, WhyReply)
            node.results["plan"] = replace(planned, ways=None)
            node.results["why"] = replace(explained, ways=None)

    look(see)


@pytest.mark.parametrize("name", ["a\x1bb", "a\u202eb", "a\ufffdb"])
def test_a_name_that_no_terminal_should_get_has_a_note_in_place_of_a_command(name: str) -> None:
    fields: tuple[tuple[str, Literal["textbox", "combobox"], str], ...] = (
        ("models", "textbox", "Name of the model"),
        ("plan", "combobox", "Model"),
        ("network", "textbox", "Name of the service"),
        ("invite", "textbox", "Reply code"),
        ("invite", "textbox", "Name of the device"),
    )

    def see(node: FakeNode, browser: "Browser") -> None:
        for view, role, label in fields:
            with tab(browser) as shown:
                page = opened(shown, node, view)
                filled = page.get_by_role(role, name=label)
                filled.fill(name)
                form = page.locator("form").filter(has=filled)
                form.get_by_text("characters that are unsafe in a terminal").wait_for()
                assert form.locator(".command").count() == 0 and shown.errors == [], label
        with tab(browser) as shown:
            card = opened(shown, node, "models").get_by_role("listitem").filter(has_text="Verify the whole")
            card.wait_for()
            assert card.get_by_text("unsafe in a terminal").count() == 2, "to verify, and to remove"
            assert card.locator(".command").count() == 0

    node = FakeNode(state(STATUS))
    answer = node.results["models"]
    assert isinstance(answer, Mapping)
    node.results["models"] = {"models": [{**answer["models"][0], "name": name}]}
    look(see, node)


def test_what_could_not_be_listed_is_said() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "models")
            page.get_by_text("attic did not say which models it has: it is busy").wait_for()
            page.get_by_text("not allowed to read /root/models").wait_for()

    node = FakeNode(state(STATUS))
    left_out = [{"node": "attic", "why": "it is busy"}]
    node.results["models"] = {"models": [], "left_out": left_out, "unreadable": ["/root/models"]}
    look(see, node)


def test_the_views_agree_on_the_states_of_nodes() -> None:
    garage, attic = peers()
    members = (replace(garage, paused=True), replace(attic, stopped="its user stopped it"))

    def see(node: FakeNode, browser: "Browser") -> None:
        for view in ("machines", "network", "invite"):
            with tab(browser) as shown:
                page = opened(shown, node, view)
                for name, word in (("garage", "paused"), ("attic", "stopped")):
                    heading = page.get_by_role("row" if view == "machines" else "heading", name=name)
                    heading.filter(has_text=word).wait_for()

    look(see, FakeNode(state(status(members=members))))


def test_names_are_text_whatever_they_are() -> None:
    """A name of a node, a model or an event that is HTML, or ends a command line, does nothing."""
    shown_state = dict(state(status(members=peers(HOSTILE), served=(model(HOSTILE),))))
    shown_state["events"] = [{"at": 1.0, "level": "error", "text": HOSTILE}]

    def see(node: FakeNode, browser: "Browser") -> None:
        for view in VIEWS:
            with tab(browser) as shown:
                page = opened(shown, node, view)
                page.get_by_text("<img src=x", exact=False).first.wait_for(state="attached")
                settle(page)
                assert page.locator("main img").count() == 0, view
                assert page.title() != "taken" and shown.errors == [], view

    node = FakeNode(shown_state)
    answer = node.results["models"]
    assert isinstance(answer, Mapping)
    node.results["models"] = {"models": [{**answer["models"][0], "name": HOSTILE, "problem": HOSTILE}]}
    look(see, node)


def test_an_empty_node_says_what_to_do_next() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        for view, words in {
            "models": ("This node serves no model", "There is no model on this machine"),
            "plan": ("nothing is measured. Plan one above",),
            "network": ("There is no other node yet", "This node exposes nothing", "yet that could use it"),
            "invite": ("This node is alone in its mesh", "has made no invites", "Nothing is banned"),
            "agents": ("This node offers no API", "meshd client"),
            "logs": ("Nothing has happened", "The log is empty"),
        }.items():
            with tab(browser) as shown:
                page = opened(shown, node, view)
                for text in words:
                    page.get_by_text(text).first.wait_for()
                shown.keep(f"empty-{view}")

    node = FakeNode(state(status(has_api=False), events=False))
    none: Mapping[str, tuple[()]] = {"models": ()}
    node.results |= {
        "models": {"models": []},
        "logs": {"lines": [], "logs": ["meshd"]},
        "ban_list": {"bans": []},
        "expose_list": {"exposed": []},
    }
    node.results |= {"invite_list": {"invites": []}, "member_models": {**none, "left_out": [], "pulls": []}}
    look(see, node)


def test_a_node_that_may_do_nothing_offers_nothing() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "invite")
            page.get_by_text("This node may not invite").wait_for()
            page.get_by_text("This node lends no devices").wait_for()
            page.get_by_role("heading", name="shed").wait_for()
            for name in ("Make an invite", "Ban", "Forget", "Pause", "Lift the ban"):
                assert page.get_by_role("button", name=name, exact=True).count() == 0, name

    look(see, FakeNode({**state(STATUS), "can": ["ban_list", "invite_list"]}))


def test_a_key_that_is_required_is_named_and_never_shown() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "agents")
            page.get_by_text("This API asks for a key").wait_for()
            page.get_by_text("Claude Code", exact=True).click()
            lines = page.get_by_role("region", name="Claude Code: lines").inner_text()
            assert f"ANTHROPIC_BASE_URL={node.url}" in lines and "ANTHROPIC_API_KEY=YOUR_KEY" in lines
            assert "ANTHROPIC_MODEL=Qwen3-4B-Q4_K_M" in lines

    api = STATUS.api
    assert api is not None
    with_key = replace(STATUS, api=replace(api, keys=(KeyStatus("anna", 0, 0, 0, 0, 0),)))
    look(see, FakeNode(state(with_key)))
