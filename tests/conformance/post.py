"""Signals between nodes of a test, in memory (link/interface.py: Signals)."""

import asyncio
from collections.abc import Callable

from meshd.identity.keys import PeerId


class Post:
    """Carries signals between nodes; `tamper` may change them on the way."""

    def __init__(self) -> None:
        self._boxes: dict[PeerId, asyncio.Queue[tuple[PeerId, bytes]]] = {}
        self.tamper: Callable[[bytes], bytes] = lambda payload: payload

    def signals(self, owner: PeerId) -> "PostSignals":
        return PostSignals(self, owner)

    def box(self, owner: PeerId) -> "asyncio.Queue[tuple[PeerId, bytes]]":
        return self._boxes.setdefault(owner, asyncio.Queue(64))


class PostSignals:
    """Signals of one node."""

    def __init__(self, post: Post, owner: PeerId) -> None:
        self._post = post
        self._owner = owner

    async def send(self, peer: PeerId, payload: bytes) -> None:
        await self._post.box(peer).put((self._owner, self._post.tamper(payload)))

    async def receive(self) -> tuple[PeerId, bytes]:
        return await self._post.box(self._owner).get()
