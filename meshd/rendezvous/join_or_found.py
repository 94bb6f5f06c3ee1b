"""Bring this node into a mesh: as it was, by an invite, or as the founder of a new one.

The transports to the inviter are given (`JoinTransports`). This module decides whether to join at all, what
is tried and when, what a failure means, and what is stored.

Without a relay, and with both behind NAT, two people can carry a word each way (`join_by_reply`). The invite
says where the inviter's UDP port is seen from outside. This side finds out the same of a port of its own,
puts it in a reply code for the inviter's owner (`meshd accept CODE`), and dials from that port until the
datagrams that the code has the inviter send have opened its NAT.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from meshd.base import log
from meshd.base.errors import MeshdError, Refused, RemoteProtocolError, UserError
from meshd.base.tasks import Owner, first_error, first_success
from meshd.base.units import in_number
from meshd.identity.invite import (
    MAX_REPLY_CANDIDATES,
    Invite,
    JoinKeys,
    RelayHint,
    Reply,
    derive,
    encode_reply,
    expired_text,
    parse_token,
    refuse_expired,
)
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.keystore import Home, Membership
from meshd.identity.revocation import RevocationSet
from meshd.link.interface import DialError, DialFailure, LinkKind
from meshd.rendezvous.book import KeptBook
from meshd.rendezvous.join import Admitted, JoinPipe, ask
from meshd.wire.address import Candidate, order
from meshd.wire.dialable import Dialable, trusted

QUIC_AFTER = 0.3  # seconds: TCP is ten times cheaper, and tells sooner that nobody is there
NEARBY_AFTER = 0.5  # for an invite whose addresses are those of yesterday
LOOKING_AFTER, LOOKING_EVERY = 1.0, 3.0  # seconds until a person is told what is waited for, and again
LOG = log.get("rendezvous")

WAIT_SECONDS = 600.0  # for somebody to paste the code
STUN_SECONDS = 2.0
TRY_SECONDS = 2.0  # for one dial: longer than a round trip, short enough to try all addresses in turn
PAUSE_SECONDS = 0.2  # after a refusal, which comes at once
MAX_TRIED = 3  # of the inviter's addresses
_FOR_GOOD = frozenset({"banned", "browser", "expired", "revoked", "unknown", "used_up"})  # codes of refusals

T = TypeVar("T")
Dial = Callable[[Sequence[Dialable]], Coroutine[object, object, T]]


class InviterPipe(JoinPipe, Protocol):
    """A pipe to the inviter, both ends proven."""

    async def aclose(self) -> None: ...


P = TypeVar("P", bound=InviterPipe)


P_co = TypeVar("P_co", bound=InviterPipe, covariant=True)


class ReplyPort(Protocol):
    """This node's UDP port, from which the inviter is dialled."""

    @property
    def seen(self) -> asyncio.Event:
        """True if a server has told where the port is seen."""
        ...

    @property
    def same_everywhere(self) -> bool | None:
        """True if all servers see the same port; None with fewer than two answers."""
        ...

    def candidates(self) -> Sequence[Candidate]:
        """Return its addresses as seen from outside, then those here."""
        ...

    async def ask_servers(self) -> None:
        """Ask the servers until cancelled."""
        ...


class JoinTransports(Protocol[P_co]):
    """The transports to the inviter of one invite. Those that dial raise DialError, Refused."""

    async def tcp(self, places: Sequence[Dialable]) -> P_co: ...
    async def quic(self, places: Sequence[Dialable]) -> P_co: ...
    async def relay(self, relays: Sequence[RelayHint]) -> P_co: ...
    async def find_nearby(self) -> Sequence[Dialable]:
        """Return where it is seen in the networks of this machine; waits some seconds."""
        ...

    def reply_port(self) -> ReplyPort: ...


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """The means by which this node may join. `has_udp`: the UDP port of the mesh is its own.

    `founds_mesh`: without an invite it founds one, if it is in none.
    """

    name: str
    role: str
    kinds: Sequence[str]
    relays: Sequence[RelayHint]
    mdns: bool
    local_only: bool
    has_udp: bool
    founds_mesh: bool = True


@dataclass(frozen=True, slots=True)
class Entered(Generic[P]):
    """A membership; of a node that has just joined also what the inviter told, and the pipe to it.

    `invite`: the invite that this node was given, if it is for this mesh.
    """

    membership: Membership
    invite: Invite | None = None
    admitted: Admitted | None = None
    pipe: P | None = None

    async def aclose(self) -> None:
        """Close the pipe. Idempotent."""
        if self.pipe is not None:
            await self.pipe.aclose()


class Enrolment(Generic[P]):
    """One start of a node. `note` gets what a person must do: a reply code to be carried to the inviter.
    `looking` gets how the inviter is being sought, if that takes long.

    `closest` tells which of several failures says most; `wall_clock` gives Unix seconds.
    """

    def __init__(
        self,
        home: Home,
        key: KeyPair,
        options: JoinOptions,
        transports: Callable[[Invite, JoinKeys], JoinTransports[P]],
        *,
        closest: Callable[[Sequence[Exception]], Exception],
        random: Callable[[int], bytes],
        wall_clock: Callable[[], int],
        note: Callable[[str], object],
        looking: Callable[[str], object],
    ) -> None:
        self._home = home
        self._key = key
        self._options = options
        self._transports = transports
        self._closest = closest
        self._random = random
        self._wall_clock = wall_clock
        self._note = note
        self._say_looking = looking

    async def enter(self, token: str) -> Entered[P]:
        """Find the membership, join if need be. Raises MeshdError. The caller closes the pipe, if it
        gets one."""
        # Without an invite: stay as we are, or found a mesh.
        present = self._home.load_membership()
        if not token:
            if present is None and not self._options.founds_mesh:
                raise UserError(
                    "this node is not in a mesh yet",
                    hint=f"run `meshd {self._options.role} --join INVITE`, with the invite that "
                    "`meshd worker` or `meshd serve` printed",
                ).final()
            if present is None:
                present = self._home.found_mesh(now=self._wall_clock(), random=self._random)
                LOG.info("mesh_founded", mesh=present.mesh.short)
            return Entered(present)
        # With the invite of our own mesh: stay as well.
        invite = parse_token(token)
        if present is not None and present.mesh == invite.mesh:
            # mostly a restart with the same command line: the membership stands
            LOG.info("join_not_used", why=f"this home is already a member of mesh `{present.mesh.short}`")
            return Entered(present, invite)
        # With that of another mesh: leave ours only if that loses nothing.
        if present is not None and not self._home.is_alone(present):
            leave = "meshd leave --force" if present.is_founder else "meshd leave"
            raise UserError(
                f"this node is in mesh `{present.mesh.short}`, "
                f"but the invite is for mesh `{invite.mesh.short}`",
                hint=f"run `{leave}`, then repeat this command; or use another MESHD_HOME"
                + ("; back up the root key first: `meshd mesh export FILE`" if present.is_founder else ""),
            ).final()
        # Join, and store the membership.
        refuse_expired(invite, self._wall_clock())
        admitted, pipe = await self._join(invite)
        if present is not None:
            self._home.leave(drop_root=True)
            LOG.info("mesh_left_empty", mesh=present.mesh.short)
        membership = Membership(invite.mesh, admitted.chain, inviter=invite.inviter)
        self._home.save_membership(membership)
        LOG.info("mesh_joined", mesh=membership.mesh.short)
        return Entered(membership, invite, admitted, pipe)

    async def _join(self, invite: Invite) -> tuple[Admitted, P]:
        options, keys = self._options, derive(invite.secret)
        transports = self._transports(invite, keys)
        no_code = why_no_code(
            invite, quic="quic" in options.kinds, local_only=options.local_only, bound=options.has_udp
        )
        try:
            try:
                async with _said_meanwhile(self._say_looking, self._looking(invite)):
                    pipe = await self._reach(invite, transports)
            except DialError:
                if no_code:
                    raise
                port = transports.reply_port()
                pipe = await join_by_reply(
                    invite, keys, self._key.peer, port, transports.quic, note=self._note
                )
        except DialError as error:
            raise self._unreachable(invite, error, no_code) from None
        try:
            admitted = await ask(
                pipe, me=self._key.peer, mesh=invite.mesh, name=options.name, role=options.role
            )
        except BaseException as error:
            await pipe.aclose()
            if isinstance(error, Refused):
                refused = Refused(f"not admitted: {error.what}", code=error.code, hint=error.hint)
                refused.is_final = error.code in _FOR_GOOD
                raise refused from None
            raise
        return admitted, pipe

    async def _reach(self, invite: Invite, transports: JoinTransports[P]) -> P:
        """Reach the inviter by whatever transport succeeds first. Raises DialError, Refused."""
        starts = self._starts(invite, transports)
        if not starts:
            raise UserError(
                f"links of the kinds `{','.join(self._options.kinds)}` cannot join a mesh",
                hint="add tcp, quic or relay to --links",
            )
        try:
            return await first_success(starts, discard=_discard)
        except ExceptionGroup as group:
            raise self._closest(group.exceptions) from None

    def _starts(
        self, invite: Invite, transports: JoinTransports[P]
    ) -> list[tuple[float, Callable[[], Coroutine[object, object, P]]]]:
        """Return the attempts, each with its delay in seconds."""
        options = self._options

        async def nearby() -> P:
            found = await transports.find_nearby()
            if not found:
                raise DialError(
                    "mDNS does not find it on this network",
                    kind=LinkKind.TCP,
                    failure=DialFailure.UNREACHABLE,
                )
            return await transports.tcp(found)

        starts: list[tuple[float, Callable[[], Coroutine[object, object, P]]]] = []
        if "tcp" in options.kinds:
            starts.append((0.0, lambda: transports.tcp(trusted(invite.candidates))))
            if options.mdns:
                starts.append((NEARBY_AFTER, nearby))
        if relays := self._relays(invite):
            starts.append((0.0, lambda: transports.relay(relays)))
        if "quic" in options.kinds:
            starts.append((QUIC_AFTER, lambda: transports.quic(trusted(with_udp(invite.candidates)))))
        return starts

    def _relays(self, invite: Invite) -> tuple[RelayHint, ...]:
        relays = dict.fromkeys((*invite.relays, *self._options.relays))
        return tuple(relays) if "relay" in self._options.kinds else ()

    def _looking(self, invite: Invite) -> str:
        """Return, for people, how the inviter is being sought."""
        count, relays = len(invite.candidates), len(self._relays(invite))
        places = [f"{count} address{'' if count == 1 else 'es'}"]
        if "tcp" in self._options.kinds and self._options.mdns:
            places.append("mDNS")
        if relays:
            places.append(in_number(relays, "relay"))
        return f"looking for the node that made this invite ({', '.join(places)})…"

    def _unreachable(self, invite: Invite, error: DialError, no_code: str) -> MeshdError:
        """Return the error for an inviter out of reach. `no_code`: why a reply code cannot help, if so."""
        now = self._wall_clock()
        if invite.expired(now):  # by our clock, which may be the wrong one: the inviter could not be asked
            return MeshdError(
                f"cannot reach the node that made the invite, which {expired_text(invite.expires_at, now)} "
                f"by this machine's clock: {error.what}",
                hint="run `meshd invite` on the node that founded the mesh, and check this machine's clock",
            )
        hint = error.hint or "check that it is running and that its firewall allows its mesh port"
        return MeshdError(
            f"cannot reach the node that made the invite: {error.what}",
            hint=f"{hint}; no reply code is possible: {no_code}" if no_code else hint,
        )


def remember(entered: Entered[P], kept: KeptBook, bans: RevocationSet, home: Home) -> None:
    """Store what the invite and the inviter said, also on disk: a node that is killed in a moment finds its
    mesh again.
    """
    invite, admitted = entered.invite, entered.admitted
    if invite is not None and bans.why_node_banned(invite.inviter) is None:
        kept.book.hint(invite.inviter, invite.candidates)
    if admitted is not None:
        for entry in admitted.bans:
            try:
                bans.merge([entry])
            except RemoteProtocolError as error:
                LOG.warning("ban_refused", why=error.what)
        for record in admitted.records:
            try:
                kept.book.add(record)
            except RemoteProtocolError as error:
                LOG.warning("record_refused", why=error.what)
    kept.write()
    home.keep_revocations(bans)


def with_udp(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Add UDP twins: a node's UDP port has the number of its TCP port, which an invite names for both."""
    twins = [replace(c, proto="udp") for c in candidates if c.proto == "tcp" and c.kind == "host"]
    return tuple(dict.fromkeys([*candidates, *twins]))


@asynccontextmanager
async def _said_meanwhile(note: Callable[[str], object], text: str) -> AsyncIterator[None]:
    """Note `text` if the block takes long, and repeatedly with the elapsed time."""

    async def say() -> None:
        await asyncio.sleep(LOOKING_AFTER)
        note(text)
        seconds = LOOKING_AFTER
        while True:
            await asyncio.sleep(LOOKING_EVERY)
            seconds += LOOKING_EVERY
            note(f"{text} {seconds:.0f} s")

    try:
        async with Owner() as owner:
            owner.start(say(), name="looking for the inviter")
            yield
            owner.cancel()
    except ExceptionGroup as group:
        raise first_error(group) from None


async def _discard(reached: InviterPipe) -> None:
    await reached.aclose()


def why_no_code(invite: Invite, *, quic: bool, local_only: bool, bound: bool) -> str:
    """Return why no reply code can work; empty if one may. `bound`: this node has its UDP port."""
    if not quic:
        return "it needs quic, which `--links` excludes"
    if local_only:
        return "this node listens on loopback only"
    if not bound:
        return "another program is using this node's UDP port"
    if not targets(invite):
        return (
            "the invite contains no public UDP address, because no STUN server answered the node that made it"
        )
    return ""


async def join_by_reply(
    invite: Invite,
    keys: JoinKeys,
    me: PeerId,
    port: ReplyPort,
    dial: Dial[T],
    *,
    note: Callable[[str], object],
) -> T:
    """Print the code by `note`, then dial until the inviter answers. Raises DialError, Refused."""
    try:
        async with Owner() as owner:
            owner.start(port.ask_servers(), name="outer port")
            reached = await _say_and_dial(invite, keys, me, port, dial, note)
            owner.cancel()
    except ExceptionGroup as group:
        raise first_error(group) from None
    return reached


async def _say_and_dial(
    invite: Invite,
    keys: JoinKeys,
    me: PeerId,
    port: ReplyPort,
    dial: Dial[T],
    note: Callable[[str], object],
) -> T:
    try:
        async with asyncio.timeout(STUN_SECONDS):
            await port.seen.wait()
    except TimeoutError:
        LOG.warning("stun_silent", why="no STUN server answers: the code contains only LAN addresses")
    if port.same_everywhere is False:
        LOG.warning("nat_symmetric", why="each server sees a different port: a reply code may not work")
    public = tuple(place for place in port.candidates() if not place.is_loopback and not place.is_v6)
    code = encode_reply(Reply(keys.invite_id, me, public[:MAX_REPLY_CANDIDATES]), keys)
    note(
        "cannot reach the node that made the invite. To admit this node, keep this running, and run "
        f"there within {WAIT_SECONDS / 60:.0f} minutes:\n\nmeshd accept {code}\n"
    )
    return await _dial(targets(invite), dial)


async def _dial(places: Sequence[Candidate], dial: Dial[T]) -> T:
    last = DialError("nobody accepted the reply code", kind=LinkKind.QUIC, failure=DialFailure.TIMEOUT)
    loop = asyncio.get_running_loop()
    until = loop.time() + WAIT_SECONDS
    while loop.time() < until:
        for place in places:
            try:
                async with asyncio.timeout(TRY_SECONDS):
                    return await dial(trusted([place]))
            except TimeoutError:
                continue
            except DialError as error:
                if error.failure is DialFailure.WRONG_PEER:
                    last = error
                await asyncio.sleep(PAUSE_SECONDS)
    raise last


def targets(invite: Invite) -> Sequence[Candidate]:
    """Return where the inviter's UDP port may be: outside first, since no relay is at hand."""
    udp = [c for c in order(invite.candidates) if c.proto == "udp" and not c.is_v6 and not c.is_loopback]
    return sorted(udp, key=lambda candidate: candidate.kind == "host")[:MAX_TRIED]
