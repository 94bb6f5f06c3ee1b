"""A real Chromium before a node, driven by playwright: what it asked for, and what it complained about.

`MESHD_SCREENS=DIR` keeps pictures of the pages there.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:  # its import takes long, and each process of `pytest -n` imports all tests
    from playwright.sync_api import Browser, Locator, Page, Playwright
    from playwright.sync_api._generated import LocatorAssertions, PageAssertions

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's package `chromium`")

# no services of its maker, whose requests would be the only packets that leave this machine
_ARGUMENTS = (
    *("--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run"),
    *(
        "--disable-features=OptimizationHints,MediaRouter",
        "--host-resolver-rules=MAP *.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ),
)
_PATIENCE_MS = 60_000
_LOOK_MS = 2_000

Scheme = Literal["dark", "light"]


@dataclass(slots=True)
class Tab:
    """A page, with the errors of its console and scripts, and all that it asked for."""

    page: "Page"
    errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @property
    def foreign(self) -> list[str]:
        """Return what it requested from other origins; data in the page itself has no host."""
        own = urlsplit(self.page.url).netloc
        return [url for url in self.asked if (host := urlsplit(url).netloc) and host != own]

    def keep(self, name: str, *, part: str = "") -> None:
        """Keep a picture of what is seen, or of a `part` by its selector, if somebody wants them."""
        if (folder := os.environ.get("MESHD_SCREENS")) is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            shown = self.page.locator(part) if part else self.page
            shown.screenshot(path=f"{folder}/{name}.png")


@overload
def expect(shown: "Page") -> "PageAssertions": ...
@overload
def expect(shown: "Locator") -> "LocatorAssertions": ...
def expect(shown: "Page | Locator") -> "PageAssertions | LocatorAssertions":
    """Assert on a page that may still be drawing; it is looked at again for up to a minute."""
    from playwright.sync_api import expect as playwright_expect

    playwright_expect.set_options(timeout=_PATIENCE_MS)
    return playwright_expect(shown)


WEBRTC = ("--allow-loopback-in-peer-connection", "--disable-features=WebRtcHideLocalIpsWithMdns")


@contextmanager
def chromium(*more: str) -> Iterator["Browser"]:
    """A browser, which is gone when the block is left. Not for a thread with an event loop.

    `more`: further arguments, such as WEBRTC: its connections may stay within this machine.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, launched(playwright, CHROMIUM, *more) as browser:
        yield browser


@contextmanager
def launched(playwright: "Playwright", program: str | Path | None, *more: str) -> Iterator["Browser"]:
    """One of several browsers of a thread. `program`: Chromium, or what runs it elsewhere."""
    browser = playwright.chromium.launch(executable_path=program, args=[*_ARGUMENTS, *more])
    try:
        yield browser
    finally:
        browser.close()


@contextmanager
def tab(
    browser: "Browser", *, scheme: Scheme = "light", size: tuple[int, int] = (1280, 800)
) -> Iterator[Tab]:
    """A page of a fresh profile. What it shows when its test fails becomes a note of the error."""
    from playwright.sync_api import Error

    context = browser.new_context(
        color_scheme=scheme, viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce"
    )
    context.set_default_timeout(_PATIENCE_MS)
    opened = Tab(context.new_page())
    try:
        opened.page.on("request", lambda request: opened.asked.append(request.url))
        opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))

        def heard(message: object) -> None:
            if getattr(message, "type", "") == "error":
                opened.errors.append(str(getattr(message, "text", "")))

        opened.page.on("console", heard)
        yield opened
    except Exception as error:
        with suppress(Error):  # the page may be the cause, and be gone
            seen = opened.page.locator("body").inner_text(timeout=_LOOK_MS)
            error.add_note(f"The page {opened.page.url} shows:\n{seen}\nIts errors: {opened.errors}")
        raise
    finally:
        context.close()
