"""Define what a dialect of the API consists of: a reader of requests, and the writer of an answer to each.

llama-server is asked only for chat completions and completions (and for its own few forms, such as
embeddings). A `Dialect` reads a client's body into such a request, and its `Answering` turns llama-server's
answer into what the client expects: whole events of a stream, a whole answer, or a failure. Events are
translated after SentEvents, so an `Answering` outlives a lost llama-server, and a translated answer continues
as a chat does.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from meshd.gateway.failure import Failure, invalid


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The facts that a translation needs besides the body, which make it pure.

    `id`: 24 hexadecimal digits drawn for this request, from which the ids of its answer are made. `created`:
    unix seconds. `model`: the model's name in the answer; empty if only another node knows it.
    """

    id: str
    created: int
    model: str


class Answering:
    """The translator of the answer to one request, which several llama-servers may make in turn.

    `content_type`: of a stream. `passes_on`: events and answers stay unchanged; they may then be long, and
    come in pieces. This class is that of a request which is never answered by a stream.
    """

    content_type = "text/event-stream"
    passes_on = False

    def events(self, events: bytes) -> bytes:
        """Translate whole server-sent events of llama-server, including `data: [DONE]`.

        The first call also begins the client's stream, and the one with llama-server's last event ends it.
        Never raises: unreadable events are skipped.
        """
        return b""

    def failed(self, failure: Failure) -> bytes:
        """Return the end of a stream that breaks off with this failure."""
        return b""

    def comment(self, text: str) -> bytes:
        """Return bytes that keep a silent stream alive, with `text` for people if possible.

        Clients skip a comment of one line (WHATWG HTML, 9.2.6). Empty if the dialect has no such form.
        """
        return f": {' '.join(text.split())}\n\n".encode("utf-8", "replace")

    def whole(self, answer: Mapping[str, object]) -> dict[str, object]:
        """Translate a whole answer of llama-server (status 200)."""
        return dict(answer)


@dataclass(frozen=True, slots=True)
class Translation:
    """A request in llama-server's form: POST `path` with `fields`. `stream`: the client wants a stream.

    `notes`: the omitted parts of the request, each in a few words.
    """

    path: str
    fields: dict[str, object]
    stream: bool
    answering: Answering
    notes: tuple[str, ...] = ()


class Dialect:
    """An API that clients use. This class words errors as OpenAI does, and takes no requests."""

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate the body of a request. Raises HttpRefusal, and nothing else."""
        raise invalid("this path takes no body")

    def error(self, failure: Failure) -> dict[str, object]:
        """Return a failure as the JSON of a whole response."""
        return {"error": failure.error()}


def sse(data: Mapping[str, object], *, name: str = "") -> bytes:
    """Write one server-sent event, named `name`."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()
