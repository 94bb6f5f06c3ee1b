"""Mailboxes for the invites that are good, and a NAT that is opened for who made a reply code."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.identity.invite import Reply, derive, encode_reply
from meshd.identity.invite_book import InviteBook
from meshd.identity.membership import Role
from meshd.rendezvous.join import ACCEPT_SECONDS, BOX_SECONDS, OpenForJoiners, boxes_of
from meshd.wire.dialable import Dialable

from tests.unit.identity.cast import GUEST, MESH, STRANGER
from tests.unit.rendezvous.inviters import NOW, OUTER

pytestmark = pytest.mark.virtual

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

    async def set_boxes(self, boxes: Mapping[bytes, float]) -> None:
        self.boxes.append(boxes)


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
