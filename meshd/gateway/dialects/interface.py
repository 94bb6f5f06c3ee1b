"""The translation of the API's dialects to llama-server's requests, and of its answers back.

llama-server is asked only for chat completions and completions (and for its own few forms, such as
embeddings). A dialect reads a client's body into such a request, and its `Answering` turns llama-server's
answer into what the client expects: whole events of a stream, a whole answer, or a failure. Events are
translated after SentEvents, so an `Answering` outlives a lost llama-server, and a translated answer continues
as a chat does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from meshd.gateway.failure import Failure


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The facts that a translation needs besides the body, which make it pure.

    `id`: 24 hexadecimal digits drawn for this request, from which the ids of its answer are made. `created`:
    unix seconds. `model`: the model's name in the answer; empty if only another node knows it.
    """

    id: str
    created: int
    model: str


class Answering(Protocol):
    """The translator of the answer to one request, which several llama-servers may make in turn."""

    @property
    def content_type(self) -> str:
        """Return the type of a stream: `text/event-stream` or `application/x-ndjson`."""
        ...

    @property
    def passes_on(self) -> bool:
        """Return True if events and answers stay unchanged; they may then be long, and come in pieces."""
        ...

    def events(self, events: bytes) -> bytes:
        """Translate whole server-sent events of llama-server, including `data: [DONE]`.

        The first call also begins the client's stream, and the one with llama-server's last event ends it.
        Never raises: unreadable events are skipped.
        """
        ...

    def failed(self, failure: Failure) -> bytes:
        """Return the end of a stream that breaks off with this failure."""
        ...

    def comment(self, text: str) -> bytes:
        """Return bytes that keep a silent stream alive, with `text` for people if possible.

        Empty if the dialect has no such form.
        """
        ...

    def whole(self, answer: Mapping[str, object]) -> dict[str, object]:
        """Translate a whole answer of llama-server (status 200)."""
        ...


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


class Dialect(Protocol):
    """An API that clients use."""

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate the body of a request. Raises HttpRefusal, and nothing else."""
        ...

    def error(self, failure: Failure) -> dict[str, object]:
        """Return a failure as the JSON of a whole response."""
        ...
