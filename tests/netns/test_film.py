"""A first evening with meshd, in browsers: a home with three machines and a phone, and a friend's machine.

Each of them is in a network namespace of its own; machines, model, answers and browsers are real. With
MESHD_SCREENS the pictures are kept in that folder; parts of some are in docs/images.
"""

import asyncio
import os
import re
import shlex
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from meshd.admin.api import InviteRequest, UiRequest
from meshd.admin.client import ask
from meshd.fleet.fleet import LocalNode, NodeSpec

from tests.e2e.browser import CHROMIUM, Tab, launched, needs_chromium, tab
from tests.e2e.models import smollm2
from tests.e2e.nodes import Fleet, play
from tests.netns.programs import relay_on
from tests.netns.sites import Kind, site
from tests.netns.wan import Line, Way
from tests.netns.world import Host, World

if TYPE_CHECKING:
    from playwright.sync_api import Page

T = TypeVar("T")
PAGES = Path(__file__).parents[2] / "meshd" / "gateway"
pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(600),
    needs_chromium,
    pytest.mark.skipif(
        not all((PAGES / name).exists() for name in ("chat", "mesh")),
        reason="`make chat` has not built the pages",
    ),
]
SECONDS = 500.0
LONG_MS = 180_000  # a machine that was not measured yet takes up to a minute
SIZE, PHONE = (1280, 860), (390, 760)
HEAD, GARAGE, ATTIC, BARN = "desk", "garage", "attic", "barn"
RELAY = "relay.test"
# addresses count as names here; the relay is asked as well where a busy machine makes the direct way slow
AT_HOME = f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 192.168.*, EXCLUDE {RELAY}"
QUESTION = "What is the capital of France? Answer in one sentence."
STORY = "Tell me a long story about a small computer in a garage."
TABLE = "Now write a Markdown table of three fruits with the columns Fruit and Colour."
CODE = "Write a short Python function that adds two numbers, in a code block."


@dataclass
class Film:
    """The nodes, which the event loop runs, and the browsers, which a thread drives."""

    fleet: Fleet
    loop: asyncio.AbstractEventLoop
    head: LocalNode
    places: dict[str, Host]
    opened: Tab
    phone: Tab

    @property
    def page(self) -> "Page":
        return self.opened.page

    def have(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the loop do something with the nodes."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(SECONDS)

    def worker(self, name: str, token: str) -> LocalNode:
        """Start a worker at its place, with an invite."""
        return self.have(self.fleet.start(spec(self.fleet, self.places, name, "worker", token=token)))

    def enter(self) -> None:
        """Open the page of the mesh, as `meshd ui` does."""
        self.page.goto(ask(self.head.spec.home, UiRequest()).url)
        self.page.get_by_role("heading", name="Recent events").wait_for()

    def view(self, name: str) -> None:
        self.page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).first.click()

    def row(self, name: str, words: str) -> None:
        """Wait until the table says this of a machine."""
        state = self.page.get_by_role("cell").filter(has_text=re.compile(rf"^\W*{words}"))
        self.page.get_by_role("row").filter(has_text=name).filter(has=state).first.wait_for()

    def keep(self, name: str, *, at: str = "") -> None:
        """Keep a picture of what is on the screen: the top, or a part by its heading."""
        if at:
            self.page.get_by_role("heading", name=at).first.evaluate("one => one.scrollIntoView()")
        else:
            self.page.evaluate("scrollTo(0, 0)")
        self.opened.keep(f"film-{name}")


def spec(
    fleet: Fleet, places: dict[str, Host], name: str, role: str, *options: str, token: str = ""
) -> NodeSpec:
    """Describe a node at its place."""
    return fleet.spec(
        name, role, *options, token=token, listen="0.0.0.0:17430", prefix=places[name].space.prefix
    )


def test_the_film(world: World, tmp_path: Path) -> None:
    """Alone, machines are invited, a load, a phone, a chat, a machine is lost and comes back, a plan."""
    server = world.public("relay")
    world.name(RELAY, server)
    home = site(world, Kind.PORT_RESTRICTED, "home")
    away = site(world, Kind.PORT_RESTRICTED, BARN, line=Line.both(Way(delay_ms=8)))
    places = {HEAD: home.host, BARN: away.host}
    places |= {name: home.neighbour(name).host for name in (GARAGE, ATTIC, "phone")}

    async def scenario(relay: str) -> None:
        async with Fleet(tmp_path) as fleet:
            given = ("--model", str(smollm2()), "--min-workers", "3", "--relay", relay, "--", "--temp", "0")
            head = await fleet.start(spec(fleet, places, HEAD, "serve", *given))
            await head.until(lambda status: status.api is not None)
            await asyncio.to_thread(shoot, fleet, asyncio.get_running_loop(), head, places, tmp_path)

    with relay_on(server, tmp_path / "relay", name=RELAY) as relay:
        play(scenario(relay), seconds=SECONDS)


def program(folder: Path, name: str, place: Host) -> Path:
    """A Chromium at a place."""
    made = folder / f"chromium-{name}"
    made.write_text(f'#!/bin/sh\nexec {shlex.join(place.space.prefix)} {CHROMIUM} "$@"\n')
    made.chmod(0o755)
    return made


def shoot(
    fleet: Fleet, loop: asyncio.AbstractEventLoop, head: LocalNode, places: dict[str, Host], folder: Path
) -> None:
    from playwright.sync_api import sync_playwright

    desk, phone = (program(folder, name, places[name]) for name in (HEAD, "phone"))
    with (
        sync_playwright() as playwright,
        launched(playwright, desk) as at_desk,
        launched(playwright, phone, AT_HOME) as at_phone,
        tab(at_desk, size=SIZE) as opened,
        tab(at_phone, size=PHONE, scheme="dark") as held,
    ):
        film = Film(fleet, loop, head, places, opened, held)
        film.enter()
        workers = invited(film)
        loaded(film)
        phoned(film)
        chatted(film)
        lost_and_back(film, workers[ATTIC])
        planned(film)
        for seen in (opened, held):
            assert seen.errors == []
            assert seen.foreign == []


def invited(film: Film) -> dict[str, LocalNode]:
    """A lone node waits; its page makes an invite, and the machines come with it."""
    page = film.page
    page.get_by_text("No other machine yet").wait_for()
    film.keep("1-alone")
    film.view("Invite")
    page.get_by_role("textbox", name="Machines that can join").fill("3")
    film.press("Make an invite")
    page.get_by_role("img", name="The invite as a QR code").wait_for()
    film.keep("2-invited")
    token = page.get_by_role("textbox", name="Invite", exact=True).input_value()
    film.view("Machines")
    workers = {name: film.worker(name, token) for name in (BARN, GARAGE)}
    for name in workers:
        film.row(name, "connected")
    film.keep("3-found")
    workers[ATTIC] = film.worker(ATTIC, token)
    film.row(ATTIC, "connected")
    return workers


def loaded(film: Film) -> None:
    """The model is loaded over four machines."""
    film.row(HEAD, "loading")
    film.keep("4-loading")
    film.have(film.fleet.ready(film.head))
    film.row(HEAD, "ready")


def phoned(film: Film) -> None:
    """A phone scans the QR code, asks, and sees the machines, as desk sees tokens flow."""
    film.view("Invite")
    film.press("Show a QR code")
    film.page.get_by_role("img", name="The address of the page").wait_for()
    film.keep("5-phone-invited", at="Invite a phone")
    made = ask(film.head.spec.home, InviteRequest(expires_s=600, uses=1, roles=("use",), browser="phone"))
    page = film.phone.page
    page.goto(made.url)
    page.locator("p.link.connected").wait_for()
    ask_on_phone(page, STORY)
    film.view("Machines")
    film.press("Check memory on all machines")
    film.page.get_by_role("cell", name=re.compile("CPU .* free")).nth(3).wait_for(timeout=LONG_MS)
    film.page.get_by_role("cell", name="answering").wait_for()
    film.page.locator("path.flow").nth(2).wait_for()
    film.keep("6-machines")
    film.opened.keep("film-6-machines-part", part="section[aria-labelledby=machines]")
    film.keep("7-requests", at="Requests")
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()
    page.reload()  # which begins another chat, with the invite that was kept
    page.locator("p.link.connected").wait_for()
    ask_on_phone(page, QUESTION)
    page.locator(".note").filter(has_text="tokens/s").wait_for()
    film.phone.keep("film-8-phone-chat")
    page.get_by_role("link", name="Machines").click()
    page.get_by_role("cell", name=GARAGE).first.wait_for()
    film.phone.keep("film-8-phone-machines")


def ask_on_phone(page: "Page", question: str) -> None:
    page.get_by_label("Question").fill(question)
    page.get_by_role("button", name="Send").click()


def chatted(film: Film) -> None:
    """The chat page shows code and a table as such."""
    page = film.page
    page.goto(page.url.partition("/mesh")[0])
    stop = page.get_by_role("button", name="Stop", exact=True)
    for question, shown in ((CODE, "pre code"), (TABLE, "table tr:nth-child(4)")):
        page.get_by_role("textbox", name="Type a message").fill(question)
        page.get_by_role("button", name="Send").click()
        page.locator(shown).first.wait_for()
        if question == TABLE:
            stop.click()  # so small a model has no end of fruits
        stop.wait_for(state="detached")
        if question == CODE:
            page.get_by_text(question).last.hover()
            page.mouse.wheel(0, -160)  # the question was behind the line of chats
        film.opened.keep(f"film-9-chat-{shown.split()[0]}")
    film.enter()


def lost_and_back(film: Film, worker: LocalNode) -> None:
    """A machine loses its power while its model answers; it is started again, and the model with it."""
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    film.page.get_by_role("row").filter(has_text=ATTIC).filter(has_text="connected").wait_for(
        state="detached"
    )
    film.keep("10-lost")
    film.have(worker.stop())
    film.have(worker.start())
    film.row(ATTIC, "connected")
    film.have(film.fleet.ready(film.head))
    film.row(HEAD, "ready")
    film.keep("11-back")
    film.keep("12-back-events", at="Recent events")


def planned(film: Film) -> None:
    """The plan of what runs, beside what was measured."""
    film.view("Plan")
    film.page.get_by_role("heading", name="Running now").wait_for()
    film.page.get_by_text("Why this split").wait_for()
    film.keep("13-plan")
