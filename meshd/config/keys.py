"""The list of everything that can be set: options, variables and file keys all follow from it."""

from dataclasses import dataclass

from meshd.config import forms
from meshd.config.forms import Form, choice, listed, whole
from meshd.config.tree import LINK_KINDS

ROLES = ("worker", "serve")
LOAD_MODES = ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")  # llama.cpp's, of the pinned version


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting: where it stands in the tree and in the file, and by which other ways it is given.

    `switch`: the option takes no value. `repeat`: it may be given several times. `roles`: the verbs that
    have the option. `secret`: its value is never shown. `list_separator` divides a variable's value.
    """

    section: str
    field: str
    form: Form
    help: str
    option: str = ""
    env: str = ""
    metavar: str = ""
    roles: tuple[str, ...] = ROLES
    repeat: bool = False
    switch: bool = False
    secret: bool = False
    in_file: bool = True
    list_separator: str = ""

    @property
    def name(self) -> str:
        """`section.field`, as in the file and in `meshd config show`."""
        return f"{self.section}.{self.field}"

    @property
    def variable(self) -> str:
        """The environment's name for it: the option's in capitals, unless there is no option."""
        if self.env or not self.option:
            return self.env
        return "MESHD_" + self.option.removeprefix("--").replace("-", "_").upper()


_PORT = whole(0, 65535)
_PATH_LIST = listed(forms.PATH, comma=False)
_DEVICES = listed(forms.WORD)

KEYS: tuple[Key, ...] = (
    Key(
        section="node",
        field="name",
        form=forms.NODE_NAME,
        option="--name",
        metavar="NAME",
        help="this node's name in the mesh (default: the host's)",
    ),
    Key(
        section="node",
        field="join",
        form=forms.JOIN,
        option="--join",
        metavar="TOKEN",
        secret=True,
        help="join a mesh by an invite: the token, @FILE, or - to read standard input; needed once only",
    ),
    Key(
        section="log",
        field="format",
        form=choice("text", "json"),
        option="--log-format",
        metavar="FORM",
        help="log lines as text or json (default: text)",
    ),
    Key(
        section="log",
        field="level",
        form=choice("debug", "info", "warning", "error"),
        option="--log-level",
        metavar="LEVEL",
        help="debug, info, warning or error (default: info)",
    ),
    Key(
        section="links",
        field="listen",
        form=forms.ADDRESS,
        option="--listen",
        metavar="HOST:PORT",
        help="mesh port, TCP and UDP; port 0 picks one (default: the one used before, else 17430 and up)",
    ),
    Key(
        section="links",
        field="kinds",
        form=listed(choice(*LINK_KINDS), unique=True),
        option="--links",
        metavar="KIND,…",
        list_separator=",",
        help=f"kinds of link that may be used, of {','.join(LINK_KINDS)} (default: all)",
    ),
    Key(
        section="links",
        field="stun",
        form=listed(forms.STUN, none="none"),
        option="--stun",
        metavar="HOST:PORT",
        repeat=True,
        list_separator=",",
        help="STUN server that tells this node its outer address, may repeat; none for no server",
    ),
    Key(
        section="links",
        field="relays",
        form=listed(forms.WORD),
        option="--relay",
        metavar="URL",
        repeat=True,
        list_separator=",",
        help="relay, by the URL that it prints at its start, may repeat",
    ),
    Key(
        section="links",
        field="max_upload",
        form=forms.RATE,
        option="--max-upload",
        metavar="RATE",
        help="the most that this node sends to all others together, as 20Mbit or 2.5MB (default: no limit)",
    ),
    Key(
        section="links",
        field="no_mdns",
        form=forms.BOOLEAN,
        option="--no-mdns",
        switch=True,
        help="neither announce this node on the local network nor look for others there",
    ),
    Key(
        section="links",
        field="no_portmap",
        form=forms.BOOLEAN,
        option="--no-portmap",
        switch=True,
        help="do not ask the home router for a port (PCP, NAT-PMP, UPnP)",
    ),
    Key(
        section="links",
        field="no_relaying",
        form=forms.BOOLEAN,
        option="--no-relaying",
        switch=True,
        help="pass nothing on between members that reach each other only through this node",
    ),
    Key(
        section="worker",
        field="models",
        form=_PATH_LIST,
        option="--model",
        metavar="FILE",
        roles=("worker",),
        repeat=True,
        list_separator=":",
        help="GGUF file this worker has, may repeat; without one it gets its weights over the mesh",
    ),
    Key(
        section="worker",
        field="devices",
        form=_DEVICES,
        option="--device",
        metavar="DEV",
        roles=("worker",),
        repeat=True,
        list_separator=",",
        help="device to lend, as llama.cpp names it, may repeat (default: all of the backend)",
    ),
    Key(
        section="worker",
        field="memory",
        form=forms.SIZE,
        option="--memory",
        metavar="SIZE",
        roles=("worker",),
        help="most memory to lend of each device, such as 8G or 512M (default: what is free)",
    ),
    Key(
        section="serve",
        field="model",
        form=forms.PATH,
        option="--model",
        metavar="FILE",
        roles=("serve",),
        help="GGUF file to serve",
    ),
    Key(
        section="serve",
        field="host",
        form=forms.WORD,
        option="--host",
        metavar="HOST",
        roles=("serve",),
        help="address of the API (default: 127.0.0.1); any other needs --api-key-file",
    ),
    Key(
        section="serve",
        field="port",
        form=_PORT,
        option="--port",
        metavar="PORT",
        roles=("serve",),
        help="port of the API; 0 picks one (default: 8090)",
    ),
    Key(
        section="serve",
        field="min_workers",
        form=whole(0, 64),
        option="--min-workers",
        metavar="N",
        roles=("serve",),
        help="wait for this many workers; 0 runs alone (default: 1)",
    ),
    Key(
        section="serve",
        field="tensor_split",
        form=listed(forms.WEIGHT),
        option="--tensor-split",
        metavar="A,B,…",
        roles=("serve",),
        list_separator=",",
        help="shares of the layers: workers in the order of `meshd status`, then this node's devices",
    ),
    Key(
        section="serve",
        field="ctx_size",
        form=whole(1, 1 << 24),
        option="--ctx-size",
        metavar="N",
        roles=("serve",),
        help="context in tokens (default: the trained one, at most 8192)",
    ),
    Key(
        section="serve",
        field="devices",
        form=_DEVICES,
        option="--device",
        metavar="DEV",
        roles=("serve",),
        repeat=True,
        list_separator=",",
        help="device of this node to compute on, may repeat; none for a head that computes nothing",
    ),
    Key(
        section="serve",
        field="rpc",
        form=listed(forms.PEER_ADDRESS),
        option="--rpc",
        metavar="HOST:PORT",
        roles=("serve",),
        repeat=True,
        list_separator=",",
        help="plain rpc-server without meshd, neither encrypted nor checked; may repeat",
    ),
    Key(
        section="serve",
        field="load_mode",
        form=choice(*LOAD_MODES),
        option="--load-mode",
        metavar="MODE",
        roles=("serve",),
        help=f"how llama-server reads the file: {', '.join(LOAD_MODES)}",
    ),
    Key(
        section="serve",
        field="no_push",
        form=forms.BOOLEAN,
        option="--no-push",
        switch=True,
        roles=("serve",),
        help="activations go through this node, never straight from one worker to the next",
    ),
    Key(
        section="serve",
        field="api_key_file",
        form=forms.PATH,
        option="--api-key-file",
        metavar="FILE",
        roles=("serve",),
        help="file with one API key a line; without it the API asks for none",
    ),
    Key(
        section="serve",
        field="allowed_hosts",
        form=listed(forms.WORD),
        option="--allowed-host",
        metavar="NAME",
        roles=("serve",),
        repeat=True,
        list_separator=",",
        help="further name by which clients may call the API (Host header), may repeat",
    ),
    Key(
        section="serve",
        field="allowed_origins",
        form=listed(forms.WORD),
        option="--allowed-origin",
        metavar="ORIGIN",
        roles=("serve",),
        repeat=True,
        list_separator=",",
        help="site whose pages may call the API, such as https://chat.example, may repeat",
    ),
    Key(
        section="serve",
        field="llama_args",
        form=listed(forms.TEXT, comma=False),
        help="further arguments of llama-server (after -- on the command line)",
        roles=("serve",),
    ),
    Key(
        section="paths",
        field="home",
        form=forms.PATH,
        env="MESHD_HOME",
        in_file=False,
        help="state of this node: identity, membership, control socket, logs",
    ),
    Key(
        section="paths",
        field="cache",
        form=forms.PATH,
        env="MESHD_CACHE",
        in_file=False,
        help="what can be made again: native builds, downloads, hashes of model files",
    ),
    Key(
        section="paths",
        field="native_bin",
        form=forms.PATH,
        option="--native-bin",
        metavar="DIR",
        help="folder with llama.cpp's binaries (default: the build in the cache)",
    ),
)
