"""Two sessions and the links between them, moved by function calls: no sockets, no sleeping, no real clock.

A test reads as a script: `two.link()`, `two.leader.write(...)`, `two.transfer()`, `two.cut(link)`. Every
end checks by itself that what comes out of a stream is a prefix of what went in at the other end.
"""

from dataclasses import dataclass, field

from meshd.mux.config import MuxConfig, NodeBudget, Priority, Side
from meshd.mux.events import (
    DataReceived,
    Event,
    GoodbyeReceived,
    LinkDead,
    SessionLost,
    StreamAccepted,
    StreamEnded,
    StreamOpened,
    StreamReset,
    Writable,
)
from meshd.mux.session import Session

SESSION_ID = bytes(range(16))
NO_PINGS = 1e9


def quiet(**sizes: int) -> MuxConfig:
    """A configuration without heartbeats, for scripts in which time stands still."""
    return MuxConfig(ping_interval=NO_PINGS, dead_after=NO_PINGS, **sizes)


@dataclass
class Flow:
    """One direction of one stream, as the applications see it."""

    written: bytearray = field(default_factory=bytearray)
    read: int = 0  # bytes that came out, compared with `written`
    ended: bool = False
    eof: bool = False
    void: bool = False  # one side reset the stream: whatever is missing may be missing


class End:
    """One session with an application that keeps book."""

    def __init__(
        self, side: Side, config: MuxConfig, flows: "Flows", budget: NodeBudget | None = None
    ) -> None:
        self.side: Side = side
        self.session = Session(side=side, session_id=SESSION_ID, config=config, budget=budget)
        self.flows = flows
        self.reads = True  # the application takes what comes at once
        self.unread: dict[int, int] = {}
        self.live: set[int] = set()
        self.accepted: set[int] = set()
        self.resets: dict[int, tuple[int, str]] = {}
        self.opened: list[StreamOpened] = []
        self.writable: set[int] = set()
        self.dead: list[LinkDead] = []
        self.events: list[Event] = []
        self.lost = ""
        self.goodbye: GoodbyeReceived | None = None

    def links(self) -> set[int]:
        """Attached ones."""
        return {link.link_id for link in self.session.status().links}

    def open(self, service: str = "echo", priority: Priority = Priority.INTERACTIVE) -> int:
        """Open a stream."""
        stream_id = self.session.open(service, {}, priority)
        self.live.add(stream_id)
        self.flows.begin(stream_id)
        return stream_id

    def write(self, stream_id: int, data: bytes) -> int:
        """Write and keep in mind what was taken."""
        count = self.session.write(stream_id, data)
        self.flows.out(self.side, stream_id).written += data[:count]
        return count

    def pass_on(self, stream_id: int, data: bytes, now: float) -> bytes:
        """Return what the short cut sends at once over the link that carries data; nothing if it will not."""
        pieces = self.session.fast_path.send(self.session.data_link or 0, stream_id, data, now)
        if pieces is None:
            return b""
        self.flows.out(self.side, stream_id).written += data
        return b"".join(pieces)

    def got(self, stream_id: int, data: bytes | memoryview) -> None:
        """Bytes came by the short cut."""
        self._act(DataReceived(stream_id, data))

    def write_eof(self, stream_id: int) -> None:
        """End our direction."""
        self.session.write_eof(stream_id)
        self.flows.out(self.side, stream_id).eof = True

    def reset(self, stream_id: int, code: int = 1, reason: str = "test") -> None:
        """Throw a stream away."""
        self.session.reset(stream_id, code, reason)
        self._void(stream_id)

    def consume(self, stream_id: int, count: int) -> None:
        """Hand on some of what came."""
        self.unread[stream_id] -= count
        self.session.consumed(stream_id, count)

    def consume_all(self) -> None:
        """Hand on all that came."""
        for stream_id, count in list(self.unread.items()):
            if count:
                self.consume(stream_id, count)

    def take(self, events: list[Event]) -> None:
        """Act on events as a driver would."""
        self.events += events
        for event in events:
            self._act(event)

    def _act(self, event: Event) -> None:
        match event:
            case StreamOpened(stream_id):
                assert stream_id not in self.live, "opened twice"
                self.live.add(stream_id)
                self.opened.append(event)
                self.session.accept(stream_id)
            case StreamAccepted(stream_id):
                assert stream_id not in self.accepted, "accepted twice"
                self.accepted.add(stream_id)
            case DataReceived(stream_id, data):
                self._got(stream_id, bytes(data))
            case StreamEnded(stream_id):
                flow = self.flows.into(self.side, stream_id)
                assert not flow.ended and flow.eof and flow.read == len(flow.written), "a wrong end"
                flow.ended = True
            case StreamReset(stream_id, code, reason):
                assert stream_id in self.live, "reset of a stream that is gone"
                self.resets[stream_id] = (code, reason)
                self._void(stream_id)
            case Writable(stream_id):
                self.writable.add(stream_id)
            case LinkDead():
                self.dead.append(event)
            case GoodbyeReceived():
                self.goodbye = event
            case SessionLost(reason):
                self.lost = reason
            case _:
                pass

    def _got(self, stream_id: int, data: bytes) -> None:
        assert stream_id in self.live, "data of a stream that is gone"
        flow = self.flows.into(self.side, stream_id)
        assert data, "an empty piece"
        assert flow.written[flow.read : flow.read + len(data)] == data, "a byte lost, doubled or reordered"
        flow.read += len(data)
        if self.reads:
            self.session.consumed(stream_id, len(data))
        else:
            self.unread[stream_id] = self.unread.get(stream_id, 0) + len(data)

    def _void(self, stream_id: int) -> None:
        self.live.discard(stream_id)
        self.unread.pop(stream_id, None)
        self.flows.out(self.side, stream_id).void = True
        self.flows.into(self.side, stream_id).void = True


class Flows:
    """All streams' two directions: the model, two byte strings a stream."""

    def __init__(self) -> None:
        self._flows: dict[int, dict[Side, Flow]] = {}

    def begin(self, stream_id: int) -> None:
        """A stream exists."""
        self._flows[stream_id] = {"leader": Flow(), "follower": Flow()}

    def out(self, side: Side, stream_id: int) -> Flow:
        """The direction that `side` writes."""
        return self._flows[stream_id][side]

    def into(self, side: Side, stream_id: int) -> Flow:
        """The direction that `side` reads."""
        return self._flows[stream_id]["follower" if side == "leader" else "leader"]

    def all(self) -> list[Flow]:
        """Every direction of every stream."""
        return [flow for pair in self._flows.values() for flow in pair.values()]

    def ids(self) -> list[int]:
        """Every stream there ever was."""
        return list(self._flows)


@dataclass
class Wire:
    """One link: bytes on their way in each direction, and all that ever passed."""

    link_id: int
    to: dict[Side, bytearray] = field(
        default_factory=lambda: {"leader": bytearray(), "follower": bytearray()}
    )
    passed: dict[Side, bytearray] = field(
        default_factory=lambda: {"leader": bytearray(), "follower": bytearray()}
    )
    stalled: set[Side] = field(default_factory=set)  # nothing arrives there
    breaks_after: dict[Side, int] = field(default_factory=dict)  # bytes that arrive there before it breaks


class Two:
    """Leader and follower, the links between them, and a clock that moves when told."""

    def __init__(self, config: MuxConfig | None = None) -> None:
        self.now = 1000.0
        self.flows = Flows()
        self.leader = End("leader", config or quiet(), self.flows)
        self.follower = End("follower", config or quiet(), self.flows)
        self.wires: dict[int, Wire] = {}
        self._next_link = 1

    @property
    def ends(self) -> tuple[End, End]:
        """Both."""
        return self.leader, self.follower

    def other(self, end: End) -> End:
        """The one at the other side."""
        return self.follower if end is self.leader else self.leader

    def link(self) -> Wire:
        """A new link, attached on both sides."""
        wire = Wire(self._next_link)
        self._next_link += 1
        self.wires[wire.link_id] = wire
        for end in self.ends:
            end.take(end.session.link_up(wire.link_id, self.now))
        return wire

    def send(self, end: End, wire: Wire, budget: int = 1 << 20) -> int:
        """Put what `end` has to send on the wire; return how much. `due` must not miss any of it."""
        due = end.session.due(wire.link_id, self.now)
        sent = b"".join(end.session.transmit(wire.link_id, self.now, budget))
        assert due or not sent, "`due` says that there is nothing to send"
        wire.to[self.other(end).side] += sent
        return len(sent)

    def deliver(self, end: End, wire: Wire, count: int | None = None) -> int:
        """At most `count` bytes arrive at `end`; returns how many."""
        waiting = wire.to[end.side]
        last = wire.breaks_after.get(end.side)
        if last is not None:
            count = last if count is None else min(last, count)
        data = bytes(waiting[:count])
        if not data or end.side in wire.stalled:
            return 0
        del waiting[: len(data)]
        wire.passed[end.side] += data
        self._hand(end, wire, data)
        if last is not None:
            wire.breaks_after[end.side] = last - len(data)
            if last == len(data):
                self.cut(wire)
        return len(data)

    def _hand(self, end: End, wire: Wire, data: bytes) -> None:
        """As a driver does: by the short cut, if that takes it, which must not leave undone what is due."""
        session = end.session
        quiet = not session.due(wire.link_id, self.now)
        arrived = session.fast_path.receive(wire.link_id, data, self.now)
        if arrived is None:
            end.take(session.receive(wire.link_id, data, self.now))
            return
        stream_id, payload, ask = arrived
        if quiet and not ask:
            assert not session.due(wire.link_id, self.now), "the short cut says that nothing is due"
        end.got(stream_id, payload)

    def pass_on(self, end: End, stream_id: int, data: bytes) -> bool:
        """Write by the short cut, which sends at once; False, and nothing done, where it will not."""
        sent = end.pass_on(stream_id, data, self.now)
        wire = self.wires.get(end.session.data_link or 0)
        if sent and wire is not None:
            wire.to[self.other(end).side] += sent
        return bool(sent)

    def transfer(self, *, rounds: int = 1000) -> None:
        """Move everything until neither side has anything to say."""
        for _ in range(rounds):
            moved = 0
            for wire in list(self.wires.values()):
                for end in self.ends:
                    moved += self.send(end, wire)
                    moved += self.deliver(self.other(end), wire)
            if not moved and not self._ripen():
                return
        raise AssertionError("the two never come to rest")

    def _ripen(self) -> bool:
        """Let acknowledgements that wait for company go alone; True if there were any."""
        ripe = False
        for end in self.ends:
            at = end.session.next_timeout()
            if at is not None and at <= self.now + 0.1:
                self.now = max(self.now, at)
                end.take(end.session.handle_timeout(self.now))
                ripe = True
        return ripe

    def cut(self, wire: Wire) -> None:
        """The link breaks: what was on its way is lost, both sides notice."""
        self.wires.pop(wire.link_id, None)
        for end in self.ends:
            end.take(end.session.link_down(wire.link_id, self.now))

    def replay(self, wire: Wire) -> None:
        """A new link delivers, to both sides, all that `wire` ever delivered, and then breaks."""
        double = self.link()
        for end in self.ends:
            end.take(end.session.receive(double.link_id, bytes(wire.passed[end.side]), self.now))
        self.cut(double)

    def advance(self, seconds: float, *, step: float = 0.25) -> None:
        """Time passes; timers fire, links that are not stalled carry what there is."""
        end_at = self.now + seconds
        while self.now < end_at:
            self.now = min(self.now + step, end_at)
            for end in self.ends:
                at = end.session.next_timeout()
                if at is not None and at <= self.now:
                    end.take(end.session.handle_timeout(self.now))
            for wire in list(self.wires.values()):
                for end in self.ends:
                    self.send(end, wire)
                    self.deliver(self.other(end), wire)

    def finish(self, *, afresh: bool = False) -> None:
        """Bring everything to its end over a good link, and check that nothing is missing or left.

        `afresh`: over a new link alone; otherwise over the ones that there are, if both sides have them.
        """
        for wire in list(self.wires.values()):
            if afresh or any(wire.link_id not in end.links() for end in self.ends):
                self.cut(wire)
        if not self.wires:
            self.link()
        for end in self.ends:
            end.reads = True
            end.consume_all()
        self.transfer()
        for end in self.ends:
            for stream_id in list(end.live):
                flow = self.flows.out(end.side, stream_id)
                if not flow.eof and not flow.void:
                    assert end.write(stream_id, b"last words") > 0, "all was read, and no credit came back"
                    end.write_eof(stream_id)
        self.transfer()
        self.check_complete()

    def check_complete(self) -> None:
        """All that was written has come out; no stream, no byte and no credit is left over."""
        for flow in self.flows.all():
            assert flow.void or (flow.ended and flow.read == len(flow.written)), flow
        for end in self.ends:
            mine, theirs = end.session.status(), self.other(end).session.status()
            assert mine.streams == ()
            assert mine.send_buffered == 0
            assert mine.receive_buffered == 0
            assert mine.sent == theirs.received, "the session's credit leaks"
