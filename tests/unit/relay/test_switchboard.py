"""Who may reach whom through a relay, and that nothing grows: decisions only, no sockets."""

import itertools
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.relay.switchboard import (
    LETTER_BYTES,
    SETTLED_BYTES,
    SMALL,
    Action,
    Cut,
    Drop,
    Limits,
    Mailroom,
    NodeIdentity,
    Switchboard,
    Tell,
)
from meshd.wire.relay import (
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
    RelayRefusal,
    Ring,
    ShutBox,
)

MESH, OTHER = b"m" * 32, b"o" * 32
BOX, BOX2 = b"b" * 16, b"c" * 16
ANN, BOB, CAT, DAN = (name * 32 for name in (b"A", b"B", b"C", b"D"))
LIMITS = replace(SMALL, circuits_of_key=2, mail_of_one=4, boxes_of_key=2, clients_of_host=4)


def counted() -> Callable[[int], bytes]:
    numbers = itertools.count(1)
    return lambda size: next(numbers).to_bytes(size, "big")


def board(limits: Limits = LIMITS) -> Switchboard:
    return Switchboard(limits, random=counted())


def enter(
    switchboard: Switchboard, client: int, peer: bytes, mesh: bytes = MESH, *, now: float = 0.0
) -> list[Action]:
    host = f"192.0.2.{client % 250}"
    return switchboard.enter(client, NodeIdentity(peer, mesh), host=host, seen=f"{host}:1", now=now)


def entered(*members: bytes, limits: Limits = LIMITS) -> Switchboard:
    """A switchboard at which these are connected, as 1, 2 and so on."""
    made = board(limits)
    for client, member in enumerate(members, 1):
        enter(made, client, member)
    return made


def test_a_client_is_known_at_its_host_while_it_is_connected() -> None:
    it = board()
    assert not it.has_client_at("192.0.2.1")
    enter(it, 1, ANN)
    assert it.has_client_at("192.0.2.1")
    assert not it.has_client_at("192.0.2.2")
    it.leave(1)
    assert not it.has_client_at("192.0.2.1")


def told(actions: list[Action], client: int) -> list[FromRelay]:
    return [action.message for action in actions if isinstance(action, Tell) and action.client == client]


def refused(actions: list[Action], client: int) -> str:
    (message,) = told(actions, client)
    assert isinstance(message, RelayRefusal)
    return message.code


def call(switchboard: Switchboard, client: int, to: bytes, *, now: float = 0.0) -> list[Action]:
    return switchboard.receive(client, Call(7, to), now)


def tickets(actions: list[Action], caller: int, callee: int) -> tuple[bytes, bytes]:
    (called,), (ring,) = told(actions, caller), told(actions, callee)
    assert isinstance(called, Called)
    assert isinstance(ring, Ring)
    return called.ticket, ring.ticket


def test_a_node_that_connects_is_told_its_limits() -> None:
    assert told(enter(board(), 1, ANN), 1) == [Ready("192.0.2.1:1", 2, LIMITS.rate)]
    assert board().receive(9, RelayPing(1), 0) == []


def test_a_call_rings_and_both_tickets_meet_in_one_circuit() -> None:
    relay = entered(ANN, BOB)
    mine, theirs = tickets(call(relay, 1, BOB), 1, 2)
    assert mine != theirs
    assert relay.arrive(theirs) == (1, 1)
    assert relay.arrive(mine) == (1, 0)
    assert relay.arrive(mine) is None, "a ticket is good once"
    assert relay.join_bounds(1) == 0
    assert relay.sweep(1000.0) == []
    relay.ended(1)
    relay.ended(1)
    assert relay.circuits == 0


def test_nobody_reaches_another_mesh() -> None:
    relay = entered(ANN)
    enter(relay, 2, BOB, OTHER)
    assert refused(call(relay, 1, BOB), 1) == "absent"
    assert relay.receive(1, Post(1, BOB, b"x"), 0) == [Tell(1, Posted(1, False))]
    assert told(enter(relay, 3, BOB, OTHER), 3) == [Ready("192.0.2.3:1", 2, LIMITS.rate)], "no mail either"


def test_a_guest_reaches_open_boxes_and_nothing_else() -> None:
    relay = entered(ANN)
    enter(relay, 2, CAT, b"")
    assert refused(call(relay, 2, ANN), 2) == "guest"
    assert refused(relay.receive(2, Post(1, ANN, b"x"), 0), 2) == "guest"
    assert refused(relay.receive(2, OpenBox(BOX, 60), 0), 2) == "box"
    assert refused(call(relay, 2, BOX), 2) == "absent"
    relay.receive(1, OpenBox(BOX, 60), 0)
    actions = call(relay, 2, BOX)
    mine, _ = tickets(actions, 2, 1)
    assert told(actions, 1)[0] == Ring(tickets(actions, 2, 1)[1], CAT, BOX)
    found = relay.arrive(mine)
    assert found is not None
    assert relay.join_bounds(found[0]) == LIMITS.join_bytes


def test_members_cannot_reach_a_guest_that_has_not_written_to_them() -> None:
    relay = entered(ANN)
    enter(relay, 2, CAT, b"")
    assert relay.receive(1, Post(1, CAT, b"x"), 0) == [Tell(1, Posted(1, False))]
    relay.receive(1, OpenBox(BOX, 60), 0)
    assert told(relay.receive(2, Post(2, BOX, b"hello"), 0), 1) == [Mail(CAT, BOX, b"hello")]
    assert told(relay.receive(1, Post(3, CAT, b"back"), 0), 2) == [Mail(ANN, b"", b"back")]


def test_who_guesses_boxes_is_dropped() -> None:
    relay = board()
    enter(relay, 2, CAT, b"")
    dropped = [Drop(2) in call(relay, 2, bytes([guess]) * 16) for guess in range(LIMITS.guest_strikes)]
    assert dropped == [False] * (LIMITS.guest_strikes - 1) + [True]
    assert relay.clients == 0


def test_a_guest_does_not_stay() -> None:
    relay = entered(ANN)
    enter(relay, 2, CAT, b"")
    assert relay.sweep(LIMITS.guest_seconds + 1) == [Drop(2)]
    assert relay.clients == 1


def test_a_box_belongs_to_who_opened_it_first() -> None:
    relay = entered(ANN, BOB)
    relay.receive(1, OpenBox(BOX, 60), 0)
    assert refused(relay.receive(2, OpenBox(BOX, 60), 0), 2) == "box"
    relay.receive(2, ShutBox(BOX), 0)
    assert relay.boxes == 1
    relay.receive(1, ShutBox(BOX), 0)
    relay.receive(1, ShutBox(BOX), 0)
    assert relay.boxes == 0


def test_boxes_are_few_and_end() -> None:
    relay = entered(ANN)
    for name in (BOX, BOX2, BOX):
        assert relay.receive(1, OpenBox(name, 60), 0) == []
    assert refused(relay.receive(1, OpenBox(b"d" * 16, 60), 0), 1) == "box"
    relay.sweep(60.0)
    assert relay.boxes == 0
    assert relay.receive(1, OpenBox(b"d" * 16, 60), 61) == []


def test_mail_waits_for_its_receiver() -> None:
    relay = entered(ANN)
    assert relay.receive(1, Post(1, BOB, b"1"), 0) == [Tell(1, Posted(1, False))]
    relay.receive(1, Post(2, BOB, b"2"), 0)
    assert told(enter(relay, 2, BOB, now=1), 2)[1:] == [Mail(ANN, b"", b"1"), Mail(ANN, b"", b"2")]
    assert relay.receive(1, Post(3, BOB, b"3"), 1) == [
        Tell(2, Mail(ANN, b"", b"3")),
        Tell(1, Posted(3, True)),
    ]


def test_mail_for_a_box_waits_for_its_owner() -> None:
    relay = entered(ANN)
    relay.receive(1, OpenBox(BOX, 60), 0)
    relay.leave(1)
    enter(relay, 2, CAT, b"")
    assert relay.receive(2, Post(1, BOX, b"x"), 0) == [Tell(2, Posted(1, False))]
    assert refused(call(relay, 2, BOX), 2) == "absent"
    enter(relay, 3, ANN)
    assert relay.receive(3, OpenBox(BOX, 60), 1) == [Tell(3, Mail(CAT, BOX, b"x"))]


def test_a_node_that_comes_again_replaces_itself() -> None:
    relay = entered(ANN)
    actions = enter(relay, 2, ANN)
    assert refused(actions, 1) == "replaced"
    assert Drop(1) in actions
    relay.leave(1)
    enter(relay, 3, BOB)
    assert told(call(relay, 3, ANN), 2)
    assert relay.clients == 2


def settled(relay: Switchboard, actions: list[Action], caller: int, callee: int) -> None:
    """Both sides come, and the callee says more than it says to a stranger."""
    mine, theirs = tickets(actions, caller, callee)
    found = relay.arrive(mine)
    assert found is not None and relay.arrive(theirs) == (found[0], 1)
    relay.owed(found[0], 1, SETTLED_BYTES, 0.0)


def test_circuits_of_a_key_are_bounded_on_both_sides() -> None:
    relay = entered(ANN, BOB, CAT)
    for _ in range(LIMITS.circuits_of_key):
        settled(relay, call(relay, 1, BOB), 1, 2)
    assert refused(call(relay, 1, CAT), 1) == "quota"
    assert refused(call(relay, 3, BOB), 3) == "quota"
    assert refused(call(relay, 1, ANN), 1) == "self"


def test_one_caller_has_few_circuits_to_one_node() -> None:
    relay = entered(ANN, BOB, CAT, limits=SMALL)
    for _ in range(SMALL.circuits_of_pair):
        tickets(call(relay, 1, BOB), 1, 2)
    assert refused(call(relay, 1, BOB), 1) == "quota"
    tickets(call(relay, 1, CAT), 1, 3)
    tickets(call(relay, 2, ANN), 2, 1)


def test_calls_that_prove_nothing_leave_a_node_open_to_others_and_free_to_call() -> None:
    """The caller with the most gives way, its oldest circuit first, even if both sides have come."""
    relay = board(replace(SMALL, circuits_of_key=4))
    for client, peer in enumerate((ANN, BOB, CAT, DAN), 1):
        enter(relay, client, peer)
    for caller in (2, 3, 3, 2):
        for ticket in tickets(call(relay, caller, ANN), caller, 1):
            relay.arrive(ticket)
    actions = call(relay, 4, ANN)
    tickets(actions, 4, 1)
    assert Cut(1) in actions and relay.circuits == 4, "Bob's, as Bob's are as many as Cat's and older"
    actions = call(relay, 1, DAN)
    tickets(actions, 1, 4)
    assert Cut(2) in actions and relay.circuits == 4, "one of Cat's, who had the most then"
    assert refused(call(relay, 2, ANN), 2) == "quota", "who has as many as the others displaces nobody"


def test_circuits_that_a_node_keeps_give_way_to_nobody() -> None:
    relay = entered(ANN, BOB, CAT)
    for _ in range(LIMITS.circuits_of_key):
        for ticket in tickets(call(relay, 2, ANN), 2, 1):
            relay.arrive(ticket)
    later = LIMITS.ticket_seconds + 1
    assert refused(call(relay, 3, ANN, now=later), 3) == "quota"


def test_a_given_up_call_makes_room() -> None:
    relay = entered(ANN, BOB, CAT)
    mine, theirs = tickets(call(relay, 1, BOB), 1, 2)
    assert relay.receive(3, HangUp(mine), 0) == [], "a ticket of others"
    assert relay.receive(2, HangUp(theirs), 0) == [Cut(1)]
    assert relay.arrive(mine) is None
    assert relay.circuits == 0


def test_a_call_given_up_after_both_came_makes_room() -> None:
    """The relay may hear of the connections' ends only after the next call."""
    relay = entered(ANN, BOB)
    mine, theirs = tickets(call(relay, 1, BOB), 1, 2)
    assert relay.arrive(mine) == (1, 0) and relay.arrive(theirs) == (1, 1)
    assert relay.receive(1, HangUp(mine), 0) == [Cut(1)]
    assert relay.circuits == 0
    assert relay.arrive(mine) is None and relay.receive(1, HangUp(mine), 0) == []


def test_tickets_expire() -> None:
    relay = entered(ANN, BOB)
    mine, theirs = tickets(call(relay, 1, BOB), 1, 2)
    assert relay.arrive(mine) is not None
    assert relay.sweep(LIMITS.ticket_seconds + 1) == [Cut(1)]
    assert relay.arrive(theirs) is None


def test_joining_is_held_to_its_time() -> None:
    relay = entered(ANN)
    relay.receive(1, OpenBox(BOX, 3600), 0)
    enter(relay, 2, CAT, b"")
    for ticket in tickets(call(relay, 2, BOX), 2, 1):
        relay.arrive(ticket)
    assert relay.sweep(LIMITS.join_seconds + 1) == [Cut(1)]


def test_one_box_is_joined_by_few_at_once() -> None:
    relay = entered(ANN, limits=replace(LIMITS, joins_of_box=1))
    relay.receive(1, OpenBox(BOX, 3600), 0)
    enter(relay, 2, CAT, b"")
    enter(relay, 3, BOB, b"")
    tickets(call(relay, 2, BOX), 2, 1)
    assert refused(call(relay, 3, BOX), 3) == "busy"
    relay.ended(1)
    tickets(call(relay, 3, BOX), 3, 1)


def test_an_address_holds_few_clients_and_the_relay_not_all() -> None:
    relay = board(replace(LIMITS, clients=5))

    def come(client: int, host: str) -> list[Action]:
        return relay.enter(client, NodeIdentity(bytes([client]) * 32, MESH), host=host, seen="x", now=0)

    for client in range(1, 5):
        assert told(come(client, "192.0.2.1"), client)[0] == Ready("x", 2, LIMITS.rate)
    assert refused(come(5, "192.0.2.1"), 5) == "full"
    come(6, "192.0.2.2")
    assert refused(come(7, "192.0.2.3"), 7) == "full"
    relay.leave(1)
    assert told(come(8, "192.0.2.1"), 8)[0] == Ready("x", 2, LIMITS.rate)


def test_guests_are_few() -> None:
    relay = board(replace(LIMITS, guests=3, guests_of_host=2))

    def come(client: int, host: str) -> list[Action]:
        return relay.enter(client, NodeIdentity(bytes([client]) * 32, b""), host=host, seen="x", now=0)

    come(1, "192.0.2.1")
    come(2, "192.0.2.1")
    assert refused(come(3, "192.0.2.1"), 3) == "full"
    come(4, "192.0.2.2")
    assert refused(come(5, "192.0.2.3"), 5) == "full"
    assert told(enter(relay, 6, ANN), 6), "members are not in their way"
    relay.leave(1)
    assert told(come(7, "192.0.2.1"), 7) == [Ready("x", 2, LIMITS.rate)]


def test_a_sender_owes_for_what_it_sent() -> None:
    relay = entered(ANN, BOB, limits=replace(LIMITS, rate=100, burst=50))
    tickets(call(relay, 1, BOB), 1, 2)
    assert relay.owed(1, 0, 50, 0.0) == 0
    assert relay.owed(1, 0, 100, 0.0) == 1.0
    assert relay.owed(1, 1, 50, 0.0) == 0, "the other side pays for itself"
    assert relay.owed(99, 0, 50, 0.0) == 0
    assert board(replace(LIMITS, rate=0)).owed(1, 0, 1 << 30, 0.0) == 0


nodes = st.integers(1, 6)
peers = st.sampled_from([ANN, BOB, CAT])
boxes = st.sampled_from([BOX, BOX2])
messages: st.SearchStrategy[FromNode] = st.one_of(
    st.builds(Call, st.just(1), peers | boxes),
    st.builds(Post, st.just(1), peers | boxes, st.binary(max_size=20)),
    st.builds(OpenBox, boxes, st.integers(1, 100)),
    st.builds(ShutBox, boxes),
    st.builds(HangUp, st.integers(1, 20).map(lambda number: number.to_bytes(16, "big"))),
)
steps = st.one_of(
    st.tuples(st.just("enter"), nodes, peers, st.sampled_from([MESH, OTHER, b""])),
    st.tuples(st.just("leave"), nodes),
    st.tuples(st.just("say"), nodes, messages),
    st.tuples(st.just("arrive"), st.integers(1, 20)),
    st.tuples(st.just("end"), st.integers(1, 10)),
    st.tuples(st.just("wait"), st.floats(0, 30)),
)


@given(st.lists(steps, max_size=60))
def test_whatever_happens_nothing_is_left_in_the_end(script: list[tuple[object, ...]]) -> None:
    relay, now = board(), 0.0
    for step in script:
        match step:
            case ("enter", int(client), bytes(peer), bytes(mesh)):
                relay.leave(client)
                enter(relay, client, peer, mesh, now=now)
            case ("leave", int(client)):
                relay.leave(client)
            case ("say", int(client), message):
                relay.receive(client, message, now)  # type: ignore[arg-type]
            case ("arrive", int(number)):
                relay.arrive(number.to_bytes(16, "big"))
            case ("end", int(number)):
                relay.ended(number)
            case ("wait", float(seconds)):
                now += seconds
                relay.sweep(now)
        assert relay.clients <= 6
        assert relay.mail_bytes >= 0
    for client in range(1, 7):
        relay.leave(client)
    for number in range(1, 70):
        relay.ended(number)
    relay.sweep(now + 1e6)
    state = {name: value for name, value in vars(relay).items() if isinstance(value, dict)}
    state.pop("counts")
    assert not any(state.values()), state
    assert relay.mail_bytes == 0


FULL = 30 + LETTER_BYTES
MAIL_LIMITS = replace(SMALL, mail_of_one=3, mail_of_sender=6, mail_bytes=4 * FULL, mail_seconds=10.0)


def letter(number: int, size: int = 10, *, by: int = 0) -> Mail:
    return Mail(bytes([by]) * 32, b"", bytes([number]) * size)


def test_letters_come_in_order_and_once() -> None:
    room: Mailroom[str] = Mailroom(MAIL_LIMITS)
    room.keep("a", letter(1), 0, host="h")
    room.keep("a", letter(2), 1, host="h")
    room.keep("b", letter(3), 1, host="h")
    assert room.take("a", 2) == [letter(1), letter(2)]
    assert room.take("a", 2) == []
    assert room.held_bytes == 10 + LETTER_BYTES


def test_the_eldest_goes_when_one_has_too_many() -> None:
    room: Mailroom[str] = Mailroom(MAIL_LIMITS)
    for number in range(5):
        room.keep("a", letter(number), 0, host="h")
    assert room.take("a", 0) == [letter(2), letter(3), letter(4)]
    assert (room.dropped, room.held_bytes) == (2, 0)


def test_all_together_are_bounded() -> None:
    room: Mailroom[int] = Mailroom(MAIL_LIMITS)
    for number in range(20):
        room.keep(number, letter(number, 30), 0, host="h")
        assert room.held_bytes <= MAIL_LIMITS.mail_bytes
    assert [bool(room.take(number, 0)) for number in range(20)] == [False] * 16 + [True] * 4


def test_a_letter_larger_than_the_room_is_dropped() -> None:
    room: Mailroom[int] = Mailroom(MAIL_LIMITS)
    room.keep(1, letter(1, 5 * FULL), 0, host="h")
    assert (room.held_bytes, room.take(1, 0)) == (0, [])


def test_old_letters_go() -> None:
    room: Mailroom[str] = Mailroom(MAIL_LIMITS)
    room.keep("a", letter(1), 0, host="h")
    room.keep("a", letter(2), 5, host="h")
    room.sweep(10)
    assert room.take("a", 10) == [letter(2)]
    room.keep("b", letter(3), 0, host="h")
    assert room.take("b", 10) == []
    assert room.held_bytes == 0


def test_what_nobody_will_fetch_is_forgotten() -> None:
    room: Mailroom[str] = Mailroom(MAIL_LIMITS)
    room.keep("a", letter(1), 0, host="h")
    room.forget("a")
    room.forget("a")
    assert (room.held_bytes, room.take("a", 0)) == (0, [])


def test_a_sender_displaces_its_own_letters_only() -> None:
    """In the room as a whole, and in the box of one node."""
    room: Mailroom[int] = Mailroom(replace(SMALL, mail_bytes=64 * FULL))
    for number in range(8):
        room.keep(number, letter(number, 30, by=number), 0, host=f"honest {number}")
    for number in range(1000):
        room.keep(100 + number % 50, letter(7, 30, by=99), 0, host="hostile")
        room.keep(0, letter(7, 30, by=99), 0, host="hostile")
    assert room.held_bytes <= 64 * FULL
    for number in range(8):
        assert letter(number, 30, by=number) in room.take(number, 0)


def test_an_address_with_many_keys_displaces_its_own_letters_only() -> None:
    room: Mailroom[int] = Mailroom(replace(SMALL, mail_bytes=64 * FULL))
    for number in range(8):
        room.keep(number, letter(number, 30, by=number), 0, host=f"honest {number}")
    for number in range(1000):
        room.keep(100 + number, letter(7, 30, by=100 + number % 100), 0, host="hostile")
        room.keep(number % 8, letter(7, 30, by=100 + number % 100), 0, host="hostile")
    for number in range(8):
        assert letter(number, 30, by=number) in room.take(number, 0)


def test_empty_letters_take_room_too() -> None:
    room: Mailroom[int] = Mailroom(MAIL_LIMITS)
    for number in range(1000):
        room.keep(number, letter(number % 256, 0), 0, host="h")
    assert sum(bool(room.take(number, 0)) for number in range(1000)) <= MAIL_LIMITS.mail_bytes // LETTER_BYTES


LETTERS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 3), st.integers(0, 60)), max_size=60
)


@given(LETTERS, st.lists(st.integers(0, 5), max_size=4))
@settings(deadline=None)
def test_the_room_is_within_its_limits_and_knows_what_it_holds(
    letters: list[tuple[int, int, int, int]], fetched: list[int]
) -> None:
    room: Mailroom[int] = Mailroom(MAIL_LIMITS)
    for at, (to, by, host, size) in enumerate(letters):
        room.keep(to, letter(by, size, by=by), at / 4, host=str(host))
        assert room.held_bytes <= MAIL_LIMITS.mail_bytes
    for to in fetched:
        assert len(room.take(to, len(letters) / 4)) <= MAIL_LIMITS.mail_of_one
    left = [mail for to in range(6) for mail in room.take(to, len(letters) / 4)]
    assert len(left) <= 5 * MAIL_LIMITS.mail_of_sender * 4
    assert room.held_bytes == 0
