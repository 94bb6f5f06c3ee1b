"""Three machines at a switch compute by tensors, sealed, and lose each other in the middle of an answer.

The answer goes on to the text of one node, by tensors or by layers (the prompt is of
tests/e2e/test_mesh_open_answers.py), and whoever was lost is named; of two workers that lose each other, one.
"""

import asyncio
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode, ready_or_raise
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.api_client import Api
from tests.e2e.models import smollm2, stock_text
from tests.e2e.nodes import SAME_THREADS, Fleet, api_of, child_pid, model_of, play
from tests.e2e.open_answers import answers_under
from tests.e2e.test_mesh_open_answers import PROMPTS
from tests.netns.space import Namespace

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

ADDRESSES = {"head": "10.56.0.1", "worker-0": "10.56.0.2", "worker-1": "10.56.0.3"}
PROMPT = PROMPTS[1]
TOKENS = 100
PIECES = 9  # of an answer that have come when something is lost
HEAD = ("--split", "tensor", "--min-workers", "2", "--ctx-size", "4096")
GOES_ON = ("--set", "serve.continue_answers=300", "--grace", "10")
UNCOMPRESSED = ("--set", "links.compress=off")  # whatever the round trip of a busy machine is


@pytest.fixture
def machines() -> Iterator[Mapping[str, Namespace]]:
    with ExitStack() as stack:
        switch = stack.enter_context(Namespace("switch"))
        switch.ip("link add br0 type bridge", "link set br0 up")
        found = {name: stack.enter_context(Namespace(name)) for name in ADDRESSES}
        for number, (name, space) in enumerate(found.items()):
            space.ip(f"link add eth0 type veth peer name port{number} netns {switch.name}")
            space.ip(f"address add {ADDRESSES[name]}/24 dev eth0", "link set eth0 up")
            switch.ip(f"link set port{number} master br0", f"link set port{number} up")
        yield found


class Lab:
    """A head and two workers, each on a machine of its own."""

    def __init__(self, machines: Mapping[str, Namespace], fleet: Fleet) -> None:
        self._machines, self._fleet = machines, fleet
        self.nodes: dict[str, LocalNode] = {}
        self._servers: dict[str, int] = {}

    async def start(self) -> LocalNode:
        """Start all; return the head."""
        token = ""
        for name in ("worker-0", "worker-1", "head"):
            head = ("--port", "0", *HEAD, *GOES_ON) if name == "head" else ()
            options = (*UNCOMPRESSED, "--model", str(smollm2()), *head)
            self.nodes[name] = await self._fleet.start(
                self._fleet.spec(
                    name,
                    "serve" if head else "worker",
                    *options,
                    *(SAME_THREADS if head else ()),
                    listen=f"{ADDRESSES[name]}:7700",
                    prefix=self._machines[name].prefix,
                    token=token,
                )
            )
            token = token or await self.nodes[name].token()
        return self.nodes["head"]

    def api(self, status: Status) -> Api:
        """Return the head's API, which answers on its machine."""

        def connect() -> socket.socket:
            assert status.api is not None
            sock = self._machines["head"].socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.connect(("127.0.0.1", int(status.api.url.rpartition(":")[2].split("/")[0])))
            return sock

        return api_of(status, connect)

    async def ways(self) -> list[str]:
        """Return how the workers exchange their sums, as their daemons show it."""
        workers = [node for name, node in self.nodes.items() if name != "head"]
        return [way.listen for worker in workers for way in (await worker.status()).tunnels]

    async def find_servers(self) -> None:
        """Find the workers' mesh-servers beforehand: an answer does not wait until one is found."""
        for name in ("worker-0", "worker-1"):
            self._servers[name] = child_pid(await self.nodes[name].status(), CHILD_NAME)

    def stop(self, name: str) -> None:
        """Suspend this worker's mesh-server."""
        os.kill(self._servers[name], signal.SIGSTOP)

    def cut(self, *pairs: tuple[str, str]) -> None:
        """Let no packet of these pass to each other, as without a cable."""
        for pair in pairs:
            for here, there in (pair, pair[::-1]):
                chain = "chain c { type filter hook input priority 0; }"
                drop = f"add rule ip cut c ip saddr {ADDRESSES[there]} drop"
                self._machines[here].nft(f"table ip cut {{ {chain}; }}\n{drop}\n")

    def mend(self) -> None:
        """Let all packets pass."""
        for space in self._machines.values():
            space.nft("table ip cut; delete table ip cut")


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss: what is lost, and what comes of it."""

    hit: Callable[[Lab], None]
    named: tuple[str, ...]
    """One of these workers is; empty: the run goes on."""
    split: str = "each layer on `worker-0` and `worker-1`"
    """Begins the reason of the split afterwards."""
    ways: Sequence[str] = ("sealed",)
    """How the workers exchange sums then."""
    is_needed: bool = False
    """No answer goes on before it is back."""


LOSSES = {
    "a worker is suspended": Loss(lambda lab: lab.stop("worker-1"), ("worker-1",)),
    # both reach the other worker, which passes on what they say
    "the head and a worker": Loss(lambda lab: lab.cut(("head", "worker-1")), ()),
    "a worker and everybody": Loss(
        lambda lab: lab.cut(("head", "worker-1"), ("worker-0", "worker-1")),
        ("worker-1",),
        ways=("sealed", "socketpair"),  # the first link that comes back may be QUIC's
        is_needed=True,
    ),
    # nobody can tell which of the two is at fault: they exchange nothing for an hour
    "both workers": Loss(
        lambda lab: lab.cut(("worker-0", "worker-1")),
        ("worker-0", "worker-1"),
        split="by layers: the model cannot be split by tensors: `worker-0` and `worker-1` do not exchange",
        ways=(),
    ),
}


def _log(head: LocalNode) -> str:
    return (head.spec.home / "logs" / "meshd.log").read_text()


def _lost(log: str) -> list[str]:
    """Name the worker of each loss."""
    losses = [line for line in log.splitlines() if " model_lost " in line]
    return [found[1] for line in losses if (found := re.search(r"worker (worker-\d)", line))]


@pytest.mark.parametrize("what", LOSSES)
def test_an_answer_goes_on_whoever_loses_whom(
    machines: Mapping[str, Namespace], tmp_path: Path, what: str
) -> None:
    loss, text = LOSSES[what], stock_text(smollm2(), TOKENS, PROMPT)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            lab = Lab(machines, fleet)
            head = await lab.start()
            status = await fleet.ready(head)
            assert await lab.ways() == ["sealed"]
            await lab.find_servers()
            hit = partial(loss.hit, lab)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(
                    answers_under(lab.api(status), hit, [PROMPT], TOKENS, after=PIECES)
                )
                if loss.is_needed:
                    await head.until(lambda now: not ready_or_raise(now))
                    lab.mend()
            [streamed], _ = running.result()
            assert (streamed.error, streamed.text) == ("", text)
            assert streamed.done and streamed.tokens == TOKENS
            # it may be noticed after the end of the answer
            await head.until(lambda _: not loss.named or " model_lost " in _log(head))
            log = _log(head)
            assert log.count(" model_lost ") == min(len(loss.named), 1)
            assert set(_lost(log)) <= set(loss.named) and bool(_lost(log)) == bool(loss.named)
            assert model_of(await fleet.ready(head)).split_why.startswith(loss.split)
            assert set(await lab.ways()) <= set(loss.ways)

    play(check(), seconds=500)
