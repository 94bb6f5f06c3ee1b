"""`meshd bench latency --proxy LISTEN:TARGET --ms N`: the delaying proxy on its own, until it is stopped."""

import asyncio
import signal
from dataclasses import asdict
from functools import partial

from meshd.base.errors import UserError
from meshd.base.tasks import Owner, first_error
from meshd.bench.interface import BenchOutput, ProxyArgs
from meshd.fleet.proxy import Counts, DelayingProxy, ProxyRules, connect_to, run_loop
from meshd.link.tcp.sockets import listen


def run(args: ProxyArgs, out: BenchOutput) -> int:
    """Serve until stopped; return 0 after SIGTERM, 130 after SIGINT. Raises UserError if it cannot listen."""
    half = args.milliseconds / 2000
    rules = ProxyRules(compute=2 * half, rpc=True) if args.compute_only else ProxyRules(one_way=half)
    try:
        return run_loop(_serve(args, rules, out))
    except ExceptionGroup as group:
        raise first_error(group) from None


async def _serve(args: ProxyArgs, rules: ProxyRules, out: BenchOutput) -> int:
    codes: list[int] = []
    stop = asyncio.Event()

    def stopped(code: int) -> None:
        codes.append(code)
        stop.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped, 0)
    loop.add_signal_handler(signal.SIGINT, stopped, 130)
    counts = Counts()
    [listener, *_] = listen(*args.listen)
    host, port = listener.getsockname()[:2]
    if (host, port) == args.target:
        listener.close()
        raise UserError("the proxy would connect to itself", hint="choose another port to listen on")
    proxy = DelayingProxy(listener, partial(connect_to, *args.target), rules=rules, counts=counts)
    async with Owner() as owner:
        owner.start(proxy.serve(), name="proxy")
        what = "each request for computing" if args.compute_only else "each round trip"
        out.note(f"{what} takes {args.milliseconds:g} ms more; Ctrl-C ends it and tells what has passed")
        out.line(f"{host}:{port}")
        await stop.wait()
        owner.cancel()
    _tell(counts, rules, args, out)
    return codes[0]


def _tell(counts: Counts, rules: ProxyRules, args: ProxyArgs, out: BenchOutput) -> None:
    if args.as_json:
        out.json(asdict(counts))
        return
    out.note(f"{counts.connections} connections, {counts.up} bytes to the target, {counts.down} back")
    if rules.rpc:
        rpc = counts.rpc
        out.note(f"{rpc.requests} requests, {rpc.round_trips} round trips")
        out.note(
            f"bytes of weights {rpc.weights}, of tensors {rpc.tensors}, "
            f"of graphs {rpc.graphs}, of control {rpc.control}"
        )
