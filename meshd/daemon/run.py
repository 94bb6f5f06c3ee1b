"""One daemon from its start to its end: a home, a mesh, links, a role, and the order in which they end."""

import asyncio
import gc
import signal
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from meshd.admin.server import AdminServer
from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.fault_boundary import watch_loop
from meshd.base.freed_memory import keep_freed_memory
from meshd.base.open_files import raise_limit
from meshd.base.tasks import Owner, first_error
from meshd.base.wakeful_loop import WakefulLoop
from meshd.build.pin import read_pin
from meshd.config import Config
from meshd.daemon.control import DaemonControl, Parts
from meshd.daemon.join_dialers import enter
from meshd.daemon.member_node import MemberNode
from meshd.daemon.models import ModelExchange, gives_unbounded
from meshd.daemon.native_check import check_native
from meshd.daemon.pausing import Pausing
from meshd.daemon.preflight import Preflight
from meshd.daemon.role_kind import BuiltRole
from meshd.daemon.role_runtime import find_native, make_runtime, native_if_built
from meshd.daemon.roles import ROLES
from meshd.daemon.shared_names import watch_names
from meshd.daemon.storage import Storage
from meshd.daemon.tunnels import make_tunnels
from meshd.gateway.interface import GatewayStatus
from meshd.identity.keys import KeyPair
from meshd.identity.keystore import Home
from meshd.library.stores import Stores
from meshd.link.net import local_addresses
from meshd.link.secure.joining import Joining
from meshd.rendezvous.join_or_found import Entered
from meshd.role.interface import NativeBuild, RoleRuntime
from meshd.store.piece_cache import PieceCache
from meshd.tunnel.user_tunnels import OwnTunnels

if TYPE_CHECKING:
    from meshd.daemon.planning import Planning

ADDRESS_SECONDS = 2.0  # how often this machine's addresses are looked at
_READY_SECONDS = 1.0  # how often is looked whether the API can answer
GOODBYE_SECONDS = 0.3  # for the last frames to leave
LOG = log.get("daemon")


def run(config: Config, role: str, out: Callable[[str], None]) -> int:
    """Be a node until stopped; `out` gets the token line. Returns the exit code. Raises MeshdError."""
    log.set_up(level=config.log.level, form=config.log.format, file=config.paths.logs / "meshd.log")
    raise_limit()
    keep_freed_memory()
    home = Home(config.paths.home)
    with home.lock(daemon=True), log.in_background() as note:
        try:
            with asyncio.Runner(loop_factory=WakefulLoop) as runner:
                return runner.run(Daemon(config, role, home, out=out, note=note).main())
        except ExceptionGroup as group:
            raise first_error(group) from None


class Daemon:
    """One node."""

    def __init__(
        self,
        config: Config,
        role: str,
        home: Home,
        *,
        out: Callable[[str], None],
        note: Callable[[str], object],
    ) -> None:
        self._config = config
        self._role = role
        self._out = out
        self._note = note
        self._home = home
        self._pieces = PieceCache.below(config.paths.cache)
        self._stopping = asyncio.Event()
        self._exit_code = 0

    async def main(self) -> int:
        """Run until a signal or `meshd stop`; returns the exit code."""
        loop = asyncio.get_running_loop()
        watch_loop(loop)
        loop.add_signal_handler(signal.SIGTERM, self._stop, "SIGTERM")
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        async with Owner() as owner:
            node = owner.start(self._node(), name="node")
            stop = owner.start(self._stopping.wait(), name="stop")
            await asyncio.wait([node, stop], return_when=asyncio.FIRST_COMPLETED)
            owner.cancel()
        return self._exit_code

    def _stop(self, why: str) -> None:
        LOG.info("stopping", why=why)
        self._stopping.set()

    def _interrupt(self) -> None:
        self._exit_code = 130
        self._stop("SIGINT")

    async def _node(self) -> None:
        native = await self._find_native()
        preflight = await Preflight.make(
            ROLES[self._role], self._config, native, self._home, self._pieces.hashes
        )
        try:
            key = self._home.load_or_create_identity()
            entered = await enter(
                self._home,
                key,
                self._config,
                self._role,
                mesh_port=preflight.mesh_port,
                note=self._note,
                founds_mesh=ROLES[self._role].founds_mesh,
            )
            try:
                await self._live(key, entered, native, preflight)
            finally:
                await entered.aclose()
        finally:
            preflight.release()

    async def _find_native(self) -> NativeBuild:
        """The binaries in use; those that the user names are tried. Raises UserError."""
        paths, role = self._config.paths, ROLES[self._role]
        if not role.needs_native:
            return native_if_built(paths)
        head = role.runs_llama_server
        native = find_native(paths, head=head)
        if paths.native_bin is None:
            return native
        if native.mesh_server.parent != paths.native_bin.absolute() and not head:
            what = f"no {native.mesh_server.name}; {native.mesh_server} is used"
            LOG.warning("native_bin_lacks", path=str(paths.native_bin), what=what)
        return await check_native(native, pin=read_pin(), logs=paths.logs, head=head)

    async def _live(
        self, key: KeyPair, entered: Entered[Joining], native: NativeBuild, preflight: Preflight
    ) -> None:
        """As a member, in its role."""
        member = MemberNode(
            config=self._config,
            home=self._home,
            key=key,
            entered=entered,
            role=self._role,
            native=native.version,
            mesh_port=preflight.mesh_port,
        )
        try:
            built: BuiltRole
            gives = partial(gives_unbounded, self._config, lambda: built.role.status)
            runtime = make_runtime(self._config, member.mesh, native, self._pieces, gives=gives)
            built = await preflight.role.build(runtime, member)
            planning = cache(lambda: self._planning(member, runtime, built))
            storage = Storage(
                member.mesh,
                self._config,
                lambda: Stores.here(self._config.paths.cache),
                kept=lambda: built.role.status.store,
            )
            models = ModelExchange(
                member.mesh,
                self._config,
                self._pieces,
                is_serving=lambda: built.role.status.is_computing,
                disk=storage.disk,
            )
            await self._serve(member, built, planning, models, storage)
        finally:
            if member.local.has_left:
                self._home.leave(drop_root=True)  # what was written since: bans, addresses, the book

    def _planning(self, member: MemberNode, runtime: RoleRuntime, built: BuiltRole) -> "Planning":
        from meshd.daemon.planning import make_planning  # nodes that nobody asks do without what it takes

        return make_planning(self._config, member, runtime, ROLES[self._role], built)

    async def _serve(
        self,
        member: MemberNode,
        built: BuiltRole,
        planning: "Callable[[], Planning]",
        models: ModelExchange,
        storage: Storage,
    ) -> None:
        """Run everything. At the end the role goes first: its children, then the peers, then the links."""
        tunnels = make_tunnels(member.mesh, self._home)
        control = self._control(member, built, tunnels, planning, models, storage)
        admin = AdminServer(home=self._config.paths.home, control=control)
        admin.open()
        async with Owner() as network:
            network.start(member.serve(), name="peers")
            network.start(admin.serve(), name="admin")
            network.start(tunnels.serve(), name="tunnels")
            network.start(models.serve(), name="models")
            network.start(storage.serve(), name="storage")
            network.start(_watch_addresses(member), name="addresses")
            facts = member.node.facts
            network.start(watch_names(member.mesh, facts.peer, facts.name), name="names")
            try:
                async with Owner() as work:
                    if built.gateway is not None:
                        work.start(built.gateway.serve(), name="gateway")
                        await built.gateway.started.wait()
                        gateway = built.gateway
                        work.start(self._say_when_ready(lambda: gateway.status), name="ready")
                    work.start(built.role.serve(), name=self._role)
                    gc.collect()
                    gc.freeze()  # objects that exist now stay: later collections need not walk them each time
                    await member.transports.network_state.first_look()
                    await member.transports.known_outside()  # a token names the outer address, too
                    self._print_token(member)
            finally:
                if member.local.has_left:
                    await asyncio.sleep(GOODBYE_SECONDS)  # for its last record, before the sessions end
                member.local.say_goodbye()
                await asyncio.sleep(GOODBYE_SECONDS)

    def _control(
        self,
        member: MemberNode,
        built: BuiltRole,
        tunnels: OwnTunnels,
        planning: "Callable[[], Planning]",
        models: ModelExchange,
        storage: Storage,
    ) -> DaemonControl:
        gateway, mdns = built.gateway, member.transports.mdns
        return DaemonControl(
            Parts(
                home=self._home,
                home_path=self._config.paths.home,
                membership=member.membership,
                authority=member.authority,
                mesh=member.mesh,
                node=member.node,
                role=built.role,
                tunnels=tunnels,
                mdns=lambda: mdns.status if mdns is not None else None,
                candidates=member.local.token_candidates,
                relays=member.transports.relays,
                accept=member.transports.joiners.accept,
                network_state=member.transports.network_state,
                planning=planning,
                explain=built.explain,
                pausing=Pausing(self._home, member.local, built.pause),
                models=models,
                storage=storage,
                speeds=built.speeds,
                gateway=lambda: gateway.status if gateway is not None else None,
                bans_changed=member.mesh.bans_changed,
                leave=member.local.leave,
                stop=self._stop,
            )
        )

    def _print_token(self, member: MemberNode) -> None:
        if not (use := ROLES[self._role].token_use):
            return
        try:
            invite = member.printed_invite()
        except UserError as error:  # the disk takes no new invite
            LOG.warning("no_invite", why=error.what)
            self._note(f"no invite token: {error.what}; fix that, then run `meshd invite`")
            return
        if invite is None:
            self._remark(ROLES[self._role].what_now)  # it joined with a token, and may invite nobody
            return
        self._out(invite.token)
        self._remark(f"{invite.validity(member.node.wall_clock())}\n{use}")

    async def _say_when_ready(self, status: Callable[[], GatewayStatus]) -> None:
        """Once, as the last line on a person's terminal: where to go now."""
        while not (now := status()).ready:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(_READY_SECONDS)
        self._remark(f"ready: chat at {now.url}")

    def _remark(self, text: str) -> None:
        """For people: in a log for programs each line is for a program."""
        if text and self._config.log.format == "text":
            self._note(text)


async def _watch_addresses(member: MemberNode) -> None:
    known = local_addresses.addresses()
    while True:
        await asyncio.sleep(ADDRESS_SECONDS)
        now = local_addresses.addresses()
        if now != known:
            known = now
            member.local.addresses_changed()
