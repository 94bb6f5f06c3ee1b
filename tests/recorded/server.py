"""Play the script to a program over HTTP on loopback, and note what the program sends."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.recorded import answers
from tests.recorded.answers import Answer, Event, Json
from tests.recorded.programs import MODEL
from tests.recorded.script import answer_to, step_of

FORMS: Mapping[str, tuple[Callable[[Answer], Json], Callable[[Answer], Iterator[Event]]]] = {
    "/chat/completions": (answers.chat_whole, answers.chat_stream),
    "/responses": (answers.response_whole, answers.response_stream),
    "/messages": (answers.message_whole, answers.message_stream),
}


class Handler(BaseHTTPRequestHandler):
    """Notes each request, and answers by the script."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the notes have all."""

    def do_GET(self) -> None:
        self._note({"body": None})
        path = urlsplit(self.path).path
        model = {"id": MODEL, "object": "model", "type": "model", "display_name": MODEL, "created": 1}
        model |= {"owned_by": "local", "context_length": 65536}
        if path.endswith("/models"):
            whole = {"object": "list", "data": [model], "has_more": False}
            self._send_json({**whole, "first_id": MODEL, "last_id": MODEL})
        else:
            self._send_json(model if "/models/" in path else {"status": "ok"})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = json.loads(self._read())
        path = urlsplit(self.path).path
        form = next((FORMS[end] for end in FORMS if path.endswith(end)), None)
        if form is None:
            self._note({"body": body})
            self._send_json({"input_tokens": 100})
            return
        step = step_of(body)
        answer = answer_to(body, step=step, folder=self.server.folder)
        self._note({"body": body, "step": step})
        if not body.get("stream"):
            self._send_json(form[0](answer))
            return
        lines = [
            (f"event: {name}\n" if name else "")
            + f"data: {fields if isinstance(fields, str) else json.dumps(fields)}\n\n"
            for name, fields in form[1](answer)
        ]
        self._send(200, {"Content-Type": "text/event-stream"}, "".join(lines).encode())

    def _read(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _note(self, more: Json) -> None:
        note = {"method": self.command, "path": self.path, "headers": dict(self.headers)}
        self.server.notes.append(note | more)

    def _send_json(self, body: Json) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _send(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """Listens on loopback. `folder`: where the program works. `notes`: one for each request."""

    daemon_threads = True

    def __init__(self, folder: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.notes: list[Json] = []

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Serve in a thread; yield the address."""
        thread = threading.Thread(target=self.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{self.server_port}"
        finally:
            self.shutdown()
            thread.join()
            self.server_close()
