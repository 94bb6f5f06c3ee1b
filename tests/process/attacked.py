"""Run a program with attacker.c loaded into it, and say what the attacker got."""

import asyncio
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from meshd.process.confine import landlock_version
from meshd.process.interface import ChildSpec, Sandbox
from meshd.process.run import run_to_end

CAN_ATTACK = [
    pytest.mark.skipif(landlock_version() < 6, reason="needs Linux 6.12 with Landlock"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]
NEEDED = {"own-thread", "own-signal", "own-maps", "own-sockets"}


def build_attacker(folder: Path) -> Path:
    """Compile the attacker and return its library."""
    library = folder / "attacker.so"
    source = Path(__file__).with_name("attacker.c")
    command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(source), "-lpthread"]
    subprocess.run(command, check=True)
    return library


def attacked(folder: Path, attacker: Path, sandbox: Sandbox | None, program: str) -> dict[str, int]:
    """Return the error number of each attempt, 0 for a success."""
    (folder / "secret").write_text("secret")
    for name in ("socket", "datagrams"):
        (folder / name).unlink(missing_ok=True)
    lines: list[str] = []
    abstract = f"meshd-attack-{os.getpid()}"
    with (
        socket.socket() as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as hidden,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        unix.bind(str(folder / "socket"))
        unix.listen()
        datagrams.bind(str(folder / "datagrams"))
        hidden.bind(f"\0{abstract}")
        hidden.listen()
        victim = subprocess.Popen(["sleep", "60"])  # in place of the daemon: an attack may succeed
        spec = ChildSpec(
            name="attacked",
            argv=(program,),
            log=folder / "attacked.log",
            env={
                "LD_PRELOAD": str(attacker),
                "ATTACK_PID": str(victim.pid),
                "ATTACK_PORT": str(tcp.getsockname()[1]),
                "ATTACK_FOLDER": str(folder),
                "ATTACK_ABSTRACT": abstract,
            },
            on_line=lines.append,
            sandbox=sandbox,
        )
        try:
            ended = asyncio.run(run_to_end(spec))
        finally:
            victim.kill()
            victim.wait()
    assert ended.signal is None, ended
    words = [line.split() for line in lines if line.startswith("attack ")]
    assert words, ended
    return {what: int(code) for _, what, code in words}
