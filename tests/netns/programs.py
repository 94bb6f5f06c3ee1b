"""Programs inside namespaces: started, waited for until they say a line, ended by the end of their input."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.netns.space import Namespace
from tests.netns.world import Host

ROOT = Path(__file__).parents[2]
STUN = Path(__file__).with_name("stun_server.py")
END_SECONDS = 10.0


@contextmanager
def running(space: Namespace, *words: str) -> Iterator[str]:
    """Run Python with `words` inside; yields the first line that it prints.

    At the end its standard input is closed; a program that does not end by that is killed.
    """
    process = subprocess.Popen(
        [*space.prefix, sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"`{' '.join(words)}` has ended: {process.wait(END_SECONDS)}")
        yield line.strip()
    finally:
        process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_SECONDS)
        process.stdout.close()


@contextmanager
def stun_on(host: Host) -> Iterator[tuple[str, ...]]:
    """A STUN server on a public host, both families; yields its `host:port` of every address.

    The first of each family is the one to ask (RFC 5780: the others are named in its answer).
    """
    with (
        running(host.space, "-I", "-S", str(STUN), *host.v4),
        running(host.space, "-I", "-S", str(STUN), *host.v6),
    ):
        yield (f"{host.v4[0]}:3478", f"[{host.v6[0]}]:3478", f"{host.v4[1]}:3478", f"[{host.v6[1]}]:3478")
