"""The delaying proxy in a process of its own: `python -m meshd.bench.latency_proxy PORT TARGET MS`.

It listens on PORT of loopback and passes on to TARGET there; a round trip takes MS milliseconds more. It
runs until SIGTERM or SIGINT.
"""

import asyncio
import signal
import sys
from functools import partial

from meshd.base.tasks import Owner
from meshd.fleet.proxy import Counts, DelayingProxy, ProxyRules, connect_to, run_loop
from meshd.link.tcp.sockets import listen

_HERE = "127.0.0.1"


async def serve(port: int, target: int, milliseconds: float) -> None:
    """Pass on until stopped. Raises OSError if the port is taken."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    [listener, *_] = listen(_HERE, port)
    rules = ProxyRules(one_way=milliseconds / 2000)
    proxy = DelayingProxy(listener, partial(connect_to, _HERE, target), rules=rules, counts=Counts())
    async with Owner() as owner:
        owner.start(proxy.serve(), name="proxy")
        await stop.wait()
        owner.cancel()


if __name__ == "__main__":
    run_loop(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
