"""Confine this process, then become another program: `python -I -S confine.py RULES PROGRAM [ARGUMENT…]`.

meshd starts its native programs through this file (sandbox_rules.py writes the rules): they read what other
machines send, so a fault in them must not reach the user's files, other processes or the network. Each part
is used as far as the kernel has it; what it lacks is left out:

- Landlock (Linux 5.13): only the named files and folders, each for reading, writing or running; no TCP (6.7);
  no signals and no abstract sockets to other processes (6.12). It also forbids ptrace and /proc/PID/mem.
- seccomp: no new processes, no sockets but those of the rules, and no calls that change the system, the
  modes of files, or another process. The program itself may be run again, with the same limits.
- no core dumps, no longer files and no more private memory than the rules say, no rights by setuid programs,
  few of root's.

RULES are lines of a kind and a value: `read /usr`. This file imports little and nothing of meshd, as it runs
before each start. Numbers are those of Linux on x86-64 and ARM64; see landlock(7), seccomp(2) and the headers
of the kernel.
"""

from __future__ import annotations  # annotations cost nothing here

import ctypes
import errno
import os
import resource
import stat
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # nor does what only type checkers need
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

HIDDEN = "MESHD_CONFINED_"  # prefix of variables for the program that would also act on this interpreter
NOT_FOUND, NOT_RUNNABLE = 127, 126  # exit codes, as a shell has them
_LIMITS: Mapping[str, int] = {"file_bytes": resource.RLIMIT_FSIZE, "memory_bytes": resource.RLIMIT_DATA}
_IGNORED_BY_PYTHON = (13, 25)  # SIGPIPE, SIGXFSZ; the program gets them as it would from a shell

# --- Landlock ----------------------------------------------------------------------------------------------

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # of all architectures
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR = 1 << 4, 1 << 5, 1 << 6, 1 << 7
_MAKE_REG, _MAKE_SOCK, _MAKE_SYM, _TRUNCATE = 1 << 8, 1 << 9, 1 << 12, 1 << 14
_IOCTL_DEV = 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_ALLOWED: Mapping[str, int] = {
    "run": _EXECUTE | _READ_FILE,
    "read": _READ_FILE | _READ_DIR,
    "device": _READ_FILE | _READ_DIR | _WRITE_FILE | _IOCTL_DEV,
    "change": _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE,
    "keep": _READ_FILE
    | _READ_DIR
    | _WRITE_FILE
    | _TRUNCATE
    | _MAKE_REG
    | _MAKE_DIR
    | _REMOVE_FILE
    | _REMOVE_DIR,
    "listen": _MAKE_SOCK,
}
_KNOWN_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # bits by version; 16 from 5 on
_NO_NEW_PRIVS, _DROP_CAPABILITY, _AMBIENT, _CLEAR_ALL = 38, 24, 47, 4
# What root keeps: to read files of others and to lock memory. Not networks, limits, devices or users.
_KEPT_CAPABILITIES, _CAPABILITIES = {1, 2, 14}, 64
_O_PATH = 0x200000
_IS_LINUX = sys.platform == "linux"

# --- seccomp -----------------------------------------------------------------------------------------------

_SET_SECCOMP, _FILTER = 22, 2
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_LAST_KNOWN = 450  # calls after it came with Linux 6.6 and later: the program is told that there are none
_THREAD = 0x00010000  # CLONE_THREAD
_AF_UNIX, _STREAM, _SEQPACKET, _TYPE_MASK = 1, 1, 5, 0xF

# Calls with their numbers on x86-64 and on ARM64, which lacks some.
_PROCESSES = """
fork 57 -, vfork 58 -, execveat 322 281, setsid 112 157, setpgid 109 154, ptrace 101 117, kcmp 312 272,
kill 62 129, tkill 200 130, process_vm_readv 310 270, process_vm_writev 311 271,
process_madvise 440 440, process_mrelease 448 448, pidfd_open 434 434, pidfd_getfd 438 438,
pidfd_send_signal 424 424, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, move_pages 279 239,
migrate_pages 256 238, ioprio_set 251 30
"""
_SHARED_MEMORY = """
shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193,
semtimedop 220 192, semctl 66 191, msgget 68 186,
msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180, mq_unlink 241 181, memfd_secret 447 447
"""
_FILE_MODES = """
chmod 90 -, fchmod 91 52, fchmodat 268 53, chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54,
setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15,
fremovexattr 199 16, utime 132 -, utimes 235 -, utimensat 280 88, futimesat 261 -, truncate 76 45,
inotify_init 253 -, inotify_init1 294 26, inotify_add_watch 254 27
"""  # none of Landlock's business; truncate is from Linux 6.2 on. inotify tells names in closed folders
_SYSTEM = """
mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, unshare 272 97, setns 308 268,
move_mount 429 429, open_tree 428 428, fsopen 430 430, fsconfig 431 431, fsmount 432 432,
fspick 433 433, mount_setattr 442 442, bpf 321 280, perf_event_open 298 241, keyctl 250 219,
add_key 248 217, request_key 249 218, userfaultfd 323 282, io_uring_setup 425 425,
io_uring_enter 426 426, io_uring_register 427 427, open_by_handle_at 304 265, name_to_handle_at 303 264,
init_module 175 105, finit_module 313 273, delete_module 176 106, kexec_load 246 104,
kexec_file_load 320 294, reboot 169 142, swapon 167 224, swapoff 168 225, syslog 103 116, acct 163 89,
settimeofday 164 170, clock_settime 227 112, adjtimex 159 171, clock_adjtime 305 266,
sethostname 170 161, setdomainname 171 162, iopl 172 -, ioperm 173 -, quotactl 179 60,
quotactl_fd 443 443, personality 135 92, vhangup 153 58, fanotify_init 300 262, fanotify_mark 301 263,
modify_ldt 154 -, uselib 134 -, sysfs 139 -, lookup_dcookie 212 18, sync 162 81
"""
_NEW_SOCKETS = "socket 41 198, bind 49 200, listen 50 201"
_CONNECTIONS = "connect 42 203"
_OF_DRIVERS = "memfd_create 319 279, flock 73 32"  # a lock on a shared descriptor is its owner's as well
_CLONE, _CLONE3, _TGKILL, _OPENAT2 = (56, 220), (435, 435), (234, 131), (437, 437)
_PRLIMIT, _SOCKET, _SENDTO, _SOCKET_PAIR = (302, 261), (41, 198), (44, 206), (53, 199)
# sched_setparam, _setscheduler, _setaffinity and _setattr name a thread first, 0 for the caller.
_SCHEDULING = ((142, 118), (144, 119), (203, 122), (314, 274))
_SET_PRIORITY, _FCNTL, _IOCTL = (141, 140), (72, 25), (16, 29)
# F_SETOWN, F_SETSIG, F_SETOWN_EX: a signal to any process. F_SETLEASE, F_NOTIFY: about files of others.
_FCNTL_REFUSED = (8, 10, 15, 1024, 1026)
_IOCTL_REFUSED = (0x8901, 0x8902, 0x5412, 0x541C)  # FIOSETOWN, SIOCSPGRP; TIOCSTI, TIOCLINUX
_NO_CALL = 0xFFFFFFFF
_OPEN, _OPENAT = (2, _NO_CALL), (257, 56)
_WRITES, _TRUNCATES = 3, 0o1000  # bits of O_WRONLY and O_RDWR; O_TRUNC
_ARCHITECTURES: Mapping[str, tuple[int, int]] = {  # AUDIT_ARCH, and the place in those lists
    "x86_64": (0xC000003E, 0),
    "aarch64": (0xC00000B7, 1),
}

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def _fail(code: int) -> Instruction:
    return (_RETURN, 0, 0, _FAIL | code)


def _argument(number: int, *, high: bool = False) -> Instruction:
    """Load the low or the high half of an argument."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * number + 4 * high)


def _only_if(call: int, *checks: Instruction, error: int = errno.EPERM) -> list[Instruction]:
    """Let a call through where all checks hold; one that fails jumps past the instruction that allows it."""
    return [(_EQUAL, 0, len(checks) + 2, call), *checks, (_RETURN, 0, 0, _ALLOW), _fail(error)]


def _refused(network: str, at: int, *, has_driver: bool) -> list[Instruction]:
    """Refuse calls whatever their arguments; `at`: the place of their numbers in the lists."""
    lists = [_PROCESSES, _SHARED_MEMORY, _FILE_MODES, _SYSTEM]
    if network != "any":
        lists.append(_CONNECTIONS)
    if network == "none" and not has_driver:
        lists.append(_NEW_SOCKETS)
    if not has_driver:
        lists.append(_OF_DRIVERS)
    numbers = [call.split()[1 + at] for call in ",".join(lists).split(",")]
    return [
        step
        for number in numbers
        if number != "-"
        for step in ((_EQUAL, 0, 1, int(number)), _fail(errno.EPERM))
    ]


def syscall_filter(network: str, machine: str, pid: int, *, has_driver: bool) -> list[Instruction]:
    """Return the BPF program. `network` is "none", "unix" (listening only) or "any".

    `pid` is this process's, the only one that it may send a signal to. `has_driver`: with that of a GPU,
    which makes files in memory and Unix sockets, but connects to nobody. Raises KeyError for a
    machine whose numbers are not known.
    """
    architecture, at = _ARCHITECTURES[machine]
    # The architecture, whose numbers those below are, and calls that are newer than this list.
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_GREATER, 0, 1, _LAST_KNOWN),
        _fail(errno.ENOSYS),
    ]
    program += _refused(network, at, has_driver=has_driver)
    # Threads but no processes; clone3 and openat2 hide their flags, and every caller falls back.
    for hides in (_CLONE3, _OPENAT2):
        program += [(_EQUAL, 0, 1, hides[at]), _fail(errno.ENOSYS)]
    program += _only_if(_CLONE[at], _argument(0), (_ANY_BIT, 0, 1, _THREAD))
    # Signals and limits for nobody but itself.
    program += _only_if(_TGKILL[at], _argument(0), (_EQUAL, 0, 1, pid))
    program += _only_if(_PRLIMIT[at], _argument(0), (_EQUAL, 1, 0, 0), (_EQUAL, 0, 1, pid))
    for calls, unwanted in ((_FCNTL, _FCNTL_REFUSED), (_IOCTL, _IOCTL_REFUSED)):
        jumps = [(_EQUAL, len(unwanted) - number, 0, value) for number, value in enumerate(unwanted)]
        program += _only_if(calls[at], _argument(1), *jumps)
    # Nor the scheduling of processes that were there before it: its own threads have greater numbers.
    is_own = ((_EQUAL, 1, 0, 0), (_GREATER, 0, 1, pid - 1))
    for calls in _SCHEDULING:
        program += _only_if(calls[at], _argument(0), *is_own)
    one_process = (_argument(0), (_EQUAL, 0, 4, 0))  # PRIO_PROCESS
    program += _only_if(_SET_PRIORITY[at], *one_process, _argument(1), *is_own)
    # No file is cut while it is opened for reading, which Landlock sees from Linux 6.2 on.
    for call, flags in ((_OPEN[at], 1), (_OPENAT[at], 2)):
        writes_or_keeps = ((_ANY_BIT, 0, 1, _TRUNCATES), (_ANY_BIT, 0, 1, _WRITES))
        program += _only_if(call, _argument(flags), *writes_or_keeps, error=errno.EACCES)
    # No datagrams: sendmsg could send them to any Unix socket, also from a pair.
    is_connected = (
        _argument(1),
        (_AND, 0, 0, _TYPE_MASK),
        (_EQUAL, 1, 0, _STREAM),
        (_EQUAL, 0, 1, _SEQPACKET),
    )
    if network != "any":
        program += _only_if(_SOCKET_PAIR[at], *is_connected, error=errno.EACCES)
    # Sockets to listen on; nothing can be sent from them to an address.
    if network != "any" and has_driver:
        is_unix = (_argument(0), (_EQUAL, 0, 5, _AF_UNIX))
        program += _only_if(_SOCKET[at], *is_unix, *is_connected, error=errno.EACCES)
    elif network == "unix":
        is_stream = (_argument(1), (_AND, 0, 0, _TYPE_MASK), (_EQUAL, 0, 1, _STREAM))
        checks = (_argument(0), (_EQUAL, 0, 4, _AF_UNIX), *is_stream)
        program += _only_if(_SOCKET[at], *checks, error=errno.EACCES)
    if network != "any":
        no_address = (_argument(4), (_EQUAL, 0, 3, 0), _argument(4, high=True), (_EQUAL, 0, 1, 0))
        program += _only_if(_SENDTO[at], *no_address)
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def parse_rules(text: str) -> dict[str, list[str]]:
    """Return the values of each kind. Raises ValueError for a kind that is not known."""
    rules: dict[str, list[str]] = {kind: [] for kind in (*_ALLOWED, "network", *_LIMITS, "driver")}
    for line in text.split("\n"):  # splitlines has more ends of lines
        kind, _, value = line.partition(" ")
        if kind not in rules:
            raise ValueError(f"unknown rule {line!r}")
        rules[kind].append(value)
    return rules


class _Kernel:
    """The system calls that Python lacks."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long

    def call(self, number: int, *arguments: object) -> int:
        """Return the result of a call; -1 if it failed."""
        return int(self._libc.syscall(ctypes.c_long(number), *arguments))

    def default_signal(self, number: int) -> None:
        """Let a signal do again what it does by default."""
        self._libc.signal(ctypes.c_int(number), None)

    def prctl(self, option: int, *arguments: int | ctypes.c_void_p) -> bool:
        """Say whether prctl(2) took this."""
        words = [
            argument if isinstance(argument, ctypes.c_void_p) else ctypes.c_ulong(argument)
            for argument in arguments
        ]
        return int(self._libc.prctl(option, *words, *(ctypes.c_ulong(0) for _ in range(4 - len(words))))) == 0


def landlock_version() -> int:
    """Return the version of Landlock in this kernel, 0 without it."""
    if not _IS_LINUX:
        return 0
    return max(0, _Kernel().call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1)))


def has_filters() -> bool:
    """Say whether seccomp filters this machine's calls."""
    known = _IS_LINUX and os.uname().machine in _ARCHITECTURES
    return known and os.path.exists("/proc/sys/kernel/seccomp/actions_avail")  # noqa: PTH110 (no pathlib here)


def _restrict_files(kernel: _Kernel, rules: Mapping[str, Sequence[str]], version: int) -> None:
    """Leave only the named files. Raises OSError."""
    handled = (1 << _KNOWN_FILE_RIGHTS.get(version, 16)) - 1
    words = [handled]
    if version >= 4:
        words.append(0 if "any" in rules["network"] else 3)  # bind and connect over TCP
    if version >= 6:
        words.append(3)  # abstract Unix sockets, signals
    attributes = struct.pack(f"={len(words)}Q", *words)
    ruleset = kernel.call(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    for kind, allowed in _ALLOWED.items():
        for path in rules[kind]:
            _allow(kernel, ruleset, path, allowed & handled)
    if kernel.call(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0)) < 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)


def _allow(kernel: _Kernel, ruleset: int, path: str, allowed: int) -> None:
    try:
        place = os.open(path, _O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it is not there, so it cannot be used
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            allowed &= _OF_FILES
        rule = struct.pack("=Qi", allowed, place)
        if kernel.call(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint(0)) < 0:
            raise OSError(ctypes.get_errno(), f"landlock_add_rule for {path}")
    finally:
        os.close(place)


def confine(rules: Mapping[str, Sequence[str]]) -> None:
    """Confine this process as far as the kernel can. Raises OSError if a part is there and fails."""
    # Limits of the system's oldest kind.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind, number in _LIMITS.items():
        for limit in rules[kind]:
            resource.setrlimit(number, (int(limit), int(limit)))
    kernel = _Kernel()
    for number in _IGNORED_BY_PYTHON:
        kernel.default_signal(number)
    if not kernel.prctl(_NO_NEW_PRIVS, 1):
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    for capability in set(range(_CAPABILITIES)) - _KEPT_CAPABILITIES:
        kernel.prctl(_DROP_CAPABILITY, capability)  # fails for those who have none anyway
    kernel.prctl(_AMBIENT, _CLEAR_ALL)
    # Files, then system calls: the filter also forbids what the first step needs.
    if version := landlock_version():
        _restrict_files(kernel, rules, version)
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        return
    program = syscall_filter(rules["network"][0], machine, os.getpid(), has_driver=bool(rules["driver"]))
    words = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    kept = ctypes.create_string_buffer(words, len(words))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(kept)))
    if not kernel.prctl(_SET_SECCOMP, _FILTER, ctypes.cast(head, ctypes.c_void_p)):
        code = ctypes.get_errno()
        if code != errno.EINVAL:  # a kernel without filters
            raise OSError(code, "PR_SET_SECCOMP")


def main(words: Sequence[str]) -> NoReturn:
    """Confine this process and become the program. Exits with 126 or 127 if that is not possible."""
    rules, program, *arguments = words
    environment = {name.removeprefix(HIDDEN): value for name, value in os.environ.items()}
    try:
        confine(parse_rules(rules))
        os.execve(program, [program, *arguments], environment)
    except OSError as error:
        sys.stderr.write(f"cannot run {program}: {error.strerror}\n")
        sys.exit(NOT_FOUND if error.errno == errno.ENOENT else NOT_RUNNABLE)


if __name__ == "__main__":
    main(sys.argv[1:])
