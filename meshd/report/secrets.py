"""Find the secrets of this node: in its home, environment, settings and command line, and in files they name.

Whatever the state of these places, the files are read as they are: a damaged file may hold a whole key.
"""

import os
import pwd
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from meshd.base.errors import UserError
from meshd.base.files import expanded, in_home, read_regular
from meshd.config.tree import DEFAULT_STUN, SETTINGS, VARIABLES
from meshd.identity.folder import DAEMON, INVITE, MEMBERSHIP, lock_holder
from meshd.identity.keystore import IDENTITY
from meshd.identity.recovery_code import write_code
from meshd.library.hub_cache import cache_folder
from meshd.report.scrub import LOCAL_NAMES

_MOST_BYTES = 4 << 20  # of a file that may hold secrets
_MOST_FILES = 200  # of a home or a directory of credentials
# A key, a mesh's root key, and an invite's secret, as msgpack has them in files that no other node words: in
# the address book, a member could place a text that would then be removed from the report as a secret.
_OWN_STATE = (IDENTITY, MEMBERSHIP, "invites")
_IN_STATE = re.compile(rb"\xa4(seed|root)\xc4\x20(.{32})|\xa6secret\xc4\x10(.{16})", re.DOTALL)
_RAW_STATE = "portmap.blob"  # random bytes, by which a router knows this node
_NAMED_LIKE_SECRETS = re.compile(
    "token|secret|passw|passphrase|api_?key|access_?key|private_?key|_key$|^key$|credential|auth(?!or)"
    "|cookie|headers",
    re.IGNORECASE,
)
_IN_CONFIG = re.compile(
    r"""^\s*(?:[\w.]+\.)?(join|api_key_file)\s*=\s*["']([^"'\n]{1,4096})["']""", re.MULTILINE
)
_LLAMA_ARGS = re.compile(r"\bllama_args\s{0,9}=\s{0,9}\[([^\]]{1,16384})")
_STRING = re.compile(r"""\"((?:[^"\\\n]|\\.){0,4096})\"|'([^'\n]{0,4096})'""")
_SECRET_VARIABLES = frozenset(setting.variable for setting in SETTINGS if setting.secret)
_SECRET_OPTIONS = frozenset(setting.option for setting in SETTINGS if setting.secret)
_LONG_WORD = 16  # characters of a word in a file of secrets that is one, wherever it stands
_SERVICE_USERS = frozenset(
    {
        *(
            "root",
            "meshd",
            "nobody",
            "user",
            "users",
            "admin",
            "home",
            "ubuntu",
            "debian",
            "fedora",
            "vagrant",
        ),
        *("docker", "runner", "node", "worker", "serve", "client", "relay", "mesh", "model", "default"),
    }
)
_LEAST_USER = 3
_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,62})\.){1,10}[a-z][a-z0-9-]{1,62}", re.IGNORECASE)


@dataclass(slots=True)
class FoundSecrets:
    """The values, where each kind was found, and the places that could not be searched, with the reason."""

    values: set[bytes] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, value: str | bytes) -> None:
        """Add one secret; empty ones are none."""
        raw = value.encode(errors="replace") if isinstance(value, str) else value
        if raw.strip() and raw not in self.values:
            self.values.add(raw)
            self.counts[kind] = self.counts.get(kind, 0) + 1

    def read(self, path: Path) -> bytes:
        """Return the content of a file; nothing if there is none, or it cannot be read, which is noted."""
        try:
            return read_regular(path, _MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        except OSError as error:
            self.unread[str(path)] = (error.strerror or type(error).__name__).lower()
            return b""

    def add_words(self, kind: str, path: Path) -> None:
        """Add the secrets of a text file: the first word of each line, and all long words."""
        for line in self.read(path).decode(errors="replace").splitlines():
            words = line.replace("=", " ").split()
            for at, word in enumerate(words):
                if len(word) >= _LONG_WORD or (at == 0 and not word.startswith("#")):
                    self.add(kind, word)

    def files_of(self, folder: Path) -> list[Path]:
        """Return the files of a folder; none if there is no folder, or it cannot be read, which is noted."""
        try:
            return sorted(path for path in folder.iterdir() if path.is_file())[:_MOST_FILES]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.unread[str(folder)] = (error.strerror or type(error).__name__).lower()
            return []


@dataclass(frozen=True, slots=True)
class RunningNode:
    """The process of a daemon: the words and variables with which it was started, and its folder."""

    pid: int
    command: Sequence[str]
    environ: Mapping[str, str]
    folder: Path


def running_node(home: Path) -> RunningNode | None:
    """Return the daemon of this home; None without any, or where its process does not show this (macOS)."""
    pid = lock_holder(home, purpose=DAEMON)
    if pid is None:
        return None
    process = Path("/proc", str(pid))
    try:
        command, environ = ((process / name).read_bytes() for name in ("cmdline", "environ"))
        folder = (process / "cwd").readlink()
    except OSError:
        return None
    words = [os.fsdecode(word) for word in command.split(b"\0") if word]
    pairs = (os.fsdecode(word).partition("=") for word in environ.split(b"\0") if word)
    return RunningNode(pid, words, {name: value for name, _, value in pairs}, folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where secrets may be: homes, variables, words of command lines, configuration files and settings.

    `key_files`: with API keys. `invites`: as a setting has one, which may name a file, relative to `folder`.
    """

    homes: Sequence[Path]
    environs: Sequence[Mapping[str, str]]
    command: Sequence[str] = ()
    configs: Sequence[Path] = ()
    key_files: Sequence[Path] = ()
    invites: Sequence[str] = ()
    folder: Path = field(default_factory=Path.cwd)


def find_secrets(places: Places) -> FoundSecrets:
    """Search all places."""
    found = FoundSecrets()
    for home in places.homes:
        _in_home(home, found)
    for environ in places.environs:
        _in_environment(environ, places.folder, found)
    for config in places.configs:
        _in_config(config, found)
    _in_command(places.command, places.folder, found)
    for invite in places.invites:
        _invite(invite, places.folder, found)
    for file in places.key_files:
        found.add_words("API key", file)
    return found


def _in_home(home: Path, found: FoundSecrets) -> None:
    for path in found.files_of(home):
        if path.name == INVITE:
            found.add("invite", found.read(path).decode(errors="replace").strip())
        if not path.name.startswith((*_OWN_STATE, _RAW_STATE)):
            continue
        data = found.read(path)
        if path.name == _RAW_STATE:
            found.add("key", data.split(b"\n", 2)[-1])
        for match in _IN_STATE.finditer(data):
            found.add("key" if match[2] else "invite", match[2] or match[3])
            if match[1] == b"root":
                code = write_code(match[2])
                found.values |= {code.encode(), code.replace(" ", "-").encode()}


def _in_environment(environ: Mapping[str, str], folder: Path, found: FoundSecrets) -> None:
    for name, value in environ.items():
        if name in _SECRET_VARIABLES:
            _invite(value, folder, found)
        elif (
            name not in VARIABLES
            and _NAMED_LIKE_SECRETS.search(name)
            and not value.startswith(("/", "~", "."))
        ):
            found.add("variable", value)
        if "://" in value:
            with suppress(ValueError):
                if password := urlsplit(value).password:
                    found.add("variable", password)
                    found.add("variable", unquote(password))
    with suppress(UserError):
        _of_hub(environ, found)
    if credentials := environ.get("CREDENTIALS_DIRECTORY"):
        for path in found.files_of(Path(credentials)):
            found.add_words("credential", path)


def _of_hub(environ: Mapping[str, str], found: FoundSecrets) -> None:
    """Add the tokens that the hub's library keeps."""
    folder = expanded(environ.get("HF_HOME", str(cache_folder(environ).parent)))
    for path in {
        expanded(environ.get("HF_TOKEN_PATH", str(folder / "token"))),
        expanded(environ.get("HF_STORED_TOKENS_PATH", str(folder / "stored_tokens"))),
        in_home(".huggingface/token"),
    }:
        found.add_words("hub token", path)


def _in_config(config: Path, found: FoundSecrets) -> None:
    """Add what a configuration names, even if it is not valid TOML."""
    text = found.read(config).decode(errors="replace")
    for arguments in _LLAMA_ARGS.findall(text):
        words = [double or single for double, single in _STRING.findall(arguments)]
        _in_command(words, config.parent, found)
    for name, value in _IN_CONFIG.findall(text):
        if name == "join":
            _invite(value, config.parent, found)
        else:
            with suppress(UserError):
                found.add_words("API key", config.parent / expanded(value))


def _in_command(words: Sequence[str], folder: Path, found: FoundSecrets) -> None:
    """Add the values of options with secrets, also of other programs' behind `--`."""
    for option, value in _options(words):
        if option in _SECRET_OPTIONS:
            _invite(value, folder, found)
        elif _NAMED_LIKE_SECRETS.search(option.replace("-", "_")) and not option.endswith("file"):
            found.add("option", value)


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for at, word in enumerate(words):
        if word.startswith("--") and "=" in word:
            option, _, value = word.partition("=")
            yield option, value
        elif word.startswith("-") and at + 1 < len(words):
            yield word, words[at + 1]


def _invite(given: str, folder: Path, found: FoundSecrets) -> None:
    """Add an invite, or the one in the file that is named."""
    given = given.strip()
    if not given.startswith("@"):
        found.add("invite", given)
        return
    with suppress(UserError, ValueError):
        found.add("invite", found.read(folder / expanded(given[1:])).decode(errors="replace").strip())


def names_of_user(environs: Iterable[Mapping[str, str]]) -> tuple[set[str], set[str]]:
    """Return the paths of this user's home directory, and the names by which a person is known."""
    names, paths = set(), set()
    for environ in environs:
        names |= {environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")}
        paths.add(environ.get("HOME", ""))
    with suppress(KeyError):
        about = pwd.getpwuid(os.geteuid())
        names.add(about.pw_name)
        paths.add(about.pw_dir)
    with suppress(OSError, ValueError):
        paths |= {str(Path(path).resolve()) for path in paths if path}
    homes = {path.rstrip("/") for path in paths if path.startswith("/") and path.rstrip("/")}
    names |= {Path(home).name for home in homes}
    return homes, {name for name in names if len(name) >= _LEAST_USER and name.lower() not in _SERVICE_USERS}


def public_hosts(texts: Iterable[str], *, known: Collection[str] = DEFAULT_STUN) -> set[str]:
    """Return the host names in settings that lead to somebody: not those of meshd's defaults or of a LAN."""
    usual = {host.lower() for place in known for host in _HOST.findall(place)}
    named = {host for text in texts for host in _HOST.findall(text)}
    return {host for host in named if host.lower() not in usual and not host.lower().endswith(LOCAL_NAMES)}
