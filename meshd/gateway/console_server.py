"""The page of the mesh on a port of its own, for a node without an API: nothing else is there."""

import asyncio

from aiohttp import web

from meshd.base import log
from meshd.base.sockets import LOOPBACK_HOST
from meshd.base.tasks import Owner
from meshd.gateway.access import ApiPort
from meshd.gateway.client_connections import ApiServer, ConnectionLimits, check_framing, listening, refused
from meshd.gateway.console import LINKED_PATHS, MESH_PATH, Console, Entrance
from meshd.gateway.failure import ANSWER_HEADERS, Failure, HttpRefusal
from meshd.gateway.interface import ConsoleSource, GatewayConfig

UNUSED_SECONDS = 1800.0  # after which it ends
_LOOK_SECONDS = 30.0
_IDLE_CONNECTION_SECONDS = 75.0
_END_SECONDS = 0.5
LOG = log.get("gateway")


class ConsoleServer:
    """Serves one node's page of the mesh on loopback, until nobody has used it for half an hour."""

    def __init__(self, api: ApiPort, source: ConsoleSource) -> None:
        """Take the port, which `serve` closes, and what the page shows."""
        self._api = api
        self._limits = ConnectionLimits()
        self.console = Console(
            api.port, api.keys, Entrance(lambda _request: b"", self._limits.admit_request), source
        )
        self.is_ending = False
        """True once it answers no more: another one is needed."""

    @classmethod
    async def open(cls, source: ConsoleSource) -> "ConsoleServer":
        """Bind a free port; browsers that connect wait for `serve`. Raises UserError."""
        return cls(await ApiPort.claim(GatewayConfig(host=LOOPBACK_HOST, port=0)), source)

    @property
    def url(self) -> str:
        """Return the base URL."""
        return f"http://{LOOPBACK_HOST}:{self._api.port}"

    def close(self) -> None:
        """Close the port. Idempotent."""
        self.is_ending = True
        self._api.close()

    async def serve(self) -> None:
        """Answer until cancelled, or until the page is no longer used."""
        server = ApiServer(self._limits, self._answer, idle=_IDLE_CONNECTION_SECONDS)
        try:
            async with listening(server, self._api.sockets, end_seconds=_END_SECONDS):
                LOG.info("page_listening", url=self.url)
                try:
                    await self._until_unused()
                finally:
                    self.is_ending = True
                    self.console.close()
        finally:
            self.close()

    async def _until_unused(self) -> None:
        async with Owner() as owner:
            owner.start(self._limits.serve(), name="page connections")
            owner.start(self.console.serve(), name="page of the mesh")
            while self.console.unused_seconds < UNUSED_SECONDS:  # noqa: ASYNC110 - no event announces it
                await asyncio.sleep(_LOOK_SECONDS)
            owner.cancel()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            check_framing(request.headers)
            self._api.guard.check(request.headers, opens_page=request.path in LINKED_PATHS)
            if not Console.answers(request.path):
                message = f"this node has no API, only the page at `{MESH_PATH}`"
                raise HttpRefusal(Failure(404, message, code="unknown_path"))
            return await self.console.answer(request, ANSWER_HEADERS)
        except HttpRefusal as refusal:
            return refused(request, refusal, ANSWER_HEADERS)
