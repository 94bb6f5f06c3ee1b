"""Inviting machines and phones on the page of the mesh in a real Chromium."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import segno
import segno.encoder
from meshd.gateway.pages import MESH_FOLDER

from tests.e2e.browser import expect, needs_chromium, tab
from tests.process.mesh_views_fake import PAGE_URL, FakeNode, model, peers, state, status
from tests.process.test_mesh_views_in_chromium import look, opened, press

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.timeout(300),
    needs_chromium,
    pytest.mark.skipif(not MESH_FOLDER.exists(), reason="`make chat` has not built the page"),
]


def test_a_machine_is_invited_by_the_keyboard_alone() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "invite")
            for _ in range(40):  # the way there has as many stops as the navigation has links
                page.keyboard.press("Tab")
                if page.evaluate("document.activeElement.tagName") == "SELECT":
                    break
            page.keyboard.press("ArrowUp")  # an hour
            page.keyboard.press("Tab")
            page.keyboard.press("Control+A")
            page.keyboard.type("2")
            page.keyboard.press("Tab")
            page.keyboard.press("Space")  # no longer to lend devices
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none"
            page.keyboard.press("Enter")
            page.get_by_role("textbox", name="Invite", exact=True).wait_for()
            assert node.fields_of("invite") == [{"expires_s": 3600, "uses": 2, "roles": ["use"]}]
            page.get_by_role("img", name="The invite as a QR code").wait_for()
            assert "--expires 1h --uses 2 --role use" in page.locator("main").inner_text()
            shown.keep("invite-made")

    look(see)


def pad(bits: bytearray, _version: int, length: int) -> None:
    """Fill the last byte (ISO/IEC 18004, 7.4.10). Where it is full, segno adds one, which readers skip."""
    bits.extend(bytes(-length % 8))


def test_a_phone_is_invited_by_a_qr_code_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segno.encoder, "write_padding_bits", pad)
    modules = """() => {
        const drawn = document.querySelector("svg.qr path").getAttribute("d").matchAll(/M(\\d+) (\\d+)h/g);
        return [...drawn].map((found) => [Number(found[1]), Number(found[2])]);
    }"""

    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "invite")
            page.get_by_role("textbox", name="Name of the device").fill(" ")
            press(page, "Show a QR code")
            page.get_by_role("alert").filter(has_text="Give the device a name").wait_for()
            assert node.fields_of("invite") == []
            page.get_by_role("textbox", name="Name of the device").fill("Anna's tablet")
            assert """meshd invite --expires 30m --uses 1 --browser 'Anna'"'"'s tablet'""" in page.inner_text(
                "main"
            )
            press(page, "Show a QR code")
            code = page.get_by_role("img", name="The address of the page")
            code.wait_for()
            code.scroll_into_view_if_needed()
            shown.keep("invite-qr")
            rows = segno.make(PAGE_URL, error="l", boost_error=False, micro=False).matrix_iter(border=4)
            dark = {(x, y) for y, row in enumerate(rows) for x, is_dark in enumerate(row) if is_dark}
            assert {tuple(found) for found in page.evaluate(modules)} == dark
            press(page, "Hide the QR code")
            expect(code).to_have_count(0)

    look(see)


@pytest.mark.parametrize("role", ["serve", "client", "worker"])
def test_a_node_that_may_not_invite_a_browser_says_how_it_may(role: str) -> None:
    shown_status = status(members=peers(), served=(model(),))
    assert shown_status.mesh is not None
    mesh = replace(shown_status.mesh, roles=("use", "work"))
    shown_status = replace(shown_status, node=replace(shown_status.node, role=role), mesh=mesh)

    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "invite")
            page.get_by_text("This node may not invite").wait_for()
            panel = page.get_by_role("region", name="Invite a phone or another browser")
            if role == "worker":
                assert panel.count() == 0, "a browser has no use for it"
                return
            assert [line for line in panel.locator("code").all_inner_texts() if "meshd" in line] == [
                "meshd invite --expires 24h --uses 1 --role use --role work --role invite",
                "meshd leave",
                f"meshd {role} …",
            ]
            assert panel.get_by_role("button", name="Show a QR code").count() == 0
            shown.keep(f"invite-browser-cannot-{role}")
            assert shown.errors == []

    look(see, FakeNode({**state(shown_status), "can": ["ban_list", "invite_list"]}))
