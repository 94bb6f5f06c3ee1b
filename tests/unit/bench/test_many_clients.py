"""A client of the measurement of many clients."""

import asyncio
import time

from meshd.base.tasks import cancel_and_wait

from tests.bench.client_figures import ClientCount
from tests.bench.many_clients import ask_again

_EVENTS = (
    b'data: {"choices": [{"finish_reason": null}]}\n\n'
    b'data: {"choices": [{"finish_reason": "length"}]}\n\n'
    b"data: [DONE]\n\n"
)


def test_it_asks_with_its_key_and_again_after_an_error() -> None:
    heads: list[str] = []

    async def main() -> ClientCount:
        asked_again = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            if len(heads) == 1:
                writer.write(b'HTTP/1.0 401 no\r\n\r\n{"error": "no such key"}')
            else:
                writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + _EVENTS)
            writer.close()
            await writer.wait_closed()
            if len(heads) == 3:
                asked_again.set()

        count = ClientCount("small")
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            client = ask_again(
                f"http://127.0.0.1:{port}", 7, count, "key-of-7", tokens=1, until=time.monotonic() + 60
            )
            asking = asyncio.ensure_future(client)
            await asked_again.wait()
            await cancel_and_wait(asking)
        return count

    count = asyncio.run(main())
    assert all("\r\nAuthorization: Bearer key-of-7\r\n" in head for head in heads)
    assert count.answers >= 1 and count.tokens >= 1 and count.errors == ['{"error": "no such key"}']
