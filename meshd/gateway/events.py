"""Server-sent events as the proxy needs them: where an event ends, and how many tokens went by. Pure.

The bytes are never changed.
"""

import json
import re
from collections.abc import Iterator
from enum import StrEnum

from meshd.gateway.interface import AnswerTimings

# An event of llama-server is well under this; a longer one is passed on in pieces.
EVENT_BYTES = 256 << 10

# Where the blank line after an event ends; a CRLF blank line contains `\n\r\n` (WHATWG HTML, 9.2.5).
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")
# The end of the data ends an event, too: else each byte of an unfinished one would be tried as a beginning.
_EVENT = re.compile(rb".+?(?:\n\r?\n|\r\r|\Z)", re.DOTALL)


class StreamForm(StrEnum):
    """The dialect of a stream: how it carries text and errors."""

    OPENAI = "openai"  # data: {"error": {...}}; llama.cpp's own streams too
    TRANSCRIPT = "transcript"  # as those, of what is said in a sound
    RESPONSES = "responses"  # event: error, the fields at the top (OpenAI's Responses API)
    ANTHROPIC = "anthropic"  # event: error, data: {"type": "error", "error": {...}}


# What follows looks for names with their quotation marks: within a JSON string those are escaped, so
# no generated text can be mistaken for them.
_EXACT = re.compile(rb'"(?:completion_tokens|output_tokens|predicted_n|tokens_predicted)"\s*:\s*(\d{1,12})')
_TIMINGS = re.compile(rb'"timings"\s*:\s*(\{[^{}]{1,1000}\})')
_TIMED = ("prompt_n", "prompt_ms", "predicted_n", "predicted_ms")
_DRAFTED = ("draft_n", "draft_n_accepted")  # only where something was drafted
_LARGEST_FIGURE = 1e12  # of tokens and of milliseconds
_PIECES = {
    StreamForm.OPENAI: re.compile(rb'"(?:content|reasoning_content|text|arguments)"\s*:\s*"[^"]'),
    StreamForm.TRANSCRIPT: re.compile(rb'"type"\s*:\s*"transcript\.text\.delta"'),
    StreamForm.RESPONSES: re.compile(rb'"type"\s*:\s*"response\.[a-z_.]{1,40}\.delta"'),
    StreamForm.ANTHROPIC: re.compile(rb'"type"\s*:\s*"content_block_delta"'),
}


class EventSplitter:
    """Cut a byte stream after its last whole event, so that each piece sent ends between events.

    Keeps at most `held_bytes` of an unfinished event, and one read beyond. A longer event is let
    through in pieces; `between_events` is False until it has ended.
    """

    def __init__(self, *, held_bytes: int = EVENT_BYTES) -> None:
        self._held = bytearray()
        self._most = held_bytes
        self._seen = b""  # the last 2 bytes fed: a blank line of 3 bytes may begin there
        self.between_events = True

    def feed(self, data: bytes) -> bytes:
        """Take bytes as they came, give back those that may go on."""
        if data.endswith(b"\n\n"):  # mostly a read is one event
            self._seen, self.between_events = data[-2:], True
            return self.rest() + data
        window = self._seen + data
        ends = (at + len(line) for line in _BLANK_LINES if (at := window.rfind(line)) >= 0)
        cut = max(ends, default=0) - len(self._seen)
        self._seen = window[-2:]
        if cut > 0:
            out = bytes(self._held) + data[:cut]
            self._held[:] = data[cut:]
            self.between_events = True
            return out
        self._held += data
        if len(self._held) <= self._most:
            return b""
        self.between_events = False
        return self.rest()

    def rest(self) -> bytes:
        """What remains when the stream has ended: an event without its blank line, or nothing."""
        out = bytes(self._held)
        self._held.clear()
        return out


def whole_events(data: bytes) -> Iterator[bytes]:
    """Each event of these with its blank line; the last one may be without."""
    for found in _EVENT.finditer(data):
        yield found[0]


def exact_tokens(body: bytes | bytearray) -> int:
    """Tokens generated, as llama-server's usage or timings in `body` say; 0 when they say nothing."""
    if b"usage" not in body and b"timings" not in body and b"tokens_predicted" not in body:
        return 0  # as of most events: to search for all names takes ten times as long
    return max((int(found) for found in _EXACT.findall(body)), default=0)


def answer_timings(body: bytes | bytearray) -> AnswerTimings | None:
    """What llama-server says at the end of an answer; None when it does not."""
    found = _TIMINGS.search(body)
    if found is None:
        return None
    try:
        said: object = json.loads(found[1])
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    values = [said.get(name) for name in _TIMED] + [said.get(name, 0) for name in _DRAFTED]
    numbers = [value for value in values if isinstance(value, int | float) and 0 <= value < _LARGEST_FIGURE]
    if len(numbers) != len(values):
        return None
    prompt, prompt_ms, generated, generated_ms, drafted, accepted = numbers
    return AnswerTimings(
        int(prompt), prompt_ms / 1000, int(generated), generated_ms / 1000, int(drafted), int(accepted)
    )


class TokenCount:
    """Tokens generated by one stream: exact once llama-server says it, until then one for each piece.

    `alone`: no other request was under way, as far as who counts has said.
    """

    def __init__(self, form: StreamForm) -> None:
        self._pieces = _PIECES[form]
        self._known = 0
        self.total = 0
        self.alone = True

    @property
    def fresh(self) -> int:
        """Those that were not generated before."""
        return self.total - self._known

    def know(self, data: bytes) -> None:
        """These events were generated, and counted, before."""
        self.feed(data)
        self._known = self.total

    def feed(self, data: bytes) -> int:
        """Count whole events; gives by how much the total grew."""
        before = self.total
        pieces = len(self._pieces.findall(data))
        # the exact number counts from the start, and a piece may hold more than one token
        self.total = max(self.total + pieces, exact_tokens(data))
        return self.total - before
