"""What the views of the page of the mesh read, and read again, in a real Chromium."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from meshd.admin.api import InviteList
from meshd.gateway.pages import MESH_FOLDER

from tests.e2e.browser import needs_chromium, tab
from tests.process.mesh_views_fake import FakeNode, state
from tests.process.test_mesh_views_in_chromium import STATUS, look, opened, press

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Request

pytestmark = [
    pytest.mark.timeout(300),
    needs_chromium,
    pytest.mark.skipif(not MESH_FOLDER.exists(), reason="`make chat` has not built the page"),
]


def asks(action: str, **fields: object) -> Callable[["Request"], bool]:
    """Return whether a request of the page asks for this."""
    return lambda asked: asked.url.endswith(f"/mesh/do/{action}") and asked.post_data_json == fields


def test_the_log_is_filtered_and_followed() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "logs")
            log = page.get_by_role("region", name="Lines of the log")
            log.wait_for()
            page.get_by_role("combobox", name="Level").select_option("warning")
            page.get_by_text("3 of 4 lines").wait_for()
            assert "Traceback of nobody" in log.inner_text(), "it belongs to the line before"
            page.get_by_role("combobox", name="Level").select_option("error")
            page.get_by_text("1 of 4 lines").wait_for()
            page.get_by_role("combobox", name="Level").select_option("")
            page.get_by_role("searchbox").fill("ATTIC")
            page.get_by_text("1 of 4 lines").wait_for()
            page.get_by_role("searchbox").fill("nothing like it")
            page.get_by_text("No line matches").wait_for()
            page.get_by_role("searchbox").fill("")
            page.get_by_role("checkbox", name="Follow").check()
            node.results["logs"] = {"lines": ["a new line"], "logs": ["meshd", "llama-server"]}
            log.get_by_text("a new line").wait_for()
            page.get_by_role("checkbox", name="Follow").uncheck()
            with page.expect_request(asks("logs", lines=500, log="meshd")):
                page.get_by_role("combobox", name="Lines").select_option("500")
                page.get_by_text("--lines 500").wait_for()
            with page.expect_request(asks("logs", lines=500, log="llama-server")):
                page.get_by_role("combobox", name="Log of").select_option("llama-server")
                page.get_by_text("meshd logs --lines 500 llama-server").wait_for()

    look(see)


def test_a_log_goes_on_at_its_end_unless_somebody_reads_further_up() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "logs")
            log = page.get_by_role("region", name="Lines of the log")

            def grow(count: int) -> None:
                node.results["logs"] = {"lines": [f"line {at}" for at in range(count)], "logs": ["meshd"]}
                press(page, "Refresh")
                page.get_by_text(f"{count} of {count} lines").last.wait_for()

            for count in (200, 300):
                grow(count)
                assert log.evaluate("box => box.scrollHeight - box.scrollTop - box.clientHeight < 1")
            log.evaluate("box => { box.scrollTop = 100 }")
            grow(400)
            assert log.evaluate("box => box.scrollTop") == 100

    look(see)


def test_what_is_wanted_while_another_is_read_is_read_afterwards() -> None:
    """Else the page would go on to show what was there before."""

    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "logs")
            page.get_by_role("button", name="Reading…").wait_for()
            node.results["logs"] = {"lines": ["a new line"], "logs": ["meshd"]}
            for lines in ("200", "500"):  # both while the first is read: only the last is read afterwards
                page.get_by_role("combobox", name="Lines").select_option(lines)
            node.let_go()
            page.get_by_role("region", name="Lines of the log").get_by_text("a new line").wait_for()
            assert node.fields_of("logs") == [{"lines": lines, "log": "meshd"} for lines in (100, 500)]

    look(see, FakeNode(state(STATUS), slow=frozenset({"logs"})))


def test_an_invite_that_is_made_while_the_list_is_read_is_listed() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "invite")
            invites = page.get_by_role("region", name="Invites made here")
            invites.get_by_role("button", name="Refreshing…").wait_for()
            press(page, "Make an invite")
            page.get_by_role("textbox", name="Invite", exact=True).wait_for()
            listed = node.results["invite_list"]
            assert isinstance(listed, InviteList)
            made = replace(listed.invites[0], id="5e" * 8)
            node.results["invite_list"] = InviteList(invites=(*listed.invites, made))
            node.let_go()
            invites.get_by_text(made.id).first.wait_for()

    look(see, FakeNode(state(STATUS), slow=frozenset({"invite_list"})))
