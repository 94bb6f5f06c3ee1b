"""The kinds of findings: each with what was found, what that means for a node, and the remedy.

This is the only place with their words; the checks fill in values. Findings of a running node and of the
network are worded where they arise (admin/health.py, netcheck/advice.py).
"""

import string
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from meshd.base.errors import BANNED_HINT

State = Literal["ok", "info", "warning", "error"]
REINSTALL = "install meshd again, for example with `pipx reinstall meshd`"
FIX = "or `meshd doctor --fix`"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: `what` was found, what it is `meaning` for a node, and what to do.

    `code` is stable, `name` is the thing. `path`: the file or folder that --fix may mend; else empty.
    """

    code: str
    name: str
    state: State
    what: str
    meaning: str = ""
    hint: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Wording:
    """State and words of one kind; `{…}` stands for the values of a finding."""

    state: State
    name: str
    what: str
    meaning: str = ""
    hint: str = ""

    @property
    def fields(self) -> frozenset[str]:
        """The values that a finding of this kind needs."""
        texts = (self.what, self.meaning, self.hint)
        return frozenset(name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name)


class Kinds(Enum):
    """Kinds of findings; each member's value is its Wording."""

    @property
    def code(self) -> str:
        """The name of this kind for scripts."""
        return self.name.lower()

    def found(self, **values: object) -> Finding:
        """Return a finding with these values: those of its words, and a `path` if there is one."""
        wording: Wording = self.value
        if values.keys() != wording.fields | ({"path"} & values.keys()):
            raise ValueError(f"{self.name} needs {sorted(wording.fields)}, not {sorted(values)}")
        what, meaning, hint = (
            text.format(**values) for text in (wording.what, wording.meaning, wording.hint)
        )
        path = str(values.get("path", ""))
        return Finding(self.code, wording.name, wording.state, what, meaning, hint, path)


class Kind(Kinds):
    """Every kind of finding about this machine, but those about GPUs (gpu_kinds.py)."""

    # -- the installation

    TWO_INSTALLATIONS = Wording(
        "warning",
        "installation",
        "two installations: this one is `{ours}`, and PATH has `{other}`",
        "commands, services and nodes may run different versions",
        "remove one of them: `pipx uninstall meshd`, `uv tool uninstall meshd`, or the folder `.venv`",
    )
    LIBRARY_MISSING = Wording(
        "error",
        "libraries",
        "the Python library `{library}` is missing",
        "commands that need it fail",
        REINSTALL,
    )
    LIBRARY_UNFIT = Wording(
        "error",
        "libraries",
        "the Python library `{library}` is version {installed}; meshd needs {needed}",
        "commands that use it may fail at any time",
        REINSTALL,
    )
    WHEEL_UNUSED = Wording(
        "warning",
        "meshd-native",
        "not used: {why}",
        "its programs belong to another version of meshd",
        "install the wheel of meshd-native that belongs to this meshd, by its file, or uninstall it",
    )
    TEMPORARY_UNWRITABLE = Wording(
        "error",
        "temporary",
        "no directory for temporary files is writable",
        "devices cannot be tried, and builds and downloads fail",
        "free space in `/tmp`, or set TMPDIR to a directory that you can write",
    )

    # -- settings

    CONFIG_UNUSABLE = Wording(
        "error",
        "settings",
        "{why}",
        "no node starts with these settings; the other checks ignore them",
        "{remedy}",
    )
    VARIABLE_UNKNOWN = Wording(
        "warning",
        "settings",
        "{why}",
        "it has no effect, and may be mistyped",
        "{remedy}",
    )
    SETTINGS_READABLE = Wording(
        "warning",
        "settings",
        "other users can read `{path}`, which contains an invite (mode {mode})",
        "they can join your mesh with it",
        f"run `chmod 600 {{path}}`, {FIX}; if others use this machine, run `meshd invite revoke`",
    )
    KEYS_READABLE = Wording(
        "error",
        "API keys",
        "other users can read the API keys in `{path}` (mode {mode})",
        "they can use the API; `meshd serve` refuses such a file",
        f"run `chmod 600 {{path}}`, {FIX}; if others use this machine, replace the keys",
    )
    KEYS_UNUSABLE = Wording(
        "error",
        "API keys",
        "{why}",
        "`meshd serve` does not start with it",
        "{remedy}",
    )
    API_OPEN = Wording(
        "error",
        "API",
        "the API listens on `{host}`, and no keys are required",
        "anyone who can reach this machine could use it; `meshd serve` refuses that",
        "require API keys with `--api-key-file FILE`, or listen on 127.0.0.1",
    )
    RELAY_UNREADABLE = Wording(
        "error",
        "relays",
        "{why}",
        "no node starts with that relay",
        "{remedy}",
    )

    # -- the home

    HOME = Wording("ok", "home", "`{path}` is writable, {free} free")
    HOME_UNWRITABLE = Wording(
        "error",
        "home",
        "`{path}` cannot be written: {why}",
        "a node keeps its key and its membership there, and does not start without them",
        "free space on that disk, check its owner and that it is mounted read-write, or set MESHD_HOME",
    )
    HOME_FOREIGN = Wording(
        "error",
        "home",
        "`{path}` belongs to {owner}",
        "a node refuses a home of another user, who could read its key",
        "run meshd as that user, or set MESHD_HOME to a directory of your own; if meshd was once run with "
        "sudo: `sudo chown -R {user} {path}`",
    )
    HOME_READABLE = Wording(
        "warning",
        "home",
        "other users can enter `{path}` (mode {mode})",
        "they see names and sizes of its files until the next start of a node, which closes it",
        f"run `chmod 700 {{path}}`, {FIX}",
    )
    HOME_CHANGEABLE = Wording(
        "error",
        "home",
        "other users can write to `{path}` (mode {mode})",
        "they can replace this node's key and membership, so a node does not start",
        f"check that its files are yours, then run `chmod 700 {{path}}`, {FIX}",
    )
    STATE_READABLE = Wording(
        "error",
        "home",
        "other users can read `{path}` (mode {mode})",
        "it may hold secrets of this node, which does not start with it",
        f"run `chmod 600 {{path}}`, {FIX}; if others use this machine, consider its secrets exposed",
    )
    STATE_FOREIGN = Wording(
        "error",
        "home",
        "`{path}` belongs to {owner}",
        "this user's node cannot use it; meshd was probably run with sudo",
        "run `sudo chown {user} {path}`, and run meshd without sudo",
    )
    STATE_DAMAGED = Wording(
        "error", "home", "{why}", "a node does not start, as it would lose what the file held", "{remedy}"
    )
    STATE_NEWER = Wording(
        "error", "home", "{why}", "this version of meshd does not start with it", "{remedy}"
    )
    KEYS_DIFFER = Wording(
        "error", "home", "{why}", "other members would refuse this node, so it does not start", "{remedy}"
    )
    BANNED = Wording(
        "error",
        "membership",
        "this node is banned from its mesh `{mesh}`",
        "other members refuse it",
        BANNED_HINT,
    )
    DISK_LOW = Wording(
        "warning",
        "disk",
        "only {free} are free for `{path}`",
        "once the disk is full, a node keeps changes in memory only, and downloads fail",
        "free space there, for example with `meshd model rm NAME`, or set {variable} to another disk",
    )
    INODES_USED_UP = Wording(
        "error",
        "disk",
        "the disk of `{path}` has no free inodes",
        "no file can be created there, although {free} are free",
        "remove small files on that disk, or set {variable} to another one",
    )
    NETWORK_DISK = Wording(
        "warning",
        "disk",
        "`{path}` is on a network file system ({kind})",
        "locks may not work there, so that two machines could use it at once, and loads are slow",
        "set {variable} to a directory on a disk of this machine",
    )
    SOCKET_PATH = Wording(
        "error",
        "home",
        "{why}",
        "a node cannot listen for commands such as `meshd status`, and does not start",
        "{remedy}",
    )
    SOCKET_STALE = Wording(
        "warning",
        "home",
        "`{path}` was left by a node that is gone",
        "nothing answers there: that node was killed, or the machine lost power",
        "run `meshd doctor --fix`, or start the node again",
    )
    FILES_LEFT = Wording(
        "warning",
        "home",
        "{count} temporary files were left in `{path}`",
        "a node was killed while it wrote them; they are useless",
        "run `meshd doctor --fix`",
    )

    # -- the cache

    CACHE_UNWRITABLE = Wording(
        "error",
        "cache",
        "`{path}` cannot be written: {why}",
        "models and weights cannot be downloaded, and each start measures the devices again",
        "free space there, check its owner and how it is mounted, or set MESHD_CACHE to another folder",
    )
    CACHE_NOEXEC = Wording(
        "warning",
        "cache",
        "`{path}` is mounted noexec: programs that are built there cannot be started",
        "`meshd native build` is useless there",
        "check how it is mounted, or set MESHD_CACHE to another folder",
    )
    CACHE_CHANGEABLE = Wording(
        "error",
        "cache",
        "other users can write to `{path}` (mode {mode})",
        "they can replace programs and models that this node uses",
        f"check that its files are yours, then run `chmod go-w {{path}}`, {FIX}",
    )
    DOWNLOADS_LEFT = Wording(
        "warning",
        "cache",
        "{size} of interrupted downloads were left in `{path}`",
        "these downloads will not continue, and take space",
        "run `meshd doctor --fix`",
    )

    # -- the API

    CHAT_PAGE = Wording("ok", "chat page", "llama.cpp's web UI, release {release}")
    CHAT_PAGE_SMALL = Wording(
        "info",
        "chat page",
        "a small one: this build of meshd does not have llama.cpp's web UI",
        "a browser shows text alone, and keeps no chats",
        "install a wheel of meshd, or run `make chat` in a checkout",
    )
    CHAT_PAGE_OTHER = Wording(
        "warning",
        "chat page",
        "llama.cpp's web UI of release {release}; this meshd uses {pinned}",
        "parts of the page may not work",
        "run `make chat` in the checkout, or install meshd again",
    )

    # -- llama.cpp

    NATIVE = Wording("ok", "llama.cpp", "{build}, with meshd's backend ({protocol}), in {folder}")
    NATIVE_MISSING = Wording(
        "error", "llama.cpp", "{why}", "this machine can lend no device, and serve no model", "{remedy}"
    )
    COMPILER_MISSING = Wording("error", "compiler", "{why}", "llama.cpp cannot be built here", "{remedy}")
    TOOLS_MISSING = Wording("error", "build tools", "{why}", "llama.cpp cannot be built here", "{remedy}")
    PROGRAMS = Wording("ok", "backend", "version {version}; `{program}` loads `{module}`")
    PROGRAM_FAILS = Wording("error", "backend", "{why}", "no model can be loaded", "{remedy}")
    PROGRAM_LACKS_LIBRARY = Wording(
        "error", "backend", "{why}", "the program needs a library that is not installed", "{remedy}"
    )
    C_LIBRARY_OLD = Wording(
        "error", "backend", "{why}", "the program was built for a newer system than this one", "{remedy}"
    )
    PROCESSOR_LACKS_INSTRUCTIONS = Wording(
        "error",
        "backend",
        "{why}",
        "the program was built for a different processor",
        "{remedy}",
    )
    PROGRAM_OTHER_VERSION = Wording(
        "error",
        "backend",
        "{why}",
        "meshd's backend and llama.cpp must come from the same release",
        "{remedy}",
    )
    COMMIT_UNKNOWN = Wording(
        "warning",
        "backend",
        "`{program}` is llama.cpp {release}; it does not report its commit",
        "another commit could compute nonsense, or crash",
        "it works if it was built from commit {commit}; build it in a clone of llama.cpp to be sure",
    )
    PROCESSOR_OLD = Wording(
        "warning",
        "processor",
        "this processor has no AVX2",
        "it computes several times slower than a newer processor",
        "lend a GPU, or leave this machine out: `meshd serve --workers` names the workers to use",
    )
    DEVICE = Wording("ok", "device", "{what}")
    DEVICES_MISSING = Wording(
        "error", "device", "{why}", "this machine has nothing to compute with", "{remedy}"
    )
    DEVICE_UNFIT = Wording(
        "error",
        "device",
        "{device}: {why}",
        "the device is not used, as it would compute nonsense or crash",
        "try another driver; a model that needs fewer operations may still run on it",
    )
    BUILD_UNTIMED = Wording("ok", "build", "`{folder}` is not used: not all devices could be timed now")
    BUILD_SLOWER = Wording(
        "ok", "build", "`{folder}` is not used: {device} there takes {times} times as long"
    )
    BUILD_UNUSED = Wording(
        "warning",
        "build",
        "`{folder}` is not used: {why}",
        "another build is used, and devices of this one may be idle",
        "{remedy}",
    )

    # -- the machine

    SANDBOX = Wording("ok", "sandbox", "native programs are confined by {parts}")
    SANDBOX_OFF = Wording(
        "warning",
        "sandbox",
        "native programs are not confined: `node.sandbox` is off",
        "a fault in llama.cpp could reach your files and other processes",
        "set it to `auto` again if your GPU's driver works in the sandbox",
    )
    SANDBOX_PARTIAL = Wording(
        "warning",
        "sandbox",
        "native programs are {confined} on this system",
        "a fault in llama.cpp could reach your files or other processes",
        "use Linux 5.13 or later, with seccomp and Landlock (boot option `lsm=`)",
    )
    SANDBOX_UNTRIED = Wording(
        "warning",
        "sandbox",
        "native programs are not confined",
        "a fault in llama.cpp could reach your files and other processes",
        "set `node.sandbox` to `on` to try macOS's sandbox; tell us whether your GPU works with it",
    )
    MEMORY_LIMIT = Wording("ok", "memory limit", "{limit}, {free} free (`{group}`)")
    MEMORY_SHORT = Wording(
        "warning",
        "memory",
        "only {free} of memory is free",
        "models may not fit, or the kernel may kill programs to free memory",
        "close other programs, or raise the memory limit of this container or service",
    )
    MEMORY_PRESSURE = Wording(
        "warning",
        "memory",
        "for {percent} % of the last minute all programs waited for memory, which is swapped or read again",
        "tokens take many times as long, and other machines may lose this one",
        "lend less with `--memory`, lower `--ctx-size`, or close other programs",
    )
    MEMORY_RAN_OUT = Wording(
        "warning",
        "memory",
        "the kernel has killed {count} processes of this container or service because memory ran out",
        "if llama.cpp was among them, running requests were interrupted",
        "raise the memory limit of `{group}`, or lend less with `--memory`",
    )
    FILES_LIMIT = Wording(
        "warning",
        "limits",
        "this user may open only {limit} files at once",
        "a node with many peers or clients refuses new connections",
        "raise the limit: `ulimit -Hn`, /etc/security/limits.conf, or `LimitNOFILE=` of a service",
    )
    PROCESSES_LIMIT = Wording(
        "warning",
        "limits",
        "this user may run only {limit} processes and threads, and {running} run",
        "llama.cpp starts a thread for each core, and may fail to start",
        "raise the limit: `ulimit -Hu`, `pids_limit` of a container, or `TasksMax=` of a service",
    )
    CLOCK_BEHIND = Wording(
        "error",
        "clock",
        "this machine's clock is at least {seconds} behind: `{path}` was written in the future",
        "invites and bans depend on the clock, and other machines may refuse those of this node",
        "set the clock, for example with `timedatectl set-ntp true`",
    )
    ON_BATTERY = Wording(
        "warning",
        "power",
        "this machine runs on its battery ({percent} %)",
        "it computes slower, and other machines lose it when it goes to sleep",
        "connect it to power, or run `meshd pause` before you close the lid",
    )
    POWER_SAVING = Wording(
        "warning",
        "power",
        "the processor saves power (`{governor}`)",
        "its CPU computes slower than it could",
        "run `powerprofilesctl set performance`, or `cpupower frequency-set -g performance` as root",
    )

    # -- the network

    LOOPBACK_DOWN = Wording(
        "error",
        "network",
        "the loopback interface does not work: {why}",
        "the API and the parts of a node cannot be reached at 127.0.0.1",
        "run `ip link set lo up` as root; in a container, check its network",
    )
    NETWORK_MISSING = Wording(
        "warning",
        "network",
        "this machine has no address in a network",
        "other machines cannot be reached; only this one's devices can be used",
        "connect it by cable or Wi-Fi; in a container, check its network",
    )
    ROUTE_MISSING = Wording(
        "warning",
        "network",
        "there is no default route",
        "only machines on the same network can be reached, and no model can be downloaded",
        "check the router and DHCP, if other machines are elsewhere",
    )
    MTU_SMALL = Wording(
        "warning",
        "network",
        "`{interface}` carries packets of at most {mtu} bytes",
        "QUIC and WebRTC links need 1280, so only TCP is used",
        "raise its MTU: `ip link set {interface} mtu 1420` for most VPNs",
    )
    VPN_ROUTE = Wording(
        "warning",
        "network",
        "all traffic to the Internet goes through the VPN `{interface}`",
        "paths between machines get longer, and hole punching may fail",
        "exclude meshd's port from the VPN, or disconnect the VPN while you share a model",
    )
    PROXY_FOR_LOCAL = Wording(
        "warning",
        "proxy",
        "{variable} is set, and NO_PROXY does not name `127.0.0.1`",
        "programs that use the API on this machine may ask the proxy instead",
        "set `NO_PROXY=localhost,127.0.0.1`, for them too",
    )
    MESH_PORT_TAKEN = Wording(
        "error",
        "mesh port",
        "{why}",
        "a node does not start, as other members know this port",
        "{remedy}",
    )
    API_PORT_TAKEN = Wording("error", "API", "{why}", "`meshd serve` does not start", "{remedy}")
    MDNS_PORT_TAKEN = Wording(
        "warning",
        "mDNS",
        "another program keeps UDP port 5353 for itself",
        "machines on the same network are not found by mDNS, only by the addresses in invites",
        "stop that program or let it share the port; `--no-mdns` disables mDNS",
    )
    MULTICAST_MISSING = Wording(
        "warning",
        "mDNS",
        "`{interface}` has multicast disabled",
        "machines on the same network are not found by mDNS, only by the addresses in invites",
        "run `ip link set {interface} multicast on` as root",
    )
    FIREWALL_CLOSED = Wording(
        "warning",
        "firewall",
        "the firewall of this machine drops connections to port {port}",
        "other machines cannot connect to this one, but this one can connect to them",
        "allow port {port}, TCP and UDP, for example with `ufw allow {port}` or `firewall-cmd --add-port`",
    )

    # -- model files

    MODEL = Wording("ok", "model", "`{path}` is complete")
    MODEL_MISSING = Wording("error", "model", "{why}", "the node does not start with it", "{remedy}")
    MODEL_UNREADABLE = Wording("error", "model", "{why}", "the node does not start with it", "{remedy}")
    MODEL_INCOMPLETE = Wording(
        "error",
        "model",
        "`{path}` is {problem}",
        "a download or a copy was interrupted, and `meshd serve` refuses the file",
        "download or copy it again",
    )
    MODEL_PARTS_MISSING = Wording(
        "error",
        "model",
        "`{path}`: {problem}",
        "a split model needs all its files in one directory",
        "download the missing files into that directory",
    )
    MODEL_PARTIAL = Wording(
        "warning",
        "model",
        "`{path}`: {problem}",
        "this worker gets the missing weights over the network",
        "download or copy it again, unless that was intended",
    )
    MODEL_DAMAGED = Wording(
        "error", "model", "{why}", "the file is not a usable GGUF file, and cannot be loaded", "{remedy}"
    )

    # -- the running node

    NODE = Wording("ok", "daemon", "{what}")
    NODE_STARTING = Wording(
        "warning", "daemon", "{why}", "commands such as `meshd status` do not work yet", "{remedy}"
    )
    NODE_SILENT = Wording(
        "error", "daemon", "{why}", "it hangs or is suspended, and other machines lose it", "{remedy}"
    )
    NODE_UNREACHABLE = Wording(
        "error", "daemon", "{why}", "this command cannot ask the node for its state", "{remedy}"
    )
    NODE_OTHER_VERSION = Wording(
        "warning",
        "daemon",
        "the node runs meshd {running}, and this command is {installed}",
        "meshd was upgraded while the node ran, and the node still uses the old version",
        "run `meshd stop`, then start the node again",
    )

    # -- the checks themselves

    CHECK_HUNG = Wording(
        "error",
        "doctor",
        "the check of {what} did not end within {seconds} s",
        "a disk or driver does not answer: often a network file system whose server is gone",
        "check the kernel's log (`dmesg`) and `mount`; restart the machine if nothing helps",
    )
    CHECK_FAILED = Wording(
        "error",
        "doctor",
        "the check of {what} failed: {why}",
        "this is a fault in meshd; the other checks are not affected",
        "report it with the file that `meshd report` writes",
    )
