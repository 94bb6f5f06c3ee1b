"""Who is let in, and who is not: through the real command line, real links and real loopback ports."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from meshd.admin.socket_path import find_socket
from meshd.admin.status import Status
from meshd.base.errors import Refused
from meshd.fleet.fleet import LocalNode
from meshd.peer.interface import Stream
from meshd.wire.lease import LEASE_ID_BYTES, LEASE_SERVICE, RPC_SERVICE
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.alone import alone
from tests.e2e.bare_node import bare_node, connected, disconnected
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, child_pid, cli, has_logged, log_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

BAN_SECONDS = 30.0  # once a minute nodes compare what they know: the ban must be told before
NOBODY = 65534


async def _invite(node: LocalNode, *options: str) -> str:
    done = await cli(node.spec.home, "invite", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def _join(home: Path, token: str) -> "subprocess.CompletedProcess[str]":
    """A worker that is expected to be turned away."""
    return await cli(home, "worker", "--listen", "127.0.0.1:0", MESHD_JOIN=token)


def _refused(done: "subprocess.CompletedProcess[str]", token: str, *words: str) -> None:
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert "hint: " in done.stderr
    assert token not in done.stderr, "a token is a secret"
    for word in words:
        assert word in done.stderr, done.stderr


async def _silent(_stream: Stream) -> None:
    """A service that nobody gets to."""


def test_a_token_is_good_for_what_it_says_and_no_more(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            founder = await fleet.worker("founder")
            await founder.token()
            once = await _invite(founder)
            async with bare_node(tmp_path / "first", token=once) as member:
                await connected(member, "founder")
            _refused(await _join(tmp_path / "second", once), once, "used", "meshd invite")
            # a member needs no token and none of its uses
            async with bare_node(tmp_path / "first", token=once) as member:
                await connected(member, "founder")

            made = json.loads(await _invite(founder, "--json", "--uses", "5"))
            assert (await cli(founder.spec.home, "invite", "revoke", made["id"])).returncode == 0
            _refused(await _join(tmp_path / "third", made["token"]), made["token"], "revoked")

            typo = once[:40] + ("a" if once[40] != "a" else "b") + once[41:]
            _refused(await _join(tmp_path / "fourth", typo), typo, "invite")

    play(check())


def test_a_member_without_use_gets_neither_lease_nor_rpc(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.worker("worker", model=smollm2())
            await worker.token()
            lends_only = await _invite(worker, "--role", "work")
            uses = await _invite(worker, "--role", "use")
            for token, name in ((lends_only, "lends"), (uses, "uses")):
                async with bare_node(tmp_path / name, token=token, name=name) as member:
                    peer = await connected(member, "worker")
                    stream = member.mesh.open_stream(
                        peer, RPC_SERVICE, metadata={"lease": bytes(LEASE_ID_BYTES)}
                    )
                    with pytest.raises(Refused, match="use" if name == "lends" else "lease"):
                        await stream.accepted()
                    stream = member.mesh.open_stream(peer, LEASE_SERVICE, metadata={})
                    if name == "lends":
                        with pytest.raises(Refused, match="use"):
                            await stream.accepted()
                    else:
                        await stream.accepted()
            assert (await worker.status()).children == ()

    play(check())


def test_a_banned_member_is_out_within_seconds_and_stays_out(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            founder = await fleet.worker("founder")
            token = await founder.token()
            witness = await fleet.worker("witness", token=token)
            for name, why in (("founder", "is this node itself"), ("nobody", "no node `nobody` is known")):
                done = await cli(founder.spec.home, "revoke", name)
                assert (done.returncode, done.stdout) == (1, "")
                assert why in done.stderr
            async with bare_node(tmp_path / "bad", token=token, name="bad") as member:
                peers = [await connected(member, name) for name in ("founder", "witness")]
                done = await cli(founder.spec.home, "revoke", "bad")
                assert done.returncode == 0, done.stderr
                async with asyncio.timeout(BAN_SECONDS):
                    for peer in peers:
                        await disconnected(member, peer)
                for node in (founder, witness):
                    status = await node.until(lambda s: all(p.name != "bad" for p in s.peers))
                    assert status.mesh is not None
                    assert status.mesh.members == 2
            again = await fleet.start(fleet.spec("bad", "worker"))
            await again.until(
                lambda s: len(s.peers) == 2 and all("banned" in peer.last_error for peer in s.peers)
            )
            [told] = [w for w in (await again.status()).warnings if w.code == "banned"]
            assert "new-identity" in told.hint
            for node in (founder, witness):
                assert not [p for p in (await node.status()).peers if p.name == "bad"]
            await has_logged(again, "new key")

    play(check())


def test_a_node_that_leaves_is_gone_everywhere_and_may_come_back(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            founder = await fleet.worker("founder")
            token = await founder.token()
            witness = await fleet.worker("witness", token=token)
            leaver = await fleet.worker("leaver", token=token)
            for node in (founder, witness):
                await node.until(
                    lambda s: any(p.name == "leaver" and p.state == "connected" for p in s.peers)
                )
            done = await cli(leaver.spec.home, "leave")
            assert (done.returncode, done.stdout) == (0, "left the mesh, and stopped the node\n")
            for node in (founder, witness):
                status = await node.until(lambda s: all(p.name != "leaver" for p in s.peers))
                assert status.mesh is not None
                assert status.mesh.members == 2
            for node in (founder, witness):
                assert token not in log_of(node), "a token is a secret"
            after = log_of(leaver).partition(" stopping ")[2]
            assert "link_up" not in after and "peer_left" not in after
            left = {path.name for path in leaver.spec.home.iterdir() if path.is_file()}
            assert left <= {"identity.key", "counters", "lock", "mesh-port.blob", "name.blob", "node.log"}
            again = await cli(leaver.spec.home, "leave")
            assert again.returncode == 1
            assert "this node is not in a mesh" in again.stderr
            fleet.forget(leaver)
            await fleet.worker("leaver", token=token)
            for node in (founder, witness):
                await node.until(
                    lambda s: any(p.name == "leaver" and p.state == "connected" for p in s.peers)
                )

    play(check())


def test_a_member_gets_the_role_to_invite_by_joining_again(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            founder = await fleet.worker("founder")

            async def start(token: str) -> LocalNode:
                return await fleet.start(fleet.spec("member", "client", "--port", "0", token=token))

            member = await start(await founder.token())
            before = await member.until(lambda s: any(p.state == "connected" for p in s.peers))
            assert before.mesh is not None and before.mesh.roles == ("use", "work")
            refused = await cli(member.spec.home, "invite", "--browser", "phone")
            assert refused.returncode == 1
            command = "meshd invite --role invite --role use --role work"
            assert command in refused.stderr and "meshd leave" in refused.stderr
            _, _, *options = command.split()
            token = await _invite(founder, *options)
            assert (await cli(member.spec.home, "leave")).returncode == 0
            fleet.forget(member)
            again = await start(token)
            after = await again.until(lambda s: any(p.state == "connected" for p in s.peers))
            assert after.node.id == before.node.id
            assert after.mesh is not None and after.mesh.roles == ("invite", "use", "work")
            assert await _invite(again, "--browser", "phone")

    play(check())


def test_a_copied_home_is_refused_while_the_first_answers(tmp_path: Path) -> None:
    reference = alone(smollm2(), 8)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, [worker] = await fleet.workers(smollm2())
            status = await fleet.ready(await fleet.head(smollm2(), *SAME_THREADS, token=token))
            shutil.copytree(
                worker.spec.home, tmp_path / "copy", ignore=shutil.ignore_patterns("run", "*.sock")
            )
            copy = await fleet.start(fleet.spec("copy", "worker", home="copy"))

            def refused(seen: Status) -> bool:
                return any("identity is in use" in peer.last_error for peer in seen.peers)

            warnings = (await copy.until(refused)).warnings
            [told] = [warning for warning in warnings if warning.code == "identity_copied"]
            assert "in use at" in told.what and "meshd leave --new-identity" in told.hint
            assert await api_of(status).complete(PROMPT, 8) == reference
            await has_logged(copy, "identity is in use")
            await has_logged(copy, "leave --new-identity")

    play(check())


# one that another user may run, too
_PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
_PROBE = """
import socket, sys
place = sys.argv[1]
probe = socket.socket(socket.AF_UNIX if place.startswith("/") else socket.AF_INET)
probe.settimeout(60)
try:
    probe.connect(place if place.startswith("/") else ("127.0.0.1", int(place)))
except PermissionError:
    sys.exit(4)
with probe:
    probe.sendall(bytes.fromhex(sys.argv[2]))
    try:
        answer = probe.recv(4096)
    except (TimeoutError, ConnectionError):
        answer = b""
sys.exit(3 if answer else 0)
"""


async def _probe(place: int | Path, data: bytes, *, user: int | None) -> int:
    """`user` says `data` at a loopback port or a socket; 3 if anything was answered, 4 if it may not come."""
    argv = [_PYTHON, "-c", _PROBE, str(place), data.hex()]
    done = await asyncio.to_thread(subprocess.run, argv, user=user, check=False, cwd="/", timeout=180)
    return done.returncode


def _listening_ports(pid: int) -> set[int]:
    """Return the TCP ports that this process listens on (proc_net_tcp)."""
    inodes = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        int(fields[1].rpartition(":")[2], 16)
        for fields in lines
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes
    }


def _sockets_of(node: LocalNode) -> list[Path]:
    """Return the sockets of the hops between its daemon and its children."""
    return list(find_socket(node.spec.home).parent.glob("rpc*.sock"))


def test_another_local_user_gets_no_word_at_any_port_or_socket(tmp_path: Path) -> None:
    """There is none but the API's: children inherit their ends of socketpairs."""
    reference = alone(smollm2(), 8)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, [worker] = await fleet.workers(smollm2())
            head = await fleet.head(smollm2(), *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            api_port = int(api_of(status).url.rpartition(":")[2])
            question = b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n"
            other = NOBODY if os.geteuid() == 0 else None
            assert await _probe(api_port, question, user=other) == 3, "the probe hears nothing at all"
            shown = await worker.status()
            assert head.pid is not None and worker.pid is not None
            ports = {int(place.rpartition(":")[2]) for place in (*status.node.listen, *shown.node.listen)}
            heard = [_listening_ports(pid) for pid in (head.pid, worker.pid, child_pid(shown, CHILD_NAME))]
            assert set().union(*heard) == {*ports, api_port}, "what is between them has no port"
            [tunnel] = status.tunnels
            assert tunnel.listen == "socketpair"
            assert [*_sockets_of(head), *_sockets_of(worker)] == []
            assert await api_of(status).complete(PROMPT, 8) == reference

    play(check())
