"""`meshd serve` is killed under answers: their clients come back with their keys, to the next one.

Each sends the same request once more, and how many events of the stream it has.
"""

import asyncio
import http.client
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from meshd.admin.status import Status
from meshd.fleet.node import LocalNode
from meshd.gateway.kept_folder import KEPT_ANSWERS_NAME

from tests.e2e.api_client import Api
from tests.e2e.models import smollm2
from tests.e2e.nodes import SAME_BATCHES, SAME_THREADS, Fleet, api_of, descendants, gone, play
from tests.e2e.test_mesh_continued_api import REQUESTS, ids_of, kinds_of, text_of, usage_of

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

HIT_AFTER = 12  # events
OPTIONS = ("--continue-answers", "100", *SAME_THREADS, *SAME_BATCHES)


@dataclass
class Client:
    """Asks for one answer, as often as it must. `last`: the number of its last event."""

    path: str
    body: dict[str, object]
    key: str = "0f8fad5b-d9cb-469f-a165-70867728950e"
    events: list[dict[str, Any]] = field(default_factory=list)
    last: str = ""
    done: bool = False

    def ask(self, api: Api, on_event: Callable[[int], None] = lambda _number: None) -> None:
        """Once: until the end, or until the connection breaks."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": self.key}
        headers |= {"Last-Event-ID": self.last} if self.last else {}
        connection = api.open()
        try:
            connection.request("POST", self.path, json.dumps(self.body), headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            for number, event in self._read(answer):
                if not number:
                    assert b'"stopping"' in event, event
                    break
                self.last = number
                if event == b"[DONE]":
                    self.done = True
                else:
                    self.events.append(json.loads(event))
                on_event(int(number))
        except (ConnectionError, http.client.HTTPException):
            pass
        finally:
            connection.close()

    def _read(self, answer: http.client.HTTPResponse) -> Iterator[tuple[str, bytes]]:
        number, data = "", b""
        for raw in answer:
            line = raw.rstrip(b"\r\n")
            if line.startswith(b"id: "):
                number = line.removeprefix(b"id: ").decode()
            elif line.startswith(b"data: "):
                data = line.removeprefix(b"data: ")
            elif not line and data:
                yield number, data
                number, data = "", b""


async def restarted(head: LocalNode) -> Api:
    """It was killed; it is up again, and loads the model."""
    await head.stop()  # when its owner knows that it has ended
    await head.start()
    status = await head.until(lambda status: status.api is not None)
    return api_of(status)


async def tokens_of(head: LocalNode) -> int:
    """Generated since the daemon's start."""
    status = (await head.status()).api
    assert status is not None
    return status.tokens


@pytest.mark.parametrize("case", REQUESTS)
def test_an_answer_goes_on_at_the_next_daemon(tmp_path: Path, case: str) -> None:
    path, asked = REQUESTS[case]
    body = asked | {"stream": True, "cache_prompt": False}

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2())
            head = await fleet.head(smollm2(), *OPTIONS, token=token)
            api = api_of(await fleet.ready(head))
            whole, client = Client(path, body, key="another-one"), Client(path, body)
            await asyncio.to_thread(whole.ask, api)
            tokens, pid = await tokens_of(head), head.pid
            assert pid is not None
            below = {pid, *descendants(pid)}

            await asyncio.to_thread(client.ask, api, _ends(head, signal.SIGKILL, HIT_AFTER))
            await gone(below)
            assert len(client.events) < len(whole.events)
            api = await restarted(head)
            await asyncio.to_thread(client.ask, api)
            assert 0 < await tokens_of(head) < tokens, "only the rest was made"
            assert text_of(client.events) == text_of(whole.events) != ""
            assert kinds_of(client.events) == kinds_of(whole.events)
            assert len(ids_of(client.events)) == len(ids_of(whole.events)) <= 1
            assert usage_of(client.events) == usage_of(whole.events)
            assert client.done == whole.done

    play(check())


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_it_may_happen_more_than_once(tmp_path: Path, end: signal.Signals) -> None:
    """As soon as the answer has gone on, and in the middle of the rest."""
    path, asked = REQUESTS["completion"]
    body = asked | {"stream": True, "cache_prompt": False, "max_tokens": 120, "ignore_eos": True}

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2())
            head = await fleet.head(smollm2(), *OPTIONS, token=token)
            api = api_of(await fleet.ready(head))
            whole, client = Client(path, body, key="another-one"), Client(path, body)
            await asyncio.to_thread(whole.ask, api)
            for last in (12, 13, 40, 80):
                await asyncio.to_thread(client.ask, api, _ends(head, end, last))
                assert last <= int(client.last) < len(whole.events)
                api = await restarted(head)
            await asyncio.to_thread(client.ask, api)
            assert client.done and text_of(client.events) == text_of(whole.events)
            assert len(ids_of(client.events)) == 1

    play(check())


def _ends(head: LocalNode, how: signal.Signals, last: int) -> Callable[[int], None]:
    pid = head.pid
    assert pid is not None

    def on_event(number: int) -> None:
        if number == last:
            os.kill(pid, how)

    return on_event


def test_meshd_client_keeps_answers_as_well(tmp_path: Path) -> None:
    """It is killed itself; the head knows nothing of the client's key, and keeps nothing."""
    path, asked = REQUESTS["completion"]
    body = asked | {"stream": True, "cache_prompt": False, "max_tokens": 120, "ignore_eos": True}

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2())
            head = await fleet.head(smollm2(), *OPTIONS, token=token)
            await fleet.ready(head)
            spec = fleet.spec("client", "client", "--port", "0", *OPTIONS[:2], token=token)
            member = await fleet.start(spec)
            api = api_of(await member.until(_is_ready))
            whole, client = Client(path, body, key="another-one"), Client(path, body)
            await asyncio.to_thread(whole.ask, api)
            await asyncio.to_thread(client.ask, api, _ends(member, signal.SIGKILL, 40))
            assert int(client.last) < len(whole.events)
            await member.stop()
            await member.start()
            api = api_of(await member.until(_is_ready))
            await asyncio.to_thread(client.ask, api)
            assert client.done and text_of(client.events) == text_of(whole.events)
            assert len(ids_of(client.events)) == 1
            assert (member.spec.home / KEPT_ANSWERS_NAME).exists()
            assert not (head.spec.home / KEPT_ANSWERS_NAME).exists()

    play(check())


def _is_ready(status: Status) -> bool:
    return status.api is not None and status.api.ready
