"""Bodies that are there at once are parsed one after another, and whatever else waits goes on between two."""

import asyncio

import pytest
from meshd.gateway import routes
from meshd.gateway.asked import AskedBody, read_json

from tests.process.gateway_fake import says, world


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_others_have_a_turn_between_two_bodies(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, parsed_at = 0, []

    def parse(body: bytes) -> AskedBody:
        parsed_at.append(turns)
        return read_json(body)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario() -> None:
        async with world(says(200, {"usage": {}})) as here:
            monkeypatch.setattr(routes, "read_json", parse)
            counting = asyncio.get_running_loop().create_task(count_turns())
            answers = await asyncio.gather(*(here.http.post(here.url + path, json={}) for _ in range(24)))
            assert {answer.status for answer in answers} == {200}
            counting.cancel()

    asyncio.run(scenario())
    assert len(parsed_at) == 24
    assert len(set(parsed_at)) == 24, "two in one turn of the loop"
