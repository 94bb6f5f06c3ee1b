"""Every button of the page of the mesh, pressed in a real Chromium on a real mesh of two nodes.

The page is opened by the link of `meshd ui --print`. The effect of a button is looked for at the node itself.
With MESHD_SCREENS the pictures are kept in that folder.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import pytest
from meshd.admin.api import (
    BanListRequest,
    BanView,
    ExposeListRequest,
    InviteListRequest,
    InviteView,
    MemberModelsRequest,
    StatusRequest,
    TunnelListRequest,
)
from meshd.admin.client import ask
from meshd.admin.request import Request
from meshd.admin.status import PeerView, Status
from meshd.base.files import replace_file
from meshd.config.tree import Config
from meshd.daemon.console_actions import Abilities, ConsoleActions
from meshd.daemon.console_models import ModelActions
from meshd.fleet.fleet import LocalNode
from meshd.gateway.console import FRESH_ACTIONS
from meshd.gateway.pages import MESH_FOLDER
from meshd.identity.invite import Reply, derive, encode_reply, parse_token
from meshd.identity.keys import KeyPair
from meshd.link.net import local_addresses
from meshd.wire.address import Candidate

from tests.e2e.browser import Tab, chromium, needs_chromium, tab
from tests.e2e.models import cache_folder, cache_without_models, smollm2
from tests.e2e.nodes import Fleet, meshd, play
from tests.e2e.random_models import random_model
from tests.unit.admin.fake import FakeControl

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

R = TypeVar("R")

# What has no button of its own, and why.
WITHOUT_BUTTON = {
    "member_models": "the view of models asks for it when it is opened",
    "pull_progress": "the view of models asks for it while a copy runs",
    "tunnel_list": "the status that the page shows has the tunnels",
}
ASKED_BY_ITSELF = {"member_models", "pull_progress"}
# Finds its network without asking anybody.
ALONE = ("--stun", "none", "--no-portmap", "--no-mdns")
COPIED = "Tiny-Q8_0"  # as the worker gets it
_CONFIG = """
[serve]
port = 0
ctx_size = 512
slots = 1
devices = ["none"]
llama_args = ["-t", "1"]
[models.smol]
model = "{smol}"
[models.tiny]
model = "{tiny}"
"""
_PATIENCE_S = 60.0
_ANSWER_MS = 180_000  # a plan measures machines first; on busy cores that takes more than a minute


@dataclass
class Page:
    """The page of one node in a browser, and all that it asked the node to do."""

    node: LocalNode
    shown: Tab
    done: dict[str, int] = field(default_factory=dict)  # successful actions

    def press(self, view: str, section: str, button: str, action: str, *, card: str = "") -> dict[str, Any]:
        """Press a button, and answer its question with yes if it asks one; return the node's answer."""
        place = self.section(view, section)
        if card:
            place = place.get_by_role("listitem").filter(has_text=card)
        found = place.get_by_role("button", name=button, exact=True, disabled=False)
        found.wait_for()  # what a view asks for by itself has been answered
        question = self.shown.page.get_by_role("dialog")
        with self.shown.page.expect_response(f"**/mesh/do/{action}", timeout=_ANSWER_MS) as answered:
            found.click()
            if question.is_visible():
                question.get_by_role("button", name=button, exact=True).click()
        assert answered.value.status == 200, answered.value.text()
        result: dict[str, Any] = answered.value.json()["result"]
        return result

    def section(self, view: str, section: str) -> "Locator":
        """Open a view, if another is shown, and return one of its sections."""
        page = self.shown.page
        if urlsplit(page.url).fragment != view:
            page.get_by_role("navigation").get_by_role("link", name=view.capitalize(), exact=True).click()
        return page.get_by_role("region", name=section)

    def ask(self, request: Request[R]) -> R:
        return ask(self.node.spec.home, request)

    @property
    def status(self) -> Status:
        return self.ask(StatusRequest())

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds; the page goes on meanwhile."""
        deadline = time.monotonic() + _PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, self.status
            self.shown.page.wait_for_timeout(50)


@contextlib.contextmanager
def opened(browser: "Browser", node: LocalNode) -> Iterator[Page]:
    """Open the page of a node as its user does."""
    link = meshd(node.spec.home, "ui", "--print").stdout.strip()
    with tab(browser) as shown:
        made = Page(node, shown)

        def answered(response: Any) -> None:
            _, found, action = urlsplit(response.url).path.partition("/mesh/do/")
            if found and response.status == 200:
                made.done[action] = made.done.get(action, 0) + 1

        shown.page.on("response", answered)
        shown.page.goto(link)
        shown.page.get_by_role("heading", name=node.spec.name, exact=True).wait_for()
        assert shown.page.url.endswith("/mesh")
        yield made
        assert shown.errors == [] and shown.foreign == []


def states(status: Status) -> dict[str, str]:
    return {model.name: str(model.state) for model in status.models}


def peer(status: Status, name: str) -> PeerView | None:
    return next((known for known in status.peers if known.name == name), None)


def is_connected(status: Status, name: str) -> bool:
    return (found := peer(status, name)) is not None and found.state == "connected"


# --- the head ---------------------------------------------------------------------------------------------


def models_are_loaded_and_told_about(desk: Page) -> None:
    """Load, why, unload: the model answers in between."""
    desk.press("models", "Served by this node", "Load", "load", card="tiny")
    desk.until(lambda: states(desk.status)["tiny"] == "ready")
    desk.until(lambda: (api := desk.status.api) is not None and api.ready)
    complete(desk)
    why = desk.press("plan", "Where the time goes", "Show it", "why")
    assert why["model"] == "tiny" and [answer["generated_tokens"] for answer in why["answers"]] == [8]
    desk.press("models", "Served by this node", "Unload", "unload", card="tiny")
    desk.until(lambda: states(desk.status) == {"smol": "unloaded", "tiny": "unloaded"})


def complete(desk: Page) -> None:
    """Ask the model for eight tokens."""
    api = desk.status.api
    assert api is not None
    asked = {"model": "tiny", "prompt": "The capital", "max_tokens": 8, "ignore_eos": True}
    request = urllib.request.Request(
        f"{api.url}/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
        assert json.loads(answer.read())["usage"]["completion_tokens"] == 8


def models_are_listed_compared_and_planned(desk: Page) -> None:
    """The page gets what the command line prints."""
    listed = desk.press("models", "Models on this machine and in the mesh", "Refresh", "models")
    printed = meshd(desk.node.spec.home, "model", "ls", "--json", **user(desk.node))
    assert [model["name"] for model in json.loads(printed.stdout)] == [
        model["name"] for model in listed["models"]
    ]
    assert any(COPIED in model["name"] for model in listed["models"])
    fits = desk.press("models", "What fits", "See what fits", "fits")
    assert fits["models"] and fits["workers"] == ["attic"]
    page = desk.shown.page
    section = desk.section("plan", "Predict how fast a model would run")
    section.get_by_role("combobox", name="Model").fill("tiny")
    section.get_by_role("textbox", name="Requests at once").fill("1")
    plan = desk.press("plan", "Predict how fast a model would run", "Plan it", "plan")
    chosen = plan["plans"][plan["choice"]]
    assert plan["head"] == "desk" and chosen["generate_tok_s"] > 0
    assert {part["node"] for part in chosen["nodes"]} <= {"desk", "attic"}
    page.get_by_text("✓ chosen").wait_for()


def the_network_is_looked_at(desk: Page) -> None:
    """The answers name the nodes that are there."""
    found = desk.press("network", "This machine’s network", "Check it", "netcheck")
    assert found["daemon"] and found["servers"] == []
    attic = peer(desk.status, "attic")
    assert attic is not None
    pong = desk.press("network", "Paths to the other nodes", "Ping", "ping", card="attic")
    assert (pong["peer"], pong["name"]) == (attic.id, "attic") and pong["rtt_ms"] > 0
    capacity = desk.press("machines", "2 machines", "Check memory on all machines", "capacity")
    assert {device["node"] for device in capacity["devices"]} == {"attic"}
    assert [left["node"] for left in capacity["left_out"]] == ["desk"], "it has `devices = none`"


def someone_is_invited_and_not_any_more(desk: Page) -> None:
    """An invite is made, its reply code accepted, and it is revoked."""
    made = desk.press("invite", "Invite a machine", "Make an invite", "invite")
    token = desk.shown.page.get_by_role("textbox", name="Invite", exact=True).input_value()
    assert token == made["token"] and invite(desk, made["id"]).state == "valid"
    desk.shown.keep("invite-real")
    a_joiner_is_let_in(desk, token)
    listed = desk.press("invite", "Invites made here", "Refresh", "invite_list")
    assert [entry["id"] for entry in listed["invites"]] == [
        entry.id for entry in desk.ask(InviteListRequest()).invites
    ]
    desk.press("invite", "Invites made here", "Revoke", "invite_revoke", card=made["id"])
    assert invite(desk, made["id"]).state == "revoked"
    shown = desk.press("invite", "Bans", "Refresh", "ban_list")
    assert [ban["id"] for ban in shown["bans"]] == [ban.id for ban in bans(desk)] != []


def invite(desk: Page, name: str) -> InviteView:
    [found] = [entry for entry in desk.ask(InviteListRequest()).invites if entry.id == name]
    return found


def bans(desk: Page) -> tuple[BanView, ...]:
    return tuple(desk.ask(BanListRequest()).bans)


def a_joiner_is_let_in(desk: Page, token: str) -> None:
    """The node sends to the address of the reply code, so that its NAT lets the joiner in."""
    invited = parse_token(token)
    keys = derive(invited.secret)
    host = next(host for host in local_addresses.hosts() if ":" not in host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as joiner:
        joiner.bind((host, 0))
        joiner.settimeout(_PATIENCE_S)
        place = Candidate(host, joiner.getsockname()[1], "udp")
        code = encode_reply(Reply(keys.invite_id, KeyPair.from_seed(bytes(32)).peer, (place,)), keys)
        section = desk.section("invite", "Enter a reply code")
        section.get_by_role("textbox", name="Reply code").fill(f"meshd accept {code}")
        accepted = desk.press("invite", "Enter a reply code", "Let it in", "accept")
        assert accepted["addresses"] == [place.place]
        assert joiner.recv(2048)


def the_log_is_read(desk: Page) -> None:
    """Its last lines are those of the file."""
    read = desk.press("logs", "Log", "Refresh", "logs")
    written = (desk.node.spec.home / "logs/meshd.log").read_text(encoding="utf-8").splitlines()
    assert len(read["lines"]) >= 10 and set(read["lines"]) <= set(written)


# --- the worker -------------------------------------------------------------------------------------------


def its_user_takes_the_machine_away_and_gives_it_back(attic: Page) -> None:
    for button, action in (("Pause", "pause"), ("Drain", "drain")):
        attic.press("invite", "This node: attic", button, action)
        attic.until(lambda: attic.status.node.paused)
        attic.press("invite", "This node: attic", "Resume", "resume")
        attic.until(lambda: not attic.status.node.paused)


def a_model_is_copied_and_removed(attic: Page, desk: Page) -> None:
    """The first copy waits for a head that stands still, and is stopped."""
    pid, name = desk.node.pid, "Models on this machine and in the mesh"
    assert pid is not None and copies(attic) == []
    press = partial(attic.press, "models", name, card=COPIED)
    card = attic.section("models", name).get_by_role("listitem").filter(has_text=COPIED)
    card.get_by_role("button", name="Copy it here").wait_for()  # the head has said what it has
    os.kill(pid, signal.SIGSTOP)
    try:
        begun = press("Copy it here", "pull")
        stopped = press("Stop", "pull_stop")
        assert stopped["id"] == begun["id"]
    finally:
        os.kill(pid, signal.SIGCONT)
    attic.until(lambda: is_connected(attic.status, "desk"))
    attic.until(lambda: all(pull.step == "failed" for pull in attic.ask(MemberModelsRequest()).pulls))
    assert copies(attic) == []
    press("Copy it again", "pull")
    attic.until(lambda: copies(attic) != [])
    [copied] = copies(attic)
    assert copied.read_bytes() == random_model("llama").read_bytes()
    attic.shown.keep("copied-real")
    removed = press("Remove", "model_remove")
    assert removed["removed"] and copies(attic) == []


def copies(attic: Page) -> list[Path]:
    return list((attic.node.spec.cache / "models").glob(f"*/{COPIED}.gguf"))


def a_service_is_reached_through_a_tunnel(desk: Page, attic: Page) -> None:
    """One page exposes it, the other one opens a tunnel to it; both end it."""
    tunnels, services = "Services of other machines", "Services that this machine exposes"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_PATIENCE_S)
        place = f"127.0.0.1:{server.getsockname()[1]}"
        section = attic.section("network", services)
        section.get_by_role("textbox", name="Name for the service").fill("echo")
        section.get_by_role("textbox", name="Address of the service").fill(place)
        section.get_by_role("checkbox", name="desk").check()
        attic.press("network", services, "Expose it", "expose")
        [exposed] = attic.ask(ExposeListRequest()).exposed
        assert (exposed.name, exposed.target, exposed.to_names) == ("echo", place, ("desk",))
        desk.section("network", tunnels).get_by_role("textbox", name="Name of the service").fill("echo")
        tunnel = desk.press("network", tunnels, "Open a tunnel", "tunnel_open")
        assert [known.listen for known in desk.ask(TunnelListRequest()).tunnels] == [tunnel["listen"]]
        host, _, port = tunnel["listen"].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=_PATIENCE_S) as client:
            client.sendall(b"x")
            came, _ = server.accept()
            with came:
                came.settimeout(_PATIENCE_S)
                assert came.recv(1) == b"x"
                shown = attic.press("network", services, "Refresh", "expose_list")
                assert [(known["streams"], known["received_bytes"]) for known in shown["exposed"]] == [(1, 1)]
                attic.press("network", services, "Stop exposing it", "expose_remove", card="echo")
                assert attic.ask(ExposeListRequest()).exposed == ()
                assert has_ended(came)
        desk.press("network", tunnels, "Close it", "tunnel_close", card="echo")
        assert desk.ask(TunnelListRequest()).tunnels == ()


def has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


# --- members ----------------------------------------------------------------------------------------------


def the_worker_is_banned_and_comes_back(desk: Page) -> None:
    attic = peer(desk.status, "attic")
    assert attic is not None
    desk.press("invite", "Members", "Ban", "revoke", card="attic")
    assert attic.id in {ban.id for ban in bans(desk)}
    desk.until(lambda: not is_connected(desk.status, "attic"))
    desk.press("invite", "Bans", "Lift the ban", "unban", card="attic")
    assert attic.id not in {ban.id for ban in bans(desk)}
    desk.until(lambda: is_connected(desk.status, "attic"))


def the_worker_that_went_is_forgotten(desk: Page) -> None:
    desk.until(lambda: (left := peer(desk.status, "attic")) is not None and left.state != "connected")
    desk.press("invite", "Members", "Forget", "forget", card="attic")
    assert peer(desk.status, "attic") is None


# --- both -------------------------------------------------------------------------------------------------


def press_all(desk_node: LocalNode, attic_node: LocalNode, end_attic: Callable[[], None]) -> set[str]:
    """Press everything; return the actions that were done."""
    with chromium() as browser, opened(browser, desk_node) as desk:
        with opened(browser, attic_node) as attic:
            models_are_loaded_and_told_about(desk)
            models_are_listed_compared_and_planned(desk)
            the_network_is_looked_at(desk)
            someone_is_invited_and_not_any_more(desk)
            the_log_is_read(desk)
            its_user_takes_the_machine_away_and_gives_it_back(attic)
            a_model_is_copied_and_removed(attic, desk)
            a_service_is_reached_through_a_tunnel(desk, attic)
            the_worker_is_banned_and_comes_back(desk)
        end_attic()
        the_worker_that_went_is_forgotten(desk)
        return {*desk.done, *attic.done}


def user(node: LocalNode) -> dict[str, str]:
    """The variables of a user that shares no models with others."""
    names = ("HOME", "XDG_CACHE_HOME", "MESHD_CACHE")
    return {name: node.spec.environment[name] for name in names}


async def start(
    fleet: Fleet, folder: Path, name: str, role: str, *options: str, token: str = ""
) -> LocalNode:
    """A node with models of its own, that listens as a user's does: another machine may join by UDP."""
    home, own = folder / f"{name}-user", folder / f"{name}-own"
    home.mkdir()
    cache = cache_without_models(own)
    (cache / "models").mkdir()
    if not (speeds := cache / "device-speeds").exists() and _speeds().exists():
        shutil.copyfile(_speeds(), speeds)
    spec = fleet.spec(name, role, *options, *ALONE, token=token, listen="0.0.0.0:0")
    own_user = {"HOME": str(home), "XDG_CACHE_HOME": str(home), "MESHD_CACHE": str(cache)}
    return await fleet.start(replace(spec, cache=cache, environment={**spec.environment, **own_user}))


def _speeds() -> Path:
    """Return where device speeds are kept for the next run: measuring them takes longer than all the rest."""
    return cache_folder() / "test-models/device-speeds"


def registered() -> set[str]:
    """Return the names of all actions that a node can have."""
    able = Abilities(invites=True, is_founder=True, lends=True, serves=True)
    models = ModelActions(FakeControl(), Config(), FakePool)
    return set(ConsoleActions(FakeControl(), lambda: able, Path("none"), models.acts).names)


class FakePool:
    """Several models, none of which is there."""

    def load(self, name: str) -> None: ...

    def unload(self, name: str) -> None: ...


def test_what_has_no_button_is_an_action_that_can_be_undone() -> None:
    assert WITHOUT_BUTTON.keys() <= registered()
    assert not WITHOUT_BUTTON.keys() & FRESH_ACTIONS and registered() >= FRESH_ACTIONS.keys()


@pytest.mark.native
@pytest.mark.timeout(480)
@needs_chromium
@pytest.mark.skipif(not local_addresses.hosts(), reason="this machine has no address but loopback's")
@pytest.mark.skipif(not MESH_FOLDER.exists(), reason="`make chat` has not built the page")
def test_every_button_does_at_the_node_what_it_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with Fleet(tmp_path) as fleet:
            file = tmp_path / "meshd.toml"
            tiny = tmp_path / f"{COPIED}.gguf"
            tiny.symlink_to(random_model("llama"))
            file.write_text(_CONFIG.format(smol=smollm2(), tiny=tiny), encoding="utf-8")
            desk = await start(fleet, tmp_path, "desk", "serve", "--config", str(file))
            attic = await start(fleet, tmp_path, "attic", "worker", token=await desk.token())
            await desk.until(lambda status: is_connected(status, "attic") and bool(status.models))

            def end_attic() -> None:
                fleet.forget(attic)
                asyncio.run_coroutine_threadsafe(attic.stop(), loop).result(_PATIENCE_S)

            done = await asyncio.to_thread(press_all, desk, attic, end_attic)
            replace_file(_speeds(), (attic.spec.cache / "device-speeds").read_bytes())
            assert done == registered() - WITHOUT_BUTTON.keys() | ASKED_BY_ITSELF

    play(scenario())
