"""Joining, both sides: uses, crashes, bans at the inviter; a hostile inviter at the joiner."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import Broken, EndOfStream, MeshdError, Refused, RemoteProtocolError, UserError
from meshd.base.tasks import Owner
from meshd.identity.invite import Reply, derive, encode_reply
from meshd.identity.invite_book import InviteBook
from meshd.identity.keys import KeyPair
from meshd.identity.keystore import Membership
from meshd.identity.membership import Chain, Role, check_chain
from meshd.identity.record import PeerRecord
from meshd.identity.revocation import RevocationSet, ban
from meshd.rendezvous.join import (
    ACCEPT_SECONDS,
    BOX_SECONDS,
    BROWSER_BOX_SECONDS,
    Admitted,
    Inviter,
    OpenForJoiners,
    ask,
    boxes_of,
    browser_boxes_of,
)
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable
from meshd.wire.hello import JoinRequest, NotAdmitted, Welcome, decode_joining
from meshd.wire.message import LengthParser, framed

from tests.sim.loop import run
from tests.unit.identity.cast import (
    FOUNDER,
    FOUNDER_CHAIN,
    GUEST,
    GUEST_CHAIN,
    INVITER,
    INVITER_CHAIN,
    MESH,
    ROOT,
    STRANGER,
    WORKER,
    damaged,
    key,
)
from tests.unit.rendezvous.inviters import NOW, OUTER

pytestmark = pytest.mark.virtual

SECRET = b"a secret of 16 b"


class Desk:
    """An inviter and its disk: `crash_at` the n-th save everything in memory is gone."""

    def __init__(self, *, uses: int = 2, signer: KeyPair = INVITER, chain: Chain = INVITER_CHAIN) -> None:
        self.signer, self.chain = signer, chain
        self.bans = RevocationSet(MESH)
        self.book = InviteBook(MESH)
        self.invite = self.book.create(
            secret=SECRET, roles=[Role.USE], now=NOW, expires_at=NOW + 100, uses=uses
        ).invite_id
        self.disk = self.book.encode()
        self.saves = 0
        self.crash_at: int | None = None
        self.full = False  # the disk
        self.now = NOW
        self.serial = 0
        self.records: list[PeerRecord] = []
        self.inviter = self.begin()

    def save(self) -> bool:
        self.saves += 1
        if self.saves == self.crash_at:
            raise KeyboardInterrupt
        if self.full:
            return False
        self.disk = self.book.encode()
        return True

    def random(self, count: int) -> bytes:
        self.serial += 1
        return self.serial.to_bytes(count, "big")

    def begin(self) -> Inviter:
        """As after a start: what the disk has."""
        self.book = InviteBook.decode(self.disk)
        self.inviter = Inviter(
            key=self.signer,
            membership=Membership(MESH, self.chain),
            book=self.book,
            bans=self.bans,
            save=self.save,
            records=lambda: self.records,
            random=self.random,
            wall_clock=lambda: self.now,
        )
        return self.inviter

    def welcome(self, who: KeyPair) -> Welcome:
        answer = self.inviter.decide(who.peer, self.invite)
        assert isinstance(answer, Welcome), answer
        return answer

    def refusal(self, who: KeyPair) -> NotAdmitted:
        answer = self.inviter.decide(who.peer, self.invite)
        assert isinstance(answer, NotAdmitted), answer
        return answer


def test_who_is_welcome_is_a_member_with_the_invites_roles() -> None:
    member = check_chain(Chain.decode(Desk().welcome(GUEST).chain), MESH, GUEST.peer)
    assert member.roles == {Role.USE}


@pytest.mark.parametrize("crash_at", [1, 2])
def test_a_crash_between_reserve_and_certify_costs_nothing(crash_at: int) -> None:
    desk = Desk(uses=1)
    desk.crash_at = crash_at
    with pytest.raises(KeyboardInterrupt):
        desk.inviter.decide(GUEST.peer, desk.invite)
    desk.begin()
    first = desk.welcome(GUEST)
    desk.begin()
    assert desk.welcome(GUEST).chain == first.chain
    assert desk.refusal(STRANGER).code == "used_up"


def test_on_a_full_disk_nobody_is_let_in_and_the_same_token_works_later() -> None:
    desk = Desk(uses=1)
    desk.full = True
    assert desk.refusal(GUEST).code == "disk"
    assert "inviter" in desk.refusal(GUEST).hint
    desk.full = False
    assert desk.welcome(GUEST).chain
    assert desk.refusal(STRANGER).code == "used_up"


def test_nothing_is_certified_that_was_not_written_first() -> None:
    desk = Desk()
    seen: list[tuple[bool, ...]] = []
    plain = desk.save

    def save() -> bool:
        (entry,) = desk.book.entries()
        seen.append(tuple(use.certificate is not None for use in entry.used))
        return plain()

    desk.save = save  # type: ignore[method-assign]
    desk.begin()
    desk.welcome(GUEST)
    assert seen == [(False,), (True,)]


@pytest.mark.parametrize("kind", ["node", "invite"])
def test_a_banned_key_or_invite_is_refused(kind: str) -> None:
    desk = Desk()
    target = GUEST.peer.raw if kind == "node" else desk.invite
    made = ban(
        signer=ROOT,
        chain=None,
        mesh=MESH,
        kind="node" if kind == "node" else "invite",
        target=target,
        issued_at=0,
    )
    desk.bans.add(made)
    answer = desk.refusal(GUEST)
    assert desk.saves == 0
    if kind == "node":
        assert answer.code == "banned" and "is banned from this mesh" in answer.text
        assert "founder" in answer.hint and "`meshd unban`" in answer.hint
        assert "meshd leave --new-identity" in answer.hint
        desk.welcome(WORKER)
    else:  # the joiner did nothing wrong, and needs no new key
        assert answer.code == "revoked" and "meshd invite" in answer.hint
        assert "new-identity" not in answer.hint


def test_a_welcome_fits_into_a_message_however_large_the_mesh() -> None:
    desk = Desk()
    places = tuple(Candidate(f"2001:db8::{number:x}", 7447) for number in range(1, 32))
    record = PeerRecord.sign(
        FOUNDER, chain=FOUNDER_CHAIN, name="f" * 60, role="serve", sequence=1, candidates=places
    )
    desk.records = [record] * 200
    for number in range(200):
        node = key(f"banned {number}")
        desk.bans.add(ban(signer=ROOT, chain=None, mesh=MESH, kind="node", target=node.peer.raw, issued_at=0))
    parser = LengthParser()
    parser.feed(framed(desk.welcome(GUEST).encode()))
    message = parser.next()
    assert message is not None
    welcome = decode_joining(message)
    assert isinstance(welcome, Welcome)
    assert len(welcome.records) > 10 and len(welcome.bans) > 10


# The conversation.


class End:
    """One end of a pipe made of queues."""

    def __init__(self, inward: asyncio.Queue[bytes], outward: asyncio.Queue[bytes]) -> None:
        self._in, self._out = inward, outward
        self.closed = False

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        await self._out.put(b"".join(data))

    async def receive(self) -> bytes:
        data = await self._in.get()
        if not data:
            raise EndOfStream("the other side ended the link")
        return data

    async def aclose(self) -> None:
        if not self.closed:
            self.closed = True
            await self._out.put(b"")


def ends() -> tuple[End, End]:
    up: asyncio.Queue[bytes] = asyncio.Queue(64)
    down: asyncio.Queue[bytes] = asyncio.Queue(64)
    return End(down, up), End(up, down)


async def join(end: End, who: KeyPair = GUEST) -> Admitted:
    try:
        return await ask(end, me=who.peer, mesh=MESH, name="guest", role="serve")
    finally:
        await end.aclose()


async def test_a_node_cannot_join_with_a_browsers_invite_not_even_with_the_browsers_key() -> None:
    desk = Desk()
    entry = desk.book.create(
        secret=b"for a browser 16", roles=[Role.USE], now=NOW, expires_at=NOW + 9, uses=2, browser="phone"
    )
    assert isinstance(desk.inviter.decide(GUEST.peer, entry.invite_id), Welcome)  # as a browser
    for who in (GUEST, WORKER):
        near, far = ends()
        async with asyncio.TaskGroup() as group:
            group.create_task(desk.inviter.admit(far, joiner=who.peer, invite_id=entry.invite_id))
            with pytest.raises(Refused) as refused:
                await join(near, who)
        assert refused.value.code == "browser"
    kept = desk.book.get(entry.invite_id)
    assert kept is not None and [use.node for use in kept.used] == [GUEST.peer]


async def test_both_sides_of_a_conversation() -> None:
    desk = Desk()
    desk.records = [PeerRecord.sign(INVITER, chain=INVITER_CHAIN, name="inviter", role="worker", sequence=3)]
    near, far = ends()
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.inviter.admit(far, joiner=GUEST.peer, invite_id=desk.invite))
        admitted = await join(near)
    assert check_chain(admitted.chain, MESH, GUEST.peer).roles == {Role.USE}
    assert [record.name for record in admitted.records] == ["inviter"]
    assert not far.closed  # it may go on as a member


async def test_a_refusal_is_told_with_its_remedy() -> None:
    desk = Desk()
    desk.now = NOW + 7300
    near, far = ends()
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.inviter.admit(far, joiner=GUEST.peer, invite_id=desk.invite))
        with pytest.raises(Refused, match="2 hours ago") as caught:
            await join(near)
    assert (caught.value.code, bool(caught.value.hint)) == ("expired", True)


@pytest.mark.parametrize("said", [b"", framed(b"nonsense"), framed(NotAdmitted("x", "y").encode())])
async def test_a_joiner_that_says_something_else_costs_no_use(said: bytes) -> None:
    desk = Desk()
    near, far = ends()
    if said:
        await near.send([said])
    await near.aclose()
    assert not await desk.inviter.admit(far, joiner=GUEST.peer, invite_id=desk.invite)
    assert desk.saves == 0


async def test_a_silent_joiner_is_left_after_10_s() -> None:
    desk = Desk()
    _, far = ends()
    began = asyncio.get_running_loop().time()
    assert not await desk.inviter.admit(far, joiner=GUEST.peer, invite_id=desk.invite)
    assert asyncio.get_running_loop().time() - began == 10


async def test_a_silent_inviter_is_given_up() -> None:
    near, far = ends()
    with pytest.raises(Broken, match="did not answer in time"):
        await join(near)
    near, far = ends()
    await far.aclose()
    with pytest.raises(Broken, match="closed the connection"):
        await join(near)


FOREIGN = Welcome(GUEST_CHAIN.encode(), (), ())


@pytest.mark.parametrize(
    "answer",
    [
        framed(FOREIGN.encode()),  # somebody else's certificate
        framed(JoinRequest("x", "y").encode()),
        framed(Welcome(b"no chain", (), ()).encode()),
        framed(Welcome(FOUNDER_CHAIN.encode(), (b"no record",), ()).encode()),
        (1 << 30).to_bytes(4, "big"),
    ],
)
async def test_a_hostile_inviter_gives_nothing(answer: bytes) -> None:
    near, far = ends()
    await far.send([answer])
    with pytest.raises(RemoteProtocolError):
        await join(near, STRANGER)


@given(st.data())
def test_a_damaged_welcome_is_refused_or_the_same_chain(data: st.DataObject) -> None:
    desk = Desk()
    good = desk.welcome(GUEST)
    bad = data.draw(damaged(good.encode()))

    async def main() -> None:
        near, far = ends()
        await far.send([framed(bad)])
        try:
            admitted = await join(near)
        except MeshdError:
            return
        assert admitted.chain.encode() == good.chain

    run(main())


SECRETS = tuple(bytes([number]) * 16 for number in range(4))


def book_of(*expiries: int) -> InviteBook:
    book = InviteBook(MESH)
    for secret, expires_at in zip(SECRETS, expiries, strict=False):
        book.create(secret=secret, roles=[Role.USE], now=NOW, expires_at=expires_at, uses=1)
    return book


def box(number: int) -> bytes:
    return derive(SECRETS[number]).mailbox


class Nat:
    """Where was sent to, and for how long."""

    def __init__(self) -> None:
        self.punched: list[tuple[Sequence[Dialable], float]] = []
        self.boxes: list[Mapping[bytes, float]] = []

    async def punch(self, places: Sequence[Dialable], seconds: float) -> None:
        self.punched.append((list(places), seconds))
        await asyncio.sleep(seconds)

    async def set_boxes(self, boxes: Mapping[bytes, float], lasting: frozenset[bytes]) -> None:
        self.boxes.append(boxes)
        self.lasting = lasting


def test_only_invites_that_are_good_have_a_box_used_up_ones_too() -> None:
    book = book_of(NOW + 50, NOW + 10, NOW + 70)
    first, late, revoked = sorted(book.entries(), key=lambda entry: entry.secret)
    book.revoke(revoked.invite_id)
    book.reserve(first.invite_id, GUEST.peer, NOW)
    book.reserve(first.invite_id, STRANGER.peer, NOW)
    used = book.get(first.invite_id)
    assert used is not None and not used.left
    assert boxes_of(book.entries(), NOW + 10) == {box(0): 40.0}
    assert late.expires_at == NOW + 10


async def test_the_boxes_are_set_when_the_invites_have_changed_and_not_else() -> None:
    nat, book = Nat(), book_of(NOW + 50)
    desk = OpenForJoiners(book, set_boxes=nat.set_boxes, punch=None, wall_clock=lambda: NOW)
    async with Owner() as owner:
        owner.start(desk.serve(), name="joiners")
        await asyncio.sleep(60)
        assert nat.boxes == [{box(0): 50.0}]
        book.create(secret=SECRETS[1], roles=[Role.USE], now=NOW, expires_at=NOW + 9, uses=1)
        await asyncio.sleep(BOX_SECONDS)
        assert nat.boxes[1:] == [{box(0): 50.0, box(1): 9.0}]
        owner.cancel()


async def test_a_box_for_browsers_stays_for_those_that_were_let_in() -> None:
    nat, book = Nat(), book_of(NOW + 50)
    for secret in SECRETS[1:3]:
        book.create(
            secret=secret, roles=[Role.USE], now=NOW, expires_at=NOW + 9, uses=1, browser="Ann's phone"
        )
    phone = derive(SECRETS[1])
    book.reserve(phone.invite_id, GUEST.peer, NOW)
    boxes = browser_boxes_of(book.entries(), NOW + 8)
    assert boxes == {phone.browser_box: BROWSER_BOX_SECONDS, derive(SECRETS[2]).browser_box: 1.0}
    assert browser_boxes_of(book.entries(), NOW + 9) == {phone.browser_box: BROWSER_BOX_SECONDS}
    desk = OpenForJoiners(book, set_boxes=nat.set_boxes, punch=None, wall_clock=lambda: NOW + 9)
    async with Owner() as owner:
        owner.start(desk.serve(), name="joiners")
        await asyncio.sleep(BROWSER_BOX_SECONDS)  # it is asked for again and again
        assert len(nat.boxes) >= BROWSER_BOX_SECONDS / 3700
        assert nat.boxes[-1] == {box(0): 41.0, phone.browser_box: BROWSER_BOX_SECONDS}
        assert nat.lasting == {phone.browser_box}
        owner.cancel()
    book.revoke(phone.invite_id)
    assert browser_boxes_of(book.entries(), NOW + 9) == {}


async def test_a_nat_is_opened_for_the_joiner_of_a_reply_code_and_no_other() -> None:
    nat, book = Nat(), book_of(NOW + 50)
    keys, strange = derive(SECRETS[0]), derive(SECRETS[1])
    code = encode_reply(Reply(keys.invite_id, GUEST.peer, (OUTER,)), keys)
    desk = OpenForJoiners(book, set_boxes=None, punch=nat.punch, wall_clock=lambda: NOW)
    async with Owner() as owner:
        owner.start(desk.serve(), name="joiners")
        await asyncio.sleep(1)
        reply = desk.accept(code)
        assert (reply.joiner, reply.candidates) == (GUEST.peer, (OUTER,))
        await asyncio.sleep(1)
        assert nat.punched == [([OUTER], ACCEPT_SECONDS)]
        with pytest.raises(UserError):
            desk.accept(encode_reply(Reply(strange.invite_id, GUEST.peer, (OUTER,)), strange))
        owner.cancel()
    with pytest.raises(UserError, match="QUIC disabled"):
        desk.accept(code)  # it is not served any more
    assert len(nat.punched) == 1


async def test_a_node_from_whose_port_nothing_gets_out_says_what_it_lacks() -> None:
    keys = derive(SECRETS[0])
    desk = OpenForJoiners(book_of(NOW + 50), set_boxes=None, punch=None, wall_clock=lambda: NOW)
    async with Owner() as owner:
        owner.start(desk.serve(), name="joiners")
        await asyncio.sleep(1)
        with pytest.raises(UserError, match="QUIC disabled"):
            desk.accept(encode_reply(Reply(keys.invite_id, GUEST.peer, (OUTER,)), keys))
        owner.cancel()
