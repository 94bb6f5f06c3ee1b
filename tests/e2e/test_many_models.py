"""Several models behind one gateway: real llama-servers that are started for requests, and end for others."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode

from tests.e2e.api_client import Api, Streamed
from tests.e2e.models import small, smollm2, stock_text
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, child_pid, cli, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TOKENS = 24
LONG = 150
_THREADS = ", ".join(f'"{word}"' for word in SAME_THREADS[1:])
_HEAD = f"""
[serve]
port = 0
ctx_size = 512
slots = 1  # several in one batch round otherwise than one alone
devices = ["none"]
llama_args = [{_THREADS}]
"""
SMOL = '[models.smol]\nmodel = "{model}"\naliases = ["gpt-4o-mini"]\n'
TINY = '[models.tiny]\nmodel = "{model}"\n'


@asynccontextmanager
async def gateway(
    folder: Path, *tables: str, options: Sequence[str] = ()
) -> AsyncIterator[tuple[Fleet, LocalNode, LocalNode]]:
    """A worker that has the first model, and a head that serves both over it."""
    file = folder / "meshd.toml"
    smol, tiny = (table.format(model=model()) for table, model in zip(tables, (smollm2, small), strict=True))
    file.write_text(_HEAD + smol + tiny, encoding="utf-8")
    async with Fleet(folder) as fleet:
        token, (worker,) = await fleet.workers(smollm2())
        head = await fleet.start(fleet.spec("head", "serve", "--config", str(file), *options, token=token))
        await head.until(lambda status: status.api is not None and bool(status.models))
        yield fleet, head, worker


def states(status: Status) -> dict[str, str]:
    return {model.name: str(model.state) for model in status.models}


def named(status: Status, model: str) -> Api:
    return Api(api_of(status).url, model=model)


def requests(status: Status) -> int:
    """So far."""
    return 0 if status.api is None else status.api.requests


async def lent(worker: LocalNode) -> int:
    return len((await worker.status()).children)


async def _loaded_for_requests_and_make_room_for_each_other(
    _fleet: Fleet, head: LocalNode, worker: LocalNode
) -> None:
    status = await head.status()
    assert (states(status), status.model, status.children) == (
        {"smol": "unloaded", "tiny": "unloaded"},
        None,
        (),
    )
    assert await lent(worker) == 0
    early = await cli(head.spec.home, "why")
    assert early.returncode == 1 and "the model is not loaded" in early.stderr
    for name, model, text in (("gpt-4o-mini", "smol", smollm2()), ("tiny", "tiny", small())):
        assert await named(status, name).complete(PROMPT, TOKENS) == stock_text(text, TOKENS)
        now = await head.status()
        assert [key for key, state in states(now).items() if state == "ready"] == [model]
        assert now.model is not None and now.model.name == model and now.model.split
        assert [child.name for child in now.children] == [f"llama-server-{model}"]
        assert await lent(worker) == 1, "the other one's lease has ended"
    answer = await api_of(status).ask("GET", "/v1/models")
    assert isinstance(data := answer.body["data"], list)
    assert [(one["id"], one["state"]) for one in data] == [("smol", "unloaded"), ("tiny", "ready")]
    refused = await api_of(status).ask("POST", "/v1/completions", {"model": "big", "prompt": "x"})
    assert refused.status == 404 and "`smol`, `tiny`" in str(refused.body)
    assert await api_of(status).complete(PROMPT, TOKENS) == stock_text(smollm2(), TOKENS)


async def _members_ask_for_them(fleet: Fleet, head: LocalNode, worker: LocalNode) -> None:
    spec = fleet.spec("client", "client", "--port", "0", token=await worker.token())
    client = await fleet.start(spec)
    status = await client.until(lambda status: status.api is not None and status.api.ready)
    listed = await api_of(status).ask("GET", "/v1/models")
    assert isinstance(data := listed.body["data"], list)
    assert [one["id"] for one in data] == ["smol", "tiny"]
    for name, model, text in (("tiny", "tiny", small()), ("gpt-4o-mini", "smol", smollm2())):
        assert await named(status, name).complete(PROMPT, TOKENS) == stock_text(text, TOKENS)
        now = states(await head.status())
        assert [key for key, state in now.items() if state == "ready"] == [model]
    refused = await api_of(status).ask("POST", "/v1/completions", {"model": "big", "prompt": "x"})
    assert refused.status == 404 and "`smol`, `tiny`" in str(refused.body)


async def _clients_of_both_all_get_their_answers(_fleet: Fleet, head: LocalNode, _worker: LocalNode) -> None:
    status = await head.status()
    expected = {"smol": stock_text(smollm2(), TOKENS), "tiny": stock_text(small(), TOKENS)}

    async def client(name: str) -> None:
        for _ in range(2):
            assert await named(status, name).complete(PROMPT, TOKENS) == expected[name]

    # first in their queues: who waits for a turn is not told of memory
    before = requests(status)
    streams = [asyncio.create_task(named(status, name).stream(PROMPT, LONG)) for name in expected]
    await head.until(lambda status: requests(status) == before + len(streams))
    got = await asyncio.gather(*map(client, expected), *streams)
    assert [(one.done, one.error) for one in got if isinstance(one, Streamed)] == [(True, "")] * 2
    waited = [one.comments for one in got if isinstance(one, Streamed)]
    assert any("a common `group`" in comment for comments in waited for comment in comments)


async def _an_answer_goes_on_while_another_model_is_waited_for(
    _fleet: Fleet, head: LocalNode, _worker: LocalNode
) -> None:
    status = await head.status()
    undisturbed = await named(status, "smol").stream(PROMPT, LONG)
    pid = child_pid(await head.status(), "llama-server-smol")
    begun, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_piece(so_far: Streamed) -> None:
        if so_far.pieces == 10:
            os.kill(pid, signal.SIGKILL)
            loop.call_soon_threadsafe(begun.set)

    disturbed = asyncio.create_task(named(status, "smol").stream(PROMPT, LONG, on_piece=on_piece))
    await begun.wait()
    other = asyncio.create_task(named(status, "tiny").complete(PROMPT, TOKENS))
    streamed = await disturbed
    assert (streamed.error, streamed.done, streamed.tokens) == ("", True, LONG)
    assert streamed.text == undisturbed.text
    assert await other == stock_text(small(), TOKENS)


def test_models_that_exclude_each_other_are_loaded_for_requests(tmp_path: Path) -> None:
    async def check() -> None:
        goes_on = ("--set", "serve.continue_answers=120")
        async with gateway(tmp_path, SMOL, TINY, options=goes_on) as (fleet, head, worker):
            for scene in (
                _loaded_for_requests_and_make_room_for_each_other,
                _members_ask_for_them,
                _clients_of_both_all_get_their_answers,
                _an_answer_goes_on_while_another_model_is_waited_for,
            ):
                print(scene.__name__)  # noqa: T201
                await scene(fleet, head, worker)

    play(check())


def test_a_group_is_loaded_together_and_idle_models_end(tmp_path: Path) -> None:
    async def check() -> None:
        grouped = (SMOL + 'group = "g"\n', TINY + 'group = "g"\nttl = 3\npreload = true\n')
        async with gateway(tmp_path, *grouped) as (_fleet, head, worker):
            await head.until(lambda status: states(status)["tiny"] == "ready")
            status, tiny = await head.status(), stock_text(small(), TOKENS)
            assert await named(status, "smol").complete(PROMPT, TOKENS) == stock_text(smollm2(), TOKENS)
            for _ in range(3):  # a late look finds it unloaded
                # Its time begins with the end of this answer, however long the load of the other one took.
                assert await named(status, "tiny").complete(PROMPT, TOKENS) == tiny
                now, lends = await asyncio.gather(head.status(), lent(worker))
                if both := (states(now), lends) == ({"smol": "ready", "tiny": "ready"}, 2):
                    break
            assert both, (states(now), lends)
            await head.until(lambda status: states(status) == {"smol": "ready", "tiny": "unloaded"})
            await worker.until(lambda status: len(status.children) == 1)

    play(check())


def test_each_model_is_served_as_its_table_says(tmp_path: Path) -> None:
    own = 'layers = ["head=0-9", "worker-0=10-29"]\ndevices = []\nctx_size = 256\nslots = 2\n'
    grouped = (SMOL + own + 'group = "g"\n', TINY + 'speculate = "auto"\ngroup = "g"\n')

    async def check() -> None:
        async with gateway(tmp_path, *grouped) as (_fleet, head, _worker):
            status = await head.status()
            for name in ("smol", "tiny"):
                await named(status, name).complete(PROMPT, TOKENS)
            smol, tiny = (await head.status()).models
            splits = [{part.node: part.layers for part in one.split if part.layers} for one in (smol, tiny)]
            assert splits[0] == {"head": 10, "worker-0": 20} and splits[1].keys() == {"worker-0"}
            assert smol.answers is not None and tiny.answers is not None
            assert (smol.answers.slots, smol.answers.tokens) == (2, 256)
            assert (tiny.answers.slots, tiny.answers.tokens) == (1, 512)
            assert smol.speculation is not None and tiny.speculation is not None
            assert "--speculate off" in smol.speculation.why, "as the fleet's nodes all have it"
            assert "--speculate off" not in tiny.speculation.why

    play(check())


def test_the_time_of_an_answer_is_of_its_own_model(tmp_path: Path) -> None:
    """The worker computes for two leases of this head; the newest is of the other model."""

    async def check() -> None:
        grouped = (SMOL + 'group = "g"\n', TINY + 'group = "g"\npreload = true\n')
        async with gateway(tmp_path, *grouped) as (_fleet, head, worker):
            await head.until(lambda status: states(status)["tiny"] == "ready")
            status = await head.status()
            for name in ("smol", "tiny"):
                await named(status, name).complete(PROMPT, TOKENS)
            assert await lent(worker) == 2
            # The worker is told how long ago the answer was: if it reads that late, it finds nothing.
            for _ in range(5):
                asked = await cli(head.spec.home, "why", "--json")
                assert asked.returncode == 0, asked.stderr
                found = json.loads(asked.stdout)
                assert (found["model"], [one["generated_tokens"] for one in found["answers"]]) == (
                    "tiny",
                    [TOKENS],
                )
                [computing] = [part for part in found["token"]["parts"] if part["where"] == "worker-0 CPU"]
                assert (computing["kind"], computing["source"]) == ("computing", "measured")
                if computing["seconds"] > 0:
                    break
            assert computing["seconds"] > 0

    play(check())
