"""Plan which dial starts when, and tell a peer whose process has ended from a silent path. Pure.

Everything that may work is raced, nothing waits for a failure. While there is no link, all transports
(link/transport.py) are tried, each with its own back-off; a peer that is gone for long, every few minutes.
With a link, those are tried that could bring a better one (path_selection.py), more patiently, and a relay,
to stand by behind a path that a router may end. Any change (of addresses, the peer's record, the NAT)
restarts all attempts.

`Departure` decides whether a peer's process has ended. When a process dies, for any reason, its kernel closes
its TCP connections, and then refuses new ones at the port where it listened. A machine or a path that fails
does neither: it is silent. None of these signs is signed, so an attacker on the path can forge them, and a
firewall may refuse connections that a living peer accepts. So several signs have to agree, over a time in
which a living peer would have dialled again; and a peer that comes back as the same process has shown that
such signs mean nothing on its path.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from meshd.base.backoff import Backoff
from meshd.link.interface import TRANSPORTS, DialFailure, LinkKind, Rank, Transport, Tried
from meshd.peer.path_selection import fragile, rank_of

RETRY = Backoff(first=0.2, factor=1.8, most=15.0)
# The same for a peer without a link for AWAY_SECONDS: most likely it is switched off, and will dial us, or be
# heard of, when it is back. Only a path between two running nodes that works again without a sign waits.
RETRY_AWAY = Backoff(first=0.2, factor=1.8, most=180.0)
AWAY_SECONDS = 600.0
# A peer that refuses will most likely refuse again: a ban, a full node, another version.
RETRY_REFUSED = Backoff(first=5.0, factor=2.0, most=120.0)
# From relayed to direct: a path that becomes possible is to be used within a minute, including an attempt's
# time.
UPGRADE = Backoff(first=3.0, factor=1.6, most=30.0)
# The same on the side that does not lead, for transports that both sides begin together: the leader also does
# it.
UPGRADE_BEHIND = Backoff(first=8.0, factor=1.6, most=45.0)
BEHIND_DELAY = 2.0  # extra seconds before the first attempt: most often the leader has brought a link by then
# From relayed to direct by a second transport over the same path, which the first most likely finds as well.
UPGRADE_SPARE = Backoff(first=8.0, factor=1.8, most=120.0)
# Within a LAN plain TCP nearly always works, but on busy machines it may take longer than the head start that
# the other transports give it, and they are then in its way. Where TCP does not work, a relay bridges this.
NEAR_DELAY = 0.7
# From UDP to TCP, and to a relay on stand-by: nobody waits for it.
IMPROVE = Backoff(first=10.0, factor=2.0, most=300.0)

SHORT_LIFE = 1.0  # seconds; a link that ends sooner has failed
MOST_SHORT = 4  # failures that lengthen the back-off: a path that is cut again and again still carries data
LONG_LIFE = 60.0  # seconds; after a link that lived so long a refusal is forgotten

ASK_SECONDS = (0.3, 2.0, 3.0, 4.0, 6.0)  # after the last link ended: the later ones if this machine is busy
# After the last link ended, at the earliest; a living peer dials again within a fraction of that.
GONE_SECONDS = 2.0
_APART_SECONDS = 1.2  # between two refusals
# On other paths a router answers in the peer's place, and it takes a living peer longer to be back.
_PATHS = ("loopback", "lan", "public")
# A kernel closes the sockets of a dying process one by one: the port may accept a connection and then reset
# it.
_DYING_SECONDS = 1.0  # including the time that a busy machine takes to report
_SLACK_SECONDS = 0.5  # data of another link may arrive so much later than the end of the link that was cut


@dataclass(frozen=True, slots=True)
class Present:
    """An existing link; `path`, `passing` as in LinkInfo, `lively`: both directions were heard recently."""

    kind: LinkKind
    path: str
    selected: bool
    lively: bool
    passing: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """The input of a plan. `possible`: there is something to dial.

    `near`: the peer seems to be in our LAN.
    """

    present: tuple[Present, ...]
    possible: bool = True
    leads: bool = True
    near: bool = False


@dataclass(frozen=True, slots=True)
class DialPlan:
    """Dials to start and to give up, by index; plan again at `at` (loop seconds), or on an event."""

    start: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()
    at: float | None = None


def wish(transport: Transport, facts: Facts, beside: Collection[Transport] = ()) -> Backoff | None:
    """Return the back-off for a transport, given links and transports `beside` it; None: not tried."""
    # Without a lively link, try everything.
    traits = TRANSPORTS[transport]
    lively = [link for link in facts.present if link.lively and not link.passing]
    if not lively:
        return RETRY
    # With one, only a transport that improves on the link that carries data is worth a try.
    carrier = next((link for link in lively if link.selected), None)
    if carrier is None:
        carrier = min(lively, key=lambda link: rank_of(link.kind, link.path))
    rank = rank_of(carrier.kind, carrier.path)
    if any(link.kind is traits.kind for link in lively):
        return None
    makes = rank_of(traits.kind, "")
    if makes is Rank.RELAYED:
        return IMPROVE if fragile(carrier.kind, carrier.path) else None
    if rank is Rank.RELAYED:
        if traits.spare_to in beside:
            return UPGRADE_SPARE
        return UPGRADE_BEHIND if traits.needs_signals and not facts.leads else UPGRADE
    return IMPROVE if makes < rank else None


@dataclass(slots=True)
class _DialState:
    running: bool = False
    bound: bool = False  # it already has a link, which is not given up
    again: bool = False  # once more, whatever `wish` says
    forced: bool = False  # runs whatever `wish` says
    stale: bool = False  # begun before something changed
    refused: bool = (
        False  # by the node that answered there, which may not be the peer: it concerns this transport alone
    )
    failures: int = 0
    failed_at: float = 0.0
    draw: float = 0.0
    wanted_since: float | None = None

    def ready_at(self, rule: Backoff, delay: float) -> float:
        if self.failures:
            rule = RETRY_REFUSED if self.refused else rule
            return self.failed_at + rule.delay(self.failures - 1, self.draw)
        return (self.wanted_since or 0.0) + delay


@dataclass(slots=True)
class DialSchedule:
    """The attempts at one peer, by index. Report each event, and ask for the plan after it."""

    transports: tuple[Transport, ...]
    _states: list[_DialState] = field(init=False)
    _linked_at: float | None = None
    _apart_since: float | None = None  # when there was last a link, or the first plan
    _refusals: int = 0
    _held_until: float = 0.0

    def __post_init__(self) -> None:
        self._states = [_DialState() for _ in self.transports]

    @property
    def running(self) -> bool:
        """True while an attempt is running."""
        return any(state.running for state in self._states)

    def is_away(self, now: float) -> bool:
        """Say whether the peer has been gone so long that it is dialled only now and then."""
        return self._apart_since is not None and now - self._apart_since >= AWAY_SECONDS

    def plan(self, facts: Facts, now: float) -> DialPlan:
        """Return which dials to start and drop now, and when to plan again."""
        # The end of a link that lived resets the back-off; a short-lived one keeps it.
        linked = any(link.lively for link in facts.present)
        if linked:
            self._apart_since = None
        elif self._apart_since is None:
            self._apart_since = now
        if not linked and self._linked_at is not None:
            if now - self._linked_at >= SHORT_LIFE:
                for state in self._states:
                    state.failures, state.wanted_since = 0, None
            self._linked_at = None
        elif linked and self._linked_at is None:
            self._linked_at = now
        # Decide for each transport.
        drop: list[int] = []
        later: list[tuple[float, int]] = []
        for index, (transport, state) in enumerate(zip(self.transports, self._states, strict=True)):
            traits = TRANSPORTS[transport]
            rule = wish(transport, facts, self.transports) if facts.possible else None
            if rule is RETRY and self.is_away(now):
                rule = RETRY_AWAY
            wanted = rule is not None or state.again
            if not wanted:
                state.wanted_since = None
            elif state.wanted_since is None:
                state.wanted_since = now
            if state.running:
                if not state.bound and (state.again or not (wanted or state.forced)):
                    drop.append(index)
            elif wanted:
                behind = linked and traits.needs_signals and not facts.leads
                aside = facts.near and traits.delay > 0
                delay = traits.delay + BEHIND_DELAY * behind + NEAR_DELAY * aside
                at = now if state.again else max(state.ready_at(rule or RETRY, delay), self._held_until)
                later.append((at, index))
        start = [index for at, index in later if at <= now]
        later = sorted(item for item in later if item[0] > now)
        if not linked and not start and not self.running and now >= self._held_until:
            # Nothing is left to wait for: transports that have not failed yet need not hold back.
            start = [index for _, index in later if not self._states[index].failures][:1]
        ahead = [at for at, index in later if index not in start]
        return DialPlan(tuple(start), tuple(drop), ahead[0] if ahead else None)

    def began(self, index: int) -> None:
        """Note that the attempt runs."""
        state = self._states[index]
        state.forced = state.again
        state.running, state.again, state.stale, state.bound = True, False, False, False

    def dialled(self, index: int) -> None:
        """Note that the attempt has a link, which now greets."""
        self._states[index].bound = True

    def over(self, index: int) -> None:
        """Note that the attempt was given up, as planned, or that its link is attached."""
        self._states[index].running = False

    def failed(self, index: int, now: float, draw: float, *, refused: bool = False) -> None:
        """Note that the attempt ended without a link, or with a short-lived one.

        `refused`: the node there wants no link. `draw` lies in [0, 1).
        """
        state = self._states[index]
        state.running = False
        if state.stale:
            state.failures, state.stale = 0, False
            return
        state.failures += 1
        state.failed_at, state.draw, state.refused = now, draw, refused

    def refused(self, now: float, draw: float) -> None:
        """Note that the proven peer refused or broke the rules: it is left alone for a while."""
        self._held_until = now + RETRY_REFUSED.delay(self._refusals, draw)
        self._refusals += 1

    def ended(self, index: int, *, lived: float, now: float, draw: float) -> None:
        """Note that an attached link of this attempt has ended."""
        if lived >= LONG_LIFE:
            self._refusals = 0
        if lived >= SHORT_LIFE:
            self._states[index].failures = 0
        elif not self._states[index].running:
            state = self._states[index]
            state.failures = min(state.failures, MOST_SHORT - 1)
            self.failed(index, now, draw)

    def changed(self, facts: Facts, *, again: bool) -> None:
        """Forget the back-off, because something is different now.

        `again`: our own addresses changed, or we slept. Running attempts begin again, and the transports of
        existing links get another try beside them: these links may be dead without knowing it.
        """
        self._refusals, self._held_until = 0, 0.0
        kinds = {link.kind for link in facts.present}
        for transport, state in zip(self.transports, self._states, strict=True):
            state.failures = 0
            state.stale = state.running
            wanted = TRANSPORTS[transport].kind in kinds or wish(transport, facts) is not None
            state.again = again and facts.possible and wanted


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of the last attempt by one transport; `what` is a text for people."""

    transport: Transport
    failure: DialFailure | None
    what: str

    @property
    def direct(self) -> bool:
        """True if this was an attempt at a direct link."""
        relayed = TRANSPORTS[self.transport].kind is LinkKind.RELAY
        return not relayed and self.failure is not DialFailure.UNFIT


def last_error(failed: Mapping[int, Failed]) -> str:
    """Join the failures of direct attempts: lower case, no full stop; empty if there are none."""
    return ", ".join(_sentence(failure) for _, failure in sorted(failed.items()) if failure.direct)


def _sentence(failed: Failed) -> str:
    name = TRANSPORTS[failed.transport].words
    match failed.failure:
        case DialFailure.TIMEOUT:
            return f"{name} gets no answer"
        case DialFailure.REFUSED:
            return f"{name} connections are refused at the peer's addresses"
        case DialFailure.WRONG_PEER:
            return f"{name} finds another node at the peer's addresses"
        case _:
            return f"{name}: {failed.what}"


class Departure:
    """The signs that one peer's process has ended.

    Times are loop seconds; places `host:port`, as in LinkInfo.
    """

    def __init__(self) -> None:
        self._cut: dict[str, float] = {}  # when a link from this host was closed by its kernel
        self._heard = -math.inf
        self._ended: float | None = None
        self._asked = 0
        self._refused_at: float | None = None  # the first time since the end
        self._is_doubted = False
        self._incarnation = b""
        self._declared = b""

    def link_up(self, incarnation: bytes) -> None:
        """Forget all signs: the peer is there. If this process was declared dead, doubt the next ones."""
        self._is_doubted = bool(incarnation) and incarnation == self._declared
        self._incarnation = incarnation
        self._cut.clear()
        self._heard = -math.inf
        self._ended = None

    def link_ended(self, remote: str, path: str, *, cut: bool, heard: float, last: bool, now: float) -> None:
        """Note the end of a link; `remote` and `path` as in LinkInfo.

        `cut`: the far kernel closed it; `heard`: when it last brought bytes; `last`: there is no other link.
        """
        self._heard = max(self._heard, heard)
        if cut and path in _PATHS:
            self._cut[_host(remote)] = now
        if last:
            self._ended, self._asked, self._refused_at = now, 0, None

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts where the peer's port should be tried; empty without such signs, or in doubt."""
        if self._ended is None or self._is_doubted:
            return frozenset()
        return frozenset(host for host, at in self._cut.items() if at >= self._heard - _SLACK_SECONDS)

    @property
    def ask_at(self) -> float | None:
        """The time to dial the peer's addresses at `hosts` next; None: there is nothing to try."""
        if self._ended is None or self._asked == len(ASK_SECONDS) or not self.hosts:
            return None
        return self._ended + ASK_SECONDS[self._asked]

    def asked(self) -> None:
        """Note that the dial of `ask_at` has begun."""
        self._asked += 1

    def tried(self, tried: Sequence[Tried], now: float) -> str:
        """Note how plain TCP dials ended; return why the process has ended, or "" while that is open."""
        # Only places where the peer was count.
        here = [attempt for attempt in tried if _host(attempt.place) in self.hosts]
        if not here or self._ended is None:
            return ""
        # Anything but a refusal means that something still listens there.
        if any(attempt.failure is not DialFailure.REFUSED for attempt in here):
            if now - self._ended >= _DYING_SECONDS:
                self._is_doubted = True
            return ""
        # Two refusals, far enough apart, mean that the process has ended.
        if self._refused_at is None:
            self._refused_at = now
        if now - self._ended < GONE_SECONDS or now - self._refused_at < _APART_SECONDS:
            return ""
        self._declared, self._ended = self._incarnation, None
        place = here[0].place
        return f"its process has ended: its machine closed the connection, and `{place}` refuses new ones"


def _host(place: str) -> str:
    """Return the host as in Candidate: without the brackets of IPv6."""
    return place.rpartition(":")[0].strip("[]")
