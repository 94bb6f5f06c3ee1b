"""The frozen tree that a daemon is built from. Sizes in bytes; `None` means: not set, decided later.

Each field declares its setting in full: option, variable, key of the file and reference page follow from it.
Built by load.py from the user's settings, or directly in code: every field has a default.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from meshd.base.files import expanded, home_folder
from meshd.config import forms
from meshd.config.forms import HostPort, choice, listed, whole
from meshd.config.serve_settings import ClientConfig, ModelConfig, ServeConfig
from meshd.config.setting import Setting, settings_of
from meshd.identity import naming
from meshd.link.transport import LinkKind

DEFAULT_MESH_PORT = 17430  # TCP and UDP; between 17236 and 17499 IANA has given nothing away
MESH_PORT_TRIES = 16  # the default port and its successors, when nobody asked for a port
LINK_KINDS = tuple(kind.value for kind in LinkKind)
METRICS_EXAMPLE = '`node.metrics = "127.0.0.1:9464"`'
DEFAULT_STUN = ("stun.cloudflare.com:3478", "stun.l.google.com:19302")
# A link counts as dead after 4.5 s, and a new one takes a moment. Who asks for an answer waits for minutes.
MIN_GRACE, MAX_GRACE = 10, 140


def host_name() -> str:
    """Return this machine's first name, made fit for a node's name."""
    plain = os.uname().nodename.split(".")[0]
    fit = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in plain).lstrip("-_")
    name = fit[: naming.MAX_NAME_CHARS] or "node"
    return f"{name[: naming.MAX_NAME_CHARS - 2]}-1" if naming.looks_like_id(name) else name


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The identity of this node. `join` is the invite itself once the verb has read it, else empty."""

    name: Annotated[
        str,
        Setting(
            form=forms.NODE_NAME,
            metavar="NAME",
            help="this node's name in the mesh",
            default="the last one given, else the host name",
            example='"garage"',
            more="1 to 63 letters, digits, dots, hyphens or underscores; the home keeps it.",
        ),
    ] = field(default_factory=host_name)
    join: Annotated[
        str,
        Setting(
            form=forms.JOIN,
            metavar="INVITE",
            secret=True,
            help="join a mesh: the invite, @FILE, or - for standard input; needed once",
            example='"@invite.txt"',
            more="A restart needs no invite. It is a secret: keep it in a file that only you can read.",
        ),
    ] = field(default="", repr=False)
    give_models: Annotated[
        str,
        Setting(
            form=choice("own", "off"),
            env="MESHD_GIVE_MODELS",
            help="models that members may list and copy: own or off",
            more="`own`: the models this node was started with, and those in meshd's own folder. Members "
            "need the role `use`.",
        ),
    ] = "own"
    waiting: Annotated[
        str,
        Setting(
            form=choice("auto", "timed", "poll", "sleep"),
            env="MESHD_WAITING",
            help="how threads wait for the next message: timed (sleep until shortly before it is due), poll, "
            "sleep, or auto",
            more="`auto`: `timed`, but `sleep` with fewer than four processors, and in llama.cpp's programs "
            "with fewer than eight. `poll` is a little faster, and keeps several processors of each node "
            "busy while it generates. A mesh-server that lends a CPU sleeps with `auto`.",
        ),
    ] = "auto"

    sandbox: Annotated[
        str,
        Setting(
            form=choice("auto", "on", "off"),
            env="MESHD_SANDBOX",
            help="confine llama.cpp's programs as far as the system can (auto), always (on) or not (off)",
            more="On Linux they can use their libraries, GPUs, model files and inherited sockets; no other "
            "files, processes or networks. `on` starts none unconfined; macOS confines only with it.",
        ),
    ] = "auto"
    metrics: Annotated[
        HostPort | None,
        Setting(
            form=forms.ADDRESS,
            env="MESHD_METRICS",
            help="address on loopback where Prometheus can scrape this node",
            default="none",
            example='"127.0.0.1:9464"',
            more="Any user of this machine can read the metrics there. A node with an API also has them at "
            "`/metrics`; `meshd metrics` prints them.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The lines to log, and their format."""

    format: Annotated[
        str,
        Setting(
            form=choice("text", "json"),
            option="--log-format",
            metavar="text|json",
            help="format of log lines: text or json",
        ),
    ] = "text"
    level: Annotated[
        str,
        Setting(
            form=choice("debug", "info", "warning", "error"),
            option="--log-level",
            metavar="LEVEL",
            help="lowest level to log: debug, info, warning or error",
            more="That level and above are written.",
        ),
    ] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksConfig:
    """The way to reach other nodes. `listen` None: the port kept from before, else the first free of
    `MESH_PORT_TRIES` from `DEFAULT_MESH_PORT`, on all addresses.
    """

    listen: Annotated[
        HostPort | None,
        Setting(
            form=forms.ADDRESS,
            metavar="HOST:PORT",
            help="address and port of the mesh, TCP and UDP; `:PORT` for all addresses; port 0 picks a free "
            "one",
            default="all addresses; the port used last, or the first free one from 17430 up",
            example='":17430"',
            more='"HOST:PORT", or ":PORT" for all addresses. If the port is taken, that is an error; without '
            "this setting the first free of 16 is used, and kept.",
        ),
    ] = None
    kinds: Annotated[
        tuple[str, ...],
        Setting(
            form=listed(choice(*LINK_KINDS), unique=True),
            option="--links",
            metavar="KIND,…",
            help=f"kinds of connection to use, separated by commas: {', '.join(LINK_KINDS)}",
            default="all",
            more="Restrict them only to find a fault.",
        ),
    ] = LINK_KINDS
    stun: Annotated[
        tuple[str, ...],
        Setting(
            form=listed(forms.STUN, none="none"),
            metavar="HOST:PORT",
            repeat=True,
            help="STUN servers, which report this node's public address; `none` disables STUN",
            more="Needed for hole punching. [] disables STUN; relays and other members are then asked "
            "instead.",
        ),
    ] = DEFAULT_STUN
    relays: Annotated[
        tuple[str, ...],
        Setting(
            form=listed(forms.WORD),
            option="--relay",
            metavar="URL",
            repeat=True,
            help="URLs of relays, as `meshd relay` prints them",
        ),
    ] = ()
    max_upload: Annotated[
        int | None,
        Setting(
            form=forms.RATE,
            metavar="RATE",
            help="upload limit of this node per second, such as 20Mbit or 2.5MB",
            default="no limit",
            example='"20Mbit"',
            more="For all peers together; Mbit counts bits, MB bytes.",
        ),
    ] = None
    grace: Annotated[
        int,
        Setting(
            form=whole(MIN_GRACE, MAX_GRACE),
            metavar="SECONDS",
            help="how long requests wait for an unreachable worker; the lower of both nodes' values applies",
            more="In seconds, 10 to 140.",
        ),
    ] = 120
    no_mdns: Annotated[
        bool,
        Setting(
            form=forms.BOOLEAN,
            help="disable mDNS (finding nodes on the local network)",
        ),
    ] = False
    no_portmap: Annotated[
        bool,
        Setting(
            form=forms.BOOLEAN,
            help="do not ask the router to map a port (PCP, NAT-PMP, UPnP)",
        ),
    ] = False
    no_relaying: Annotated[
        bool,
        Setting(
            form=forms.BOOLEAN, env="MESHD_NO_RELAYING", help="do not forward traffic between other members"
        ),
    ] = False
    no_local: Annotated[
        bool,
        Setting(
            form=forms.BOOLEAN,
            env="MESHD_NO_LOCAL",
            help="send traffic to and from workers on this machine over the encrypted link as well",
        ),
    ] = False
    compress: Annotated[
        str,
        Setting(
            form=choice("auto", "on", "off"),
            env="MESHD_COMPRESS",
            help="compress traffic to and from workers; auto: where that is faster",
            more="`auto` compresses everything on a slow or relayed path, only repetitions on a fast path "
            'over a distance, and nothing on one machine or a wired network. With "off", a worker accepts no '
            "compressed traffic.",
        ),
    ] = "auto"

    @property
    def is_local(self) -> bool:
        """Tell whether bytes to and from a worker on this machine go past the link."""
        return not self.no_local and self.compress != "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The devices and files that a worker lends. No `devices`: all that the backend finds. `memory` is bytes
    for each device, `threads` those of its CPU.

    `models`: paths, and names (text) until the verb has found them.
    """

    models: Annotated[
        tuple[Path | str, ...],
        Setting(
            form=listed(forms.MODEL, comma=False),
            option="--model",
            metavar="FILE|NAME",
            repeat=True,
            help="use this machine's own copies of models instead of downloading layers: GGUF files or names",
            default="download layers",
            more="Weights are found there by content, whatever the file is called.",
            names_models=True,
        ),
    ] = ()
    devices: Annotated[
        tuple[str, ...],
        Setting(
            form=listed(forms.WORD),
            option="--device",
            metavar="DEV",
            repeat=True,
            help="devices to lend, as `meshd doctor` names them",
            default="all GPUs, else the CPU",
            more='Names are "CPU", "CUDA0", "Metal" and the like.',
        ),
    ] = ()
    memory: Annotated[
        int | None,
        Setting(
            form=forms.LENT_MEMORY,
            metavar="SIZE",
            help="maximum memory to lend per device, such as 8G or 512M",
            default="all that is free",
            example='"8G"',
            more='For all heads together. In bytes, or text: "8G", "512M", "1GiB" in powers of 1024, "8GB" '
            "in powers of 1000.",
        ),
    ] = None
    threads: Annotated[
        int | None,
        Setting(
            form=whole(1, 1024),
            metavar="N",
            help="CPU threads to compute with",
            default="half of the processors that the node may use",
            example="8",
            more="Half is right with hyper-threading, and too few without (Apple, ARM, many virtual "
            "machines).",
        ),
    ] = None
    keep_weights: Annotated[
        int,
        Setting(
            form=forms.SIZE_OR_NONE,
            metavar="SIZE",
            help="downloaded weights to keep on disk for later loads; 0 keeps none",
            default="20G",
            example='"20G"',
            more="They are in the cache (`tensors`); the least recently used are evicted first, and half of "
            "the free disk always stays free. With 0, weights kept by this user's other nodes stay.",
        ),
    ] = 20 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The folders. `home` holds all state of one node, `cache` what can be created again."""

    home: Annotated[
        Path,
        Setting(
            form=forms.PATH,
            env="MESHD_HOME",
            in_file=False,
            help="state of this node: identity, membership, control socket, logs",
            default="see Folders",
        ),
    ] = field(default_factory=lambda: find_home(os.environ))
    cache: Annotated[
        Path,
        Setting(
            form=forms.PATH,
            env="MESHD_CACHE",
            in_file=False,
            help="native builds, downloads, hashes of model files, downloaded weights; all can be recreated",
            default="see Folders",
        ),
    ] = field(default_factory=lambda: find_cache(os.environ))
    native_bin: Annotated[
        Path | None,
        Setting(
            form=forms.PATH,
            metavar="DIR",
            help="directory with llama.cpp's binaries",
            default="meshd's own build",
            example='"/opt/llama.cpp/bin"',
            more="`meshd native build` builds them into the cache.",
        ),
    ] = None

    @property
    def logs(self) -> Path:
        """The folder of the daemon's log `meshd.log` and one `NAME.log` for each child; `meshd logs` reads
        it.
        """
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

    @property
    def served(self) -> tuple[ServeConfig, ...]:
        """The settings of each model that a node serves."""
        return tuple(model.serve for model in self.models) or (self.serve,)


def find_home(environ: Mapping[str, str]) -> Path:
    """Return MESHD_HOME, else the platform's folder for state of a user (XDG base directory,
    Apple's guide).
    """
    if given := environ.get("MESHD_HOME"):
        return expanded(given).absolute()
    if sys.platform == "darwin":
        return home_folder() / "Library" / "Application Support" / "meshd"
    else:
        return _xdg(environ, "XDG_STATE_HOME", ".local/state") / "meshd"


def find_cache(environ: Mapping[str, str]) -> Path:
    """Return MESHD_CACHE, else the user's cache folder + `meshd`."""
    if given := environ.get("MESHD_CACHE"):
        return expanded(given).absolute()
    if sys.platform == "darwin":
        return home_folder() / "Library" / "Caches" / "meshd"
    else:
        return _xdg(environ, "XDG_CACHE_HOME", ".cache") / "meshd"


def _xdg(environ: Mapping[str, str], name: str, default: str) -> Path:
    given = environ.get(name, "")
    # the XDG specification wants relative paths ignored
    return Path(given) if given.startswith("/") else home_folder() / default


def home_here() -> Path:
    """Return the home that this process's environment names."""
    return find_home(os.environ)


SETTINGS: tuple[Setting, ...] = (
    *settings_of(NodeConfig, "node"),
    *settings_of(LogConfig, "log"),
    *settings_of(LinksConfig, "links"),
    *settings_of(WorkerConfig, "worker"),
    *settings_of(ServeConfig, "serve"),
    *settings_of(ClientConfig, "client"),
    *settings_of(Paths, "paths"),
)
VARIABLES = (
    *("MESHD_HOME", "MESHD_CACHE", "MESHD_CONFIG"),
    *(setting.variable for setting in SETTINGS if setting.variable),
)
"""All variables of the environment that are settings."""
