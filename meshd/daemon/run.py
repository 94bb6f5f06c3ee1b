"""Run one daemon from its start to its end: a home, a mesh, links, a role, and the order in which they end.

First this machine is checked, before the daemon contacts another one. A fault of this machine (a taken port,
a wrong device or relay, a key file that others can read) must be reported before it costs one use of an
invite, or a mesh is founded.

A daemon announces its invite, and what to do with it, to the person or program that started it. Programs get
the invite on stdout and remarks on stderr, between the lines of the log. On a terminal the command line
announces in its own way (cli/node_screen.py).
"""

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from meshd.admin.api import InviteReply
from meshd.admin.health import same_name
from meshd.admin.server import AdminServer
from meshd.admin.status import Status
from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.fault_boundary import ended, watch_loop
from meshd.base.metrics_port import MetricsPort, MetricsReader, listen_for_scrapers
from meshd.base.processes import keep_freed_memory, raise_limit, return_freed_memory
from meshd.base.service_manager import service_manager
from meshd.base.tasks import Owner, first_error
from meshd.base.wakeful_loop import WakefulLoop, loop_waiting
from meshd.build.pin import read_pin
from meshd.config.tree import METRICS_EXAMPLE, Config
from meshd.daemon.browsers import answer_browsers
from meshd.daemon.console_on_demand import console_of
from meshd.daemon.console_words import WORDS
from meshd.daemon.control import DaemonControl, Pausing, make_tunnels
from meshd.daemon.member_node import MemberNode
from meshd.daemon.mesh_page import MeshPage
from meshd.daemon.mesh_port import MeshPort
from meshd.daemon.models import ModelExchange, Storage, gives_unbounded
from meshd.daemon.native import (
    asked_to_seal,
    check_native_once,
    choose_build,
    find_native,
    machine_id,
    native_if_built,
    natives_here,
    runner,
)
from meshd.daemon.plain_connections import MeshPortConnections
from meshd.daemon.role_kind import BuiltRole, ClaimedRole, RoleKind
from meshd.daemon.role_runtime import make_runtime
from meshd.daemon.roles import ROLES, import_gateway
from meshd.daemon.transports import enter, read_relays
from meshd.devices.device_trial import TrialCache
from meshd.devices.devices import list_devices, pick
from meshd.devices.interface import NativeBuild, RoleRuntime, RoleStatus
from meshd.gateway.interface import GatewayStatus
from meshd.identity import naming
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.keystore import Home
from meshd.identity.naming import WORKER_ROLE
from meshd.library.stores import Stores
from meshd.link.net import local_addresses
from meshd.link.secure.joining import Joining
from meshd.peer.interface import Mesh
from meshd.process.interface import ChildSpec
from meshd.process.run import run_to_end
from meshd.rendezvous.join_or_found import Entered
from meshd.store.hash_cache import HashCache, PieceCache
from meshd.tunnel.user_tunnels import OwnTunnels


class Announcer(Protocol):
    """The interface of what announces. All text is for people."""

    def note(self, text: str) -> None:
        """Announce what a person must do or know."""

    def looking(self, text: str) -> None:
        """Announce what is under way."""

    def invite(self, invite: InviteReply, now: float, use: str) -> None:
        """Announce the invite, at the wall clock time `now`; `use` is what to do with it."""

    def remark(self, text: str) -> None:
        """Announce what helps a person, and is of no use to a program."""

    def ready(self, url: str, lan_url: str | None) -> None:
        """Announce that the API answers; `lan_url` is its address for other devices."""

    def follow(self, status: Callable[[], Status]) -> None:
        """Announce the changes of this status from now on."""

    async def serve(self) -> None:
        """Announce until cancelled, or return if nothing changes by itself."""

    def stopping(self) -> None:
        """Announce that the node is stopping."""

    def close(self) -> None:
        """Announce nothing more."""


class PlainAnnouncer:
    """Announces to programs: `out` gets the invite, `note` text for people (implements Announcer)."""

    def __init__(self, out: Callable[[str], None], note: Callable[[str], object], *, remarks: bool) -> None:
        """Without `remarks`, the log is for programs, and is not mixed with remarks."""
        self._out = out
        self._note = note
        self._remarks = remarks

    def note(self, text: str) -> None:
        """Write the text on stderr."""
        self._note(text)

    looking = note

    def invite(self, invite: InviteReply, now: float, use: str) -> None:
        """Write the invite on stdout."""
        self._out(invite.token)
        self.remark(f"{invite.validity(now)}\n{use}")

    def remark(self, text: str) -> None:
        """Write the text on stderr, unless the log is for programs."""
        if text and self._remarks:
            self._note(text)

    def ready(self, url: str, lan_url: str | None) -> None:
        """Write the API's address, as the last line for people."""
        self.remark(f"ready: chat at {url}")
        if lan_url is not None:
            self.remark(f"from other devices: {lan_url}")

    def follow(self, status: Callable[[], Status]) -> None:
        """Do nothing: the log has the changes."""

    async def serve(self) -> None:
        """Return."""

    def stopping(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


if TYPE_CHECKING:
    from meshd.daemon.fetching import Fetching
    from meshd.daemon.planning import Planning
    from meshd.gateway.server import Gateway

_WORKERS_DEVICES = "MESH"  # how the names of theirs begin
OF_EVERY_HEAD = ("none", "CPU")  # values of --device that name nothing to be found
_LOOK_SECONDS = 5.0  # between two checks: in a large mesh something changes all the time
LOG = log.get("daemon")
ADDRESS_SECONDS = 2.0  # how often this machine's addresses are checked
_IMPORT_SECONDS = 0.0005  # switch interval: an import in a thread blocks the loop for so long
_READY_SECONDS = 1.0  # how often the API's readiness is checked
GOODBYE_SECONDS = 0.3  # for the last frames to leave


async def preflight(
    role: RoleKind,
    config: Config,
    native: NativeBuild,
    home: Home,
    hashes: HashCache,
    held: contextlib.ExitStack,
) -> tuple[ClaimedRole, MeshPort]:
    """Run all checks; open the role's files and ports, and the mesh port, which `held` closes.

    Raises UserError for the first fault.
    """
    read_relays(config)
    claimed = await role.claim(config, hashes, held)
    await _check_devices(role.devices(config), config, native)
    if role.runs_llama_server:
        await _check_llama_args(config, native)
    wanted = role.wanted(config)
    if wanted and not config.node.join and home.load_membership() is None:  # no member can have it
        from meshd.daemon.fetching import check_downloads  # which few starts need

        await check_downloads(wanted)
    mesh_port = MeshPort(asked=config.links.listen, home=home)
    held.callback(mesh_port.close)
    return claimed, mesh_port


async def _check_devices(asked: Sequence[str], config: Config, native: NativeBuild) -> None:
    names = [name for name in asked if name not in OF_EVERY_HEAD]
    if names:
        log = config.paths.logs / "devices.log"
        pick(
            await list_devices(
                native.mesh_server, machine="", run_to_end=runner(config.node.sandbox), log=log
            ),
            names,
        )


async def _check_llama_args(config: Config, native: NativeBuild) -> None:
    """Check the options for llama-server before a load. Raises UserError.

    llama-server reads options from left to right and ends at `--version`, so it refuses bad ones at once.
    Options that name workers' devices are skipped, because these are not known yet.
    """
    from meshd.head.failures import refused_option  # which no worker needs

    log = config.paths.logs / "llama-options.log"
    for args in dict.fromkeys(serve.llama_args for serve in config.served):
        if not args or any(_WORKERS_DEVICES in arg for arg in args):
            continue
        argv = (str(native.llama_server), *args, "--version")
        ended = await run_to_end(ChildSpec(name="llama-server options", argv=argv, log=log))
        if refused := refused_option(ended.tail):
            where = "`llama_args` of the model" if config.models else "the arguments after `--`"
            raise UserError(refused, hint=f"check {where}: `{' '.join(args)}`")


def _settle() -> None:
    """Drop what only the start needed."""
    gc.collect()
    return_freed_memory()
    gc.freeze()  # existing objects stay: later collections need not walk them each time


async def _for_scrapers(sock: socket.socket, control: DaemonControl) -> None:
    """Serve metrics on `sock`, until cancelled."""
    port = MetricsPort(sock, partial(control.exposition, MetricsReader.MACHINE))
    LOG.info("metrics_listening", url=port.url)
    await port.serve()


async def watch_names(mesh: Mesh, me: PeerId, name: str) -> None:
    """Log each set of nodes that share a name once while they share it, until cancelled."""
    logged: dict[str, list[str]] = {}
    seen = -1
    while True:
        seen = await mesh.changed(seen)
        peers = {str(status.peer): status.name for status in mesh.peers()}
        shared = naming.shared({**peers, str(me): name})
        for shared_name, nodes in shared.items():
            if logged.get(shared_name) != nodes:
                other = next(node for node in nodes if node != str(me))
                LOG.warning(
                    "name_shared",
                    name=shared_name,
                    peer=other[: naming.SHORT_CHARS],
                    what=same_name(shared_name, nodes),
                )
        logged = shared
        await asyncio.sleep(_LOOK_SECONDS)


def run(
    config: Config,
    role: str,
    out: Callable[[str], None],
    make_announcer: Callable[[], Announcer] | None = None,
) -> int:
    """Run a node until it is stopped; `out` gets the invite. Returns the exit code. Raises MeshdError.

    `make_announcer`: for a terminal, where only that announces, and the log goes to its file alone.
    """
    log.set_up(
        level=config.log.level,
        form=config.log.format,
        file=config.paths.logs / "meshd.log",
        to_stderr=make_announcer is None,
    )
    log.remember(frozenset(WORDS))
    raise_limit()
    keep_freed_memory()
    home = Home(config.paths.home)
    with home.lock(daemon=True), log.in_background() as note:
        announcer: Announcer
        if make_announcer is not None:
            announcer = make_announcer()
        else:
            announcer = PlainAnnouncer(out, note, remarks=config.log.format == "text")
        try:
            with asyncio.Runner(
                loop_factory=partial(WakefulLoop, loop_waiting(config.node.waiting))
            ) as runner:
                return runner.run(Daemon(config, role, home, announcer).main())
        except ExceptionGroup as group:
            raise first_error(group) from None
        finally:
            announcer.close()


class Daemon:
    """One node from start to end."""

    def __init__(self, config: Config, role: str, home: Home, announcer: Announcer) -> None:
        self._config = config
        self._role = role
        self._kind = ROLES[role]
        self._announcer = announcer
        self._home = home
        self._pieces = PieceCache.below(config.paths.cache)
        self._stopping = asyncio.Event()
        self._exit_code = 0
        # What a member has: see `_live`.
        self._member: MemberNode
        self._runtime: RoleRuntime
        self._claimed: ClaimedRole
        self._storage: Storage
        self._models: ModelExchange
        self._fetching: Fetching | None = None
        self._built: BuiltRole  # while models are fetched, the substitute for the role
        self._planning: Planning | None = None
        self._gateway: Gateway | None = None
        self._scraped: socket.socket | None = None

    async def main(self) -> int:
        """Run until a signal or `meshd stop`; return the exit code."""
        loop = asyncio.get_running_loop()
        watch_loop(loop)
        loop.add_signal_handler(signal.SIGTERM, self._stop, "SIGTERM")
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # not under nohup
            loop.add_signal_handler(signal.SIGHUP, self._stop, "the terminal has gone")
        async with Owner() as owner:
            owner.start(
                ended(self._announcer.serve(), source="terminal", name="announcements"), name="announcer"
            )
            owner.start(service_manager().keep_informed(), name="service manager")
            node = owner.start(self._node(), name="node")
            stop = owner.start(self._stopping.wait(), name="stop")
            await asyncio.wait([node, stop], return_when=asyncio.FIRST_COMPLETED)
            owner.cancel()
        return self._exit_code

    def _stop(self, why: str) -> None:
        LOG.info("stopping", why=why)
        self._announcer.stopping()
        self._stopping.set()

    def _interrupt(self) -> None:
        self._exit_code = 130
        self._stop("SIGINT")

    async def _node(self) -> None:
        """Check this machine, enter the mesh, and live as a member."""
        native = await self._find_native()
        with contextlib.ExitStack() as held:
            self._claimed, mesh_port = await preflight(
                self._kind, self._config, native, self._home, self._pieces.hashes, held
            )
            if (place := self._config.node.metrics) is not None:
                self._scraped = listen_for_scrapers(place.host, place.port, setting=METRICS_EXAMPLE)
                held.callback(self._scraped.close)
            key = self._home.load_or_create_identity()
            entered = await enter(
                self._home,
                key,
                self._config,
                self._role,
                mesh_port=mesh_port,
                note=self._announcer.note,
                looking=self._announcer.looking,
                founds_mesh=self._kind.founds_mesh,
            )
            try:
                self._home.drop_invite()  # it has served, or was not needed
                await self._live(key, entered, native, mesh_port)
            finally:
                await entered.aclose()

    async def _find_native(self) -> NativeBuild:
        """Find the binaries to use, and check those that the user names. Raises UserError."""
        paths, head = self._config.paths, self._kind.runs_llama_server
        if not self._kind.needs_native:
            return native_if_built(paths)
        run = runner(self._config.node.sandbox)
        if paths.native_bin is None:
            natives, machine = natives_here(paths, head=head), machine_id(b"")
            native = await choose_build(natives, run, cache=paths.cache, logs=paths.logs, machine=machine)
        else:
            native = find_native(paths, head=head)
            if native.mesh_server.parent != paths.native_bin.absolute() and not head:
                what = f"no {native.mesh_server.name}; {native.mesh_server} is used"
                LOG.warning("native_bin_lacks", path=str(paths.native_bin), what=what)
            native = await check_native_once(
                native,
                pin=read_pin(),
                logs=paths.logs,
                head=head,
                passed=TrialCache(paths.cache / "native-checks"),
                machine=machine_id(b""),
            )
        return native if head else await asked_to_seal(native, run, paths.logs)

    async def _live(
        self, key: KeyPair, entered: Entered[Joining], native: NativeBuild, mesh_port: MeshPort
    ) -> None:
        """Run this node as a member, in its role."""
        config, cache = self._config, self._config.paths.cache
        member = self._member = MemberNode(
            config=config,
            home=self._home,
            key=key,
            entered=entered,
            role=self._role,
            native=native.version,
            mesh_port=mesh_port,
        )
        try:
            # Before anything is fetched, and after the addresses are kept that joining brought.
            self._kind.check_certified(entered.membership.roles)
            # What the role runs on, and what is told of this machine's models.
            self._runtime = make_runtime(
                config,
                member.mesh,
                native,
                self._pieces,
                gives=lambda: gives_unbounded(self._config, self._role_status),
                plain=MeshPortConnections(
                    member.mesh, mesh_port.listener.plain, compresses=config.links.compress != "off"
                ),
            )
            self._storage = Storage(
                member.mesh, config, lambda: Stores.here(cache), kept=lambda: self._role_status().store
            )
            self._models = ModelExchange(
                member.mesh,
                config,
                self._pieces,
                is_serving=lambda: self._role_status().is_computing,
                disk=self._storage.disk,
            )
            # The role, or what fetches its models.
            if wanted := self._kind.wanted(config):
                from meshd.daemon.fetching import Fetching

                self._fetching = Fetching(config, wanted, member.mesh, self._models)
                self._built = self._claimed.while_fetching(self._fetching)
            else:
                self._built = await self._claimed.build(self._runtime, member)
            await self._serve()
        finally:
            if member.local.has_left:
                self._home.leave(drop_root=True)  # removes what was written since: bans, addresses, the book

    def _role_status(self) -> RoleStatus:
        return self._built.role.status

    def _planning_now(self) -> "Planning":
        if self._planning is None:
            from meshd.daemon.planning import make_planning  # imported on demand: most nodes are never asked

            self._planning = make_planning(self._config, self._member, self._runtime, self._kind, self._built)
        return self._planning

    def _control(self, tunnels: OwnTunnels) -> tuple[DaemonControl, MeshPage]:
        """Return what answers on the control socket, and the page of the mesh."""
        host = self._config.serve.host
        page = MeshPage(
            lan_url=lambda url: url_in_the_lan(url, host, local_addresses.hosts()),
            has_api=lambda: self._built.gateway is not None,
            gateway=lambda: self._gateway,
            make_source=lambda: console_of(
                control,
                self._member,
                self._config,
                built=lambda: self._built,
                gateway=lambda: self._gateway,
            ),
        )
        control = DaemonControl(
            self._member,
            self._home,
            built=lambda: self._built,
            planning=self._planning_now,
            gateway=lambda: self._gateway,
            stop=self._stop,
            tunnels=tunnels,
            pausing=Pausing(self._home, self._member.local, self._built.pause),
            models=self._models,
            storage=self._storage,
            page=page,
        )
        return control, page

    async def _serve(self) -> None:
        """Run everything. At the end the role stops first: its children, then the peers, then the links."""
        member = self._member
        # The control socket.
        tunnels = make_tunnels(member.mesh, self._home)
        control, page = self._control(tunnels)
        admin = AdminServer(home=self._config.paths.home, control=control)
        admin.open()
        # The mesh, then the role and its API.
        async with Owner() as network:
            network.start(member.serve(), name="peers")
            network.start(admin.serve(), name="admin")
            if self._scraped is not None:
                network.start(_for_scrapers(self._scraped, control), name="metrics")
            network.start(tunnels.serve(), name="tunnels")
            network.start(self._models.serve(), name="models")
            network.start(self._storage.serve(), name="storage")
            network.start(watch_addresses(member), name="addresses")
            facts = member.node.facts
            network.start(watch_names(member.mesh, facts.peer, facts.name), name="names")
            network.start(control.lift_drains(), name="drain")
            network.start(page.serve(), name="page of the mesh")
            self._announcer.follow(control.status_now)
            try:
                async with Owner() as work:
                    make_gateway, is_open = self._built.gateway, asyncio.Event()
                    if make_gateway is None:
                        is_open.set()
                    work.start(self._play(is_open), name=self._role)
                    if make_gateway is not None:
                        gateway = self._gateway = await _made(make_gateway)
                        gateway.shows(partial(control.exposition, MetricsReader.API))
                        gateway.console.shows(page.source)
                        gateway.console.welcomes(member.transports.browsers.welcome)
                        work.start(gateway.serve(), name="gateway")
                        if not self._config.serve.no_members:
                            browsers, port = member.transports.browsers, member.transports.browser_port
                            work.start(answer_browsers(browsers, port, gateway), name="browsers")
                        await gateway.started.wait()
                        is_open.set()
                        work.start(self.say_when_ready(lambda: gateway.status), name="ready")
                    _settle()
                    # The invite.
                    await member.transports.network_state.first_look()
                    await member.transports.known_outside()  # an invite names the outer address, too
                    self.print_token(member)
                    # In the mesh, with an open API, which says how far the model is: that may take hours.
                    service_manager().ready()
            finally:
                if member.local.has_left:
                    await asyncio.sleep(GOODBYE_SECONDS)  # for its last record, before the sessions end
                member.local.say_goodbye()
                await asyncio.sleep(GOODBYE_SECONDS)

    async def _play(self, is_open: asyncio.Event) -> None:
        """Run the role, once its models are here. `is_open` is set once its API is open."""
        if self._fetching is not None:
            local, lends = self._member.local, self._role == WORKER_ROLE
            if lends:  # heads ask it once it has something to lend
                local.fetches(fetching=True)
            self._config = config = await self._fetching.run()
            await is_open.wait()
            await self._claimed.fetched(config)
            self._models.fetched(config)
            self._storage.fetched(config)
            self._built = await self._claimed.build(self._runtime, self._member)
            self._planning = None  # it was made for the substitute
            if lends:
                local.fetches(fetching=False)
        await self._built.role.serve()

    def print_token(self, member: MemberNode) -> None:
        if not (use := self._kind.token_use) or service_manager().is_there:
            return  # nobody reads what a service prints; `meshd invite` makes an invite
        try:
            invite = member.printed_invite()
        except UserError as error:  # the disk cannot take a new invite
            LOG.warning("no_invite", why=error.what)
            self._announcer.note(f"no invite: {error.what}; fix that, then run `meshd invite`")
            return
        if invite is None:
            self._announcer.remark(self._kind.what_now)  # it joined with an invite, and may not invite
        else:
            self._announcer.invite(invite, member.node.wall_clock(), use)

    async def say_when_ready(self, status: Callable[[], GatewayStatus]) -> None:
        """Announce the API's URL once it is ready."""
        while not (now := status()).ready:  # noqa: ASYNC110 - no event announces readiness
            await asyncio.sleep(_READY_SECONDS)
        host = self._config.serve.host
        # 127.0.0.1 is useless on a phone.
        self._announcer.ready(now.url, url_in_the_lan(now.url, host, local_addresses.hosts()))


async def _made(make: "Callable[[], Gateway]") -> "Gateway":
    """Make a gateway once a thread has imported its modules; clients that connect before wait at its port."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_IMPORT_SECONDS)
    gc.disable()  # as cli/roles.py does
    try:
        await asyncio.to_thread(import_gateway)
    finally:
        gc.enable()
        sys.setswitchinterval(before)
    return make()


def url_in_the_lan(url: str, host: str, reachable: Sequence[str]) -> str | None:
    """Return the API's URL for other devices, None if it does not listen on every address.

    `host` is the one it listens on; `reachable` are this machine's addresses, the best first.
    """
    if host not in ("0.0.0.0", "::"):
        return None
    fits = [address for address in reachable if host == "::" or ":" not in address]
    fits.sort(key=lambda address: ":" in address)  # IPv4 is easier to type
    port = url.rpartition(":")[2]
    urls = (
        f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}" for address in fits
    )
    return next(urls, None)


async def watch_addresses(member: MemberNode) -> None:
    known = local_addresses.addresses()
    while True:
        await asyncio.sleep(ADDRESS_SECONDS)
        now = local_addresses.addresses()
        if now != known:
            known = now
            member.local.addresses_changed()
