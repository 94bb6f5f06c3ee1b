"""Break a machine so that `meshd doctor` finds just one kind of fault.

Each is done for real: files, modes, mounts, limits, ports, interfaces, programs of C. `BREAKAGES` has them by
the kind of finding; those of GPUs are in doctor_gpus.py.
"""

import gzip
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import meshd.gateway
from meshd import __version__
from meshd.build import cache as builds
from meshd.build.native import OUR_PROGRAMS, UPSTREAM_PROGRAMS
from meshd.build.pin import read_pin
from meshd.doctor.kinds import Kind, Kinds
from meshd.identity.keys import KeyPair
from meshd.identity.keystore import Home
from meshd.identity.revocation import RevocationSet, ban
from meshd.model.layer_work import USUAL

from tests.gguf_bytes import gguf, language_model
from tests.process.doctor_scene import USER, Machine, played, played_llama
from tests.process.silent_node import hanging_up
from tests.unit.admin.fake import FakeControl, full_status
from tests.unit.admin.fake_server import running
from tests.unit.build.stored import install_scripts, install_wheel, program
from tests.unit.daemon.mesh_programs import says

Break = Callable[[Machine], AbstractContextManager[object] | None]
FRONT = str(Path(__file__).with_name("doctor_front.py"))
LONG_AGO = time.time() - 400 * 86400
INVITE = "meshd1aaaa"


@dataclass(frozen=True, slots=True)
class Breakage:
    """`also`: other kinds of findings that follow from it."""

    apply: Break
    also: frozenset[Kinds] = frozenset()


BREAKAGES: dict[Kinds, Breakage] = {}


def breaks(
    kind: Kinds, *also: Kinds, noted_in: dict[Kinds, Breakage] = BREAKAGES
) -> Callable[[Break], Break]:
    """Note that the function breaks a machine in this way."""

    def noted(apply: Break) -> Break:
        noted_in[kind] = Breakage(apply, frozenset(also))
        return apply

    return noted


def take(machine: Machine, *words: object) -> None:
    """Have doctor's process hold something from its start on (doctor_front.py)."""
    machine.front += [sys.executable, FRONT, *map(str, words), "--"]


def compiled(machine: Machine, name: str, source: str, *options: str) -> Path:
    """Compile a program of C into the folder of programs."""
    code = machine.file(f"{name}.c", source)
    path = machine.programs / name
    subprocess.run(["cc", "-o", str(path), str(code), *options], check=True, cwd=machine.folder)
    return path


def mounted(machine: Machine, folder: Path, options: str) -> None:
    machine.prepare.append(f"mount -t tmpfs -o mode=700,{options} none {shlex.quote(str(folder))}")


# -- the installation


@breaks(Kind.TWO_INSTALLATIONS)
def _other_in_path(machine: Machine) -> None:
    other = machine.folder / "other/meshd"
    other.parent.mkdir()
    other.symlink_to("/bin/true")
    machine.variables["PATH"] = f"{other.parent}{os.pathsep}{os.environ['PATH']}"


def _requires(machine: Machine, requirement: str) -> None:
    text = f"Metadata-Version: 2.1\nName: meshd\nVersion: 9\nRequires-Dist: {requirement}\n"
    machine.file("site/meshd-9.dist-info/METADATA", text)
    machine.packages.insert(0, str(machine.folder / "site"))


@breaks(Kind.LIBRARY_MISSING)
def _library_gone(machine: Machine) -> None:
    _requires(machine, "aiohttp-of-tomorrow>=1")


@breaks(Kind.LIBRARY_UNFIT)
def _library_of_another_version(machine: Machine) -> None:
    _requires(machine, "aiohttp<99,>=98.1")


@breaks(Kind.WHEEL_UNUSED)
def _wheel_of_other_sources(machine: Machine) -> None:
    install_wheel(machine.folder / "site", sources="f" * 64)
    machine.packages.insert(0, str(machine.folder / "site"))


@breaks(Kind.CHAT_PAGE_OTHER)
def _page_of_another_release(machine: Machine) -> None:
    gateway = Path(meshd.gateway.__file__).parent
    copy = machine.folder / "gateway"  # the checkout may have no page
    shutil.copytree(gateway, copy, ignore=shutil.ignore_patterns("chat", "mesh", "__pycache__"))
    machine.file("gateway/chat/build.json.gz", gzip.compress(b'{"version": "b1"}'))
    machine.bind(copy, shlex.quote(str(gateway)))


@breaks(Kind.TEMPORARY_UNWRITABLE)
def _all_read_only(machine: Machine) -> None:
    for folder in (machine.home, machine.cache):
        machine.bind(folder, str(folder))
    machine.prepare += ["mount -o remount,bind,ro /", "mount -t tmpfs -o ro none /dev/shm"]


# -- settings


@breaks(Kind.CONFIG_UNUSABLE)
def _unknown_key(machine: Machine) -> None:
    machine.options += ["--config", str(machine.file("meshd.toml", '[links]\nlisten_on = ":1"\n'))]


@breaks(Kind.VARIABLE_UNKNOWN)
def _mistyped_variable(machine: Machine) -> None:
    machine.variables["MESHD_RELAYS"] = "relay://x"


@breaks(Kind.SETTINGS_READABLE)
def _invite_in_an_open_file(machine: Machine) -> None:
    machine.options += ["--config", str(machine.file("meshd.toml", f'[node]\njoin = "{INVITE}"\n', 0o644))]


@breaks(Kind.KEYS_READABLE)
def _open_key_file(machine: Machine) -> None:
    machine.variables["MESHD_API_KEY_FILE"] = str(machine.file("keys", "a-key-of-some-length\n", 0o640))


@breaks(Kind.KEYS_UNUSABLE)
def _short_key(machine: Machine) -> None:
    machine.variables["MESHD_API_KEY_FILE"] = str(machine.file("keys", "short\n", 0o600))


@breaks(Kind.API_OPEN)
def _api_for_everybody(machine: Machine) -> None:
    machine.variables["MESHD_HOST"] = "0.0.0.0"


@breaks(Kind.RELAY_UNREADABLE)
def _relay_without_a_key(machine: Machine) -> None:
    machine.variables["MESHD_RELAY"] = "relay.example.org:443"


# -- the home


@breaks(Kind.HOME_UNWRITABLE)
def _read_only_home(machine: Machine) -> None:
    mounted(machine, machine.home, "ro")


@breaks(Kind.HOME_FOREIGN)
def _home_of_another(machine: Machine) -> None:
    os.chown(machine.home, USER, USER)


@breaks(Kind.HOME_READABLE)
def _home_to_look_into(machine: Machine) -> None:
    machine.member()
    machine.home.chmod(0o755)


@breaks(Kind.HOME_CHANGEABLE)
def _home_to_write_to(machine: Machine) -> None:
    machine.member()
    machine.home.chmod(0o777)


@breaks(Kind.STATE_READABLE)
def _key_to_read(machine: Machine) -> None:
    machine.member()
    (machine.home / "identity.key").chmod(0o644)


@breaks(Kind.STATE_FOREIGN)
def _membership_of_another(machine: Machine) -> None:
    machine.member()
    os.chown(machine.home / "membership", USER, USER)


@breaks(Kind.STATE_DAMAGED)
def _bit_flipped(machine: Machine) -> None:
    machine.member()
    path = machine.home / "membership"
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])


@breaks(Kind.STATE_NEWER)
def _after_a_downgrade(machine: Machine) -> None:
    machine.member()
    path = machine.home / "membership"
    path.write_bytes(path.read_bytes().replace(b"meshd membership 1\n", b"meshd membership 2\n"))


@breaks(Kind.KEYS_DIFFER)
def _key_of_another_backup(machine: Machine) -> None:
    machine.member()
    other = Home(machine.folder / "other")
    other.load_or_create_identity()
    shutil.copy(other.path / "identity.key", machine.home / "identity.key")


@breaks(Kind.BANNED)
def _banned_by_the_root(machine: Machine) -> None:
    membership = machine.member()
    assert membership.root_seed is not None
    bans = RevocationSet(membership.mesh)
    bans.add(
        ban(
            signer=KeyPair.from_seed(membership.root_seed),
            chain=None,
            mesh=membership.mesh,
            kind="node",
            target=membership.chain.leaf.node.raw,
            issued_at=1,
        )
    )
    Home(machine.home).save_revocations(bans)


@breaks(Kind.DISK_LOW)
def _small_disk(machine: Machine) -> None:
    mounted(machine, machine.home, "size=100m")


@breaks(Kind.INODES_USED_UP)
def _disk_of_one_inode(machine: Machine) -> None:
    mounted(machine, machine.home, "nr_inodes=1")


@breaks(Kind.NETWORK_DISK)
def _home_on_a_server(machine: Machine) -> None:
    """The kernel's list of mounts, in which the home's is one of NFS: none can be mounted here."""
    shown = "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + f"36 20 0:99 / {machine.home} rw - nfs4 nas:/home rw\n"
    machine.bind(machine.file("mountinfo", shown), "/proc/$$/mountinfo")


@breaks(Kind.SOCKET_PATH)
def _long_paths(machine: Machine) -> None:
    for variable in ("MESHD_HOME", "XDG_RUNTIME_DIR"):
        folder = machine.folder / variable.ljust(120, "x")
        folder.mkdir(mode=0o700)
        machine.variables[variable] = str(folder)


@breaks(Kind.SOCKET_STALE)
def _socket_of_a_killed_node(machine: Machine) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(machine.home / "control.sock"))


@breaks(Kind.FILES_LEFT)
def _half_a_file(machine: Machine) -> None:
    machine.member()
    left = machine.file("home/.membership.123.abcd0123.tmp", "half of it", 0o600)
    os.utime(left, (LONG_AGO, LONG_AGO))


# -- the cache


@breaks(Kind.CACHE_UNWRITABLE)
def _read_only_cache(machine: Machine) -> None:
    mounted(machine, machine.cache, "ro")


@breaks(Kind.CACHE_NOEXEC)
def _noexec_cache(machine: Machine) -> None:
    mounted(machine, machine.cache, "noexec")


@breaks(Kind.CACHE_CHANGEABLE)
def _cache_to_write_to(machine: Machine) -> None:
    machine.cache.chmod(0o777)


@breaks(Kind.DOWNLOADS_LEFT)
def _half_a_download(machine: Machine) -> None:
    machine.file("cache/downloads/part-abc12_de/model.whl", "half of it")
    os.utime(machine.cache / "downloads/part-abc12_de", (LONG_AGO, LONG_AGO))


# -- llama.cpp


@breaks(Kind.NATIVE_MISSING)
def _no_programs(machine: Machine) -> None:
    machine.has_programs = False


def _of_old_kind(machine: Machine, *there: str) -> None:
    """A processor for which no wheel is made, and no other programs in PATH than those."""
    machine.has_programs = False
    tools = machine.folder / "tools"
    for name in there:
        program(tools, name)
    (tools / "python").symlink_to(sys.executable)  # beside which there are no others
    machine.python = str(tools / "python")
    machine.front += ["setarch", "i686", "env", f"PATH={tools}"]


@breaks(Kind.COMPILER_MISSING, Kind.NATIVE_MISSING, Kind.SANDBOX_PARTIAL)
def _no_compiler(machine: Machine) -> None:
    _of_old_kind(machine, "cmake", "ninja")


@breaks(Kind.TOOLS_MISSING, Kind.NATIVE_MISSING, Kind.SANDBOX_PARTIAL)
def _no_build_tools(machine: Machine) -> None:
    _of_old_kind(machine, "cc", "c++")


@breaks(Kind.PROGRAM_FAILS)
def _program_that_crashes(machine: Machine) -> None:
    compiled(machine, "llama-server", "#include <stdlib.h>\nint main(void) { abort(); }\n")


@breaks(Kind.PROGRAM_LACKS_LIBRARY)
def _library_of_the_program_gone(machine: Machine) -> None:
    library = machine.file("gone.c", "int gone(void) { return 0; }\n")
    made = machine.folder / "libgone.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(made), str(library)], check=True)
    source = "int gone(void);\nint main(void) { return gone(); }\n"
    compiled(machine, "llama-server", source, f"-L{machine.folder}", "-lgone")
    made.unlink()


@breaks(Kind.C_LIBRARY_OLD)
def _built_on_a_newer_system(machine: Machine) -> None:
    """Linked with a C library of tomorrow, which is but a stub."""
    stub = machine.file("stub.c", "int tomorrow(void) { return 0; }\n")
    versions = machine.file("versions", "GLIBC_2.99 { global: tomorrow; };\n")
    folder = machine.folder / "tomorrow"
    folder.mkdir()
    made = ["-shared", "-fPIC", "-nostdlib", f"-Wl,--version-script={versions}", "-Wl,-soname,libc.so.6"]
    subprocess.run(["cc", *made, "-o", str(folder / "libc.so.6"), str(stub)], check=True)
    source = "int tomorrow(void);\nvoid _start(void) { tomorrow(); }\n"
    compiled(machine, "llama-server", source, "-nostdlib", str(folder / "libc.so.6"))


@breaks(Kind.PROCESSOR_LACKS_INSTRUCTIONS)
def _built_for_another_processor(machine: Machine) -> None:
    compiled(machine, "llama-server", "int main(void) { __builtin_trap(); }\n")


@breaks(Kind.PROGRAM_OTHER_VERSION)
def _llama_server_of_last_year(machine: Machine) -> None:
    machine.program("llama-server", played_llama(version=says("0.1.0")))


@breaks(Kind.COMMIT_UNKNOWN)
def _llama_server_without_git(machine: Machine) -> None:
    machine.program("llama-server", played_llama(version=says()))


@breaks(Kind.PROCESSOR_OLD)
def _processor_of_2012(machine: Machine) -> None:
    text = Path("/proc/cpuinfo").read_text().replace("avx2", "old")
    shown = text if "flags" in text else "processor: 0\nflags\t\t: fpu sse2 avx\n"
    machine.bind(machine.file("cpuinfo", shown), "/proc/cpuinfo")


@breaks(Kind.DEVICES_MISSING)
def _no_device(machine: Machine) -> None:
    machine.program("mesh-server", played(listing="echo 'no driver'"))


@breaks(Kind.DEVICE_UNFIT)
def _device_that_computes_nonsense(machine: Machine) -> None:
    listing = "echo 'device Vulkan0 gpu 01 9000 8000 it'"
    machine.program("mesh-server", played(listing=listing, trial=f"wrong {USUAL[0]} 1.0 0.1"))


@breaks(Kind.BUILD_UNUSED)
def _build_that_crashes(machine: Machine) -> None:
    """One in the cache, and a wheel that is used in its place."""
    machine.has_programs = False
    scripts = {"mesh-server": played(), "llama-server": played_llama()}
    package = install_scripts(machine.folder / "site", scripts)
    machine.packages.insert(0, str(package.parent))
    out = machine.folder / "out"
    crashing = scripts | {"mesh-server": "#!/bin/sh\nkill -SEGV $$\n"}
    for key, names in (
        (builds.upstream_key(read_pin(), "cpu"), UPSTREAM_PROGRAMS),
        (builds.ours_key(read_pin(), "cpu"), OUR_PROGRAMS),
    ):
        builds.store(machine.cache, key, [program(out, name, crashing.get(name, "x")) for name in names])


# -- the machine


@breaks(Kind.SANDBOX_OFF)
def _sandbox_off(machine: Machine) -> None:
    machine.variables["MESHD_SANDBOX"] = "off"


@breaks(Kind.SANDBOX_PARTIAL)
def _old_kernel(machine: Machine) -> None:
    take(machine, "without_landlock")


@breaks(Kind.MEMORY_SHORT)
def _little_memory(machine: Machine) -> None:
    text = "MemTotal: 8000000 kB\nMemFree: 90000 kB\nMemAvailable: 300000 kB\n"
    machine.bind(machine.file("meminfo", text), "/proc/meminfo")


@breaks(Kind.MEMORY_PRESSURE)
def _swapping(machine: Machine) -> None:
    text = (
        "some avg10=81.00 avg60=70.25 avg300=9.00 total=9\nfull avg10=50.00 avg60=41.50 avg300=5.00 total=9\n"
    )
    machine.bind(machine.file("pressure", text), "/proc/pressure/memory")


@breaks(Kind.MEMORY_RAN_OUT)
def _killed_for_memory(machine: Machine) -> AbstractContextManager[object]:
    return machine.with_memory(1300 << 20, used="bytearray(1400 << 20)")


@breaks(Kind.FILES_LIMIT)
def _few_files(machine: Machine) -> None:
    machine.front += ["prlimit", "--nofile=256:256"]


@breaks(Kind.PROCESSES_LIMIT)
def _few_processes(machine: Machine) -> None:
    machine.as_user()
    machine.front += ["prlimit", "--nproc=60:60"]


@breaks(Kind.CLOCK_BEHIND)
def _clock_of_yesterday(machine: Machine) -> None:
    """As after a start without a battery for the clock: files of the home are of tomorrow."""
    machine.member()
    tomorrow = time.time() + 86400
    os.utime(machine.home / "membership", (tomorrow, tomorrow))


@breaks(Kind.ON_BATTERY)
def _unplugged(machine: Machine) -> None:
    battery = {"type": "Battery", "status": "Discharging", "capacity": "41", "scope": "System"}
    mouse = {"type": "Battery", "status": "Discharging", "capacity": "9", "scope": "Device"}
    for name, shown in (("AC0", {"type": "Mains"}), ("BAT0", battery), ("mouse", mouse)):
        for file, text in shown.items():
            machine.file(f"supplies/{name}/{file}", f"{text}\n")
    machine.bind(machine.folder / "supplies", "/sys/class/power_supply")


@breaks(Kind.POWER_SAVING)
def _slow_governor(machine: Machine) -> None:
    for name, text in (("scaling_governor", "powersave"), ("scaling_driver", "acpi-cpufreq")):
        machine.file(f"cpu/cpu0/cpufreq/{name}", f"{text}\n")
    machine.bind(machine.folder / "cpu", "/sys/devices/system/cpu")


# -- the network


@breaks(Kind.LOOPBACK_DOWN)
def _no_loopback(machine: Machine) -> None:
    machine.prepare.append("ip link set lo down")


@breaks(Kind.NETWORK_MISSING)
def _no_cable(machine: Machine) -> None:
    machine.prepare.append("ip link set net0 down")


@breaks(Kind.ROUTE_MISSING)
def _no_router(machine: Machine) -> None:
    machine.prepare.append("ip route del default")


@breaks(Kind.MTU_SMALL)
def _small_packets(machine: Machine) -> None:
    machine.prepare.append("ip link set net0 mtu 1200")


@breaks(Kind.VPN_ROUTE)
def _vpn(machine: Machine) -> None:
    machine.prepare += [
        "ip tuntap add tun0 mode tun",
        "ip addr add 10.66.0.2/24 dev tun0",
        "ip link set tun0 up",
        "ip route replace default dev tun0",
    ]


@breaks(Kind.PROXY_FOR_LOCAL)
def _proxy(machine: Machine) -> None:
    machine.variables |= {"http_proxy": "http://proxy.example:3128", "NO_PROXY": "example.com"}


@breaks(Kind.MESH_PORT_TAKEN)
def _mesh_port_of_another(machine: Machine) -> None:
    machine.variables["MESHD_LISTEN"] = ":17430"
    take(machine, "listening", 17430)


@breaks(Kind.API_PORT_TAKEN)
def _api_port_of_another(machine: Machine) -> None:
    machine.variables |= {"MESHD_MODEL": str(_model(machine)), "MESHD_PORT": "8090"}
    take(machine, "listening", 8090)


@breaks(Kind.MDNS_PORT_TAKEN)
def _mdns_responder_that_shares_nothing(machine: Machine) -> None:
    take(machine, "alone_on", 5353)


@breaks(Kind.MULTICAST_MISSING)
def _no_multicast(machine: Machine) -> None:
    machine.prepare.append("ip link set net0 multicast off")


@breaks(Kind.FIREWALL_CLOSED)
def _firewall(machine: Machine) -> None:
    rules = (
        "table inet filter {\n chain input {\n  type filter hook input priority 0; policy drop;\n"
        "  ct state established,related accept\n  iif lo accept\n  tcp dport { 22, 80 } accept\n }\n}\n"
    )
    machine.prepare.append(f"nft -f {machine.file('rules.nft', rules)}")


# -- model files


def _model(machine: Machine, size: int | None = None, **marks: int) -> Path:
    metadata, tensors = language_model()
    return machine.file("model.gguf", gguf(metadata | marks, tensors)[:size])


@breaks(Kind.MODEL_MISSING)
def _model_gone(machine: Machine) -> None:
    machine.variables["MESHD_MODEL"] = str(machine.folder / "gone.gguf")


@breaks(Kind.MODEL_UNREADABLE)
def _model_of_another(machine: Machine) -> None:
    machine.variables["MESHD_MODEL"] = str(_model(machine))
    (machine.folder / "model.gguf").chmod(0o600)
    machine.as_user()


@breaks(Kind.MODEL_INCOMPLETE)
def _model_cut_short(machine: Machine) -> None:
    machine.variables["MESHD_MODEL"] = str(_model(machine, -100))


@breaks(Kind.MODEL_PARTS_MISSING)
def _one_of_two_parts(machine: Machine) -> None:
    marks = {"split.no": 0, "split.count": 2, "split.tensors.count": 99}
    path = _model(machine, **marks).rename(machine.folder / "model-00001-of-00002.gguf")
    machine.variables["MESHD_MODEL"] = str(path)


@breaks(Kind.MODEL_PARTIAL)
def _part_of_a_workers_model(machine: Machine) -> None:
    text = f'[worker]\nmodels = ["{_model(machine, -100)}"]\n'
    machine.options += ["--config", str(machine.file("meshd.toml", text))]


@breaks(Kind.MODEL_DAMAGED)
def _web_page_for_a_model(machine: Machine) -> None:
    machine.variables["MESHD_MODEL"] = str(machine.file("model.gguf", "<!doctype html>" * 99))


# -- the node


@breaks(Kind.NODE_STARTING)
def _node_without_a_socket(machine: Machine) -> None:
    take(machine, "locked", machine.home)


@breaks(Kind.NODE_SILENT)
def _node_that_hangs(machine: Machine) -> None:
    take(machine, "mute", machine.home)
    machine.answer = 5.0


@breaks(Kind.NODE_UNREACHABLE)
def _node_that_hangs_up(machine: Machine) -> AbstractContextManager[object]:
    return hanging_up(machine.home / "control.sock")


@breaks(Kind.NODE_OTHER_VERSION)
def _node_of_last_week(machine: Machine) -> AbstractContextManager[object]:
    control, status = FakeControl(), full_status()
    control.state = replace(status, warnings=(), node=replace(status.node, version=f"{__version__}.before"))
    return running(machine.home, control)


@breaks(Kind.CHECK_HUNG)
def _dead_file_system(machine: Machine) -> None:
    take(machine, "hung", machine.cache)
    machine.check = 5.0
