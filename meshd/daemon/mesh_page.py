"""Open the page of the mesh: on the port of this node's API, or on a port of its own while browsers use it.

A node without an API avoids aiohttp (11 MB) until somebody asks for the page.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from meshd.admin.api import UiLinkReply, UiLinkRequest, UiReply, UiRequest
from meshd.admin.request import Answers
from meshd.base.errors import UserError
from meshd.base.fault_boundary import ended
from meshd.gateway.interface import ConsoleSource

if TYPE_CHECKING:
    from meshd.gateway.console import Console
    from meshd.gateway.console_server import ConsoleServer
    from meshd.gateway.server import Gateway


class MeshPage(Answers):
    """Answers requests for links to the page. `serve` runs the server that a node without an API needs."""

    def __init__(
        self,
        *,
        lan_url: Callable[[str], str | None],
        has_api: Callable[[], bool],
        gateway: "Callable[[], Gateway | None]",
        make_source: Callable[[], ConsoleSource],
    ) -> None:
        """`has_api`: whether the role has an API; `gateway`: that API, None until it is made.

        `lan_url` returns the API's URL for other devices, None if it is not open to them. `make_source` is
        called once, when the page is first needed.
        """
        self._lan_url = lan_url
        self._has_api = has_api
        self._gateway = gateway
        self._make_source = make_source
        self._source: ConsoleSource | None = None
        self._server: ConsoleServer | None = None
        self._opening = asyncio.Lock()
        self._opened = asyncio.Event()

    @property
    def source(self) -> ConsoleSource:
        """Return what the page shows and does."""
        if self._source is None:
            self._source = self._make_source()
        return self._source

    @UiRequest.answer
    async def link(self, request: UiRequest) -> UiReply:
        console, url = await self._open()
        link = console.link()
        lan_url = self._lan_url(url) if self._has_api() else None
        return UiReply(
            url=url + link.path, id=link.name, lan_url="" if lan_url is None else lan_url + link.path
        )

    @UiLinkRequest.answer
    async def link_state(self, request: UiLinkRequest) -> UiLinkReply:
        gateway = self._gateway()
        server = gateway if self._has_api() else self._server
        return UiLinkReply(state=server.console.link_state(request.id) if server is not None else "ended")

    async def serve(self) -> None:
        """Run the server whenever one was opened, until cancelled."""
        try:
            while True:
                await self._opened.wait()
                self._opened.clear()
                server = self._server
                if server is not None:
                    await ended(server.serve(), source="page of the mesh", name="server")
                    server.close()
        finally:
            if self._server is not None:
                self._server.close()

    async def _open(self) -> "tuple[Console, str]":
        """Return the page and its base URL. Raises UserError."""
        if self._has_api():
            gateway = self._gateway()
            if gateway is None or not gateway.started.is_set():
                raise UserError("the API of this node is starting or stopping", hint="try again in a moment")
            return gateway.console, gateway.url
        async with self._opening:
            if self._server is None or self._server.is_ending:
                await asyncio.to_thread(_import_server)
                from meshd.gateway.console_server import ConsoleServer

                self._server = await ConsoleServer.open(self.source)
                self._opened.set()
            return self._server.console, self._server.url


def _import_server() -> None:
    """Import what the server needs, which may take long, so call this in a thread."""
    import meshd.gateway.console_server  # noqa: F401 - imported for the code that opens one
