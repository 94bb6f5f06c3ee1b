"""A node as the page of the mesh sees it: the built page, states as they are given, and answers to actions.

`python -m tests.process.mesh_page_fake split --port 8123` serves a state of mesh_page_states.py for a look.
"""

import argparse
import asyncio
import contextlib
import gzip
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from meshd.admin.request import Json
from wheels.mesh_page import MESH_FOLDER

from tests.process import mesh_page_states

State = Mapping[str, Json]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
WRONG_KEY: Json = {
    "error": {"message": "the API key is missing or wrong", "hint": "", "code": "invalid_api_key"}
}
NO_SESSION = (401, {"error": {"message": "no session", "hint": "run `meshd ui`", "code": "session"}})


@dataclass
class FakeNode:
    """Serves the page. `states` come one after the other; then the stream stays open unless `ends`.

    `answers`: results of actions by name. `refuses`: the status and body instead of states.
    """

    states: Sequence[State]
    answers: Mapping[str, Json] = field(default_factory=dict)
    refuses: tuple[int, Json] | None = None
    key: str = ""  # wanted of every request but those for files
    ends: bool = False
    pause: float = 0.0
    folder: Path = MESH_FOLDER
    url: str = ""
    acted: list[tuple[str, Json]] = field(default_factory=list)
    streams: int = 0
    sent_bytes: int = 0  # of files, as they are sent
    _more: asyncio.Queue[State] = field(default_factory=asyncio.Queue)
    _loop: asyncio.AbstractEventLoop | None = None

    def show(self, state: State) -> None:
        """Send one more state on a stream that is open, from another thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._more.put_nowait, state)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path.startswith(("/mesh/state", "/mesh/do/")) and not self._may(request):
            return web.json_response(WRONG_KEY, status=401)
        if request.path == "/mesh/state":
            return await self._stream(request)
        if request.path.startswith("/mesh/do/"):
            name = request.path.removeprefix("/mesh/do/")
            self.acted.append((name, await request.json()))
            if name in self.answers:
                return web.json_response({"result": self.answers[name]})
            error = {"message": f"there is no action {name}", "hint": "look at `can`", "code": "user"}
            return web.json_response({"error": error}, status=400)
        return self._file(request.path)

    def _may(self, request: web.BaseRequest) -> bool:
        return not self.key or request.headers.get("Authorization") == f"Bearer {self.key}"

    def _file(self, path: str) -> web.Response:
        files = json.loads((self.folder / "index.json").read_text(encoding="utf-8"))["files"]
        if (found := files.get(path)) is None:
            return web.Response(status=404)
        body = (self.folder / found["name"]).read_bytes()
        self.sent_bytes += len(body)
        kept = "max-age=31536000, immutable" if path.startswith("/mesh/assets/") else "no-cache"
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": kept}
        if found["gzip"]:
            assert gzip.decompress(body)
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, content_type=found["type"], headers=headers)

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        self.streams += 1
        if self.refuses is not None:
            code, body = self.refuses
            return web.json_response(body, status=code)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for state in self.states:
            await response.write(_event(state))
            await asyncio.sleep(self.pause)
        while not self.ends:  # until the browser is gone
            await response.write(_event(await self._more.get()))
        return response


def _event(state: State) -> bytes:
    return b": a comment\n\nevent: state\ndata: " + json.dumps(state).encode() + b"\n\n"


@contextlib.asynccontextmanager
async def serving(node: FakeNode, port: int = 0) -> AsyncIterator[None]:
    """Serve it at loopback until the block is left."""
    server = web.Server(node.handle, handler_cancellation=True, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        node._loop = asyncio.get_running_loop()
        node.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mesh"
        yield
    finally:
        await runner.cleanup()


def look(node: FakeNode, see: Callable[[FakeNode], None]) -> None:
    """Serve the node while `see` runs in a thread."""

    async def scenario() -> None:
        async with serving(node):
            await asyncio.to_thread(see, node)

    asyncio.run(scenario())


def main() -> None:
    """Serve a state until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.process.mesh_page_fake", description=__doc__)
    parser.add_argument("state", help="a function of mesh_page_states.py")
    parser.add_argument("--port", type=int, default=8123)
    asked = parser.parse_args()

    async def serve() -> None:
        node = FakeNode([getattr(mesh_page_states, asked.state)()])
        async with serving(node, asked.port):
            sys.stdout.write(f"{node.url}\n")
            sys.stdout.flush()
            await asyncio.Event().wait()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())


if __name__ == "__main__":
    main()
