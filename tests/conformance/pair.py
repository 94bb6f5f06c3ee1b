"""Two nodes that both dial and listen over links of one kind, arranged by signals."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from meshd.base.errors import Refused
from meshd.identity.keys import PeerId
from meshd.link.interface import DialError, Link, Listener

from tests.conformance.links import serving
from tests.conformance.nodes import Node, TestMesh
from tests.conformance.post import Post


class DialingListener(Listener, Protocol):
    """Finds the addresses of a peer by signals, so that its id is all that `dial` takes."""

    async def dial(self, peer: PeerId) -> Link: ...


K = TypeVar("K", bound=DialingListener)


@dataclass
class Pair(Generic[K]):
    """`low` has the lower id."""

    post: Post
    low: Node
    high: Node
    low_links: K
    high_links: K
    low_accepted: asyncio.Queue[Link]
    high_accepted: asyncio.Queue[Link]

    async def both_dial(self) -> tuple[Link | DialError | Refused, Link | DialError | Refused]:
        """At the same time; what comes of it for `low` and for `high`."""
        low, high = await asyncio.gather(
            outcome(self.low_links, self.high.peer), outcome(self.high_links, self.low.peer)
        )
        return low, high


@contextlib.asynccontextmanager
async def pairing(
    make_low: Callable[[Node, Post], K], make_high: Callable[[Node, Post], K]
) -> AsyncIterator[Pair[K]]:
    """Both serve until the block ends."""
    mesh, post = TestMesh(), Post()
    low, high = sorted((mesh.node(), mesh.node()), key=lambda node: node.peer)
    low_links, high_links = make_low(low, post), make_high(high, post)
    async with serving(low_links) as (low_accepted, _), serving(high_links) as (high_accepted, _):
        yield Pair(post, low, high, low_links, high_links, low_accepted, high_accepted)


async def outcome(links: DialingListener, peer: PeerId) -> Link | DialError | Refused:
    """A link, or why there is none."""
    try:
        return await links.dial(peer)
    except (DialError, Refused) as error:
        return error


async def a_ban_is_told(ends: Pair[K]) -> None:
    """A refusal of the peer is told as such."""
    ends.high.ban(ends.low.peer)
    error = await outcome(ends.low_links, ends.high.peer)
    assert isinstance(error, Refused)
    assert error.code == "banned"
