"""The inviter's decision: what it answers, how often it writes, and that the answer fits into a message."""

from meshd.identity.invite_book import InviteBook, InviteEntry
from meshd.identity.keystore import Membership
from meshd.identity.membership import Role
from meshd.identity.record import PeerRecord
from meshd.identity.revocation import RevocationSet, ban
from meshd.rendezvous.join import Inviter
from meshd.wire.joining import NotAdmitted, Welcome, decode
from meshd.wire.limits import MAX_CONTROL_BYTES

from tests.unit.identity.cast import FOUNDER, FOUNDER_CHAIN, GUEST, GUEST_CHAIN, MESH, ROOT, STRANGER

NOW = 10_000
ROOT_SEED = b"root".ljust(32, b".")


class Desk:
    """An inviter with its book; keeps what it was asked to write."""

    def __init__(self, *, records: int = 0, bans: int = 0, uses: int = 1) -> None:
        self.book = InviteBook(MESH)
        self.entry: InviteEntry = self.book.create(
            secret=b"sixteen bytes ok", roles=[Role.USE], now=NOW, expires_at=NOW + 100, uses=uses
        )
        self.bans = RevocationSet(MESH)
        for number in range(bans):
            target = number.to_bytes(8, "big")
            self.bans.add(
                ban(signer=ROOT, chain=None, mesh=MESH, kind="invite", target=target, issued_at=number)
            )
        record = PeerRecord.sign(GUEST, chain=GUEST_CHAIN, name="garage", role="worker", sequence=1)
        self.saved: list[bytes] = []
        self.inviter = Inviter(
            key=FOUNDER,
            membership=Membership(MESH, FOUNDER_CHAIN, root_seed=ROOT_SEED),
            book=self.book,
            bans=self.bans,
            save=lambda: self.saved.append(self.book.encode()),
            records=lambda: [record] * records,
            random=bytes,
            wall_clock=lambda: NOW,
        )

    def join(self) -> Welcome | NotAdmitted:
        return self.inviter.decide(STRANGER.peer, self.entry.invite_id)


def test_a_use_is_written_before_the_certificate_and_after_it() -> None:
    desk = Desk()
    answer = desk.join()
    assert isinstance(answer, Welcome)
    reserved, certified = map(InviteBook.decode, desk.saved)  # what a crash would leave
    assert [book.entries()[0].left for book in (reserved, certified)] == [0, 0]
    assert reserved.reserve(desk.entry.invite_id, STRANGER.peer, NOW).certificate is None
    assert certified.reserve(desk.entry.invite_id, STRANGER.peer, NOW).certificate is not None


def test_the_same_key_again_gets_the_same_chain() -> None:
    desk = Desk()
    first, again = desk.join(), desk.join()
    assert isinstance(first, Welcome)
    assert isinstance(again, Welcome)
    assert again.chain == first.chain


def test_a_second_key_finds_the_use_gone() -> None:
    desk = Desk()
    desk.join()
    answer = desk.inviter.decide(GUEST.peer, desk.entry.invite_id)
    assert isinstance(answer, NotAdmitted)
    assert (answer.code, bool(answer.hint)) == ("used_up", True)


def test_a_banned_key_costs_no_use() -> None:
    desk = Desk()
    desk.bans.add(ban(signer=ROOT, chain=None, mesh=MESH, kind="node", target=STRANGER.peer.raw, issued_at=1))
    answer = desk.join()
    assert isinstance(answer, NotAdmitted)
    assert answer.code == "banned"
    assert (desk.saved, desk.book.entries()[0].left) == ([], 1)


def test_the_welcome_of_a_large_mesh_fits_into_a_message() -> None:
    answer = Desk(records=500, bans=500).join()
    assert isinstance(answer, Welcome)
    assert len(answer.encode()) <= MAX_CONTROL_BYTES
    assert decode(answer.encode()) == answer
    assert len(answer.records) > 10
    assert len(answer.bans) > 10


def test_the_welcome_of_a_small_mesh_has_everything() -> None:
    answer = Desk(records=3, bans=5).join()
    assert isinstance(answer, Welcome)
    assert (len(answer.records), len(answer.bans)) == (3, 5)
