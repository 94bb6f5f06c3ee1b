"""The state that all peer connections share: identity, services, bans, limits."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from meshd import __version__
from meshd.base import log
from meshd.base.errors import BANNED_HINT, Refused, RemoteProtocolError
from meshd.base.fault_boundary import Contained, Fault
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.identity.record import PeerRecord
from meshd.identity.revocation import RevocationSet
from meshd.link.interface import LinkInfo, MayDial
from meshd.mux.config import MuxConfig, NodeBudget
from meshd.peer.interface import Allow, Handler
from meshd.peer.limits import Faults
from meshd.wire.address import Candidate
from meshd.wire.hello import Hello
from meshd.wire.limits import MAX_FRAME_BYTES
from meshd.wire.netfacts import NetFacts
from meshd.wire.versions import WIRE_VERSION, NativeVersion

LOG = log.get("peer")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """This node's description of itself in each Hello. `grace` in seconds."""

    peer: PeerId
    name: str
    role: str
    incarnation: bytes
    native: NativeVersion
    grace: int = 120
    software: str = __version__


class NodeHost(Protocol):
    """This node's description of itself, and its knowledge of its network, as of now."""

    @property
    def may_dial(self) -> MayDial: ...

    def record(self) -> PeerRecord:
        """Return this node's record, as others see it."""
        ...

    def overtaken(self, record: PeerRecord) -> None:
        """Note a record of this node, of which others say that it is newer than its present one."""
        ...

    def is_near(self, candidates: Sequence[Candidate]) -> bool:
        """Say whether one of these is on this machine, or in one LAN with it."""
        ...

    def why_not_direct(self, theirs: NetFacts | None, last_error: str) -> str:
        """Explain in one sentence why there is no direct link. `theirs`: facts about the peer's network."""
        ...

    def woke(self) -> None:
        """Renew ports, mappings and relays after a sleep. The mesh tests its links itself."""
        ...


@dataclass(frozen=True, slots=True)
class Service:
    """A service of this node and its access rule.

    `quiet`: refusals are not logged. `once`: a peer has one stream of it at a time, and not many in turn.
    """

    handler: Handler
    allow: Allow
    quiet: bool = False
    once: bool = False


class NodeEvents(Protocol):
    """Receive events of one peer that concern the whole mesh (mesh.py)."""

    def link_made(self, peer: PeerId, hello: Hello, info: LinkInfo) -> None:
        """Note a link that has greeted. Raises RemoteProtocolError if the peer's record is not valid."""
        ...

    def said_goodbye(self, peer: PeerId, code: int) -> None:
        """Note that a peer ended its session on purpose."""
        ...

    def bans_changed(self) -> None:
        """Act on new bans, which are saved."""
        ...


@dataclass(slots=True)
class Node:
    """The state shared by all peer connections of one daemon.

    `save_bans` persists the revocation set before it is acted on; `random(n)` returns n random bytes.
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
    events: NodeEvents | None = None
    _banned: bool = False  # already logged
    _has_new_bans: bool = False
    version: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def peer(self) -> PeerId:
        return self.facts.peer

    def now(self) -> float:
        """Return the loop time in seconds."""
        return asyncio.get_running_loop().time()

    def wall_clock(self) -> int:
        """Return Unix seconds. Peers compare them with theirs, to find wrong clocks."""
        return int(time.time())

    def mux_config(self, grace: int) -> MuxConfig:
        """Return the session's configuration with the smaller of both sides' grace."""
        return replace(self.config, grace=float(grace))

    def hello(self, *, current: bytes, fresh: bytes, chosen: bytes) -> Hello:
        """Return our Hello with the given session fields (wire/hello.py)."""
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
        """Take verified bans in, persist them, then tell the rest; return how many are invalid."""
        invalid = self.take_bans(entries)
        self.keep_bans()
        return invalid

    def take_bans(self, entries: Sequence[bytes]) -> int:
        """Take verified bans in, for `keep_bans`; return how many are invalid.

        Invalid bans are skipped: one damaged ban must not keep the others out.
        """
        invalid = 0
        for entry in entries:
            try:
                with Contained("ban", "ban"):
                    self._has_new_bans |= self.bans.merge([entry]) > 0
            except (RemoteProtocolError, Fault) as error:
                invalid += 1
                # The caller names the sender, and counts invalid bans.
                LOG.debug("ban_refused", why=error.what)
        return invalid

    def keep_bans(self) -> None:
        """Persist the bans that were taken in, and tell the rest of the node."""
        if self._has_new_bans:
            self._has_new_bans = False
            self.save_bans()
            if self.events is not None:
                self.events.bans_changed()

    def why_banned(self, member: Member) -> str | None:
        """Return why a member is banned, or None."""
        return self.bans.why_banned(member.chain)

    def check_banned(self, member: Member) -> None:
        """Raise Refused (code `banned`) if a member is banned."""
        why = self.why_banned(member)
        if why is not None:
            raise Refused(why, code="banned", hint=BANNED_HINT)

    def told_banned(self, peer: PeerId, judge: str, why: str) -> None:
        """Log once that a peer considers this node banned: all peers say so at each dial."""
        if not self._banned:
            self._banned = True
            what = f"this node's key is banned in this mesh, according to {judge}: {why}"
            LOG.warning("banned", peer=peer.short, why=what, hint=BANNED_HINT)

    def changed(self) -> None:
        """Wake `wait_changed`, as something about a peer changed."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_changed(self, seen: int) -> int:
        """Wait until the version differs from `seen` and return it."""
        while self.version == seen:
            await self._changed.wait()
        return self.version
