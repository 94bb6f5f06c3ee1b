"""Answer pages in browsers that come to this node over data channels, while it has an API."""

from typing import TYPE_CHECKING

from meshd.gateway.interface import ConsoleSource, MemberGate

if TYPE_CHECKING:
    from meshd.link.browser.entrance import Browsers


async def answer_browsers(browsers: "Browsers", gate: MemberGate, source: ConsoleSource) -> None:
    """Answer what pages ask for, until cancelled; they also see the state of the mesh."""
    from meshd.gateway.browser_bridge import BrowserApi  # needs aiohttp, which nodes without an API avoid

    api = BrowserApi(gate, source)
    browsers.serve_channel = api.serve_browser
    try:
        await api.serve()
    finally:
        browsers.serve_channel = None
