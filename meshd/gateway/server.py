"""The API's server: binds at once, serves until cancelled, ends answers under way with a reason."""

import asyncio
import ipaddress
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Self

from aiohttp import web

from meshd.base.errors import UserError
from meshd.base.log import get
from meshd.gateway.accounts import Accounts
from meshd.gateway.answer_log import AnswerLog
from meshd.gateway.answer_queue import QueueLimits
from meshd.gateway.auth import KeyRing
from meshd.gateway.body import Bodies
from meshd.gateway.browser import BrowserGuard, normal_host
from meshd.gateway.chat_page import load_page
from meshd.gateway.client_connections import DoorServer, RequestGate
from meshd.gateway.interface import GatewayConfig, GatewayStatus, Models, Upstream
from meshd.gateway.listen import all_loopback, bind, resolve
from meshd.gateway.proxy import Proxy
from meshd.gateway.queued_proxy import QueuedProxy
from meshd.gateway.routes import Router, Tally
from meshd.gateway.running_answers import RunningAnswers
from meshd.gateway.turns import Turns
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
    """The API of one serving node, and its chat page. `claimed`: its port, else bound by `serve`."""

    def __init__(
        self,
        config: GatewayConfig,
        models: Models,
        claimed: ApiPort | None = None,
        *,
        log: AnswerLog | None = None,
        wall: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`log`: where answers are noted; `wall` gives unix seconds, for the log and for quotas per day."""
        self._config = config
        self._accounts = Accounts(config.api_keys, log=log, wall=wall)
        self._models = models
        self._turns = {model: _turns(config, model.upstream) for model in models.all}
        self._running = RunningAnswers()
        self._waiting = RunningAnswers()
        self._claimed = claimed
        self._tally = Tally()
        self._page = load_page()
        self._port = config.port if claimed is None else claimed.port
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
            running=sum(turns.running for turns in self._turns.values()),
            waiting=sum(turns.waiting for turns in self._turns.values()),
            keys=self._accounts.status,
        )

    async def serve(self) -> None:
        """Listen and answer until cancelled; returns when every connection is closed.

        Raises UserError as `ApiPort.claim` does.
        """
        config = self._config
        claimed = self._claimed or await ApiPort.claim(config)
        self._port = claimed.port
        bodies = Bodies(most_each=config.max_body_bytes, most_together=config.max_bodies_bytes)
        door = RequestGate()
        proxies = {
            model: Proxy(
                model.upstream,
                silence=config.keepalive_seconds,
                count_tokens=self._tally.add_tokens,
                continue_seconds=config.continue_seconds,
                running=self._running,
                waiting=self._waiting,
                on_demand=self._models.only is None,
            )
            for model in self._models.all
        }
        queued = {
            model: QueuedProxy(model.upstream, proxy, self._turns[model], self._accounts)
            for model, proxy in proxies.items()
        }
        router = Router(
            models=self._models,
            proxies=proxies,
            queued=queued,
            accounts=self._accounts,
            guard=claimed.guard,
            keys=claimed.keys,
            bodies=bodies,
            tally=self._tally,
            max_requests=config.max_requests,
            door=door,
            page=self._page,
            seeds=config.continue_seconds > 0,
        )
        async with AsyncExitStack() as opened:
            await self._accounts.open()
            opened.callback(self._accounts.close)
            for proxy in proxies.values():
                await opened.enter_async_context(proxy)
            await self._run(router, door, claimed.sockets)

    async def _run(self, router: Router, door: RequestGate, sockets: list[socket.socket]) -> None:
        server = DoorServer(door, router.handle, idle=IDLE_CONNECTION_SECONDS)
        runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            for listener in sockets:
                await web.SockSite(runner, listener).start()
            _log.info("api_listening", url=self.url)
            self.started.set()
            await door.serve()
        finally:
            self.started.clear()
            for answers in (self._waiting, self._running):
                answers.end_all("meshd is stopping")
            transports = [connection.transport for connection in server.connections]
            try:
                await runner.cleanup()
            finally:
                for listener in sockets:
                    listener.close()
                for transport in transports:
                    if transport is not None:
                        transport.abort()  # bytes that a client never took would keep it open


def _turns(config: GatewayConfig, upstream: Upstream) -> Turns:
    """With several keys, none takes all places."""

    def of_one(most: int) -> int:
        return most if len(config.api_keys) < 2 else max(1, most * 3 // 4)

    limits = QueueLimits(
        requests=config.max_requests,
        bytes=config.max_bodies_bytes,
        requests_of_one=of_one(config.max_requests),
        bytes_of_one=of_one(config.max_bodies_bytes),
    )
    return Turns(
        lambda: upstream.slots, limits=limits, max_wait=config.max_wait_seconds, clock=time.monotonic
    )


def _own_names() -> tuple[str, ...]:
    """Names by which the LAN calls this machine, as far as it knows itself."""
    name = socket.gethostname()
    return tuple(candidate for candidate in (name, f"{name}.local") if normal_host(candidate))
