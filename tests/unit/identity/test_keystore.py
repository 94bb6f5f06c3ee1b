"""The home: what is kept is found again; damage and mix-ups are named and never papered over."""

import errno
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from meshd.base.errors import LocalProtocolError, UserError
from meshd.identity import keystore
from meshd.identity.invite_book import InviteBook
from meshd.identity.keys import KeyPair
from meshd.identity.keystore import PORT_BLOB, Home, Keeping, Membership
from meshd.identity.membership import ALL_ROLES, Role, check_chain
from meshd.identity.naming import NAME_BLOB
from meshd.identity.revocation import RevocationSet, ban

from tests.unit.identity.cast import GUEST, INVITER, MESH, STRANGER

NOW = 1_000_000


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def counting() -> Callable[[int], bytes]:
    """Chance that can be told beforehand."""
    numbers = itertools.count(1)
    return lambda size: next(numbers).to_bytes(size, "big")


def test_nothing_is_made_by_looking(home: Home) -> None:
    assert home.load_identity() is None
    assert home.load_membership() is None
    assert home.read_blob("book") is None
    assert home.load_invites(MESH).entries() == ()
    assert home.load_revocations(MESH).entries() == ()
    assert not home.path.exists()


@pytest.mark.parametrize("below", [".", "deeper"])
def test_a_home_that_is_a_file_is_said_to_be_no_folder(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not a directory") as caught:
        Home(tmp_path / "file" / below).load_or_create_identity()
    assert "MESHD_HOME" in caught.value.hint


def test_the_identity_is_made_once(home: Home) -> None:
    key = home.load_or_create_identity()
    assert Home(home.path).load_or_create_identity().peer == key.peer
    loaded = home.load_identity()
    assert loaded is not None
    assert loaded.peer == key.peer


@pytest.mark.parametrize("name", ["identity.key", "membership", "invites", "revocations", "counters"])
def test_a_damaged_file_is_named_and_nothing_is_made_anew(home: Home, name: str) -> None:
    membership = home.found_mesh(now=NOW)
    home.save_invites(InviteBook(membership.mesh))
    home.save_revocations(RevocationSet(membership.mesh))
    home.counters.next_incarnation()
    path = home.path / name
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    read: dict[str, Callable[[], object]] = {
        "identity.key": home.load_or_create_identity,
        "membership": home.load_membership,
        "invites": lambda: home.load_invites(membership.mesh),
        "revocations": lambda: home.load_revocations(membership.mesh),
        "counters": home.counters.last_sequence,
    }
    with pytest.raises(UserError, match="damaged") as caught:
        read[name]()
    assert str(path) in caught.value.what
    assert path.read_bytes()[:-1] == raw[:-1]


def test_a_whole_file_with_other_content_is_damage_too(home: Home) -> None:
    home.found_mesh(now=NOW)
    for name in ("identity.key", "membership", "counters"):
        home._folder.write(name, b"\x80")
        with pytest.raises(UserError, match=f"{name}` is damaged"):
            home.load_membership() if name != "counters" else home.counters.last_sequence()


def test_a_lost_key_of_a_member_is_damage_not_a_first_start(home: Home) -> None:
    home.found_mesh(now=NOW)
    (home.path / "identity.key").unlink()
    for load in (home.load_or_create_identity, home.load_membership):
        with pytest.raises(UserError, match="missing"):
            load()


def test_a_founder_has_every_role_and_is_found_again(home: Home) -> None:
    membership = home.found_mesh(now=NOW)
    key = home.load_or_create_identity()
    assert check_chain(membership.chain, membership.mesh, key.peer).roles == ALL_ROLES
    assert home.load_membership() == membership
    assert membership.is_founder
    assert membership.inviter is None
    assert membership.gives == membership.roles == ALL_ROLES
    assert repr(membership.root_seed) not in repr(membership)


def test_a_member_founds_no_second_mesh(home: Home) -> None:
    home.found_mesh(now=NOW)
    with pytest.raises(UserError, match="cannot found a mesh") as caught:
        home.found_mesh(now=NOW)
    assert "meshd leave" in caught.value.hint


def test_a_founder_admits_with_the_roots_key(home: Home) -> None:
    membership = home.found_mesh(now=NOW)
    key = home.load_or_create_identity()
    chain = membership.admit(
        key,
        node=GUEST.peer,
        roles=frozenset({Role.USE, Role.INVITE}),
        serial=bytes(16),
        invite=b"invite 8",
        now=NOW,
    )
    assert check_chain(chain, membership.mesh, GUEST.peer).roles == {Role.USE, Role.INVITE}
    assert chain.leaf.issuer == membership.root
    signer, shown = membership.signer(key)
    assert signer.peer == membership.root
    assert shown is None


def joined(home: Home, founder: Home, roles: frozenset[Role]) -> Membership:
    """`home` becomes a member of `founder`'s mesh."""
    theirs, key = founder.load_membership(), founder.load_or_create_identity()
    assert theirs is not None
    node = home.load_or_create_identity().peer
    chain = theirs.admit(key, node=node, roles=roles, serial=bytes(16), invite=b"invite 8", now=NOW)
    home.save_membership(Membership(theirs.mesh, chain, inviter=key.peer))
    found = home.load_membership()
    assert found is not None
    return found


@pytest.fixture
def founder(tmp_path: Path) -> Home:
    other = Home(tmp_path / "founder")
    other.found_mesh(now=NOW)
    return other


def test_an_inviter_admits_with_its_own_key_and_shows_its_chain(home: Home, founder: Home) -> None:
    mine = joined(home, founder, frozenset({Role.USE, Role.INVITE}))
    key = home.load_or_create_identity()
    chain = mine.admit(
        key, node=GUEST.peer, roles=frozenset({Role.USE}), serial=bytes(16), invite=b"invite 8", now=NOW
    )
    assert check_chain(chain, mine.mesh, GUEST.peer).roles == {Role.USE}
    assert chain.leaf.issuer == key.peer
    assert mine.signer(key) == (key, mine.chain)
    assert not mine.is_founder
    with pytest.raises(LocalProtocolError):
        mine.admit(key, node=GUEST.peer, roles=frozenset({Role.ADMIN}), serial=bytes(16), invite=b"", now=NOW)


def test_a_certificate_given_before_the_root_came_keeps_its_chain(home: Home, founder: Home) -> None:
    mine = joined(home, founder, frozenset({Role.USE, Role.INVITE}))
    key = home.load_or_create_identity()
    before = mine.admit(
        key, node=GUEST.peer, roles=frozenset({Role.USE}), serial=bytes(16), invite=b"invite 8", now=NOW
    )
    after = home.import_root(founder.export_root(), now=NOW).chain_of(before.leaf)
    assert check_chain(after, mine.mesh, GUEST.peer).roles == {Role.USE}
    assert after.leaf == before.leaf


def test_a_member_without_invite_admits_nobody(home: Home, founder: Home) -> None:
    assert joined(home, founder, frozenset({Role.USE})).gives == frozenset()


def test_a_membership_of_another_key_is_named(home: Home, founder: Home) -> None:
    joined(home, founder, frozenset({Role.USE}))
    other = Home(home.path.with_name("other"))
    other.load_or_create_identity()
    (home.path / "identity.key").write_bytes((other.path / "identity.key").read_bytes())
    with pytest.raises(UserError, match="a different key") as caught:
        home.load_membership()
    assert "leave" in caught.value.hint


def test_leaving_forgets_the_mesh_and_keeps_the_key(home: Home, founder: Home) -> None:
    mine = joined(home, founder, frozenset({Role.USE}))
    home.save_invites(InviteBook(mine.mesh))
    home.save_revocations(RevocationSet(mine.mesh))
    before = home.load_or_create_identity().peer
    for blob in ("book", "addresses", PORT_BLOB, NAME_BLOB):
        home.write_blob(blob, b"1")
    home.leave()
    assert home.load_membership() is None
    left = sorted(path.name for path in home.path.iterdir())
    assert left == ["identity.key", "mesh-port.blob", "name.blob"]
    again = joined(home, founder, frozenset({Role.USE}))
    assert again.chain.leaf.node == before
    home.leave()
    home.leave()  # twice does no harm


def test_a_founder_does_not_drop_the_root_by_accident(founder: Home) -> None:
    with pytest.raises(UserError, match="root key") as caught:
        founder.leave()
    assert "`meshd mesh export FILE`" in caught.value.hint  # which writes it 0600; a shell's `>` would not
    assert founder.load_membership() is not None
    founder.leave(drop_root=True)
    assert founder.load_membership() is None


def test_a_new_key_ends_a_membership(home: Home, founder: Home) -> None:
    joined(home, founder, frozenset({Role.USE}))
    before = home.load_or_create_identity().peer
    after = home.reset_identity(now=NOW)
    assert after.peer != before
    assert home.load_or_create_identity().peer == after.peer
    assert home.load_membership() is None


def test_a_founder_with_a_new_key_stays_the_founder(founder: Home) -> None:
    before = founder.load_membership()
    key = founder.reset_identity(now=NOW + 5)
    after = founder.load_membership()
    assert before is not None
    assert after is not None
    assert (after.mesh, after.root_seed) == (before.mesh, before.root_seed)
    assert after.chain.leaf.node == key.peer


def test_a_crash_between_key_and_membership_is_named_and_healed(
    founder: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(_: Home, membership: Membership) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Home, "save_membership", crash)
        with pytest.raises(KeyboardInterrupt):
            founder.reset_identity(now=NOW)
    with pytest.raises(UserError, match="a different key"):
        founder.load_membership()
    founder.reset_identity(now=NOW)
    assert founder.load_membership() is not None


def test_the_root_is_exported_and_imported_elsewhere(home: Home, founder: Home) -> None:
    word = founder.export_root()
    assert word.startswith("meshdroot1")
    imported = home.import_root(f"\n{word}\n", now=NOW)
    origin = founder.load_membership()
    assert origin is not None
    assert (imported.mesh, imported.root_seed) == (origin.mesh, origin.root_seed)
    assert home.load_membership() == imported
    assert imported.chain.leaf.node == home.load_or_create_identity().peer


def test_a_member_that_imports_the_root_stays_in_its_mesh(home: Home, founder: Home) -> None:
    mine = joined(home, founder, frozenset({Role.USE}))
    imported = home.import_root(founder.export_root(), now=NOW)
    assert imported.mesh == mine.mesh
    assert imported.is_founder


def test_a_mesh_that_nobody_joined_is_given_up_for_a_restored_one(home: Home, founder: Home) -> None:
    """A daemon that was started before its user thought of the backup has founded one."""
    alone = home.found_mesh(now=NOW)
    home.write_blob("addresses", b"1")
    restored = home.import_root(founder.export_root(), now=NOW)
    assert restored.mesh != alone.mesh and restored.is_founder
    assert home.load_membership() == restored
    assert home.read_blob("addresses") is None, "they are those of the other mesh"


@pytest.mark.parametrize("sign", ["book", "imported-root", "invite"])
def test_a_root_of_another_mesh_is_not_imported(home: Home, founder: Home, sign: str) -> None:
    mesh = home.found_mesh(now=NOW).mesh
    if sign == "invite":
        book = InviteBook(mesh)
        entry = book.create(secret=bytes(16), roles=[Role.USE], now=NOW, expires_at=NOW + 9, uses=1)
        book.reserve(entry.invite_id, GUEST.peer, NOW)
        home.save_invites(book)
    else:
        home.write_blob(sign, b"1")
    before = home.load_membership()
    with pytest.raises(UserError, match="root key of another"):
        home.import_root(founder.export_root(), now=NOW)
    assert home.load_membership() == before


@pytest.mark.parametrize("text", ["", "meshd1abc", "meshdroot1abc", "meshdroot2aa"])
def test_a_bad_backup_is_refused_and_changes_nothing(home: Home, text: str) -> None:
    with pytest.raises(UserError, match="recovery code"):
        home.import_root(text, now=NOW)
    assert not home.path.exists()


def backups(home: Home) -> tuple[bool, bool]:
    """Return whether there is a backup of the root key, and whether it was restored here."""
    return home.has_root_backup, home.has_root_from_backup


def test_whether_there_is_a_backup_is_remembered(home: Home, founder: Home) -> None:
    code = founder.export_root()
    assert backups(founder) == (False, False), "it may not have been written anywhere"
    founder.note_export()
    assert backups(founder) == (True, False)
    home.import_root(code, now=NOW)
    assert backups(home) == (True, True)
    home.leave(drop_root=True)
    assert backups(home) == (False, False)


def test_only_the_holder_of_the_root_exports_it(home: Home, founder: Home) -> None:
    with pytest.raises(UserError, match="not in a mesh"):
        home.export_root()
    joined(home, founder, frozenset({Role.ADMIN}))
    with pytest.raises(UserError, match="does not hold"):
        home.export_root()


def test_invites_and_bans_are_kept_for_their_mesh_only(home: Home) -> None:
    membership = home.found_mesh(now=NOW)
    book = InviteBook(membership.mesh)
    book.create(secret=bytes(16), roles=[Role.USE], now=NOW, expires_at=NOW + 9, uses=1)
    home.save_invites(book)
    assert home.load_invites(membership.mesh).entries() == book.entries()
    assert home.load_invites(MESH).entries() == ()
    root, _ = membership.signer(INVITER)
    bans = RevocationSet(membership.mesh)
    bans.add(
        ban(
            signer=root,
            chain=None,
            mesh=membership.mesh,
            kind="node",
            target=STRANGER.peer.raw,
            issued_at=NOW,
        )
    )
    home.save_revocations(bans)
    assert home.load_revocations(membership.mesh).digest() == bans.digest()
    assert home.load_revocations(MESH).entries() == ()


def test_blobs_are_kept_by_name(home: Home) -> None:
    home.write_blob("address-book", b"\0data")
    assert home.read_blob("address-book") == b"\0data"
    assert home.read_blob("another") is None
    for name in ("", "../x", "A", "a/b", "x" * 41, "-a"):
        with pytest.raises(LocalProtocolError):
            home.write_blob(name, b"")


def test_a_blob_is_bounded(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshd.identity.keystore.MAX_BLOB_BYTES", 4)
    with pytest.raises(LocalProtocolError):
        home.write_blob("a", b"12345")


def test_each_incarnation_and_sequence_is_greater(home: Home) -> None:
    incarnations = [home.counters.next_incarnation(), home.counters.next_incarnation()]
    assert home.counters.reserve_sequences(7)
    incarnations.append(Home(home.path).counters.next_incarnation())
    assert incarnations == sorted(set(incarnations))
    assert all(len(item) == 16 for item in incarnations)
    assert home.counters.last_sequence() == Home(home.path).counters.last_sequence() == 7


def test_a_copied_home_gets_another_incarnation(home: Home) -> None:
    home.counters.next_incarnation()
    state = (home.path / "counters").read_bytes()
    one = home.counters.next_incarnation()
    (home.path / "counters").write_bytes(state)
    two = home.counters.next_incarnation()
    assert one[:8] == two[:8]
    assert one != two


def test_chance_comes_from_the_caller(home: Home, tmp_path: Path) -> None:
    one = home.found_mesh(now=NOW, random=counting())
    two = Home(tmp_path / "two").found_mesh(now=NOW, random=counting())
    assert one == two
    assert one.root_seed is not None
    assert KeyPair.from_seed(one.root_seed).peer == one.root


def test_the_lock_is_held_by_one(home: Home) -> None:
    with home.lock(), pytest.raises(UserError, match="in use"), Home(home.path).lock():
        raise AssertionError("two holders")


class Disk:
    """Takes writes, or refuses them for a reason."""

    def __init__(self) -> None:
        self.why: Exception | None = None
        self.written: list[str] = []

    def write(self, what: str) -> Callable[[], None]:
        def attempt() -> None:
            if self.why is not None:
                raise self.why
            self.written.append(what)

        return attempt


def test_what_is_written_waits_for_nothing() -> None:
    disk, keeping = Disk(), Keeping()
    assert keeping.keep("book", disk.write("one"))
    assert disk.written == ["one"] and not keeping.waiting and keeping.retry()


@pytest.mark.parametrize("why", [OSError("no space left"), UserError("no space left")])
def test_what_is_refused_is_written_at_a_later_try(why: Exception) -> None:
    disk, keeping = Disk(), Keeping()
    disk.why = why
    assert not keeping.keep("book", disk.write("one"))
    assert not keeping.retry()
    assert dict(keeping.waiting) == {"book": "no space left"}
    disk.why = None
    assert keeping.retry()
    assert disk.written == ["one"] and not keeping.waiting


def test_a_newer_content_takes_the_place_of_the_one_that_waits() -> None:
    disk, keeping = Disk(), Keeping()
    disk.why = OSError("read-only")
    assert not keeping.keep("book", disk.write("old"))
    assert not keeping.keep("book", disk.write("new"))
    assert not keeping.keep("bans", disk.write("bans"))
    disk.why = None
    assert keeping.keep("book", disk.write("newest"))
    assert set(keeping.waiting) == {"bans"}
    assert keeping.retry()
    assert disk.written == ["newest", "bans"]


def test_it_is_said_once_for_each_reason(capsys: pytest.CaptureFixture[str]) -> None:
    disk, keeping = Disk(), Keeping()
    for why in ("full", "full", "read-only", "read-only"):
        disk.why = OSError(why)
        keeping.keep("book", disk.write(why))
    lines = [line for line in capsys.readouterr().err.splitlines() if "state_not_written" in line]
    assert [line.rpartition("why=")[2] for line in lines] == ["full", "read-only"]


def test_what_waits_agrees_with_the_lines_that_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may look between any two statements."""
    disk, keeping = Disk(), Keeping()
    seen: dict[str, set[str]] = {}

    class Log:
        def warning(self, event: str, **_fields: str) -> None:
            seen[event] = set(keeping.waiting)

        info = warning

    monkeypatch.setattr(keystore, "LOG", Log())
    disk.why = OSError("full")
    keeping.keep("book", disk.write("one"))
    disk.why = None
    keeping.keep("book", disk.write("two"))
    assert seen == {"state_not_written": {"book"}, "state_written": {"book"}}
    assert not keeping.waiting


def test_an_invite_that_was_left_goes_as_soon_as_the_disk_lets_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.drop_invite()
    assert not home.path.exists()
    home.load_or_create_identity()
    left = home.path / "join"
    left.write_text("an invite")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse_to_unlink)
        home.drop_invite()
    assert left.exists() and list(home.keeping.waiting) == ["join"]
    assert home.keeping.retry()
    assert not left.exists()


def refuse_to_unlink(path: Path, *, missing_ok: bool = False) -> None:
    raise OSError(errno.EROFS, "Read-only file system")
