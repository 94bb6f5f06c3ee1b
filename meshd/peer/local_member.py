"""Tell the other members about this node: sign its record, publish changes, say goodbye.

The numbers of records grow over all starts of this node. They are reserved on disk in blocks, ahead of their
use: a number that others may have seen is never issued again, even if the disk cannot be written while the
node runs, and the node is killed then.

If another node tells of a record of this one with a greater number, this node's state directory was put back
from a backup, or a copy of it runs elsewhere. Others ignore the present record then, so a new one gets a
greater number. If that happens again soon, the copy runs now, and signs as well.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from meshd import __version__
from meshd.base import log
from meshd.base.errors import LocalProtocolError, MeshdError
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.membership import Chain
from meshd.identity.record import BY_FETCH, BY_USER, LEFT, PAUSED_MARK, VERSION_MARK, PeerRecord
from meshd.link.interface import Link
from meshd.mux.events import Code
from meshd.wire.address import Candidate
from meshd.wire.limits import MAX_SEQUENCE

BLOCK = 4096  # records are signed when addresses change: enough for years with a broken disk
OVERTAKE_SECONDS = 60.0  # between two new records because of greater numbers: a copy answers each
# Another greater number within this time means that a copy runs: longer than between two comparisons of news.
COPY_SECONDS = 7200.0
LOG = log.get("peer")


class Numbering:
    """Number records, so that no number is issued twice.

    `reserve(number)` notes durably that numbers up to this one may be used; False: it could not. `last` is
    the last noted number, `now` the clock in Unix seconds: numbers begin above both. So even the numbers of a
    start on an unwritable disk are greater than the last ones, unless the clock was also set back.
    """

    def __init__(self, reserve: Callable[[int], bool], *, last: int, now: int) -> None:
        self._reserve = reserve
        self._next = max(last, now) + 1
        self._end = self._next + BLOCK
        reserve(self._end - 1)

    def take(self) -> int | None:
        """Return the next number, or None if all reserved numbers are used and the disk cannot be written."""
        if self._end - self._next <= BLOCK // 2 and self._reserve(self._end - 1 + BLOCK):
            self._end += BLOCK
        if self._next >= self._end:
            return None
        self._next += 1
        return self._next - 1

    def skip(self, number: int) -> None:
        """Continue above `number`, which another run of this node has used."""
        self._next = max(self._next, number + 1)
        self._end = self._next + BLOCK
        self._reserve(self._end - 1)


class Reach(Protocol):
    """The ways to reach this node, as known now."""

    def candidates(self) -> tuple[Candidate, ...]: ...
    def relay_urls(self) -> tuple[str, ...]: ...
    def capabilities(self) -> Mapping[str, str]:
        """Return what peers should know of this node's network."""
        ...

    def addresses_changed(self) -> None:
        """Note that this machine is in another network, or has slept."""
        ...


class Audience(Protocol):
    """The receivers of news about this node (peer/mesh.py)."""

    def record_changed(self) -> None: ...
    def nat_changed(self) -> None: ...
    def addresses_changed(self) -> None: ...
    def stop_connecting(self) -> None: ...
    def say_goodbye(self, reason: str, *, code: Code = Code.SHUTDOWN) -> None: ...
    async def accept(self, link: Link) -> None: ...


class FirstPipe(Protocol):
    """The pipe by which this node has joined, still open (link/secure/joining.py)."""

    @property
    def peer(self) -> PeerId: ...
    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Signature:
    """The constant parts of this node's records, and the key that signs them."""

    key: KeyPair
    chain: Chain
    name: str
    role: str


class LocalMember:
    """Sign this node's records and tell the mesh. The first record is signed at once.

    `save` keeps the addresses of each record, to describe this node while it does not run.
    """

    def __init__(
        self,
        signature: Signature,
        *,
        reach: Reach,
        mesh: Audience,
        numbers: Numbering,
        save: Callable[[Sequence[Candidate]], None],
        paused: bool = False,
    ) -> None:
        self._signature = signature
        self._reach = reach
        self._mesh = mesh
        self._numbers = numbers
        self._save = save
        self.has_left = False
        self._paused = paused
        self._fetching = False
        self._overtaken_at = self._copied_at = -math.inf
        number = numbers.take()
        if number is None:
            raise LocalProtocolError("no number is left for a first record")
        self.record = self._sign(number)

    def token_candidates(self) -> tuple[Candidate, ...]:
        """Return the addresses for a token: a host's UDP port has the number of its TCP port."""
        found = self._reach.candidates()
        tcp = {(c.host, c.port) for c in found if c.proto == "tcp"}
        return tuple(c for c in found if c.proto == "tcp" or (c.host, c.port) not in tcp)

    def network_changed(self) -> None:
        """Tell the peers that a mapped port or the knowledge of the network changed; links stay."""
        if self._renew():
            self._mesh.record_changed()
            self._mesh.nat_changed()

    def addresses_changed(self) -> None:
        """Update the record, tell the peers, and test every link."""
        self._reach.addresses_changed()
        self._renew()
        LOG.info("addresses_changed", listen=[str(candidate) for candidate in self.record.candidates])
        self._mesh.addresses_changed()
        self._mesh.record_changed()

    def pause(self, *, paused: bool) -> None:
        """Tell all peers whether this node lends nothing for now."""
        self._paused = paused
        if self._renew():
            self._mesh.record_changed()

    def fetches(self, *, fetching: bool) -> None:
        """Tell everybody whether this node lends nothing before its models are here."""
        self._fetching = fetching
        if self._renew():
            self._mesh.record_changed()

    def overtaken(self, record: PeerRecord, now: float) -> None:
        """Sign above `record`, which another run of this node has signed; `now` is loop time."""
        if not self.record.sequence < record.sequence < MAX_SEQUENCE - BLOCK:
            return
        if now < self._overtaken_at + COPY_SECONDS:
            self._copied_at = now
        if now < self._overtaken_at + OVERTAKE_SECONDS:
            return
        self._overtaken_at = now
        why = "a copy of this state directory runs" if self.is_copied(now) else "the state was put back"
        LOG.warning("record_overtaken", peer=record.peer.short, why=why)
        self._numbers.skip(record.sequence)
        self.sign()
        self._mesh.record_changed()

    def is_copied(self, now: float) -> bool:
        """Return True if another machine runs with this node's identity, or did a moment ago."""
        return now < self._copied_at + COPY_SECONDS

    def leave(self) -> None:
        """Publish a last record, which peers pass on, saying that this node is no longer a member.

        A peer that has read it ends the session, so this node connects to nobody from here on.
        """
        self.has_left = True
        self._mesh.stop_connecting()
        self.sign()
        self._mesh.record_changed()

    def say_goodbye(self, why: str = "the node was stopped") -> None:
        """End the sessions with all peers: for now, or for good."""
        if self.has_left:
            self._mesh.say_goodbye("the node has left the mesh", code=Code.LEFT)
        else:
            self._mesh.say_goodbye(why)

    async def stay(self, pipe: FirstPipe, make_link: Callable[[], Awaitable[Link]]) -> None:
        """Keep the link over which this node has just joined, as the first link, while others are dialled."""
        try:
            link = await make_link()
        except (MeshdError, TimeoutError) as error:
            LOG.debug("joined_pipe_over", peer=pipe.peer.short, why=str(error) or "timed out")
        else:
            await self._mesh.accept(link)
        finally:
            await pipe.aclose()

    def _renew(self) -> bool:
        """Sign a new record if the current one is outdated; return whether it was."""
        now = (self._reach.candidates(), self._capabilities())
        if now == (self.record.candidates, self.record.capabilities):
            return False
        self.sign()
        return True

    def sign(self) -> None:
        """Sign a new record. The old one stays if no unused number is left."""
        number = self._numbers.take()
        if number is not None:
            self.record = self._sign(number)

    def _sign(self, number: int) -> PeerRecord:
        candidates = () if self.has_left else self._reach.candidates()
        self._save(candidates)
        return PeerRecord.sign(
            self._signature.key,
            chain=self._signature.chain,
            name=self._signature.name,
            role=self._signature.role,
            sequence=number,
            candidates=candidates,
            relays=() if self.has_left else self._reach.relay_urls(),
            capabilities=LEFT if self.has_left else self._capabilities(),
        )

    def _capabilities(self) -> Mapping[str, str]:
        why = BY_USER if self._paused else BY_FETCH if self._fetching else ""
        paused = {PAUSED_MARK: why} if why else {}
        return {**self._reach.capabilities(), VERSION_MARK: __version__, **paused}
