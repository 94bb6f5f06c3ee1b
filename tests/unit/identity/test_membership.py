"""Certificates and chains: each way of being wrong is refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.identity.keys import KeyPair, MeshId
from meshd.identity.membership import (
    ALL_ROLES,
    MAX_CERTIFICATE_BYTES,
    Certificate,
    Chain,
    Role,
    Statement,
    check_chain,
    issue,
    may_give,
)
from meshd.wire.limits import MAX_CHAIN_BYTES
from meshd.wire.message import Value, pack

from tests.unit.identity.cast import (
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
    certificate,
    damaged,
    thorough,
)

GOOD = Statement.make(FOUNDER, "test", pack({"a": 1, "from a later version": [2]}))


def edited(certificate: Certificate, signer: KeyPair, **changes: Value) -> Statement:
    """The same certificate with other fields, signed anew."""
    fields: dict[str, Value] = {
        "mesh": certificate.mesh.raw,
        "node": certificate.node.raw,
        "roles": sorted(certificate.roles),
        "serial": certificate.serial,
        "issuer": certificate.issuer.raw,
        "invite": certificate.invite,
        "at": certificate.issued_at,
    }
    assert pack(fields) == certificate.statement.body
    return Statement.make(signer, "meshd certificate v1", pack(fields | changes))


def refused(chain: Chain, why: str, *, mesh: MeshId = MESH) -> None:
    with pytest.raises(RemoteProtocolError, match=why) as caught:
        check_chain(chain, mesh, chain.leaf.node)
    assert caught.value.code == "chain"


def test_members_of_both_depths_are_accepted() -> None:
    founder = check_chain(FOUNDER_CHAIN, MESH, FOUNDER.peer)
    assert founder.roles == ALL_ROLES
    guest = check_chain(GUEST_CHAIN, MESH, GUEST.peer)
    assert guest.peer == GUEST.peer
    assert guest.may(Role.USE)
    assert not guest.may(Role.WORK)


@pytest.mark.parametrize("chain", [FOUNDER_CHAIN, GUEST_CHAIN])
def test_a_chain_is_read_back(chain: Chain) -> None:
    assert Chain.decode(chain.encode()) == chain
    assert len(chain.encode()) <= MAX_CHAIN_BYTES
    leaf = chain.leaf
    assert Certificate.decode(leaf.encode()) == leaf
    assert len(leaf.encode()) <= MAX_CERTIFICATE_BYTES


def test_another_mesh_is_refused() -> None:
    refused(FOUNDER_CHAIN, "another mesh", mesh=MeshId.of(STRANGER.peer))


def test_a_root_of_another_mesh_is_refused() -> None:
    refused(Chain(FOUNDER_CHAIN.certificates, STRANGER.peer), "another mesh")


def test_a_certificate_of_another_mesh_is_refused() -> None:
    other = certificate(ROOT, WORKER, mesh=MeshId.of(STRANGER.peer))
    refused(Chain((other,), ROOT.peer), "for another mesh")


def test_somebody_elses_chain_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="for another node"):
        check_chain(GUEST_CHAIN, MESH, STRANGER.peer)


def test_a_self_made_certificate_is_refused() -> None:
    refused(Chain((certificate(STRANGER, STRANGER, ALL_ROLES),), ROOT.peer), "does not end at the root")


def test_a_forged_issuer_is_refused() -> None:
    forged = certificate(STRANGER, STRANGER, ALL_ROLES)
    statement = edited(forged, STRANGER, issuer=ROOT.peer.raw)
    refused(Chain((Certificate.decode(statement.encode()),), ROOT.peer), "signature is wrong")


def test_fields_that_differ_from_the_signed_body_are_of_no_use() -> None:
    widened = replace(WORKER_CHAIN.leaf, roles=ALL_ROLES)
    passed_on = Chain.decode(Chain((widened,), ROOT.peer).encode())
    assert check_chain(passed_on, MESH, WORKER.peer).roles == {Role.WORK}


def test_a_third_certificate_is_refused() -> None:
    deep = certificate(GUEST, STRANGER)
    chain = Chain((deep, *GUEST_CHAIN.certificates), ROOT.peer)
    refused(chain, "3 certificates")
    with pytest.raises(RemoteProtocolError):
        Chain.decode(chain.encode())


def test_a_chain_that_skips_the_inviter_is_refused() -> None:
    refused(Chain((GUEST_CHAIN.leaf,), ROOT.peer), "does not end at the root")


def test_an_issuer_without_invite_is_refused() -> None:
    leaf = certificate(WORKER, STRANGER, [Role.WORK])
    refused(Chain((leaf, WORKER_CHAIN.leaf), ROOT.peer), "cannot invite")


@pytest.mark.parametrize("role", [Role.ADMIN, Role.INVITE])
def test_an_inviter_gives_neither_admin_nor_invite(role: Role) -> None:
    everything = certificate(ROOT, INVITER, ALL_ROLES)
    leaf = certificate(INVITER, STRANGER, [Role.USE, role])
    refused(Chain((leaf, everything), ROOT.peer), f"cannot grant the role {role}")


def test_an_inviter_gives_only_roles_that_it_has() -> None:
    inviter = certificate(ROOT, INVITER, [Role.INVITE, Role.USE])
    leaf = certificate(INVITER, STRANGER, [Role.WORK])
    refused(Chain((leaf, inviter), ROOT.peer), "cannot grant the role work")


def test_who_may_give_what() -> None:
    assert may_give(FOUNDER_CHAIN, is_root=True) == ALL_ROLES
    assert may_give(FOUNDER_CHAIN, is_root=False) == {Role.USE, Role.WORK}
    assert may_give(INVITER_CHAIN, is_root=False) == {Role.USE, Role.WORK}
    assert may_give(ADMIN_CHAIN, is_root=False) == frozenset()
    assert may_give(GUEST_CHAIN, is_root=False) == frozenset()


def test_a_role_of_a_later_version_is_passed_on_but_means_nothing() -> None:
    statement = edited(WORKER_CHAIN.leaf, ROOT, roles=["fly", "work"])
    found = Certificate.decode(statement.encode())
    assert found.roles == {Role.WORK}
    assert found.is_signed()
    assert found.encode() == statement.encode()


def test_lengths_are_checked_when_issuing() -> None:
    with pytest.raises(LocalProtocolError):
        certificate(ROOT, WORKER, serial=b"short")
    with pytest.raises(LocalProtocolError):
        issue(signer=ROOT, mesh=MESH, node=WORKER.peer, roles=[], serial=bytes(16), invite=b"1", issued_at=0)


def test_an_invite_id_has_eight_bytes_or_none() -> None:
    statement = edited(WORKER_CHAIN.leaf, ROOT, invite=INVITE_ID[:-1])
    with pytest.raises(RemoteProtocolError, match="invite"):
        Certificate.decode(statement.encode())


def test_a_chain_without_certificates_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="no certificates"):
        Chain.decode(pack({"root": ROOT.peer.raw, "certs": []}))
    with pytest.raises(RemoteProtocolError, match="0 certificates"):
        check_chain(Chain((), ROOT.peer), MESH, GUEST.peer)


@given(st.data())
@thorough
def test_a_damaged_chain_is_refused_or_says_the_same(data: st.DataObject) -> None:
    raw = data.draw(damaged(GUEST_CHAIN.encode()))
    try:
        member = check_chain(Chain.decode(raw), MESH, GUEST.peer)
    except RemoteProtocolError:
        return
    assert member.chain == GUEST_CHAIN  # only the outer wrapping, which nobody signs, may differ


@given(st.binary(max_size=400))
@thorough
def test_noise_raises_only_the_declared_error(raw: bytes) -> None:
    for decode in (Certificate.decode, Chain.decode):
        with pytest.raises(RemoteProtocolError):
            decode(raw)


def test_a_statement_is_read_back_with_fields_it_does_not_know() -> None:
    found = Statement.decode(GOOD.encode(), limit=1000)
    assert found == GOOD
    assert found.holds(FOUNDER.peer, "test")
    assert found.fields().number("a", low=0, high=9) == 1


def test_it_holds_for_its_signer_and_context_only() -> None:
    assert not GOOD.holds(GUEST.peer, "test")
    assert not GOOD.holds(FOUNDER.peer, "other")


def test_a_second_encoding_is_refused() -> None:
    other = pack({"s": GOOD.signature, "b": GOOD.body})
    with pytest.raises(RemoteProtocolError, match="canonical encoding"):
        Statement.decode(other, limit=1000)


def test_the_limit_holds() -> None:
    with pytest.raises(RemoteProtocolError):
        Statement.decode(GOOD.encode(), limit=len(GOOD.encode()) - 1)


@given(st.data())
@thorough
def test_a_damaged_statement_is_refused_or_does_not_hold(data: st.DataObject) -> None:
    raw = data.draw(damaged(GOOD.encode()))
    try:
        found = Statement.decode(raw, limit=1000)
    except RemoteProtocolError:
        return
    assert not found.holds(FOUNDER.peer, "test")
