"""What llama.cpp's binaries are: built with RPC, of a protocol that meshd knows, with its patches or not.

A version says nothing of patches, so they are tried: the rpc-server is started on a loopback port and
greeted, and llama-server is told to list the devices behind it; a patched one writes a report of that.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from meshd.base.errors import RemoteProtocolError, UserError
from meshd.base.listening_socket import LOOPBACK_HOST
from meshd.base.tasks import Owner, first_error
from meshd.process.child import OwnedChild
from meshd.process.handover import ReportPipe
from meshd.process.interface import SHOWN_LINES, ChildFailed, ChildSpec
from meshd.process.ports import listening_socket
from meshd.process.ready import port_open
from meshd.process.run import run_to_end
from meshd.role.interface import NativeBuild
from meshd.role.native.command_lines import REPORT_VARIABLE
from meshd.rpc import probe
from meshd.rpc.protocol import ANSWER
from meshd.wire.native import STOCK_PATCHES, UNKNOWN

_START_SECONDS = 30.0  # a backend for a GPU takes seconds for its first device
LIST_SECONDS = 60.0
OWN_BUILD = (
    "build the pinned version of llama.cpp with `-DGGML_RPC=ON`, or omit --native-bin and run "
    "`meshd native build`"
)
ONE_BUILD = "name a directory with the programs of a single build, or omit --native-bin"
_HELLO_BYTES = 1024  # more than any version of it takes


async def check_native(native: NativeBuild, *, protocol: str, logs: Path, head: bool) -> NativeBuild:
    """`native` as it is; `protocol` is ours, as `7.0.0`; `head`: llama-server is looked at, too.

    Raises UserError that says what is wrong with the binaries, and what to do.
    """
    try:
        async with _running(native.rpc_server, logs) as port:
            greeting = await _greet(native.rpc_server, port)
            spoken = ".".join(map(str, greeting.version))
            if not _fits(spoken, protocol):
                raise UserError(
                    f"`{native.rpc_server}` speaks RPC protocol {spoken}, this meshd speaks {protocol}",
                    hint=OWN_BUILD,
                )
            if head and await _list_devices(native.llama_server, port, logs) != greeting.patched:
                with_patches, without = native.rpc_server, native.llama_server
                if not greeting.patched:
                    with_patches, without = without, with_patches
                raise UserError(f"`{with_patches}` has meshd's patches, `{without}` does not", hint=ONE_BUILD)
    except ExceptionGroup as group:
        raise first_error(group) from None
    patches = _patches(native.version.patches, patched=greeting.patched)
    return replace(
        native,
        patched=greeting.patched,
        version=replace(native.version, rpc=spoken, patches=patches),
    )


def _patches(stamped: str, *, patched: bool) -> str:
    """What is known of the patches: the binaries say whether there are any, a stamp which."""
    if not patched:
        return STOCK_PATCHES
    return UNKNOWN if stamped == STOCK_PATCHES else stamped


def _fits(spoken: str, protocol: str) -> bool:
    """As llama.cpp's client judges a server: the same major version, and nothing newer in the minor one."""
    theirs, ours = ([int(part) for part in version.split(".")] for version in (spoken, protocol))
    return theirs[0] == ours[0] and theirs[1] <= ours[1]


@contextlib.asynccontextmanager
async def _running(program: Path, logs: Path) -> AsyncIterator[int]:
    """The program as rpc-server; gives its port."""
    with listening_socket() as free:
        port: int = free.getsockname()[1]
    spec = ChildSpec(
        name=program.name,
        argv=(str(program), "--host", LOOPBACK_HOST, "--port", str(port)),
        log=logs / "native-check.log",
        probe=port_open(port),
        ready_timeout=_START_SECONDS,
    )
    child = OwnedChild(lambda: spec, name=program.name)
    async with Owner() as owner:
        owner.start(child.serve(), name="rpc-server check")
        try:
            await child.ensure_ready()
        except ChildFailed as error:
            raise _broken(program, error.what, error.tail) from None
        yield port
        owner.cancel()


async def _greet(program: Path, port: int) -> probe.Greeting:
    """Its answer to HELLO."""
    writer = None
    try:
        async with asyncio.timeout(_START_SECONDS):
            reader, writer = await asyncio.open_connection(LOOPBACK_HOST, port)
            writer.write(probe.hello())
            (size,) = ANSWER.unpack(await reader.readexactly(ANSWER.size))
            if size > _HELLO_BYTES:
                raise RemoteProtocolError("the answer is too long")
            return probe.read_hello(await reader.readexactly(size))
    except (OSError, TimeoutError, asyncio.IncompleteReadError, RemoteProtocolError):
        raise UserError(
            f"`{program}` does not speak meshd's RPC protocol: it does not answer HELLO",
            hint=OWN_BUILD,
        ) from None
    finally:
        if writer is not None:
            writer.transport.abort()


async def _list_devices(program: Path, port: int, logs: Path) -> bool:
    """Returns whether it has meshd's patches: only then it reports whom it greeted."""
    lines: list[str] = []
    with ReportPipe() as report:
        spec = ChildSpec(
            name="llama-server check",
            argv=(str(program), "--rpc", f"{LOOPBACK_HOST}:{port}", "--list-devices"),
            log=logs / "native-check-head.log",
            on_line=lines.append,
            env={REPORT_VARIABLE: str(report.child_end)},
            hand_over=(report.child_end,),
        )
        try:
            async with asyncio.timeout(LIST_SECONDS):
                ended = await run_to_end(spec)
                reported = [line async for line in report]
        except TimeoutError:
            raise _broken(program, f"it listed no devices within {LIST_SECONDS:.0f} s", lines) from None
    text = "\n".join(lines)
    if ended.code == 0 and "RPC0" in text:
        return any(line.startswith("worker ") for line in reported)
    if "RPC not supported" in text or "invalid argument: --rpc" in text or ended.code == 0:
        raise UserError(f"`{program}` was built without RPC: it cannot use workers", hint=OWN_BUILD)
    if "version mismatch" in text:
        raise UserError(
            f"`{program}` speaks a different version of the RPC protocol than the rpc-server next to it",
            hint=OWN_BUILD,
        )
    end = f"exit code {ended.code}" if ended.signal is None else f"signal {ended.signal}"
    raise _broken(program, f"it cannot list devices ({end})", lines)


def _broken(program: Path, what: str, tail: Sequence[str]) -> UserError:
    last = " | ".join(line.strip() for line in tail[-SHOWN_LINES:])
    return UserError(
        f"`{program}` cannot be used: {what}" + (f"; last lines: {last}" if last else ""), hint=OWN_BUILD
    )
