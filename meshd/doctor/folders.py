"""Check the home and the cache: who can use them, their disks, and what nodes that were killed left there.

Also the model files that the settings name: that they are there, readable and complete.
"""

import errno
import os
import pwd
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from meshd.admin.socket_path import POINTER_NAME, find_socket, is_short_enough, socket_folder
from meshd.base.errors import UserError
from meshd.base.files import NEW_PREFIX
from meshd.base.units import in_bytes
from meshd.config.tree import Config, Paths
from meshd.doctor.kinds import Finding, Kind
from meshd.identity.folder import DAEMON, DamagedFile, NewerFile, PrivateFolder, lock_holder
from meshd.identity.keystore import IDENTITY, MAX_BLOB_BYTES, STATE_FILES, Home, OtherKey
from meshd.library.facts import problem_of
from meshd.library.interface import NotDownloaded, TransferProgress
from meshd.library.resolve import Given, Resolver
from meshd.library.stores import Stores
from meshd.store.model_file import is_header, shards_of

TRIED_BYTES = 64 << 10  # what a node writes at once is less, mostly
LOW_BYTES = 512 << 20
OLD_SECONDS = 3600.0  # a temporary file of that age belongs to nobody who still writes
OLD_DOWNLOAD_SECONDS = 86400.0
_OTHERS, _OTHERS_WRITE = 0o077, 0o022
_MOUNTS = Path("/proc/self/mountinfo")
_MOST_MOUNTS_BYTES = 1 << 20
# File systems of other machines, and WSL's view of Windows (9p), which is slow and locks as little.
_OF_OTHERS = frozenset(
    {
        *(
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "smbfs",
            "9p",
            "afs",
            "ceph",
            "lustre",
            "beegfs",
            "gpfs",
            "glusterfs",
        ),
        *("fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.glusterfs", "fuse.davfs2", "fuse.ceph"),
    }
)
# Folders of the cache, and how names of files begin or end there that somebody was writing.
_LEFT = (
    ("downloads", "part-" + "[a-z0-9_]" * 8),  # of mkdtemp, in build/fetch.py
    *((folder, f"{NEW_PREFIX}*") for folder in ("", "weights", "tensors", "pieces")),
)


def check_home(paths: Paths, now: float) -> Iterator[Finding]:
    """Check the home's owner and modes, its disk, its files, and its sockets. `now`: Unix seconds."""
    home = paths.home
    try:
        about = home.stat()
    except FileNotFoundError:
        about = None
    except OSError as error:
        yield Kind.HOME_UNWRITABLE.found(path=home, why=_reason(error))
        return
    if about is not None and stat.S_ISDIR(about.st_mode):
        if about.st_uid != os.geteuid():
            yield Kind.HOME_FOREIGN.found(path=home, owner=_user(about.st_uid), user=_user(os.geteuid()))
            return
        mode = stat.S_IMODE(about.st_mode)
        if mode & _OTHERS_WRITE:
            yield Kind.HOME_CHANGEABLE.found(path=home, mode=f"{mode:04o}")
        elif mode & _OTHERS:
            yield Kind.HOME_READABLE.found(path=home, mode=f"{mode:04o}")
    yield from _check_disk(home, Kind.HOME_UNWRITABLE, "MESHD_HOME")
    if about is not None and stat.S_ISDIR(about.st_mode):
        yield from _check_files(home, now)
        yield from _check_sockets(home)


def check_cache(paths: Paths, now: float) -> Iterator[Finding]:
    """Check the cache's modes, its disk, and interrupted downloads. `now`: Unix seconds."""
    cache = paths.cache
    if cache.is_dir() and (mode := stat.S_IMODE(cache.stat().st_mode)) & _writers(cache):
        yield Kind.CACHE_CHANGEABLE.found(path=cache, mode=f"{mode:04o}")
    of_cache = list(_check_disk(cache, Kind.CACHE_UNWRITABLE, "MESHD_CACHE"))
    same_disk = _disk_of(cache) == _disk_of(paths.home)
    low = Kind.DISK_LOW.code
    yield from (found for found in of_cache if not (same_disk and found.code == low))
    place = _nearest(cache)
    if os.statvfs(place).f_flag & getattr(os, "ST_NOEXEC", 0):
        yield Kind.CACHE_NOEXEC.found(path=cache)
    if left := left_downloads(cache, now):
        size = sum(_size_of(path) for path in left)
        yield Kind.DOWNLOADS_LEFT.found(path=cache, size=in_bytes(size))


def _writers(cache: Path) -> int:
    """Return the bits of a mode by which others can write; the user's own group is nobody else."""
    return 0o002 if cache.stat().st_gid == os.getegid() else _OTHERS_WRITE


def _user(uid: int) -> str:
    """Return the name of a user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


# -- disks


def _check_disk(folder: Path, unwritable: Kind, variable: str) -> Iterator[Finding]:
    """Check that a folder, or that in which it would be made, can be written and has room."""
    try:
        place = _nearest(folder)
        _write_some(place)
    except OSError as error:
        if error.errno == errno.ENOSPC and (free := _free_without_inodes(place)):
            yield Kind.INODES_USED_UP.found(path=folder, free=in_bytes(free), variable=variable)
        else:
            yield unwritable.found(path=folder, why=_reason(error))
        return
    free = shutil.disk_usage(place).free
    if unwritable is Kind.HOME_UNWRITABLE:
        yield Kind.HOME.found(path=folder, free=in_bytes(free))
    if free < LOW_BYTES:
        yield Kind.DISK_LOW.found(path=folder, free=in_bytes(free), variable=variable)
    if (kind := _file_system(place)) in _OF_OTHERS:
        yield Kind.NETWORK_DISK.found(path=folder, kind=kind, variable=variable)


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def _nearest(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _disk_of(folder: Path) -> int | None:
    """Return the number of a folder's disk; None if the folder is behind one that this user cannot enter."""
    try:
        return _nearest(folder).stat().st_dev
    except OSError:
        return None


def _write_some(folder: Path) -> None:
    """Write a file and remove it. Raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".meshd-doctor-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(TRIED_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        Path(name).unlink()


def _free_without_inodes(place: Path) -> int:
    """Return the free bytes of a disk on which no file can be made although there is room; else 0."""
    disk = os.statvfs(place)
    free = disk.f_bavail * disk.f_frsize
    return free if disk.f_files and not disk.f_favail and free > TRIED_BYTES else 0


def _file_system(place: Path) -> str:
    """Return the type of the file system that holds this folder; empty if the system does not tell."""
    try:
        with _MOUNTS.open("rb") as file:
            lines = file.read(_MOST_MOUNTS_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    real, best, kind = place.resolve(), -1, ""
    for line in lines:  # proc_pid_mountinfo(5); a later mount hides an earlier one
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = Path(fields[4].replace("\\040", " "))
        if real.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split(" ")[0]
    return kind


# -- files


def _check_files(home: Path, now: float) -> Iterator[Finding]:
    """Check the files that a node reads when it starts, then its membership."""
    folder, faults = PrivateFolder(home, mark=IDENTITY), 0
    for name in (*STATE_FILES, *folder.names(".blob")):
        for found in _check_file(folder, home / name):
            faults += 1
            yield found
    if not faults:
        yield from _check_membership(home)
    if left := left_files(home, now):
        yield Kind.FILES_LEFT.found(path=home, count=len(left))


def _check_file(folder: PrivateFolder, path: Path) -> Iterator[Finding]:
    try:
        about = path.lstat()
    except OSError:
        return
    mode = stat.S_IMODE(about.st_mode)
    if about.st_uid != os.geteuid():
        yield Kind.STATE_FOREIGN.found(path=path, owner=_user(about.st_uid), user=_user(os.geteuid()))
        return
    if stat.S_ISREG(about.st_mode) and mode & _OTHERS:
        yield Kind.STATE_READABLE.found(path=path, mode=f"{mode:04o}")
        return
    try:
        folder.read(path.name, limit=MAX_BLOB_BYTES)
    except NewerFile as error:
        yield Kind.STATE_NEWER.found(why=error.what, remedy=error.hint)
    except UserError as error:
        yield Kind.STATE_DAMAGED.found(why=error.what, remedy=error.hint)


def _check_membership(path: Path) -> Iterator[Finding]:
    home = Home(path)
    try:
        membership = home.load_membership()
        if membership is None:
            return
        bans = home.load_revocations(membership.mesh)
    except OtherKey as error:
        yield Kind.KEYS_DIFFER.found(why=error.what, remedy=error.hint)
    except DamagedFile as error:
        yield Kind.STATE_DAMAGED.found(why=error.what, remedy=error.hint)
    else:
        if bans.why_banned(membership.chain) is not None:
            yield Kind.BANNED.found(mesh=membership.mesh.short)


def left_files(home: Path, now: float) -> list[Path]:
    """Return the temporary files that killed writers left in a home."""
    return [path for path in home.glob(".*.tmp") if _is_old(path, now - OLD_SECONDS)]


def left_downloads(cache: Path, now: float) -> list[Path]:
    """Return the files and folders of downloads that were interrupted and are not continued."""
    found: list[Path] = []
    for folder, pattern in _LEFT:
        with suppress(OSError):  # it cannot be read, which is reported
            found += (cache / folder).glob(pattern)
    return [path for path in found if _is_old(path, now - OLD_DOWNLOAD_SECONDS)]


def _is_old(path: Path, before: float) -> bool:
    try:
        return path.lstat().st_mtime < before
    except OSError:
        return False


def _size_of(path: Path) -> int:
    size = 0
    for file in (path, *path.rglob("*")):
        with suppress(OSError):
            size += file.lstat().st_size
    return size


# -- sockets


def _check_sockets(home: Path) -> Iterator[Finding]:
    if lock_holder(home, purpose=DAEMON) is not None:
        return  # a node runs: services.py asks it
    for path in stale_sockets(home):
        yield Kind.SOCKET_STALE.found(path=path)
    if not is_short_enough(home):
        try:
            folder = socket_folder(home, os.environ)
        except UserError as error:
            yield Kind.SOCKET_PATH.found(why=error.what, remedy=error.hint)
        else:
            with suppress(OSError):  # it was made just now, or a node uses it
                folder.rmdir()


def stale_sockets(home: Path) -> Sequence[Path]:
    """Return the control socket and its pointer, if nobody listens there."""
    path = find_socket(home)
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return ()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(1.0)
            client.connect(os.fspath(path))
    except ConnectionRefusedError:
        return (path,)
    except FileNotFoundError:
        pointer = home / POINTER_NAME
        return (pointer,) if path.parent != home and pointer.exists() else ()
    except OSError:
        pass
    return ()


def check_models(config: Config) -> Iterator[Finding]:
    """Check each model that a head would serve, or a worker lend. Only headers are read."""
    resolver = Resolver(Stores.here(config.paths.cache), _silent)
    served: list[Given] = []
    for serve in config.served:
        named = (serve.model, serve.draft_model, *serve.fallback_models)
        served += [model for model in named if model is not None]
    for model in dict.fromkeys((*served, *config.worker.models)):
        yield from _check_model(model, resolver, is_served=model in served)


def _check_model(given: Given, resolver: Resolver, *, is_served: bool) -> Iterator[Finding]:
    try:
        paths = resolver.local(given).paths
    except NotDownloaded:
        return  # a node downloads it
    except UserError as error:
        yield Kind.MODEL_MISSING.found(why=error.what, remedy=error.hint)
        return
    for path in paths[:1]:
        yield _check_model_file(path, is_served=is_served)


def _check_model_file(path: Path, *, is_served: bool) -> Finding:
    try:
        with shards_of(path, partial=True, header_only=is_header(path)) as shards:
            problem, lacks_parts = problem_of(shards), len(shards) < shards[0].header.shard[1]
    except UserError as error:
        kind = Kind.MODEL_DAMAGED if os.access(path, os.R_OK) else Kind.MODEL_UNREADABLE
        return kind.found(why=error.what, remedy=error.hint)
    if not problem or is_header(path):
        return Kind.MODEL.found(path=path)
    if not is_served:
        return Kind.MODEL_PARTIAL.found(path=path, problem=problem)
    return (Kind.MODEL_PARTS_MISSING if lacks_parts else Kind.MODEL_INCOMPLETE).found(
        path=path, problem=problem
    )


def _silent(_progress: TransferProgress) -> None:
    """Ignore progress: nothing is downloaded here."""
