"""Certificates and chains: each way of being wrong is refused."""

from collections.abc import Iterable
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
    check_chain,
    issue,
    may_give,
)
from meshd.identity.signed import Statement
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


def issued(roles: Iterable[Role], given: Iterable[Role], by: KeyPair = INVITER) -> Chain:
    """What `by`, which has `roles` of the root, gives a stranger."""
    return Chain((certificate(by, STRANGER, given), certificate(ROOT, by, roles)), ROOT.peer)


SELF_MADE = certificate(STRANGER, STRANGER, ALL_ROLES)
FORGED = Certificate.decode(edited(SELF_MADE, STRANGER, issuer=ROOT.peer.raw).encode())
OTHER_MESH = certificate(ROOT, WORKER, mesh=MeshId.of(STRANGER.peer))
THREE = Chain((certificate(GUEST, STRANGER), *GUEST_CHAIN.certificates), ROOT.peer)


@pytest.mark.parametrize(
    ("chain", "why"),
    [
        (Chain(FOUNDER_CHAIN.certificates, STRANGER.peer), "another mesh"),
        (Chain((OTHER_MESH,), ROOT.peer), "for another mesh"),
        (Chain((SELF_MADE,), ROOT.peer), "does not end at the root"),
        (Chain((GUEST_CHAIN.leaf,), ROOT.peer), "does not end at the root"),
        (Chain((FORGED,), ROOT.peer), "signature is wrong"),
        (THREE, "3 certificates"),
        (issued([Role.WORK], [Role.WORK], WORKER), "cannot invite"),
        (issued(ALL_ROLES, [Role.USE, Role.ADMIN]), "cannot grant the role admin"),
        (issued(ALL_ROLES, [Role.USE, Role.INVITE]), "cannot grant the role invite"),
        (issued([Role.INVITE, Role.USE], [Role.WORK]), "cannot grant the role work"),
    ],
)
def test_a_wrong_chain_is_refused(chain: Chain, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why) as caught:
        check_chain(chain, MESH, chain.leaf.node)
    assert caught.value.code == "chain"


def test_a_chain_is_of_one_mesh_and_has_two_certificates_at_most() -> None:
    with pytest.raises(RemoteProtocolError, match="another mesh"):
        check_chain(FOUNDER_CHAIN, MeshId.of(STRANGER.peer), FOUNDER.peer)
    with pytest.raises(RemoteProtocolError):
        Chain.decode(THREE.encode())


def test_somebody_elses_chain_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="for another node"):
        check_chain(GUEST_CHAIN, MESH, STRANGER.peer)


def test_fields_that_differ_from_the_signed_body_are_of_no_use() -> None:
    widened = replace(WORKER_CHAIN.leaf, roles=ALL_ROLES)
    passed_on = Chain.decode(Chain((widened,), ROOT.peer).encode())
    assert check_chain(passed_on, MESH, WORKER.peer).roles == {Role.WORK}


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
