"""Every decision of a relay except the bytes of circuits: nodes, calls, mailboxes, waiting letters. Pure.

Mesh and key identify a node. A *guest* has shown a key and no membership that counts here: it reaches open
boxes and nothing else. Each event returns a list of actions for the server. Without a list of meshes, anybody
can use any number of keys, so there are small limits for each key and a limit for each address (`Limits`);
`--open` and `--mesh` lift those for a key.

Whom a node lets in is not for its callers to say: one that asks for circuits and proves nothing in them would
keep all others out. A circuit is settled once the node has said more in it than it says to a stranger, or
keeps it for longer than it waits for a proof. Those that are not settled give way.

Letters for nodes that are not connected are few, small, short-lived, in memory only. Every letter counts for
the address and the key that it came from. Where room is needed, the address with most loses a letter: the
oldest of its key with most. So a sender displaces its own letters, and those of others only where they hold
as much. The address comes first, because keys cost nothing.

A browser has no key that a relay could ask for. It reaches a box that is open for browsers, and counts as a
caller by its address, of which the box's owner is told a hash. What it sends counts as the owner's.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from meshd.base.admission import TokenBucket
from meshd.wire.limits import PEER_BYTES
from meshd.wire.relay import (
    BOX_BYTES,
    TICKET_BYTES,
    Call,
    Called,
    FromNode,
    FromRelay,
    HangUp,
    Mail,
    OpenBox,
    Post,
    Posted,
    Ready,
    RelayPing,
    RelayPong,
    RelayRefusal,
    Ring,
    ShutBox,
)

SETTLED_BYTES = 8 << 10  # of the node that was called: its side of a handshake and a proof is less
LETTER_BYTES = 512  # that a letter takes beside its blob, roughly


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes, seconds and counts. `rate`: bytes a second of one key, both ways of all its circuits; 0: any."""

    clients: int = 4096  # control connections
    clients_of_host: int = 64  # behind one address: an office, a carrier's NAT
    connections: int = 16_384  # of any kind
    connections_of_host: int = 512
    unproven: int = 512  # that have shown neither key nor ticket
    unproven_of_host: int = 128
    unproven_seconds: float = 6.0
    circuits: int = 4096
    circuits_of_key: int = 8
    circuits_of_pair: int = 2  # that one key asks another one for: of two links one replaces the other
    rate: int = 1 << 20
    burst: int = 4 << 20
    ticket_seconds: float = 12.0  # until both sides must have come
    boxes: int = 4096
    boxes_of_key: int = 16
    guests_of_box: int = 16  # whom the owner of a box may answer
    guests: int = 256
    guests_of_host: int = 16
    guest_seconds: float = 90.0  # a joiner is no member: it comes, joins and goes
    guest_strikes: int = 4  # boxes that are not there: nobody guesses 16 bytes, but nobody should try
    joins_of_box: int = 4  # at once
    browsers_of_box: int = 8  # at once; each may have an old connection that is not known to be dead
    join_bytes: int = 256 << 10  # a welcome has at most 64 KiB
    join_seconds: float = 45.0
    mail_seconds: float = 60.0
    mail_of_one: int = 32  # letters that wait for one key or box
    mail_of_sender: int = 64  # letters of one key that wait
    mail_bytes_of_host: int = 1 << 20
    mail_bytes: int = 8 << 20  # that wait, in all, with 512 for each letter
    messages_rate: float = 50.0  # a second, of one control connection
    messages_burst: float = 200.0
    silent_seconds: float = 40.0  # a node pings every few seconds
    control_backlog: int = 128 << 10  # told and not read by the node: then it is dropped


SMALL = Limits()
WIDE = Limits(
    clients_of_host=4096,
    connections_of_host=16_384,
    circuits_of_key=256,
    circuits_of_pair=16,
    rate=0,
    boxes_of_key=256,
)


To = TypeVar("To")
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """A node: its key and, unless it is a guest, its mesh (empty for guests)."""

    peer: bytes
    mesh: bytes

    @property
    def is_guest(self) -> bool:
        return not self.mesh


@dataclass(frozen=True, slots=True)
class Tell:
    """Send `message` to that client."""

    client: int
    message: FromRelay


@dataclass(frozen=True, slots=True)
class Drop:
    """Close that client's control connection."""

    client: int


@dataclass(frozen=True, slots=True)
class Cut:
    """End that circuit."""

    circuit: int


Action = Tell | Drop | Cut


@dataclass(slots=True)
class ConnectedNode:
    """One control connection."""

    who: NodeIdentity
    host: str
    since: float
    strikes: int = 0


@dataclass(slots=True)
class Circuit:
    """Two tickets, then two connections. `join` circuits are held to few bytes and seconds."""

    number: int
    caller: NodeIdentity
    callee: NodeIdentity
    tickets: tuple[bytes, bytes]  # of the caller, of the callee
    since: float
    box: bytes = b""
    lasting: bool = False
    came: set[int] = field(default_factory=set)
    answered: int = 0  # bytes of the callee

    @property
    def is_join(self) -> bool:
        return bool(self.box) and not self.lasting


@dataclass(slots=True)
class Box:
    """A mailbox that a member opened."""

    owner: NodeIdentity
    until: float
    guests: deque[bytes]
    lasting: bool = False
    joins: int = 0


class Calls:
    """`settled_seconds`: a circuit that both sides keep for so long is one that they want."""

    def __init__(self, settled_seconds: float) -> None:
        self._seconds = settled_seconds
        self._to: dict[NodeIdentity, dict[int, Circuit]] = {}

    def add(self, circuit: Circuit) -> None:
        """Add a circuit."""
        self._to.setdefault(circuit.callee, {})[circuit.number] = circuit

    def remove(self, circuit: Circuit) -> None:
        """Remove a circuit that is over."""
        calls = self._to[circuit.callee]
        del calls[circuit.number]
        if not calls:
            del self._to[circuit.callee]

    def between(self, caller: NodeIdentity, callee: NodeIdentity) -> int:
        """Return how many circuits `caller` has to `callee`."""
        return sum(circuit.caller == caller for circuit in self._to.get(callee, {}).values())

    def yielding(self, callee: NodeIdentity, caller: NodeIdentity, now: float) -> Circuit | None:
        """Choose the circuit to evict for one more of `caller`: the oldest of the caller with the most, if it
        has more.
        """
        calls = self._to.get(callee, {}).values()
        held = Counter(circuit.caller for circuit in calls)
        loose = [
            circuit
            for circuit in calls
            if held[circuit.caller] > held[caller] and not self._is_settled(circuit, now)
        ]
        return max(loose, key=lambda circuit: (held[circuit.caller], -circuit.number), default=None)

    def _is_settled(self, circuit: Circuit, now: float) -> bool:
        both = len(circuit.came) == 2
        return both and (circuit.answered >= SETTLED_BYTES or now - circuit.since > self._seconds)


@dataclass(frozen=True, slots=True, eq=False)
class _KeptLetter(Generic[To]):
    to: To
    mail: Mail
    host: str
    until: float

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return len(self.mail.blob) + LETTER_BYTES


class _Senders(Generic[To]):
    """Letters by where they came from, oldest first in each."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[bytes, dict[_KeptLetter[To], None]]] = {}
        self._held: dict[str, int] = {}

    def add(self, letter: _KeptLetter[To]) -> None:
        keys = self._hosts.setdefault(letter.host, {})
        keys.setdefault(letter.mail.sender, {})[letter] = None
        self._held[letter.host] = self._held.get(letter.host, 0) + letter.size

    def remove(self, letter: _KeptLetter[To]) -> None:
        keys = self._hosts[letter.host]
        del keys[letter.mail.sender][letter]
        self._held[letter.host] -= letter.size
        if not keys[letter.mail.sender]:
            del keys[letter.mail.sender]
        if not keys:
            del self._hosts[letter.host], self._held[letter.host]

    def count(self, letter: _KeptLetter[To]) -> int:
        """Return how many letters its sender has."""
        return len(self._hosts[letter.host][letter.mail.sender])

    def oldest_of(self, letter: _KeptLetter[To]) -> _KeptLetter[To]:
        """Return the oldest letter of its sender."""
        return next(iter(self._hosts[letter.host][letter.mail.sender]))

    def held(self, host: str) -> int:
        """Return the bytes that wait from this host."""
        return self._held.get(host, 0)

    def next_to_go(self) -> _KeptLetter[To]:
        """Return the letter to evict next: the oldest of the largest holder."""
        return self.next_of(max(self._held, key=self._held.__getitem__))

    def next_of(self, host: str) -> _KeptLetter[To]:
        """Return the oldest letter of the host's sender with the most."""
        keys = self._hosts[host]
        return next(iter(keys[max(keys, key=lambda key: len(keys[key]))]))


class Mailroom(Generic[To]):
    """`To` is who or what a letter waits for. `now` is a clock in seconds that never goes back."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: dict[To, dict[_KeptLetter[To], None]] = {}
        self._senders: _Senders[To] = _Senders()
        self.held_bytes = 0
        self.dropped = 0  # so far

    def keep(self, to: To, mail: Mail, now: float, *, host: str) -> None:
        """Keep `mail`, which came from the address `host`, for a while."""
        letter = _KeptLetter(to, mail, host, now + self._limits.mail_seconds)
        waiting = self._waiting.setdefault(to, {})
        waiting[letter] = None
        self._senders.add(letter)
        self.held_bytes += letter.size
        if self._senders.count(letter) > self._limits.mail_of_sender:
            self._drop(self._senders.oldest_of(letter))
        if len(waiting) > self._limits.mail_of_one:
            senders: _Senders[To] = _Senders()
            for other in waiting:
                senders.add(other)
            self._drop(senders.next_to_go())
        while self._senders.held(host) > self._limits.mail_bytes_of_host:
            self._drop(self._senders.next_of(host))
        while self.held_bytes > self._limits.mail_bytes:
            self._drop(self._senders.next_to_go())

    def take(self, to: To, now: float) -> list[Mail]:
        """Return and remove all that waits for `to`, which is connected now."""
        self._drop_old(to, now)
        letters = list(self._waiting.get(to, ()))
        for letter in letters:
            self._remove(letter)
        return [letter.mail for letter in letters]

    def forget(self, to: To) -> None:
        """Drop the letters for a node that will not come."""
        for letter in list(self._waiting.get(to, ())):
            self._drop(letter)

    def sweep(self, now: float) -> None:
        """Drop expired mail."""
        for to in list(self._waiting):
            self._drop_old(to, now)

    def _drop_old(self, to: To, now: float) -> None:
        for letter in [kept for kept in self._waiting.get(to, ()) if now >= kept.until]:
            self._drop(letter)

    def _drop(self, letter: _KeptLetter[To]) -> None:
        self._remove(letter)
        self.dropped += 1

    def _remove(self, letter: _KeptLetter[To]) -> None:
        self._senders.remove(letter)
        self.held_bytes -= letter.size
        waiting = self._waiting[letter.to]
        del waiting[letter]
        if not waiting:
            del self._waiting[letter.to]


class Switchboard:
    """`random(n)` gives n secret bytes. `now` is a clock in seconds that never goes back."""

    def __init__(self, limits: Limits, *, random: Callable[[int], bytes]) -> None:
        self.limits = limits
        self._random = random
        self._salt = random(BOX_BYTES)
        self._clients: dict[int, ConnectedNode] = {}
        self._by_identity: dict[NodeIdentity, int] = {}
        self._of_host: Counter[str] = Counter()
        self._guests_of_host: Counter[str] = Counter()
        self._circuits: dict[int, Circuit] = {}
        self._of_identity: Counter[NodeIdentity] = Counter()
        self._calls = Calls(limits.ticket_seconds)
        self._tickets: dict[bytes, tuple[int, int]] = {}  # circuit and side, until it ends
        self._boxes: dict[bytes, Box] = {}
        self._boxes_of: Counter[NodeIdentity] = Counter()
        self._mail: Mailroom[NodeIdentity | bytes] = Mailroom(limits)
        self._buckets: dict[NodeIdentity, TokenBucket] = {}
        self._next_circuit = 1
        self.counts: Counter[str] = Counter()  # what happened so far, for the metrics

    # --- what the metrics read

    @property
    def clients(self) -> int:
        return len(self._clients)

    @property
    def circuits(self) -> int:
        return len(self._circuits)

    @property
    def boxes(self) -> int:
        return len(self._boxes)

    @property
    def mail_bytes(self) -> int:
        return self._mail.held_bytes

    @property
    def mail_dropped(self) -> int:
        return self._mail.dropped

    # --- clients

    def has_client_at(self, host: str) -> bool:
        """Return True if a node that has proven its key is connected from `host`, as `enter` was told it."""
        return host in self._of_host

    def enter(self, client: int, who: NodeIdentity, *, host: str, seen: str, now: float) -> list[Action]:
        """Enter a node that has proven its key on a new control connection."""
        if text := self._too_many(who, host):
            self.counts["clients_refused"] += 1
            return [Tell(client, RelayRefusal(0, "full", text, "try another relay")), Drop(client)]
        actions: list[Action] = []
        older = self._by_identity.get(who)
        if older is not None:  # it has reconnected, and we have not seen the old connection die
            self.leave(older)
            text = "this node has a newer connection"
            actions += [Tell(older, RelayRefusal(0, "replaced", text)), Drop(older)]
        self._clients[client] = ConnectedNode(who, host, now)
        self._by_identity[who] = client
        self._of_host[host] += 1
        if who.is_guest:
            self._guests_of_host[host] += 1
        actions.append(Tell(client, Ready(seen, self.limits.circuits_of_key, self.limits.rate)))
        return actions + [Tell(client, mail) for mail in self._mail.take(who, now)]

    def _too_many(self, who: NodeIdentity, host: str) -> str:
        """Return why there is no room for another client; empty if there is."""
        if len(self._clients) >= self.limits.clients:
            return "this relay is full"
        if self._of_host[host] >= self.limits.clients_of_host:
            return "too many nodes behind one address"
        if who.is_guest and (
            self._guests_of_host[host] >= self.limits.guests_of_host
            or self._guests_of_host.total() >= self.limits.guests
        ):
            return "too many nodes are joining through this relay"
        return ""

    def leave(self, client: int) -> None:
        """Remove a lost control connection. Its circuits stay: they are separate connections."""
        gone = self._clients.pop(client, None)
        if gone is None:
            return
        _less(self._of_host, gone.host)
        if gone.who.is_guest:
            _less(self._guests_of_host, gone.host)
        if self._by_identity.get(gone.who) == client:
            del self._by_identity[gone.who]

    def receive(self, client: int, message: FromNode, now: float) -> list[Action]:
        """Handle a message of a node that has entered."""
        state = self._clients.get(client)
        if state is None:
            return []
        match message:
            case RelayPing(number):
                return [Tell(client, RelayPong(number))]
            case Call():
                return self._call(client, state, message, now)
            case HangUp(ticket):
                return self._hang_up(state.who, ticket)
            case Post():
                return self._post(client, state, message, now)
            case OpenBox():
                return self._open_box(client, state, message, now)
            case ShutBox(box):
                found = self._boxes.get(box)
                if found is not None and found.owner == state.who:
                    self._forget_box(box)
                return []

    # --- circuits

    def browse(self, box: bytes, *, host: str, now: float) -> tuple[int, list[Action]] | None:
        """Ring the owner of a box for a browser at `host`, which is there already as side 0 of the circuit.

        Returns the circuit's number and what to do; None: no such box is open, or there is no room.
        """
        found = self._boxes.get(box)
        at = self._by_identity.get(found.owner) if found is not None else None
        if found is None or at is None or not found.lasting:
            return None
        caller = NodeIdentity(hashlib.sha256(self._salt + host.encode()).digest(), b"")
        if (
            found.joins >= self.limits.browsers_of_box
            or len(self._circuits) >= self.limits.circuits
            or self._quota(caller, found.owner, now)
        ):
            return None
        cuts = self._make_room(caller, found.owner, now)
        circuit = self._connect(caller, found.owner, box, now, lasting=True)
        circuit.came.add(0)
        return circuit.number, [*cuts, Tell(at, Ring(circuit.tickets[1], caller.peer, box))]

    def arrive(self, ticket: bytes) -> tuple[int, int] | None:
        """Redeem a ticket, which is good once, for the circuit's number and the side, 0 or 1; None: not
        valid.
        """
        found = self._tickets.get(ticket)
        if found is None:
            return None
        circuit, side = found
        came = self._circuits[circuit].came
        if side in came:
            return None
        came.add(side)
        return found

    def join_bounds(self, circuit: int) -> int:
        """Return how many bytes a circuit may carry each way; 0: any number."""
        return self.limits.join_bytes if self._circuits[circuit].is_join else 0

    def ended(self, circuit: int) -> None:
        """Remove a circuit when both its connections are gone."""
        found = self._circuits.pop(circuit, None)
        if found is None:
            return
        for ticket in found.tickets:
            self._tickets.pop(ticket, None)
        self._calls.remove(found)
        _less(self._of_identity, found.caller)
        _less(self._of_identity, found.callee)
        if found.box in self._boxes:
            self._boxes[found.box].joins -= 1

    def owed(self, circuit: int, side: int, size: int, now: float) -> float:
        """Charge `size` bytes to their sender; return the seconds for which it must not be read."""
        found = self._circuits.get(circuit)
        if found is not None and side == 1:
            found.answered += size
        if found is None or not self.limits.rate:
            return 0.0
        who = found.callee if found.lasting else (found.caller, found.callee)[side]
        bucket = self._buckets.get(who)
        if bucket is None:
            bucket = TokenBucket(rate=self.limits.rate, burst=self.limits.burst, now=now)
            self._buckets[who] = bucket
        return bucket.take(size, now)

    def sweep(self, now: float) -> list[Action]:
        """Forget finished calls; call it about every second."""
        actions: list[Action] = []
        for circuit in list(self._circuits.values()):
            age = now - circuit.since
            waits = len(circuit.came) < 2
            if (waits and age > self.limits.ticket_seconds) or (
                circuit.is_join and age > self.limits.join_seconds
            ):
                actions.append(Cut(circuit.number))
                self.ended(circuit.number)
        for number, client in list(self._clients.items()):
            if client.who.is_guest and now - client.since > self.limits.guest_seconds:
                actions.append(Drop(number))
                self.leave(number)
        for name in [name for name, box in self._boxes.items() if now >= box.until]:
            self._forget_box(name)
        self._mail.sweep(now)
        for who in [who for who, bucket in self._buckets.items() if bucket.full(now)]:
            del self._buckets[who]
        return actions

    # --- inside

    def _call(self, client: int, state: ConnectedNode, call: Call, now: float) -> list[Action]:
        box = call.to if len(call.to) != PEER_BYTES else b""
        callee, why = self._callee(state, call.to)
        at = self._by_identity.get(callee) if callee is not None else None
        if why is None and (callee is None or at is None):
            why = ("absent", "the node is not connected to this relay")
        if why is None and callee is not None:
            why = self._no_room(state.who, callee, box, now)
        if why is not None or callee is None or at is None:
            return self._refuse(client, state, call.number, why or ("absent", ""))
        cuts = self._make_room(state.who, callee, now)
        circuit = self._connect(state.who, callee, box, now, lasting=False)
        return [
            *cuts,
            Tell(at, Ring(circuit.tickets[1], state.who.peer, box)),
            Tell(client, Called(call.number, circuit.tickets[0])),
        ]

    def _connect(
        self, caller: NodeIdentity, callee: NodeIdentity, box: bytes, now: float, *, lasting: bool
    ) -> Circuit:
        """Enter a circuit for which there is room."""
        number = self._next_circuit
        self._next_circuit += 1
        tickets = (self._random(TICKET_BYTES), self._random(TICKET_BYTES))
        self._circuits[number] = circuit = Circuit(number, caller, callee, tickets, now, box, lasting)
        self._calls.add(circuit)
        self._tickets |= {ticket: (number, side) for side, ticket in enumerate(tickets)}
        self._of_identity[caller] += 1
        self._of_identity[callee] += 1
        if box:
            self._boxes[box].joins += 1
        self.counts["circuits"] += 1
        return circuit

    def _callee(self, state: ConnectedNode, to: bytes) -> tuple[NodeIdentity | None, tuple[str, str] | None]:
        """Return the node that a key or a box names, or why the client may not ask for it."""
        if len(to) == PEER_BYTES:
            if state.who.is_guest:
                return None, ("guest", "only members can reach nodes by their key")
            return NodeIdentity(to, state.who.mesh), None
        found = self._boxes.get(to)
        if found is None:
            state.strikes += 1
            return None, ("absent", "no such mailbox is open here")
        return found.owner, None

    def _no_room(
        self, caller: NodeIdentity, callee: NodeIdentity, box: bytes, now: float
    ) -> tuple[str, str] | None:
        if caller == callee:
            return "self", "a node cannot call itself"
        if len(self._circuits) >= self.limits.circuits:
            return "full", "this relay has its maximum number of circuits"
        if box and self._boxes[box].joins >= self.limits.joins_of_box:
            return "busy", "other nodes are joining with this invite right now"
        if self._calls.between(caller, callee) >= self.limits.circuits_of_pair:
            return "quota", "this node has its maximum number of circuits to the other one"
        why = self._quota(caller, callee, now)
        return ("quota", why) if why else None

    def _quota(self, caller: NodeIdentity, callee: NodeIdentity, now: float) -> str:
        """Return who has its maximum number of circuits, of which none gives way; empty: neither."""
        for who, whose in ((caller, "this node has"), (callee, "the other node has")):
            if self._is_full(who) and self._calls.yielding(who, caller, now) is None:
                return f"{whose} its maximum number of circuits"
        return ""

    def _is_full(self, who: NodeIdentity) -> bool:
        return self._of_identity[who] >= self.limits.circuits_of_key

    def _make_room(self, caller: NodeIdentity, callee: NodeIdentity, now: float) -> list[Action]:
        """Evict circuits for one more between them; possible, or `_no_room` would have refused."""
        cuts: list[Action] = []
        for who in (caller, callee):
            found = self._calls.yielding(who, caller, now) if self._is_full(who) else None
            if found is not None:
                cuts.append(Cut(found.number))
                self.ended(found.number)
        return cuts

    def _hang_up(self, who: NodeIdentity, ticket: bytes) -> list[Action]:
        found = self._tickets.get(ticket)
        if found is None:
            return []
        circuit = self._circuits[found[0]]
        if who not in (circuit.caller, circuit.callee):
            return []
        self.ended(circuit.number)
        return [Cut(circuit.number)]

    def _post(self, client: int, state: ConnectedNode, post: Post, now: float) -> list[Action]:
        to, why = self._callee(state, post.to)
        if why is not None or to is None:
            return self._refuse(client, state, post.number, why or ("absent", ""))
        box = self._boxes.get(post.to)
        if box is not None and state.who.peer not in box.guests:
            box.guests.append(state.who.peer)
        at = self._by_identity.get(to)
        if at is None and box is None and self._is_guest_of(state.who, post.to):
            at = self._by_identity.get(NodeIdentity(post.to, b""))
        mail = Mail(state.who.peer, post.to if box is not None else b"", post.blob)
        self.counts["mail"] += 1
        if at is not None:
            return [Tell(at, mail), Tell(client, Posted(post.number, True))]
        self._mail.keep(post.to if box is not None else to, mail, now, host=state.host)
        return [Tell(client, Posted(post.number, False))]

    def _is_guest_of(self, owner: NodeIdentity, peer: bytes) -> bool:
        """Return True if `peer` has written to a box of `owner`, so that it may be answered."""
        return any(box.owner == owner and peer in box.guests for box in self._boxes.values())

    def _open_box(self, client: int, state: ConnectedNode, wanted: OpenBox, now: float) -> list[Action]:
        present = self._boxes.get(wanted.box)
        if state.who.is_guest or (present is not None and present.owner != state.who):
            text = "only members open mailboxes" if state.who.is_guest else "this mailbox is another node's"
            return [Tell(client, RelayRefusal(0, "box", text))]
        if present is not None:
            present.until, present.lasting = now + wanted.seconds, wanted.lasting
        else:
            if len(self._boxes) >= self.limits.boxes or (
                self._boxes_of[state.who] >= self.limits.boxes_of_key
            ):
                return [Tell(client, RelayRefusal(0, "box", "no room for another mailbox"))]
            guests: deque[bytes] = deque(maxlen=self.limits.guests_of_box)
            self._boxes[wanted.box] = Box(state.who, now + wanted.seconds, guests, wanted.lasting)
            self._boxes_of[state.who] += 1
        return [Tell(client, mail) for mail in self._mail.take(wanted.box, now)]

    def _forget_box(self, name: bytes) -> None:
        box = self._boxes.pop(name)
        _less(self._boxes_of, box.owner)
        self._mail.forget(name)

    def _refuse(self, client: int, state: ConnectedNode, number: int, why: tuple[str, str]) -> list[Action]:
        actions: list[Action] = [Tell(client, RelayRefusal(number, *why))]
        if state.who.is_guest and state.strikes >= self.limits.guest_strikes:
            self.leave(client)
            actions.append(Drop(client))
        return actions


def _less(counter: Counter[Key], key: Key) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
