"""An rpc-server with a listener before it: stands in its place in a folder of binaries (`wrap`).

`python -m meshd.bench.counted_rpc SERVER CONTROL COMPUTE_MS ARGUMENTS…` takes the connections of the
inherited `--listen-fd`, counts what is said, holds requests for computing back for so long, and passes all to
the real server. Each connection to the unix socket CONTROL gets the counts so far as JSON.
"""

import asyncio
import contextlib
import json
import os
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.build.interface import RPC_SERVER, NativeInfo
from meshd.fleet.proxy import DelayingProxy, ProxyRules, connect_to, run_loop
from meshd.fleet.rpc_count import RpcCounts
from meshd.process.ports import listening_socket

ANSWER_BYTES = 64 << 10


def wrap(native: NativeInfo, folder: Path, control: Path, compute_ms: float) -> Path:
    """A folder for `--native-bin` like that of `native`, whose rpc-server is listened to."""
    real = native.binaries[RPC_SERVER]
    bin_dir = folder / "bin"
    bin_dir.mkdir(parents=True)
    for path in native.bin_dir.iterdir():
        if path != real:
            (bin_dir / path.name).symlink_to(path)
    place = bin_dir / real.name
    words = [sys.executable, "-m", "meshd.bench.counted_rpc", str(real), str(control), str(compute_ms)]
    command = " ".join(map(shlex.quote, words))
    place.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    place.chmod(0o700)
    stamp = json.loads((native.bin_dir.parent / "stamp.json").read_text(encoding="utf-8"))
    stamp["binaries"][RPC_SERVER][1] = place.stat().st_size
    (folder / "stamp.json").write_text(json.dumps(stamp), encoding="utf-8")
    return bin_dir


async def ask_counts(control: Path) -> RpcCounts:
    """Of the rpc-server that stands there now. Raises MeshdError."""
    try:
        reader, writer = await asyncio.open_unix_connection(control)
        answer = await reader.read(ANSWER_BYTES)
        writer.close()
    except OSError as error:
        raise MeshdError("the counted rpc-server does not answer") from error
    return RpcCounts(**json.loads(answer))


async def _serve(real: str, control: Path, compute_ms: float, arguments: list[str]) -> int:
    at = arguments.index("--listen-fd") + 1
    outer = socket.socket(fileno=int(arguments[at]))
    inherited = _inherited()
    inner = listening_socket()
    arguments[at] = str(inner.fileno())
    passed = [*(number for number in inherited if number != outer.fileno()), inner.fileno()]
    server = await asyncio.create_subprocess_exec(real, *arguments, pass_fds=passed)
    port = inner.getsockname()[1]
    inner.close()
    rules = ProxyRules(compute=compute_ms / 1000, rpc=True, secret="--auth-fd" in arguments)
    proxy = DelayingProxy(outer, partial(connect_to, "127.0.0.1", port), rules=rules)

    async def tell(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps(asdict(proxy.counts.rpc)).encode())
        writer.close()

    teller = await asyncio.start_unix_server(tell, control)
    async with teller, Owner() as owner:
        owner.start(proxy.serve(), name="proxy")
        code = await server.wait()
        owner.cancel()
    return code


def _inherited() -> list[int]:
    """Descriptors that were passed to this program."""
    numbers = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    found = []
    for number in numbers:
        with contextlib.suppress(OSError):  # the one by which they were listed
            if number > 2 and os.get_inheritable(number):
                found.append(number)
    return found


def main(argv: Sequence[str]) -> int:
    """See the module."""
    real, control, compute_ms, *arguments = argv
    if "--listen-fd" not in arguments:
        os.execv(real, [real, *arguments])  # it is only asked something
    Path(control).unlink(missing_ok=True)  # of the server before
    return run_loop(_serve(real, Path(control), float(compute_ms), arguments))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
