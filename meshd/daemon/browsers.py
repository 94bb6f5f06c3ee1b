"""Answer pages in browsers that come to this node over data channels, while it has an API."""

from functools import partial
from typing import TYPE_CHECKING

from meshd.base.tasks import in_thread

if TYPE_CHECKING:
    from meshd.gateway.server import Gateway
    from meshd.link.browser.entrance import Browsers
    from meshd.link.browser.port import BrowserPort


async def answer_browsers(browsers: "Browsers", port: "BrowserPort", gateway: "Gateway") -> None:
    """Answer what pages ask for, until cancelled; they also see the state of the mesh.

    In this network they get the page at the mesh port, if it was built.
    """
    # these need aiohttp, which nodes without an API avoid
    from meshd.gateway.browser_bridge import BrowserApi
    from meshd.gateway.pages import remote_page

    api = BrowserApi(gateway, gateway.console.states)
    page = await in_thread(remote_page)
    browsers.serve_channel, browsers.on_ban = api.serve_browser, api.forget
    if page is not None:
        port.read_page = partial(in_thread, page.plain_response)
    try:
        await api.serve()
    finally:
        browsers.serve_channel = browsers.on_ban = port.read_page = None
