"""Programs inside namespaces: started, waited for until they say a line, ended by the end of their input."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedWriter
from pathlib import Path

from tests.netns.space import Namespace
from tests.netns.world import Host

ROOT = Path(__file__).parents[2]
STUN = Path(__file__).with_name("stun_server.py")
END_SECONDS = 10.0


@contextmanager
def running(space: Namespace, *words: str, home: Path | None = None) -> Iterator[str]:
    """Run Python with `words` inside; yields the first line that it prints.

    At the end its standard input is closed, and SIGTERM sent; what does not end by that is killed. `home` is
    that of meshd, and where its standard error goes.
    """
    with ExitStack() as stack:
        errors = None
        environment = dict(os.environ)
        if home is not None:
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            errors = stack.enter_context((home / "stderr.log").open("ab"))
            environment["MESHD_HOME"] = str(home)
        yield from _run(space, words, environment, errors)


def _run(
    space: Namespace, words: tuple[str, ...], environment: dict[str, str], errors: BufferedWriter | None
) -> Iterator[str]:
    process = subprocess.Popen(
        [*space.prefix, sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            code = process.wait(END_SECONDS)
            said = Path(errors.name).read_text(errors="replace")[-2000:] if errors is not None else ""
            raise RuntimeError(f"`{' '.join(words)}` has ended: {code}\n{said}")
        yield line.strip()
    finally:
        process.stdin.close()
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_SECONDS)
        process.stdout.close()


@contextmanager
def relay_on(host: Host, home: Path, *, name: str, port: int = 443) -> Iterator[str]:
    """`meshd relay` on a public host that the world knows by `name`; yields its URL."""
    words = ["-m", "meshd", "relay", "--listen", f":{port}", "--public-host", name]
    with running(host.space, *words, home=home) as url:
        yield url


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
