"""A chat passes few files of the gateway, so that whoever follows one in the source opens few."""

import asyncio
import sys
from pathlib import Path
from types import FrameType

import meshd.gateway
from meshd.gateway.interface import ApiKey, GatewayConfig, KeyLimits

from tests.process.gateway_fake import DONE, HI, chunk, last_chunk, streams
from tests.process.test_gateway_queue import logged

GATEWAY = Path(meshd.gateway.__file__).parent
MOST_FILES = 10
KEYS = (
    ApiKey("sk-one-0123456789", "one", KeyLimits(tokens_per_day=1_000_000)),
    ApiKey("sk-two-0123456789", "two"),
)


class Walk:
    """The files of the gateway in which a function of theirs runs, while a block is in it; in their order."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(GATEWAY):
            self.files[str(file.relative_to(GATEWAY))] = None

    def __enter__(self) -> "Walk":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.setprofile(None)


async def test_a_streamed_chat_passes_at_most_ten_files(tmp_path: Path) -> None:
    """With a key and its quota, the log of answers, and answers that go on after a loss, as `meshd serve` has
    them; tables and interfaces, in which nothing runs, do not count."""
    config = GatewayConfig(port=0, api_keys=KEYS, continue_seconds=300.0)
    walk, said = Walk(), [chunk("a"), chunk("b"), last_chunk(2), DONE]
    async with logged(streams(*said), tmp_path, config) as here:
        url, key = f"{here.url}/v1/chat/completions", {"Authorization": f"Bearer {KEYS[0].secret}"}
        with walk:
            async with here.http.post(url, json={**HI, "stream": True}, headers=key) as reply:
                assert reply.status == 200 and await reply.read() == b"".join(said)
            for _ in range(20):
                await asyncio.sleep(0)  # turns of the loop in which the request ends
            assert here.upstream.under_way == 0
    assert {"client_connections.py", "server.py", "answer.py", "upstream.py"} <= walk.files.keys()
    assert len(walk.files) <= MOST_FILES, f"it passes {', '.join(walk.files)}"
