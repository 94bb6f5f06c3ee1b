"""Read llama-server's answers as bytes: events, the figures in them, and what a client has of a stream. Pure.

Most answers are passed on byte for byte, so they are searched and never parsed: for the ends of events, for
tokens and times, and for what one client may not learn about another or about this machine. Names are
searched with their quotation marks, which are escaped within a JSON string, so generated text never matches.

`SentEvents` resumes a streamed answer after its llama-server was lost, without repeating anything. Either
llama-server is asked for the rest (continuation.py), or for the whole answer again with the same seed: then
it makes the same events, and those that the client has are dropped. Both keep the ids of the first run. The
events of the first run are kept compressed, because they are read only after a loss: events of one stream are
alike, so a token of some 250 bytes takes 5. After a loss, the text and a digest of each event are kept.

The rest is computed differently: tokens that were generated one by one are now one batch of a prompt, which
rounds differently. A greedy answer should be the same as without the loss, so it is generated again from the
start while that takes only seconds.
"""

import hashlib
import json
import re
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import cast

from meshd.base.peer_limits import ANSWER_EVENTS
from meshd.gateway.continuation import (
    SENT_FORMS,
    Asking,
    OtherAnswer,
    SentForm,
    SentText,
    continued,
)
from meshd.gateway.dialects.fields import is_number, object_of, objects_of
from meshd.gateway.interface import AnswerTimings

# An event of llama-server is well under this; a longer one is passed on in pieces.
EVENT_BYTES = 256 << 10

# Where the blank line after an event ends; a CRLF blank line contains `\n\r\n` (WHATWG HTML, 9.2.5).
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")
_DATA = re.compile(rb"^data:(.*?)\r?$", re.MULTILINE)
# The end of the data ends an event, too: else each byte of an unfinished one would be tried as a beginning.
EVENT = re.compile(rb".+?(?:\n\r?\n|\r\r|\Z)", re.DOTALL)


# What follows looks for names with their quotation marks: within a JSON string those are escaped, so
# no generated text can be mistaken for them.
_GENERATED = (b"completion_tokens", b"output_tokens", b"predicted_n", b"tokens_predicted")
_FIGURES = re.compile(
    rb'"(prompt_tokens|tokens_evaluated|input_tokens|cached_tokens|prompt_n|cache_n|'
    + b"|".join(_GENERATED)
    + rb')"\s*:\s*(\d{1,12})'
)
_FIGURE_HOLDERS = (b"usage", b"timings", b"tokens_predicted", b"tokens_evaluated")
_TIMINGS = re.compile(rb'"timings"\s*:\s*(\{[^{}]{1,1000}\})')
_TIMED = ("prompt_n", "prompt_ms", "predicted_n", "predicted_ms")
_DRAFTED = ("draft_n", "draft_n_accepted")  # only where something was drafted
_LARGEST_FIGURE = 1e12  # of tokens and of milliseconds
_PIECE = re.compile(rb'"(?:content|reasoning_content|text|arguments)"\s*:\s*"[^"]')
_TRANSCRIPT_PIECE = re.compile(rb'"type"\s*:\s*"transcript\.text\.delta"')
BUCKET_SECONDS = 10
BUCKETS = 90
_COUNT = "Q"  # of 8 bytes: 1440 for all buckets


class EventSplitter:
    """Cuts a byte stream after its last whole event, so that each piece sent ends between events.

    It keeps at most `held_bytes` of an unfinished event, plus one read. A longer event passes in pieces;
    `between_events` is False until it has ended.
    """

    def __init__(self, *, held_bytes: int = EVENT_BYTES) -> None:
        self._held = bytearray()
        self._most = held_bytes
        self._seen = b""  # the last 2 bytes fed: a blank line of 3 bytes may begin there
        self.between_events = True

    def feed(self, data: bytes) -> bytes:
        """Take bytes as they came; return those that may be passed on."""
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
        """Return what remains when the stream has ended: an event without its blank line, or nothing."""
        out = bytes(self._held)
        self._held.clear()
        return out


def whole_events(data: bytes) -> Iterator[bytes]:
    """Yield each event with its blank line, which the last event may lack."""
    for found in EVENT.finditer(data):
        yield found[0]


def event_data(event: bytes) -> bytes:
    """Return the data of an event, whose lines are joined."""
    return b"\n".join(line.strip() for line in _DATA.findall(event))


def parsed(data: bytes | bytearray | str) -> object:
    """Return the value of a JSON text of another program; None if it is not valid."""
    try:
        return cast(object, json.loads(data))
    except (ValueError, RecursionError):
        return None


def answer_timings(body: bytes | bytearray) -> AnswerTimings | None:
    """Read the timings at the end of an answer; None if there are none."""
    found = _TIMINGS.search(body)
    fields = parsed(found[1]) if found is not None else None
    if not isinstance(fields, dict):
        return None
    values = [fields.get(name) for name in _TIMED] + [fields.get(name, 0) for name in _DRAFTED]
    numbers = [value for value in values if isinstance(value, int | float) and 0 <= value < _LARGEST_FIGURE]
    if len(numbers) != len(values):
        return None
    prompt, prompt_ms, generated, generated_ms, drafted, accepted = numbers
    return AnswerTimings(
        int(prompt), prompt_ms / 1000, int(generated), generated_ms / 1000, int(drafted), int(accepted)
    )


# The last event: clients hang up on it without waiting for the end of the stream.
_END = re.compile(rb'(?:^|\n)data: \[DONE\]|"stop"\s*:\s*true\b')
CLIENT_GONE = 499  # nginx's word for a client that has hung up; no client ever reads it
# Of the fields of a request those that hold its prompt, as llama-server is asked for it.
_PROMPT_FIELDS = (
    *("messages", "tools", "prompt", "generation_prompt", "input_prefix", "input_suffix", "input_extra"),
    *("input", "content", "query", "documents", "texts"),
)
_BYTES_PER_TOKEN = 3  # of text in UTF-8: mostly it has fewer tokens
_MOST_ESTIMATED = 2 << 20  # no context holds so many
_END_TOKENS = 2  # that begin and end a text
_MEDIA_TOKENS = 4096  # of an image or a sound, at most about, however many bytes it has
_MEDIA_FIELDS = frozenset({"url", "data", "multimodal_data"})  # base64; in a tool the names are the client's
_READ_BYTES = 32 << 10  # of a request whose fields are looked at: longer ones would hold up the loop
_MOST_ROUGH_BYTES = 8 << 20  # of text: beyond that a body is media
# Base64, or ids of tokens. From the beginning of a run alone: else a run that is just too short would be read
# from each of its bytes.
_RUN = re.compile(rb'(?<![^"\s])[^"\s]{16384,}')


@dataclass(slots=True)
class AnswerMeter:
    """The figures of one request's answer: HTTP status and tokens.

    `status`: the outcome of the whole answer if it differs from the response's status, else 0. `generated`
    counts tokens: one for each piece, until llama-server gives the exact number. The figures of the prompt
    are None until it gives them at the end. `asked`: the body sent to it; empty if none was sent. `alone`: no
    other request ran at the same time; the caller sets it. `is_transcript`: the stream transcribes a sound.
    `timings`: llama-server's own. Moments, in loop time, None until they come: the request `came`, was read
    and `entered` the queue, its `turn` came, the model was `ready` for it, it was `sent`, and the `first`
    token of a stream came. `losses`: how often it was interrupted.
    """

    is_transcript: bool = False
    status: int = 0
    generated: int = 0
    alone: bool = True
    asked: bytes = b""
    timings: AnswerTimings | None = None
    came: float = 0.0
    entered: float = 0.0
    turn: float | None = None
    ready: float | None = None
    sent: float | None = None
    first: float | None = None
    losses: int = 0
    _last: bytes = b""  # events of a stream
    _figures: dict[bytes, int] = field(default_factory=dict)

    def see_events(self, events: bytes) -> int:
        """Read the figures in whole events of a stream. Returns by how many tokens the answer grew."""
        self._last = events
        piece = _TRANSCRIPT_PIECE if self.is_transcript else _PIECE
        return self.see(events, len(piece.findall(events)))

    def see(self, data: bytes | bytearray, pieces: int = 0) -> int:
        """Read the figures in a whole answer, or in a part of it. Returns as `see_events` does."""
        before, self.generated = self.generated, self.generated + pieces
        if any(holder in data for holder in _FIGURE_HOLDERS):  # most events have none
            for name, figure in _FIGURES.findall(data):
                self._figures[name] = max(self._figures.get(name, 0), int(figure))
            # the exact number counts from the start, and a piece may hold more than one token
            self.generated = max(self.generated, *(self._figures.get(name, 0) for name in _GENERATED))
        return self.generated - before

    def hung_up(self) -> None:
        """Set the status for a client that hung up: 200 if it had the last event, else CLIENT_GONE."""
        self.status = 200 if _END.search(self._last) else CLIENT_GONE

    @property
    def prompt(self) -> int | None:
        """Return the tokens of the prompt, including cached ones; None before they are known."""
        names = (b"prompt_tokens", b"tokens_evaluated", b"input_tokens")
        known = next((self._figures[name] for name in names if name in self._figures), None)
        computed = self._figures.get(b"prompt_n")
        return (
            computed + self._figures.get(b"cache_n", 0) if known is None and computed is not None else known
        )

    @property
    def estimated_prompt(self) -> int | None:
        """Estimate the tokens of a prompt if llama-server computed it without giving the number.

        It gives none in some forms of an answer, and none to a client that hangs up. Returns None if the
        number is known, or nothing was computed.
        """
        if not self.asked or self.status not in (200, CLIENT_GONE) or self.prompt is not None:
            return None
        return min(estimated_tokens(self.asked), _MOST_ESTIMATED)

    @property
    def cached(self) -> int | None:
        """Return how many tokens of the prompt came from llama-server's cache; None if unknown."""
        return self._figures.get(b"cached_tokens", self._figures.get(b"cache_n"))


@dataclass(frozen=True, slots=True)
class WorkHistory:
    """The work done in each bucket of BUCKET_SECONDS, the oldest first.

    `seconds`: how much of the newest bucket has passed.
    """

    tokens: tuple[int, ...]
    requests: tuple[int, ...]
    seconds: float


class WorkCounts:
    """Counts tokens that were generated and requests that came, in BUCKETS buckets.

    `now` is a clock in seconds; a time before the newest bucket counts in the newest. There is no timer: a
    bucket is found by the time at which something is counted or read, and those in which nobody has counted
    are emptied then.
    """

    def __init__(self) -> None:
        self._tokens = array(_COUNT, [0] * BUCKETS)
        self._requests = array(_COUNT, [0] * BUCKETS)
        self._newest = 0  # number of the bucket, from the clock's zero

    def add_tokens(self, tokens: int, now: float) -> None:
        """Count tokens that were generated now."""
        self._tokens[self._place(now)] += tokens

    def add_request(self, now: float) -> None:
        """Count a request that came now."""
        self._requests[self._place(now)] += 1

    def read(self, now: float) -> WorkHistory:
        """Return all buckets."""
        oldest = self._place(now) + 1
        seconds = min(max(0.0, now - self._newest * BUCKET_SECONDS), float(BUCKET_SECONDS))
        tokens = (*self._tokens[oldest:], *self._tokens[:oldest])
        return WorkHistory(tokens, (*self._requests[oldest:], *self._requests[:oldest]), seconds)

    def _place(self, now: float) -> int:
        """Return the place of the bucket for `now`; empty those that have passed since the last call."""
        number = max(self._newest, int(now // BUCKET_SECONDS))
        for passed in range(max(self._newest, number - BUCKETS) + 1, number + 1):
            self._tokens[passed % BUCKETS] = self._requests[passed % BUCKETS] = 0
        self._newest = number
        return number % BUCKETS


def estimated_tokens(asked: bytes) -> int:
    """Estimate the tokens of a request's prompts, rather too many than too few. A form counts as a sound."""
    if len(asked) > _READ_BYTES and asked.startswith(b"{"):
        # of a long one by its bytes: text, and long runs of base64 or of ids
        read = asked[:_MOST_ROUGH_BYTES]
        runs: list[bytes] = _RUN.findall(read)
        tokens = _text_tokens(len(read) - sum(map(len, runs)))
        return tokens + sum(max(min(_text_tokens(len(run)), _MEDIA_TOKENS), run.count(b",")) for run in runs)
    fields = parsed(asked)
    if not isinstance(fields, dict):
        return min(_text_tokens(len(asked)), _MEDIA_TOKENS)
    tokens = sum(_tokens_in(fields.get(name), may_be_media=name != "tools") for name in _PROMPT_FIELDS)
    documents = fields.get("documents") or fields.get("texts")
    if isinstance(documents, list) and "query" in fields:  # it is computed with each of them
        tokens += (len(documents) - 1) * (_tokens_in(fields["query"], may_be_media=False) + _END_TOKENS)
    return tokens


def _tokens_in(value: object, *, may_be_media: bool) -> int:
    """Estimate the tokens in all texts and field names within `value`; ids of tokens count as one each."""
    tokens, unseen = 0, [(value, False)]
    while unseen:
        inner, is_media = unseen.pop()
        texts = list(inner) if isinstance(inner, dict) else [inner] if isinstance(inner, str) else []
        sizes = [_text_tokens(len(text.encode(errors="surrogatepass"))) for text in texts]
        tokens += min(sum(sizes), _MEDIA_TOKENS) if is_media else sum(sizes) + len(sizes) * _END_TOKENS
        if isinstance(inner, dict):
            unseen += [(part, may_be_media and name in _MEDIA_FIELDS) for name, part in inner.items()]
        elif isinstance(inner, list):
            parts = [part for part in inner if not isinstance(part, int)]
            tokens += len(inner) - len(parts)
            unseen += [(part, is_media) for part in parts]
        elif inner is not None and not texts:
            tokens += 1
    return tokens


def _text_tokens(size: int) -> int:
    return -(-size // _BYTES_PER_TOKEN)


# Within generated text the quotation marks are escaped, so no text is taken for a figure.
_CACHED_COUNT = re.compile(rb'("(?:cached_tokens|cache_n)"\s*:\s*)\d+')
_PROMPT_TIMES = re.compile(rb'("(?:prompt_ms|prompt_per_token_ms|prompt_per_second)"\s*:\s*)[^,}\s]+')
# Two figures beside each other, as llama-server of the pin writes them; their sum is the whole prompt.
_CACHE_AND_PROMPT = re.compile(rb'"cache_n"\s*:\s*(\d{1,12})\s*,\s*"prompt_n"\s*:\s*(\d{1,12})')
# Which slot answered: the one that holds the longest common prefix, so a right guess lands in another's.
_SLOT = re.compile(rb'("id_slot"\s*:\s*)-?\d+')
# Of a prompt that is under way, told to requests with `return_progress`.
_CACHED_PROGRESS = re.compile(rb'("cache"\s*:\s*)\d+(?=[^{}]*"processed")')


def without_cache(answer: bytes) -> bytes:
    """Return an answer, or whole events of one, without traces of the prompt cache."""
    if b"prompt_progress" in answer:
        answer = _CACHED_PROGRESS.sub(rb"\g<1>0", answer)
    if b"id_slot" in answer:
        answer = _SLOT.sub(rb"\g<1>0", answer)
    if b"usage" not in answer and b"timings" not in answer:
        return answer
    answer = _CACHE_AND_PROMPT.sub(
        lambda found: b'"cache_n":0,"prompt_n":%d' % (int(found[1]) + int(found[2])), answer
    )
    return _PROMPT_TIMES.sub(rb"\g<1>0", _CACHED_COUNT.sub(rb"\g<1>0", answer))


# Within a JSON string quotation marks are escaped, so no template is taken for the field.
# Never tried another way: to go back over a long string, its matching would keep a hundred times its bytes.
_PATH_OF_MODEL = re.compile(rb'("model_path"\s*:\s*)"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def hide_model_path(body: bytes | bytearray, model: str) -> bytes:
    """Return llama-server's properties with the name `model` instead of its path."""
    name = json.dumps(model).encode()
    return bytes(_PATH_OF_MODEL.sub(lambda found: found[1] + name, body))


_MOST_SENT_BYTES = 64 << 20
_MOST_COMPRESSED_BYTES = 4 << 20
_RAW_DEFLATE = -12  # with its window, 32 KiB of state for each answer that is under way
_MEMORY_LEVEL = 5
_PIECE_BYTES = 64 << 10


class KeptEvents:
    """The events of one answer, compressed: at most 131,072 events, 4 MiB compressed, 64 MiB as sent."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._sent = 0
        self._events = 0

    @cached_property
    def _deflate(self) -> "zlib._Compress":
        """Return the compressor, which only streams need."""
        return zlib.compressobj(1, zlib.DEFLATED, _RAW_DEFLATE, _MEMORY_LEVEL)

    def add(self, events: bytes) -> bool:
        """Keep more events; return False if they are too many."""
        self._sent += len(events)
        self._events += max(1, sum(map(events.count, _BLANK_LINES)))
        self._kept += self._deflate.compress(events)
        is_much = self._sent > _MOST_SENT_BYTES or len(self._kept) > _MOST_COMPRESSED_BYTES
        return not is_much and self._events <= ANSWER_EVENTS.most

    def read(self) -> Iterator[bytes]:
        """Yield all bytes, in pieces of at most 64 KiB. Nothing may be added afterwards."""
        inflate = zlib.decompressobj(_RAW_DEFLATE)
        left = bytes(self._kept) + self._deflate.flush()
        while left:
            piece = inflate.decompress(left, _PIECE_BYTES)
            left = inflate.unconsumed_tail
            yield piece


_MOST_IDS = 64  # of tool calls, and of the answer itself
_ID = re.compile(rb'("id"\s*:\s*")([A-Za-z0-9_-]{8,100})"')
_CREATED = re.compile(rb'("created"\s*:\s*)(\d{1,12})')


class RunIds:
    """Maps the ids of a later run of an answer to those of the first.

    Call `learn` for each event, and `next_run` before another run.
    """

    def __init__(self) -> None:
        self._first: list[bytes] = []
        self._seen = 0  # of this run
        self._before: dict[bytes, bytes] = {}  # those of the first run, by those of this one
        self._created = b""

    def next_run(self) -> None:
        self._seen = 0
        self._before = {}

    def learn(self, event: bytes) -> None:
        for _, id in _ID.findall(event):
            if id not in self._before and len(self._before) < _MOST_IDS:
                if self._seen == len(self._first):
                    self._first.append(id)
                self._before[id] = self._first[self._seen]
                self._seen += 1
        if not self._created and (created := _CREATED.search(event)) is not None:
            self._created = created[2]

    def as_before(self, event: bytes) -> bytes:
        """Return this event with the ids and the time of the first run."""
        # each id once: one that is made of others must not grow by them
        event = _ID.sub(lambda found: found[1] + self._before.get(found[2], found[2]) + b'"', event)
        return _CREATED.sub(lambda found: found[1] + (self._created or found[2]), event)


def as_the_rest(event: dict[str, object], sent: SentText, before: int) -> dict[str, object] | None:
    """Adjust an event of a run that continued after `before` tokens; None if the client has had it.

    Raises OtherAnswer.
    """
    if sent.form is SentForm.NATIVE:
        return _counted(event, {"tokens_predicted": before, "tokens_evaluated": -before})
    for choice in objects_of(event.get("choices")):
        delta = object_of(choice, "delta")
        if "role" in delta and not delta.get("content"):
            return None
        if delta and sent.echo.calls:
            fresh = sent.echo.fresh(delta)
            if not fresh and choice.get("finish_reason") is None:
                return None
            event = {**event, "choices": [{**choice, "delta": fresh}]}
    if not isinstance(usage := event.get("usage"), dict):
        return event
    return {**event, "usage": _counted(usage, {"completion_tokens": before, "prompt_tokens": -before})}


def _counted(values: Mapping[str, object], more: Mapping[str, int]) -> dict[str, object]:
    counted = {name: value + by for name, by in more.items() if is_number(value := values.get(name))}
    return {**values, **counted}


MOST_AGAIN_SECONDS = 30.0  # a greedy answer that took longer so far continues with the rest
_DIGEST_BYTES = 8
# Another run has other values here, or rounds them otherwise. Within generated text the quotation marks
# are escaped, so no text is taken for a field.
_OF_A_RUN = frozenset(
    {
        *("id", "created"),
        *("logprobs", "top_logprobs", "completion_probabilities", "probs"),
        *("timings", "usage", "tokens_cached", "tokens_evaluated", "id_slot"),
    }
)
_PROGRESS = "prompt_progress"  # as often as time passes


class _RunKind(Enum):
    FIRST = "first"
    SAME = "same"  # from the beginning, and the beginning is dropped
    REST = "rest"


class SentEvents:
    """The events that a client has of one answer to a request at `path`; `own_seed`: the seed is meshd's.

    Call `unsent` for all events of a run, `run_ended` at its end, `next_request` before another one.
    """

    def __init__(self, path: str, *, own_seed: bool) -> None:
        self._form = SENT_FORMS.get(path)
        self._own_seed = own_seed
        self._sent: SentText | None = None  # once it is read
        self._first = KeptEvents()
        self._digests = array("Q")
        self._ids = RunIds()
        self._can_compare = True
        self._is_whole = True
        self._rest_fails = False
        self._run = _RunKind.FIRST
        self._at = 0  # events of this run
        self._before = 0  # tokens that the client had when it began
        self._run_began: float | None = None  # with its first event
        self._taken = 0.0  # seconds from there to the last one, in the longest run

    @property
    def is_catching_up(self) -> bool:
        """Return True while this run repeats what the client already has."""
        return self._run is _RunKind.SAME and self._at < len(self._digests)

    def in_pieces(self) -> None:
        """Note that an event comes in pieces, after which no retry can continue the answer.

        Raises OtherAnswer in a later run.
        """
        self._cannot_join("one of its events is too long")

    def next_request(self, body: bytes) -> Asking[bytes | None]:
        """Return the body of the retry, instead of `body`; None if the answer cannot be continued.

        The template may have to be asked before. Reads all that was sent, some 30 ms for 1000 tokens, so run
        it in a thread.
        """
        self._read_first()
        asked = parsed(body) if self._is_whole else None
        rest = None
        if self._sent is not None and isinstance(asked, dict) and self._may_ask_for_the_rest(asked):
            rest = yield from continued(asked, self._sent)
        self._at, self._run_began = 0, None
        self._ids.next_run()
        if rest is not None and self._sent is not None:
            self._run, self._before = _RunKind.REST, self._sent.count
            self._sent.goes_on()
            return json.dumps(rest).encode()
        self._run = _RunKind.SAME
        return body if self._is_whole and self._can_compare else None

    def _may_ask_for_the_rest(self, asked: Mapping[str, object]) -> bool:
        """Return True unless the whole is to be generated again, though continuing would be faster."""
        is_same = not self._own_seed if asked.get("temperature") != 0 else self._taken <= MOST_AGAIN_SECONDS
        return not self._rest_fails and not (self._can_compare and is_same)

    def rest_is_refused(self, why: str) -> None:
        """Note that llama-server refuses to continue.

        Raises OtherAnswer if the whole answer can be generated again instead.
        """
        if self._run is _RunKind.REST and self._can_compare:
            self._rest_fails = True
            raise OtherAnswer(why)

    def unsent(self, events: bytes, now: float) -> bytes:
        """Return the part of these whole events that the client lacks. Raises OtherAnswer."""
        self._run_began = now if self._run_began is None else self._run_began
        self._taken = max(self._taken, now - self._run_began)
        if self._run is _RunKind.FIRST:
            if self._is_whole and not self._first.add(events):
                self._is_whole, self._first = False, KeptEvents()
            return events
        return self._read(events)

    def run_ended(self) -> None:
        """End a run. Raises OtherAnswer if it made less than the client has."""
        if self._run is _RunKind.SAME and self._at < len(self._digests):
            self._differs("it was shorter")

    def _read_first(self) -> None:
        if self._run is not _RunKind.FIRST:
            return
        first, self._first = self._first, KeptEvents()
        if self._sent is None and self._form is not None:
            self._sent = SentText(self._form)
        splitter = EventSplitter(held_bytes=2 * EVENT_BYTES)  # the longest came with the end of a read
        for piece in first.read():
            if self._is_whole:
                self._read(splitter.feed(piece))

    def _read(self, events: bytes) -> bytes:
        try:
            return b"".join(self._unsent_event(event) for event in whole_events(events))
        except RecursionError:  # another node may send anything
            self._cannot_join("one of its events is nested too deeply")
            return events

    def _cannot_join(self, what: str) -> None:
        self._is_whole = False
        if self._run is not _RunKind.FIRST:
            raise OtherAnswer(what)

    def _unsent_event(self, event: bytes) -> bytes:
        data = event_data(event)
        fields = parsed(data)
        if not data or (isinstance(fields, dict) and _PROGRESS in fields):
            return event if self._run is _RunKind.FIRST else b""
        self._ids.learn(event)
        if self._run is _RunKind.REST:
            return self._of_the_rest(event, fields)
        digest = _digest(data if fields is None else json.dumps(_without_run(fields)).encode())
        self._at += 1
        if self._at <= len(self._digests):
            if self._digests[self._at - 1] != digest:
                self._differs(f"its event {self._at} is another one")
            return b""
        self._can_compare = self._can_compare and len(self._digests) < ANSWER_EVENTS.most  # 1 MiB
        if self._can_compare:
            self._digests.append(digest)
        self._see(fields)
        return event if self._run is _RunKind.FIRST else self._ids.as_before(event)

    def _of_the_rest(self, event: bytes, fields: object) -> bytes:
        if not isinstance(fields, dict) or self._sent is None:
            return event
        try:
            as_sent = as_the_rest(fields, self._sent, self._before)
        except OtherAnswer:
            self._rest_fails = True
            raise
        if as_sent is None:
            return b""
        self._can_compare = False  # the same would not make this
        self._see(as_sent)
        if as_sent is not fields:
            data = b"data: " + json.dumps(as_sent).encode()
            event = _DATA.sub(lambda _: data, event, count=1)
        return self._ids.as_before(event)

    def _see(self, fields: object) -> None:
        if self._sent is not None and isinstance(fields, dict):
            self._sent.see(fields)

    def _differs(self, what: str) -> None:
        self._can_compare = False
        raise OtherAnswer(what)


def _without_run(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_run(inner) for name, inner in value.items() if name not in _OF_A_RUN}
    if isinstance(value, list):
        return [_without_run(inner) for inner in value]
    return value


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest(), "little")
