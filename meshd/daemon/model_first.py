"""A member for as long as the model comes from others: before a node starts that does not have it.

As with a download, progress is the verb's to show, and nothing else of the node runs until the model is here.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from meshd.admin.models_api import NO_MEMBER_HAS_IT, PullReply, PullRequest
from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.open_files import raise_limit
from meshd.base.tasks import Owner, first_error
from meshd.base.wakeful_loop import WakefulLoop
from meshd.config import Config
from meshd.daemon.join_dialers import enter
from meshd.daemon.member_node import MemberNode
from meshd.daemon.mesh_port import MeshPort
from meshd.daemon.models import ModelExchange
from meshd.daemon.role_runtime import find_native
from meshd.daemon.roles import ROLES
from meshd.identity.keystore import Home
from meshd.library.members.pull_state import NobodyHasIt
from meshd.model.model_name import MESH
from meshd.store.piece_cache import PieceCache
from meshd.wire.native import NativeVersion

FOUND_SECONDS = 30.0  # for members that have it to be connected
_OR_ELSEWHERE_SECONDS = 10.0  # the same where the model may be downloaded instead, or its name be mistyped
_LOOK_SECONDS = 0.5
_GOODBYE_SECONDS = 0.3  # for the last frames to leave
Show = Callable[[PullReply], None]


def has_members(config: Config) -> bool:
    """Whether this node is in a mesh, or is about to join one."""
    return bool(config.node.join) or Home(config.paths.home).load_membership() is not None


def pull_first(config: Config, request: PullRequest, role: str, show: Show) -> list[Path]:
    """The files of the model, once they are here; `show` gets how far it is.

    Raises NobodyHasIt and other MeshdErrors.
    """
    home = Home(config.paths.home)
    if not has_members(config):
        raise UserError(
            f"`{request.name}` comes from members, and this node is in no mesh yet",
            hint="join one with `--join TOKEN`, or give the model's path, or another name of it",
        )
    version = find_native(config.paths, head=ROLES[role].runs_llama_server).version
    log.set_up(level=config.log.level, form=config.log.format, file=config.paths.logs / "meshd.log")
    raise_limit()
    with home.lock(daemon=True), log.in_background():
        try:
            with asyncio.Runner(loop_factory=WakefulLoop) as runner:
                return runner.run(_pull_as_member(config, home, request, role, version, show))
        except ExceptionGroup as group:
            raise first_error(group) from None


async def _pull_as_member(
    config: Config, home: Home, request: PullRequest, role: str, version: NativeVersion, show: Show
) -> list[Path]:
    mesh_port = MeshPort(asked=config.links.listen, home=home)
    try:
        key = home.load_or_create_identity()
        entered = await enter(home, key, config, role, mesh_port=mesh_port)
        try:
            member = MemberNode(
                config=config,
                home=home,
                key=key,
                entered=entered,
                role=role,
                native=version,
                mesh_port=mesh_port,
            )
            pieces = PieceCache.below(config.paths.cache)
            exchange = ModelExchange(member.mesh, config, pieces, is_serving=lambda: False, disk=lambda: None)
            async with Owner() as network:
                network.start(member.serve(), name="peers")
                network.start(exchange.serve(), name="models")
                try:
                    return await _pull(exchange, request, show)
                finally:
                    member.local.say_goodbye("it only asked for its model")
                    await asyncio.sleep(_GOODBYE_SECONDS)
                    network.cancel()
        finally:
            await entered.aclose()
    finally:
        mesh_port.close()


async def _pull(exchange: ModelExchange, request: PullRequest, show: Show) -> list[Path]:
    """Members may not be connected yet: who has it is asked again for a while."""
    loop = asyncio.get_running_loop()
    until = loop.time() + (FOUND_SECONDS if request.name.startswith(MESH) else _OR_ELSEWHERE_SECONDS)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        reply = exchange.start(request)
        while reply.step not in ("done", "failed"):
            show(reply)
            await asyncio.sleep(_LOOK_SECONDS)
            reply = exchange.progress(reply.id)
        if not reply.error:
            show(reply)
            return [Path(path) for path in reply.paths]
        if reply.code != NO_MEMBER_HAS_IT:
            raise UserError(reply.error, hint=reply.hint)
        if loop.time() > until:
            raise NobodyHasIt(reply.error, hint=reply.hint)
