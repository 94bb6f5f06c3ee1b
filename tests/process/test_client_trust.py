"""Who may call a head's API as a client, what a client tells heads, and what it believes them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from aiohttp import web
from meshd.base.backoff import Backoff
from meshd.base.errors import Broken
from meshd.client import follow_heads
from meshd.peer.interface import MetadataValue, PeerState, Stream
from meshd.peer.messages import MessageStream
from meshd.wire.models import API_SERVICE, KEY_PROOF, SERVING_SERVICE, ApiModel, ServingTold

from tests.conformance.run import until
from tests.process.client_scene import HELLO, scene
from tests.process.gateway_fake import FakeServer, says
from tests.unit.head.fake_mesh import FakeMesh

KEY = "a key of this head"


async def test_a_head_with_api_keys_asks_members_for_one_and_is_not_told_it() -> None:
    async with scene() as here:
        head = await here.head("one", says(200, HELLO), keys=("another key", KEY))
        for key, status in (("", 401), ("not a key of it", 401), (KEY, 200)):
            async with await here.post(key=key) as answer:
                assert answer.status == status
        assert len(head.asked) == 1
        other = await here.head("other", says(200, HELLO), model="big")
        async with await here.post(model="big", key=KEY) as answer:
            assert answer.status == 200
        assert len(other.asked) == 1
        assert not any(KEY.encode() in sent for sent in here.sent)
        assert [KEY_PROOF in metadata for metadata in here.shown] == [False, True, True, False]


async def test_no_page_of_a_hostile_head_runs_in_a_browser() -> None:
    async def answer(_server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="<script>", content_type="text/html")

    async with scene() as here:
        await here.head("one", answer)
        [model] = await here.names()
        async with here.http.get(f"{here.gateway.url}/props", params={"model": model}) as page:
            assert page.content_type == "application/octet-stream"
            assert page.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_head_that_refuses_at_length_is_quoted_in_part() -> None:
    async with scene() as here:
        await here.head("one", says(503, {"error": {"message": "x" * 900_000, "code": 503}}))
        async with await here.post(stream=True) as said:
            assert said.status == 503
            assert "xxx" in (await said.json())["error"]["message"] and said.content.total_bytes < 10_000


async def test_a_head_that_another_one_was_named_instead_of_is_not_asked() -> None:
    async with scene(only=("two",)) as here:
        await here.head("two", says(200, HELLO), model="big")
        one = here.net.mesh("one", "serve")
        tells(one, _never)
        one.say(PeerState.CONNECTED)
        assert await here.names() == ["big"] and here.told("one") is None


async def _never(_messages: MessageStream) -> None:
    raise AssertionError("it was asked")


LARGEST = ServingTold(tuple(ApiModel(str(n), "ready", takes=True) for n in range(32))).encode()


@pytest.mark.parametrize(
    "said",
    [
        [b"\xc1"],
        [LARGEST.replace(b"takes", b"taken")],
        [ServingTold(()).encode().replace(b"serving", b"singing")],
        [LARGEST] * 2000,
    ],
)
async def test_a_hostile_head_is_not_believed_and_disturbs_nobody(
    said: Sequence[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_heads, "_AGAIN", Backoff(first=600.0, most=600.0))
    async with scene() as here:
        mallory = here.net.mesh("mallory", "serve")
        asked: list[int] = []

        async def tell(messages: MessageStream) -> None:
            asked.append(1)
            for message in said:
                await messages.send(message)
            await asyncio.Event().wait()

        tells(mallory, tell)
        mallory.say(PeerState.CONNECTED)
        await here.head("two", says(200, HELLO), model="big")
        await until(lambda: bool(asked))
        async with await here.post(model="big") as answer:
            assert answer.status == 200
        heard = here.told("mallory")
        assert heard is None if len(said) == 1 else len(heard or ()) == 32
        assert len(asked) == 1  # it is left alone for a while


def tells(mesh: FakeMesh, tell: Callable[[MessageStream], Awaitable[None]]) -> None:
    """This node says something of its own on streams of service `serving`."""

    async def handler(stream: Stream) -> None:
        await tell(MessageStream(stream))

    mesh.handle(SERVING_SERVICE, handler, allow=lambda _member, _metadata: None)


async def test_a_member_that_writes_where_nothing_is_asked_is_cut_off() -> None:
    async with scene() as here:
        head = await here.head("one", says(200, HELLO))
        stream = here.client.open_stream(head.mesh.key.peer, SERVING_SERVICE, metadata={})
        await stream.read()
        await stream.write(b"anything")
        with pytest.raises(Broken, match="nothing is asked"):
            await stream.read()
        odd: list[dict[str, MetadataValue]] = [{KEY_PROOF: 7}, {KEY_PROOF: "text"}, {"more": b"bytes"}]
        for metadata in odd:
            call = here.client.open_stream(head.mesh.key.peer, API_SERVICE, metadata=metadata)
            await call.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert bytes(await call.read()).startswith(b"HTTP/1.1 200")
            call.reset(0, "")
