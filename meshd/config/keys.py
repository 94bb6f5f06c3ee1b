"""The list of everything that can be set: options, variables, file keys and their pages follow from it."""

from meshd.config import forms
from meshd.config.client_keys import CLIENT_KEYS
from meshd.config.forms import choice
from meshd.config.key import Key
from meshd.config.link_keys import LINK_KEYS
from meshd.config.serve_keys import SERVE_KEYS
from meshd.config.worker_keys import WORKER_KEYS

KEYS: tuple[Key, ...] = (
    Key(
        section="node",
        field="name",
        form=forms.NODE_NAME,
        option="--name",
        metavar="NAME",
        help="this node's name in the mesh",
        default="the last one given, else the host name",
        example='"garage"',
        more="1 to 63 letters, digits, dots, hyphens or underscores; the home keeps it.",
    ),
    Key(
        section="node",
        field="join",
        form=forms.JOIN,
        option="--join",
        metavar="TOKEN",
        secret=True,
        help="join a mesh with an invite token: the token, @FILE, or - for standard input; needed once",
        example='"@token.txt"',
        more="The membership is kept, and a restart needs no token. A secret: better in a file that only "
        "you can read.",
    ),
    Key(
        section="node",
        field="give_models",
        form=choice("own", "caches", "all", "off"),
        option="--give-models",
        metavar="own|caches|all|off",
        help="which of this machine's models members may list and take: own, caches, all or off",
        more="`own`: those that this node was started with, and those of meshd's own folder. `caches`: also "
        "those of Hugging Face's cache and Ollama. `all`: also `~/.models` and LM Studio's. Only members "
        "with the role `use`.",
    ),
    Key(
        section="log",
        field="format",
        form=choice("text", "json"),
        option="--log-format",
        metavar="text|json",
        help="format of log lines: text, for people, or json, for programs",
    ),
    Key(
        section="log",
        field="level",
        form=choice("debug", "info", "warning", "error"),
        option="--log-level",
        metavar="LEVEL",
        help="lowest level to log: debug, info, warning or error",
        more="Lines of that level and above are written.",
    ),
    *LINK_KEYS,
    *WORKER_KEYS,
    *SERVE_KEYS,
    *CLIENT_KEYS,
    Key(
        section="paths",
        field="home",
        form=forms.PATH,
        env="MESHD_HOME",
        in_file=False,
        help="state of this node: identity, membership, control socket, logs",
        default="see Folders",
    ),
    Key(
        section="paths",
        field="cache",
        form=forms.PATH,
        env="MESHD_CACHE",
        in_file=False,
        help="what can be recreated: native builds, downloads, hashes of model files, downloaded weights",
        default="see Folders",
    ),
    Key(
        section="paths",
        field="native_bin",
        form=forms.PATH,
        option="--native-bin",
        metavar="DIR",
        help="directory with llama.cpp's binaries",
        default="meshd's own build",
        example='"/opt/llama.cpp/bin"',
        more="`meshd native build` makes the one in the cache.",
    ),
)
