"""A browser without a screen at the page of the mesh of a real node: a session, states and actions."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from meshd.admin.api import UiRequest
from meshd.admin.client import ask
from meshd.fleet.fleet import LocalNode

LONG = 300  # seconds of an action: a plan times devices


@dataclass
class MeshPage:
    """The page of one node, in a session."""

    http: aiohttp.ClientSession
    url: str
    headers: dict[str, str]

    async def states(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the states as they come."""
        async with self.http.get(f"{self.url}/mesh/state", headers=self.headers) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

    async def until(
        self,
        holds: Callable[[dict[str, Any]], object],
        states: AsyncIterator[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Watch until something holds of the state; return that state. `states`: go on with these."""
        async for state in states or self.states():
            if holds(state):
                return state
        raise AssertionError("the stream of states has ended")

    async def act(self, name: str, /, **fields: object) -> dict[str, Any]:
        """Do something; return its result."""
        status, answer = await self.post(name, **fields)
        assert status == 200, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def post(self, name: str, /, **fields: object) -> tuple[int, dict[str, Any]]:
        """Ask for an action; return the HTTP status and the JSON of the answer."""
        headers = {**self.headers, "Origin": self.url}
        async with self.http.post(f"{self.url}/mesh/do/{name}", json=fields, headers=headers) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def mesh_page(node: LocalNode) -> AsyncIterator[MeshPage]:
    """Open the page of a node by a link, as `meshd ui` does."""
    link = (await asyncio.to_thread(ask, node.spec.home, UiRequest())).url
    timeout = aiohttp.ClientTimeout(total=None, sock_read=LONG)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        async with http.get(link, allow_redirects=False) as opened:
            assert opened.headers["Location"] == "/mesh", opened.headers
            cookie = opened.headers["Set-Cookie"].partition(";")[0]
        yield MeshPage(http, link.partition("/mesh")[0], {"Cookie": cookie})
