"""A collector of OpenTelemetry on loopback (OTLP over HTTP), and a real Prometheus that scrapes nodes."""

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PROMETHEUS = shutil.which("prometheus")
SCRAPED_SECONDS = 60.0
_LATE = "deadline exceeded"  # of a scrape: it has a second


def attributes(pairs: Sequence[KeyValue]) -> dict[str, Any]:
    """Return OTLP's pairs as plain values."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in pairs}


class Collector:
    """A collector: spans, with the service instance that exported each, the raw bodies, and the paths."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[tuple[str, Span]] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        assert path == "/v1/traces", path
        self.bodies.append(body)
        self.headers.append(headers)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            who = attributes(resource.resource.attributes)["service.instance.id"]
            self.spans += [(who, span) for scope in resource.scope_spans for span in scope.spans]

    async def trace(self, parent: str, names: Sequence[str]) -> list[tuple[str, Span]]:
        """Return the spans of the trace with this `traceparent`, once it has these names.

        On a busy machine even a ready model may be waited for, which is a span `model` besides.
        """
        wanted = bytes.fromhex(parent.split("-")[1])
        while True:
            found = [(who, span) for who, span in self.spans if span.trace_id == wanted]
            if sorted(span.name for _, span in found if span.name != "model") == sorted(names):
                return found
            await asyncio.sleep(0.05)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Serve a collector until the block is left."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take(self.path, dict(self.headers.items()), body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Prometheus:
    """A running one, which scrapes each second."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def ask(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an expression. Raises HTTPError if it is none."""
        query = urllib.parse.urlencode({"query": expression})
        return list((await self._get(f"query?{query}"))["data"]["result"])

    async def scraped(self) -> set[str]:
        """Wait until no target was late for its last scrape; return their instances. Other errors fail."""
        async with asyncio.timeout(SCRAPED_SECONDS):
            while True:
                targets = (await self._get("targets"))["data"]["activeTargets"]
                errors = {target["labels"]["instance"]: target["lastError"] for target in targets}
                if not any(errors.values()):
                    return {*errors}
                assert all(not error or _LATE in error for error in errors.values()), errors
                await asyncio.sleep(0.2)

    async def until(self, expression: str) -> list[dict[str, Any]]:
        """Wait until an expression has a result."""
        async with asyncio.timeout(SCRAPED_SECONDS):
            while True:
                with contextlib.suppress(OSError):  # it is starting
                    if found := await self.ask(expression):
                        return found
                await asyncio.sleep(0.2)

    async def _get(self, path: str) -> dict[str, Any]:
        def get() -> dict[str, Any]:
            with urllib.request.urlopen(f"{self._url}/api/v1/{path}", timeout=30) as reply:
                found: dict[str, Any] = json.loads(reply.read())
                return found

        return await asyncio.to_thread(get)


@contextmanager
def prometheus(folder: Path, *places: str) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes these places as `job="meshd"`."""
    assert PROMETHEUS is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "meshd", "static_configs": [{"targets": list(places)}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # which is YAML as well
    options = ("config.file", folder / "prometheus.yml"), ("storage.tsdb.path", folder / "data")
    listen = f"--web.listen-address=127.0.0.1:{port}"
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [PROMETHEUS, *(f"--{name}={value}" for name, value in options), listen], stderr=log
        )
    try:
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(30)
