"""What this machine exposes, on the page of the mesh in a real Chromium: shown, changed, and inert."""

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from meshd.admin.api import ExposedList
from meshd.gateway.pages import MESH_FOLDER

from tests.e2e.browser import expect, needs_chromium, tab
from tests.process.mesh_views_fake import (
    ATTIC,
    EXPOSED,
    GARAGE,
    HOSTILE,
    FakeNode,
    Refusal,
    peers,
    state,
    status,
)
from tests.process.test_mesh_views_in_chromium import do, look, opened, press

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.timeout(300),
    needs_chromium,
    pytest.mark.skipif(not MESH_FOLDER.exists(), reason="`make chat` has not built the page"),
]


def fill_service(page: "Page", name: str, target: str, *nodes: str) -> None:
    page.get_by_role("textbox", name="Name for the service").fill(name)
    page.get_by_role("textbox", name="Address of the service").fill(target)
    for node in nodes:
        page.get_by_role("checkbox", name=node).check()


def test_a_service_is_exposed_to_chosen_machines_after_a_question() -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        with tab(browser) as shown:
            page = opened(shown, node, "network")
            page.get_by_text(f"meshd tunnel open {'d' * 52} ssh").wait_for()
            for mistake, filled in (
                ("Give the service a name", (" ", "")),
                ("Give the address", ("ssh", " ")),
                ("Choose at least one machine", ("ssh", "nas.lan:22")),
            ):
                fill_service(page, *filled)
                press(page, "Expose it")
                page.get_by_role("alert").filter(has_text=mistake).wait_for()
            fill_service(page, "ssh", " nas.lan:22 ", "attic", "garage")
            line = f"meshd expose ssh nas.lan:22 --to {GARAGE} --to {ATTIC}"
            page.locator("form").get_by_text(line, exact=True).wait_for()
            press(page, "Expose it")
            dialog = page.get_by_role("dialog", name="Expose ssh?")
            asked = dialog.inner_text()
            assert line in asked and "connect to nas.lan:22 through this machine" in asked
            assert "garage (rpbcgn66vn), attic (k2hq7xw4me)" in asked
            assert "that has that name now: 127.0.0.1:22, exposed to garage (rpbcgn66vn)." in asked
            shown.keep("expose-asked")
            dialog.get_by_role("button", name="Cancel").click()
            assert node.fields_of("expose") == []
            node.results["expose"] = replace(EXPOSED, target="nas.lan:22")
            with page.expect_response("**/mesh/do/expose_list"):  # it is listed again
                do(page, ("Expose it", "Expose it"))
            done = page.get_by_role("status").filter(has_text="ssh (nas.lan:22) is exposed to garage")
            done.filter(has_text="nas.lan:22 is not a loopback address").wait_for()
            assert node.fields_of("expose") == [
                {"name": "ssh", "target": "nas.lan:22", "to": [GARAGE, ATTIC]}
            ]
            expect(page.locator("main form input[type=checkbox]:checked")).to_have_count(0)
            assert shown.errors == []

    assert len(look(see).fields_of("expose_list")) == 2


@pytest.mark.parametrize(
    ("refusal", "words", "command"),
    [
        (Refusal("`a b` cannot be the name of a service", "use letters"), "use letters", "meshd expose"),
        (
            Refusal("this opens a service to other nodes", code="fresh_link", status=403),
            "opened within the last 10 minutes",
            "meshd ui",
        ),
    ],
    ids=["a wrong name", "an old session"],
)
def test_a_service_that_is_not_exposed_stays_in_the_form(refusal: Refusal, words: str, command: str) -> None:
    def see(node: FakeNode, browser: "Browser") -> None:
        node.results["expose"] = refusal
        with tab(browser) as shown:
            page = opened(shown, node, "network")
            fill_service(page, "a b", "127.0.0.1:22", "attic")
            do(page, ("Expose it", "Expose it"))
            fault = page.get_by_role("alert").filter(has_text=words)
            fault.wait_for()
            assert fault.locator("code").last.inner_text().startswith(command)
            assert page.get_by_role("textbox", name="Name for the service").input_value() == "a b"
            assert page.get_by_role("checkbox", name="attic").is_checked()

    assert len(look(see).fields_of("expose_list")) == 1


@pytest.mark.parametrize("size", [(1280, 800), (360, 740)], ids=["wide", "phone"])
@pytest.mark.parametrize("name", [HOSTILE, "\x1b[2Jmeshd stop\n", "x" * 4096, "\u202etxt.ssh"])
def test_a_hostile_service_or_node_is_text_and_offers_no_command(name: str, size: tuple[int, int]) -> None:
    """As a node that was broken into would list it; and what a user has pasted into the form."""
    listed = replace(EXPOSED, name=name, target=name, to=(GARAGE, ATTIC), to_names=(name, ""))

    def see(node: FakeNode, browser: "Browser") -> None:
        node.results["expose"] = listed
        node.results["expose_list"] = ExposedList(exposed=(listed,))
        with tab(browser, size=size) as shown:
            page = opened(shown, node, "network")
            panel = page.get_by_role("region", name="Services that this machine exposes")
            panel.get_by_role("listitem").first.wait_for()
            fill_service(page, name, name, "rpbcgn66vn")
            do(page, ("Expose it", "Expose it"))
            panel.get_by_role("status").filter(has_text="is exposed to").wait_for()
            do(page, ("Stop exposing it", "Stop exposing it"))
            panel.get_by_role("status").filter(has_text="is no longer exposed").wait_for()
            assert page.locator("main img, main script").count() == 0
            assert page.title() != "taken" and shown.errors == [] and shown.foreign == []
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            assert "\u202e" not in panel.inner_text()
            for line in panel.locator("code").all_inner_texts():
                assert line.isprintable() and shlex.split(line)[:2] in (
                    ["meshd", "expose"],
                    ["meshd", "tunnel"],
                )

    node = look(see, FakeNode(state(status(members=peers(name)))))
    assert [len(node.fields_of(action)) for action in ("expose", "expose_remove")] == [1, 1]
