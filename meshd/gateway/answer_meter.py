"""What an answer took, as llama-server tells in it. Pure.

Only looked at: a client gets the bytes as they are.
"""

import re
from dataclasses import dataclass, field

# Each with its quotation marks: within generated text those are escaped.
_FIGURES = re.compile(
    rb'"(prompt_tokens|tokens_evaluated|input_tokens|cache_read_input_tokens|cached_tokens|prompt_n|cache_n)"'
    rb"\s*:\s*(\d{1,12})"
)
# The last event in each dialect: clients hang up on it without waiting for the end of the stream.
_END = re.compile(
    rb'(?:^|\n)(?:data: \[DONE\]|event: (?:message_stop|response\.completed)\b)|"stop"\s*:\s*true\b'
)
CLIENT_GONE = 499  # nginx's word for a client that has hung up; no client ever reads it
_TAKEN_OVER = 409  # by another request of its client
_BYTES_PER_TOKEN = 4  # of a prompt, about
_MOST_PROMPT_BYTES = 8 << 20  # beyond that a body is media; no context holds so many tokens
# An image or a sound, in base64: it takes some thousand tokens at most, however many bytes it has.
_MEDIA_BYTES = 16384
# From the beginning of a run alone: else a run that is just too short would be read from each of its bytes.
_MEDIA = re.compile(rb'(?<![^"\s])[^"\s]{%d,}' % _MEDIA_BYTES)


@dataclass(slots=True)
class AnswerMeter:
    """Of one request. `status`: of the whole answer, other than what its first line says; 0: that.

    `generated` counts tokens; `again` those that its client had from before, and that were computed once more
    (about one for each event). What llama-server says of the prompt it says at the end: None before.
    `asked`: the body with which llama-server was asked; empty where it was not, or where that is no text.
    """

    status: int = 0
    generated: int = 0
    again: int = 0
    asked: bytes = b""
    _last: bytes = b""  # events of a stream
    _said: dict[bytes, int] = field(default_factory=dict)

    def see_events(self, events: bytes) -> None:
        """Whole events of a stream."""
        self._last = events
        self.see(events)

    def see(self, data: bytes | bytearray) -> None:
        """A whole answer, or a part that says what it took."""
        if b"usage" in data or b"timings" in data:
            for name, figure in _FIGURES.findall(data):
                self._said[name] = max(self._said.get(name, 0), int(figure))

    def hung_up(self) -> None:
        """The client has: before the last event, or on it."""
        self.status = 200 if _END.search(self._last) else CLIENT_GONE

    @property
    def computed(self) -> int:
        """Tokens of the answer that this request took."""
        return self.generated + self.again

    @property
    def prompt(self) -> int | None:
        """Tokens of the prompt, with those that were in the cache."""
        said = self._said
        for name in (b"prompt_tokens", b"tokens_evaluated"):
            if name in said:
                return said[name]
        if b"input_tokens" in said:  # Anthropic's are without those in the cache
            return said[b"input_tokens"] + said.get(b"cache_read_input_tokens", 0)
        return said[b"prompt_n"] + said.get(b"cache_n", 0) if b"prompt_n" in said else None

    @property
    def estimated_prompt(self) -> int | None:
        """About how many tokens were asked for by a client that did not wait until llama-server told; None
        where that is known, or nothing of the kind was computed."""
        if not self.asked or self.status not in (CLIENT_GONE, _TAKEN_OVER) or self.prompt is not None:
            return None
        text = self.asked[:_MOST_PROMPT_BYTES]
        media = sum(max(0, len(one) - _MEDIA_BYTES) for one in _MEDIA.findall(text))
        return (len(text) - media) // _BYTES_PER_TOKEN

    @property
    def cached(self) -> int | None:
        """Of the prompt's tokens those that llama-server had from before."""
        names = (b"cached_tokens", b"cache_read_input_tokens", b"cache_n")
        return next((self._said[name] for name in names if name in self._said), None)


def has_end(events: bytes) -> bool:
    """Whether the last event of a stream is among these."""
    return _END.search(events) is not None
