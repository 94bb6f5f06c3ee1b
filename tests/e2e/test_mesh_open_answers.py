"""Four answers are open when something is lost: each goes on in its stream, to the text of one node alone.

What they say has no near ties: whatever is computed at once, and whatever is replayed as one prompt, the most
likely token is far ahead (at least 1.4 in the logarithm of the probability). They count, so that a token left
out or sent twice changes the text.

Two workers and a head are in networks of their own, with a proxy on every way: whichever process or way is
lost, the others stay.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode, model_ready
from meshd.tunnel.interface import LISTEN_LOCAL
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e import shut_socket, spaces
from tests.e2e.homes import connected
from tests.e2e.mesh_losses import again_within, crashes
from tests.e2e.models import smollm2, stock_text
from tests.e2e.nodes import LOCALLY, SAME_BATCHES, Fleet, api_of, child_pid, model_of, play
from tests.e2e.open_answers import REPEATING, Interruption, answers_under, interruption
from tests.e2e.trio import Trio, trio
from tests.soak import SEED, SOAK, counts, drawn

pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(1000),
    pytest.mark.skipif(bool(spaces.skip_reason()), reason=spaces.skip_reason() or "-"),
]

PROMPTS = (
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "300 301 302 303 304 305 306 307 308 309 310 311 312",
    "line 10: x\nline 11: x\nline 12: x\nline 13: x\nline 14: x\n",
    "1. a\n2. a\n3. a\n4. a\n5. a\n6. a\n7. a\n",
)
TOKENS = 100
GRACE = counts(10, 120)  # 120 is the default
AWAY_SECONDS = counts(20, 200)  # longer than the grace and the seconds until a link is known to be lost
FOUND_SECONDS = 10.0  # until a process is known to be lost, or another path is taken
EXPLAINED_SECONDS = 15.5  # a stream that stands still for longer says why
RETURN_SECONDS = 30.0  # until a path that works again is taken
ONE_THREAD = ("-t", "1")  # many of these meshes run side by side
DEFAULTS = (*LOCALLY, "--split", "auto", "--speculate", "auto")  # which Fleet.spec sets otherwise
HEAD_OPTIONS = (
    "--grace",
    str(GRACE),
    "--set",
    "serve.continue_answers=300",
    "--",
    *ONE_THREAD,
    *SAME_BATCHES,
)
VICTIM = "worker-0"

Blow = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Kind:
    """`aim` finds what to hit; after `away` seconds `back` undoes it.

    `out`: for how many seconds nobody can go on. `least`: with fewer workers the model waits. `relayed`:
    members pass bytes on for each other. `pause`: the model stays loaded. `defaults`: meshd chooses the
    workers, and llama-server drafts.
    """

    lost: str
    how: str
    runs: int
    aim: Callable[[Trio], Awaitable[Blow]]
    away: float = 0.0
    back: Callable[[Trio], object] = lambda _place: None
    out: float = 0.0
    least: int = 1
    relayed: bool = False
    pause: bool = False
    defaults: bool = False

    @property
    def prompts(self) -> tuple[str, ...]:
        return REPEATING if self.defaults else PROMPTS


async def _used(place: Trio) -> LocalNode:
    """The first worker that has layers: with the defaults they may all be on the other one."""
    using = {part.node for part in model_of(await place.head.status()).split}
    return next(worker for worker in place.workers if worker.spec.name in using)


async def _at_mesh_server(number: signal.Signals, place: Trio) -> Blow:
    return partial(os.kill, child_pid(await (await _used(place)).status(), CHILD_NAME), number)


async def _at_llama_server(number: signal.Signals, place: Trio) -> Blow:
    return partial(os.kill, child_pid(await place.head.status(), "llama-server"), number)


async def _at_tunnel(place: Trio) -> Blow:
    """The end of a worker's tunnel in the head: neither daemon is touched, and no path."""
    server = child_pid(await place.head.status(), "llama-server")
    return partial(shut_socket.shut, server, _first_tunnel(server))


def _first_tunnel(server: int) -> int:
    """The descriptor of its connection with the first worker, by its environment."""
    listed = Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
    [given] = [one for one in listed if one.startswith(b"GGML_MESH_FDS=")]
    return int(given.partition(b"=")[2].split(b",")[0])


async def _at_daemon(number: signal.Signals, place: Trio) -> Blow:
    worker = await _used(place)
    assert worker.pid is not None
    if number is signal.SIGKILL:
        place.fleet.forget(worker)
    return partial(os.kill, worker.pid, number)


def _wake(place: Trio) -> None:
    assert place.workers[0].pid is not None
    os.kill(place.workers[0].pid, signal.SIGCONT)


async def _at_cable(place: Trio) -> Blow:
    def pull() -> None:
        for other in ("head", "worker-1"):
            place.way(VICTIM, other).silence()

    return pull


def _plug_in(place: Trio) -> None:
    for other in ("head", "worker-1"):
        place.way(VICTIM, other).flow()


async def _at_link(place: Trio) -> Blow:
    return place.way(VICTIM, "head").silence


async def _at_connections(place: Trio) -> Blow:
    return place.way(VICTIM, "head").reset


AT_ONCE: Mapping[str, Kind] = {
    "mesh-server-killed": Kind("mesh-server", "kill -9", 16, partial(_at_mesh_server, signal.SIGKILL)),
    "mesh-server-stopped": Kind("mesh-server", "kill -STOP", 16, partial(_at_mesh_server, signal.SIGSTOP)),
    "llama-server-killed": Kind("llama-server", "kill -9", 16, partial(_at_llama_server, signal.SIGKILL)),
    "llama-server-stopped": Kind("llama-server", "kill -STOP", 16, partial(_at_llama_server, signal.SIGSTOP)),
    "tunnel-shut": Kind("tunnel", "shut", 7, _at_tunnel),
    "link-reset": Kind("link", "reset", 3, _at_connections, pause=True),
}
FOR_LONG: Mapping[str, Kind] = {
    "worker-killed": Kind("worker", "kill -9", 4, partial(_at_daemon, signal.SIGKILL), out=GRACE),
    "worker-stopped": Kind(
        "worker", "kill -STOP", 5, partial(_at_daemon, signal.SIGSTOP), AWAY_SECONDS, _wake, out=GRACE
    ),
    "worker-cable": Kind("worker", "cable", 5, _at_cable, AWAY_SECONDS, _plug_in, out=GRACE),
    "last-worker-stopped": Kind(
        "last worker",
        "kill -STOP",
        3,
        partial(_at_daemon, signal.SIGSTOP),
        AWAY_SECONDS,
        _wake,
        out=AWAY_SECONDS + RETURN_SECONDS,
        least=2,
    ),
    "last-worker-cable": Kind(
        "last worker",
        "cable",
        3,
        _at_cable,
        AWAY_SECONDS,
        _plug_in,
        out=AWAY_SECONDS + RETURN_SECONDS,
        least=2,
    ),
    "link-silent": Kind("link", "silent", 3, _at_link, AWAY_SECONDS, _plug_in, out=GRACE),
    "link-relayed": Kind(
        "link", "silent, relayed", 3, _at_link, AWAY_SECONDS, _plug_in, relayed=True, pause=True
    ),
}

WITH_DEFAULTS: Mapping[str, Kind] = {
    "mesh-server-killed": Kind(
        "mesh-server", "kill -9, defaults", 4, partial(_at_mesh_server, signal.SIGKILL), defaults=True
    ),
    "llama-server-killed": Kind(
        "llama-server", "kill -9, defaults", 4, partial(_at_llama_server, signal.SIGKILL), defaults=True
    ),
    "worker-killed": Kind(
        "worker", "kill -9, defaults", 4, partial(_at_daemon, signal.SIGKILL), out=GRACE, defaults=True
    ),
}


def _runs(name: str, kinds: Mapping[str, Kind]) -> Sequence[object]:
    """In a soak all runs of each kind."""
    chosen = [(one, number) for one, kind in kinds.items() for number in range(kind.runs if SOAK else 1)]
    return [
        pytest.param(kinds[one], id=f"{one}-{number}") for one, number in drawn(name, chosen, 1, always=())
    ]


@pytest.mark.parametrize("kind", _runs("what is lost under open answers", AT_ONCE))
def test_what_is_lost_at_once(tmp_path: Path, kind: Kind) -> None:
    if kind.lost == "tunnel" and shut_socket.skip_reason():
        pytest.skip(shut_socket.skip_reason())
    _check(tmp_path, kind)


@pytest.mark.parametrize("kind", _runs("what is away for long under open answers", FOR_LONG))
def test_what_is_away_for_long(tmp_path: Path, kind: Kind) -> None:
    """Longer than the grace."""
    _check(tmp_path, kind)


@pytest.mark.parametrize("kind", _runs("what is lost with the defaults", WITH_DEFAULTS))
def test_what_is_lost_with_the_defaults(tmp_path: Path, kind: Kind) -> None:
    """As users have it: the other kinds use all workers, and nothing is drafted."""
    _check(tmp_path, kind)


@dataclass(frozen=True, slots=True)
class Crash:
    """A process that is killed in a mesh with users' defaults: the grace and the split among them."""

    lost: str
    runs: int
    pid: Callable[[LocalNode, LocalNode], Awaitable[int | None]]  # of a worker that is used, and the head


async def _mesh_server(worker: LocalNode, _head: LocalNode) -> int:
    return child_pid(await worker.status(), CHILD_NAME)


async def _llama_server(_worker: LocalNode, head: LocalNode) -> int:
    return child_pid(await head.status(), "llama-server")


async def _daemon(worker: LocalNode, _head: LocalNode) -> int | None:
    return worker.pid


CRASHES: Mapping[str, Crash] = {
    "worker": Crash("worker", 8, _daemon),
    "mesh-server": Crash("mesh-server", 4, _mesh_server),
    "llama-server": Crash("llama-server", 4, _llama_server),
}


def _crashes() -> Sequence[object]:
    """In a soak 32 in all; else a worker's daemon with and without a standby worker."""
    chosen = [
        (name, standby, number)
        for number in range(max(one.runs for one in CRASHES.values()))
        for name, one in CRASHES.items()
        for standby in (True, False)
        if number < one.runs
    ]
    always = [("worker", True, 0), ("worker", False, 0)]
    return [
        pytest.param(CRASHES[name], standby, id=f"{name}-{'standby' if standby else 'none'}-{number}")
        for name, standby, number in drawn("what crashes with the defaults", chosen, 0, always=always)
    ]


@pytest.mark.parametrize(("crash", "standby"), _crashes())
def test_what_crashes_with_the_defaults(tmp_path: Path, crash: Crash, standby: bool) -> None:
    """No proxy is between the nodes: the port of a daemon that was killed refuses, as on a user's machine.

    The head computes no layers: it would be faster alone with so small a model. How long the streams stand
    still is reported, and not asserted: that the grace is not waited for shows in the log.
    """
    texts = [stock_text(smollm2(), TOKENS, prompt, ("-c", "8192", *ONE_THREAD)) for prompt in REPEATING]
    names = ["worker-0", "worker-1", *(["barn"] if standby else [])]
    given = ("--standby", "barn") if standby else ()

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            workers: dict[str, LocalNode] = {}
            token = ""
            for name in names:
                workers[name] = await fleet.worker(
                    name, *LOCALLY, "--threads", "1", model=smollm2(), token=token
                )
                token = token or await workers[name].token()
            await connected(workers["worker-0"], len(names) - 1)
            options = (*DEFAULTS, "--set", "serve.continue_answers=300", "--device", "none", *given)
            head = await fleet.head(smollm2(), *options, "--", *ONE_THREAD, *SAME_BATCHES, token=token)
            status = await head.until(
                lambda now: model_ready(now) and all(one.ready for one in model_of(now).standby)
            )
            assert {tunnel.listen for tunnel in status.tunnels} == {LISTEN_LOCAL}
            used = min(part.node for part in model_of(status).split if part.layers)
            pid = await crash.pid(workers[used], head)
            assert pid is not None
            if crash.lost == "worker":
                fleet.forget(workers[used])
            with interruption(crash.lost, f"kill -9, {'standby' if standby else 'none'}") as noted:
                blow = partial(os.kill, pid, signal.SIGKILL)
                streams, noted.seconds = await answers_under(api_of(status), blow, REPEATING, TOKENS)
                for streamed, text in zip(streams, texts, strict=True):
                    whole = streamed.error == "" and streamed.done and streamed.tokens == TOKENS
                    noted.incomplete += not whole
                    noted.wrong += whole and streamed.text != text
                print(f"{crash.lost}, {standby=}: {noted.seconds}")  # noqa: T201
            if crash.lost == "worker":
                await head.until(lambda now: _told(head, "peer_gone") > 0)
                await head.until(lambda now: model_ready(now) and used not in _nodes(now))
            assert _told(head, "peer_gone") == (crash.lost == "worker")
            await fleet.ready(head)

    play(check(), seconds=900.0)


def _check(folder: Path, kind: Kind) -> None:
    texts = [stock_text(smollm2(), TOKENS, prompt, ("-c", "8192", *ONE_THREAD)) for prompt in kind.prompts]
    options = (
        *(() if kind.relayed else ("--set", "links.no_relaying=true")),
        *(LOCALLY if kind.defaults else ()),
    )

    async def check() -> None:
        began = time.monotonic()
        async with trio(
            folder,
            smollm2(),
            head_options=(*(DEFAULTS if kind.defaults else ()), *HEAD_OPTIONS),
            seed=SEED,
            min_workers=kind.least,
            worker_options=("--threads", "1"),
            options=options,
        ) as place:
            await place.fleet.ready(place.head)
            # one that joins late is taken in at a quiet moment
            await place.head.until(model_ready if kind.defaults else _uses_both)
            assert await place.api.complete(kind.prompts[0], TOKENS) == texts[0]
            with interruption(kind.lost, kind.how) as noted:
                noted.within = kind.out + FOUND_SECONDS + again_within(began)
                await _interrupted(place, kind, texts, noted)
            text, _ = await place.api.complete_through_503(kind.prompts[0], TOKENS, seconds=noted.within)
            assert text == texts[0]
            assert crashes(place.head) == 0
            speculation = model_of(await place.head.status()).speculation
            assert speculation is not None
            assert (speculation.drafted > 0) is (speculation.free > 0), "lines that repeat were not drafted"
            assert kind.defaults or not speculation.free

    play(check(), seconds=900.0)


def _nodes(status: Status) -> set[str]:
    return {part.node for part in model_of(status).split}


def _uses_both(status: Status) -> bool:
    return model_ready(status) and _nodes(status) >= {VICTIM, "worker-1"}


async def _interrupted(place: Trio, kind: Kind, texts: Sequence[str], noted: Interruption) -> None:
    blow, struck = await kind.aim(place), asyncio.Event()
    links, upstreams = _told(place.head, "link_lost"), _told(place.head, "upstream_lost")

    async def all_run() -> None:
        status = await place.head.status()
        assert status.api is not None
        assert status.api.running == len(kind.prompts), "an answer had ended before"

    def hit() -> None:
        blow()
        struck.set()

    async def undo() -> None:
        await struck.wait()
        try:
            await asyncio.sleep(kind.away)
        finally:
            kind.back(place)

    async with asyncio.TaskGroup() as group:
        group.create_task(undo())
        answers = group.create_task(answers_under(place.api, hit, kind.prompts, TOKENS, when_open=all_run))
    streams, noted.seconds = answers.result()
    for streamed, text, stood in zip(streams, texts, noted.seconds, strict=True):
        whole = streamed.error == "" and streamed.done and streamed.tokens == TOKENS
        noted.incomplete += not whole
        noted.wrong += whole and streamed.text != text
        print(f"{stood:.1f} s, {streamed}")  # noqa: T201
        assert streamed.comments or stood < EXPLAINED_SECONDS, "a wait of seconds is explained"
    lost = _told(place.head, "upstream_lost") > upstreams
    if kind.pause:
        assert _told(place.head, "link_lost") > links, "the link was not lost at all"
    assert lost is not kind.pause, "the model did not stay loaded" if lost else "nothing was lost"


def _told(head: LocalNode, event: str) -> int:
    """Return how often its log has this event."""
    return (head.spec.home / "logs" / "meshd.log").read_text(errors="replace").count(event)
