"""A hub on loopback that speaks what its library needs of Hugging Face's protocol, with faults to order.

Files are served as on the real one: the API lists names, sizes and hashes; `resolve` redirects to a store of
bytes, which takes ranges. Point HF_ENDPOINT at `url`.
"""

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "c0ffee" * 6 + "c0de"
_CHUNK = 64 << 10


@dataclass
class Hub:
    """A hub: its files, its faults, which count down, and what it was asked."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    token: str = ""  # needed, if any
    gated: bool = False
    cuts: int = 0  # transfers to break off
    cut_after: int = 1 << 20  # bytes into each
    corruptions: int = 0  # transfers to damage
    surplus: int = 0  # bytes too many at the end of each transfer
    no_ranges: bool = False
    pause: float = 0.0  # seconds before each chunk
    status: int = 0  # answer everything but bytes with it
    bytes_status: int = 0  # answer requests for bytes with it
    api_body: bytes | None = None  # instead of the list
    asked: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    sent: int = 0  # bytes of files
    mark: int = 1 << 60  # `reached` is set when so many bytes were sent
    reached: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    store: str = ""  # where bytes come from: another origin
    lock: threading.Lock = field(default_factory=threading.Lock)

    def takes(self, name: str) -> bool:
        """Use up one fault of this kind."""
        with self.lock:
            left: int = getattr(self, name)
            setattr(self, name, max(0, left - 1))
            return left > 0

    def headers_of(self, path: str) -> list[Mapping[str, str]]:
        """Return the headers of each request whose path begins so."""
        return [headers for _, asked, headers in self.asked if asked.startswith(path)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.hub
        path = unquote(urlsplit(self.path).path)
        with hub.lock:
            hub.asked.append((self.command, path, dict(self.headers.items())))
        if path.startswith("/bytes/") and hub.bytes_status:
            self._reply(hub.bytes_status, b"{}")
        elif path.startswith("/bytes/"):
            self._bytes(path)
        elif hub.status:
            self._reply(hub.status, b"{}")
        elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            error = "GatedRepo" if hub.gated else "RepoNotFound"
            self._reply(401, b"{}", {"X-Error-Code": error, "X-Error-Message": "no"})
        elif path.startswith("/api/models/"):
            self._list(path.removeprefix("/api/models/").partition("/revision/")[0])
        else:
            self._resolve(path)

    def _list(self, repository: str) -> None:
        files = self.hub.repositories.get(repository)
        if files is None:
            self._reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        siblings = [
            {
                "rfilename": path,
                "size": len(data),
                "blobId": git_hash(data),
                **({"lfs": _lfs(data)} if path.endswith(".gguf") else {}),
            }
            for path, data in files.items()
        ]
        body = {"id": repository, "sha": COMMIT, "siblings": siblings}
        self._reply(200, self.hub.api_body or json.dumps(body).encode())

    def _resolve(self, path: str) -> None:
        repository, _, rest = path.lstrip("/").partition("/resolve/")
        _, _, name = rest.partition("/")
        data = self.hub.repositories.get(repository, {}).get(name)
        if data is None:
            self._reply(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return
        headers = {
            "X-Repo-Commit": COMMIT,
            "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Linked-Size": str(len(data)),
            "Location": f"{self.hub.store}/bytes/{repository}/{name}",
        }
        self._reply(302, b"", headers)

    def _bytes(self, path: str) -> None:
        org, repo, name = path.removeprefix("/bytes/").split("/", 2)
        data = self.hub.repositories[f"{org}/{repo}"][name]
        begin, end = 0, len(data)
        wanted = self.headers.get("Range", "")
        is_part = wanted.startswith("bytes=") and not self.hub.no_ranges
        if is_part:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(len(data), int(last) + 1 if last else len(data))
        rest = data[begin:end]
        if self.hub.takes("corruptions"):
            rest = rest[:-1] + bytes([rest[-1] ^ 1])
        rest += bytes(self.hub.surplus)
        self.send_response(206 if is_part else 200)
        if is_part:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.hub.cut_after if self.hub.takes("cuts") else len(rest)
        try:
            for at in range(0, min(cut, len(rest)), _CHUNK):
                if self.hub.pause:
                    time.sleep(self.hub.pause)
                piece = rest[at : min(at + _CHUNK, cut)]
                self.wfile.write(piece)
                with self.hub.lock:
                    self.hub.sent += len(piece)
                    if self.hub.sent >= self.hub.mark:
                        self.hub.reached.set()
        except OSError:
            self.close_connection = True
        if cut < len(rest):
            self.close_connection = True

    def _reply(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is a part of many tests."""


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _lfs(data: bytes) -> dict[str, object]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """It runs, the list on one port of loopback and the bytes on another."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [_Server(("127.0.0.1", 0), handler) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,)) for server in servers]
    for thread in threads:
        thread.start()
    hub.url, hub.store = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


@contextmanager
def taken_for_hub(hub: Hub, token_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """It runs, and the library in this process takes it for Hugging Face's."""
    from huggingface_hub import constants
    from huggingface_hub.utils._http import close_session

    with serving(hub):
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(token_path))
        yield hub
        close_session()
