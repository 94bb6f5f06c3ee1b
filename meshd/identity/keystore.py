"""The home of a node: its key, membership, invites, bans and counters as files (folder.py).

identity.key   the node's seed                     membership   mesh, chain, the founder's root seed
invites        the invite book                     revocations  the bans
counters       incarnation and record numbers      *.blob       what other packages keep
lock           held by the process that uses the home
join           an invite for the first start of a service
"""

import os
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from meshd.base import log
from meshd.base.errors import LocalProtocolError, RemoteProtocolError, UserError
from meshd.identity.folder import DAEMON, INVITE, MEMBERSHIP, PrivateFolder, damaged
from meshd.identity.invite_book import MAX_INVITE_BOOK_BYTES, InviteBook
from meshd.identity.keys import KEY_BYTES, KeyPair, MeshId, PeerId
from meshd.identity.membership import (
    ALL_ROLES,
    SERIAL_BYTES,
    Certificate,
    Chain,
    Role,
    check_chain,
    issue,
    may_give,
)
from meshd.identity.naming import NAME_BLOB
from meshd.identity.recovery_code import read_code, write_code
from meshd.identity.revocation import MAX_SET_BYTES, RevocationSet
from meshd.wire.limits import MAX_CHAIN_BYTES, MAX_SEQUENCE
from meshd.wire.message import Fields, pack, unpack

LOG = log.get("identity")
INCARNATION_BYTES = 16
FILE = "counters"
_COUNTS = ("incarnation", "sequence")
_MAX_BYTES = 8 << 10
MAX_BLOB_BYTES = 16 << 20
PORT_BLOB = "mesh-port"
BOOK_BLOB = "book"  # the address book: rendezvous/book.py
IMPORTED_BLOB = "imported-root"  # says that the root key came from a backup: its mesh has other members
EXPORTED_BLOB = "exported-root"  # says that there is a backup of the root key
IDENTITY, _INVITES, _BANS = "identity.key", "invites", "revocations"
STATE_FILES = (IDENTITY, MEMBERSHIP, _INVITES, _BANS, FILE)  # beside blobs
_BLOB_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_MAX_SMALL = 8 << 10
T = TypeVar("T")
Random = Callable[[int], bytes]


class OtherKey(UserError):
    """The membership is that of another key than this node's."""


class Keeping:
    """The pending writes, by file name. May be used by several threads; an older content never overtakes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[Callable[[], None], str]] = {}  # and why it has not worked

    @property
    def waiting(self) -> Mapping[str, str]:
        """The files whose newest content is in memory only, and why they could not be written."""
        return MappingProxyType({name: why for name, (_, why) in self._waiting.copy().items()})

    def keep(self, name: str, write: Callable[[], None]) -> bool:
        """Call `write` now, or again at each `retry` until it works or a newer one comes; True if it worked.

        `write` raises UserError or OSError when the disk does not take it.
        """
        with self._lock:
            return self._try(name, write)

    def retry(self) -> bool:
        """Write what is pending; True when nothing is left."""
        for name in list(self._waiting):
            with self._lock:
                if name in self._waiting:  # else a newer one has been written meanwhile
                    self._try(name, self._waiting[name][0])
        return not self._waiting

    def _try(self, name: str, write: Callable[[], None]) -> bool:
        try:
            write()
        except (UserError, OSError) as error:
            why = str(error)
            # Noted before this line is logged, forgotten after the one below: between them it always waits.
            before = self._waiting.get(name)
            self._waiting[name] = write, why
            if before is None or before[1] != why:
                LOG.warning("state_not_written", file=name, why=why)
            return False
        if name in self._waiting:
            LOG.info("state_written", file=name)
            del self._waiting[name]
        return True


class Counters:
    """Every method that reads raises UserError when the file is damaged."""

    def __init__(self, folder: PrivateFolder, keeping: Keeping) -> None:
        self._folder = folder
        self._keeping = keeping
        self._least = dict.fromkeys(_COUNTS, 0)  # what the file has to say, at least

    def next_incarnation(self, random: Callable[[int], bytes] = os.urandom) -> bytes:
        """Return 16 bytes, greater at each call: an 8-byte count, then random bytes (a copied home differs).

        If the disk cannot be written the count stays, and only the random bytes tell this start from the last
        one.
        """
        count = self._read()["incarnation"] + 1
        self._keep("incarnation", count)
        return count.to_bytes(8, "big") + random(INCARNATION_BYTES - 8)

    def last_sequence(self) -> int:
        """Return the greatest number that a record of this node may have."""
        return self._read()["sequence"]

    def reserve_sequences(self, last: int) -> bool:
        """Note that records may have numbers up to `last`; True when that is durable already."""
        return self._keep("sequence", last)

    def _keep(self, name: str, least: int) -> bool:
        self._least[name] = max(self._least[name], least)
        return self._keeping.keep(FILE, self._write)

    def _write(self) -> None:
        counts = self._read()
        self._folder.write(FILE, pack({name: max(counts[name], self._least[name]) for name in _COUNTS}))

    def _read(self) -> dict[str, int]:
        data = self._folder.read(FILE, limit=_MAX_BYTES)
        if data is None:
            return dict.fromkeys(_COUNTS, 0)
        try:
            fields = unpack(data)
            return {name: fields.number(name, low=0, high=MAX_SEQUENCE) for name in _COUNTS}
        except RemoteProtocolError as error:
            raise damaged(self._folder.path / FILE, error.what) from None


@dataclass(frozen=True, slots=True)
class Membership:
    """This node's place in a mesh. `root_seed` is there at the founder (or after `mesh import`) only.

    `inviter` is None at the founder.
    """

    mesh: MeshId
    chain: Chain
    inviter: PeerId | None = None
    root_seed: bytes | None = field(default=None, repr=False)

    @property
    def root(self) -> PeerId:
        """The mesh's public key."""
        return self.chain.root

    @property
    def roles(self) -> frozenset[Role]:
        """This node's own roles."""
        return self.chain.leaf.roles

    @property
    def is_founder(self) -> bool:
        """True if this node has the root's seed."""
        return self.root_seed is not None

    @property
    def gives(self) -> frozenset[Role]:
        """The roles that this node may give to those it invites; none: it cannot invite."""
        return may_give(self.chain, is_root=self.is_founder)

    def signer(self, key: KeyPair) -> tuple[KeyPair, Chain | None]:
        """Return the key, and the chain to show, with which this node certifies and bans: the root's if it is
        here.
        """
        if self.root_seed is not None:
            return KeyPair.from_seed(self.root_seed), None
        return key, self.chain

    def admit(
        self, key: KeyPair, *, node: PeerId, roles: frozenset[Role], serial: bytes, invite: bytes, now: int
    ) -> Chain:
        """Return the chain of a new member. `key` is this node's own. Raises LocalProtocolError if it may
        not.
        """
        if not roles <= self.gives:
            raise LocalProtocolError("this node cannot grant these roles")
        signer, _ = self.signer(key)
        leaf = issue(
            signer=signer, mesh=self.mesh, node=node, roles=roles, serial=serial, invite=invite, issued_at=now
        )
        return self.chain_of(leaf)

    def chain_of(self, leaf: Certificate) -> Chain:
        """Return the chain above a certificate that this node issued, now or before it had the root's key."""
        above = () if leaf.issuer == self.root else self.chain.certificates
        return Chain((leaf, *above), self.root)


class Home:
    """The folder of one node's state. Nothing is created before the first write. Every method raises
    UserError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = PrivateFolder(path, mark=IDENTITY)
        self.keeping = Keeping()
        self.counters = Counters(self._folder, self.keeping)

    def lock(self, *, daemon: bool = False) -> AbstractContextManager[None]:
        """Lock the home for the one daemon (or verb) that uses it. Raises UserError naming the
        holder's pid.
        """
        return self._folder.lock(holder="meshd", purpose=DAEMON if daemon else "")

    # -- who this node is

    def load_identity(self) -> KeyPair | None:
        """Return the node's key, None when there is none yet."""
        data = self._folder.read(IDENTITY, limit=_MAX_SMALL)
        if data is None:
            return None
        return KeyPair.from_seed(self._parse(IDENTITY, data, lambda f: f.raw("seed", exact=KEY_BYTES)))

    def load_or_create_identity(self, random: Random = os.urandom) -> KeyPair:
        """Return the node's key; the first call creates it. A membership without a key is damage, not a first
        call.
        """
        key = self.load_identity()
        if key is not None:
            return key
        if self._folder.exists(MEMBERSHIP):
            raise damaged(self.path / IDENTITY, "it is missing, although this node is a member of a mesh")
        return self._new_identity(random)

    def reset_identity(self, *, now: int, random: Random = os.urandom) -> KeyPair:
        """Create a new key: a banned node needs one to come back. The old membership ends with the old key.

        On the founder the root certifies the new key, so that the mesh continues. Calling it again after a
        crash in between is safe.
        """
        data = self._folder.read(MEMBERSHIP, limit=_MAX_SMALL)
        old = self._parse(MEMBERSHIP, data, _read_membership) if data is not None else None
        if old is None or old.root_seed is None:
            self.leave()
            return self._new_identity(random)
        key = self._new_identity(random)
        self.save_membership(_founder(old.root_seed, key.peer, now=now, serial=random(SERIAL_BYTES)))
        return key

    def _new_identity(self, random: Random) -> KeyPair:
        key = KeyPair.from_seed(random(KEY_BYTES))
        self._folder.write(IDENTITY, pack({"seed": key.seed}))
        return key

    # -- which mesh it is in

    def load_membership(self) -> Membership | None:
        """Return this node's membership, checked against its key; None when it is in no mesh. Raises
        UserError.
        """
        data = self._folder.read(MEMBERSHIP, limit=_MAX_SMALL)
        if data is None:
            return None
        found = self._parse(MEMBERSHIP, data, _read_membership)
        key = self.load_or_create_identity()
        if found.chain.leaf.node != key.peer:
            raise OtherKey(
                f"`{self.path / MEMBERSHIP}` belongs to a different key than `{IDENTITY}`",
                hint="restore both from one backup, or run `meshd leave --new-identity` and join again",
            )
        self._parse(MEMBERSHIP, data, lambda _: check_chain(found.chain, found.mesh, key.peer))
        return found

    def save_membership(self, membership: Membership) -> None:
        """Store the membership; from now on a restart needs no invite."""
        inviter = membership.inviter.raw if membership.inviter is not None else b""
        fields = {
            "mesh": membership.mesh.raw,
            "chain": membership.chain.encode(),
            "inviter": inviter,
            "root": membership.root_seed or b"",
        }
        self._folder.write(MEMBERSHIP, pack(fields))

    def drop_invite(self) -> None:
        """Delete the invite that was left for the first start, if there is one."""
        if self._folder.exists(INVITE):
            self.keeping.keep(INVITE, lambda: self._folder.remove(INVITE))

    def found_mesh(self, *, now: int, random: Random = os.urandom) -> Membership:
        """Found a mesh: create a root key, and make this node its first member with every role."""
        self._refuse_member("found a mesh")
        key = self.load_or_create_identity(random)
        membership = _founder(random(KEY_BYTES), key.peer, now=now, serial=random(SERIAL_BYTES))
        self.save_membership(membership)
        return membership

    def leave(self, *, drop_root: bool = False) -> None:
        """Delete the membership, invites, bans and blobs; the key stays. Raises UserError at a founder,
        unless `drop_root`: without its root key nobody can ever admit or ban for that mesh again.
        """
        data = self._folder.read(MEMBERSHIP, limit=_MAX_SMALL)
        if data is not None and not drop_root and self._parse(MEMBERSHIP, data, _read_membership).root_seed:
            raise UserError(
                "this node holds the root key of its mesh",
                hint="keep a backup with `meshd mesh export FILE`, then run `meshd leave --force`",
            )
        # the membership goes last: after a crash in between, the node is still a member and can leave again
        stay = (_blob(PORT_BLOB), _blob(NAME_BLOB))  # this machine's, not the mesh's
        blobs = (name for name in self._folder.names(".blob") if name not in stay)
        for name in (*blobs, _INVITES, _BANS, MEMBERSHIP):
            self._folder.remove(name)

    def export_root(self) -> str:
        """Return the root key as a recovery code, for `import_root`. Whoever has it owns the mesh: keep it
        secret.
        """
        membership = self.load_membership()
        if membership is None:
            raise UserError("this node is not in a mesh", hint="run this on the node that founded the mesh")
        if membership.root_seed is None:
            raise UserError(
                "this node does not hold the root key of its mesh",
                hint="run this on the node that founded the mesh",
            )
        return write_code(membership.root_seed)

    def note_export(self) -> None:
        """Note that there is a backup of the root key, which ends a hint in the status, no more."""
        self.keep_blob(EXPORTED_BLOB, b"1")

    def import_root(self, text: str, *, now: int, random: Random = os.urandom) -> Membership:
        """Make this node a founder from a recovery code; a member of that mesh only gains the root key.

        A mesh that this node founded and nobody joined is given up for it.
        """
        seed = read_code(text)
        key = self.load_or_create_identity(random)
        present = self.load_membership()
        membership = _founder(seed, key.peer, now=now, serial=random(SERIAL_BYTES))
        if present is not None and present.mesh != membership.mesh:
            if not self.is_alone(present):
                self._refuse_member("import the root key of another one")
            self.leave(drop_root=True)
        self.write_blob(IMPORTED_BLOB, b"1")
        self.save_membership(membership)
        return membership

    @property
    def has_root_from_backup(self) -> bool:
        """True if the root key was imported here."""
        return self._folder.exists(_blob(IMPORTED_BLOB))

    @property
    def has_root_backup(self) -> bool:
        """True if the root key was exported from here, or imported here."""
        return self.has_root_from_backup or self._folder.exists(_blob(EXPORTED_BLOB))

    def is_alone(self, present: Membership) -> bool:
        """Return True if this node founded its mesh and nobody ever joined: then nothing is lost with it."""
        is_used = any(entry.used for entry in self.load_invites(present.mesh).entries())
        has_others = self.read_blob(BOOK_BLOB) or self.has_root_from_backup
        return present.is_founder and not is_used and not has_others

    def _refuse_member(self, what: str) -> None:
        membership = self.load_membership()
        if membership is not None:
            raise UserError(
                f"this node is in mesh `{membership.mesh.short}` and cannot {what}",
                hint="run `meshd leave` first, or use another MESHD_HOME",
            )

    # -- whom it invited, who is banned

    def load_invites(self, mesh: MeshId) -> InviteBook:
        """Return this node's invites of `mesh`; an empty book when there are none."""
        data = self._folder.read(_INVITES, limit=MAX_INVITE_BOOK_BYTES)
        book = self._decode(_INVITES, InviteBook.decode, data) if data is not None else None
        return book if book is not None and book.mesh == mesh else InviteBook(mesh)

    def save_invites(self, book: InviteBook) -> None:
        """Write the invites; they are durable when it returns. Call it between `reserve` and `certify`, and
        before replying.
        """
        self._folder.write(_INVITES, book.encode())

    def load_revocations(self, mesh: MeshId) -> RevocationSet:
        """Return the bans known of `mesh`; an empty set when there are none."""
        data = self._folder.read(_BANS, limit=MAX_SET_BYTES)
        bans = self._decode(_BANS, RevocationSet.decode, data) if data is not None else None
        return bans if bans is not None and bans.mesh == mesh else RevocationSet(mesh)

    def save_revocations(self, revocations: RevocationSet) -> None:
        """Store the bans, before anything else is done about a new one."""
        self._folder.write(_BANS, revocations.encode())

    def keep_revocations(self, revocations: RevocationSet) -> None:
        """Write the bans, or retry until the disk allows: they are in force meanwhile (`keeping`)."""
        data = revocations.encode()
        self.keeping.keep(_BANS, lambda: self._folder.write(_BANS, data))

    def keep_invites(self, book: InviteBook) -> bool:
        """Write the invites, or retry until the disk allows; True when they are durable already."""
        data = book.encode()
        return self.keeping.keep(_INVITES, lambda: self._folder.write(_INVITES, data))

    # -- what other packages keep

    def read_blob(self, name: str) -> bytes | None:
        """Return what `write_blob` stored under `name` (a-z, 0-9, -), None when nothing."""
        return self._folder.read(_blob(name), limit=MAX_BLOB_BYTES)

    def write_blob(self, name: str, data: bytes) -> None:
        """Store at most 16 MiB under `name`, atomically."""
        if len(data) > MAX_BLOB_BYTES:
            raise LocalProtocolError(f"blob `{name}` of {len(data)} bytes")
        self._folder.write(_blob(name), data)

    def keep_blob(self, name: str, data: bytes) -> bool:
        """Write the data, or retry until the disk allows; True when it is durable already."""
        return self.keeping.keep(_blob(name), lambda: self.write_blob(name, data))

    def _parse(self, name: str, data: bytes, read: Callable[[Fields], T]) -> T:
        return self._decode(name, lambda raw: read(unpack(raw)), data)

    def _decode(self, name: str, decode: Callable[[bytes], T], data: bytes) -> T:
        try:
            return decode(data)
        except RemoteProtocolError as error:
            raise damaged(self.path / name, error.what) from None


def _founder(seed: bytes, node: PeerId, *, now: int, serial: bytes) -> Membership:
    root = KeyPair.from_seed(seed)
    mesh = MeshId.of(root.peer)
    leaf = issue(signer=root, mesh=mesh, node=node, roles=ALL_ROLES, serial=serial, invite=b"", issued_at=now)
    return Membership(mesh, Chain((leaf,), root.peer), root_seed=seed)


def _read_membership(fields: Fields) -> Membership:
    inviter = fields.raw("inviter", most=KEY_BYTES)
    seed = fields.raw("root", most=KEY_BYTES)
    found = Membership(
        mesh=MeshId(fields.raw("mesh", exact=KEY_BYTES)),
        chain=Chain.decode(fields.raw("chain", most=MAX_CHAIN_BYTES)),
        inviter=PeerId(fields.raw("inviter", exact=KEY_BYTES)) if inviter else None,
        root_seed=fields.raw("root", exact=KEY_BYTES) if seed else None,
    )
    if found.root_seed is not None and KeyPair.from_seed(found.root_seed).peer != found.root:
        raise RemoteProtocolError("its root key is of another mesh", code="message")
    return found


def _blob(name: str) -> str:
    if not _BLOB_NAME.fullmatch(name):
        raise LocalProtocolError(f"blob name `{name}`")
    return f"{name}.blob"
