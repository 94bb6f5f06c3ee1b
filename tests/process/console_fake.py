"""A source for the page of the mesh, and a browser that is faithful to what browsers send."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import aiohttp
from meshd.base.errors import UserError
from meshd.gateway.console import MESH_PATH

from tests.process.gateway_fake import World

OURS = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
LINKED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@dataclass
class FakeSource:
    """Implements ConsoleSource: shows `state`, and notes what is done."""

    state: dict[str, object] = field(default_factory=lambda: {"number": 0})
    done: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    watching: int = 0
    raises: Exception | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def watch(self) -> AsyncIterator[Mapping[str, object]]:
        self.watching += 1
        try:
            while True:
                if self.raises is not None:
                    raise self.raises
                yield self.state
                async with self.changed:
                    await self.changed.wait()
        finally:
            self.watching -= 1

    async def act(self, name: str, fields: Mapping[str, object]) -> Mapping[str, object]:
        if self.raises is not None:
            raise self.raises
        if name == "unknown":
            raise UserError("there is no such action", hint="use another")
        self.done.append((name, fields))
        return {"name": name}

    async def show(self, state: dict[str, object]) -> None:
        async with self.changed:
            self.state = state
            self.changed.notify_all()


@dataclass
class Browser:
    """One browser at a node: it keeps cookies by host and path, and sends what a browser would."""

    here: World
    cookies: dict[str, str] = field(default_factory=dict)
    streams: list[aiohttp.ClientResponse] = field(default_factory=list)

    async def open(
        self, path: str | None = None, headers: Mapping[str, str] = LINKED
    ) -> aiohttp.ClientResponse:
        """Follow a link of `meshd ui`; None: a new one."""
        path = self.here.gateway.console.link().path if path is None else path
        answer = await self.ask("GET", path, headers)
        for name, morsel in answer.cookies.items():
            self.cookies[name] = morsel.value
        return answer

    async def do(
        self, name: str, fields: object = None, headers: Mapping[str, str] | None = None
    ) -> aiohttp.ClientResponse:
        """Send an action as the page does."""
        sent = {"Origin": self.here.url, **OURS, **(headers or {})}
        return await self.ask("POST", f"{MESH_PATH}/do/{name}", sent, json=fields or {})

    async def state(self, headers: Mapping[str, str] = OURS) -> aiohttp.ClientResponse:
        """Ask for the stream of states."""
        return await self.ask("GET", f"{MESH_PATH}/state", headers)

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str], **more: object
    ) -> aiohttp.ClientResponse:
        """Send any request with the cookies."""
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = {**headers, **({"Cookie": cookies} if cookies else {})}
        url = self.here.url + path
        answer = await self.here.http.request(method, url, headers=sent, allow_redirects=False, **more)  # type: ignore[arg-type]  # options of aiohttp
        if answer.content_type == "text/event-stream":
            self.streams.append(answer)
        else:
            await answer.read()
        return answer

    def close(self) -> None:
        """End its streams."""
        for stream in self.streams:
            stream.close()


async def next_event(answer: aiohttp.ClientResponse) -> bytes:
    """Return the next event or comment of a stream; empty at its end."""
    return await answer.content.readuntil(b"\n\n", max_size=1 << 20)


async def code_of(answer: aiohttp.ClientResponse) -> tuple[int, str]:
    """Return status and code of a refusal; the code is empty if it is none."""
    if answer.status < 400:
        return answer.status, ""
    error = (await answer.json())["error"]
    return answer.status, str(error["code"])
