"""Requests for answers of one llama-server: each waits for its turn, and what it took is noted."""

import asyncio

from aiohttp import web

from meshd.gateway.accounts import Accounts
from meshd.gateway.failure import HttpRefusal
from meshd.gateway.interface import Upstream
from meshd.gateway.proxied_call import ProxiedCall
from meshd.gateway.proxy import Proxy
from meshd.gateway.turns import Turns


class QueuedProxy:
    """`turns` and `proxy` are those of `upstream`; `accounts` may be others' as well."""

    def __init__(self, upstream: Upstream, proxy: Proxy, turns: Turns, accounts: Accounts) -> None:
        self._upstream = upstream
        self._proxy = proxy
        self._turns = turns
        self._accounts = accounts

    async def forward(self, request: web.BaseRequest, call: ProxiedCall, key: bytes) -> web.StreamResponse:
        """As Proxy.forward, when its turn has come. `key`: the digest of the key that asks."""
        meter = call.meter
        with self._turns.enter(key, len(call.body or b"")) as turn:
            try:
                call.admission.queued = turn
                response = await self._proxy.forward(request, call)
                meter.status = meter.status or response.status
                return response
            except HttpRefusal as refusal:
                meter.status = refusal.failure.status
                raise
            except asyncio.CancelledError:
                meter.hung_up()
                raise
            finally:
                self._accounts.answered(key, self._upstream.model_name, call.path, meter, turn)
