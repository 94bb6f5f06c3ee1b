"""Bans: who may ban whom, what a ban reaches, and that sets converge in any order."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.identity import revocation
from meshd.identity.keys import KeyPair, MeshId
from meshd.identity.membership import ALL_ROLES, Certificate, Chain, Role
from meshd.identity.revocation import Ban, BanKind, RevocationSet, ban
from meshd.wire.limits import MAX_BAN_BYTES

from tests.unit.identity.cast import (
    ADMIN,
    ADMIN_CHAIN,
    FOUNDER,
    FOUNDER_CHAIN,
    GUEST,
    GUEST_CHAIN,
    INVITE_ID,
    INVITER,
    INVITER_CHAIN,
    MESH,
    ROOT,
    STRANGER,
    WORKER,
    WORKER_CHAIN,
    brief,
    certificate,
    damaged,
    key,
    thorough,
)


def make(
    signer: KeyPair,
    chain: Chain | None,
    target: KeyPair | bytes,
    *,
    evidence: Certificate | None = None,
    at: int = 2000,
    epoch: int = 0,
    lifts: bool = False,
) -> Ban:
    kind: BanKind = "invite" if isinstance(target, bytes) else "node"
    raw = target if isinstance(target, bytes) else target.peer.raw
    return ban(
        signer=signer,
        chain=chain,
        mesh=MESH,
        kind=kind,
        target=raw,
        issued_at=at,
        evidence=evidence,
        epoch=epoch,
        lifts=lifts,
    )


def holding(*bans: Ban) -> RevocationSet:
    found = RevocationSet(MESH)
    for item in bans:
        assert found.add(item)
    return found


def test_an_empty_set_refuses_nobody() -> None:
    empty = RevocationSet(MESH)
    assert len(empty.entries()) == 0
    assert empty.why_banned(GUEST_CHAIN) is None
    assert empty.why_node_banned(GUEST.peer) is None
    assert empty.entries() == ()


@pytest.mark.parametrize(("signer", "chain"), [(ROOT, None), (ADMIN, ADMIN_CHAIN)])
def test_root_and_admins_ban_anyone(signer: KeyPair, chain: Chain | None) -> None:
    bans = holding(make(signer, chain, GUEST), make(signer, chain, WORKER))
    assert GUEST.peer.short in (bans.why_banned(GUEST_CHAIN) or "")
    assert bans.why_banned(WORKER_CHAIN)
    assert bans.why_node_banned(WORKER.peer)
    assert bans.why_node_banned(WORKER.peer, issuer=INVITER.peer)
    assert bans.why_banned(FOUNDER_CHAIN) is None


@pytest.mark.parametrize("issued_at", [0, 1000, 5_000_000_000])
def test_a_ban_beats_every_admission_whatever_the_dates(issued_at: int) -> None:
    bans = holding(make(ROOT, None, GUEST, at=1))
    again = Chain((certificate(ROOT, GUEST, ALL_ROLES, issued_at=issued_at, serial=bytes(16)),), ROOT.peer)
    assert bans.why_banned(again)


def test_a_ban_cascades_to_those_whom_the_banned_admitted() -> None:
    bans = holding(make(ROOT, None, INVITER))
    assert "who admitted it" in (bans.why_banned(GUEST_CHAIN) or "")
    assert bans.why_banned(WORKER_CHAIN) is None


def test_a_banned_invite_takes_out_those_who_came_by_it() -> None:
    bans = holding(make(ROOT, None, INVITE_ID))
    assert "the invite by which it joined" in (bans.why_banned(GUEST_CHAIN) or "")
    assert bans.why_invite_banned(INVITE_ID)
    assert bans.why_banned(INVITER_CHAIN) is None
    assert holding(make(ROOT, None, b"workers!")).why_banned(WORKER_CHAIN)


def test_an_inviter_bans_those_whom_it_admitted() -> None:
    bans = holding(make(INVITER, INVITER_CHAIN, GUEST, evidence=GUEST_CHAIN.leaf))
    assert bans.why_banned(GUEST_CHAIN)
    assert bans.why_node_banned(GUEST.peer, issuer=INVITER.peer)
    bans = holding(make(INVITER, INVITER_CHAIN, INVITE_ID))
    assert bans.why_banned(GUEST_CHAIN)
    assert bans.why_invite_banned(INVITE_ID, issuer=INVITER.peer)


def test_an_inviter_bans_nobody_else() -> None:
    for evidence in (None, WORKER_CHAIN.leaf, GUEST_CHAIN.leaf):
        with pytest.raises(RemoteProtocolError, match="only ban nodes that it admitted"):
            make(INVITER, INVITER_CHAIN, WORKER, evidence=evidence)


def test_evidence_that_an_inviter_makes_up_reaches_its_own_admissions_only() -> None:
    # it can certify any key; that must not throw out somebody whom the root admitted
    made_up = certificate(INVITER, FOUNDER)
    bans = holding(make(INVITER, INVITER_CHAIN, FOUNDER, evidence=made_up))
    assert bans.why_banned(FOUNDER_CHAIN) is None
    assert bans.why_node_banned(FOUNDER.peer) is None
    assert bans.why_banned(Chain((made_up, INVITER_CHAIN.leaf), ROOT.peer))
    bans = holding(make(INVITER, INVITER_CHAIN, b"workers!"))
    assert bans.why_banned(WORKER_CHAIN) is None
    assert bans.why_invite_banned(b"workers!") is None


def test_evidence_must_be_signed_by_the_inviter() -> None:
    foreign = certificate(INVITER, GUEST, mesh=MeshId.of(STRANGER.peer))
    unsigned = Certificate.decode(GUEST_CHAIN.leaf.encode()[:-64] + bytes(64))
    for evidence in (foreign, unsigned):
        with pytest.raises(RemoteProtocolError, match="can only ban"):
            make(INVITER, INVITER_CHAIN, GUEST, evidence=evidence)


@pytest.mark.parametrize(
    ("signer", "chain"),
    [(WORKER, WORKER_CHAIN), (GUEST, GUEST_CHAIN), (STRANGER, None), (STRANGER, ADMIN_CHAIN)],
)
def test_others_ban_nobody(signer: KeyPair, chain: Chain | None) -> None:
    for target in (FOUNDER, INVITE_ID):
        with pytest.raises(RemoteProtocolError):
            make(signer, chain, target)


@pytest.mark.parametrize(("signer", "chain"), [(ROOT, None), (ADMIN, ADMIN_CHAIN)])
def test_the_root_cannot_be_banned(signer: KeyPair, chain: Chain | None) -> None:
    with pytest.raises(RemoteProtocolError, match="root"):
        make(signer, chain, ROOT)


def test_bans_of_another_mesh_are_refused() -> None:
    other = RevocationSet(MeshId.of(STRANGER.peer))
    with pytest.raises(RemoteProtocolError, match="another mesh"):
        other.add(make(ROOT, None, GUEST))


def test_a_forged_signature_is_refused() -> None:
    good = make(ROOT, None, GUEST)
    forged = good.encode()[:-64] + bytes(64)
    with pytest.raises(RemoteProtocolError, match="signature"):
        RevocationSet(MESH).merge([forged])


def test_a_ban_stands_after_its_issuer_was_banned_in_either_order() -> None:
    by_admin, of_admin = make(ADMIN, ADMIN_CHAIN, WORKER), make(ROOT, None, ADMIN)
    one, two = holding(by_admin, of_admin), holding(of_admin, by_admin)
    assert one.digest() == two.digest()
    for bans in (one, two):
        assert bans.why_banned(WORKER_CHAIN)
        assert bans.why_banned(ADMIN_CHAIN)


def test_two_admins_who_ban_each_other_are_both_out() -> None:
    other = key("other admin")
    chain = Chain((certificate(ROOT, other, [Role.ADMIN]),), ROOT.peer)
    bans = holding(make(ADMIN, ADMIN_CHAIN, other), make(other, chain, ADMIN))
    assert bans.why_banned(ADMIN_CHAIN)
    assert bans.why_banned(chain)


def test_the_same_ban_again_changes_nothing() -> None:
    bans = holding(make(ROOT, None, GUEST))
    before = bans.digest()
    assert not bans.add(make(ROOT, None, GUEST))
    assert bans.merge(bans.entries()) == 0
    assert (len(bans.entries()), bans.digest()) == (1, before)


def test_one_ban_is_kept_for_each_issuer_and_target() -> None:
    several = [make(ROOT, None, GUEST, at=at) for at in range(5)]
    forward, backward = RevocationSet(MESH), RevocationSet(MESH)
    for item in several:
        forward.add(item)
    for item in reversed(several):
        backward.add(item)
    assert len(forward.entries()) == 1
    assert forward.entries() == backward.entries()
    assert forward.why_banned(GUEST_CHAIN)


def test_the_root_lifts_all_bans_of_a_node_and_of_an_invite() -> None:
    bans = holding(
        make(ROOT, None, GUEST),
        make(ADMIN, ADMIN_CHAIN, GUEST),
        make(INVITER, INVITER_CHAIN, GUEST, evidence=GUEST_CHAIN.leaf),
        make(INVITER, INVITER_CHAIN, INVITE_ID),
    )
    assert bans.next_epoch("node", GUEST.peer.raw, now=0) == 1
    assert bans.add(make(ROOT, None, GUEST, epoch=1, lifts=True))
    assert "invite" in (bans.why_banned(GUEST_CHAIN) or ""), "that ban is of the invite"
    assert bans.why_node_banned(GUEST.peer) is None
    assert bans.next_epoch("invite", INVITE_ID, now=0) == 0
    assert bans.add(make(ROOT, None, INVITE_ID, lifts=True))
    assert bans.why_banned(GUEST_CHAIN) is None
    assert bans.bans() == ()
    assert bans.is_lifted("node", GUEST.peer.raw) and not bans.is_lifted("node", WORKER.peer.raw)


def test_after_a_lift_only_the_root_bans_again() -> None:
    bans = holding(make(ROOT, None, GUEST), make(ROOT, None, GUEST, epoch=1, lifts=True))
    bans.add(make(ADMIN, ADMIN_CHAIN, GUEST, at=9_000_000))
    assert bans.why_banned(GUEST_CHAIN) is None
    assert not bans.add(make(ROOT, None, GUEST, at=9_000_000)), "an older statement of the root"
    assert bans.add(make(ROOT, None, GUEST, epoch=2))
    assert bans.why_banned(GUEST_CHAIN)
    assert {item.issuer for item in bans.bans()} == {ROOT.peer, ADMIN.peer}


def test_numbers_begin_at_the_clock_and_never_go_back() -> None:
    bans = holding(make(ROOT, None, GUEST, epoch=500))
    assert bans.next_epoch("node", GUEST.peer.raw, now=900) == 900
    assert bans.next_epoch("node", GUEST.peer.raw, now=500) == 501
    assert bans.next_epoch("node", GUEST.peer.raw, now=3) == 501
    assert bans.next_epoch("node", WORKER.peer.raw, now=3) == 3


def test_a_clock_at_the_end_of_time_leaves_numbers_for_later_statements() -> None:
    bans = RevocationSet(MESH)
    for lifts in (False, True) * 20:
        epoch = bans.next_epoch("node", GUEST.peer.raw, now=2**40)
        assert bans.add(make(ROOT, None, GUEST, epoch=epoch, lifts=lifts))
    assert bans.why_node_banned(GUEST.peer) is None


def test_nobody_but_the_root_lifts_or_numbers() -> None:
    for epoch, lifts in ((0, True), (1, False)):
        for signer, chain, evidence in (
            (ADMIN, ADMIN_CHAIN, None),
            (INVITER, INVITER_CHAIN, GUEST_CHAIN.leaf),
        ):
            with pytest.raises(RemoteProtocolError, match="only the root of the mesh lifts bans"):
                make(signer, chain, GUEST, evidence=evidence, epoch=epoch, lifts=lifts)


POOL: Sequence[Ban] = (
    make(ROOT, None, GUEST),
    make(ROOT, None, GUEST, at=1),
    make(ROOT, None, ADMIN),
    make(ROOT, None, INVITE_ID),
    make(ADMIN, ADMIN_CHAIN, WORKER),
    make(ADMIN, ADMIN_CHAIN, GUEST),
    make(ADMIN, ADMIN_CHAIN, INVITER),
    make(ADMIN, ADMIN_CHAIN, ADMIN),
    make(ADMIN, ADMIN_CHAIN, b"workers!"),
    make(INVITER, INVITER_CHAIN, GUEST, evidence=GUEST_CHAIN.leaf),
    make(INVITER, INVITER_CHAIN, INVITE_ID),
    make(INVITER, INVITER_CHAIN, b"invite 2"),
    make(ROOT, None, GUEST, epoch=1, lifts=True),
    make(ROOT, None, GUEST, epoch=1),
    make(ROOT, None, GUEST, epoch=2),
    make(ROOT, None, GUEST, epoch=3, lifts=True),
    make(ROOT, None, INVITE_ID, epoch=7, lifts=True),
    make(ROOT, None, WORKER, lifts=True),
)
CHAINS = (FOUNDER_CHAIN, ADMIN_CHAIN, INVITER_CHAIN, WORKER_CHAIN, GUEST_CHAIN)


@pytest.mark.parametrize("limits", [(4096, 256), (5, 256), (4096, 2), (6, 2), (1, 1)])
@given(st.data())
@brief
def test_sets_converge_in_any_order_even_where_limits_cut(
    limits: tuple[int, int], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(revocation, "MAX_BANS", limits[0])
        patch.setattr(revocation, "MAX_BANS_PER_ISSUER", limits[1])
        some = data.draw(st.lists(st.sampled_from(POOL), min_size=1, max_size=16))
        one, two = RevocationSet(MESH), RevocationSet(MESH)
        for item in some:
            one.add(item)
        # the other hears them in another order, in two parts that met before
        part, cut = RevocationSet(MESH), data.draw(st.integers(0, len(some)))
        shuffled = data.draw(st.permutations(some))
        for item in shuffled[:cut]:
            part.add(item)
        two.merge(item.encode() for item in shuffled[cut:])
        two.merge(part.entries())
        assert one.digest() == two.digest()
        assert one.entries() == two.entries()
        assert len(one.entries()) == len(two.entries()) <= limits[0]
        assert [one.why_banned(chain) for chain in CHAINS] == [two.why_banned(chain) for chain in CHAINS]


def test_an_issuer_who_floods_pushes_out_its_own_bans_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation, "MAX_BANS", 6)
    monkeypatch.setattr(revocation, "MAX_BANS_PER_ISSUER", 3)
    bans = holding(make(ROOT, None, GUEST), make(ROOT, None, WORKER))
    for number in range(20):
        bans.add(make(ADMIN, ADMIN_CHAIN, number.to_bytes(8, "big")))
        bans.add(make(INVITER, INVITER_CHAIN, number.to_bytes(8, "big")))
    assert len(bans.entries()) == 6
    assert bans.why_banned(GUEST_CHAIN)
    assert bans.why_banned(WORKER_CHAIN)
    kept = [item.issuer for item in bans.bans()]
    assert (kept.count(ROOT.peer), kept.count(ADMIN.peer), kept.count(INVITER.peer)) == (2, 3, 1)


def test_a_ban_that_was_pushed_out_refuses_nobody_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation, "MAX_BANS", 1)
    bans = holding(make(ADMIN, ADMIN_CHAIN, WORKER), make(ROOT, None, GUEST))
    assert bans.why_banned(WORKER_CHAIN) is None
    assert bans.why_banned(GUEST_CHAIN)


@pytest.mark.parametrize("item", POOL)
def test_a_ban_is_read_back(item: Ban) -> None:
    assert Ban.decode(item.encode()) == item
    assert len(item.encode()) <= MAX_BAN_BYTES


def test_a_set_is_read_back() -> None:
    bans = RevocationSet(MESH)
    for item in POOL:
        bans.add(item)
    found = RevocationSet.decode(bans.encode())
    assert found.mesh == MESH
    assert found.entries() == bans.entries()
    assert found.digest() == bans.digest()


def test_wrong_lengths_are_our_own_fault() -> None:
    with pytest.raises(LocalProtocolError):
        ban(signer=ROOT, chain=None, mesh=MESH, kind="node", target=b"short", issued_at=0)


@given(st.data())
@thorough
def test_a_damaged_ban_is_refused_or_says_the_same(data: st.DataObject) -> None:
    good = POOL[10]
    raw = data.draw(damaged(good.encode()))
    bans = RevocationSet(MESH)
    with pytest.raises(RemoteProtocolError):
        bans.merge([raw])
    assert len(bans.entries()) == 0


@given(st.binary(max_size=300))
@thorough
def test_noise_raises_only_the_declared_error(raw: bytes) -> None:
    for decode in (Ban.decode, RevocationSet.decode):
        with pytest.raises(RemoteProtocolError):
            decode(raw)
