"""What a daemon takes and looks at on this machine before it speaks to another one.

A fault of this machine (a taken port, a wrong device or relay, a key file that others can read) must be told
before a use of an invite is spent on it, or a mesh is founded.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from meshd.config import Config
from meshd.daemon.mesh_port import Doorway
from meshd.daemon.transports import read_relays
from meshd.gateway.interface import GatewayConfig
from meshd.identity.keystore import Home
from meshd.process.run import run_to_end
from meshd.role.head.llama_args import read_llama_args
from meshd.role.interface import NativeBuild
from meshd.role.native.devices import list_devices, pick
from meshd.store.content_store import DiskContentStore
from meshd.store.hash_cache import HashCache
from meshd.store.model_file import ModelFile

if TYPE_CHECKING:
    from meshd.gateway.server import ApiPort

OF_EVERY_HEAD = ("none", "CPU")  # values of --device that name nothing to be found


@dataclass(frozen=True, slots=True)
class Claims:
    """Open model files and bound ports; `api` of a serving node only. `release` gives them back."""

    files: Sequence[ModelFile]
    store: DiskContentStore | None
    doorway: Doorway
    api: "ApiPort | None"
    _held: contextlib.ExitStack

    @classmethod
    async def make(cls, role: str, config: Config, native: NativeBuild, home: Home) -> Self:
        """Raises UserError for the first thing that cannot be had."""
        if role == "serve":
            read_llama_args(config.serve.llama_args)
        read_relays(config)
        with contextlib.ExitStack() as held:
            files = []
            cache = HashCache(config.paths.cache / "weights")
            for path in config.worker.models if role == "worker" else (config.serve.model,):
                if path is not None:
                    files.append(await ModelFile.open(path, cache=cache, partial=role == "worker"))
                    held.callback(files[-1].close)
            await _check_devices(role, config, native)
            api = await _claim_api(config) if role == "serve" else None
            if api is not None:
                held.callback(api.close)
            doorway = Doorway(asked=config.links.listen, home=home)
            held.callback(doorway.close)
            store = _content_store(config, cache) if role == "worker" else None
            return cls(files, store, doorway, api, held.pop_all())

    def release(self) -> None:
        """Idempotent."""
        self._held.close()


def _content_store(config: Config, cache: HashCache) -> DiskContentStore:
    return DiskContentStore(config.paths.cache / "tensors", limit=config.worker.keep_weights, cache=cache)


async def _check_devices(role: str, config: Config, native: NativeBuild) -> None:
    asked = config.worker.devices if role == "worker" else config.serve.devices
    names = [name for name in asked if name not in OF_EVERY_HEAD]
    if names:
        log = config.paths.logs / "devices.log"
        pick(
            await list_devices(
                native.rpc_server, patched=native.patched, machine="", run_to_end=run_to_end, log=log
            ),
            names,
        )


async def _claim_api(config: Config) -> "ApiPort":
    from meshd.gateway.auth import load_keys  # aiohttp: 11 MB that a worker does without
    from meshd.gateway.server import ApiPort

    serve = config.serve
    return await ApiPort.claim(
        GatewayConfig(
            host=serve.host,
            port=serve.port,
            api_keys=load_keys(serve.api_key_file) if serve.api_key_file is not None else (),
            allowed_hosts=serve.allowed_hosts,
            allowed_origins=serve.allowed_origins,
        )
    )
