"""A client of the API that means harm: llama-server goes on, and so do the answers of others.

Requests are drawn with hostile values (tests/hostile_dialects.py); some clients hang up at once. Another
client asks for one token again and again. How long it waits depends on the machine, but whose turn it is does
not: no answer of the hostile key begins while it waits. A soak also bounds its waits in seconds. As it would
wait for others' ordinary requests as well, the same client is first measured beside those.
"""

import asyncio
import contextlib
import json
import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import aiohttp
import pytest
from meshd.gateway.dialects.fields import ENDPOINTS
from meshd.gateway.upstream import ENDS_SERVER

from tests.e2e.models import smollm2
from tests.e2e.nodes import Fleet, api_of, child_pid, play
from tests.hostile_dialects import DIALECTS, admitted, hostile, small
from tests.soak import SEED, SOAK, counts

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

REQUESTS = counts(60, 1000)
AT_ONCE = 4
MOST_GROWN = 200 << 20  # bytes of llama-server's memory
ANSWER_SECONDS = 600.0
KEYS = ("good-0123456789abcdef0123456789abcdef", "bad-0123456789abcdef0123456789abcdef")
NAMES = ("good", "bad")
MOST_WAIT = 2.0  # seconds for one token, or what it takes beside ordinary requests if that is more
_ROUNDED = 0.005  # seconds: the log of answers tells milliseconds
_LENGTHS = {"n_predict", "max_tokens", "max_completion_tokens", "max_output_tokens"}
_GENERATE = [
    *("/v1/chat/completions", "/v1/completions", "/completion", "/v1/responses", "/v1/messages"),
    *("/api/chat", "/api/generate"),
]
_ORDINARY = {"messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 16, "temperature": 0}


@dataclass
class Seen:
    """The results of it all."""

    statuses: Counter[int] = field(default_factory=Counter)
    slowest: float = 0.0
    slowest_request: str = ""
    waits: list[float] = field(default_factory=list)  # of the other client
    crashed: list[str] = field(default_factory=list)


def resident(pid: int) -> int:
    """Bytes of memory that a process has now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the process is gone")


async def attack(http: aiohttp.ClientSession, url: str, number: int, seen: Seen) -> None:
    """One request, drawn by its number."""
    rng = random.Random(f"{SEED} {number}")
    path = rng.choice(_GENERATE if rng.random() < 0.8 else sorted(ENDPOINTS.keys() | DIALECTS.keys()))
    draw = admitted if rng.random() < 0.7 else hostile
    asked = {**small(path), **draw(rng, path)}
    for name in _LENGTHS & asked.keys():  # long answers are no harm, and take long
        asked[name] = asked[name] if asked[name] in (0, -2, "") else 8
    if isinstance(options := asked.get("options"), dict):
        asked["options"] = {**options, "num_predict": 8}
    if rng.random() < 0.4:
        asked["stream"] = rng.random() < 0.7
    body = json.dumps(asked).encode()
    seconds = 0.3 if rng.random() < 0.1 else ANSWER_SECONDS
    began = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            async with http.post(
                url + path, data=body, headers={"Content-Type": "application/json"}
            ) as answer:
                said = await answer.read()
                seen.statuses[answer.status] += 1
    except TimeoutError:
        assert seconds < ANSWER_SECONDS, f"no answer to request {number}: {path} {body[:2000]!r}"
        return
    if time.monotonic() - began > seen.slowest:
        seen.slowest, seen.slowest_request = time.monotonic() - began, f"{number} {path} {body[:300]!r}"
    if ENDS_SERVER.encode() in said or b"upstream_" in said:
        seen.crashed.append(f"request {number}: {path} {body[:2000]!r}: {said[-300:]!r}")


async def ordinary(http: aiohttp.ClientSession, url: str, _number: int, _seen: Seen) -> None:
    """Send one request that means no harm."""
    async with http.post(f"{url}/v1/chat/completions", json=_ORDINARY) as answer:
        assert answer.status == 200, await answer.text()


async def other_client(http: aiohttp.ClientSession, url: str, seen: Seen) -> None:
    """Ask for one token again and again, with a key of its own."""
    body = {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
    while True:
        began = time.monotonic()
        async with http.post(f"{url}/v1/completions", json=body) as answer:
            said = await answer.json()
        assert answer.status == 200 and said["usage"]["completion_tokens"] == 1, said
        seen.waits.append(time.monotonic() - began)
        await asyncio.sleep(0.05)


@dataclass(frozen=True)
class Turn:
    """The times of one answer, in seconds: when its request came, and when llama-server got it."""

    key: str
    came: float
    began: float


def turns_of(log: Path) -> list[Turn]:
    """Return the turns in a log of answers; requests that never got one are left out."""
    found = []
    for line in log.read_text().splitlines():
        one = json.loads(line)
        began = datetime.fromisoformat(one["time"]).timestamp() - one["computed_s"]
        if one["computed_s"] > 0:
            found.append(Turn(one["key"], began - one["waited_s"], began))
    return found


def overtaken(turns: list[Turn]) -> list[Turn]:
    """Return the turns of the other client in whose wait one of the hostile key began."""
    begun = sorted(turn.began for turn in turns if turn.key == "bad")

    def is_overtaken(turn: Turn) -> bool:
        first = bisect_right(begun, turn.came + _ROUNDED)
        return first < len(begun) and begun[first] < turn.began - _ROUNDED

    return [turn for turn in turns if turn.key == "good" and is_overtaken(turn)]


def test_a_turn_that_begins_while_another_key_waits_is_found(tmp_path: Path) -> None:
    log = tmp_path / "answers.jsonl"
    lines = (
        ("good", "2026-01-01T00:00:10.000Z", 4.0, 1.0),  # came at 5, began at 9
        ("bad", "2026-01-01T00:00:11.000Z", 0.0, 3.0),  # began at 8
        ("good", "2026-01-01T00:00:13.000Z", 2.0, 1.0),  # came at 10, began at 12
        ("bad", "2026-01-01T00:00:14.000Z", 0.0, 2.0),  # began at 12
        ("bad", "2026-01-01T00:00:11.500Z", 9.0, 0.0),  # never began
    )
    fields = ("key", "time", "waited_s", "computed_s")
    log.write_text("".join(json.dumps(dict(zip(fields, line, strict=True))) + "\n" for line in lines))
    assert [turn.began % 60 for turn in overtaken(turns_of(log))] == [9.0]


def test_hostile_values_neither_end_llama_server_nor_fill_its_memory_nor_overtake_others(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{key} name={name}\n" for key, name in zip(KEYS, NAMES, strict=True)))
    keys.chmod(0o600)

    async def check() -> None:
        control, seen = Seen(), Seen()
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2())
            given = ("--ctx-size", "2048", "--slots", str(AT_ONCE), "--api-key-file", str(keys))
            head = await fleet.head(smollm2(), *given, token=token)
            status = await fleet.ready(head)
            pid, url = child_pid(status, "llama-server"), api_of(status).url
            async with clients(*KEYS) as (good, bad):
                await beside(good, url, control, send_all(bad, url, ordinary, counts(20, 200), control))
                for number in range(20):  # what it takes at first
                    await attack(bad, url, number, seen)
                before = resident(pid)
                await beside(good, url, seen, send_all(bad, url, attack, REQUESTS, seen))
            assert not seen.crashed, seen.crashed
            assert child_pid(await head.status(), "llama-server") == pid
            grown = resident(pid) - before
            turns = turns_of(head.spec.home / "logs" / "answers.jsonl")
        report(control, seen, grown)
        assert grown < MOST_GROWN, f"{grown >> 20} MiB"
        assert seen.statuses[200] > REQUESTS // 10 and seen.statuses[400] > REQUESTS // 10, seen.statuses
        assert sum(turn.key == "good" for turn in turns) >= len(seen.waits), "the log has all of them"
        assert not overtaken(turns), "turns of the hostile key begin while the other one waits"
        if SOAK:
            assert max(seen.waits) <= max(MOST_WAIT, *control.waits)

    play(check(), seconds=2500.0)


async def beside(http: aiohttp.ClientSession, url: str, seen: Seen, load: Awaitable[None]) -> None:
    """Let the other client ask as long as there is this load."""
    other = asyncio.ensure_future(other_client(http, url, seen))
    await load
    other.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await other
    assert seen.waits, "it was answered"


@contextlib.asynccontextmanager
async def clients(*keys: str) -> AsyncIterator[tuple[aiohttp.ClientSession, aiohttp.ClientSession]]:
    """One session for each key."""
    good, bad = ({"Authorization": f"Bearer {key}"} for key in keys)
    limit = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(headers=good, timeout=limit) as one:
        async with aiohttp.ClientSession(headers=bad, timeout=limit) as other:
            yield one, other


async def send_all(
    http: aiohttp.ClientSession,
    url: str,
    send: Callable[[aiohttp.ClientSession, str, int, Seen], Awaitable[None]],
    count: int,
    seen: Seen,
) -> None:
    """Send all requests, some at a time."""
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await send(http, url, number, seen)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(some())


def waits_of(seen: Seen) -> str:
    """Describe how long the other client waited."""
    waits = sorted(seen.waits)
    over = sum(wait > MOST_WAIT for wait in waits)
    return (
        f"{len(waits)} answers, median {waits[len(waits) // 2]:.2f} s, slowest {waits[-1]:.2f} s, "
        f"{over} over {MOST_WAIT:g} s"
    )


def report(control: Seen, seen: Seen, grown: int) -> None:
    """Print the figures of the run."""
    print(  # noqa: T201 - shown where the test fails, or with -s
        f"{REQUESTS} requests: {dict(seen.statuses)}; slowest {seen.slowest:.1f} s: {seen.slowest_request}; "
        f"memory grew by {grown >> 20} MiB\n"
        f"another client beside them: {waits_of(seen)}\n"
        f"the same beside {AT_ONCE} ordinary requests at a time: {waits_of(control)}"
    )
