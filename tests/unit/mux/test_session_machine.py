"""The durable session against its model, under everything that hypothesis can think of doing to the links.

The model of a stream is two byte strings: what came out is always a prefix of what went in, memory stays
within the windows, and once the links are good again everything is complete and nothing is left behind.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from meshd.base.errors import Busy, Closed
from meshd.mux.config import Priority

from .script import End, Two, Wire, quiet

STREAM_WINDOW, MOST, SESSION_WINDOW = 300, 1200, 2000
SIDES = st.sampled_from((0, 1))
INDEX = st.integers(0, 1 << 16)


class Durable(RuleBasedStateMachine):
    """Rules are what applications, networks and clocks do."""

    def __init__(self) -> None:
        super().__init__()
        self.two = Two(
            quiet(
                stream_window=STREAM_WINDOW,
                max_stream_window=MOST,
                session_window=SESSION_WINDOW,
                max_streams=6,
                grace=1_000_000,
            )
        )
        self.old: list[Wire] = []
        self.afresh = False  # how it ends
        for end in self.two.ends:
            end.reads = False

    @initialize(opened=st.lists(st.tuples(SIDES, st.booleans()), max_size=4), afresh=st.booleans())
    def begin(self, opened: list[tuple[int, bool]], afresh: bool) -> None:
        self.afresh = afresh
        self.two.link()
        for side, bulk in opened:
            self.open(side, bulk)

    def end(self, side: int) -> End:
        return self.two.ends[side]

    def stream(self, end: End, index: int) -> int | None:
        live = sorted(end.live)
        return live[index % len(live)] if live else None

    def wire(self, index: int) -> Wire | None:
        wires = list(self.two.wires.values())
        return wires[index % len(wires)] if wires else None

    @rule(side=SIDES, bulk=st.booleans())
    def open(self, side: int, bulk: bool) -> None:
        try:
            self.end(side).open(priority=Priority.BULK if bulk else Priority.INTERACTIVE)
        except Busy:
            assert len(self.end(side).session.status().streams) >= 6

    @rule(side=SIDES, index=INDEX, size=st.integers(1, 700), seed=st.integers(0, 255))
    def write(self, side: int, index: int, size: int, seed: int) -> None:
        end = self.end(side)
        stream_id = self.stream(end, index)
        if stream_id is None or self.two.flows.out(end.side, stream_id).eof:
            return
        end.write(stream_id, bytes((seed + i * i) & 255 for i in range(size)))

    @rule(side=SIDES, index=INDEX, size=st.integers(1, 300), arrives=st.booleans())
    def pass_on(self, side: int, index: int, size: int, arrives: bool) -> None:
        end = self.end(side)
        stream_id = self.stream(end, index)
        if stream_id is None or not self.two.pass_on(end, stream_id, bytes(i & 255 for i in range(size))):
            return
        wire = self.two.wires.get(end.session.data_link or 0)
        if wire is not None and arrives:
            self.two.deliver(self.two.other(end), wire)

    @rule(side=SIDES, index=INDEX)
    def write_eof(self, side: int, index: int) -> None:
        end = self.end(side)
        stream_id = self.stream(end, index)
        if stream_id is None:
            return
        try:
            end.write_eof(stream_id)
        except Closed:
            assert self.two.flows.out(end.side, stream_id).eof  # it has ended both ways and is forgotten

    @rule(side=SIDES, index=INDEX)
    def reset(self, side: int, index: int) -> None:
        end = self.end(side)
        stream_id = self.stream(end, index)
        if stream_id is not None:
            end.reset(stream_id)

    @rule(side=SIDES, index=INDEX, share=st.integers(1, 4))
    def consume(self, side: int, index: int, share: int) -> None:
        end = self.end(side)
        stream_id = self.stream(end, index)
        if stream_id is not None and end.unread.get(stream_id, 0):
            end.consume(stream_id, max(end.unread[stream_id] // share, 1))

    @precondition(lambda self: len(self.two.wires) < 3)
    @rule()
    def link(self) -> None:
        self.two.link()

    @rule(index=INDEX)
    def cut(self, index: int) -> None:
        wire = self.wire(index)
        if wire is not None:
            self.old.append(wire)
            self.two.cut(wire)

    @rule(index=INDEX, side=SIDES)
    def lose_one_side(self, index: int, side: int) -> None:
        wire = self.wire(index)
        if wire is not None:
            end = self.end(side)
            end.take(end.session.link_down(wire.link_id, self.two.now))

    @rule(index=INDEX)
    def switch(self, index: int) -> None:
        wire = self.wire(index)
        if wire is not None:
            leader = self.two.leader
            leader.take(leader.session.switch_to(wire.link_id, self.two.now))

    @rule(side=SIDES, data=st.data())
    def write_and_send(self, side: int, data: st.DataObject) -> None:
        """Several writes leave in pieces, and arrive up to some byte: what a link is cut in the middle of."""
        end = self.end(side)
        wire = self.wire(data.draw(INDEX))
        if wire is None:
            return
        for _ in range(data.draw(st.integers(1, 4))):
            self.write(side, data.draw(INDEX), data.draw(st.integers(1, 200)), data.draw(st.integers(0, 255)))
            self.two.send(end, wire, data.draw(st.integers(1, 400)))
        self.two.deliver(self.two.other(end), wire, data.draw(st.integers(0, 600)))

    @rule(index=INDEX, side=SIDES, budget=st.integers(1, 5000))
    def send(self, index: int, side: int, budget: int) -> None:
        wire = self.wire(index)
        if wire is not None:
            self.two.send(self.end(side), wire, budget)

    @rule(index=INDEX, side=SIDES, count=st.integers(1, 3000))
    def deliver(self, index: int, side: int, count: int) -> None:
        wire = self.wire(index)
        if wire is not None:
            self.two.deliver(self.end(side), wire, count)

    @rule()
    def transfer(self) -> None:
        self.two.transfer()

    @precondition(lambda self: self.old)
    @rule(index=INDEX)
    def replay(self, index: int) -> None:
        self.two.replay(self.old[index % len(self.old)])

    @rule(seconds=st.floats(0.001, 10.0))
    def wait(self, seconds: float) -> None:
        self.two.now += seconds
        for end in self.two.ends:
            end.take(end.session.handle_timeout(self.two.now))

    @invariant()
    def memory_is_bounded(self) -> None:
        for end in self.two.ends:
            status = end.session.status()
            assert 0 <= status.send_buffered <= SESSION_WINDOW
            assert 0 <= status.receive_buffered <= SESSION_WINDOW
            for stream in status.streams:
                assert stream.received - stream.consumed <= max(stream.window, STREAM_WINDOW)
                assert stream.written - stream.acknowledged <= MOST

    def teardown(self) -> None:
        self.two.finish(afresh=self.afresh)


Durable.TestCase.settings = settings(
    max_examples=250,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestDurable = Durable.TestCase
