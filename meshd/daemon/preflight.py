"""The checks of this machine before the daemon contacts another one.

A fault of this machine (a taken port, a wrong device or relay, a key file that others can read) must be
reported before it costs one use of an invite, or a mesh is founded.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from meshd.base.errors import UserError
from meshd.config import Config
from meshd.daemon.mesh_port import MeshPort
from meshd.daemon.role_kind import ClaimedRole, RoleKind
from meshd.daemon.transports import read_relays
from meshd.devices.devices import list_devices, pick
from meshd.devices.interface import NativeBuild
from meshd.devices.refused_option import refused_option
from meshd.identity.keystore import Home
from meshd.process.interface import ChildSpec
from meshd.process.run import run_to_end
from meshd.store.hash_cache import HashCache

_WORKERS_DEVICES = "MESH"  # how the names of theirs begin
OF_EVERY_HEAD = ("none", "CPU")  # values of --device that name nothing to be found


@dataclass(frozen=True, slots=True)
class Preflight:
    """The resources that the checks have opened: the role's files and ports, and the mesh port.

    `release` closes them.
    """

    role: ClaimedRole
    mesh_port: MeshPort
    _held: contextlib.ExitStack

    @classmethod
    async def make(
        cls, role: RoleKind, config: Config, native: NativeBuild, home: Home, hashes: HashCache
    ) -> Self:
        """Run all checks. Raises UserError for the first fault."""
        read_relays(config)
        with contextlib.ExitStack() as held:
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
            return cls(claimed, mesh_port, held.pop_all())

    def release(self) -> None:
        """Close everything. Idempotent."""
        self._held.close()


async def _check_devices(asked: Sequence[str], config: Config, native: NativeBuild) -> None:
    names = [name for name in asked if name not in OF_EVERY_HEAD]
    if names:
        log = config.paths.logs / "devices.log"
        pick(
            await list_devices(native.mesh_server, machine="", run_to_end=run_to_end, log=log),
            names,
        )


async def _check_llama_args(config: Config, native: NativeBuild) -> None:
    """Check the options for llama-server before a load. Raises UserError.

    llama-server reads options from left to right and ends at `--version`, so it refuses bad ones at once.
    Options that name workers' devices are skipped, because these are not known yet.
    """
    served = [model.serve for model in config.models] or [config.serve]
    log = config.paths.logs / "llama-options.log"
    for args in dict.fromkeys(serve.llama_args for serve in served):
        if not args or any(_WORKERS_DEVICES in arg for arg in args):
            continue
        argv = (str(native.llama_server), *args, "--version")
        ended = await run_to_end(ChildSpec(name="llama-server options", argv=argv, log=log))
        if refused := refused_option(ended.tail):
            where = "`llama_args` of the model" if config.models else "the arguments after `--`"
            raise UserError(refused, hint=f"check {where}: `{' '.join(args)}`")
