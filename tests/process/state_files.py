"""Every file in the home of a daemon: how it comes to be written, and what a disk that takes nothing does.

`python -m tests.process.state_files` prints the list of docs/disk.md; a test compares the two.
"""

import asyncio
import errno
import io
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from unittest import mock

from meshd.admin.authority import save_addresses
from meshd.base import log
from meshd.base.errors import UserError
from meshd.config.forms import HostPort
from meshd.config.load import keep_name
from meshd.daemon.control import make_tunnels
from meshd.daemon.member_node import MemberNode
from meshd.daemon.mesh_port import open_listener
from meshd.daemon.network_state import portmap_secret
from meshd.gateway.turns import AnswerLog, LoggedAnswer
from meshd.identity.folder import PrivateFolder
from meshd.identity.invite_book import InviteEntry
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.keystore import Home
from meshd.link.tcp.links import TcpListener
from meshd.peer import local_member
from meshd.peer.local_member import Numbering
from meshd.process.interface import ChildSpec
from meshd.process.run import Run
from meshd.rendezvous.book import KeptBook
from meshd.wire.address import Candidate
from meshd.wire.hello import NotAdmitted, Welcome

from tests.e2e.bare_node import bare_node
from tests.process.failing_disk import ERRNOS, STAGES, FailingDisk, failing, one_file

LATER = "kept in memory, written later"
REFUSED = "`meshd invite` and joining nodes are refused until it can be written"
NO_START = "the start fails, exit code 1"
WITHOUT = "not written"
LOST = "lines lost and counted"


def new_key() -> KeyPair:
    return KeyPair.from_seed(random.randbytes(32))


def new_peer() -> PeerId:
    return new_key().peer


@dataclass(frozen=True, slots=True)
class Scene:
    """A node in `folder`, without its tasks: nothing is written but by the case itself."""

    member: MemberNode
    home: Home

    @classmethod
    def made(cls, member: MemberNode, home: Home) -> "Scene":
        """With an invite that many may use, and something in each file."""
        scene = cls(member, home)
        _invite(scene, uses=100)
        _expose(scene)
        (home.path / "logs").mkdir(mode=0o700, exist_ok=True)
        for name in ("meshd.log", "child.log", "answers.jsonl"):
            (home.path / "logs" / name).write_text("x" * 100 + "\n")
        return scene

    @property
    def folder(self) -> Path:
        return self.home.path

    def content(self, name: str) -> bytes | None:
        path = self.folder / name
        return path.read_bytes() if path.exists() else None


@dataclass(frozen=True, slots=True)
class Case:
    """One file of the home, by its name there."""

    name: str
    what: str
    result: str
    change: Callable[[Scene], object] | None = None  # writes it with other content than before


def _change_book(scene: Scene) -> None:
    member = scene.member
    kept = KeptBook(scene.home, me=new_peer(), mesh=member.membership.mesh, bans=member.bans)
    kept.book.hint(new_peer(), (Candidate("192.0.2.1", random.randint(1, 60000)),))
    kept.write()


def _ban(scene: Scene) -> None:
    scene.member.authority.revoke_node(new_peer(), now=1)


def _ban_by_name(scene: Scene) -> None:
    scene.member.authority.revoke_node(new_peer(), now=1, name=f"n{random.randint(1, 1 << 30)}-1")


def _say_addresses(scene: Scene) -> None:
    save_addresses(scene.home, (Candidate("192.0.2.1", random.randint(1, 60000)),))


def _number_records(scene: Scene) -> None:
    counters = scene.home.counters
    with mock.patch.object(local_member, "BLOCK", 4):  # so that few records use up what is reserved
        numbering = Numbering(counters.reserve_sequences, last=counters.last_sequence(), now=0)
        numbers = [numbering.take() for _ in range(5)]
    assert all(numbers[:4])
    if scene.home.keeping.waiting:
        assert numbers[4] is None, "a number that is not reserved was used"
    else:
        assert numbers[4] is not None and numbers[4] <= counters.last_sequence()


def _expose(scene: Scene) -> None:
    tunnels = make_tunnels(scene.member.mesh, scene.home)
    tunnels.expose(f"s{random.randint(1, 1 << 30)}", host="127.0.0.1", port=1, peers=[new_peer()])


def _take_port(scene: Scene) -> None:
    def make(host: str, port: int) -> TcpListener:
        return TcpListener(scene.member.handshake, host=host, port=port)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with closing(open_listener(make, asked=HostPort("127.0.0.1", port), home=scene.home)):
        pass


def _give_name(scene: Scene) -> None:
    keep_name(scene.home, f"n{random.randint(1, 1 << 30)}-1")


def _make_secret(scene: Scene) -> None:
    (scene.folder / "portmap.blob").unlink()
    portmap_secret(scene.home)


CASES = (
    Case("book.blob", "the members and their addresses", LATER, _change_book),
    Case("revocations", "bans", LATER, _ban),
    Case("banned-names.blob", "names of nodes banned here", LATER, _ban_by_name),
    Case("addresses.blob", "this node's addresses", LATER, _say_addresses),
    Case("counters", "counts of starts and records", LATER, _number_records),
    Case("tunnels.blob", "services and tunnels", LATER, _expose),
    Case("mesh-port.blob", "the mesh port", LATER, _take_port),
    Case("name.blob", "the node's name", LATER, _give_name),
    Case("portmap.blob", "the secret of port mappings", LATER, _make_secret),
    Case("invites", "invites and who joined with them", REFUSED),
    Case("identity.key", "the node's key, written at the first start", NO_START),
    Case("membership", "the membership, written at the first start", NO_START),
    Case("lock", "the daemon that uses the directory", f"opened: {NO_START}; written: {WITHOUT}"),
    Case("logs/meshd.log", "the log", LOST),
    Case("logs/child.log", "a child process's output", LOST),
    Case("logs/child.pid", "a child process's id", WITHOUT),
    Case("logs/answers.jsonl", "the log of requests", LOST),
)


async def outcome(case: Case, scene: Scene, number: int, stage: str) -> str | None:
    """Return what the node does when this stage of this file fails; None: there is no such stage."""
    name = case.name.rpartition("/")[2]
    with failing(one_file(name), number, stage) as disk:
        before = scene.content(case.name)
        play = _PLAYS.get(case.name, _play_kept)
        result = await play(case, scene, disk)
        if not disk.hits:
            return None
        now = scene.content(case.name)
        gone = now is None and case.change is _make_secret  # which removes it first
        whole = before is None or now == before or stage == "sync" or case.result == LOST or gone
        assert whole, f"{case.name}, {stage}: neither the old content nor the new"
    await _AFTERWARDS.get(case.name, _written_later)(case, scene, before)
    return result


async def _play_kept(case: Case, scene: Scene, disk: FailingDisk) -> str:
    assert case.change is not None
    case.change(scene)
    return LATER if case.name in scene.home.keeping.waiting else "written"


async def _written_later(case: Case, scene: Scene, before: bytes | None) -> None:
    if case.change is None:
        return
    assert scene.home.keeping.retry()
    assert not scene.home.keeping.waiting
    assert scene.content(case.name) != before, case.name
    PrivateFolder(scene.folder, mark="").read(case.name, limit=1 << 24)  # whole: its checksum holds


async def _play_join(_case: Case, scene: Scene, disk: FailingDisk) -> str:
    member, joiner = scene.member, new_key().peer
    entry = _open_invite(scene)
    answer = member.inviter.decide(joiner, entry.invite_id)
    if not disk.hits:
        return "written"
    assert isinstance(answer, NotAdmitted) and answer.code == "disk"
    count = len(member.invites.entries())
    try:
        _invite(scene)
    except UserError as error:
        assert "invites" in error.what
    else:
        raise AssertionError("a token was given that a restart forgets")
    assert len(member.invites.entries()) == count
    return REFUSED


def _invite(scene: Scene, uses: int = 1) -> None:
    scene.member.authority.invite(
        now=int(time.time()),
        expires_s=600,
        uses=uses,
        roles=("use",),
        secret=random.randbytes(16),
        candidates=(),
    )


def _open_invite(scene: Scene) -> InviteEntry:
    return next(entry for entry in scene.member.invites.entries() if entry.left)


async def _invites_later(_case: Case, scene: Scene, _before: bytes | None) -> None:
    member = scene.member
    assert scene.home.keeping.retry()
    entry = _open_invite(scene)
    reserved = entry.used[-1].node if entry.used else new_peer()
    assert isinstance(member.inviter.decide(reserved, entry.invite_id), Welcome)
    kept = scene.home.load_invites(member.membership.mesh).get(entry.invite_id)
    assert kept is not None and kept.used[-1].certificate is not None


async def _play_first_start(case: Case, scene: Scene, disk: FailingDisk) -> str:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home")
        try:
            home.load_or_create_identity()
            home.found_mesh(now=1)
        except UserError as error:
            assert case.name in error.what and error.hint
            return NO_START
    return "written"


async def _play_lock(_case: Case, scene: Scene, disk: FailingDisk) -> str:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home")
        try:
            with home.lock(daemon=True):
                return WITHOUT
        except UserError as error:
            assert "lock" in error.what and error.hint
            return NO_START


async def _play_log(case: Case, scene: Scene, disk: FailingDisk) -> str:
    path = scene.folder / case.name
    with mock.patch.object(log, "MAX_LOG_BYTES", 50):  # so that each line begins another file
        log.set_up(level="info", stream=io.StringIO(), file=path)
    try:
        for _ in range(3):
            log.get("test").info("stopping", why="a line")
        told = log.unwritten()
        return LOST if told == {str(path): os.strerror(disk.number).lower()} else f"written {told}"
    finally:
        log.set_up(level="warning")


async def _log_later(case: Case, scene: Scene, _before: bytes | None) -> None:
    path = scene.folder / case.name
    log.set_up(level="info", stream=io.StringIO(), file=path)
    log.get("test").info("stopping", why="the last line")
    log.set_up(level="warning")
    lines = path.read_text().splitlines()
    assert "the last line" in lines[-1]
    assert all(line.startswith(("2", "x")) for line in lines), "half a line was left"


async def _play_child(case: Case, scene: Scene, disk: FailingDisk) -> str:
    spec = ChildSpec(name="child", argv=("/bin/echo", "a line"), log=scene.folder / "logs" / "child.log")
    told, before = io.StringIO(), scene.content(case.name)
    log.set_up(level="warning", stream=told)
    try:
        async with Run(spec) as run:
            assert await run.exited() == 0
    finally:
        log.set_up(level="warning")
    if (scene.content(case.name) or None) != before:
        return "written"
    if case.name.endswith(".log"):
        return LOST if "child_log_lost" in told.getvalue() else "lost, and nobody is told"
    return WITHOUT


async def _play_answers(case: Case, scene: Scene, disk: FailingDisk) -> str:
    told = io.StringIO()
    log.set_up(level="warning", stream=told)
    answers = AnswerLog(scene.folder / case.name, most=50)  # so that each line begins another file
    try:
        for _ in range(3):
            answers.write(LoggedAnswer("2026-11-23", "anna", "tiny", "/completion", 1, 0, 1, 0.0, 0.1, 200))
    finally:
        log.set_up(level="warning")
        answers.close()
    return LOST if "answer_log_lost" in told.getvalue() else "written"


_PLAYS = {
    "invites": _play_join,
    "identity.key": _play_first_start,
    "membership": _play_first_start,
    "lock": _play_lock,
    "logs/meshd.log": _play_log,
    "logs/child.log": _play_child,
    "logs/child.pid": _play_child,
    "logs/answers.jsonl": _play_answers,
}
_AFTERWARDS = {"invites": _invites_later, "logs/meshd.log": _log_later}


async def result(case: Case, scene: Scene, number: int) -> str:
    """Return what became of a file with this errno, at all stages that it has."""
    found: dict[str, list[str]] = {}
    for stage in STAGES:
        became = await outcome(case, scene, number, stage)
        if became is not None:
            found.setdefault(became, []).append(stage)
    stages = [stage for these in found.values() for stage in these]
    assert {"open", "write"} <= set(stages), f"{case.name}: not every stage was met: {stages}"
    return in_words(found)


def in_words(found: Mapping[str, Sequence[str]]) -> str:
    """Return the results in words, by stages where they differ."""
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{'opened' if 'open' in these else 'written'}: {it}" for it, these in found.items())


class Row(Protocol):
    """A file, or files of one kind."""

    @property
    def name(self) -> str: ...
    @property
    def what(self) -> str: ...


def listing(rows: Sequence[Row], results: Sequence[Sequence[str]]) -> str:
    """Return the list of the docs: the files of each outcome, which names the errnos where they differ."""
    files: dict[str, list[str]] = {}
    for case, cells in zip(rows, results, strict=True):
        by_errno = {errno.errorcode[number]: cell for number, cell in zip(ERRNOS, cells, strict=True)}
        differ = "; ".join(f"{name}: {cell}" for name, cell in by_errno.items())
        became = differ if len(set(cells)) > 1 else cells[0]
        files.setdefault(became, []).append(f"`{case.name}` ({case.what})")
    return "\n".join(f"- **{became}**: {', '.join(these)}" for became, these in files.items())


async def _found(folder: Path) -> list[list[str]]:
    home = Home(folder)
    async with bare_node(home, name="node") as member:
        scene = Scene.made(member, home)
        return [[await result(case, scene, number) for number in ERRNOS] for case in CASES]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.stdout.write(listing(CASES, asyncio.run(_found(Path(place) / "home"))) + "\n")
