"""Connections between mesh-servers on two machines, which seal what crosses them with keys of their daemons.

The worker that opens puts a random tag and secret into the metadata of the stream by which it asks anyway
(push_neighbours.py). The worker whose link leads to the other one's mesh port connects there and sends the
tag; the other one awaits it for some seconds, once. Where that fails, results go through both daemons.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from socket import socket
from typing import Self

from meshd.base import log
from meshd.base.errors import Broken, MeshdError
from meshd.devices.interface import AwaitedConnection, PlainConnections, Tunnels
from meshd.identity.keys import PeerId
from meshd.identity.push_keys import PUSH_SECRET_BYTES, PUSH_TAG_BYTES, PushKeys
from meshd.peer.interface import MetadataValue, Stream

SEALED = "sealed"  # in the metadata of a stream that asks: who connects, a tag and a secret
OPENER_CONNECTS, OTHER_CONNECTS = b"\x01", b"\x02"
_SECRET_AT = 1 + PUSH_TAG_BYTES
COME, NOT_COME = b"\x01", b"\x00"  # the other worker's only message on that stream
MEET_SECONDS = 3.0
LOG = log.get("worker")


@dataclass(frozen=True, slots=True)
class SealedEnd:
    """One end of a connection, and its keys: for what this side sends, then for what it gets."""

    end: socket
    keys: bytes = field(repr=False)


class SealedOffer:
    """The offer of the worker that opens. Close it in the end."""

    def __init__(self, plain: PlainConnections, tunnels: Tunnels, peer: PeerId) -> None:
        self._plain = plain
        self._peer = peer
        self._random = tunnels.random
        self._tag = self._secret = b""
        self._connects = False
        self._awaited: AwaitedConnection | None = None
        self._is_made = False

    def metadata(self) -> Mapping[str, MetadataValue]:
        """Return a new offer as the path is now; empty if none is made on such a path."""
        self.close()
        self._tag, self._secret = self._random(PUSH_TAG_BYTES), self._random(PUSH_SECRET_BYTES)
        self._is_made = self._plain.is_direct(self._peer)
        if not self._is_made:
            return {}
        self._connects = self._plain.reaches(self._peer)
        if not self._connects:
            try:
                self._awaited = self._plain.expect(self._peer, self._tag)
            except MeshdError:
                self._is_made = False
                return {}
        who = OPENER_CONNECTS if self._connects else OTHER_CONNECTS
        return {SEALED: who + self._tag + self._secret}

    async def meet(self, asked: Stream) -> SealedEnd | None:
        """Return the connection, which the other worker has confirmed; None if there is none in time."""
        if not self._is_made:
            return None
        try:
            async with asyncio.timeout(MEET_SECONDS):
                end = await (self._connect(asked) if self._connects else self._accept(asked))
        except (MeshdError, TimeoutError) as error:
            LOG.info("push_not_sealed", peer=self._peer.short, why=str(error) or "not in time")
            return None
        finally:
            self.close()
        keys = PushKeys.derive(self._secret, self._tag)
        return SealedEnd(end, keys.opener + keys.other)

    async def _connect(self, asked: Stream) -> socket:
        end = await self._plain.connect(self._peer, self._tag)
        try:
            await _confirmed(asked)
        except BaseException:
            end.close()
            raise
        return end

    async def _accept(self, asked: Stream) -> socket:
        await _confirmed(asked)
        if self._awaited is None:
            raise Broken("no connection is awaited any more")
        return await self._awaited.taken()

    def close(self) -> None:
        """Await no connection any more. Idempotent."""
        if self._awaited is not None:
            self._awaited.close()
            self._awaited = None


async def _confirmed(asked: Stream) -> None:
    """Wait until the other worker has the connection, or has made it. Raises MeshdError."""
    if (await asked.read())[:1] != COME:
        raise Broken("the other worker has no sealed connection")


class SealedAnswer:
    """The answer of the other worker to an offer. Close it in the end."""

    def __init__(self, plain: PlainConnections, peer: PeerId, offered: bytes) -> None:
        """Await the connection from now on, if the opener makes it."""
        self.offered = offered
        self._plain = plain
        self._peer = peer
        who, tag, self._secret = offered[:1], offered[1:_SECRET_AT], offered[_SECRET_AT:]
        self._tag = tag
        self._awaited: AwaitedConnection | None = None
        self._connects = who == OTHER_CONNECTS and plain.is_direct(peer) and plain.reaches(peer)
        if who == OPENER_CONNECTS:
            with suppress(MeshdError):
                self._awaited = plain.expect(peer, tag)

    @classmethod
    def of(cls, plain: PlainConnections, peer: PeerId, offered: MetadataValue | None) -> Self | None:
        """Return the answer to what was offered, or None if that is no offer."""
        if isinstance(offered, bytes) and len(offered) == _SECRET_AT + PUSH_SECRET_BYTES:
            return cls(plain, peer, offered)
        return None

    async def come(self) -> SealedEnd | None:
        """Return the connection, or None if there is none in time. `confirm` whether it can be used."""
        end: socket | None = None
        with suppress(Broken, TimeoutError):
            async with asyncio.timeout(MEET_SECONDS):
                if self._connects:
                    end = await self._plain.connect(self._peer, self._tag)
                elif self._awaited is not None:
                    end = await self._awaited.taken()
        if end is None:
            return None
        keys = PushKeys.derive(self._secret, self._tag)
        return SealedEnd(end, keys.other + keys.opener)

    async def confirm(self, asked: Stream, *, is_usable: bool) -> None:
        """Tell the opener whether there is a connection; it uses it at once. Raises MeshdError."""
        await asked.write(COME if is_usable else NOT_COME)

    def close(self) -> None:
        """Await no connection any more. Idempotent."""
        if self._awaited is not None:
            self._awaited.close()
            self._awaited = None
