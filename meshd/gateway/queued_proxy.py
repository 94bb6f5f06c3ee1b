"""Requests for answers: each waits for its turn at its llama-server, and what it took is noted."""

import asyncio

from aiohttp import web

from meshd.gateway.accounts import Accounts
from meshd.gateway.failure import HttpRefusal
from meshd.gateway.interface import Upstream
from meshd.gateway.proxied_call import ProxiedCall
from meshd.gateway.proxy import Proxy
from meshd.gateway.turns import Turns
from meshd.model.status import ModelState


class AllTurns:
    """The queues of a gateway, one for each llama-server, made when it is first asked for."""

    def __init__(self, *, max_wait: float) -> None:
        """`max_wait`: seconds that a request waits at most."""
        self._max_wait = max_wait
        self._of: dict[Upstream, Turns] = {}

    def of(self, upstream: Upstream) -> Turns | None:
        """None where requests do not wait here; such an upstream may be of one request, and is not kept."""
        if upstream.slots is None:
            return None
        if (turns := self._of.get(upstream)) is None:
            turns = self._of[upstream] = Turns(
                lambda: upstream.slots or 1,
                max_wait=self._max_wait,
                is_loading=lambda: upstream.readiness.state is ModelState.LOADING,
                held=lambda: upstream.holds_turns,
                on_waiting=upstream.queued,
                clock=asyncio.get_running_loop().time,
            )
        return turns

    @property
    def running(self) -> int:
        """Requests whose turn has come."""
        return sum(turns.running for turns in self._of.values())

    @property
    def waiting(self) -> int:
        """Requests whose turn has not."""
        return sum(turns.waiting for turns in self._of.values())


class QueuedProxy:
    """What `turns` let in goes through `proxy`, and to `accounts` when it ends."""

    def __init__(self, proxy: Proxy, turns: AllTurns, accounts: Accounts) -> None:
        self._proxy = proxy
        self._turns = turns
        self._accounts = accounts

    async def forward(self, request: web.BaseRequest, call: ProxiedCall, key: bytes) -> web.StreamResponse:
        """As Proxy.forward, when its turn has come. `key`: the digest of the key that asks."""
        turns = self._turns.of(call.upstream)
        if turns is None:
            return await self._proxy.forward(request, call)
        meter = call.meter
        with turns.enter(key) as turn:
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
                self._accounts.answered(key, call.upstream.model_name, call.path, meter, turn)
