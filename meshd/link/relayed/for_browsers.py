"""Circuits that browsers open to mailboxes of this node: byte pipes through a relay, without TLS inside.

A browser seals what it sends (link/browser/), so the relay carries as little that it can read as in circuits
between nodes.
"""

import asyncio

from meshd.base.errors import Closed, MeshdError
from meshd.base.log import get
from meshd.base.tasks import Owner
from meshd.link.interface import WelcomeBrowser
from meshd.link.relayed.control_connection import ControlConnection
from meshd.link.relayed.relay_client import RelayClient
from meshd.link.relayed.relay_pipe import RelayPipe
from meshd.link.secure.caller_rates import Callers
from meshd.wire.relay import Ring

_ENTER_SECONDS = 8.0
_log = get("relay")


class BrowserCircuits:
    """Takes calls to the boxes for browsers, while `serve` runs, and hands each circuit to `welcome`.

    `callers` counts those that prove nothing, by what the relay says of their address.
    """

    def __init__(self, client: RelayClient, welcome: WelcomeBrowser, callers: Callers) -> None:
        self._client = client
        self._welcome = welcome
        self._callers = callers

    async def serve(self) -> None:
        """Serve until cancelled."""
        async with Owner() as owner:

            def rung(control: ControlConnection, ring: Ring) -> bool:
                caller = f"{control.relay.place} {ring.caller.hex()}"
                if not self._callers.hears(caller, asyncio.get_running_loop().time()):
                    return False
                try:
                    owner.start_for(caller, self._live(control, ring, caller), name="browser circuit")
                except Closed:  # shutting down
                    return False
                return True

            self._client.on_browser = rung
            try:
                await asyncio.Event().wait()
            finally:
                self._client.on_browser = None

    async def _live(self, control: ControlConnection, ring: Ring, caller: str) -> None:
        """Run the whole life of one circuit."""
        pipe: RelayPipe | None = None
        try:
            async with asyncio.timeout(_ENTER_SECONDS):
                pipe = await RelayPipe.open(
                    control.relay, self._client.context, self._client.environ, control.allow
                )
                pipe.enter_bare(ring.ticket, relay_binding=control.binding)
        except (MeshdError, OSError, TimeoutError) as error:
            _log.debug("browser_gone", remote=control.relay.place, why=str(error) or "timed out")
            if pipe is None:
                control.hang_up(ring.ticket)
            else:
                await pipe.aclose()
            return
        if not await self._welcome(pipe, f"relay {caller}", lambda _key: None):
            self._callers.failed(caller, asyncio.get_running_loop().time())
