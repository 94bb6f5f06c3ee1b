"""The page of a node that serves a real model, in a real Chromium: a chat, in the dark and on a phone.

With MESHD_SCREENS the pictures are kept in that folder.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from meshd.gateway.pages import CHAT_FOLDER

from tests.e2e.browser import Scheme, Tab, chromium, expect, needs_chromium, tab
from tests.e2e.models import smollm2
from tests.e2e.nodes import Fleet, api_of, play

pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(600),
    needs_chromium,
    pytest.mark.skipif(not CHAT_FOLDER.exists(), reason="`make chat` has not built the page"),
]
QUESTION = "What is the capital of France? Answer in one sentence."
SIZES: dict[str, tuple[Scheme, tuple[int, int]]] = {
    "dark": ("dark", (1280, 800)),
    "light": ("light", (1280, 800)),
    "phone": ("dark", (375, 667)),
}


# notes each text of an answer that was to be seen
WATCH = """() => {
    window.seen = new Set();
    new MutationObserver(() => seen.add(document.body.innerText.length))
        .observe(document.body, {subtree: true, childList: true, characterData: true});
}"""


def served(folder: Path, look: Callable[[str], None]) -> None:
    """Look, in a thread, at the page of a node that serves SmolLM2."""

    async def scenario() -> None:
        async with Fleet(folder) as fleet:
            head = await fleet.head(smollm2(), "--min-workers", "0", "--", "--temp", "0")
            await asyncio.to_thread(look, api_of(await fleet.ready(head)).url)

    play(scenario())


def ask(opened: Tab, question: str) -> int:
    """Send a message, and wait until its answer is complete. Returns how often the page grew meanwhile."""
    box = opened.page.get_by_role("textbox", name="Type a message")
    box.fill(question)
    opened.page.evaluate(WATCH)
    with opened.page.expect_request("**/v1/chat/completions"):
        # on a phone, Enter begins a new line
        opened.page.get_by_role("button", name="Send").click()
    expect(opened.page.get_by_role("button", name="Stop")).to_have_count(0)
    return int(opened.page.evaluate("seen.size"))


def test_a_chat_streams_without_an_error_and_without_a_request_to_others(tmp_path: Path) -> None:
    def look(url: str) -> None:
        with chromium() as browser:
            for name, (scheme, size) in SIZES.items():
                with tab(browser, scheme=scheme, size=size) as opened:
                    opened.page.goto(url)
                    opened.page.get_by_role("textbox", name="Type a message").wait_for()
                    opened.keep(f"empty-{name}")
                    assert ask(opened, QUESTION) > 3, "words appear one after another"
                    opened.keep(f"chat-{name}")
                    opened.page.get_by_role("main").get_by_text("Paris").first.wait_for()
                    opened.page.reload()  # the browser keeps the chat
                    opened.page.get_by_text("Paris").first.wait_for()
                    assert opened.errors == []
                    assert opened.foreign == []

    served(tmp_path, look)
