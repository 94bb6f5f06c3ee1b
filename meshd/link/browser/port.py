"""The mesh port for browsers: the page, at `/`, and the WebSocket by which it comes to this node.

Anybody in the network may request the page, which holds no secret. It is served only while a browser is
expected: a node that has never invited a browser answers no HTTP.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from meshd.base.errors import MeshdError, RemoteProtocolError
from meshd.base.log import get
from meshd.link.browser.entrance import Browsers
from meshd.link.interface import LetIn
from meshd.link.net.local_addresses import path_between
from meshd.link.secure.entrance import Visiting
from meshd.wire.address import Candidate
from meshd.wire.browser import SIGNAL_PATH
from meshd.wire.websocket import read_path, read_request, refuse

REQUEST_SECONDS = 5.0
ANSWER_SECONDS = 20.0  # for the page to be sent; a browser that reads more slowly is cut off
PAGE_PATH = "/"
_log = get("browsers")

ReadPage = Callable[[], Awaitable[bytes]]
"""Returns the page with the head of its HTTP answer."""


class BrowserPort:
    """Answers browsers at the mesh port (implements Visitors).

    `is_awaited`: whether this node has invited browsers. The daemon sets `read_page` while its API runs.
    """

    def __init__(self, browsers: Browsers, is_awaited: Callable[[], bool]) -> None:
        self._browsers = browsers
        self._is_awaited = is_awaited
        self.read_page: ReadPage | None = None

    def expects(self, local: str, remote: str) -> bool:
        """Return True if a browser that comes from one address to the other is answered at all."""
        near = path_between(local, remote) != "public"
        return near and self.read_page is not None and self._is_awaited()

    async def serve(self, visit: Visiting, let_in: LetIn) -> bool:
        """Run the whole life of a visit; False: its browser has proven nothing."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await visit.request()
            if _path(head) == SIGNAL_PATH:
                await visit.open(read_request(head)[1])
                return await self._browsers.welcome(visit, visit.remote, let_in)
            read_page = self.read_page if _path(head) == PAGE_PATH else None
            answer = refuse() if read_page is None else await read_page()
            async with asyncio.timeout(ANSWER_SECONDS):
                await visit.answer(answer)
        except RemoteProtocolError as error:
            _log.debug("browser_gone", remote=visit.remote, why=str(error))
            visit.abort()
        except (MeshdError, TimeoutError) as error:
            _log.debug("browser_gone", remote=visit.remote, why=str(error) or "timed out")
        return False


def _path(head: bytes) -> str:
    return read_path(head).partition("?")[0]


def page_place(candidates: Sequence[Candidate]) -> str:
    """Return `host:port` where browsers in this network find the mesh port, `candidates` being its own.

    IPv4 in the network goes first, as every phone has it; loopback last, for a node that listens only there.
    Empty: there is none.
    """
    own = [candidate for candidate in candidates if candidate.proto == "tcp" and candidate.kind == "host"]
    near = [candidate for candidate in own if candidate.is_private] or [
        candidate for candidate in own if candidate.is_link_local
    ]
    near.sort(key=lambda candidate: candidate.is_v6)
    local = [candidate for candidate in own if candidate.is_loopback]
    chosen = near or (local if len(local) == len(own) else [])
    return chosen[0].place if chosen else ""
