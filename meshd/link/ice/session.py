"""The interface of a kind of link over ICE (webrtc/session.py, quic/over_ice.py): one try and its pipe."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from meshd.link.secure.handshake import RawPipe
from meshd.link.udp.batch_socket import Address
from meshd.link.udp.host_socket import OpenSocket
from meshd.wire.address import Candidate, CandidateKind
from meshd.wire.dialable import Dialable
from meshd.wire.signal import Terms

if TYPE_CHECKING:
    from meshd.link.ice.agent import IcePath


class IcePipe(RawPipe, Protocol):
    """A pipe over a path that ICE found."""

    def widen(self) -> None:
        """Open full windows: the other side has proven who it is."""
        ...

    def abort(self) -> None:
        """Drop the pipe at once."""
        ...


class IceSession(Protocol):
    """One side of one try: `open`, tell the terms, `connect` with the other side's; `shut` in the end."""

    binding: bytes  # of the proof; after `connect`
    ice: "IcePath"

    @property
    def fingerprint(self) -> bytes:
        """The SHA-256 of our certificate, for the terms."""
        ...

    @property
    def pair(self) -> tuple[Address, Address, CandidateKind | None] | None:
        """Our address, theirs, and the kind that they announced."""
        ...

    def open(self, hosts: Sequence[str], open_socket: OpenSocket) -> list[Candidate]:
        """Bind sockets; return their addresses."""
        ...

    async def connect(self, terms: Terms, places: Sequence[Dialable]) -> None:
        """Find a path to one of `places` and encrypt it. Raises Broken; the caller sets the time limit."""
        ...

    def shut(self) -> list[asyncio.Task[None]]:
        """End everything at once; return tasks that end in the next turns. Idempotent."""
        ...
