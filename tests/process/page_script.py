"""Runs the TypeScript of the page over data channels (wheels/mesh/src/remote) in Node.js, line by line."""

import base64
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.page_scripts import NODE, modules

_SERVE = """
import { createInterface } from 'node:readline';
import * as frames from 'PAGE/remote/frames.js';
import * as requests from 'PAGE/remote/requests.js';
const bytes = (text) => new Uint8Array(Buffer.from(text, 'base64'));
const text = (value) => Buffer.from(value).toString('base64');
const plain = (message) => JSON.parse(JSON.stringify(message, (_, value) =>
    value instanceof Uint8Array ? Buffer.from(value).toString('hex') : value));
const raised = (work) => {
    try { return work(); } catch (error) { return { error: error.constructor.name }; }
};
let page = null;
const DO = {
    encode: (message) => {
        for (const name of ['data', 'session'])
            if (name in message) message[name] = new Uint8Array(Buffer.from(message[name], 'hex'));
        return Buffer.from(frames.encode(message)).toString('hex');
    },
    decode: (hex) => raised(() => plain(frames.decode(new Uint8Array(Buffer.from(hex, 'hex'))))),
    begin: (session) => { page = new requests.Requests(bytes(session)); return null; },
    open: ([data, isWhole]) => {
        const number = page.open(bytes(data));
        if (isWhole) page.end(number);
        return number;
    },
    forget: (number) => page.forget(number) ?? null,
    read: ([number, count]) => page.read(number, count) ?? null,
    ping: (nonce) => page.ping(nonce) ?? null,
    connect: () => page.connect() ?? null,
    disconnect: () => page.disconnect() ?? null,
    receive: (message) => raised(() => page.receive(bytes(message)).map((event) =>
        event.data ? { ...event, data: text(event.data) } : event)),
    transmit: () => { const message = page.transmit(); return message && text(message); },
};
for await (const line of createInterface({ input: process.stdin })) {
    const [name, given] = JSON.parse(line);
    process.stdout.write(JSON.stringify(DO[name](given)) + '\\n');
}
"""


@dataclass
class Script:
    """A running Node.js that does one thing for each line."""

    process: subprocess.Popen[str]

    def do(self, name: str, given: object = None) -> Any:
        """Do it; returns the result."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, given]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def script() -> Iterator[Script]:
    """Start Node.js with the page's modules; it is gone when the block is left."""
    assert NODE is not None
    with tempfile.TemporaryDirectory(prefix="page") as name:
        served = Path(name) / "serve.mjs"
        served.write_text(_SERVE.replace("PAGE", modules()), encoding="utf-8")
        process = subprocess.Popen(
            [NODE, str(served)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        with process:
            yield Script(process)
            assert process.stdin is not None
            process.stdin.close()


def in_base64(data: bytes) -> str:
    """Return bytes as they stand in a line."""
    return base64.b64encode(data).decode()
