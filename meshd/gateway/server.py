"""The API's server: binds at once, serves until cancelled, ends answers under way with a reason."""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from aiohttp import web

from meshd.base.accepted_socket import adopt
from meshd.base.errors import Broken, UserError
from meshd.base.log import get
from meshd.base.peer_limits import Share
from meshd.base.tasks import Owner
from meshd.base.work_slots import Slots
from meshd.gateway.accounts import Accounts
from meshd.gateway.answer_log import AnswerLog
from meshd.gateway.auth import KeyRing
from meshd.gateway.body import Bodies
from meshd.gateway.browser import BrowserGuard, normal_host
from meshd.gateway.chat_page import load_page
from meshd.gateway.client_connections import DoorServer, RequestGate
from meshd.gateway.interface import GatewayConfig, GatewayStatus, MemberCaller, Models
from meshd.gateway.kept_folder import KeptFolder
from meshd.gateway.kept_proxy import KeptProxy
from meshd.gateway.listen import all_loopback, bind, resolve
from meshd.gateway.proxy import Proxy
from meshd.gateway.queued_proxy import AllTurns, QueuedProxy
from meshd.gateway.routes import Router, Tally
from meshd.model.status import ModelState

IDLE_CONNECTION_SECONDS = 75.0
SHUTDOWN_SECONDS = 1.0  # for clients to take the last event; those that do not read are cut off

_log = get("gateway")


@dataclass(frozen=True, slots=True)
class ApiPort:
    """The API's port, bound and with its guards, before there is anything to answer: connections wait."""

    config: GatewayConfig
    guard: BrowserGuard
    keys: KeyRing
    sockets: list[socket.socket]

    @classmethod
    async def claim(cls, config: GatewayConfig) -> Self:
        """Raises UserError when the port cannot be had, when the API would be open to a network without a
        key, or for an allowed host or origin that is none."""
        addresses = await resolve(config.host)
        loopback_only = all_loopback(addresses)
        keys = KeyRing(config.api_keys)
        if not loopback_only and not keys:
            raise UserError(
                f"the API on `{config.host}` would be open to everyone in the network",
                hint="give API keys with `--api-key-file FILE`, or listen on 127.0.0.1",
            )
        guard = BrowserGuard(
            bound_host=config.host,
            names=(*config.allowed_hosts, *(() if loopback_only else _own_names())),
            origins=config.allowed_origins,
        )
        return cls(config, guard, keys, bind(addresses, config.port))

    @property
    def port(self) -> int:
        """The real one, where 0 was asked for."""
        port: int = self.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Idempotent."""
        for listener in self.sockets:
            listener.close()


class Gateway:
    """The API of one node, and its chat page; implements MemberGate. `claimed`: its port, else bound by
    `serve`."""

    def __init__(
        self,
        config: GatewayConfig,
        models: Models,
        claimed: ApiPort | None = None,
        *,
        log: AnswerLog | None = None,
        kept: KeptFolder | None = None,
        wall: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`log`: where answers are noted; `kept`: where those are for which clients may come back.

        `wall` gives unix seconds, for the log and for quotas per day.
        """
        self._config = config
        self._accounts = Accounts(config.api_keys, log=log, wall=wall)
        self._kept = kept
        self._models = models
        self._turns = AllTurns(max_wait=config.max_wait_seconds)
        self._claimed = claimed
        self._tally = Tally()
        self._proxy = Proxy(
            silence=config.keepalive_seconds,
            count_tokens=self._tally.add_tokens,
            continue_seconds=config.continue_seconds,
            fails_over=config.fails_over,
            on_demand=models.on_demand,
        )
        self._page = load_page()
        self._port = config.port if claimed is None else claimed.port
        self._server: DoorServer | None = None
        self._keys = KeyRing(config.api_keys)
        of_key = Share("", self._keys.share_of(config.max_requests), "key", "")
        self._places = Slots(Share("", config.max_requests, "node", ""), of_key)
        self.started = asyncio.Event()

    @property
    def url(self) -> str:
        """Base URL for a client on this machine; the port is the real one once `started` is set."""
        host = self._config.host
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return f"http://{host}:{self._port}"
        if address.is_unspecified:
            host = "127.0.0.1" if address.version == 4 else "::1"
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"

    @property
    def status(self) -> GatewayStatus:
        """Counts since the start."""
        return GatewayStatus(
            url=self.url,
            ready=any(one.upstream.readiness.state is ModelState.READY for one in self._models.all),
            requests=self._tally.requests,
            tokens=self._tally.tokens,
            running=self._turns.running,
            waiting=self._turns.waiting,
            keys=self._accounts.status,
            reason=self._models.readiness.reason,
            continue_s=self._config.continue_seconds,
        )

    def requests_of(self, model: str) -> int:
        """See MemberGate."""
        return self._tally.requests_of(model)

    @property
    def key_digests(self) -> Sequence[bytes]:
        """See MemberGate."""
        return self._keys.digests

    async def take(self, connection: socket.socket, member: MemberCaller) -> None:
        """See MemberGate."""
        connection.setblocking(False)
        if (server := self._server) is None:
            connection.close()
            raise Broken("the API is starting or stopping")
        await adopt(connection, lambda: server(member))

    async def serve(self) -> None:
        """Listen and answer until cancelled; returns when every connection is closed.

        Raises UserError as `ApiPort.claim` does.
        """
        config = self._config
        claimed = self._claimed or await ApiPort.claim(config)
        self._port = claimed.port
        bodies = Bodies(most_each=config.max_body_bytes, most_together=config.max_bodies_bytes)
        door = RequestGate()
        queued = QueuedProxy(self._proxy, self._turns, self._accounts)
        router = Router(
            models=self._models,
            proxy=self._proxy,
            queued=KeptProxy(queued, self._kept, silence=config.keepalive_seconds),
            accounts=self._accounts,
            guard=claimed.guard,
            keys=claimed.keys,
            bodies=bodies,
            tally=self._tally,
            places=self._places,
            door=door,
            page=self._page,
            seeds=config.continue_seconds > 0 or config.fails_over,
        )
        if self._kept is not None:
            await self._kept.open()
        await self._accounts.open()
        try:
            await self._run(router, door, claimed.sockets)
        finally:
            self._accounts.close()

    async def _run(self, router: Router, door: RequestGate, sockets: list[socket.socket]) -> None:
        server = DoorServer(door, router.handle, idle=IDLE_CONNECTION_SECONDS)
        runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        self._server = server
        try:
            for listener in sockets:
                await web.SockSite(runner, listener).start()
            _log.info("api_listening", url=self.url)
            self.started.set()
            async with Owner() as owner:
                owner.start(door.serve(), name="api connections")
                if self._kept is not None:
                    owner.start(self._kept.serve(), name="kept answers")
        finally:
            self.started.clear()
            self._server = None
            self._proxy.end_all("meshd is stopping")
            transports = [connection.transport for connection in server.connections]
            try:
                await runner.cleanup()
            finally:
                for listener in sockets:
                    listener.close()
                for transport in transports:
                    if transport is not None:
                        transport.abort()  # bytes that a client never took would keep it open


def _own_names() -> tuple[str, ...]:
    """Names by which the LAN calls this machine, as far as it knows itself."""
    name = socket.gethostname()
    return tuple(candidate for candidate in (name, f"{name}.local") if normal_host(candidate))
