"""What every peer connection shares: who this node is, its services, its bans, its limits."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from meshd import __version__
from meshd.base import log
from meshd.base.errors import BANNED_HINT, RemoteProtocolError
from meshd.base.fault_boundary import Contained, Fault
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.identity.record import PeerRecord
from meshd.identity.revocation import RevocationSet
from meshd.link.interface import LinkInfo, MayDial
from meshd.mux.config import MuxConfig, NodeBudget
from meshd.peer.faults import Faults
from meshd.peer.interface import Allow, Handler
from meshd.wire.address import Candidate
from meshd.wire.hello import WIRE_VERSION, Hello
from meshd.wire.limits import MAX_FRAME_BYTES
from meshd.wire.native import NativeVersion
from meshd.wire.netfacts import NetFacts

LOG = log.get("peer")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What this node says of itself in each Hello. `grace` in seconds."""

    peer: PeerId
    name: str
    role: str
    incarnation: bytes
    native: NativeVersion
    grace: int = 120
    software: str = __version__


class NodeHost(Protocol):
    """What this node says of itself, and knows of its network, as of now."""

    @property
    def may_dial(self) -> MayDial: ...

    def record(self) -> PeerRecord:
        """Its own, as others are told it."""
        ...

    def is_near(self, candidates: Sequence[Candidate]) -> bool:
        """Is one of these on this machine, or in one LAN with it?"""
        ...

    def why_not_direct(self, theirs: NetFacts | None, last_error: str) -> str:
        """One sentence. `theirs`: what is known of the peer's network."""
        ...

    def woke(self) -> None:
        """This machine has slept: ports, mappings and relays may be gone. The mesh tests its links itself."""
        ...


@dataclass(frozen=True, slots=True)
class Service:
    """A service of this node, and who may use it. `quiet`: a refusal is nothing that anybody need know of.

    `once`: a peer has one stream of it at a time, and not many in turn.
    """

    handler: Handler
    allow: Allow
    quiet: bool = False
    once: bool = False


class DiallingSide(Protocol):
    """What dials one peer, as its connection sees it."""

    def links_changed(self) -> None:
        """A link came, went, fell silent, or is used now."""
        ...

    def why_not_direct(self) -> str:
        """In one sentence, for a peer whose data is relayed."""
        ...


class NodeEvents(Protocol):
    """Is told what connections learn that concerns the whole mesh."""

    def link_made(self, peer: PeerId, hello: Hello, info: LinkInfo) -> None:
        """A link has greeted. Raises RemoteProtocolError where the peer shows no good record."""
        ...

    def said_goodbye(self, peer: PeerId, code: int) -> None:
        """A peer ended its session on purpose."""
        ...

    def bans_changed(self) -> None:
        """There are new bans, and they are saved."""
        ...


@dataclass(slots=True)
class Node:
    """Shared by all peer connections of one daemon.

    `save_bans` persists the revocation set before it is acted on; `random(n)` gives n random bytes.
    """

    facts: NodeFacts
    bans: RevocationSet
    budget: NodeBudget
    random: Callable[[int], bytes]
    save_bans: Callable[[], None]
    host: NodeHost
    config: MuxConfig = field(default_factory=MuxConfig)
    services: dict[str, Service] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    _events: list[NodeEvents] = field(default_factory=list)
    _banned: bool = False  # the log has it
    version: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def peer(self) -> PeerId:
        return self.facts.peer

    def now(self) -> float:
        """Loop time, seconds."""
        return asyncio.get_running_loop().time()

    def wall_clock(self) -> int:
        """Unix seconds: only told to peers, to find clocks that are wrong."""
        return int(time.time())

    def mux_config(self, grace: int) -> MuxConfig:
        """The session's configuration with the smaller of both sides' grace."""
        return replace(self.config, grace=float(grace))

    def hello(self, *, current: bytes, fresh: bytes, chosen: bytes) -> Hello:
        """Our Hello with the given session fields (wire/hello.py)."""
        facts = self.facts
        return Hello(
            version=WIRE_VERSION,
            software=facts.software,
            features=(),
            name=facts.name,
            role=facts.role,
            incarnation=facts.incarnation,
            current=current,
            fresh=fresh,
            chosen=chosen,
            native=facts.native,
            largest_frame=MAX_FRAME_BYTES,
            grace=facts.grace,
            bans_count=len(self.bans),
            bans_digest=self.bans.digest(),
            clock=self.wall_clock(),
            record=self.host.record().encode(),
        )

    def learn_bans(self, entries: Sequence[bytes]) -> int:
        """Take verified bans in, persist them, then tell the rest of the node; says how many are invalid.

        Those are skipped: one damaged ban must not keep the others out.
        """
        new = []
        invalid = 0
        for entry in entries:
            try:
                with Contained("ban", "ban"):
                    if self.bans.merge([entry]):
                        new.append(entry)
            except (RemoteProtocolError, Fault) as error:
                invalid += 1
                LOG.debug("ban_refused", why=error.what)  # the caller names the sender, and counts these
        if new:
            self.save_bans()
            for each in self._events:
                each.bans_changed()
        return invalid

    def subscribe(self, events: NodeEvents) -> None:
        """Tell `events` from now on."""
        self._events.append(events)

    def link_made(self, peer: PeerId, hello: Hello, info: LinkInfo) -> None:
        """See NodeEvents."""
        for each in self._events:
            each.link_made(peer, hello, info)

    def said_goodbye(self, peer: PeerId, code: int) -> None:
        """See NodeEvents."""
        for each in self._events:
            each.said_goodbye(peer, code)

    def why_banned(self, member: Member) -> str | None:
        """Why a member is out, or None."""
        return self.bans.why_banned(member.chain)

    def told_banned(self, peer: PeerId, judge: str, why: str) -> None:
        """A peer holds this node for banned. All say so, each time they are dialled: one line is enough."""
        if not self._banned:
            self._banned = True
            what = f"this node's key is banned in this mesh, according to {judge}: {why}"
            LOG.warning("banned", peer=peer.short, why=what, hint=BANNED_HINT)

    def changed(self) -> None:
        """Something about a peer changed: wake `wait_changed`."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_changed(self, seen: int) -> int:
        """Returns the version now, once it is not `seen` any more."""
        while self.version == seen:
            await self._changed.wait()
        return self.version
