"""One daemon's life: the checks before it joins, what it prints, and what holds while it runs."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from meshd.admin.api import InviteReply, PauseRequest, TunnelCloseRequest
from meshd.admin.client import ask
from meshd.admin.socket_path import SOCKET_NAME
from meshd.base.errors import UserError
from meshd.base.tasks import Owner, first_error
from meshd.config.forms import HostPort
from meshd.config.serve_settings import ClientConfig, ModelConfig, ServeConfig
from meshd.config.tree import Config, LinksConfig, Paths, WorkerConfig
from meshd.daemon.control import TunnelAnswers
from meshd.daemon.fetching import Fetching
from meshd.daemon.member_node import MemberNode
from meshd.daemon.mesh_port import MeshPort
from meshd.daemon.role_kind import ClaimedRole
from meshd.daemon.roles import ROLES, ClaimedServe, ClaimedWorker
from meshd.daemon.run import Daemon, PlainAnnouncer, preflight, url_in_the_lan, watch_names
from meshd.devices.interface import NativeBuild
from meshd.gateway.interface import GatewayStatus
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.keystore import Home, Membership
from meshd.identity.membership import Chain, Role, issue
from meshd.link.net import local_addresses
from meshd.link.net.local_addresses import InterfaceAddress
from meshd.model.layer_range import LayerRange
from meshd.peer.interface import PeerState, PeerStatus
from meshd.peer.local_member import LocalMember
from meshd.peer.mesh import PeerMesh, find
from meshd.store.hash_cache import HashCache
from meshd.tunnel.interface import TunnelStatus
from meshd.tunnel.user_tunnels import OwnTunnels
from meshd.wire.versions import NativeVersion
from meshd.worker.lending import Worker

from tests.conformance.run import until
from tests.gguf_bytes import gguf, language_model
from tests.sim.loop import run as run_virtual

ME, ONE, OTHER = (KeyPair.from_seed(bytes([number]) * 32).peer for number in (1, 2, 3))
LISTS_DEVICES = f"#!/bin/sh\necho 'device CPU cpu - {4 << 30} {3 << 30} some processor'\n"
NOW = 1_900_000_000


def joined(folder: Path, *roles: Role) -> Home:
    """The home of a member with these roles."""
    home, top = Home(folder), Home(folder / "founder").found_mesh(now=int(time.time()))
    assert top.root_seed is not None
    leaf = issue(
        signer=KeyPair.from_seed(top.root_seed),
        mesh=top.mesh,
        node=home.load_or_create_identity().peer,
        roles=roles,
        serial=b"s" * 16,
        invite=b"i" * 8,
        issued_at=int(time.time()),
    )
    home.save_membership(Membership(top.mesh, Chain((leaf,), top.root), inviter=top.root))
    return home


def config_in(folder: Path) -> Config:
    """Return the configuration of a node that wants a model that is not here."""
    return replace(
        Config(),
        links=LinksConfig(listen=HostPort("127.0.0.1", 0), stun=()),
        client=ClientConfig(port=0),
        worker=WorkerConfig(models=("mesh:far",)),
        paths=Paths(home=folder / "home", cache=folder / "cache"),
    )


def daemon_in(folder: Path, monkeypatch: pytest.MonkeyPatch, role: str, *roles: Role) -> Daemon:
    """Return the daemon of a member with these roles."""

    async def found(_daemon: Daemon) -> NativeBuild:
        return native(folder)

    monkeypatch.setattr(Daemon, "_find_native", found)
    home = joined(folder / "home", *roles)
    return Daemon(config_in(folder), role, home, PlainAnnouncer(print, print, remarks=True))


@pytest.mark.parametrize(
    ("role", "roles", "lacking"), [("worker", (Role.USE,), "work"), ("client", (Role.WORK,), "use")]
)
def test_a_node_that_may_not_have_its_role_fetches_nothing_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, roles: tuple[Role, ...], lacking: str
) -> None:
    async def fetch(_fetching: Fetching) -> Config:
        raise AssertionError("it fetches a model that it will not use")

    monkeypatch.setattr(Fetching, "run", fetch)
    daemon = daemon_in(tmp_path, monkeypatch, role, *roles)
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(asyncio.wait_for(daemon.main(), 20))
    error = first_error(caught.value)
    assert isinstance(error, UserError) and f"its certificate lacks the role `{lacking}`" in error.what


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_pause_holds_while_the_worker_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_paused: bool
) -> None:
    """Its devices are listed once it takes leases, which lasts a moment, with the network up. Until then
    peers are told that it fetches, unless its user has paused it.
    """
    file = model(tmp_path)
    daemon = daemon_in(tmp_path, monkeypatch, "worker", Role.WORK)
    pauses: list[bool] = []
    made: list[LocalMember] = []
    original = LocalMember.__init__

    def make(local: LocalMember, *args: Any, **options: Any) -> None:
        original(local, *args, **options)
        made.append(local)

    async def fetch(fetching: Fetching) -> Config:
        if is_paused:
            while not (home / SOCKET_NAME).exists():  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            await asyncio.to_thread(ask, home, PauseRequest())
        assert [(one.record.is_paused, one.record.is_fetching) for one in made] == [(True, not is_paused)]
        return replace(config_in(tmp_path), worker=WorkerConfig(models=(file,)))

    async def prepare(worker: Worker) -> None:
        pauses.append(worker.pause.is_on)
        os.kill(os.getpid(), signal.SIGTERM)

    home = tmp_path / "home"
    monkeypatch.setattr(LocalMember, "__init__", make)
    monkeypatch.setattr(Fetching, "run", fetch)
    monkeypatch.setattr(Worker, "prepare", prepare)
    assert asyncio.run(asyncio.wait_for(daemon.main(), 20)) == 0
    assert pauses == [is_paused]


def status(peer: PeerId, name: str) -> PeerStatus:
    return PeerStatus(
        peer=peer,
        name=name,
        role="worker",
        state=PeerState.CONNECTED,
        paths=(),
        native=None,
        software="",
        resumes=0,
        since=0.0,
        last_error="",
        clock_offset=None,
    )


@dataclass
class FakeMesh:
    """Peers by name; `changes` is how often they were others."""

    called: dict[PeerId, str] = field(default_factory=dict)
    changes: int = 0
    looked: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def peers(self) -> list[PeerStatus]:
        self.looked += 1
        return [status(peer, name) for peer, name in self.called.items()]

    async def changed(self, seen: int) -> int:
        while self.changes <= seen:
            self.moved.clear()
            await self.moved.wait()
        return self.changes

    async def change(self, **names: str) -> None:
        """Rename, and wait until it was looked at."""
        self.called = {ONE: names["one"], OTHER: names["other"]}
        self.changes += 1
        self.moved.set()
        before = self.looked
        await until(lambda: self.looked > before, seconds=20)

    def find(self, text: str, also: Sequence[PeerId] = ()) -> PeerId:
        return find(text, me=ME, names=dict.fromkeys(also, "") | self.called | {ME: "desk"})


@pytest.mark.virtual
async def test_nodes_of_one_name_are_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("meshd.daemon.run._LOOK_SECONDS", 0.0)
    mesh = FakeMesh()
    async with Owner() as owner:
        owner.start(watch_names(cast(PeerMesh, mesh), ME, "desk"), name="names")
        await mesh.change(one="garage", other="attic")
        assert "name_shared" not in capsys.readouterr().err
        await mesh.change(one="garage", other="desk")
        await mesh.change(one="cellar", other="desk")
        said = capsys.readouterr().err
        assert said.count("name_shared") == 1
        assert all(word in said for word in ("`desk`", ME.short, OTHER.short))
        await mesh.change(one="desk", other="desk")  # another set
        await mesh.change(one="desk", other="desk")
        assert "3 nodes are called" in capsys.readouterr().err
        owner.cancel()


@dataclass
class FakeTunnels:
    """Tunnels that are open."""

    to: list[tuple[PeerId, str]]

    def opened(self) -> list[TunnelStatus]:
        return [
            TunnelStatus(
                peer=peer,
                service=service,
                listen=f"127.0.0.1:{4000 + at}",
                streams=0,
                sent_bytes=0,
                received_bytes=0,
                user=True,
            )
            for at, (peer, service) in enumerate(self.to)
        ]

    def exposed(self) -> list[object]:
        return []

    async def close(self, tunnels: Sequence[TunnelStatus]) -> None:
        for one in tunnels:
            self.to.remove((one.peer, one.service))


@pytest.mark.virtual
async def test_a_tunnel_is_closed_by_a_name_that_only_one_tunnel_fits() -> None:
    mesh = FakeMesh({ONE: "vm", OTHER: "vm"})
    tunnels = FakeTunnels([(ONE, "web"), (OTHER, "db"), (ONE, "db")])
    answers = TunnelAnswers(cast(PeerMesh, mesh), cast(OwnTunnels, tunnels))
    closed = await answers.close_tunnels(TunnelCloseRequest(peer="vm", service="web"))
    assert [view.peer for view in closed.tunnels] == [str(ONE)]
    with pytest.raises(UserError, match="`vm` matches 2 nodes"):
        await answers.close_tunnels(TunnelCloseRequest(peer="vm", service="db"))
    await answers.close_tunnels(TunnelCloseRequest(peer=OTHER.short, service="db"))
    assert tunnels.to == [(ONE, "db")]


def native(folder: Path) -> NativeBuild:
    program = folder / "mesh-server"
    program.write_text(LISTS_DEVICES)
    program.chmod(0o755)
    return NativeBuild(program, program, program, NativeVersion("mesh 4", "pin", "sources", "cpu"), "7.0.0")


def model(folder: Path) -> Path:
    file = folder / "model.gguf"
    file.write_bytes(gguf(*language_model()))
    return file


def config_for(folder: Path, **serve: object) -> Config:
    return replace(
        Config(),
        links=LinksConfig(listen=HostPort("127.0.0.1", 0)),
        serve=replace(ServeConfig(model=model(folder), port=0), **serve),  # type: ignore[arg-type]
        paths=Paths(home=folder / "home", cache=folder / "cache"),
    )


Claimed = tuple[ClaimedRole, MeshPort, ExitStack]


def claim(folder: Path, config: Config, role: str = "serve", build: NativeBuild | None = None) -> Claimed:
    """Run the checks; the stack closes what they opened."""
    home, hashes = Home(folder / "home"), HashCache(folder / "cache/weights")
    with ExitStack() as held:
        checking = preflight(ROLES[role], config, build or native(folder), home, hashes, held)
        return *asyncio.run(checking), held.pop_all()


def test_ports_are_bound_before_anything_else_and_given_back(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208
    role, mesh_port, held = claim(tmp_path, config_for(tmp_path))
    assert isinstance(role, ClaimedServe)
    ports = role.api.port, mesh_port.listener.port
    for port in ports:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
    held.close()
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"devices": ("CUDA7",)}, "no device `CUDA7`"),
        ({"api_key_file": Path("/dev/null")}, "key file"),
        ({"allowed_origins": ("nonsense",)}, "is not an origin"),
        ({"allowed_hosts": ("http://x/",)}, "is not a host name"),
    ],
)
def test_faults_of_this_machine_come_first(tmp_path: Path, change: dict[str, object], what: str) -> None:
    with pytest.raises(UserError, match=what):
        claim(tmp_path, config_for(tmp_path, **change))
    assert Home(tmp_path / "home").load_membership() is None


@pytest.mark.parametrize("role", ["worker", "serve"])
def test_what_is_no_relay_comes_first(tmp_path: Path, role: str) -> None:
    config = replace(config_for(tmp_path), links=LinksConfig(relays=("foo",)))
    with pytest.raises(UserError, match="`foo` is not a relay URL"):
        claim(tmp_path, config, role)
    assert Home(tmp_path / "home").load_membership() is None


def test_taken_ports_come_first(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port `{port}` .* is taken"):
            claim(tmp_path, config_for(tmp_path, port=port))
        taken = replace(config_for(tmp_path), links=LinksConfig(listen=HostPort("127.0.0.1", port)))
        with pytest.raises(UserError, match=f"port `{port}` .* is taken"):
            claim(tmp_path, taken)


def test_a_worker_takes_no_api_port(tmp_path: Path) -> None:
    config = replace(config_for(tmp_path), worker=WorkerConfig(models=(model(tmp_path),), devices=("CPU",)))
    role, _, held = claim(tmp_path, config, "worker")
    assert isinstance(role, ClaimedWorker)
    assert [file.name for file in role.files] == ["model.gguf"]
    held.close()
    with pytest.raises(UserError, match="no device `CUDA0`"):
        claim(tmp_path, replace(config, worker=WorkerConfig(devices=("CUDA0",))), "worker")


def test_an_option_after_the_dashes_that_is_meshds_own_is_found(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--model") as caught:
        claim(tmp_path, config_for(tmp_path, llama_args=("--model", "other.gguf")))
    assert "--model" in caught.value.hint


LLAMA_SERVER = """#!/bin/sh
case "$*" in
  *--nosuchopt*) echo 'error: invalid argument: --nosuchopt' >&2; exit 1;;
  *) echo 'version: 1'; echo "$@" >> {asked};;
esac
"""


def test_an_option_that_llama_server_refuses_is_found_before_the_start(tmp_path: Path) -> None:
    build, asked = native(tmp_path), tmp_path / "asked"
    server = tmp_path / "llama-server"
    server.write_text(LLAMA_SERVER.format(asked=asked))
    server.chmod(0o755)
    build = replace(build, llama_server=server)

    def make(*args: str) -> None:
        claim(tmp_path, config_for(tmp_path, llama_args=args), build=build)[-1].close()

    make()
    make("-ot", "blk=MESH0", "--nosuchopt")  # a worker's device, which this run could not know
    assert not asked.exists()
    make("--embeddings")
    assert asked.read_text() == "--embeddings --version\n"
    with pytest.raises(UserError, match="refuses its options: invalid argument: --nosuchopt") as caught:
        make("--embeddings", "--nosuchopt")
    assert caught.value.hint == "check the arguments after `--`: `--embeddings --nosuchopt`"
    assert Home(tmp_path / "home").load_membership() is None


def test_a_fallback_model_that_is_not_smaller_is_refused(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    assert isinstance(config.serve.model, Path)
    same = config.serve.model.with_name("same.gguf")
    same.write_bytes(config.serve.model.read_bytes())
    with pytest.raises(UserError, match=r"`same\.gguf` is not smaller than `model\.gguf`") as caught:
        claim(tmp_path, config_for(tmp_path, fallback_models=(same,)))
    assert "fallback_models" in caught.value.hint


def several(folder: Path, **second: object) -> Config:
    """A node that serves two models."""
    config = config_for(folder)
    other = replace(config.serve, **second)  # type: ignore[arg-type]
    models = (ModelConfig(name="a", serve=config.serve), ModelConfig(name="b", serve=other))
    return replace(config, serve=replace(config.serve, model=None), models=models)


def test_the_files_of_several_models_are_opened_before_the_start(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208
    role, _, held = claim(tmp_path, several(tmp_path, devices=("CPU",)))
    assert isinstance(role, ClaimedServe)
    assert [[file.name for file in files] for files in role.files] == [["model.gguf"]] * 2
    held.close()
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(
    ("second", "what"),
    [
        ({"devices": ("CUDA7",)}, "no device `CUDA7`"),
        ({"llama_args": ("--model", "other.gguf")}, "--model"),
        ({"model": Path("/nowhere.gguf")}, "nowhere.gguf"),
        ({"layers": (LayerRange("desk", 0, 99),)}, "`--layers desk=0-99` names a layer that the model"),
    ],
)
def test_a_fault_of_one_of_several_models_is_found(
    tmp_path: Path, second: dict[str, object], what: str
) -> None:
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208
    with pytest.raises(UserError, match=what):
        claim(tmp_path, several(tmp_path, **second))
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208


class Inviting:
    """The part of a member that the printing needs."""

    def __init__(self, invite: InviteReply | None) -> None:
        self._invite = invite
        self.node = self

    def wall_clock(self) -> int:
        return NOW

    def printed_invite(self) -> InviteReply | None:
        return self._invite


def printed(
    folder: Path, role: str, *, form: str = "text", may_invite: bool = True
) -> tuple[list[str], list[str]]:
    """The lines of stdout, and those of stderr."""
    out: list[str] = []
    notes: list[str] = []

    async def main() -> None:
        announcer = PlainAnnouncer(out.append, notes.append, remarks=form == "text")
        daemon = Daemon(Config(), role, Home(folder / "home"), announcer)
        invite = InviteReply(token="meshd1x", id="00ff", expires_at=NOW + 86_400, uses=10)
        daemon.print_token(cast(MemberNode, Inviting(invite if may_invite else None)))

    asyncio.run(main())
    return out, [line for note in notes for line in note.splitlines()]


@pytest.mark.parametrize(
    ("host", "reachable", "url"),
    [
        ("0.0.0.0", ("fd00::7", "192.168.1.7", "10.1.1.1"), "http://192.168.1.7:8090"),
        ("::", ("fd00::7",), "http://[fd00::7]:8090"),
        ("::", ("fd00::7", "192.168.1.7"), "http://192.168.1.7:8090"),
        ("0.0.0.0", ("fd00::7",), None),
        ("127.0.0.1", ("192.168.1.7",), None),
        ("192.168.1.7", ("192.168.1.7",), None),
    ],
)
def test_the_address_for_other_devices(host: str, reachable: tuple[str, ...], url: str | None) -> None:
    assert url_in_the_lan("http://127.0.0.1:8090", host, reachable) == url


@pytest.mark.parametrize(
    ("role", "command"),
    [("worker", "meshd serve --model FILE --join INVITE"), ("serve", "meshd worker --join INVITE")],
)
def test_what_it_is_for_and_how_long_is_told_beside_it(tmp_path: Path, role: str, command: str) -> None:
    out, (validity, use) = printed(tmp_path, role)
    assert out == ["meshd1x"]
    assert validity == "invite 00ff: valid for 10 nodes and 24 h; keep it secret"
    assert f"run `{command}`, with this invite" in use


def test_a_log_for_programs_has_no_other_lines(tmp_path: Path) -> None:
    assert printed(tmp_path, "worker", form="json") == (["meshd1x"], [])


def test_one_that_joined_and_may_not_invite_says_what_it_does_now(tmp_path: Path) -> None:
    out, [note] = printed(tmp_path, "worker", may_invite=False)
    assert out == [] and "lends its devices to each node that runs `meshd serve`" in note
    assert printed(tmp_path, "worker", form="json", may_invite=False) == ([], [])
    assert printed(tmp_path, "serve", may_invite=False) == ([], []), "its API says when it is ready"


@pytest.mark.parametrize(
    ("host", "lines"),
    [
        ("127.0.0.1", ["ready: chat at http://127.0.0.1:8090"]),
        (
            "0.0.0.0",
            ["ready: chat at http://127.0.0.1:8090", "from other devices: http://192.168.1.7:8090"],
        ),
    ],
)
def test_a_node_with_an_api_says_once_where_to_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, lines: list[str]
) -> None:
    found = [InterfaceAddress("lo", "127.0.0.1"), InterfaceAddress("eth0", "192.168.1.7")]
    monkeypatch.setattr(local_addresses, "enumerate_addresses", lambda: found)
    config = replace(Config(), serve=replace(Config().serve, host=host))
    notes: list[str] = []
    loading = GatewayStatus(url="http://127.0.0.1:8090", ready=False, requests=0, tokens=0)
    states = iter([loading, loading, replace(loading, ready=True)])

    async def main() -> None:
        announcer = PlainAnnouncer(print, notes.append, remarks=True)
        daemon = Daemon(config, "serve", Home(tmp_path / "home"), announcer)
        await daemon.say_when_ready(lambda: next(states))

    run_virtual(main())
    assert notes == lines
