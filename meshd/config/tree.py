"""The frozen tree that a daemon is built from. Sizes in bytes; `None` means: not set, decided later.

Built by load.py from the user's settings, or directly in code: every field has a default.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshd.identity import naming
from meshd.link.transport import LinkKind
from meshd.model.layer_range import LayerRange

DEFAULT_MESH_PORT = 17430  # TCP and UDP; between 17236 and 17499 IANA has given nothing away
MESH_PORT_TRIES = 16  # the default port and its successors, when nobody asked for a port
DEFAULT_API_PORT = 8090
LINK_KINDS = tuple(kind.value for kind in LinkKind)
DEFAULT_STUN = ("stun.cloudflare.com:3478", "stun.l.google.com:19302")


@dataclass(frozen=True, slots=True)
class HostPort:
    """`host` is a name or an address without brackets, empty for all addresses; `port` 0 picks one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def host_name() -> str:
    """This machine's first name, made fit for a node's name."""
    plain = os.uname().nodename.split(".")[0]
    fit = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in plain).lstrip("-_")
    name = fit[: naming.MAX_NAME_CHARS] or "node"
    return f"{name[: naming.MAX_NAME_CHARS - 2]}-1" if naming.looks_like_id(name) else name


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Who this node is. `join` is the invite token itself once the verb has read it, else empty.

    `give_models`: of which stores members may take models: `own`, `caches`, `all` or `off`.
    """

    name: str = field(default_factory=host_name)
    join: str = field(default="", repr=False)  # a secret: it admits its bearer to the mesh
    give_models: str = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """`format` is `text` or `json`; `level` debug, info, warning or error."""

    format: str = "text"
    level: str = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksConfig:
    """How other nodes are reached. `listen` None: the port kept from before, else the first free of
    `MESH_PORT_TRIES` from `DEFAULT_MESH_PORT`, on all addresses."""

    listen: HostPort | None = None
    kinds: tuple[str, ...] = LINK_KINDS
    stun: tuple[str, ...] = DEFAULT_STUN
    relays: tuple[str, ...] = ()
    max_upload: int | None = None  # bytes a second
    grace: int = 120  # seconds
    no_mdns: bool = False
    no_portmap: bool = False
    no_relaying: bool = False
    compress: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker lends. No `devices`: all that the backend finds. `memory` is bytes for each device,
    `threads` those of its CPU.

    `models`: paths, and names (text) until the verb has found them.
    `keep_weights`: most bytes of weights that came over the network and are kept in the cache.
    `fetch_rate`: most bytes a second that a load takes from members.
    """

    models: tuple[Path | str, ...] = ()
    devices: tuple[str, ...] = ()
    memory: int | None = None
    threads: int | None = None
    keep_weights: int = 20 << 30
    fetch_rate: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """What a serving node loads, and where its API answers.

    `model` is a path, or a name (text) until the verb has found it; with `header_only` that of its header.
    `devices` ("none",) is a head that computes nothing; no `devices`, all that the backend finds. `ctx_size`
    0: the longest context that fits.
    """

    model: Path | str | None = None
    header_only: bool = False
    mmproj: Path | None = None
    host: str = "127.0.0.1"
    port: int = DEFAULT_API_PORT
    min_workers: int = 1
    workers: tuple[str, ...] = ()
    standby: tuple[str, ...] = ()
    tensor_split: tuple[float, ...] = ()
    layers: tuple[LayerRange, ...] = ()
    ctx_size: int | None = None
    slots: int = 4
    devices: tuple[str, ...] = ()
    rpc: tuple[HostPort, ...] = ()
    load_mode: str | None = None
    split: str = "auto"
    no_push: bool = False
    activations: str = "f32"
    sample: str = "auto"
    output: str = "auto"
    api_key_file: Path | None = None
    no_members: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    continue_answers: int = 300  # seconds
    max_wait: int = 600  # seconds
    speculate: str = "auto"
    draft_model: Path | str | None = None
    fallback_models: tuple[Path | str, ...] = ()
    llama_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Where the API of other nodes answers on this one, and of which: of all, if `heads` is empty."""

    port: int = DEFAULT_API_PORT
    heads: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    continue_answers: int = 300  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One of several models of a serving node: a table `[models.NAME]`.

    `serve` is the section of that name, with what the table says otherwise for its model.
    """

    name: str
    aliases: tuple[str, ...] = ()
    group: str = ""
    ttl: int = 0  # seconds
    preload: bool = False
    serve: ServeConfig = field(default_factory=ServeConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Folders. `home` holds all state of one node, `cache` what can be made again."""

    home: Path = field(default_factory=lambda: find_home(os.environ))
    cache: Path = field(default_factory=lambda: find_cache(os.environ))
    native_bin: Path | None = None

    @property
    def logs(self) -> Path:
        """The daemon's log `meshd.log` and one `NAME.log` for each child; `meshd logs` reads them here."""
        return self.home / "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything a daemon is told. `models`: of a node that serves several, in the order of the file."""

    node: NodeConfig = field(default_factory=NodeConfig)
    log: LogConfig = field(default_factory=LogConfig)
    links: LinksConfig = field(default_factory=LinksConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    client: ClientConfig = field(default_factory=ClientConfig)
    paths: Paths = field(default_factory=Paths)
    models: tuple[ModelConfig, ...] = ()


def find_home(environ: Mapping[str, str]) -> Path:
    """MESHD_HOME, else the platform's folder for state of a user (XDG base directory, Apple's guide)."""
    if given := environ.get("MESHD_HOME"):
        return Path(given).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "meshd"
    else:
        return _xdg(environ, "XDG_STATE_HOME", ".local/state") / "meshd"


def find_cache(environ: Mapping[str, str]) -> Path:
    """MESHD_CACHE, else the user's cache folder + `meshd`."""
    if given := environ.get("MESHD_CACHE"):
        return Path(given).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "meshd"
    else:
        return _xdg(environ, "XDG_CACHE_HOME", ".cache") / "meshd"


def _xdg(environ: Mapping[str, str], name: str, default: str) -> Path:
    given = environ.get(name, "")
    # the XDG specification wants relative paths ignored
    return Path(given) if given.startswith("/") else Path.home() / default


def home_here() -> Path:
    """The home that this process's environment means."""
    return find_home(os.environ)
