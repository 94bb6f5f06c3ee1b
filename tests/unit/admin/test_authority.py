"""Invites and bans of a node: who may, what is kept, what a restart finds."""

from pathlib import Path

import pytest
from meshd.admin.api import Joined
from meshd.admin.authority import (
    BANNED_NAMES_BLOB,
    MAX_LISTED,
    PRINTED_SECONDS,
    Authority,
    load_addresses,
    read_role,
    save_addresses,
)
from meshd.base.errors import UserError
from meshd.identity.invite import derive, parse_token
from meshd.identity.keys import KeyPair
from meshd.identity.keystore import Home, Membership
from meshd.identity.membership import Chain, Role, issue
from meshd.wire.address import Candidate

NOW = 1_790_000_000
HERE = (Candidate("10.0.0.1", 17430),)


def founder(path: Path) -> Authority:
    home = Home(path)
    if home.load_membership() is None:
        home.found_mesh(now=NOW)
    return Authority.load(home)


def joined(path: Path, root: Path, *roles: Role) -> Authority:
    """A member whom the root of `root` admitted with these roles."""
    home, top = Home(path), Home(root).load_membership()
    assert top is not None and top.root_seed is not None
    signer = KeyPair.from_seed(top.root_seed)
    key = home.load_or_create_identity()
    leaf = issue(
        signer=signer,
        mesh=top.mesh,
        node=key.peer,
        roles=roles,
        serial=b"s" * 16,
        invite=b"i" * 8,
        issued_at=NOW,
    )
    home.save_membership(Membership(top.mesh, Chain((leaf,), top.root), inviter=signer.peer))
    return Authority.load(home)


def test_a_node_without_a_mesh_decides_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not in a mesh"):
        Authority.load(Home(tmp_path / "a"))


def test_an_invite_is_kept_before_it_is_given(tmp_path: Path) -> None:
    reply = founder(tmp_path / "a").invite(
        now=NOW, expires_s=60, uses=2, roles=["use"], secret=b"s" * 16, candidates=HERE
    )
    token = parse_token(reply.token)
    assert (token.secret, token.expires_at, token.candidates) == (b"s" * 16, NOW + 60, HERE)
    assert (reply.uses, reply.expires_at) == (2, NOW + 60)
    view = founder(tmp_path / "a").invites(NOW).invites[0]  # read again from the files
    assert (view.id, view.roles, view.uses, view.used, view.state) == (reply.id, ("use",), 2, 0, "valid")
    assert founder(tmp_path / "a").invites(NOW + 60).invites[0].state == "expired"


@pytest.mark.parametrize("name", ["\ud800", "two\nlines", "\u202eenohp", "\0", "ä" * 33])
def test_a_browser_gets_no_name_that_is_long_or_cannot_be_shown(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="the browser's name cannot be used"):
        founder(tmp_path / "a").invite(
            now=NOW, expires_s=60, uses=1, roles=["use"], secret=b"s" * 16, candidates=HERE, browser=name
        )
    assert founder(tmp_path / "a").invites(NOW).invites == ()


def test_the_printed_invite_is_the_same_while_it_is_good(tmp_path: Path) -> None:
    first = founder(tmp_path / "a").printed_invite(now=NOW, secret=b"1" * 16, candidates=HERE)
    again = founder(tmp_path / "a").printed_invite(now=NOW + 9, secret=b"2" * 16, candidates=HERE)
    later = founder(tmp_path / "a").printed_invite(
        now=NOW + PRINTED_SECONDS, secret=b"3" * 16, candidates=HERE
    )
    assert first is not None and again is not None and later is not None
    assert (first.uses, first.expires_at) == (10, NOW + 24 * 3600)
    assert again.token == first.token and later.token != first.token


def test_an_invite_made_by_hand_is_never_the_printed_one(tmp_path: Path) -> None:
    books = founder(tmp_path / "a")
    made = books.invite(
        now=NOW, expires_s=60, uses=5, roles=["use", "work"], secret=b"s" * 16, candidates=HERE
    )
    printed = books.printed_invite(now=NOW, secret=b"t" * 16, candidates=HERE)
    assert printed is not None and printed.id != made.id


def test_a_member_without_the_role_may_not_invite(tmp_path: Path) -> None:
    founder(tmp_path / "a")
    member = joined(tmp_path / "b", tmp_path / "a", Role.USE, Role.WORK)
    assert member.printed_invite(now=NOW, secret=b"s" * 16, candidates=HERE) is None
    with pytest.raises(UserError, match="is not allowed to invite"):
        member.invite(now=NOW, expires_s=60, uses=1, roles=["use"], secret=b"s" * 16, candidates=HERE)


def test_a_member_that_may_not_invite_a_browser_hears_how_it_may(tmp_path: Path) -> None:
    founder(tmp_path / "a")
    member = joined(tmp_path / "b", tmp_path / "a", Role.USE, Role.WORK)
    with pytest.raises(UserError, match="is not allowed to invite") as refused:
        member.invite(
            now=NOW,
            expires_s=60,
            uses=1,
            roles=["use"],
            secret=b"s" * 16,
            candidates=HERE,
            browser="phone",
        )
    command = "`meshd invite --role invite --role use --role work` on the node that founded the mesh"
    assert command in refused.value.hint and "`meshd leave`" in refused.value.hint


def test_an_inviter_gives_no_more_than_it_may(tmp_path: Path) -> None:
    founder(tmp_path / "a")
    member = joined(tmp_path / "b", tmp_path / "a", Role.USE, Role.INVITE)
    member.invite(now=NOW, expires_s=60, uses=1, roles=["use"], secret=b"s" * 16, candidates=HERE)
    for role in ("work", "admin", "invite"):
        with pytest.raises(UserError, match=f"cannot grant the role {role}"):
            member.invite(now=NOW, expires_s=60, uses=1, roles=[role], secret=b"s" * 16, candidates=HERE)


def test_roles_are_those_there_are() -> None:
    assert read_role("admin") is Role.ADMIN
    with pytest.raises(UserError, match="there is no role `king`"):
        read_role("king")


def test_a_revoked_invite_bans_those_who_joined_with_it(tmp_path: Path) -> None:
    books = founder(tmp_path / "a")
    reply = books.invite(now=NOW, expires_s=60, uses=1, roles=["use"], secret=b"s" * 16, candidates=HERE)
    assert books.revoke_invite(reply.id[:4], now=NOW).id == reply.id
    again = founder(tmp_path / "a")
    assert again.invites(NOW).invites[0].state == "revoked"
    home = Home(tmp_path / "a")
    membership = home.load_membership()
    assert membership is not None
    guest = KeyPair.from_seed(b"g" * 32)
    chain = membership.admit(
        home.load_or_create_identity(),
        node=guest.peer,
        roles=frozenset({Role.USE}),
        serial=b"s" * 16,
        invite=derive(b"s" * 16).invite_id,
        now=NOW,
    )
    assert home.load_revocations(membership.mesh).why_banned(chain) is not None
    with pytest.raises(UserError, match="matches no invite"):
        again.revoke_invite("zz", now=NOW)


def test_who_joined_by_an_invite_is_listed_and_named_when_it_is_revoked(tmp_path: Path) -> None:
    founder(tmp_path / "a")
    home = Home(tmp_path / "a")
    membership = home.load_membership()
    assert membership is not None
    book = home.load_invites(membership.mesh)
    entry = book.create(secret=b"s" * 16, roles=[Role.USE], now=NOW, expires_at=NOW + 60, uses=99)
    guests = [KeyPair.from_seed(bytes([number]) * 32).peer for number in range(MAX_LISTED + 2)]
    for guest in guests:
        assert book.reserve(entry.invite_id, guest, NOW).ok
    home.save_invites(book)
    books = Authority.load(home)
    [view] = books.invites(NOW, {guests[-1]: "garage"}).invites
    assert (view.used, len(view.joined)) == (MAX_LISTED + 2, MAX_LISTED)  # the newest
    assert view.joined[-1] == Joined(id=str(guests[-1]), name="garage")
    removed = books.revoke_invite(view.id, now=NOW, names={guests[0]: "desk"}).removed
    assert [one.id for one in removed] == list(map(str, guests))
    assert [one.name for one in removed[:2]] == ["desk", ""]


def test_a_node_is_banned_and_stays_so(tmp_path: Path) -> None:
    guest = KeyPair.from_seed(b"g" * 32).peer
    reply = founder(tmp_path / "a").revoke_node(guest, now=NOW, name="garage")
    assert (reply.id, reply.name) == (str(guest), "garage")
    home = Home(tmp_path / "a")
    membership = home.load_membership()
    assert membership is not None
    assert home.load_revocations(membership.mesh).why_node_banned(guest) is not None


def test_the_founder_lifts_a_ban_for_good(tmp_path: Path) -> None:
    guest = KeyPair.from_seed(b"g" * 32).peer
    books = founder(tmp_path / "a")
    books.revoke_node(guest, now=NOW)
    [view] = books.bans().bans
    assert (view.id, view.kind, view.banned_at) == (str(guest), "node", NOW)
    with pytest.raises(UserError, match="matches no ban"):
        books.unban("zz", now=NOW)
    assert books.unban(str(guest)[:8], now=NOW).id == str(guest)
    again = founder(tmp_path / "a")
    assert again.bans().bans == ()
    home = Home(tmp_path / "a")
    membership = home.load_membership()
    assert membership is not None
    assert home.load_revocations(membership.mesh).why_node_banned(guest) is None
    again.revoke_node(guest, now=NOW)
    assert home.load_revocations(membership.mesh).why_node_banned(guest) is not None


def test_a_ban_is_lifted_by_the_name_by_which_it_was_made(tmp_path: Path) -> None:
    guest, other = (KeyPair.from_seed(seed * 32).peer for seed in (b"g", b"o"))
    books = founder(tmp_path / "a")
    books.revoke_node(guest, now=NOW, name="garage")
    books.revoke_node(other, now=NOW)
    again = founder(tmp_path / "a")  # a restart: the address book has dropped the node
    assert {one.id: one.name for one in again.bans().bans} == {str(guest): "garage", str(other): ""}
    with pytest.raises(UserError, match="matches no ban"):
        again.unban("garag", now=NOW)
    lifted = again.unban("garage", now=NOW)
    assert (lifted.id, lifted.name) == (str(guest), "garage")
    assert [one.id for one in again.bans().bans] == [str(other)]
    with pytest.raises(UserError, match="matches no ban"):
        founder(tmp_path / "a").unban("garage", now=NOW)


def test_a_name_that_two_banned_nodes_had_lifts_neither_ban(tmp_path: Path) -> None:
    books = founder(tmp_path / "a")
    for seed in (b"g", b"o"):
        books.revoke_node(KeyPair.from_seed(seed * 32).peer, now=NOW, name="garage")
    with pytest.raises(UserError, match="matches several bans"):
        books.unban("garage", now=NOW)
    assert len(books.bans().bans) == 2


def test_kept_names_that_no_node_may_have_are_not_shown(tmp_path: Path) -> None:
    guest = KeyPair.from_seed(b"g" * 32).peer
    founder(tmp_path / "a").revoke_node(guest, now=NOW, name="?gar age")
    Home(tmp_path / "a").write_blob(BANNED_NAMES_BLOB, f"{guest} \x1b[31m\n\xff".encode("latin-1"))
    [view] = founder(tmp_path / "a").bans().bans
    assert view.name == ""


def test_an_admin_can_neither_lift_a_ban_nor_ban_who_was_readmitted(tmp_path: Path) -> None:
    root = founder(tmp_path / "a")
    admin = joined(tmp_path / "b", tmp_path / "a", Role.ADMIN)
    guest = KeyPair.from_seed(b"g" * 32).peer
    admin.revoke_node(guest, now=NOW)
    with pytest.raises(UserError, match="only the holder of the mesh's root key"):
        admin.unban(str(guest), now=NOW)
    root.revoke_node(guest, now=NOW)
    root.unban(str(guest), now=NOW)
    told = Home(tmp_path / "a")
    membership = told.load_membership()
    assert membership is not None
    store = Home(tmp_path / "b")
    bans = store.load_revocations(membership.mesh)
    bans.merge(told.load_revocations(membership.mesh).entries())
    store.save_revocations(bans)
    with pytest.raises(UserError, match="the founder has lifted the ban of this node"):
        Authority.load(store).revoke_node(guest, now=NOW)


def test_nobody_bans_itself_nor_whom_it_did_not_admit(tmp_path: Path) -> None:
    books = founder(tmp_path / "a")
    me = Home(tmp_path / "a").load_or_create_identity().peer
    with pytest.raises(UserError, match="cannot ban itself"):
        books.revoke_node(me, now=NOW)
    for number, roles in enumerate([(Role.USE,), (Role.USE, Role.INVITE)]):
        member = joined(tmp_path / f"b{number}", tmp_path / "a", *roles)
        with pytest.raises(UserError, match="which another node admitted"):
            member.revoke_node(me, now=NOW)


def test_an_admin_bans_anyone(tmp_path: Path) -> None:
    founder(tmp_path / "a")
    admin = joined(tmp_path / "b", tmp_path / "a", Role.ADMIN)
    guest = KeyPair.from_seed(b"g" * 32).peer
    assert admin.revoke_node(guest, now=NOW).id == str(guest)


def test_an_inviter_bans_whom_it_admitted(tmp_path: Path) -> None:
    founder(tmp_path / "a")
    joined(tmp_path / "b", tmp_path / "a", Role.USE, Role.INVITE)
    home = Home(tmp_path / "b")
    membership = home.load_membership()
    assert membership is not None
    key, guest = home.load_or_create_identity(), KeyPair.from_seed(b"g" * 32).peer
    book = home.load_invites(membership.mesh)
    entry = book.create(secret=b"s" * 16, roles=[Role.USE], now=NOW, expires_at=NOW + 60, uses=1)
    assert book.reserve(entry.invite_id, guest, NOW).ok
    chain = membership.admit(
        key, node=guest, roles=entry.roles, serial=b"s" * 16, invite=entry.invite_id, now=NOW
    )
    book.certify(entry.invite_id, guest, chain.leaf)
    home.save_invites(book)
    books = Authority.load(home)
    assert books.find_admitted(str(guest)[:6]) == guest
    assert books.revoke_node(guest, now=NOW).id == str(guest)
    assert home.load_revocations(membership.mesh).why_banned(chain) is not None


def test_a_node_is_found_by_its_whole_id_only_when_it_is_unknown(tmp_path: Path) -> None:
    books = founder(tmp_path / "a")
    guest = KeyPair.from_seed(b"g" * 32).peer
    assert books.find_admitted(str(guest)) == guest
    for text in (str(guest)[:10], "", "garage"):
        with pytest.raises(UserError, match="does not match a node that this one admitted"):
            books.find_admitted(text)


def test_addresses_are_kept_for_later(tmp_path: Path) -> None:
    home = Home(tmp_path / "a")
    assert load_addresses(home) == ()
    kept = (*HERE, Candidate("fd00::1", 17431))
    save_addresses(home, kept)
    assert load_addresses(home) == kept
