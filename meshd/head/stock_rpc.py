"""Plain rpc-servers of the LAN (`--rpc HOST:PORT`): without meshd, without a secret, weights over the wire.

Asked once before a load, while nobody uses the connection: such a server has one client at a time.
"""

import asyncio
import socket
from collections.abc import Sequence

from meshd.base import log
from meshd.base.errors import MeshdError, RemoteProtocolError
from meshd.plan.machines import PlainRpc
from meshd.rpc import probe
from meshd.wire.lease import OfferedDevice

_ASK_SECONDS = 5.0
LOG = log.get("serve")


async def ask_plain(endpoints: Sequence[str], *, protocol: str) -> tuple[PlainRpc, ...]:
    """Ask each for its devices; `protocol` is ours (`7.0.0`). Raises MeshdError naming the server."""
    servers = []
    for endpoint in endpoints:
        LOG.warning("plain_rpc", remote=endpoint, why="no encryption, no identity, weights over the network")
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                servers.append(PlainRpc(endpoint, await _devices(endpoint, protocol)))
        except TimeoutError:
            raise MeshdError(
                f"the rpc-server `{endpoint}` does not answer",
                hint="another client may be using it: it serves one at a time",
            ) from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise MeshdError(
                f"cannot use the rpc-server `{endpoint}`: {_in_words(error)}",
                hint="check that it is running, and its port",
            ) from None
        except RemoteProtocolError as error:
            raise MeshdError(
                f"cannot use the rpc-server `{endpoint}`: {error.what}", hint=error.hint
            ) from None
    return tuple(servers)


def _in_words(error: OSError | asyncio.IncompleteReadError) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return "it closed the connection; llama.cpp's rpc-server does not"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    return (error.strerror or "no connection to any of its addresses").lower()


async def _devices(endpoint: str, protocol: str) -> tuple[OfferedDevice, ...]:
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))

    async def ask(request: bytes) -> bytes:
        writer.write(request)
        await writer.drain()
        (size,) = probe.RPC_ANSWER.unpack(await reader.readexactly(probe.RPC_ANSWER.size))
        if size > probe.MAX_ANSWER_BYTES:
            raise RemoteProtocolError(
                "the answer is too long", hint="check that it is llama.cpp's rpc-server"
            )
        return await reader.readexactly(size)

    try:
        version = probe.read_hello(await ask(probe.hello()))
        mine = tuple(int(part) for part in protocol.split("."))
        if version[0] != mine[0] or version[1] > mine[1]:
            theirs = ".".join(map(str, version))
            raise RemoteProtocolError(
                f"it speaks RPC protocol {theirs}, this build {protocol}",
                hint="build both from one version of llama.cpp",
            )
        count = probe.read_count(await ask(probe.device_count()))
        devices = []
        for number in range(count):
            memory = probe.read_memory(await ask(probe.device_memory(number)))
            # the protocol does not tell what a device is; people lend GPUs this way, or have nothing better
            devices.append(OfferedDevice(f"RPC{number}", "gpu", endpoint[:64], memory.free, memory.total))
        return tuple(devices)
    finally:
        writer.close()
        await writer.wait_closed()
