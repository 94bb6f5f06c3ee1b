"""The API's server: it serves until cancelled, and then ends running answers with a reason."""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence

from aiohttp import web

from meshd.base.admission import Slots
from meshd.base.errors import Broken
from meshd.base.log import get
from meshd.base.peer_limits import Share
from meshd.base.sockets import adopt
from meshd.base.tasks import Owner
from meshd.gateway.access import ApiPort
from meshd.gateway.answer import AnswerContext
from meshd.gateway.client_connections import ApiServer, ConnectionLimits
from meshd.gateway.interface import GatewayStatus, MemberCaller, Models
from meshd.gateway.own_answers import load_page
from meshd.gateway.request import Bodies
from meshd.gateway.router import RequestCounts, Router
from meshd.gateway.turns import Accounts, AllTurns, AnswerLog
from meshd.model.status import ModelState

IDLE_CONNECTION_SECONDS = 75.0
SHUTDOWN_SECONDS = 1.0  # for clients to take the last event; those that do not read are cut off

_log = get("gateway")


class Gateway:
    """The API of one node, and its chat page; implements MemberGate."""

    def __init__(
        self, api: ApiPort, models: Models, *, wall: Callable[[], float], log: AnswerLog | None = None
    ) -> None:
        """Take the API's port, which `serve` closes, the models, and the `log` of answers.

        `wall` gives unix seconds, for the log and for daily quotas.
        """
        config = api.config
        self._api = api
        self._config = config
        self._accounts = Accounts(config.api_keys, log=log, wall=wall)
        self._models = models
        self._wall = wall
        self._turns = AllTurns()
        self._counts = RequestCounts()
        self._answers = AnswerContext(
            config, on_demand=models.on_demand, count_tokens=self._counts.add_tokens
        )
        self._page = load_page()
        self._server: ApiServer | None = None
        of_key = Share("", api.keys.share_of(config.max_requests), "key", "")
        self._places = Slots(Share("", config.max_requests, "node", ""), of_key)
        self.started = asyncio.Event()

    @property
    def url(self) -> str:
        """Return the base URL for a client on this machine."""
        host, port = self._config.host, self._api.port
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return f"http://{host}:{port}"
        if address.is_unspecified:
            host = "127.0.0.1" if address.version == 4 else "::1"
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def status(self) -> GatewayStatus:
        """Return the API's state now, and counts since the start."""
        return GatewayStatus(
            url=self.url,
            ready=any(model.upstream.readiness.state is ModelState.READY for model in self._models.all),
            requests=self._counts.requests,
            tokens=self._counts.tokens,
            running=self._turns.running,
            waiting=self._turns.waiting,
            keys=self._accounts.status,
            reason=self._models.readiness.reason,
            continue_s=self._config.continue_seconds,
        )

    def requests_of(self, model: str) -> int:
        """Count the requests for a model that are under way."""
        return self._counts.requests_of(model)

    @property
    def key_digests(self) -> Sequence[bytes]:
        """Return the digests of the accepted API keys."""
        return self._api.keys.digests

    async def take(self, connection: socket.socket, member: MemberCaller) -> None:
        """Answer on a member's connection. Raises Broken while the API is starting or stopping."""
        connection.setblocking(False)
        if (server := self._server) is None:
            connection.close()
            raise Broken("the API is starting or stopping")
        await adopt(connection, lambda: server(member))

    async def serve(self) -> None:
        """Answer until cancelled; return when all connections and the port are closed.

        Raises UserError if the log of answers cannot be read.
        """
        config = self._config
        bodies = Bodies(most_each=config.max_body_bytes, most_together=config.max_bodies_bytes)
        limits = ConnectionLimits()
        router = Router(
            models=self._models,
            answers=self._answers,
            turns=self._turns,
            accounts=self._accounts,
            guard=self._api.guard,
            keys=self._api.keys,
            bodies=bodies,
            counts=self._counts,
            places=self._places,
            limits=limits,
            page=self._page,
            holds=config.continue_seconds > 0 and not config.fails_over,
            wall=self._wall,
        )
        try:
            await self._accounts.open()
            await self._run(router, limits)
        finally:
            self._accounts.close()
            self._api.close()

    async def _run(self, router: Router, limits: ConnectionLimits) -> None:
        server = ApiServer(limits, router.handle, idle=IDLE_CONNECTION_SECONDS)
        runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        self._server = server
        try:
            for listener in self._api.sockets:
                await web.SockSite(runner, listener).start()
            _log.info("api_listening", url=self.url)
            self.started.set()
            async with Owner() as owner:
                owner.start(limits.serve(), name="api connections")
        finally:
            self.started.clear()
            self._server = None
            self._answers.end_all("meshd is stopping")
            transports = [connection.transport for connection in server.connections]
            try:
                await runner.cleanup()
            finally:
                self._api.close()
                for transport in transports:
                    if transport is not None:
                        transport.abort()  # bytes that a client never took would keep it open
