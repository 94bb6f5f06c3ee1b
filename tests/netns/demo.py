"""The demo between two homes (`make demo-nat`): a worker behind one NAT, a head behind another.

The real model, the real daemons and the real command line, and a relay on a public host: in namespaces, so
root on Linux, with nftables and iproute2. Exit code 1 unless the answer came, and no weights were sent.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from meshd.admin.status import LinkView, Status
from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.build.fetch import demo_model
from meshd.build.interface import BuildProgress
from meshd.build.native import build, find
from meshd.config.tree import find_cache
from meshd.demo import other_copy
from meshd.fleet.fleet import LocalNode, NodeSpec, ready_or_raise, start_all

from tests.e2e.api_client import Api
from tests.netns.nat import Nat
from tests.netns.programs import relay_on, stun_on
from tests.netns.space import skip_reason
from tests.netns.world import Host, World

PROMPT = "Write one sentence about the sea."
TOKENS = 32
API_PORT = 8090
RELAY_NAME = "relay.test"
DIRECT_SECONDS = 30.0  # for a better path than the relay, after the answer


@dataclass(frozen=True, slots=True)
class Homes:
    """Where the two nodes live, and what they know of the outside."""

    worker: Host
    head: Host
    options: tuple[str, ...]


@contextmanager
def homes(folder: Path, worker: Nat, head: Nat) -> Iterator[Homes]:
    """Two homes, and a public host with a relay and a STUN server."""
    with World() as world, ExitStack() as stack:
        relay = world.public("relay")
        world.name(RELAY_NAME, relay)
        stun = stack.enter_context(stun_on(world.public("stun")))
        url = stack.enter_context(relay_on(relay, folder / "relay", name=RELAY_NAME))
        places = [world.router(label, kind).host("host") for label, kind in (("one", worker), ("two", head))]
        yield Homes(places[0], places[1], ("--relay", url, "--stun", stun[0], "--no-portmap"))


async def play(homes: Homes, folder: Path, cache: Path) -> None:
    """Start both, ask, show. Raises MeshdError."""
    if find(cache) is None:
        _say("building the native part once; this takes some minutes")
        await build(cache, progress=_quiet)
    model = await demo_model(cache, _quiet)
    async with Owner() as owner:
        copy = await asyncio.to_thread(other_copy, model, folder, whole=True)
        worker = LocalNode(_spec(homes, homes.worker, "worker", cache, folder, "--model", str(copy)))
        await start_all(owner, worker)
        given = ("--model", str(model), "--port", str(API_PORT))
        head = LocalNode(_spec(homes, homes.head, "serve", cache, folder, *given, token=await worker.token()))
        await start_all(owner, head)
        status = await head.until(ready_or_raise)
        _say(f"joined   {_way(status)}")
        await _answer(homes, status)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DIRECT_SECONDS):
                status = await head.until(lambda now: _link(now) is not None and _path(now) != "relayed")
        _say(f"now      {_way(status)}")
        owner.cancel()


async def _answer(homes: Homes, status: Status) -> None:
    model = status.model
    if model is None:
        raise MeshdError("the head shows no model")
    for part in model.split:
        _say(f"split    {part.node} {part.device}: {part.layers} layers")
    api = Api(f"http://127.0.0.1:{API_PORT}", partial(_connect, homes.head))
    text = await api.complete(PROMPT, TOKENS)
    _say(f"you      {PROMPT}")
    _say(f"model    {' '.join(text.split())}")
    _say(f"weights  {model.weights_network_bytes} bytes sent over the network")
    if not text.strip() or model.weights_network_bytes:
        raise MeshdError("this was not the main job")


def _connect(host: Host) -> socket.socket:
    made = host.space.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.connect(("127.0.0.1", API_PORT))
    except BaseException:
        made.close()
        raise
    return made


def _spec(
    homes: Homes, host: Host, role: str, cache: Path, folder: Path, *options: str, token: str = ""
) -> NodeSpec:
    return NodeSpec(
        name="head" if role == "serve" else role,
        role=role,
        home=folder / role,
        cache=cache,
        options=(*homes.options, *options),
        listen=":0",
        environment={"MESHD_SPLIT": "always"} | ({"MESHD_JOIN": token} if token else {}),
        prefix=host.space.prefix,
    )


def _link(status: Status) -> LinkView | None:
    return status.peers[0].link if status.peers else None


def _path(status: Status) -> str:
    link = _link(status)
    return link.path if link is not None else ""


def _way(status: Status) -> str:
    link = _link(status)
    if link is None:
        return "no link"
    why = status.peers[0].why_not_direct
    return f"{link.kind} {link.path}, {link.remote}" + (f": {why}" if why else "")


def _quiet(_: BuildProgress) -> None:
    pass


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description="the demo between two homes")
    parser.add_argument("--worker", default=Nat.PORT_RESTRICTED.name, help="the worker's NAT")
    parser.add_argument("--head", default=Nat.PORT_NOT_KEPT.name, help="the head's NAT")
    given = parser.parse_args()
    if reason := skip_reason():
        raise SystemExit(reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of everything that has to be removed
    log.set_up(level="warning")
    folder = Path(tempfile.mkdtemp(prefix="meshd-demo-nat-"))
    try:
        worker, head = Nat[given.worker.upper()], Nat[given.head.upper()]
        _say(f"worker   behind {worker}; head behind {head}; relay on a public host")
        with homes(folder, worker, head) as made:
            asyncio.run(play(made, folder, find_cache(os.environ)))
    except MeshdError as error:
        _show_logs(folder)
        raise SystemExit(f"meshd: {error.what}") from None
    except ExceptionGroup as group:
        _show_logs(folder)
        raise SystemExit(f"meshd: {first_error(group)}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _show_logs(folder: Path) -> None:
    for path in sorted(folder.glob("*/node.log")):
        lines = path.read_text(errors="replace").splitlines()[-40:]
        sys.stderr.write("\n".join([f"--- {path.parent.name}", *lines, ""]))


if __name__ == "__main__":
    main()
