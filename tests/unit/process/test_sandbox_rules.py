"""Rules of a sandbox, and its system call filter run by a small interpreter of BPF."""

import errno
import os
import re
import struct
import sys
from pathlib import Path

import pytest
from meshd.process import sandbox_rules
from meshd.process.confine import HIDDEN, Instruction, parse_rules, syscall_filter
from meshd.process.interface import Network, Sandbox
from meshd.process.sandbox_rules import NotConfined, confined, profile

ALLOWED, KILLED = 0x7FFF0000, 0x80000000
PID = 4711
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# numbers of the same call on both machines
CALLS = {
    "read": (0, 63),
    "write": (1, 64),
    "futex": (202, 98),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "ptrace": (101, 117),
    "socket": (41, 198),
    "bind": (49, 200),
    "connect": (42, 203),
    "accept4": (288, 242),
    "sendto": (44, 206),
    "prlimit64": (302, 261),
    "memfd_create": (319, 279),
    "bpf": (321, 280),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "openat": (257, 56),
    "openat2": (437, 437),
    "truncate": (76, 45),
    "socketpair": (53, 199),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "inotify_init1": (294, 26),
    "semtimedop": (220, 192),
    "flock": (73, 32),
    "futex_waitv": (449, 449),
    "mseal": (462, 462),
}
THREAD, VM = 0x10000, 0x100


def run(program: list[Instruction], data: bytes) -> int:
    """Return what the filter returns for a `struct seccomp_data`."""
    value, at = 0, 0
    while True:
        code, when_true, when_false, operand = program[at]
        at += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, operand)
            case 0x54:
                value &= operand
            case 0x15:
                at += when_true if value == operand else when_false
            case 0x25:
                at += when_true if value > operand else when_false
            case 0x45:
                at += when_true if value & operand else when_false
            case 0x06:
                return operand
            case _:
                raise AssertionError(hex(code))


def verdict(
    call: str, *arguments: int, network: Network = Network.NONE, machine: str = "x86_64", shares: bool = False
) -> int:
    """Return 0 if the call is let through, else the error number that it gets."""
    program = syscall_filter(network, machine, PID, has_driver=shares)
    number = CALLS[call][0 if machine == "x86_64" else 1]
    words = (*arguments, *(0,) * (6 - len(arguments)))
    returned = run(program, struct.pack("=IIQ6Q", number, AUDIT[machine], 0, *words))
    if returned == ALLOWED:
        return 0
    assert returned & 0xFFFF0000 == 0x00050000
    return returned & 0xFFFF


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("read", (), 0),
        ("write", (1,), 0),
        ("futex", (), 0),
        ("futex_waitv", (), 0),
        ("accept4", (), 0),
        ("execve", (), 0),  # of what Landlock lets run
        ("clone", (THREAD | VM,), 0),
        ("clone", (VM | 17,), errno.EPERM),
        ("clone3", (), errno.ENOSYS),
        ("mseal", (), errno.ENOSYS),  # newer than the list
        ("kill", (PID, 9), errno.EPERM),
        ("tgkill", (PID, PID, 6), 0),
        ("tgkill", (PID + 1, PID + 1, 9), errno.EPERM),
        ("prlimit64", (0, 7), 0),
        ("prlimit64", (PID, 7), 0),
        ("prlimit64", (1, 7), errno.EPERM),
        ("ptrace", (), errno.EPERM),
        ("bpf", (), errno.EPERM),
        ("memfd_create", (), errno.EPERM),
        ("fcntl", (3, 2, 1), 0),  # F_SETFD
        ("fcntl", (3, 8, 1), errno.EPERM),  # F_SETOWN
        ("fcntl", (3, 10, 9), errno.EPERM),  # F_SETSIG
        ("fcntl", (3, 1024), errno.EPERM),  # F_SETLEASE
        ("ioctl", (3, 0x541B), 0),  # FIONREAD
        ("ioctl", (3, 0x8901), errno.EPERM),  # FIOSETOWN
        ("openat", (3, 0, os.O_RDONLY), 0),
        ("openat", (3, 0, os.O_WRONLY | os.O_TRUNC), 0),  # Landlock sees the writing
        ("openat", (3, 0, os.O_RDONLY | os.O_TRUNC), errno.EACCES),
        ("openat2", (), errno.ENOSYS),
        ("truncate", (), errno.EPERM),
        ("socketpair", (1, 1 | os.O_CLOEXEC), 0),
        ("socketpair", (1, 5), 0),
        ("socketpair", (1, 2), errno.EACCES),
        ("setpriority", (0, 0, 5), 0),
        ("setpriority", (0, PID + 1, 5), 0),  # a thread
        ("setpriority", (0, PID - 1, 5), errno.EPERM),
        ("setpriority", (2, 0, 5), errno.EPERM),  # all of a user
        ("ioprio_set", (), errno.EPERM),
        ("sched_setaffinity", (0,), 0),
        ("sched_setaffinity", (PID + 9,), 0),
        ("sched_setaffinity", (PID - 1,), errno.EPERM),
        ("sched_setattr", (1,), errno.EPERM),
        ("inotify_init1", (), errno.EPERM),
        ("semtimedop", (), errno.EPERM),
        ("flock", (3, 2), errno.EPERM),
        ("socket", (1, 1), errno.EPERM),
        ("bind", (), errno.EPERM),
        ("connect", (), errno.EPERM),
        ("sendto", (3, 0, 0, 0, 0), 0),
        ("sendto", (3, 0, 0, 0, 0x1000), errno.EPERM),
        ("sendto", (3, 0, 0, 0, 1 << 32), errno.EPERM),
    ],
)
def test_a_call_is_let_through_or_refused(
    machine: str, call: str, arguments: tuple[int, ...], expected: int
) -> None:
    assert verdict(call, *arguments, machine=machine) == expected


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    ("network", "call", "arguments", "expected"),
    [
        (Network.UNIX, "socket", (1, 1 | os.O_CLOEXEC), 0),
        (Network.UNIX, "socket", (1, 2), errno.EACCES),  # datagrams need no connection
        (Network.UNIX, "socket", (2, 1), errno.EACCES),
        (Network.UNIX, "bind", (), 0),
        (Network.UNIX, "connect", (), errno.EPERM),
        (Network.ANY, "socket", (2, 1), 0),
        (Network.ANY, "connect", (), 0),
        (Network.ANY, "sendto", (3, 0, 0, 0, 0x1000), 0),
        (Network.ANY, "ptrace", (), errno.EPERM),
    ],
)
def test_sockets_are_those_of_the_rules(
    machine: str, network: Network, call: str, arguments: tuple[int, ...], expected: int
) -> None:
    assert verdict(call, *arguments, machine=machine, network=network) == expected


def test_drivers_of_gpus_may_share_memory() -> None:
    assert verdict("memfd_create", shares=True) == 0
    assert verdict("flock", shares=True) == 0


@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("socket", (1, 5 | os.O_CLOEXEC), 0),
        ("socket", (1, 1), 0),
        ("socket", (1, 2), errno.EACCES),
        ("socket", (2, 1), errno.EACCES),
        ("socketpair", (1, 2), errno.EACCES),
    ],
)
def test_drivers_of_gpus_make_sockets_without_datagrams(
    call: str, arguments: tuple[int, ...], expected: int
) -> None:
    assert verdict(call, *arguments, shares=True) == expected


def test_another_instruction_set_ends_the_process() -> None:
    program = syscall_filter(Network.NONE, "x86_64", PID, has_driver=False)
    assert run(program, struct.pack("=IIQ6Q", 0, 0x40000003, 0, *(0,) * 6)) == KILLED


def test_calls_of_the_x32_abi_do_not_exist() -> None:
    program = syscall_filter(Network.NONE, "x86_64", PID, has_driver=False)
    x32 = run(program, struct.pack("=IIQ6Q", 0x40000000 | 42, AUDIT["x86_64"], 0, *(0,) * 6))
    assert x32 == 0x00050000 | errno.ENOSYS


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown rule 'write /etc'"):
        parse_rules("write /etc")


linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines programs so far")


def elf(path: Path, interpreter: bytes = b"/lib/ld.so") -> Path:
    """Write the beginning of a program that names a loader."""
    header = (
        b"\x7fELF\x02\x01"
        + bytes(26)
        + struct.pack("<Q", 64)
        + bytes(14)
        + struct.pack("<HH", 56, 1)
        + bytes(6)
    )
    entry = struct.pack("<IIQQQQ", 3, 4, 120, 0, 0, len(interpreter) + 1) + bytes(16)
    path.write_bytes(header + entry + interpreter + b"\0")
    return path


@linux
def test_rules_name_the_program_its_folder_and_what_the_sandbox_allows(tmp_path: Path) -> None:
    program = elf(tmp_path / "server")
    sandbox = Sandbox(read=(Path("/models/a.gguf"),), listen=Path("/run/x"), network=Network.UNIX)
    made = confined(sandbox, str(program), {"HOME": "/home/u", "LD_PRELOAD": "/opt/m.so"}, root=tmp_path)
    assert made is not None
    words, environment = made
    rules = parse_rules(words[4])
    assert words[5] == str(program)
    assert rules["run"] == [str(program.resolve()), "/lib/ld.so"]
    assert {str(tmp_path.resolve()), "/models/a.gguf", "/opt/m.so", "/usr"} <= set(rules["read"])
    assert not {"/", "/home", "/home/u", "/etc", "/proc", "/root", "/tmp"} & set(rules["read"])
    assert (rules["network"], rules["listen"], rules["keep"]) == (["unix"], ["/run/x"], [])
    assert rules["file_bytes"] == ["0"]
    # A variable of the loader reaches the program, and not the interpreter before it.
    assert environment == {"HOME": "/home/u", f"{HIDDEN}LD_PRELOAD": "/opt/m.so"}


@linux
def test_with_a_gpu_its_nodes_and_the_folders_of_its_kernels_are_open(tmp_path: Path) -> None:
    program = elf(tmp_path / "server")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    made = confined(Sandbox(), str(program), {"HOME": str(tmp_path)}, root=tmp_path)
    assert made is not None
    rules = parse_rules(made[0][4])
    assert str(tmp_path / "dev" / "nvidia0") in rules["device"]
    # They are trusted by whoever finds them, so no other program's are there.
    kernels = tmp_path / ".cache" / "meshd" / "kernels"
    assert rules["keep"] == [str(kernels)]
    assert kernels.is_dir()
    assert made[1]["CUDA_CACHE_PATH"] == made[1]["MESA_SHADER_CACHE_DIR"] == str(kernels)
    assert (rules["driver"], rules["file_bytes"]) == (["gpu"], [])


@linux
def test_a_folder_of_kernels_that_the_user_names_is_used(tmp_path: Path) -> None:
    program = elf(tmp_path / "server")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    variables = {"HOME": str(tmp_path), "CUDA_CACHE_PATH": "/scratch/kernels"}
    made = confined(Sandbox(), str(program), variables, root=tmp_path)
    assert made is not None
    assert "/scratch/kernels" in parse_rules(made[0][4])["keep"]
    assert made[1]["CUDA_CACHE_PATH"] == "/scratch/kernels"


@linux
@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\u2028"])
def test_a_path_cannot_add_a_rule(tmp_path: Path, end: str) -> None:
    path = Path(f"/a{end}read /root")
    made = confined(Sandbox(read=(path,), keep=(path,), listen=path), str(elf(tmp_path / "server")), {})
    assert made is not None
    rules = parse_rules(made[0][4])
    assert "/root" not in rules["read"]
    named = [] if end == "\n" else [str(path)]
    assert (rules["keep"], rules["listen"]) == (named, named)


@linux
def test_a_program_in_the_home_folder_gets_libraries_of_it_only(tmp_path: Path) -> None:
    library = tmp_path / "libx.so.1"
    library.touch()
    made = confined(Sandbox(), str(elf(tmp_path / "server")), {"HOME": str(tmp_path)}, root=tmp_path)
    assert made is not None
    rules = parse_rules(made[0][4])
    assert str(library) in rules["read"]
    assert str(tmp_path) not in rules["read"]


@linux
@pytest.mark.parametrize("content", [b"#!/bin/sh\n", b"", b"\x7fELF\x02\x01", b"\x7fELF\x01\x01" + bytes(60)])
def test_a_script_or_another_file_is_not_confined(tmp_path: Path, content: bytes) -> None:
    program = tmp_path / "server"
    program.write_bytes(content)
    assert confined(Sandbox(), str(program), {}) is None


@linux
def test_memory_is_limited_where_no_driver_maps_its_own(tmp_path: Path) -> None:
    program, sandbox = str(elf(tmp_path / "server")), Sandbox(memory=1 << 30)
    made = confined(sandbox, program, {"HOME": str(tmp_path)}, root=tmp_path)
    assert made is not None
    assert parse_rules(made[0][4])["memory_bytes"] == [str(1 << 30)]
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    made = confined(sandbox, program, {"HOME": str(tmp_path)}, root=tmp_path)
    assert made is not None
    assert parse_rules(made[0][4])["memory_bytes"] == []


@linux
@pytest.mark.parametrize(
    ("landlock", "filters", "missing"),
    [(0, True, "Landlock"), (6, False, "seccomp"), (0, False, "Landlock and no seccomp")],
)
def test_a_required_sandbox_with_a_part_missing_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, landlock: int, filters: bool, missing: str
) -> None:
    monkeypatch.setattr(sandbox_rules, "landlock_version", lambda: landlock)
    monkeypatch.setattr(sandbox_rules, "has_filters", lambda: filters)
    program = str(elf(tmp_path / "server"))
    with pytest.raises(NotConfined, match=f"has no {missing}$"):
        confined(Sandbox(is_required=True), program, {})
    assert confined(Sandbox(), program, {}) is not None


@linux
def test_a_script_is_not_started_where_the_sandbox_is_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sandbox_rules, "landlock_version", lambda: 6)
    monkeypatch.setattr(sandbox_rules, "has_filters", lambda: True)
    script = tmp_path / "server"
    script.write_bytes(b"#!/bin/sh\n")
    with pytest.raises(NotConfined, match="is no program for Linux"):
        confined(Sandbox(is_required=True), str(script), {})


# --- macOS: its profile is written here, and judged by the words of the language; no Mac has run it.


def closed_and_open(text: str) -> list[tuple[str, str]]:
    """Return the rules of a profile as (allow or deny, the rest), each with balanced brackets."""
    rules = text.splitlines()
    assert rules.pop(0) == "(version 1)"
    for rule in rules:
        outside = re.sub(r'"(\\.|[^"\\])*"', "", rule)
        assert outside.count("(") == outside.count(")") > 0 and '"' not in outside, rule
    found = [rule[1:-1].partition(" ") for rule in rules]
    assert {action for action, _, _ in found} == {"allow", "deny"}
    return [(action, rest) for action, _, rest in found]


def test_a_profile_closes_the_network_processes_writing_and_the_home(tmp_path: Path) -> None:
    home = tmp_path.resolve()
    model, sockets = home / "models" / "m.gguf", home / "run"
    sandbox = Sandbox(read=(model,), listen=sockets, network=Network.UNIX)
    rules = closed_and_open(profile(sandbox, str(home / "bin" / "server"), {"HOME": str(home)}))
    denied = [rest for action, rest in rules if action == "deny"]
    assert {"network*", "process-fork", "process-exec*", "file-write*", "signal"} <= set(denied)
    # The last rule that matches decides, so what is open again must come after what is closed.
    order = {rest: number for number, (_, rest) in enumerate(rules)}
    closed_home = order[f'file-read-data (subpath "{home}")']
    for path in (home / "bin" / "server", home / "bin", model):
        assert order[f'file-read* (subpath "{path}")'] > closed_home
    listens = order[f'file-write* network-bind network-inbound (subpath "{sockets}")']
    assert listens > max(order["network*"], order["file-write*"])
    assert order[f'process-exec (literal "{home / "bin" / "server"}")'] > order["process-exec*"]


def test_a_profile_never_opens_the_whole_home(tmp_path: Path) -> None:
    home = tmp_path.resolve()
    rules = closed_and_open(profile(Sandbox(), str(home / "server"), {"HOME": str(home)}))
    assert ("allow", f'file-read* (subpath "{home}")') not in rules
    assert ("allow", f'file-read* (subpath "{home / "server"}")') in rules


@pytest.mark.parametrize("name", ['a" (allow default) "', "back\\slash", 'end\\"'])
def test_a_path_cannot_add_to_a_profile(tmp_path: Path, name: str) -> None:
    before = closed_and_open(profile(Sandbox(), "/bin/server", {"HOME": "/Users/u"}))
    after = closed_and_open(profile(Sandbox(read=(tmp_path / name,)), "/bin/server", {"HOME": "/Users/u"}))
    assert len(after) == len(before) + 1
    assert [rest for action, rest in after if action == "allow"].count("default") == 1
