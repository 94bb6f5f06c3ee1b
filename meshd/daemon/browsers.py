"""Answer pages in browsers that come to this node over data channels, while it has an API."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshd.gateway.server import Gateway
    from meshd.link.browser.entrance import Browsers


async def answer_browsers(browsers: "Browsers", gateway: "Gateway") -> None:
    """Answer what pages ask for, until cancelled; they also see the state of the mesh."""
    from meshd.gateway.browser_bridge import BrowserApi  # needs aiohttp, which nodes without an API avoid

    api = BrowserApi(gateway, gateway.console.states)
    browsers.serve_channel, browsers.on_ban = api.serve_browser, api.forget
    try:
        await api.serve()
    finally:
        browsers.serve_channel = browsers.on_ban = None
