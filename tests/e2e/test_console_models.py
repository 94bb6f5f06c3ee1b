"""Real models on the page, in a real Chromium: its user picks one of several, and shows one a picture.

With MESHD_SCREENS the pictures are kept in that folder.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from meshd.gateway.pages import CHAT_FOLDER

from tests.e2e.browser import Tab, chromium, needs_chromium, tab
from tests.e2e.nodes import Fleet, api_of, play
from tests.e2e.random_models import random_model
from tests.e2e.random_parts import WIDTH
from tests.e2e.random_projector import random_projector
from tests.e2e.test_console import QUESTION, ask
from tests.e2e.test_many_models import SMOL, TINY, gateway, states
from tests.process.test_chat_for_people import PIXEL, pick

if TYPE_CHECKING:
    from playwright.sync_api import FilePayload

pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(600),
    needs_chromium,
    pytest.mark.skipif(not CHAT_FOLDER.exists(), reason="`make chat` has not built the page"),
]


def choose(opened: Tab, now: str, model: str) -> None:
    """Choose a model with the keyboard, and wait until it is loaded."""
    pick(opened.page, now, model)
    opened.page.get_by_text(f"Model loaded: {model}").wait_for()
    opened.keep(f"models-{model}")


def test_a_user_picks_a_model_sees_it_load_and_it_answers(tmp_path: Path) -> None:
    def look(url: str) -> list[str]:
        answers = []
        with chromium() as browser, tab(browser) as opened:
            opened.page.goto(url)
            for now, model in (("smol", "tiny"), ("tiny", "smol")):
                choose(opened, now, model)
                ask(opened, QUESTION)
                if model == "smol":
                    opened.page.get_by_role("main").get_by_text("Paris").first.wait_for()
                opened.keep(f"answer-{model}")
                answers.append(opened.page.get_by_role("main").inner_text())
                opened.page.keyboard.press("Control+Shift+O")  # tiny has filled its context
                opened.page.get_by_role("group", name="Assistant message").wait_for(state="hidden")
            assert opened.errors == []
        return answers

    async def scenario() -> None:
        async with gateway(tmp_path, SMOL, TINY) as (_fleet, head, _worker):
            random, sensible = await asyncio.to_thread(look, api_of(await head.status()).url)
            assert "Paris" in sensible and "Paris" not in random
            assert states(await head.status()) == {"smol": "ready", "tiny": "unloaded"}

    play(scenario())


def test_a_model_that_sees_is_shown_a_picture(tmp_path: Path) -> None:
    def look(url: str) -> None:
        with chromium() as browser, tab(browser) as opened:
            page = opened.page
            page.goto(url)
            page.get_by_role("textbox", name="Type a message").fill("bula?")
            picture: FilePayload = {"name": "dot.png", "mimeType": "image/png", "buffer": PIXEL}
            page.locator("input[type=file]").first.set_input_files([picture])
            page.get_by_role("img", name="dot.png").first.wait_for()
            with page.expect_response("**/v1/chat/completions") as answered:
                page.get_by_role("button", name="Send").click()
            assert answered.value.status == 200
            page.get_by_role("group", name="Assistant message").wait_for()
            opened.keep("picture")
            assert opened.errors == []

    async def scenario() -> None:
        projector = ("--mmproj", str(random_projector(WIDTH)))
        async with Fleet(tmp_path) as fleet:
            spec = ("--min-workers", "0", "--ctx-size", "512", *projector, "--", "-t", "1", "-n", "8")
            head = await fleet.head(random_model("llama"), *spec)
            api = api_of(await fleet.ready(head))
            await asyncio.to_thread(look, api.url)
            asked: dict[str, object] = {"id": "chatcmpl-unknown", "action": "reasoning_end"}
            ended = await api.ask("POST", "/v1/chat/completions/control", asked)
            assert (ended.status, ended.body["success"]) == (200, False), "no such answer runs"

    play(scenario())
